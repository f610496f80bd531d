// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the engine is asked for, and what its refusals mean.

use std::sync::Arc;
use std::time::Duration;

use metrale_scheduler::{Refusal, RequestId};

use super::generate::{Prepared, Wanted};
use crate::api::error::{ApiError, Room};
use crate::completion::choice::ChoiceOptions;
use crate::completion::echo::Echo;
use crate::completion::run::from_fault;
use crate::engine_face::{Request, ServedModel};

/// How an answer's tokens become text.
pub(super) fn options(prompt: &Prepared, wanted: &Wanted<'_>) -> ChoiceOptions {
    ChoiceOptions {
        stop: wanted.generation.stop.clone(),
        include_stop: wanted.generation.include_stop,
        skip_special: wanted.generation.skip_special,
        entries: wanted.logprobs.is_some(),
        offset: prompt.echo.as_ref().map_or(0, Echo::characters),
    }
}

/// The engine's request for one answer; the choice is still to be set.
pub(super) fn request(
    served: &ServedModel,
    prompt: &Prepared,
    wanted: &Wanted<'_>,
) -> Result<Request, ApiError> {
    let g = wanted.generation;
    if prompt.ids.is_empty() {
        return Err(refused(Refusal::EmptyPrompt));
    }
    let max_tokens = max_tokens(served, prompt.ids.len() as u64, wanted)?;
    if g.min_tokens > max_tokens {
        let why = format!("must not be above the {max_tokens} tokens of the answer");
        return Err(ApiError::invalid("min_tokens", why));
    }
    let mut stop_tokens = g.stop_token_ids.clone();
    if !g.ignore_eos {
        stop_tokens.extend(served.text.eos());
    }
    stop_tokens.sort_unstable();
    stop_tokens.dedup();
    let ends = |token: &u32| stop_tokens.binary_search(token).is_ok();
    if g.min_tokens > 0
        && g.allowed_token_ids
            .as_ref()
            .is_some_and(|ids| ids.iter().all(ends))
    {
        let why = "needs tokens that do not end the answer, and `allowed_token_ids` holds none";
        return Err(ApiError::invalid("min_tokens", why));
    }
    Ok(Request {
        id: RequestId(0),
        choice: 0,
        prompt: Arc::clone(&prompt.ids),
        sampling: g.sampling,
        history: g.sampling.needs_history(),
        bias: g.logit_bias.as_slice().into(),
        constraint: wanted.constraint.clone(),
        max_tokens,
        min_tokens: g.min_tokens,
        stop_tokens: stop_tokens.into(),
        logprobs: wanted.logprobs,
        prompt_logprobs: wanted.logprobs.filter(|_| prompt.echo.is_some()),
        namespace: wanted.namespace,
        priority: g.priority,
        deadline: wanted.arrival.left(g.deadline)?,
    })
}

/// What the request says must fit; what it leaves open is cut to what the context leaves.
fn max_tokens(served: &ServedModel, prompt: u64, wanted: &Wanted<'_>) -> Result<u32, ApiError> {
    let card = &served.card;
    let room = card.room();
    let limit = room.tokens;
    let asked = wanted.generation.max_tokens;
    let answer = u64::from(asked.unwrap_or(1));
    if prompt >= limit || prompt + answer > limit {
        return Err(ApiError::ContextLength {
            room,
            prompt,
            answer,
        });
    }
    let left = (limit - prompt) as u32;
    let open = card.defaults.max_tokens.value.or(wanted.length);
    Ok(asked.unwrap_or_else(|| open.map_or(left, |open| open.min(left))))
}

/// What a refusal of the engine means to the caller.
pub(super) fn refused(why: Refusal) -> ApiError {
    let long = |prompt: usize, tokens: usize, pool| ApiError::ContextLength {
        room: Room {
            tokens: tokens as u64,
            pool,
        },
        prompt: prompt as u64,
        answer: 1,
    };
    match why {
        Refusal::Busy { .. } => ApiError::Busy {
            what: why.to_string(),
            retry_after: Duration::from_secs(1),
        },
        Refusal::ShuttingDown => ApiError::Draining,
        Refusal::Failed(what) => ApiError::EngineFailed(what),
        Refusal::EmptyPrompt => ApiError::invalid("prompt", "has no tokens; give at least one"),
        Refusal::PromptTooLong { tokens, limit } => long(tokens, limit, false),
        Refusal::PromptExceedsPool { tokens, limit } => long(tokens, limit, true),
        Refusal::TooManyBias { .. } => {
            ApiError::invalid("logit_bias", format!("is too large: {why}"))
        }
        Refusal::Constraint(fault) => from_fault(fault),
        Refusal::DuplicateId(_) => ApiError::Internal(why.to_string()),
    }
}
