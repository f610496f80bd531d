// SPDX-License-Identifier: MIT OR Apache-2.0
//! A step plan: the rows of one step as plain data.
//!
//! Flat vectors with ranges into them, so that one plan is filled again for each step without an allocation.

use std::ops::Range;
use std::sync::Arc;

use crate::constraint::TokenMask;
use crate::request::RequestId;

/// One step for the device. Order on the device: `copies` and `restores`, then `tables`, then the rows, then saved
/// states.
#[derive(Clone, Debug, PartialEq)]
pub struct StepPlan<S> {
    /// Counts submitted steps from 1.
    pub step: u64,
    /// Token ids of all rows, `[rows]`: grouped by sequence, ascending in position within one.
    pub tokens: Vec<u32>,
    /// Runs of rows, in the order of `tokens`. A slot appears at most once.
    pub segments: Vec<Segment>,
    /// Rows whose logits are wanted, ascending by row.
    pub logits: Vec<LogitRow<S>>,
    /// Writes to the block tables; each entry at most once.
    pub tables: Vec<TableDelta>,
    /// Rows of `tokens` whose id is not known here yet. Empty unless the router takes steps ahead of the draws
    /// ([`Lookahead::Slot`](crate::Lookahead::Slot)).
    pub late: Vec<LateId>,
    /// Block copies (copy-on-write of partly shared blocks), to be done in this order.
    pub copies: Vec<BlockCopy>,
    /// Recurrent states to be copied to live places before the rows, also of slots that have no row yet.
    pub restores: Vec<StateRestore>,
}

impl<S> Default for StepPlan<S> {
    fn default() -> Self {
        StepPlan {
            step: 0,
            tokens: Vec::new(),
            segments: Vec::new(),
            logits: Vec::new(),
            tables: Vec::new(),
            late: Vec::new(),
            copies: Vec::new(),
            restores: Vec::new(),
        }
    }
}

impl<S> StepPlan<S> {
    /// Rows of the step.
    #[must_use]
    pub fn rows(&self) -> u32 {
        self.tokens.len() as u32
    }

    /// Token ids of a segment.
    #[must_use]
    pub fn tokens_of(&self, segment: &Segment) -> &[u32] {
        &self.tokens[segment.rows.start as usize..segment.rows.end as usize]
    }
}

/// A run of rows of one sequence; positions ascend by one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Whose rows these are.
    pub request: RequestId,
    /// Row of the block tables.
    pub slot: u32,
    /// Position of the first row in the sequence; KV before it is stored.
    pub first_position: u32,
    /// Rows in the step.
    pub rows: Range<u32>,
    /// The last so many of the rows are drafts: tokens that were guessed. Each counts only if the row before it counts and
    /// draws that token; of one that does not, the KV is written over later. All of them have logits rows.
    pub drafts: u32,
    /// The place that the live recurrent state of `slot` is copied to behind the rows. At position 0 the live state counts as
    /// empty, whatever it holds.
    pub save: Option<u32>,
}

impl Segment {
    /// Rows whose tokens are known.
    #[must_use]
    pub fn known(&self) -> Range<u32> {
        self.rows.start..self.rows.end - self.drafts
    }
}

/// A row whose logits are wanted, and how a token is drawn from them.
#[derive(Clone, Debug, PartialEq)]
pub struct LogitRow<S> {
    /// The row in the step.
    pub row: u32,
    /// Whose row it is.
    pub request: RequestId,
    /// Its slot.
    pub slot: u32,
    /// Position of the token that is drawn: that of the row plus one.
    pub position: u32,
    /// The request's choice index.
    pub choice: u32,
    /// Sampling parameters of the request.
    pub sampling: S,
    /// Take this token whatever the logits say (its logprob is wanted).
    pub forced: Option<u32>,
    /// How many alternatives to report.
    pub top: u32,
    /// The penalty history: every token of prompt and output once. `None`: no penalty.
    pub history: Option<Arc<Vec<HistoryEntry>>>,
    /// Added to the raw logits.
    pub bias: Arc<[(u32, f32)]>,
    /// Tokens that must not be drawn here (stop tokens before `min_tokens`): a bias of minus infinity.
    pub banned: Arc<[u32]>,
    /// The tokens that may be drawn. `None`: any.
    pub mask: Option<TokenMask>,
}

/// The recurrent state at `place` becomes the live one of `slot`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateRestore {
    /// The slot, whose number is that of its live place.
    pub slot: u32,
    /// A snapshot's place.
    pub place: u32,
}

/// The id of `row` is the token that the step before draws for `slot`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LateId {
    /// The row in the step.
    pub row: u32,
    /// Its slot; each slot draws at most one token a step.
    pub slot: u32,
}

/// One token's share in the penalties.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HistoryEntry {
    /// The token.
    pub token: u32,
    /// Occurrences in the output.
    pub output_count: u32,
    /// Whether the prompt holds it.
    pub in_prompt: bool,
}

/// Entry `index` of the block table of `slot` becomes `block`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableDelta {
    /// Row of the tables: a slot; in a group of layers beside the first one, the slot and `group * slots`.
    pub slot: u32,
    /// Position over the block size.
    pub index: u32,
    /// Block of the KV pool.
    pub block: u32,
}

/// The KV of block `src`, all layers, is copied over block `dst` (whole: the tail is overwritten by the rows to come).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockCopy {
    /// From.
    pub src: u32,
    /// To.
    pub dst: u32,
}
