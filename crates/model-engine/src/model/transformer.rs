// SPDX-License-Identifier: MIT OR Apache-2.0
//! `TransformerModel`: the plan, its arenas and its programs.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use metrale_circuit::{Phase, Plan};
use metrale_core::{SampleRow, SpanId, StepBlock, StepLimits};
use metrale_gpu_runtime::{DeviceFault, Fence, Loc, Progress, Queue};
use metrale_model_layers::{BindFailure, Binder, TransformerLayer, layers::layers};
use metrale_scheduler::RowStatus;

use super::programs::Programs;
use super::reserved::Reserved;
use crate::traits::{Model, RowResult};

/// A loaded model on one backend.
pub struct TransformerModel {
    device: Arc<Reserved>,
    forward: Programs,
    sample: Programs,
    /// Steps submitted and not waited for, the oldest first.
    in_flight: VecDeque<Flight>,
    /// Behind the outputs of the step that was waited for last.
    outputs_of: Option<Fence>,
    digest: String,
    vocab: u32,
    row: Vec<u8>,
}

/// The fences of a step's programs: a fault belongs to its own.
#[derive(Clone, Copy, Debug)]
struct Flight {
    forward: Fence,
    sample: Option<Fence>,
}

/// The model could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    /// A group could not be bound.
    #[error(transparent)]
    Bind(#[from] BindFailure),
    /// A program could not be recorded.
    #[error("programs could not be recorded: {0}")]
    Record(#[from] DeviceFault),
}

impl TransformerModel {
    /// Binds every layer of the plan, whose memory is `device` and whose weights are packed, and records the programs of all
    /// row buckets.
    ///
    /// # Errors
    /// [`SetupError`]: the backend lacks a point, an argument does not fit, or recording failed.
    pub fn new(device: Arc<Reserved>) -> Result<TransformerModel, SetupError> {
        let Reserved {
            plan,
            backend,
            arenas,
        } = device.as_ref();
        let mut binder = Binder::new(backend.as_ref(), *arenas, plan);
        let mut bind = |layers: Vec<Box<dyn TransformerLayer>>| -> Result<Vec<_>, BindFailure> {
            let mut launches = Vec::new();
            for layer in layers {
                launches.extend(layer.bind(&mut binder)?);
            }
            Ok(launches)
        };
        let forward = bind(layers(plan, Phase::Forward))?;
        let sample = bind(layers(plan, Phase::Sample))?;
        let forward = Programs::record(backend.as_ref(), &forward, plan.limits.rows)?;
        let sample = Programs::record(backend.as_ref(), &sample, plan.limits.logits_rows)?;
        let digest = plan.digest.to_string();
        let vocab = plan.memory.span(plan.outputs.logits).extent.elems as u32;
        let row = vec![0; vocab as usize * size_of::<f32>()];
        Ok(TransformerModel {
            device,
            forward,
            sample,
            in_flight: VecDeque::new(),
            outputs_of: None,
            digest,
            vocab,
            row,
        })
    }

    /// The plan that runs.
    #[must_use]
    pub fn plan(&self) -> &Arc<Plan> {
        &self.device.plan
    }

    /// Its device memory, for whoever must outlive a step: taps, the KV pool's populator.
    #[must_use]
    pub fn device(&self) -> &Arc<Reserved> {
        &self.device
    }

    fn read_words<const N: usize>(
        &self,
        span: SpanId,
        index: u64,
    ) -> Result<[u32; N], DeviceFault> {
        let mut words = [0u32; N];
        let mut bytes = [0u8; 4];
        for (i, word) in words.iter_mut().enumerate() {
            let Reserved {
                backend, arenas, ..
            } = self.device.as_ref();
            let loc = Loc {
                span,
                offset: (index + i as u64) * 4,
            };
            match self.outputs_of {
                Some(fence) => backend.read_of(fence, *arenas, loc, &mut bytes)?,
                None => backend.read(*arenas, loc, &mut bytes)?,
            }
            *word = u32::from_le_bytes(bytes);
        }
        Ok(words)
    }

    fn read_row(&mut self, index: u32) -> Result<(), DeviceFault> {
        let offset = u64::from(index) * self.row.len() as u64;
        self.device.backend.read(
            self.device.arenas,
            Loc {
                span: self.device.plan.outputs.logits,
                offset,
            },
            &mut self.row,
        )
    }
}

impl Model for TransformerModel {
    fn limits(&self) -> &StepLimits {
        &self.device.plan.limits
    }

    fn digest(&self) -> &str {
        &self.digest
    }

    fn vocab(&self) -> u32 {
        self.vocab
    }

    fn copy_block(&mut self, src: u32, dst: u32) -> Result<(), DeviceFault> {
        for (span, bytes) in &self.device.plan.kv_groups[0].streams {
            let block = |index: u32| Loc {
                span: *span,
                offset: u64::from(index) * *bytes,
            };
            self.device.backend.copy(
                Queue::default(),
                self.device.arenas,
                block(dst),
                block(src),
                *bytes,
                &[],
            )?;
        }
        Ok(())
    }

    fn copy_state(&mut self, src: u32, dst: u32) -> Result<(), DeviceFault> {
        for span in &self.device.plan.slot_spans {
            let span_info = self.device.plan.memory.span(*span);
            // f32: the plan gives such spans no other format.
            let bytes = span_info.extent.elems * 4;
            let place = |index: u32| Loc {
                span: *span,
                offset: u64::from(index) * bytes,
            };
            self.device.backend.copy(
                Queue::default(),
                self.device.arenas,
                place(dst),
                place(src),
                bytes,
                &[],
            )?;
        }
        Ok(())
    }

    fn submit(&mut self, step: &StepBlock) -> Result<(), DeviceFault> {
        let counts = step.counts();
        let forward = self
            .forward
            .for_rows(counts.rows)
            .ok_or_else(|| too_many("rows", counts.rows))?;
        let forward = self
            .device
            .backend
            .submit(Queue::default(), forward, step, &[])?;
        let mut flight = Flight {
            forward,
            sample: None,
        };
        if counts.logits_rows > 0 {
            let rows = counts.logits_rows;
            let sample = self
                .sample
                .for_rows(rows)
                .ok_or_else(|| too_many("logits rows", rows))?;
            let backend = &self.device.backend;
            let fence = backend.submit(Queue::default(), sample, step, &[forward])?;
            flight.sample = Some(fence);
        }
        self.in_flight.push_back(flight);
        Ok(())
    }

    fn wait(&mut self, timeout: Duration) -> Result<Progress, DeviceFault> {
        let Some(flight) = self.in_flight.front().copied() else {
            return Ok(Progress::Done);
        };
        // The last first: what it waits for has ended with it, and the other answers at once.
        for fence in flight.sample.into_iter().chain([flight.forward]) {
            match self.device.backend.wait(fence, timeout) {
                Ok(Progress::Done) => {}
                Ok(Progress::Running) => return Ok(Progress::Running),
                Err(fault) => {
                    self.in_flight.pop_front();
                    return Err(fault);
                }
            }
        }
        self.in_flight.pop_front();
        self.outputs_of = flight.sample;
        Ok(Progress::Done)
    }

    fn late_ids(&self) -> Option<SpanId> {
        let takes = self.device.backend.takes_late_ids();
        takes.then_some(self.device.plan.outputs.token)
    }

    fn result(
        &mut self,
        index: u32,
        top_count: u32,
        top: &mut Vec<(u32, f32)>,
    ) -> Result<RowResult, DeviceFault> {
        let outputs = self.device.plan.outputs;
        let at = u64::from(index);
        let [token] = self.read_words(outputs.token, at)?;
        let [logprob] = self.read_words(outputs.logprob, at)?;
        let [status] = self.read_words(outputs.status, at)?;
        for entry in 0..u64::from(top_count.min(self.vocab())) {
            let words: [u32; 2] = self.read_words(
                outputs.top,
                (at * u64::from(SampleRow::MAX_TOP) + entry) * 2,
            )?;
            top.push((words[0], f32::from_bits(words[1])));
        }
        Ok(RowResult {
            token,
            logprob: f32::from_bits(logprob),
            status: match status {
                0 => RowStatus::Ok,
                2 => RowStatus::Empty,
                _ => RowStatus::NonFinite,
            },
        })
    }

    fn logits(&mut self, index: u32, out: &mut [f32]) -> Result<(), DeviceFault> {
        self.read_row(index)?;
        for (value, bytes) in out.iter_mut().zip(self.row.chunks_exact(4)) {
            *value = f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        }
        Ok(())
    }

    fn logits_hash(&mut self, index: u32) -> Result<u64, DeviceFault> {
        self.read_row(index)?;
        let hash = blake3::hash(&self.row);
        let mut first = [0; 8];
        first.copy_from_slice(&hash.as_bytes()[..8]);
        Ok(u64::from_le_bytes(first))
    }
}

fn too_many(what: &str, got: u32) -> DeviceFault {
    DeviceFault::rejected(format!(
        "a step of {got} {what} fits no recorded program: the step plan breaks its limits"
    ))
}
