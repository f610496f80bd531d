// SPDX-License-Identifier: MIT OR Apache-2.0
//! Bodies of requests: any bytes give a validated request or an error that names a status and, where it is a field's
//! fault, the field.

use metrale_server::api::chat::ChatRequest;
use metrale_server::api::completions::{CompletionRequest, Prompt};
use metrale_server::api::error::ApiError;
use metrale_server::api::json;
use metrale_server::api::limits::Limits;
use metrale_server::api::sampling::{Facts, Generation};
use metrale_server::api::tokenize::{DetokenizeRequest, TokenizeRequest};
use metrale_server::engine_face::SamplingDefaults;

const VOCAB: u32 = 1000;

/// Reads `data` as a body of every path that takes one.
pub fn run(data: &[u8]) {
    let limits = Limits {
        json_values: 5000,
        ..Limits::default()
    };
    let defaults = SamplingDefaults::default();
    let facts = Facts {
        limits: &limits,
        vocab_size: VOCAB,
        defaults: &defaults,
        fresh_seed: 1,
        by_priority: true,
    };
    let body = match json::parse(data, limits.json_depth, limits.json_values) {
        Ok(body) => body,
        Err(e) => return refused(&e),
    };
    match ChatRequest::read(&body, &facts) {
        Ok(chat) => {
            assert!(!chat.messages.is_empty());
            assert!(chat.logprobs.unwrap_or(0) <= 20);
            generation(&chat.generation, &limits);
        }
        Err(e) => refused(&e),
    }
    match CompletionRequest::read(&body, &facts) {
        Ok(asked) => {
            generation(&asked.generation, &limits);
            assert!(!asked.prompts.is_empty());
            assert!(asked.prompts.len() * asked.generation.n as usize <= limits.choices);
            for prompt in &asked.prompts {
                assert!(!matches!(prompt, Prompt::Ids(ids) if ids.iter().any(|id| *id >= VOCAB)));
            }
        }
        Err(e) => refused(&e),
    }
    if let Err(e) = TokenizeRequest::read(&body, &limits) {
        refused(&e);
    }
    match DetokenizeRequest::read(&body, VOCAB) {
        Ok(asked) => assert!(asked.tokens.iter().all(|id| *id < VOCAB)),
        Err(e) => refused(&e),
    }
}

fn generation(g: &Generation, limits: &Limits) {
    let row = g.sampling.encode(0, 0, None, 0);
    assert!(row.temperature >= 0.0 && row.temperature.is_finite());
    assert!(row.top_p > 0.0 && row.top_p <= 1.0);
    assert!((0.0..=1.0).contains(&row.min_p));
    assert!(g.n >= 1 && g.n <= limits.n);
    assert!(g.stop.len() <= limits.stops && g.stop.iter().all(|s| !s.is_empty()));
    assert!(g.logit_bias.windows(2).all(|pair| pair[0].0 < pair[1].0));
    assert!(
        g.logit_bias
            .iter()
            .all(|(id, b)| *id < VOCAB && b.abs() <= 100.0)
    );
    assert!(g.stream || !g.include_usage);
}

/// A refusal blames the caller, in OpenAI's shape, and does not repeat what the caller sent at length.
fn refused(e: &ApiError) {
    assert_eq!(e.status(), 400);
    let body = e.body();
    assert!(
        body["error"]["message"]
            .as_str()
            .is_some_and(|m| !m.is_empty())
    );
    assert!(body["error"]["code"].is_string());
}
