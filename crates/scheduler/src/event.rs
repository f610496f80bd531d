// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a request's receiver is told.

use crate::fault::Fault;

/// What happens to a request, in order. The last one is always [`Event::Finished`] or [`Event::Failed`], exactly once.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// It left the queue. Sent once, also when it is preempted and resumed later.
    Admitted {
        /// Prompt tokens whose KV came from the prefix cache.
        cached_tokens: u32,
    },
    /// A prompt token's probability given those before it (from position 1; a first token has none).
    Prompt {
        /// Its index in the prompt.
        position: u32,
        /// The token.
        token: u32,
        /// Natural logarithm of its probability in the raw distribution.
        logprob: f32,
        /// The most probable tokens with their logprobs, best first.
        top: Vec<(u32, f32)>,
    },
    /// A generated token (a stop token is none of these: it is counted in [`Usage`] alone).
    Token {
        /// The token.
        token: u32,
        /// Natural logarithm of its probability in the raw distribution.
        logprob: f32,
        /// The most probable tokens with their logprobs, best first.
        top: Vec<(u32, f32)>,
        /// Hash of the raw logits row, where the device router was asked for it.
        row_hash: Option<u64>,
    },
    /// The answer is complete, or was cancelled.
    Finished {
        /// Why it ended.
        reason: FinishReason,
        /// The stop token that ended it.
        stop_token: Option<u32>,
        /// Token counts.
        usage: Usage,
    },
    /// The answer cannot be completed.
    Failed(Fault),
}

impl Event {
    /// Whether no event follows this one.
    #[must_use]
    pub fn is_last(&self) -> bool {
        matches!(self, Event::Finished { .. } | Event::Failed(_))
    }
}

/// Why an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// A stop token was drawn, or the constraint says that the text is complete.
    Stop,
    /// `max_tokens` were generated, or the context or the KV pool is full.
    Length,
    /// The caller cancelled, or its sink was gone.
    Cancelled,
}

/// Token counts of a request, as OpenAI's `usage` counts them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Prompt tokens, cached ones included.
    pub prompt_tokens: u32,
    /// Generated tokens, the stop token included.
    pub completion_tokens: u32,
    /// Prompt tokens that came from the prefix cache.
    pub cached_tokens: u32,
}

/// What a sink answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// The event was taken.
    Taken,
    /// Nobody listens any more: the request is cancelled, and gets no further event.
    Gone,
}

/// The receiver of one request's events. It is called on the driver's thread and must not block: a slow reader is the
/// sink's to bound. A panic in it counts as [`Delivery::Gone`] and reaches nobody else.
pub trait EventSink: Send {
    /// Takes an event.
    fn deliver(&mut self, event: Event) -> Delivery;
}

impl<F: FnMut(Event) -> Delivery + Send> EventSink for F {
    fn deliver(&mut self, event: Event) -> Delivery {
        self(event)
    }
}
