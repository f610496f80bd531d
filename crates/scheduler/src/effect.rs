// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the planner does to the outside besides its step plans.

use crate::event::Event;
use crate::request::RequestId;

/// An effect, in the order in which it has to happen.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// Tell a request's sink.
    Emit {
        /// Whose sink.
        request: RequestId,
        /// What to tell it.
        event: Event,
    },
    /// A sequence brought drafts to a step that is done.
    Verified {
        /// Whose drafts.
        request: RequestId,
        /// Rows that ran for them.
        drafted: u32,
        /// Of these, the first so many became tokens of its text.
        accepted: u32,
    },
    /// A running sequence gave its blocks back and went to the head of the queue.
    Preempt {
        /// Which one.
        request: RequestId,
        /// Tokens whose KV it gave up.
        tokens: u32,
        /// Whether the spill router keeps them.
        spilled: bool,
    },
}
