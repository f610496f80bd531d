// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the device answers to a step.

/// Outcome of a step: one entry per [`StepPlan::logits`](crate::StepPlan::logits), in that order. Filled again for each
/// step.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StepOutcome {
    /// The rows.
    pub rows: Vec<RowOutcome>,
    /// Alternatives of all rows one after another, each row's best first: (token, logprob).
    pub top: Vec<(u32, f32)>,
}

impl StepOutcome {
    /// Forgets all rows.
    pub fn clear(&mut self) {
        self.rows.clear();
        self.top.clear();
    }

    /// Appends a row with its alternatives.
    pub fn push(&mut self, mut row: RowOutcome, top: impl IntoIterator<Item = (u32, f32)>) {
        row.top_start = self.top.len() as u32;
        self.top.extend(top);
        row.top_len = self.top.len() as u32 - row.top_start;
        self.rows.push(row);
    }

    /// Alternatives of a row.
    #[must_use]
    pub fn top_of(&self, row: &RowOutcome) -> &[(u32, f32)] {
        &self.top[row.top_start as usize..(row.top_start + row.top_len) as usize]
    }
}

/// One logits row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RowOutcome {
    /// The token drawn (the forced one where one was).
    pub token: u32,
    /// Natural logarithm of its probability in the raw distribution.
    pub logprob: f32,
    /// Whether the row can be used.
    pub status: RowStatus,
    /// Hash of the raw logits row, where the router was asked for it.
    pub row_hash: Option<u64>,
    /// First of its alternatives; set by [`StepOutcome::push`].
    pub top_start: u32,
    /// Count of its alternatives; set by [`StepOutcome::push`].
    pub top_len: u32,
}

impl RowOutcome {
    /// A good row.
    #[must_use]
    pub fn new(token: u32, logprob: f32) -> RowOutcome {
        RowOutcome {
            token,
            logprob,
            status: RowStatus::Ok,
            row_hash: None,
            top_start: 0,
            top_len: 0,
        }
    }
}

/// Whether a row can be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowStatus {
    /// Yes.
    Ok,
    /// Its logits hold a NaN or plus infinity.
    NonFinite,
    /// Nothing is left to draw from: every token is banned.
    Empty,
}
