// SPDX-License-Identifier: MIT OR Apache-2.0
//! POST /v1/chat/completions: the request, validated.

use serde_json::Value;

use super::error::ApiError;
use super::fields::{Fields, wrong};
use super::limits::Limits;
use super::sampling::{Facts, Generation};
use super::table::Endpoint;
use crate::text_face::ChatMessage;

/// A validated chat request.
#[derive(Clone, Debug, PartialEq)]
pub struct ChatRequest {
    /// The model's name, if given.
    pub model: Option<String>,
    /// The messages, at least one.
    pub messages: Vec<ChatMessage>,
    /// Open an assistant message at the end.
    pub add_generation_prompt: bool,
    /// Alternatives wanted at each token; `None`: no logprobs.
    pub logprobs: Option<u32>,
    /// The common fields.
    pub generation: Generation,
}

impl ChatRequest {
    /// Validates a body.
    ///
    /// # Errors
    /// [`ApiError`] of the caller's fields, naming the path.
    pub fn read(body: &Value, facts: &Facts<'_>) -> Result<ChatRequest, ApiError> {
        let fields = Fields::body(body, Endpoint::Chat)?;
        let messages = fields.required("messages", "give a list of messages")?;
        Ok(ChatRequest {
            model: fields.string("model")?.map(str::to_owned),
            messages: read_messages(messages, facts.limits)?,
            add_generation_prompt: fields.boolean("add_generation_prompt")?.unwrap_or(true),
            logprobs: logprobs(&fields)?,
            generation: Generation::read(&fields, facts, 1)?,
        })
    }
}

fn logprobs(fields: &Fields<'_>) -> Result<Option<u32>, ApiError> {
    let wanted = fields.boolean("logprobs")?.unwrap_or(false);
    let top = fields.integer("top_logprobs", 0..=Limits::LOGPROBS)?;
    match (wanted, top) {
        (false, Some(1..)) => Err(ApiError::invalid(
            "top_logprobs",
            "needs `logprobs` to be true",
        )),
        (false, _) => Ok(None),
        (true, top) => Ok(Some(top.unwrap_or(0) as u32)),
    }
}

/// The messages of a chat, at `messages`.
pub(super) fn read_messages(value: &Value, limits: &Limits) -> Result<Vec<ChatMessage>, ApiError> {
    let items = value
        .as_array()
        .ok_or_else(|| wrong("messages".into(), "a list of messages", value))?;
    if items.is_empty() {
        return Err(ApiError::invalid(
            "messages",
            "must hold at least one message",
        ));
    }
    if items.len() > limits.messages {
        return Err(ApiError::invalid(
            "messages",
            format!(
                "has {} messages, at most {} are taken",
                items.len(),
                limits.messages
            ),
        ));
    }
    items
        .iter()
        .enumerate()
        .map(|(i, item)| read_message(item, &format!("messages[{i}].")))
        .collect()
}

const MESSAGE_FIELDS: &[&str] = &[
    "role",
    "content",
    "name",
    "refusal",
    "tool_calls",
    "tool_call_id",
    "function_call",
    "audio",
    "annotations",
];

/// One message. What OpenAI's own answers carry and this server's never fill (`refusal`, `tool_calls`, ...) may come
/// back as null or empty, so that an answer can be sent back as it came.
fn read_message(item: &Value, prefix: &str) -> Result<ChatMessage, ApiError> {
    let fields = Fields::inner(item, prefix, MESSAGE_FIELDS)?;
    let unused = [
        "refusal",
        "tool_calls",
        "tool_call_id",
        "function_call",
        "audio",
        "annotations",
    ];
    for name in unused {
        let filled = fields
            .get(name)
            .filter(|v| v.as_array().is_none_or(|a| !a.is_empty()));
        if filled.is_some() {
            return Err(ApiError::Unsupported {
                path: fields.path(name),
                why: "messages hold text only; tool calls and media are not offered yet".to_owned(),
            });
        }
    }
    let role = fields.required("role", "give system, user or assistant")?;
    let role = match role.as_str() {
        Some("developer") => "system",
        Some(role @ ("system" | "user" | "assistant")) => role,
        Some("tool" | "function") => {
            return Err(ApiError::Unsupported {
                path: fields.path("role"),
                why: "tool calls are not offered yet".to_owned(),
            });
        }
        Some(_) => {
            return Err(ApiError::invalid(
                fields.path("role"),
                "must be system, developer, user or assistant",
            ));
        }
        None => return Err(wrong(fields.path("role"), "a string", role)),
    };
    Ok(ChatMessage {
        role: role.to_owned(),
        content: Some(read_content(&fields)?),
        name: fields.string("name")?.map(str::to_owned),
        ..ChatMessage::default()
    })
}

/// A string, or a list of parts of type `text`, joined.
fn read_content(fields: &Fields<'_>) -> Result<String, ApiError> {
    match fields.required("content", "give the message's text")? {
        Value::String(text) => Ok(text.clone()),
        Value::Array(parts) => {
            let mut all = String::new();
            for (i, part) in parts.iter().enumerate() {
                let prefix = format!("{}[{i}].", fields.path("content"));
                let kind = part.get("type").and_then(Value::as_str);
                if let Some(kind) = kind.filter(|k| *k != "text") {
                    let shown: String = kind.chars().take(32).collect();
                    return Err(ApiError::Unsupported {
                        path: format!("{prefix}type"),
                        why: format!("parts must be of type `text`, and this one is `{shown}`"),
                    });
                }
                let part = Fields::inner(part, &prefix, &["type", "text"])?;
                part.required("type", "give `text`")?;
                part.required("text", "give the part's text")?;
                if let Some(text) = part.string("text")? {
                    all.push_str(text);
                }
            }
            Ok(all)
        }
        other => Err(wrong(
            fields.path("content"),
            "a string or a list of parts",
            other,
        )),
    }
}
