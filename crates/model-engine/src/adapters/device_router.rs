// SPDX-License-Identifier: MIT OR Apache-2.0
//! The scheduler's way to the device: step plans become step blocks, result rows become outcomes.

use std::sync::Arc;
use std::time::{Duration, Instant};

use metrale_core::{KV_BLOCK, StepBlock, StepLayout};
use metrale_gpu_runtime::{DeviceFault, Progress as DeviceProgress};
use metrale_sampling::Sampling;
use metrale_scheduler::{
    DeviceRouter, Fault, FaultKind, HistoryEntry, Lookahead, Progress, RowOutcome, RowStatus,
    Scope, StepOutcome, StepPlan,
};

use super::StepPace;
use crate::traits::Model;

/// Drives a [`Model`] for the scheduler.
pub struct ModelRouter<M> {
    model: M,
    block: StepBlock,
    /// Alternatives asked for, by logits row. Nothing else of the plan is kept: its history grows in place only while
    /// nobody else holds it.
    tops: Vec<u32>,
    hash_rows: bool,
    lookahead: Lookahead,
    pace: StepPace,
    rows: u32,
    history: Vec<metrale_core::HistoryEntry>,
    bias: Vec<(u32, f32)>,
    top: Vec<(u32, f32)>,
    started: Instant,
    step_deadline: Duration,
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
            tops: Vec::new(),
            hash_rows,
            lookahead: Lookahead::Late,
            pace: StepPace::default(),
            rows: 0,
            history: Vec::new(),
            bias: Vec::new(),
            top: Vec::new(),
            started: Instant::now(),
            step_deadline,
        }
    }

    /// How far ahead steps are taken; [`Lookahead::Late`] without this. [`Lookahead::Slot`] wants a model that reads late ids
    /// on its device and keeps the results of two steps: none so far.
    #[must_use]
    pub fn with_lookahead(self, lookahead: Lookahead) -> ModelRouter<M> {
        ModelRouter { lookahead, ..self }
    }

    /// Tells `pace` how long prefill rows take.
    #[must_use]
    pub fn with_pace(self, pace: StepPace) -> ModelRouter<M> {
        ModelRouter { pace, ..self }
    }

    fn fill(&mut self, plan: &StepPlan<Sampling>) -> Result<(), metrale_core::StepFull> {
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
        self.tops.clear();
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
            self.block
                .push_logits(row.row, &sample, &self.history, &self.bias)?;
            self.tops.push(row.top);
        }
        Ok(())
    }

    /// Waits for the step in flight, if there is one, so that none writes after this.
    fn settle(&mut self) -> Result<(), Fault> {
        while self.model.wait(self.step_deadline).map_err(fault)? == DeviceProgress::Running {
            self.hangs()?;
        }
        Ok(())
    }

    /// A device fault if the step in flight has run too long.
    fn hangs(&self) -> Result<(), Fault> {
        let ran = self.started.elapsed();
        if ran <= self.step_deadline {
            return Ok(());
        }
        let what = format!("a step has run for {ran:?}: the device hangs");
        Err(Fault::new(Scope::Device, FaultKind::Device, what))
    }

    fn collect(&mut self, outcome: &mut StepOutcome) -> Result<(), DeviceFault> {
        outcome.clear();
        for (index, top) in self.tops.iter().enumerate() {
            self.top.clear();
            let result = self.model.result(index as u32, *top, &mut self.top)?;
            let mut out = RowOutcome::new(result.token, result.logprob);
            if !result.finite {
                out.status = RowStatus::NonFinite;
            }
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
        if !plan.late.is_empty() {
            let what = "a step has late ids, which this model does not read";
            return Err(Fault::new(Scope::Step, FaultKind::Internal, what));
        }
        self.fill(plan)
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
        self.started = Instant::now();
        self.rows = plan.rows();
        Ok(())
    }

    fn wait(&mut self, timeout: Duration, outcome: &mut StepOutcome) -> Result<Progress, Fault> {
        match self.model.wait(timeout).map_err(fault)? {
            DeviceProgress::Done => {
                if self.rows >= KV_BLOCK {
                    self.pace.measure(self.rows, self.started);
                }
                self.collect(outcome).map_err(fault)?;
                Ok(Progress::Done)
            }
            DeviceProgress::Running => self.hangs().map(|()| Progress::Running),
        }
    }

    fn recover(&mut self, cause: &Fault) -> Result<(), Fault> {
        match cause.scope {
            // The KV pool and the programs stand; the next step brings its own block.
            Scope::Row | Scope::Request | Scope::Step => Ok(()),
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
