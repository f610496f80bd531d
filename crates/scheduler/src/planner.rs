// SPDX-License-Identifier: MIT OR Apache-2.0
//! The planner: state and clock in, a step plan out.
//!
//! One step is planned in this order: reap what was cancelled or is too late; a row for each sequence that decodes, oldest
//! first, preempting the newest when blocks run out; chunks of running prefills, oldest first; then admissions from the
//! head of the queue, while a slot, rows and blocks for the whole known text remain. A sequence that was preempted waits
//! at the place of its arrival, so before everything that came later.
//!
//! What is promised: a sequence is admitted only with blocks for all its known tokens, so its prompt finishes unless an
//! older sequence needs the blocks to go on; the oldest running sequence is never preempted; each request gets exactly
//! one last event.

mod apply;
mod history;
mod intake;
mod seq;

use std::collections::VecDeque;
use std::time::Duration;

use crate::effect::Effect;
use crate::event::Event;
use crate::kv::{Admission, KvAccounts};
use crate::limits::PlannerLimits;
use crate::plan::{Segment, StepPlan, TableDelta};
use crate::router::SpillRouter;
use seq::Seq;

/// The planner. See the crate's essay for the rule that it follows.
pub struct Planner<S> {
    limits: PlannerLimits,
    /// Tokens of a sequence: the context, or what the whole pool holds.
    capacity: u32,
    block: u32,
    slots: Vec<Option<Seq<S>>>,
    /// Slots in order of admission.
    running: Vec<u32>,
    /// In order of arrival; all came after those that run.
    waiting: VecDeque<Seq<S>>,
    plan: StepPlan<S>,
    in_flight: bool,
    left: Budget,
    /// Table entries that changed since the last plan.
    moved: Vec<TableDelta>,
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
        self.begin();
        self.decode(kv, spill, effects);
        self.prefill();
        self.admit(kv, spill, effects);
        if self.plan.tokens.is_empty() {
            return None;
        }
        self.plan.step += 1;
        self.in_flight = true;
        Some(&self.plan)
    }

    fn begin(&mut self) {
        self.plan.tokens.clear();
        self.plan.segments.clear();
        self.plan.logits.clear();
        self.plan.tables.clear();
        self.plan.copies.clear();
        self.plan.tables.append(&mut self.moved);
        self.left = Budget {
            rows: self.limits.max_rows,
            prefill: self.limits.max_prefill_tokens,
            logits: self.limits.max_logits_rows,
            history: self.limits.max_history,
            bias: self.limits.max_bias,
        };
    }

    /// One row for each running sequence that has one row to run.
    fn decode(
        &mut self,
        kv: &mut dyn KvAccounts,
        spill: &mut dyn SpillRouter,
        effects: &mut Vec<Effect>,
    ) {
        let mut i = 0;
        while let Some(&slot) = self.running.get(i) {
            if self.seq(slot).pending() == 1 {
                while !self.hold_last(slot, kv) {
                    self.preempt_newest(kv, spill, effects);
                    if self.running.len() == i {
                        return; // It was the newest itself.
                    }
                }
                self.push_rows(slot, 1);
            }
            i += 1;
        }
    }

    /// Makes sure that the last known token of `slot` has a block.
    fn hold_last(&mut self, slot: u32, kv: &mut dyn KvAccounts) -> bool {
        let index = (self.seq(slot).len() - 1) / self.block;
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
    fn prefill(&mut self) {
        for i in 0..self.running.len() {
            let slot = self.running[i];
            let pending = self.seq(slot).pending();
            if pending > 1 {
                let rows = self.push_rows(slot, pending.min(self.left.prefill));
                self.left.prefill -= rows;
            }
        }
    }

    /// Admissions, strictly from the head of the queue.
    fn admit(
        &mut self,
        kv: &mut dyn KvAccounts,
        spill: &mut dyn SpillRouter,
        effects: &mut Vec<Effect>,
    ) {
        while self.left.prefill.min(self.left.rows).min(self.left.logits) > 0 {
            let Some(head) = self.waiting.front() else {
                return;
            };
            let Some(slot) = self.slots.iter().position(Option::is_none) else {
                return;
            };
            if self.limits.share_prefill && self.is_being_computed(head, kv) {
                return;
            }
            let admission = Admission {
                namespace: head.request.namespace,
                tokens: &head.tokens,
                reuse: !head.reports_prompt(),
                spare: self.running.len() as u32,
            };
            let slot = slot as u32;
            let Some(attached) = kv.admit(slot, &admission) else {
                return;
            };
            let Some(mut seq) = self.waiting.pop_front() else {
                return;
            };
            seq.make_room(self.capacity);
            seq.computed = attached.cached;
            seq.published = seq.computed / self.block;
            if !restore(&mut seq, slot, kv, spill, self.block) {
                self.plan.copies.extend(attached.copy);
            }
            for (index, block) in kv.table(slot).iter().enumerate() {
                self.plan.tables.push(TableDelta {
                    slot,
                    index: index as u32,
                    block: *block,
                });
            }
            if seq.cached.is_none() {
                seq.cached = Some(attached.cached);
                effects.push(Effect::Emit {
                    request: seq.request.id,
                    event: Event::Admitted {
                        cached_tokens: attached.cached,
                    },
                });
            }
            let pending = seq.pending();
            self.slots[slot as usize] = Some(seq);
            self.running.push(slot);
            let rows = self.push_rows(slot, pending.min(self.left.prefill));
            self.left.prefill -= rows;
        }
    }

    /// Whether a running sequence is about to store more of the first blocks of `head` than the cache holds.
    fn is_being_computed(&self, head: &Seq<S>, kv: &dyn KvAccounts) -> bool {
        if head.reports_prompt() {
            return false;
        }
        let mut cached = None;
        self.running.iter().any(|slot| {
            let other = self.seq(*slot);
            if other.pending() <= 1 || other.request.namespace != head.request.namespace {
                return false;
            }
            let most = (head.len() - 1).min(other.len()) as usize;
            let common = head.tokens[..most]
                .iter()
                .zip(&other.tokens[..most])
                .take_while(|(a, b)| a == b)
                .count() as u32;
            let common = common / self.block * self.block;
            let cached =
                *cached.get_or_insert_with(|| kv.cached(head.request.namespace, &head.tokens));
            common > cached && other.computed < common
        })
    }

    /// Plans at most `most` rows of `slot`, fewer where the step's budgets say so. Returns how many.
    fn push_rows(&mut self, slot: u32, most: u32) -> u32 {
        let Some(seq) = self.slots[slot as usize].as_ref() else {
            return 0;
        };
        let first = seq.computed;
        let mut rows = most.min(self.left.rows);
        if seq.reports_prompt() {
            rows = rows.min(self.left.logits);
        }
        let draws = |rows: u32| rows == seq.pending() && seq.draws();
        let (history, bias) = seq.draw_cost();
        let reported = (first..first + rows)
            .filter(|p| seq.row_reports(*p))
            .count() as u32;
        let fits =
            reported < self.left.logits && history <= self.left.history && bias <= self.left.bias;
        if draws(rows) && !fits {
            rows -= 1;
        }
        if rows == 0 {
            return 0;
        }
        let start = self.plan.tokens.len() as u32;
        self.plan
            .tokens
            .extend_from_slice(&seq.tokens[first as usize..(first + rows) as usize]);
        for row in 0..rows {
            if seq.row_reports(first + row) {
                let position = first + row + 1;
                self.plan
                    .logits
                    .push(seq.prompt_row(start + row, slot, position));
                self.left.logits -= 1;
            }
        }
        if draws(rows) {
            self.plan.logits.push(seq.draw_row(start + rows - 1, slot));
            self.left.logits -= 1;
            self.left.history -= history;
            self.left.bias -= bias;
        }
        self.plan.segments.push(Segment {
            request: seq.request.id,
            slot,
            first_position: first,
            rows: start..start + rows,
        });
        self.left.rows -= rows;
        rows
    }

    /// Takes the blocks of the sequence admitted last and puts it back into the queue.
    fn preempt_newest(
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
        let spilled = used > 0 && spill.spill(seq.request.id.0, &kv.table(slot)[..used]);
        seq.spilled = spilled.then_some(seq.computed);
        effects.push(Effect::Preempt {
            request: seq.request.id,
            tokens: seq.computed,
            spilled,
        });
        kv.release(slot, &seq.tokens[..seq.computed as usize]);
        seq.computed = 0;
        self.waiting.push_front(seq); // What runs came before all that waits, so the newest of it comes next.
    }

    fn seq(&self, slot: u32) -> &Seq<S> {
        match &self.slots[slot as usize] {
            Some(seq) => seq,
            // A slot stands in `running` exactly while it is filled: both change together.
            None => unreachable!("slot {slot} runs and is empty"),
        }
    }
}

/// Brings spilled KV back behind the cached prefix. Whether it did.
fn restore<S: Clone>(
    seq: &mut Seq<S>,
    slot: u32,
    kv: &mut dyn KvAccounts,
    spill: &mut dyn SpillRouter,
    block: u32,
) -> bool {
    let Some(kept) = seq.spilled.take() else {
        return false;
    };
    let first = seq.computed / block;
    let used = kept.div_ceil(block);
    let gained = kept > seq.computed
        && spill.restore(
            seq.request.id.0,
            first,
            &kv.table(slot)[first as usize..used as usize],
        );
    if gained {
        seq.computed = kept;
    } else {
        spill.discard(seq.request.id.0);
    }
    gained
}
