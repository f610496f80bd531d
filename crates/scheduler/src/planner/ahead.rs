// SPDX-License-Identifier: MIT OR Apache-2.0
//! One step ahead: planning step n+1 while the device runs n.
//!
//! What n will store and how many tokens it will draw is known, only not which. So n+1 is planned as if n had succeeded:
//! a row whose token is still being drawn is *late* ([`LateId`]). A backend that reads ids where the last step left them
//! takes such a plan at once; for others [`Planner::resolve`] fills it when n is applied, and drops the rows of what has
//! ended by then.
//!
//! Ahead of a step nothing is taken from a sequence: where blocks would have to be, there is no plan, and the next is made
//! when n is applied.

use super::Planner;
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

    /// Fills the late ids of the step that was planned ahead and not submitted, and drops the rows of what has ended. To be
    /// called after [`Planner::apply`]. `None`: nothing is left to run.
    pub fn resolve(&mut self, kv: &mut dyn KvAccounts) -> Option<&StepPlan<S>> {
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
        if rows == 0 {
            self.in_flight = false;
            self.keep_rest();
            return None;
        }
        Some(&self.plan)
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
