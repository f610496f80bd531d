// SPDX-License-Identifier: MIT OR Apache-2.0
//! The step block: all that varies from step to step, in one array of 32-bit words.
//!
//! A program's arguments are constant; the step block is what a submit brings. It is self-describing, so that a kernel
//! takes one pointer: the header holds the live counts and the word offset of each field. The layout follows from
//! [`StepLimits`] alone and is fixed when the programs are recorded.
//!
//! ```text
//! word 0..8    counts: rows, logits rows, work items, table deltas, history entries, bias entries, masks, 0
//! word 8..18   offsets: ids, positions, slots, work, logits_rows, deltas, sampling, history, bias, masks
//! word 24..26  address of a fault record (low word first); 0 where the backend reports faults in another way
//! ```
//!
//! Since the header names the offsets, a backend that pays for each byte it moves may send the live parts alone
//! ([`StepBlock::pack_live`]): the kernels cannot tell.
//!
//! `rows` are the tokens of the step: decode rows and rows of prefill chunks, grouped by sequence and ascending in
//! position within it. A *work item* is one such run of rows.
//!
//! A *mask* says which tokens a row may draw: bit `id % 32` of word `id / 32` is set where token `id` is allowed. Rows name
//! their mask, and may share one; a row without a mask brings none.

use std::sync::Arc;

use crate::memory::SpanId;

/// Words of the header.
const HEADER: usize = 32;
/// Words of a work item, a table delta, a history entry and a bias entry.
const WORK_WORDS: usize = 4;
const DELTA_WORDS: usize = 2;
const PAIR_WORDS: usize = 2;
/// First of the two header words that hold the address of the fault record.
pub const FAULT_ADDRESS_WORD: usize = 24;

/// Capacities that the programs and the memory plan are built for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StepLimits {
    /// Tokens in one step (prefill rows and decode rows together).
    pub rows: u32,
    /// Rows of one step whose logits are wanted.
    pub logits_rows: u32,
    /// Sequences that hold a block table.
    pub slots: u32,
    /// Blocks of [`crate::KV_BLOCK`] tokens in one block table: the context length over 16, rounded up.
    pub blocks_per_slot: u32,
    /// Block tables of a sequence: one for each KV group of the plan, which sets this. Table `g` of slot `s` is row
    /// `g * slots + s`.
    pub tables: u32,
    /// Penalty history entries over all logits rows of one step.
    pub history: u32,
    /// Logit bias entries over all logits rows of one step.
    pub bias: u32,
    /// Words of one token mask: the vocabulary over 32, rounded up. The plan sets this. The block has room for a mask of each
    /// logits row. 0: no masks.
    pub mask_words: u32,
}

/// Live counts of a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepCounts {
    /// Tokens in the step.
    pub rows: u32,
    /// Rows whose logits are wanted.
    pub logits_rows: u32,
    /// Runs of rows of one sequence.
    pub work: u32,
    /// Block-table writes.
    pub deltas: u32,
    /// Penalty history entries.
    pub history: u32,
    /// Logit bias entries.
    pub bias: u32,
    /// Token masks.
    pub masks: u32,
}

impl StepCounts {
    /// Live words of each field.
    fn live_words(self, limits: &StepLimits) -> [usize; FIELDS] {
        let (rows, logits) = (self.rows as usize, self.logits_rows as usize);
        [
            rows,
            rows,
            rows,
            self.work as usize * WORK_WORDS,
            logits,
            self.deltas as usize * DELTA_WORDS,
            logits * SampleRow::WORDS,
            self.history as usize * PAIR_WORDS,
            self.bias as usize * PAIR_WORDS,
            self.masks as usize * limits.mask_words as usize,
        ]
    }
}

/// A run of rows of one sequence: rows `first_row..first_row + rows`, positions ascending by one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkItem {
    /// The sequence's slot (row of its group's block tables).
    pub slot: u32,
    /// Its first row in the step.
    pub first_row: u32,
    /// How many rows.
    pub rows: u32,
    /// Position of its first row in the sequence.
    pub first_position: u32,
}

/// What the sampler needs for one logits row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SampleRow {
    /// 0 = greedy.
    pub temperature: f32,
    /// Nucleus mass; 1 = off.
    pub top_p: f32,
    /// Smallest probability relative to the largest; 0 = off.
    pub min_p: f32,
    /// Largest number of candidates; 0 = off.
    pub top_k: u32,
    /// Multiplicative penalty over prompt and output tokens; 1 = off.
    pub repetition: f32,
    /// Additive penalty for tokens present in the output; 0 = off.
    pub presence: f32,
    /// Additive penalty per occurrence in the output; 0 = off.
    pub frequency: f32,
    /// Seed of the counter generator.
    pub seed: u64,
    /// Choice index of the request.
    pub choice: u32,
    /// Position of the token that is drawn (its index in the sequence).
    pub position: u32,
    /// The token that is taken whatever the logits say (replay after recompute, prompt logprobs, teacher forcing).
    pub forced: Option<u32>,
    /// How many alternatives to report, at most [`SampleRow::MAX_TOP`].
    pub top: u32,
    /// Which mask of the step says what may be drawn, as [`StepBlock::push_mask`] numbered it; a forced token is taken
    /// whatever it says. `None`: any token.
    pub mask: Option<u32>,
}

impl SampleRow {
    /// Most alternatives that one row reports.
    pub const MAX_TOP: u32 = 20;
    /// Words of an encoded row.
    pub const WORDS: usize = 20;
    const NONE: u32 = u32::MAX;

    /// Greedy, nothing reported.
    #[must_use]
    pub fn greedy(position: u32) -> SampleRow {
        SampleRow {
            temperature: 0.0,
            top_p: 1.0,
            min_p: 0.0,
            top_k: 0,
            repetition: 1.0,
            presence: 0.0,
            frequency: 0.0,
            seed: 0,
            choice: 0,
            position,
            forced: None,
            top: 0,
            mask: None,
        }
    }

    /// `mask_words` is that of [`StepLimits`]: the row holds where its mask begins.
    fn encode(&self, words: &mut [u32], history: (u32, u32), bias: (u32, u32), mask_words: u32) {
        words.copy_from_slice(&[
            self.temperature.to_bits(),
            self.top_p.to_bits(),
            self.min_p.to_bits(),
            self.top_k,
            self.repetition.to_bits(),
            self.presence.to_bits(),
            self.frequency.to_bits(),
            self.seed as u32,
            (self.seed >> 32) as u32,
            self.choice,
            self.position,
            self.forced.unwrap_or(Self::NONE),
            self.top,
            history.0,
            history.1,
            bias.0,
            bias.1,
            self.mask.map_or(Self::NONE, |mask| mask * mask_words),
            0,
            0,
        ]);
    }

    fn decode(w: &[u32], mask_words: u32) -> (SampleRow, (u32, u32), (u32, u32)) {
        let row = SampleRow {
            temperature: f32::from_bits(w[0]),
            top_p: f32::from_bits(w[1]),
            min_p: f32::from_bits(w[2]),
            top_k: w[3],
            repetition: f32::from_bits(w[4]),
            presence: f32::from_bits(w[5]),
            frequency: f32::from_bits(w[6]),
            seed: u64::from(w[7]) | u64::from(w[8]) << 32,
            choice: w[9],
            position: w[10],
            forced: (w[11] != Self::NONE).then_some(w[11]),
            top: w[12],
            mask: (w[17] != Self::NONE).then(|| w[17] / mask_words.max(1)),
        };
        (row, (w[13], w[14]), (w[15], w[16]))
    }
}

/// One token's share in the penalties: how often it stands in the output, and whether it stands in the prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HistoryEntry {
    /// The token.
    pub token: u32,
    /// Occurrences in the output.
    pub output_count: u32,
    /// Whether the prompt holds it.
    pub in_prompt: bool,
}

impl HistoryEntry {
    /// The two words of the step block: the token, then count and prompt bit.
    #[must_use]
    pub fn to_words(self) -> [u32; 2] {
        [
            self.token,
            self.output_count << 1 | u32::from(self.in_prompt),
        ]
    }

    /// The inverse of [`HistoryEntry::to_words`].
    #[must_use]
    pub fn from_words(w: [u32; 2]) -> HistoryEntry {
        HistoryEntry {
            token: w[0],
            output_count: w[1] >> 1,
            in_prompt: w[1] & 1 == 1,
        }
    }
}

/// Word offsets of the fields, from [`StepLimits`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StepLayout {
    limits: StepLimits,
    offsets: [usize; FIELDS],
    words: usize,
}

const FIELDS: usize = 10;
const IDS: usize = 0;
const POSITIONS: usize = 1;
const SLOTS: usize = 2;
const WORK: usize = 3;
const LOGITS_ROWS: usize = 4;
const DELTAS: usize = 5;
const SAMPLING: usize = 6;
const HISTORY: usize = 7;
const BIAS: usize = 8;
const MASKS: usize = 9;

impl StepLayout {
    /// The layout for these limits. Fields start at multiples of 16 words (64 bytes).
    #[must_use]
    pub fn new(limits: StepLimits) -> StepLayout {
        let rows = limits.rows as usize;
        let logits = limits.logits_rows as usize;
        let rows_of_tables = limits.slots as usize * limits.tables as usize;
        let tables = rows_of_tables * limits.blocks_per_slot as usize;
        let sizes = [
            rows,
            rows,
            rows,
            limits.slots as usize * WORK_WORDS,
            logits,
            tables * DELTA_WORDS,
            logits * SampleRow::WORDS,
            limits.history as usize * PAIR_WORDS,
            limits.bias as usize * PAIR_WORDS,
            logits * limits.mask_words as usize,
        ];
        let mut offsets = [0; FIELDS];
        let mut at = HEADER;
        for (offset, size) in offsets.iter_mut().zip(sizes) {
            *offset = at;
            at += size.next_multiple_of(16);
        }
        StepLayout {
            limits,
            offsets,
            words: at,
        }
    }

    /// The limits it was made from.
    #[must_use]
    pub fn limits(&self) -> &StepLimits {
        &self.limits
    }

    /// Words of a block.
    #[must_use]
    pub fn words(&self) -> usize {
        self.words
    }
}

/// A field of the step block is full: the planner broke a limit.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the step block holds {limit} {field}, and one more was pushed: the step plan breaks its limits"
)]
pub struct StepFull {
    /// The field.
    pub field: &'static str,
    /// Its capacity.
    pub limit: u32,
}

/// An id that the host does not know yet: that of `row` is word `index` of `span`, as the work submitted before leaves it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LateId {
    /// The row of the step.
    pub row: u32,
    /// A span of u32, in which an earlier step leaves its tokens.
    pub span: SpanId,
    /// Which of its words.
    pub index: u32,
}

/// One step's varying data. Cleared and filled again for each step; never reallocated.
#[derive(Debug)]
pub struct StepBlock {
    layout: Arc<StepLayout>,
    words: Vec<u32>,
    counts: StepCounts,
    late: Vec<LateId>,
}

impl StepBlock {
    /// Where the ids begin, live entries alone or not: behind the header.
    pub const IDS_WORD: usize = HEADER;

    /// An empty block.
    #[must_use]
    pub fn new(layout: Arc<StepLayout>) -> StepBlock {
        let mut words = vec![0; layout.words];
        for (i, offset) in layout.offsets.iter().enumerate() {
            words[8 + i] = *offset as u32;
        }
        StepBlock {
            layout,
            words,
            counts: StepCounts::default(),
            late: Vec::new(),
        }
    }

    /// Forgets all rows.
    pub fn clear(&mut self) {
        self.counts = StepCounts::default();
        self.late.clear();
        self.store_counts();
    }

    /// Appends a run of rows of one sequence and its work item.
    ///
    /// # Errors
    /// [`StepFull`] if rows or work items run out; the block is then unchanged.
    pub fn push_run(
        &mut self,
        slot: u32,
        first_position: u32,
        tokens: &[u32],
    ) -> Result<WorkItem, StepFull> {
        let first = self.counts.rows;
        let rows = tokens.len() as u32;
        check("rows", first + rows, self.layout.limits.rows)?;
        check("work items", self.counts.work + 1, self.layout.limits.slots)?;
        for (i, token) in tokens.iter().enumerate() {
            let at = first as usize + i;
            self.words[self.layout.offsets[IDS] + at] = *token;
            self.words[self.layout.offsets[POSITIONS] + at] = first_position + i as u32;
            self.words[self.layout.offsets[SLOTS] + at] = slot;
        }
        let at = self.layout.offsets[WORK] + self.counts.work as usize * WORK_WORDS;
        self.words[at..at + WORK_WORDS].copy_from_slice(&[slot, first, rows, first_position]);
        self.counts.rows += rows;
        self.counts.work += 1;
        self.store_counts();
        Ok(WorkItem {
            slot,
            first_row: first,
            rows,
            first_position,
        })
    }

    /// Says that the id of a row is not known yet, and where the device finds it. Only backends that say so take such steps.
    ///
    /// # Errors
    /// [`StepFull`] if the step has no such row.
    pub fn push_late(&mut self, late: LateId) -> Result<(), StepFull> {
        check(
            "rows so far, of which late ids are",
            late.row + 1,
            self.counts.rows,
        )?;
        self.late.push(late);
        Ok(())
    }

    /// Ids that the host does not know, in the order in which they were pushed.
    #[must_use]
    pub fn late(&self) -> &[LateId] {
        &self.late
    }

    /// Brings a mask, which the logits rows pushed after it may name. One bit a token, the lowest of a word first; words
    /// that it does not have allow nothing, bits beyond the vocabulary count for nothing.
    ///
    /// # Errors
    /// [`StepFull`] if there are as many masks as logits rows can be; the block is then unchanged.
    pub fn push_mask(&mut self, mask: &[u32]) -> Result<u32, StepFull> {
        let limits = self.layout.limits;
        let (index, words) = (self.counts.masks, limits.mask_words as usize);
        let most = if words == 0 { 0 } else { limits.logits_rows };
        check("masks", index + 1, most)?;
        let at = self.layout.offsets[MASKS] + index as usize * words;
        let (given, rest) = self.words[at..at + words].split_at_mut(mask.len().min(words));
        given.copy_from_slice(&mask[..given.len()]);
        rest.fill(0);
        self.counts.masks += 1;
        self.store_counts();
        Ok(index)
    }

    /// Asks for the logits of `row`, with its sampling.
    ///
    /// # Errors
    /// [`StepFull`] if logits rows, history or bias entries run out, or if the step has no such mask; the block is then
    /// unchanged.
    pub fn push_logits(
        &mut self,
        row: u32,
        sample: &SampleRow,
        history: &[HistoryEntry],
        bias: &[(u32, f32)],
    ) -> Result<u32, StepFull> {
        let limits = self.layout.limits;
        let index = self.counts.logits_rows;
        check("logits rows", index + 1, limits.logits_rows)?;
        check(
            "history entries",
            self.counts.history + history.len() as u32,
            limits.history,
        )?;
        check(
            "bias entries",
            self.counts.bias + bias.len() as u32,
            limits.bias,
        )?;
        check(
            "masks so far, of which a row's is",
            sample.mask.map_or(0, |mask| mask.saturating_add(1)),
            self.counts.masks,
        )?;
        self.words[self.layout.offsets[LOGITS_ROWS] + index as usize] = row;
        let at = self.layout.offsets[SAMPLING] + index as usize * SampleRow::WORDS;
        sample.encode(
            &mut self.words[at..at + SampleRow::WORDS],
            (self.counts.history, history.len() as u32),
            (self.counts.bias, bias.len() as u32),
            limits.mask_words,
        );
        let mut at = self.layout.offsets[HISTORY] + self.counts.history as usize * PAIR_WORDS;
        for entry in history {
            self.words[at..at + 2].copy_from_slice(&entry.to_words());
            at += PAIR_WORDS;
        }
        let mut at = self.layout.offsets[BIAS] + self.counts.bias as usize * PAIR_WORDS;
        for (token, value) in bias {
            self.words[at..at + 2].copy_from_slice(&[*token, value.to_bits()]);
            at += PAIR_WORDS;
        }
        self.counts.logits_rows += 1;
        self.counts.history += history.len() as u32;
        self.counts.bias += bias.len() as u32;
        self.store_counts();
        Ok(index)
    }

    /// Sets entry `index` of the block table in row `slot` to `block`, before the step's kernels run: rows are numbered
    /// `group * slots + slot`.
    ///
    /// # Errors
    /// [`StepFull`] if there are more deltas than table entries, or if the entry lies outside the tables.
    pub fn push_delta(&mut self, slot: u32, index: u32, block: u32) -> Result<(), StepFull> {
        let limits = self.layout.limits;
        let tables = limits.slots * limits.tables;
        let entries = tables * limits.blocks_per_slot;
        check("table deltas", self.counts.deltas + 1, entries)?;
        check("block tables", slot + 1, tables)?;
        check(
            "block-table entries of a slot",
            index + 1,
            limits.blocks_per_slot,
        )?;
        let at = self.layout.offsets[DELTAS] + self.counts.deltas as usize * DELTA_WORDS;
        self.words[at..at + 2].copy_from_slice(&[slot * limits.blocks_per_slot + index, block]);
        self.counts.deltas += 1;
        self.store_counts();
        Ok(())
    }

    fn store_counts(&mut self) {
        let c = self.counts;
        self.words[..8].copy_from_slice(&[
            c.rows,
            c.logits_rows,
            c.work,
            c.deltas,
            c.history,
            c.bias,
            c.masks,
            0,
        ]);
    }

    /// The layout.
    #[must_use]
    pub fn layout(&self) -> &Arc<StepLayout> {
        &self.layout
    }

    /// The whole block as the device sees it.
    #[must_use]
    pub fn words(&self) -> &[u32] {
        &self.words
    }

    /// Writes the block with its live entries only, fields back to back from multiples of 4 words on, and the header's
    /// offsets to match. Returns the words written; `out` needs [`StepLayout::words`] at most.
    ///
    /// # Panics
    /// If `out` is too short.
    pub fn pack_live(&self, out: &mut [u32]) -> usize {
        self.pack(self.counts.live_words(&self.layout.limits), out)
    }

    /// The same without the masks, for programs that draw nothing: masks may be most of a block, and are not sent twice.
    ///
    /// # Panics
    /// If `out` is too short.
    pub fn pack_unmasked(&self, out: &mut [u32]) -> usize {
        let mut live = self.counts.live_words(&self.layout.limits);
        live[MASKS] = 0;
        self.pack(live, out)
    }

    fn pack(&self, live: [usize; FIELDS], out: &mut [u32]) -> usize {
        out[..HEADER].copy_from_slice(&self.words[..HEADER]);
        let mut at = HEADER;
        for (field, words) in live.into_iter().enumerate() {
            out[8 + field] = at as u32;
            out[at..at + words].copy_from_slice(self.field(field, words));
            at += words.next_multiple_of(4);
        }
        at
    }

    /// Live counts.
    #[must_use]
    pub fn counts(&self) -> StepCounts {
        self.counts
    }

    fn field(&self, field: usize, words: usize) -> &[u32] {
        &self.words[self.layout.offsets[field]..self.layout.offsets[field] + words]
    }

    /// Token ids, `[rows]`.
    #[must_use]
    pub fn ids(&self) -> &[u32] {
        self.field(IDS, self.counts.rows as usize)
    }

    /// Positions in the sequence, `[rows]`.
    #[must_use]
    pub fn positions(&self) -> &[u32] {
        self.field(POSITIONS, self.counts.rows as usize)
    }

    /// Slots, `[rows]`.
    #[must_use]
    pub fn slots(&self) -> &[u32] {
        self.field(SLOTS, self.counts.rows as usize)
    }

    /// The runs of rows, `[work]`.
    pub fn work(&self) -> impl ExactSizeIterator<Item = WorkItem> + '_ {
        self.field(WORK, self.counts.work as usize * WORK_WORDS)
            .chunks_exact(WORK_WORDS)
            .map(|w| WorkItem {
                slot: w[0],
                first_row: w[1],
                rows: w[2],
                first_position: w[3],
            })
    }

    /// Rows whose logits are wanted, `[logits_rows]`.
    #[must_use]
    pub fn logits_rows(&self) -> &[u32] {
        self.field(LOGITS_ROWS, self.counts.logits_rows as usize)
    }

    /// Block-table writes: (entry, counted through the tables of all groups, block).
    pub fn deltas(&self) -> impl ExactSizeIterator<Item = (u32, u32)> + '_ {
        self.field(DELTAS, self.counts.deltas as usize * DELTA_WORDS)
            .chunks_exact(DELTA_WORDS)
            .map(|w| (w[0], w[1]))
    }

    /// Sampling of logits row `index`, with its history and bias entries as word pairs.
    ///
    /// # Panics
    /// If `index` is not below the count of logits rows.
    #[must_use]
    pub fn sampling(&self, index: u32) -> (SampleRow, &[u32], &[u32]) {
        assert!(index < self.counts.logits_rows);
        let at = self.layout.offsets[SAMPLING] + index as usize * SampleRow::WORDS;
        let words = &self.words[at..at + SampleRow::WORDS];
        let (row, history, bias) = SampleRow::decode(words, self.layout.limits.mask_words);
        let pairs = |field: usize, (begin, len): (u32, u32)| {
            let at = self.layout.offsets[field] + begin as usize * PAIR_WORDS;
            &self.words[at..at + len as usize * PAIR_WORDS]
        };
        (row, pairs(HISTORY, history), pairs(BIAS, bias))
    }

    /// Mask `index`, `[mask_words]`.
    ///
    /// # Panics
    /// If `index` is not below the count of masks.
    #[must_use]
    pub fn mask(&self, index: u32) -> &[u32] {
        assert!(index < self.counts.masks);
        let words = self.layout.limits.mask_words as usize;
        let at = self.layout.offsets[MASKS] + index as usize * words;
        &self.words[at..at + words]
    }
}

impl Clone for StepBlock {
    fn clone(&self) -> StepBlock {
        StepBlock {
            layout: self.layout.clone(),
            words: self.words.clone(),
            counts: self.counts,
            late: self.late.clone(),
        }
    }

    /// Copies the live part alone, without allocating, if the layouts are equal.
    fn clone_from(&mut self, source: &StepBlock) {
        if self.layout != source.layout {
            *self = source.clone();
            return;
        }
        self.words[..HEADER].copy_from_slice(&source.words[..HEADER]);
        let live = source.counts.live_words(&self.layout.limits);
        for (at, words) in self.layout.offsets.iter().zip(live) {
            self.words[*at..at + words].copy_from_slice(&source.words[*at..at + words]);
        }
        self.counts = source.counts;
        self.late.clone_from(&source.late);
    }
}

fn check(field: &'static str, wanted: u32, limit: u32) -> Result<(), StepFull> {
    if wanted > limit {
        Err(StepFull { field, limit })
    } else {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block() -> StepBlock {
        let limits = StepLimits {
            rows: 8,
            logits_rows: 2,
            slots: 3,
            blocks_per_slot: 4,
            tables: 1,
            history: 4,
            bias: 3,
            mask_words: 3,
        };
        StepBlock::new(Arc::new(StepLayout::new(limits)))
    }

    #[test]
    fn what_is_pushed_reads_back() {
        let mut b = block();
        b.push_run(2, 5, &[10, 11, 12]).unwrap();
        b.push_run(0, 0, &[7]).unwrap();
        b.push_delta(2, 3, 99).unwrap();
        let sample = SampleRow {
            seed: 1 << 40 | 3,
            forced: Some(0),
            top: 5,
            temperature: 0.7,
            ..SampleRow::greedy(8)
        };
        let history = [HistoryEntry {
            token: 4,
            output_count: 2,
            in_prompt: true,
        }];
        let mask = b.push_mask(&[1, 2, 3]).unwrap();
        let other = b.push_mask(&[9]).unwrap();
        let sample = SampleRow {
            mask: Some(other),
            ..sample
        };
        b.push_logits(2, &SampleRow::greedy(8), &[], &[]).unwrap();
        b.push_logits(3, &sample, &history, &[(1, -2.5)]).unwrap();
        assert_eq!((mask, b.mask(mask)), (0, &[1, 2, 3][..]));
        assert_eq!(b.sampling(0).0.mask, None);
        assert_eq!(b.ids(), [10, 11, 12, 7]);
        assert_eq!(b.positions(), [5, 6, 7, 0]);
        assert_eq!(b.slots(), [2, 2, 2, 0]);
        assert_eq!(
            b.work().nth(1),
            Some(WorkItem {
                slot: 0,
                first_row: 3,
                rows: 1,
                first_position: 0
            })
        );
        assert_eq!(b.logits_rows(), [2, 3]);
        assert_eq!(b.deltas().collect::<Vec<_>>(), [(11, 99)]);
        let (row, h, bias) = b.sampling(1);
        assert_eq!(row, sample);
        assert_eq!(HistoryEntry::from_words([h[0], h[1]]), history[0]);
        assert_eq!(bias, [1, (-2.5f32).to_bits()]);
        let mut copy = block();
        copy.push_run(1, 0, &[9; 8]).unwrap();
        copy.clone_from(&b);
        assert_eq!(copy.ids(), b.ids());
        assert_eq!(copy.deltas().collect::<Vec<_>>(), [(11, 99)]);
        assert_eq!(copy.sampling(1), b.sampling(1));
        assert_eq!(copy.mask(1), [9, 0, 0]);
        b.clear();
        assert_eq!(b.counts(), StepCounts::default());
    }

    #[test]
    fn the_packed_block_holds_the_live_entries_at_its_own_offsets() {
        let mut b = block();
        b.push_run(2, 5, &[10, 11, 12]).unwrap();
        b.push_delta(1, 2, 77).unwrap();
        let masked = SampleRow {
            mask: Some(b.push_mask(&[5, 6, 7]).unwrap()),
            ..SampleRow::greedy(8)
        };
        b.push_logits(2, &masked, &[], &[(3, 0.5)]).unwrap();
        let mut out = vec![u32::MAX; b.layout().words()];
        let words = b.pack_live(&mut out);
        // Header 32, ids, positions and slots 3 each, work 4, logits row 1, delta 2, sampling 20, bias 2, mask 3: padded to 4.
        assert_eq!(words, 32 + 4 + 4 + 4 + 4 + 4 + 4 + 20 + 4 + 4);
        let field = |i: usize, n: usize| &out[out[8 + i] as usize..][..n];
        assert_eq!(out[..8], b.words()[..8]);
        assert_eq!(field(IDS, 3), b.ids());
        assert_eq!(field(POSITIONS, 3), [5, 6, 7]);
        assert_eq!(field(WORK, 4), [2, 0, 3, 5]);
        assert_eq!(field(DELTAS, 2), [6, 77]);
        assert_eq!(field(BIAS, 2), [3, 0.5f32.to_bits()]);
        assert_eq!(field(MASKS, 3), [5, 6, 7]);
        assert_eq!((out[6], field(SAMPLING, 20)[17]), (1, 0));
        let whole = out.clone();
        assert_eq!(b.pack_unmasked(&mut out), words - 4);
        assert_eq!(out[..words - 4], whole[..words - 4]);
    }

    #[test]
    fn masks_are_as_many_as_logits_rows_and_rows_name_those_that_are_there() {
        let mut b = block();
        b.push_run(0, 0, &[1]).unwrap();
        let row = |mask| SampleRow {
            mask: Some(mask),
            ..SampleRow::greedy(1)
        };
        assert!(b.push_logits(0, &row(0), &[], &[]).is_err());
        assert!(b.push_logits(0, &row(u32::MAX), &[], &[]).is_err());
        // Longer than the vocabulary: the rest counts for nothing.
        assert_eq!(b.push_mask(&[7; 5]), Ok(0));
        assert_eq!(b.push_mask(&[8; 3]), Ok(1));
        b.push_logits(0, &row(1), &[], &[]).unwrap();
        assert_eq!(b.sampling(0).0, row(1));
        assert_eq!((b.mask(0), b.mask(1)), (&[7; 3][..], &[8; 3][..]));
        let full = StepFull {
            field: "masks",
            limit: 2,
        };
        assert_eq!(b.push_mask(&[0; 3]), Err(full));
        assert_eq!(b.counts().masks, 2);
    }

    #[test]
    fn late_ids_are_of_rows_that_are_there() {
        let mut block = block();
        block.push_run(1, 7, &[0, 0]).unwrap();
        let late = |row| LateId {
            row,
            span: SpanId(3),
            index: 5,
        };
        block.push_late(late(1)).unwrap();
        assert!(block.push_late(late(2)).is_err());
        let mut copy = StepBlock::new(block.layout().clone());
        copy.clone_from(&block);
        assert_eq!(copy.late(), [late(1)]);
        // Live entries alone or not, the ids are the first of them.
        let mut words = vec![0; block.layout().words()];
        block.pack_live(&mut words);
        assert_eq!((words[8], block.words()[8]), (32, 32));
        assert_eq!(StepBlock::IDS_WORD, 32);
        copy.clear();
        assert!(copy.late().is_empty());
    }

    #[test]
    fn a_full_field_is_named_and_nothing_changes() {
        let mut b = block();
        b.push_run(0, 0, &[1; 8]).unwrap();
        let before = b.counts();
        assert_eq!(
            b.push_run(1, 0, &[1]),
            Err(StepFull {
                field: "rows",
                limit: 8
            })
        );
        assert_eq!(
            b.push_delta(3, 0, 0),
            Err(StepFull {
                field: "block tables",
                limit: 3
            })
        );
        assert_eq!(
            b.push_delta(0, 4, 0),
            Err(StepFull {
                field: "block-table entries of a slot",
                limit: 4
            })
        );
        assert_eq!(b.counts(), before);
    }
}
