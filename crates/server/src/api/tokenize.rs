// SPDX-License-Identifier: MIT OR Apache-2.0
//! POST /tokenize and /detokenize: the requests, validated.

use serde_json::Value;

use super::chat::read_messages;
use super::error::ApiError;
use super::fields::Fields;
use super::limits::Limits;
use super::lists::token_ids;
use super::table::Endpoint;
use crate::text_face::ChatMessage;

/// What is to be tokenized.
#[derive(Clone, Debug, PartialEq)]
pub enum Source {
    /// A plain prompt, as /v1/completions takes it.
    Prompt {
        /// The text.
        text: String,
        /// Put the model's prompt prefix (BOS) before it.
        add_special_tokens: bool,
    },
    /// A chat, as /v1/chat/completions takes it.
    Chat {
        /// The messages.
        messages: Vec<ChatMessage>,
        /// Open an assistant message at the end.
        add_generation_prompt: bool,
    },
}

/// A validated request to /tokenize.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenizeRequest {
    /// The model's name, if given.
    pub model: Option<String>,
    /// What to tokenize.
    pub source: Source,
    /// Give the tokens as text, too.
    pub strings: bool,
}

impl TokenizeRequest {
    /// Validates a body.
    ///
    /// # Errors
    /// [`ApiError`] of the caller's fields, naming the path.
    pub fn read(body: &Value, limits: &Limits) -> Result<TokenizeRequest, ApiError> {
        let fields = Fields::body(body, Endpoint::Tokenize)?;
        let source = match (fields.string("prompt")?, fields.get("messages")) {
            (Some(_), None) if fields.get("add_generation_prompt").is_some() => {
                return Err(ApiError::invalid(
                    "add_generation_prompt",
                    "belongs to `messages`, and `prompt` is given",
                ));
            }
            (Some(text), None) => Source::Prompt {
                text: text.to_owned(),
                add_special_tokens: fields.boolean("add_special_tokens")?.unwrap_or(true),
            },
            (None, Some(messages)) => {
                if fields.boolean("add_special_tokens")? == Some(true) {
                    return Err(ApiError::Unsupported {
                        path: "add_special_tokens".to_owned(),
                        why: "the chat template writes the special tokens itself".to_owned(),
                    });
                }
                Source::Chat {
                    messages: read_messages(messages, limits)?,
                    add_generation_prompt: fields.boolean("add_generation_prompt")?.unwrap_or(true),
                }
            }
            (None, None) => {
                return Err(ApiError::Missing {
                    path: "prompt".to_owned(),
                    why: "give `prompt` or `messages`".to_owned(),
                });
            }
            (Some(_), Some(_)) => {
                return Err(ApiError::invalid(
                    "prompt",
                    "and `messages` exclude each other; give one of them",
                ));
            }
        };
        Ok(TokenizeRequest {
            model: fields.string("model")?.map(str::to_owned),
            source,
            strings: fields.boolean("return_token_strs")?.unwrap_or(false),
        })
    }
}

/// A validated request to /detokenize.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DetokenizeRequest {
    /// The model's name, if given.
    pub model: Option<String>,
    /// The ids.
    pub tokens: Vec<u32>,
}

impl DetokenizeRequest {
    /// Validates a body.
    ///
    /// # Errors
    /// [`ApiError`] of the caller's fields, naming the path.
    pub fn read(body: &Value, vocab_size: u32) -> Result<DetokenizeRequest, ApiError> {
        let fields = Fields::body(body, Endpoint::Detokenize)?;
        fields.required("tokens", "give a list of token ids")?;
        Ok(DetokenizeRequest {
            model: fields.string("model")?.map(str::to_owned),
            tokens: token_ids(&fields, "tokens", vocab_size, usize::MAX)?,
        })
    }
}
