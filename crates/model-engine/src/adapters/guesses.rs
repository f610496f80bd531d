// SPDX-License-Identifier: MIT OR Apache-2.0
//! The scheduler's way to drafts that follow from a text alone.

use metrale_scheduler::{DraftRouter, RequestId};

/// Appends at most so many tokens that may follow a text to a list.
pub type Guess = fn(text: &[u32], most: u32, drafts: &mut Vec<u32>);

/// Drafts of a [`Guess`]; without one, none.
#[derive(Clone, Copy, Debug)]
pub struct Guesses(pub Option<Guess>);

impl DraftRouter for Guesses {
    fn draft(&mut self, _request: RequestId, text: &[u32], most: u32, drafts: &mut Vec<u32>) {
        if let Some(guess) = self.0 {
            guess(text, most, drafts);
        }
    }
}
