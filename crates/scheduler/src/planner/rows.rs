// SPDX-License-Identifier: MIT OR Apache-2.0
//! The rows of one sequence in the step being planned.

use super::Planner;
use crate::kv::KvAccounts;
use crate::plan::{LateId, Segment};
use crate::router::Lookahead;

impl<S: Clone> Planner<S> {
    /// Plans at most `most` rows of `slot`, fewer where the step's budgets say so. Returns how many.
    pub(super) fn push_rows(&mut self, slot: u32, most: u32, kv: &mut dyn KvAccounts) -> u32 {
        let Some(seq) = self.slots[slot as usize].as_mut() else {
            return 0;
        };
        if seq.cancelled || !seq.goes_on(self.capacity) {
            return 0;
        }
        if self.mode == Lookahead::Slot && seq.flying_draws > 0 && seq.history.is_some() {
            return 0; // Its penalties want the token that is being drawn.
        }
        let first = seq.next_row();
        let mut rows = most.min(self.left.rows);
        let every = kv.snapshot_every();
        if let Some(every) = every {
            rows = rows.min(every - first % every);
        }
        if seq.reports_prompt() {
            rows = rows.min(self.left.logits);
        }
        let draws = |rows: u32| rows == seq.todo() && seq.draws();
        let (history, bias) = seq.draw_cost();
        let reported = (first..first + rows)
            .filter(|p| seq.row_reports(*p))
            .count() as u32;
        let fits =
            reported < self.left.logits && history <= self.left.history && bias <= self.left.bias;
        if draws(rows) && !fits {
            rows -= 1;
        }
        if rows == 0 || !kv.prepare(slot, first, rows, &mut self.plan.tables) {
            return 0;
        }
        let start = self.plan.tokens.len() as u32;
        let end = (first + rows).min(seq.len());
        self.plan
            .tokens
            .extend_from_slice(&seq.tokens[first as usize..end as usize]);
        if end < first + rows {
            let row = start + rows - 1;
            self.plan.tokens.push(0);
            self.plan.late.push(LateId { row, slot });
        }
        for row in 0..rows {
            if seq.row_reports(first + row) {
                let position = first + row + 1;
                self.plan
                    .logits
                    .push(seq.prompt_row(start + row, slot, position));
                self.left.logits -= 1;
            }
        }
        let drew = draws(rows);
        if drew {
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
            save: every
                .filter(|every| (first + rows).is_multiple_of(*every))
                .and_then(|_| kv.reserve_snapshot()),
        });
        self.left.rows -= rows;
        seq.flying_rows += rows;
        seq.flying_draws += u32::from(drew);
        rows
    }
}
