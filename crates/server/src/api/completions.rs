// SPDX-License-Identifier: MIT OR Apache-2.0
//! POST /v1/completions: the request, validated.

use serde_json::Value;

use super::error::ApiError;
use super::fields::{Fields, wrong};
use super::limits::Limits;
use super::lists::read_ids;
use super::sampling::{Facts, Generation};
use super::table::Endpoint;

/// One prompt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Prompt {
    /// A text; the text of a special token is that token.
    Text(String),
    /// Token ids, used as they are.
    Ids(Vec<u32>),
}

/// A validated completion request.
#[derive(Clone, Debug, PartialEq)]
pub struct CompletionRequest {
    /// The model's name, if given.
    pub model: Option<String>,
    /// The prompts, at least one; each has `n` answers.
    pub prompts: Vec<Prompt>,
    /// The prompt before the answer.
    pub echo: bool,
    /// Alternatives wanted at each token; `None`: no logprobs.
    pub logprobs: Option<u32>,
    /// Put the model's prompt prefix (BOS) before a text.
    pub add_special_tokens: bool,
    /// The common fields.
    pub generation: Generation,
}

impl CompletionRequest {
    /// OpenAI's default length.
    pub const MAX_TOKENS: u32 = 16;

    /// Validates a body.
    ///
    /// # Errors
    /// [`ApiError`] of the caller's fields, naming the path.
    pub fn read(body: &Value, facts: &Facts<'_>) -> Result<CompletionRequest, ApiError> {
        let fields = Fields::body(body, Endpoint::Completions)?;
        let prompt = fields.required("prompt", "give a text, token ids, or a list of either")?;
        let generation = Generation::read(&fields, facts, 0)?;
        let prompts = read_prompts(prompt, facts.vocab_size)?;
        let choices = prompts.len().saturating_mul(generation.n as usize);
        if choices > facts.limits.choices {
            return Err(ApiError::invalid(
                "prompt",
                format!(
                    "asks for {choices} answers ({} prompts, n = {}), at most {} are given",
                    prompts.len(),
                    generation.n,
                    facts.limits.choices
                ),
            ));
        }
        Ok(CompletionRequest {
            model: fields.string("model")?.map(str::to_owned),
            prompts,
            echo: fields.boolean("echo")?.unwrap_or(false),
            logprobs: fields
                .integer("logprobs", 0..=Limits::LOGPROBS)?
                .map(|n| n as u32),
            add_special_tokens: fields.boolean("add_special_tokens")?.unwrap_or(true),
            generation,
        })
    }
}

fn read_prompts(value: &Value, vocab: u32) -> Result<Vec<Prompt>, ApiError> {
    const EXPECTED: &str = "a text, a list of token ids, or a list of either";
    let items = match value {
        Value::String(text) => return Ok(vec![Prompt::Text(text.clone())]),
        Value::Array(items) => items,
        other => return Err(wrong("prompt".into(), EXPECTED, other)),
    };
    match items.first() {
        None => Err(ApiError::invalid(
            "prompt",
            "is empty; give at least one token",
        )),
        Some(Value::Number(_)) => Ok(vec![Prompt::Ids(read_ids(items, "prompt", vocab)?)]),
        Some(_) => items
            .iter()
            .enumerate()
            .map(|(i, item)| match item {
                Value::String(text) => Ok(Prompt::Text(text.clone())),
                Value::Array(ids) => {
                    Ok(Prompt::Ids(read_ids(ids, &format!("prompt[{i}]"), vocab)?))
                }
                other => Err(wrong(
                    format!("prompt[{i}]"),
                    "a text or a list of token ids",
                    other,
                )),
            })
            .collect(),
    }
}
