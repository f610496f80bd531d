// SPDX-License-Identifier: MIT OR Apache-2.0
//! The scheduler's way to the device: step plans become step blocks, result rows become outcomes.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use metrale_core::{KV_BLOCK, LateId, SampleRow, StepBlock, StepLayout};
use metrale_gpu_runtime::{DeviceFault, Progress as DeviceProgress};
use metrale_sampling::Sampling;
use metrale_scheduler::{
    DeviceRouter, Fault, FaultKind, HistoryEntry, Lookahead, Progress, RowOutcome, Scope, Segment,
    StepOutcome, StepPlan, TokenMask,
};

use super::StepPace;
use crate::traits::Model;

/// Drives a [`Model`] for the scheduler.
pub struct ModelRouter<M> {
    model: M,
    block: StepBlock,
    /// Steps in flight, the oldest first.
    flights: VecDeque<Flight>,
    /// The slots that the step submitted last draws for, by logits row.
    drawn: Vec<u32>,
    hash_rows: bool,
    lookahead: Lookahead,
    pace: StepPace,
    /// When the step waited for last was over: the next one has had the device since.
    ended: Option<Instant>,
    history: Vec<metrale_core::HistoryEntry>,
    bias: Vec<(u32, f32)>,
    masks: Vec<usize>,
    top: Vec<(u32, f32)>,
    step_deadline: Duration,
}

/// A step in flight. Nothing else of its plan is kept: a history grows in place only while nobody else holds it.
#[derive(Debug)]
struct Flight {
    started: Instant,
    rows: u32,
    /// Alternatives asked for, by logits row.
    tops: Vec<u32>,
}

impl<M: Model> ModelRouter<M> {
    /// A router over `model`. `hash_rows` reports a hash of every logits row (tests and `--row-hashes`); a step that runs
    /// longer than `step_deadline` is a device fault.
    #[must_use]
    pub fn new(model: M, hash_rows: bool, step_deadline: Duration) -> ModelRouter<M> {
        let block = StepBlock::new(Arc::new(StepLayout::new(*model.limits())));
        ModelRouter {
            model,
            block,
            flights: VecDeque::new(),
            drawn: Vec::new(),
            hash_rows,
            lookahead: Lookahead::Late,
            pace: StepPace::default(),
            ended: None,
            history: Vec::new(),
            bias: Vec::new(),
            masks: Vec::new(),
            top: Vec::new(),
            step_deadline,
        }
    }

    /// How far ahead steps are taken; [`Lookahead::Late`] without this. For [`Lookahead::Slot`] the model must take ids that a
    /// step leaves on its device; where it does not, or where logits rows are hashed (the next step overwrites them), it
    /// becomes [`Lookahead::Late`].
    #[must_use]
    pub fn with_lookahead(self, wanted: Lookahead) -> ModelRouter<M> {
        let slot = self.model.late_ids().is_some() && !self.hash_rows;
        let lookahead = match wanted {
            Lookahead::Slot if !slot => Lookahead::Late,
            wanted => wanted,
        };
        ModelRouter { lookahead, ..self }
    }

    /// Tells `pace` how long prefill rows take.
    #[must_use]
    pub fn with_pace(self, pace: StepPace) -> ModelRouter<M> {
        ModelRouter { pace, ..self }
    }

    /// Fills the block. Returns the alternatives asked for, by logits row.
    fn fill(&mut self, plan: &StepPlan<Sampling>) -> Result<Vec<u32>, metrale_core::StepFull> {
        self.block.clear();
        for delta in &plan.tables {
            self.block
                .push_delta(delta.slot, delta.index, delta.block)?;
        }
        for segment in &plan.segments {
            self.block.push_run(
                segment.slot,
                segment.first_position,
                plan.tokens_of(segment),
            )?;
        }
        if let Some(span) = self.model.late_ids() {
            for late in &plan.late {
                // Each slot draws at most one token a step, in its last logits row.
                let index = self.drawn.iter().rposition(|slot| *slot == late.slot);
                let index = index.map_or(u32::MAX, |i| i as u32);
                let row = late.row;
                self.block.push_late(LateId { row, span, index })?;
            }
        }
        let mut tops = Vec::with_capacity(plan.logits.len());
        self.drawn.clear();
        self.masks.clear();
        for row in &plan.logits {
            self.history.clear();
            self.history.extend(
                row.history
                    .iter()
                    .flat_map(|entries| entries.iter().map(history_entry)),
            );
            self.bias.clear();
            self.bias.extend_from_slice(&row.bias);
            self.bias
                .extend(row.banned.iter().map(|token| (*token, f32::NEG_INFINITY)));
            let sample = row
                .sampling
                .encode(row.choice, row.position, row.forced, row.top);
            let mask = row.mask.as_ref().map(|m| self.push_mask(m)).transpose()?;
            let sample = SampleRow { mask, ..sample };
            self.block
                .push_logits(row.row, &sample, &self.history, &self.bias)?;
            tops.push(row.top);
            let holds = |s: &&Segment| s.rows.contains(&row.row);
            let slot = plan.segments.iter().find(holds).map(|s| s.slot);
            self.drawn.push(slot.unwrap_or(u32::MAX));
        }
        Ok(tops)
    }

    /// The step's number of a mask; one that several rows share is pushed once.
    fn push_mask(&mut self, mask: &TokenMask) -> Result<u32, metrale_core::StepFull> {
        // The plan holds the masks, so that equal addresses are one mask.
        let address = mask.words().as_ptr().addr();
        if let Some(known) = self.masks.iter().rposition(|m| *m == address) {
            return Ok(known as u32);
        }
        self.masks.push(address);
        self.block.push_mask(mask.words())
    }

    /// Waits for what is in flight, so that none writes after this. What becomes of it does not count.
    fn settle(&mut self) -> Result<(), Fault> {
        while let Some(flight) = self.flights.front() {
            let started = flight.started;
            match self.model.wait(self.step_deadline) {
                Ok(DeviceProgress::Running) => self.hangs(started)?,
                Ok(DeviceProgress::Done) => drop(self.flights.pop_front()),
                Err(lost) if lost.sticky => return Err(fault(lost)),
                Err(_) => drop(self.flights.pop_front()),
            }
        }
        Ok(())
    }

    /// A device fault if a step in flight has run too long.
    fn hangs(&self, started: Instant) -> Result<(), Fault> {
        let ran = started.elapsed();
        if ran <= self.step_deadline {
            return Ok(());
        }
        let what = format!("a step has run for {ran:?}: the device hangs");
        Err(Fault::new(Scope::Device, FaultKind::Device, what))
    }

    fn collect(&mut self, tops: &[u32], outcome: &mut StepOutcome) -> Result<(), DeviceFault> {
        outcome.clear();
        for (index, top) in tops.iter().enumerate() {
            self.top.clear();
            let result = self.model.result(index as u32, *top, &mut self.top)?;
            let mut out = RowOutcome {
                status: result.status,
                ..RowOutcome::new(result.token, result.logprob)
            };
            if self.hash_rows {
                out.row_hash = Some(self.model.logits_hash(index as u32)?);
            }
            outcome.push(out, self.top.drain(..));
        }
        Ok(())
    }
}

impl<M: Model> DeviceRouter for ModelRouter<M> {
    type Sampling = Sampling;

    fn lookahead(&self) -> Lookahead {
        self.lookahead
    }

    fn submit(&mut self, plan: &StepPlan<Sampling>) -> Result<(), Fault> {
        if !plan.late.is_empty() && self.lookahead != Lookahead::Slot {
            let what = "a step has late ids, which this model does not read";
            return Err(Fault::new(Scope::Step, FaultKind::Internal, what));
        }
        let tops = self
            .fill(plan)
            .map_err(|full| Fault::new(Scope::Step, FaultKind::Internal, full.to_string()))?;
        for copy in &plan.copies {
            self.model.copy_block(copy.src, copy.dst).map_err(fault)?;
        }
        for restore in &plan.restores {
            self.model
                .copy_state(restore.place, restore.slot)
                .map_err(fault)?;
        }
        self.model.submit(&self.block).map_err(fault)?;
        for segment in &plan.segments {
            if let Some(place) = segment.save {
                self.model.copy_state(segment.slot, place).map_err(fault)?;
            }
        }
        self.flights.push_back(Flight {
            started: Instant::now(),
            rows: plan.rows(),
            tops,
        });
        Ok(())
    }

    fn wait(&mut self, timeout: Duration, outcome: &mut StepOutcome) -> Result<Progress, Fault> {
        match self.model.wait(timeout) {
            Ok(DeviceProgress::Done) => {
                if let Some(flight) = self.flights.pop_front() {
                    if flight.rows >= KV_BLOCK {
                        let since = self.ended.max(Some(flight.started));
                        self.pace
                            .measure(flight.rows, since.unwrap_or(flight.started));
                    }
                    self.ended = Some(Instant::now());
                    self.collect(&flight.tops, outcome).map_err(fault)?;
                }
                Ok(Progress::Done)
            }
            Ok(DeviceProgress::Running) => {
                let started = self.flights.front().map(|f| f.started);
                started.map_or(Ok(()), |s| self.hangs(s))?;
                Ok(Progress::Running)
            }
            Err(lost) => {
                self.flights.pop_front();
                Err(fault(lost))
            }
        }
    }

    fn recover(&mut self, cause: &Fault) -> Result<(), Fault> {
        match cause.scope {
            // The KV pool and the programs stand; the next step brings its own block, once what is in flight has ended.
            Scope::Row | Scope::Request | Scope::Step => self.settle(),
            // A panic of ours: the device is sound, and the accounts have forgotten what the pool holds.
            Scope::Device if cause.kind == FaultKind::Internal => self.settle(),
            Scope::Device => Err(Fault::new(
                Scope::Device,
                FaultKind::Device,
                format!("the device cannot be opened again in this process: {cause}"),
            )),
        }
    }
}

fn history_entry(entry: &HistoryEntry) -> metrale_core::HistoryEntry {
    metrale_core::HistoryEntry {
        token: entry.token,
        output_count: entry.output_count,
        in_prompt: entry.in_prompt,
    }
}

fn fault(fault: DeviceFault) -> Fault {
    let scope = if fault.sticky {
        Scope::Device
    } else {
        Scope::Step
    };
    Fault::new(scope, FaultKind::Device, fault.to_string())
}
