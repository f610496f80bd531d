// SPDX-License-Identifier: MIT OR Apache-2.0
//! One step ahead: planning step n+1 while the device runs n.
//!
//! What n will store and how many tokens it will draw is known, only not which. So n+1 is planned as if n had succeeded:
//! a row whose token is still being drawn is *late* ([`LateId`](crate::LateId)). A backend that reads ids where the last step left them
//! takes such a plan at once; for others [`Planner::resolve`] fills it when n is applied, and drops the rows of what has
//! ended by then.
//!
//! A sequence that may bring drafts has its row when its text is known: [`Planner::resolve`] adds it.
//!
//! Ahead of a step nothing is taken from a sequence: where blocks would have to be, there is no plan, and the next is made
//! when n is applied.

use std::time::Duration;

use super::{Budget, Planner};
use crate::effect::Effect;
use crate::kv::KvAccounts;
use crate::plan::StepPlan;
use crate::router::{Lookahead, SpillRouter};

impl<S: Clone> Planner<S> {
    /// Plans the step after the one in flight. `None`: there is nothing to run, or it has to be planned after
    /// [`Planner::apply`].
    ///
    /// # Panics
    /// If no step is in flight, or one is planned ahead already.
    pub fn plan_ahead(
        &mut self,
        lookahead: Lookahead,
        kv: &mut dyn KvAccounts,
        spill: &mut dyn SpillRouter,
        effects: &mut Vec<Effect>,
    ) -> Option<&StepPlan<S>> {
        assert!(self.in_flight && !self.ahead, "one step is in flight");
        if std::mem::take(&mut self.between) || lookahead == Lookahead::None {
            return None;
        }
        std::mem::swap(&mut self.plan, &mut self.next);
        self.begin();
        self.mode = lookahead;
        let whole = self.decode(kv, spill, effects);
        if whole {
            self.hold_prefill();
            self.prefill(kv);
            self.admit(kv, spill, effects);
        }
        self.mode = Lookahead::None;
        let runs = whole && !self.plan.tokens.is_empty();
        if runs {
            self.plan.step = self.next.step + 1;
        } else {
            self.take_back(kv);
        }
        std::mem::swap(&mut self.plan, &mut self.next);
        self.ahead = runs;
        runs.then_some(&self.next)
    }

    /// Fills the late ids of the step that was planned ahead and not submitted, drops the rows of what has ended, and admits
    /// what came meanwhile. To be called after [`Planner::apply`] and [`Planner::reap`]. `None`: nothing is left of it.
    pub fn resolve(
        &mut self,
        kv: &mut dyn KvAccounts,
        spill: &mut dyn SpillRouter,
        effects: &mut Vec<Effect>,
    ) -> Option<&StepPlan<S>> {
        let mut plan = std::mem::take(&mut self.plan);
        let (mut rows, mut kept_logits, mut at) = (0, 0, 0);
        plan.segments.retain_mut(|segment| {
            let logits = at;
            while plan
                .logits
                .get(at)
                .is_some_and(|l| segment.rows.contains(&l.row))
            {
                at += 1;
            }
            let seq = self.slots[segment.slot as usize].as_ref();
            let Some(seq) = seq.filter(|s| s.request.id == segment.request) else {
                segment.save.into_iter().for_each(|p| kv.drop_snapshot(p));
                return false;
            };
            let (from, len) = (segment.rows.start, segment.rows.len() as u32);
            let first = segment.first_position as usize;
            plan.tokens[rows as usize..(rows + len) as usize]
                .copy_from_slice(&seq.tokens[first..first + len as usize]);
            for index in logits..at {
                plan.logits.swap(kept_logits, index);
                let row = &mut plan.logits[kept_logits];
                row.row = row.row - from + rows;
                if row.forced.is_none() {
                    row.history = seq.history_entries();
                    row.mask = seq.mask();
                }
                kept_logits += 1;
            }
            segment.rows = rows..rows + len;
            rows += len;
            true
        });
        plan.tokens.truncate(rows as usize);
        plan.logits.truncate(kept_logits);
        plan.late.clear();
        self.plan = plan;
        self.drop_dead(kv);
        if rows == 0 {
            self.in_flight = false;
            self.keep_rest();
            return None;
        }
        // Blocks that were given back when step n was applied may be handed out now: no row may read them any more.
        self.plan.tables.append(&mut self.moved);
        self.count_left();
        if self.limits.max_drafts > 0 {
            // Where a block would have to be taken from another, that is done with no step planned ahead.
            (self.mode, self.drafting) = (Lookahead::Late, true);
            self.between |= !self.decode(kv, spill, effects);
            (self.mode, self.drafting) = (Lookahead::None, false);
        }
        self.admit(kv, spill, effects);
        Some(&self.plan)
    }

    /// Drops from `self.plan` what belongs to sequences that have ended: their blocks may be handed out again.
    fn drop_dead(&mut self, kv: &dyn KvAccounts) {
        let (slots, count) = (&self.slots, self.slots.len() as u32);
        let lives = |slot: u32| slots[(slot % count) as usize].is_some();
        self.plan.tables.retain(|t| lives(t.slot));
        self.plan.restores.retain(|r| lives(r.slot));
        let running = &self.running;
        let held = |block| running.iter().any(|s| kv.table(*s).contains(&block));
        self.plan.copies.retain(|c| held(c.dst));
    }

    /// What `self.plan` leaves of a step's budgets.
    fn count_left(&mut self) {
        let (plan, limits) = (&self.plan, &self.limits);
        let history = plan.logits.iter().filter_map(|l| l.history.as_ref());
        let bias = plan.logits.iter().map(|l| l.bias.len() + l.banned.len());
        let left = |limit: u32, used: usize| limit.saturating_sub(used as u32);
        self.left = Budget {
            rows: left(limits.max_rows, plan.tokens.len()),
            prefill: left(limits.max_prefill_tokens, self.prefill_rows() as usize),
            logits: left(limits.max_logits_rows, plan.logits.len()),
            history: left(limits.max_history, history.map(|h| h.len()).sum()),
            bias: left(limits.max_bias, bias.sum()),
        };
        self.hold_prefill();
    }

    /// The step before was done at `now`, and `self.plan` follows it: what [`Policy::Slai`](crate::Policy::Slai) learns from.
    pub fn stepped(&mut self, now: Duration) {
        self.pace.measure(now);
        if self.in_flight {
            self.pace.planned(now, self.prefill_rows());
        }
    }

    /// Undoes the rows of `self.plan`, which will not run.
    fn take_back(&mut self, kv: &mut dyn KvAccounts) {
        for segment in &self.plan.segments {
            segment.save.into_iter().for_each(|p| kv.drop_snapshot(p));
            let drew = self.plan.logits.iter().filter(|l| l.forced.is_none());
            let drew = drew.filter(|l| segment.rows.contains(&l.row)).count() as u32;
            if let Some(seq) = self.slots[segment.slot as usize].as_mut() {
                seq.flying_rows -= segment.rows.len() as u32;
                seq.flying_draws -= drew;
            }
        }
        self.plan.segments.clear();
        self.keep_rest();
    }

    /// Table entries and copies of a plan that will not run go out with the next one: there may be sequences that had no row
    /// in it.
    fn keep_rest(&mut self) {
        self.owed.0.append(&mut self.plan.copies);
        self.owed.1.append(&mut self.plan.restores);
        let slots = self.slots.len() as u32;
        let mut tables = std::mem::take(&mut self.plan.tables);
        tables.retain(|t| self.slots[(t.slot % slots) as usize].is_some());
        tables.append(&mut self.moved);
        std::mem::swap(&mut self.moved, &mut tables);
        self.plan.tables = tables;
    }
}
