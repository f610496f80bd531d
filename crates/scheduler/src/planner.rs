// SPDX-License-Identifier: MIT OR Apache-2.0
//! The planner: state and clock in, a step plan out.
//!
//! One step is planned in this order: reap what was cancelled or is too late; a row for each sequence that decodes, in
//! order of rank, preempting the last when blocks run out; chunks of running prefills, in order of rank; then admissions
//! from the head of the queue, while a slot, rows and blocks for the whole known text remain. A sequence keeps its rank
//! when it is preempted. The [`Policy`] says what the rank is.
//!
//! What is promised: a sequence is admitted only with blocks for all its known tokens, so its prompt finishes unless a
//! sequence of lower rank needs the blocks to go on; the first of those that run is never preempted; each request gets exactly
//! one last event.

mod admit;
mod ahead;
mod apply;
mod constrained;
mod history;
mod intake;
mod rows;
mod seq;

use std::collections::VecDeque;
use std::time::Duration;

use crate::effect::Effect;
use crate::kv::KvAccounts;
use crate::limits::PlannerLimits;
use crate::plan::{BlockCopy, StateRestore, StepPlan, TableDelta};
use crate::policy::{Pace, Policy};
use crate::router::{Lookahead, SpillRouter};
use seq::Seq;

/// The planner. See the crate's essay for the rule that it follows.
pub struct Planner<S> {
    limits: PlannerLimits,
    /// Tokens of a sequence: the context, or what the whole pool holds.
    capacity: u32,
    block: u32,
    slots: Vec<Option<Seq<S>>>,
    /// Slots in order of rank.
    running: Vec<u32>,
    /// In order of rank.
    waiting: VecDeque<Seq<S>>,
    /// The step that was planned first and is not applied.
    plan: StepPlan<S>,
    in_flight: bool,
    /// The one after it, where `ahead` says so.
    next: StepPlan<S>,
    ahead: bool,
    /// The head of the queue wants something brought back, which is done with no step in flight.
    between: bool,
    /// How far ahead the step that is being planned lies.
    mode: Lookahead,
    left: Budget,
    /// Whether drafts are taken: not ahead of a text.
    drafting: bool,
    /// A row of a sequence that may bring drafts is left to [`Planner::resolve`].
    later: bool,
    /// Table entries that changed since the last plan.
    moved: Vec<TableDelta>,
    /// Blocks on their way to or from the spill router.
    entries: Vec<TableDelta>,
    /// Copies of a plan that did not run.
    owed: (Vec<BlockCopy>, Vec<StateRestore>),
    /// Requests that came so far.
    arrivals: u64,
    pace: Pace,
}

/// What is left of the step being planned.
#[derive(Default)]
struct Budget {
    rows: u32,
    prefill: u32,
    logits: u32,
    history: u32,
    bias: u32,
}

impl<S: Clone> Planner<S> {
    /// Plans the next step. The plan is valid until the next call of a `&mut` method; `None` if no row can run.
    ///
    /// # Panics
    /// If the last plan was neither applied nor failed.
    pub fn plan(
        &mut self,
        now: Duration,
        kv: &mut dyn KvAccounts,
        spill: &mut dyn SpillRouter,
        effects: &mut Vec<Effect>,
    ) -> Option<&StepPlan<S>> {
        assert!(!self.in_flight, "a step is in flight");
        self.reap(now, kv, spill, effects);
        self.pace.measure(now);
        self.begin();
        self.drafting = true;
        self.decode(kv, spill, effects);
        self.drafting = false;
        self.hold_prefill();
        self.prefill(kv);
        self.admit(kv, spill, effects);
        if self.plan.tokens.is_empty() {
            return None;
        }
        self.plan.step += 1;
        self.in_flight = true;
        self.pace.planned(now, self.prefill_rows());
        Some(&self.plan)
    }

    fn begin(&mut self) {
        self.plan.tokens.clear();
        self.plan.segments.clear();
        self.plan.logits.clear();
        self.plan.tables.clear();
        self.plan.copies.clear();
        self.plan.restores.clear();
        self.plan.copies.append(&mut self.owed.0);
        self.plan.restores.append(&mut self.owed.1);
        self.plan.late.clear();
        self.later = false;
        self.plan.tables.append(&mut self.moved);
        self.left = Budget {
            rows: self.limits.max_rows,
            prefill: self.limits.max_prefill_tokens,
            logits: self.limits.max_logits_rows,
            history: self.limits.max_history,
            bias: self.limits.max_bias,
        };
    }

    /// Takes from the prefill budget what the policy does not give beside decoding rows.
    fn hold_prefill(&mut self) {
        if let Policy::Slai { between, .. } = self.limits.policy
            && (self.later || self.plan.segments.iter().any(|s| s.known().len() == 1))
        {
            let most = self.pace.prefill(between, self.limits.max_prefill_tokens);
            let left = most.saturating_sub(self.prefill_rows());
            self.left.prefill = self.left.prefill.min(left);
        }
    }

    /// Rows of the step in chunks of more than one.
    fn prefill_rows(&self) -> u32 {
        let chunks = self.plan.segments.iter().map(|s| s.known().len() as u32);
        chunks.filter(|rows| *rows > 1).sum()
    }

    /// The step that was planned first and is not applied.
    pub(crate) fn current(&self) -> &StepPlan<S> {
        &self.plan
    }

    /// One row for each running sequence that has one row to run, and its drafts. False if blocks would have to be taken from another while a
    /// step is in flight.
    fn decode(
        &mut self,
        kv: &mut dyn KvAccounts,
        spill: &mut dyn SpillRouter,
        effects: &mut Vec<Effect>,
    ) -> bool {
        let mut i = 0;
        while let Some(&slot) = self.running.get(i) {
            let seq = self.seq(slot);
            let mut runs = seq.todo() == 1 && !seq.cancelled && seq.goes_on(self.capacity);
            // In a plan that is resolved, a chunk may have left one row.
            runs &= !self.drafting || seq.flying_rows == 0;
            if runs && seq.drafting && seq.flying_draws > 0 {
                // Its text is not known yet; a row is left to it.
                self.left.rows = self.left.rows.saturating_sub(1);
                self.left.logits = self.left.logits.saturating_sub(1);
                self.later = true;
            } else if runs {
                while !self.hold_last(slot, kv) {
                    if self.mode != Lookahead::None {
                        return false;
                    }
                    self.preempt_last(kv, spill, effects);
                    if self.running.len() == i {
                        return true; // It was the last itself.
                    }
                }
                if self.push_rows(slot, 1, kv) == 1 && self.drafting {
                    self.push_drafts(slot, kv);
                }
            }
            i += 1;
        }
        true
    }

    /// Makes sure that the last known token of `slot` has a block.
    fn hold_last(&mut self, slot: u32, kv: &mut dyn KvAccounts) -> bool {
        let index = (self.seq(slot).known() - 1) / self.block;
        if (kv.table(slot).len() as u32) > index {
            return true;
        }
        let Some(block) = kv.grow(slot) else {
            return false;
        };
        self.plan.tables.push(TableDelta { slot, index, block });
        true
    }

    /// Chunks of the running sequences that have more than one row to run.
    fn prefill(&mut self, kv: &mut dyn KvAccounts) {
        for i in 0..self.running.len() {
            let slot = self.running[i];
            let pending = self.seq(slot).todo();
            if pending > 1 {
                let rows = self.push_rows(slot, pending.min(self.left.prefill), kv);
                self.left.prefill -= rows;
            }
        }
    }

    /// Takes the blocks of the sequence of last rank and puts it back into the queue.
    fn preempt_last(
        &mut self,
        kv: &mut dyn KvAccounts,
        spill: &mut dyn SpillRouter,
        effects: &mut Vec<Effect>,
    ) {
        let Some(slot) = self.running.pop() else {
            return;
        };
        let Some(mut seq) = self.slots[slot as usize].take() else {
            return;
        };
        let used = seq.computed.div_ceil(self.block) as usize;
        entries_of(&kv.table(slot)[..used], slot, 0, &mut self.entries);
        kv.window_entries(slot, &mut self.entries);
        let spilled = used > 0 && spill.spill(seq.request.id.0, &self.entries);
        seq.spilled = spilled.then_some(seq.computed);
        effects.push(Effect::Preempt {
            request: seq.request.id,
            tokens: seq.computed,
            spilled,
        });
        kv.release(slot, &seq.tokens[..seq.computed as usize]);
        seq.drafts.clear();
        seq.computed = 0;
        self.enqueue(seq);
    }

    fn seq(&self, slot: u32) -> &Seq<S> {
        match &self.slots[slot as usize] {
            Some(seq) => seq,
            // A slot stands in `running` exactly while it is filled: both change together.
            None => unreachable!("slot {slot} runs and is empty"),
        }
    }
}

/// The entries of a table from `first` on, in the place of what `entries` held.
fn entries_of(blocks: &[u32], slot: u32, first: u32, entries: &mut Vec<TableDelta>) {
    entries.clear();
    let indexed = blocks.iter().zip(first..);
    entries.extend(indexed.map(|(block, index)| TableDelta {
        slot,
        index,
        block: *block,
    }));
}
