// SPDX-License-Identifier: MIT OR Apache-2.0
//! The one error of the HTTP side. Each variant assigns blame, and the HTTP status, OpenAI's `type` and `code` and the
//! field it names are functions of the variant.

use std::fmt;
use std::time::Duration;

use serde_json::{Value, json};

/// Why a request was not answered.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ApiError {
    // The caller's request, before its fields.
    /// The body is not JSON.
    #[error("the request body is not valid JSON: {0}")]
    InvalidJson(String),
    /// A key stands twice in one object, so that its meaning is unclear.
    #[error("the request body holds the key `{0}` twice in one object; give it once")]
    DuplicateKey(String),
    /// Nested deeper than allowed.
    #[error("the request body is nested deeper than {0} levels; flatten it")]
    TooDeep(usize),
    /// More values than allowed.
    #[error("the request body holds more than {0} JSON values; send it in parts")]
    TooManyValues(usize),
    /// The content type is not JSON.
    #[error("the content type must be application/json, and is {0}")]
    ContentType(String),
    /// The body is compressed.
    #[error("request bodies in content encoding `{0}` are not read; send it uncompressed")]
    ContentEncoding(String),
    /// The body is larger than the limit.
    #[error("the request body is larger than the limit of {0} bytes")]
    BodyTooLarge(usize),
    /// The body came too slowly.
    #[error("the request body did not arrive within {} s", .0.as_secs_f32())]
    BodyTimeout(Duration),
    /// The connection broke inside the body.
    #[error("the request body ended early: {0}")]
    BodyBroken(String),
    /// A Host header that this server does not answer to.
    #[error(
        "the host `{0}` is not one this server answers to (so that web pages cannot reach it under \
         a name of theirs); start it with --allowed-host to add it"
    )]
    Host(String),
    /// A web page of another origin.
    #[error(
        "requests from web pages of `{0}` are refused; start the server with --allowed-origin to allow them"
    )]
    Origin(String),
    /// No key, or a wrong one.
    #[error("{}", if *.0 { "the API key is not valid" } else { "an API key is needed: send it as `Authorization: Bearer KEY`" })]
    ApiKey(bool),
    /// No such path.
    #[error("there is no `{0}` here; GET /serve-config lists what the server offers")]
    NotFound(String),
    /// The path exists, the method does not.
    #[error("`{path}` does not answer {method}")]
    Method {
        /// The path.
        path: String,
        /// The method that was used.
        method: String,
    },

    // The caller's fields.
    /// A field of a wrong type.
    #[error("`{path}` must be {expected}, and is {got}")]
    WrongType {
        /// Where, e.g. `messages[0].role`.
        path: String,
        /// What was expected, with its article.
        expected: String,
        /// What stands there.
        got: String,
    },
    /// A field of the right type whose value cannot be used.
    #[error("`{path}` {why}")]
    InvalidValue {
        /// Where.
        path: String,
        /// What must hold, as the end of the sentence.
        why: String,
    },
    /// A field that must be given.
    #[error("`{path}` is missing: {why}")]
    Missing {
        /// Where.
        path: String,
        /// What it should hold.
        why: String,
    },
    /// A field nobody knows.
    #[error("`{path}` is not a field of this request{}", match .near { Some(n) => format!("; did you mean `{n}`?"), None => String::new() })]
    Unknown {
        /// Where.
        path: String,
        /// A field of nearly this name.
        near: Option<String>,
    },
    /// A field that is known and not offered (with this value).
    #[error("`{path}` is not supported: {why}")]
    Unsupported {
        /// Where.
        path: String,
        /// Why, and what to do.
        why: String,
    },
    /// A model that is not served.
    #[error("the model `{asked}` is not served here; this server has `{served}`")]
    ModelNotFound {
        /// The name in the request.
        asked: String,
        /// The names it has.
        served: String,
    },
    /// Prompt and answer do not fit.
    #[error(
        "{room}, and the request wants {} ({prompt} in the prompt, {answer} in the answer); \
         shorten the prompt or ask for fewer tokens{}",
        prompt + answer,
        room.remedy()
    )]
    ContextLength {
        /// What a sequence can hold.
        room: Room,
        /// Tokens of the prompt.
        prompt: u64,
        /// Tokens wanted in the answer.
        answer: u64,
    },
    /// The prompt's text is longer than a sequence can hold, seen without counting its tokens.
    #[error("{room}, and the prompt's {bytes} bytes are more; shorten it{}", room.remedy())]
    PromptBytes {
        /// Bytes of the prompt.
        bytes: usize,
        /// What a sequence can hold.
        room: Room,
    },
    /// The messages do not fit the chat template.
    #[error("{0}")]
    Template(String),
    /// What the request bans and allows leaves it no token.
    #[error("the request's own fields leave no token that could be drawn: {0}")]
    NoToken(String),

    // The machine, for now.
    /// The queue is full.
    #[error("the server is busy: {what}")]
    Busy {
        /// The engine's words.
        what: String,
        /// When it is worth trying again.
        retry_after: Duration,
    },
    /// The model is being loaded.
    #[error("the model is still loading; try again in a moment")]
    Loading,
    /// The server is going down.
    #[error("the server is shutting down and takes no new requests")]
    Draining,
    /// The request's deadline passed.
    #[error("the request was not done in time: {0}")]
    Deadline(String),

    // Ourselves, or the machine for good.
    /// The engine cannot serve any more.
    #[error("the engine has failed: {0}")]
    EngineFailed(String),
    /// This generation failed; others go on.
    #[error("the generation failed: {0}")]
    Generation(String),
    /// The checkpoint's template or tokenizer is at fault.
    #[error("{0}")]
    Checkpoint(String),
    /// A fault of our own.
    #[error("an internal error ended this request (others are untouched): {0}")]
    Internal(String),
}

use ApiError as E;

impl ApiError {
    /// A value that cannot be used; `why` ends the sentence that the path begins.
    pub fn invalid(path: impl Into<String>, why: impl Into<String>) -> ApiError {
        E::InvalidValue {
            path: path.into(),
            why: why.into(),
        }
    }

    /// The HTTP status.
    #[must_use]
    pub fn status(&self) -> u16 {
        match self {
            E::ApiKey(_) => 401,
            E::Host(_) | E::Origin(_) => 403,
            E::NotFound(_) | E::ModelNotFound { .. } => 404,
            E::Method { .. } => 405,
            E::BodyTimeout(_) => 408,
            E::BodyTooLarge(_) => 413,
            E::ContentType(_) | E::ContentEncoding(_) => 415,
            E::Busy { .. } => 429,
            E::Generation(_) | E::Checkpoint(_) | E::Internal(_) => 500,
            E::Loading | E::Draining | E::EngineFailed(_) => 503,
            E::Deadline(_) => 504,
            _ => 400,
        }
    }

    /// OpenAI's `type`.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self.status() {
            401 => "authentication_error",
            403 => "permission_error",
            429 => "rate_limit_error",
            503 => "service_unavailable_error",
            500.. => "server_error",
            _ => "invalid_request_error",
        }
    }

    /// OpenAI's `code`.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            E::InvalidJson(_) | E::BodyBroken(_) => "invalid_json",
            E::DuplicateKey(_) => "duplicate_key",
            E::TooDeep(_) => "nested_too_deep",
            E::TooManyValues(_) => "too_many_values",
            E::ContentType(_) => "unsupported_media_type",
            E::ContentEncoding(_) => "unsupported_content_encoding",
            E::BodyTooLarge(_) => "request_too_large",
            E::BodyTimeout(_) => "request_timeout",
            E::Host(_) => "host_not_allowed",
            E::Origin(_) => "origin_not_allowed",
            E::ApiKey(_) => "invalid_api_key",
            E::NotFound(_) => "not_found",
            E::Method { .. } => "method_not_allowed",
            E::WrongType { .. } => "invalid_type",
            E::InvalidValue { .. } => "invalid_value",
            E::Missing { .. } => "missing_required_parameter",
            E::Unknown { .. } => "unknown_parameter",
            E::Unsupported { .. } => "unsupported_parameter",
            E::ModelNotFound { .. } => "model_not_found",
            E::ContextLength { .. } | E::PromptBytes { .. } => "context_length_exceeded",
            E::Template(_) => "chat_template_error",
            E::NoToken(_) => "no_token_left",
            E::Busy { .. } => "rate_limit_exceeded",
            E::Loading => "model_loading",
            E::Draining => "shutting_down",
            E::Deadline(_) => "deadline_exceeded",
            E::EngineFailed(_) => "engine_failed",
            E::Generation(_) => "generation_failed",
            E::Checkpoint(_) => "checkpoint_error",
            E::Internal(_) => "internal_error",
        }
    }

    /// The field at fault.
    #[must_use]
    pub fn param(&self) -> Option<&str> {
        match self {
            E::WrongType { path, .. }
            | E::InvalidValue { path, .. }
            | E::Missing { path, .. }
            | E::Unknown { path, .. }
            | E::Unsupported { path, .. } => Some(path),
            E::DuplicateKey(key) => Some(key),
            E::ModelNotFound { .. } => Some("model"),
            E::Template(_) => Some("messages"),
            _ => None,
        }
    }

    /// When it is worth trying again, for the Retry-After header.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            E::Busy { retry_after, .. } => Some(*retry_after),
            E::Loading | E::Draining => Some(Duration::from_secs(1)),
            _ => None,
        }
    }

    /// OpenAI's error object, `{"error": {"message", "type", "param", "code"}}`.
    #[must_use]
    pub fn body(&self) -> Value {
        json!({"error": {
            "message": self.to_string(),
            "type": self.kind(),
            "param": self.param(),
            "code": self.code(),
        }})
    }
}

/// Tokens that a sequence can hold, prompt and answer, and what bounds them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// How many.
    pub tokens: u64,
    /// Whether the KV pool bounds them: it holds less than the model's context.
    pub pool: bool,
}

impl Room {
    /// What whoever runs the server can do; the end of a sentence.
    #[must_use]
    pub fn remedy(&self) -> &'static str {
        match self.pool {
            true => ", or start the server with a larger --kv-cache-bytes",
            false => "",
        }
    }
}

impl fmt::Display for Room {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self.pool {
            true => "the KV pool of this server, smaller than the model's context, holds",
            false => "this model's context length is",
        };
        write!(f, "{what} {} tokens", self.tokens)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_body_is_openais_shape() {
        let e = E::Unknown {
            path: "temprature".into(),
            near: Some("temperature".into()),
        };
        assert_eq!(
            e.body(),
            json!({"error": {
                "message": "`temprature` is not a field of this request; did you mean `temperature`?",
                "type": "invalid_request_error",
                "param": "temprature",
                "code": "unknown_parameter",
            }})
        );
    }

    #[test]
    fn the_status_follows_from_the_variant() {
        let busy = E::Busy {
            what: String::new(),
            retry_after: Duration::from_secs(2),
        };
        assert_eq!((busy.status(), busy.kind()), (429, "rate_limit_error"));
        assert_eq!(E::Loading.status(), 503);
        assert_eq!(E::ApiKey(false).status(), 401);
        assert_eq!(E::invalid("n", "must be 1").status(), 400);
        assert_eq!(E::Internal(String::new()).kind(), "server_error");
    }
}
