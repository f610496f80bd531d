// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a caller asks for, and the refusals that need no device.

use std::sync::Arc;
use std::time::Duration;

use crate::constraint::TokenConstraint;
use crate::fault::Fault;

/// Names one request among those that live; the caller chooses it. A request with `n` choices is `n` requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u64);

/// One sequence to generate. `S` is the sampling parameters, carried to the rows that draw and not looked into.
#[derive(Clone, Debug)]
pub struct Request<S> {
    /// Unique among the requests that live.
    pub id: RequestId,
    /// Which choice of its answer this is (a coordinate of the counter RNG).
    pub choice: u32,
    /// Prompt tokens, at least one.
    pub prompt: Arc<[u32]>,
    /// Sampling parameters.
    pub sampling: S,
    /// Whether the sampling parameters hold a penalty, so that rows carry the token history.
    pub history: bool,
    /// Logit bias: (token, added to the raw logit).
    pub bias: Arc<[(u32, f32)]>,
    /// What its tokens may be; a clone of the request gets one of its own, in the same state. Prompt tokens are not asked of
    /// it. `None`: any token.
    pub constraint: Option<Box<dyn TokenConstraint>>,
    /// Most tokens to generate. 0: only the prompt runs.
    pub max_tokens: u32,
    /// No stop token is drawn before this many tokens (rows ban them until then).
    pub min_tokens: u32,
    /// A drawn token among these ends the answer: it is counted, and not delivered.
    pub stop_tokens: Arc<[u32]>,
    /// How many alternatives each [`Event::Token`](crate::Event::Token) carries. `None`: none.
    pub logprobs: Option<u32>,
    /// As `logprobs`, for the prompt: one [`Event::Prompt`](crate::Event::Prompt) per prompt token but the first.
    /// `None`: no such events. Such a request computes its whole prompt, whatever the prefix cache holds.
    pub prompt_logprobs: Option<u32>,
    /// The prefix cache is divided by this value (tenant, adapter): no hit crosses it.
    pub namespace: u64,
    /// Lower goes first under [`Policy::Priority`](crate::Policy::Priority), as in vLLM; the others do not look at it.
    pub priority: i32,
    /// Time from submission after which the request fails with
    /// [`FaultKind::Deadline`](crate::FaultKind::Deadline).
    pub deadline: Option<Duration>,
}

impl<S> Request<S> {
    /// A request with everything optional left off.
    pub fn new(id: RequestId, prompt: impl Into<Arc<[u32]>>, sampling: S, max_tokens: u32) -> Self {
        Request {
            id,
            choice: 0,
            prompt: prompt.into(),
            sampling,
            history: false,
            bias: Arc::from([]),
            constraint: None,
            max_tokens,
            min_tokens: 0,
            stop_tokens: Arc::from([]),
            logprobs: None,
            prompt_logprobs: None,
            namespace: 0,
            priority: 0,
            deadline: None,
        }
    }
}

/// Why a request was not taken. Nothing of it is kept, and its sink gets no event.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The queue is full: the caller may try again (429 with Retry-After).
    #[error("{queued} requests wait already, the queue holds {limit}: try again later")]
    Busy {
        /// Requests that wait.
        queued: usize,
        /// [`PlannerLimits::queue_len`](crate::PlannerLimits::queue_len).
        limit: usize,
    },
    /// The engine drains or has stopped (503).
    #[error("the engine is shutting down and takes no new request")]
    ShuttingDown,
    /// The device is lost (503).
    #[error("the engine has failed and takes no new request: {0}")]
    Failed(String),
    /// A prompt without tokens.
    #[error("the prompt has no tokens: give at least one")]
    EmptyPrompt,
    /// The prompt leaves no room for one generated token in the context.
    #[error("the prompt has {tokens} tokens, the context length is {limit} with the answer in it")]
    PromptTooLong {
        /// Prompt tokens.
        tokens: usize,
        /// [`PlannerLimits::max_seq_len`](crate::PlannerLimits::max_seq_len).
        limit: usize,
    },
    /// The prompt is longer than the whole KV pool.
    #[error(
        "the prompt has {tokens} tokens, the whole KV pool holds {limit}: shorten it, or start the \
         server with a larger KV pool"
    )]
    PromptExceedsPool {
        /// Prompt tokens.
        tokens: usize,
        /// Tokens that the pool holds.
        limit: usize,
    },
    /// More bias entries than one step carries.
    #[error("logit_bias has {entries} entries, one request may have {limit}")]
    TooManyBias {
        /// Entries (bans of stop tokens under `min_tokens` included).
        entries: usize,
        /// [`PlannerLimits::max_bias`](crate::PlannerLimits::max_bias).
        limit: usize,
    },
    /// Its constraint cannot begin.
    #[error(transparent)]
    Constraint(Fault),
    /// A request of this id lives already: an error of the caller, not of its user.
    #[error("request id {} is in use: ids must be unique among live requests", .0.0)]
    DuplicateId(RequestId),
}
