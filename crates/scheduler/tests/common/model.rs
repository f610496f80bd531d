// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the scripted device's "model" says, and what a request must therefore be answered: computed without a scheduler.

use std::panic::{AssertUnwindSafe, catch_unwind};

use metrale_scheduler::{FinishReason, HistoryEntry, Request, Text, TokenMask, Usage};

use super::{VOCAB, hash};

/// One drawn token.
pub struct Drawn {
    pub token: u32,
    pub logprob: f32,
    pub top: Vec<(u32, f32)>,
    pub row_hash: u64,
}

/// The "distribution" after `text`, and the draw from it: a hash of all that may influence it.
#[allow(clippy::too_many_arguments, reason = "all that may influence a draw")]
pub fn draw(
    text: &[u32],
    seed: u64,
    choice: u32,
    history: &[HistoryEntry],
    bias: &[(u32, f32)],
    banned: &[u32],
    mask: Option<&TokenMask>,
    forced: Option<u32>,
    top: u32,
) -> Drawn {
    let raw = hash(text.iter().map(|t| u64::from(*t)));
    let mut sorted = history.to_vec();
    sorted.sort_by_key(|e| e.token);
    let mut state = hash(
        [raw, seed, u64::from(choice)]
            .into_iter()
            .chain(sorted.iter().flat_map(|e| {
                [
                    u64::from(e.token),
                    u64::from(e.output_count),
                    u64::from(e.in_prompt),
                ]
            }))
            .chain(
                bias.iter()
                    .map(|b| u64::from(b.0) ^ u64::from(b.1.to_bits()) << 32),
            ),
    );
    let mut token = (state % u64::from(VOCAB)) as u32;
    while banned.contains(&token) || mask.is_some_and(|m| !m.allows(token)) {
        state = hash([state]);
        token = (state % u64::from(VOCAB)) as u32;
    }
    let token = forced.unwrap_or(token);
    let logprob = |t: u32| -((hash([raw, u64::from(t)]) % 1000) as f32) / 64.0;
    Drawn {
        token,
        logprob: logprob(token),
        top: (0..top).map(|t| (t, logprob(t))).collect(),
        row_hash: raw,
    }
}

/// The whole answer to a request that runs alone.
#[derive(Debug, Default)]
pub struct Answer {
    /// Prompt tokens reported: (position, token, logprob).
    pub prompt: Vec<(u32, u32, f32)>,
    /// Tokens delivered, with logprob, count of alternatives and row hash.
    pub tokens: Vec<(u32, f32, usize, u64)>,
    pub reason: Option<FinishReason>,
    pub stop_token: Option<u32>,
    pub usage: Usage,
}

pub fn answer(request: &Request<u64>, capacity: u32) -> Answer {
    let mut text = request.prompt.to_vec();
    let prompt_len = text.len();
    let mut answer = Answer {
        usage: Usage {
            prompt_tokens: prompt_len as u32,
            ..Usage::default()
        },
        reason: Some(FinishReason::Length),
        ..Answer::default()
    };
    if request.prompt_logprobs.is_some() {
        for at in 1..prompt_len {
            let d = draw(
                &text[..at],
                request.sampling,
                0,
                &[],
                &[],
                &[],
                None,
                Some(text[at]),
                0,
            );
            answer.prompt.push((at as u32, text[at], d.logprob));
        }
    }
    let mut constraint = request.constraint.clone();
    while answer.usage.completion_tokens < request.max_tokens && text.len() < capacity as usize {
        let history = if request.history {
            history(&text, prompt_len)
        } else {
            Vec::new()
        };
        let banned: &[u32] = if answer.usage.completion_tokens < request.min_tokens {
            &request.stop_tokens
        } else {
            &[]
        };
        let mask = match constraint.as_mut().map(|c| c.mask()) {
            Some(Ok(mask)) if !mask.is_empty() => Some(mask),
            Some(_) => break, // It fails here.
            None => None,
        };
        let d = draw(
            &text,
            request.sampling,
            request.choice,
            &history,
            &request.bias,
            banned,
            mask.as_ref(),
            None,
            request.logprobs.unwrap_or(0),
        );
        answer.usage.completion_tokens += 1;
        if request.stop_tokens.contains(&d.token) {
            answer.reason = Some(FinishReason::Stop);
            answer.stop_token = Some(d.token);
            break;
        }
        text.push(d.token);
        answer
            .tokens
            .push((d.token, d.logprob, d.top.len(), d.row_hash));
        let accept = || constraint.as_mut().map(|c| c.accept(d.token));
        match catch_unwind(AssertUnwindSafe(accept)) {
            Ok(Some(Ok(Text::Complete))) => {
                answer.reason = Some(FinishReason::Stop);
                break;
            }
            Ok(None | Some(Ok(Text::Open))) => {}
            _ => break, // It fails here.
        }
    }
    answer
}

/// Counted anew, the slow way.
fn history(text: &[u32], prompt_len: usize) -> Vec<HistoryEntry> {
    let mut entries: Vec<HistoryEntry> = Vec::new();
    for (at, token) in text.iter().enumerate() {
        let found = entries.iter_mut().find(|e| e.token == *token);
        let entry = match found {
            Some(entry) => entry,
            None => {
                entries.push(HistoryEntry {
                    token: *token,
                    output_count: 0,
                    in_prompt: false,
                });
                entries.last_mut().unwrap()
            }
        };
        if at < prompt_len {
            entry.in_prompt = true;
        } else {
            entry.output_count += 1;
        }
    }
    entries
}
