// SPDX-License-Identifier: MIT OR Apache-2.0
//! The rows of one sequence in the step being planned.

use super::Planner;
use crate::kv::KvAccounts;
use crate::plan::{LateId, LogitRow, Segment, TableDelta};
use crate::router::{DraftRouter, Lookahead};

impl<S: Clone> Planner<S> {
    /// Plans at most `most` rows of `slot`, fewer where the step's budgets say so. Returns how many.
    pub(super) fn push_rows(&mut self, slot: u32, most: u32, kv: &mut dyn KvAccounts) -> u32 {
        let Some(seq) = self.slots[slot as usize].as_mut() else {
            return 0;
        };
        if seq.cancelled || !seq.goes_on(self.capacity) {
            return 0;
        }
        if self.mode == Lookahead::Slot && seq.waits_for_text() {
            return 0;
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
            drafts: 0,
            save: every
                .filter(|every| (first + rows).is_multiple_of(*every))
                .and_then(|_| kv.reserve_snapshot()),
        });
        self.left.rows -= rows;
        seq.flying_rows += rows;
        seq.flying_draws += u32::from(drew);
        rows
    }

    /// Asks `router` how the sequences that decode may go on. To be called before [`Planner::plan`] and
    /// [`Planner::resolve`].
    pub fn draft(&mut self, router: &mut dyn DraftRouter) {
        if self.limits.max_drafts == 0 {
            return;
        }
        for slot in &self.running {
            let Some(seq) = self.slots[*slot as usize].as_mut() else {
                continue;
            };
            seq.drafts.clear();
            let most = seq.most_drafts(self.limits.max_drafts, self.capacity);
            if most > 0 {
                router.draft(seq.request.id, &seq.tokens, most, &mut seq.drafts);
                seq.drafts.truncate(most as usize);
            }
        }
    }

    /// Lets the drafts that `slot` brings follow its row, the last one planned: as many as leave every running sequence a row
    /// and a block.
    pub(super) fn push_drafts(&mut self, slot: u32, kv: &mut dyn KvAccounts) {
        // Those that have no row yet.
        let others = (self.running.len() - self.plan.segments.len()) as u32;
        let running = self.running.len() as u32;
        let (Some(seq), Some(segment)) = (
            self.slots[slot as usize].as_mut(),
            self.plan.segments.last_mut(),
        ) else {
            return;
        };
        let spare = self.left.rows.min(self.left.logits).saturating_sub(others);
        let mut count = (seq.drafts.len() as u32).min(spare);
        let mut held = kv.table(slot).len() as u32;
        while (seq.len() + count).div_ceil(self.block) > held && count > 0 {
            let block = (kv.available_blocks() > running)
                .then(|| kv.grow(slot))
                .flatten();
            let Some(block) = block else {
                count = (held * self.block).saturating_sub(seq.len()).min(count);
                break;
            };
            self.plan.tables.push(TableDelta {
                slot,
                index: held,
                block,
            });
            held += 1;
        }
        let first = segment.first_position;
        if count == 0 || !kv.prepare(slot, first, 1 + count, &mut self.plan.tables) {
            return;
        }
        let start = segment.rows.end;
        let drafts = &seq.drafts[..count as usize];
        self.plan.tokens.extend_from_slice(drafts);
        for ahead in 0..count {
            let drawn = seq.draw_row(start + ahead, slot);
            let position = drawn.position + ahead;
            self.plan.logits.push(LogitRow { position, ..drawn });
        }
        seq.drafts.clear();
        segment.rows.end += count;
        segment.drafts = count;
        self.left.rows -= count;
        self.left.logits -= count;
    }
}
