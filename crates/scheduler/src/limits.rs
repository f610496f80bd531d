// SPDX-License-Identifier: MIT OR Apache-2.0
//! The planner's limits. Each states its default and what it costs.

use crate::policy::Policy;

/// Limits of the planner. The device is planned for the largest step that they allow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannerLimits {
    /// Sequences that run at once. Default 32. Each costs a slot of the block tables and one row of each step; more
    /// raise throughput and the time between tokens.
    pub max_num_seqs: u32,
    /// Prefill rows in one step. Default 256. A larger chunk ends prefill sooner and makes every decoding stream wait
    /// longer for the step it is part of.
    pub max_prefill_tokens: u32,
    /// Rows in one step, decode and prefill together. Default 288. Sizes the activation arena.
    pub max_rows: u32,
    /// Tokens that a sequence may bring as drafts for its next step ([`DraftRouter`](crate::DraftRouter)). Default 0: none.
    /// Each takes a row and a logits row of those that no running sequence needs to go on.
    pub max_drafts: u32,
    /// Logits rows in one step. Default 32. Each costs a row of `vocab` f32 and the LM head's work for it; prompt
    /// logprobs cut a prompt into chunks of at most this.
    pub max_logits_rows: u32,
    /// Tokens of a sequence, prompt and answer. Default 4096. Sizes the block tables.
    pub max_seq_len: u32,
    /// Penalty history entries over the logits rows of one step; at least `max_seq_len`. Default 131072 (1 MB of step
    /// block). A row that does not fit waits for the next step.
    pub max_history: u32,
    /// Logit bias entries over the logits rows of one step, and so of one request. Default 8192 (64 kB of step block). A
    /// row that does not fit waits for the next step.
    pub max_bias: u32,
    /// Requests that wait, preempted ones aside. Default 512. One more is refused as busy; each costs its prompt.
    pub queue_len: usize,
    /// Hold the first of the queue back while a running sequence computes a prefix that it would share. Default true.
    /// Costs the wait, saves the second computation.
    pub share_prefill: bool,
    /// In which order requests are served. Default [`Policy::Fifo`].
    pub policy: Policy,
}

impl Default for PlannerLimits {
    fn default() -> Self {
        PlannerLimits {
            max_num_seqs: 32,
            max_prefill_tokens: 256,
            max_rows: 288,
            max_drafts: 0,
            max_logits_rows: 32,
            max_seq_len: 4096,
            max_history: 131_072,
            max_bias: 8192,
            queue_len: 512,
            share_prefill: true,
            policy: Policy::Fifo,
        }
    }
}

impl PlannerLimits {
    /// Checks that every running sequence can have its decode row in every step, and that any one row fits.
    ///
    /// # Errors
    /// [`LimitsError`], naming the limit.
    pub fn validate(&self) -> Result<(), LimitsError> {
        let at_least = |limit, value: u32, bound, least: u32| {
            if value < least {
                Err(LimitsError {
                    limit,
                    value,
                    bound,
                    least,
                })
            } else {
                Ok(())
            }
        };
        at_least("max_num_seqs", self.max_num_seqs, "one", 1)?;
        at_least("max_prefill_tokens", self.max_prefill_tokens, "one", 1)?;
        at_least("max_seq_len", self.max_seq_len, "two", 2)?;
        at_least("max_rows", self.max_rows, "max_num_seqs", self.max_num_seqs)?;
        at_least(
            "max_logits_rows",
            self.max_logits_rows,
            "max_num_seqs",
            self.max_num_seqs,
        )?;
        at_least(
            "max_history",
            self.max_history,
            "max_seq_len",
            self.max_seq_len,
        )
    }
}

/// A limit is below what another one needs.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{limit} is {value}, but must be at least {least} ({bound})")]
pub struct LimitsError {
    /// The limit.
    pub limit: &'static str,
    /// Its value.
    pub value: u32,
    /// What it must reach.
    pub bound: &'static str,
    /// The value of that.
    pub least: u32,
}
