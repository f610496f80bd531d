// SPDX-License-Identifier: MIT OR Apache-2.0
//! POST /tokenize and /detokenize

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::Response;
use serde_json::json;

use super::app::App;
use super::error::json as respond;
use super::{body, prompt};
use crate::api::error::ApiError;
use crate::api::tokenize::{DetokenizeRequest, Source, TokenizeRequest};
use crate::completion::logprobs::name;

/// Text to ids, as a request with it would be tokenized.
pub(super) async fn tokenize(
    State(app): State<Arc<App>>,
    request: Request,
) -> Result<Response, ApiError> {
    let served = app.slot.serving()?;
    let body = body::read(&app, request).await?;
    let asked = TokenizeRequest::read(&body.json, &app.config.limits)?;
    app.name(asked.model.as_deref())?;
    let ids = match asked.source {
        Source::Prompt {
            text,
            add_special_tokens,
        } => {
            prompt::plain(&app, &served, text, add_special_tokens)
                .await?
                .0
        }
        Source::Chat {
            messages,
            add_generation_prompt,
        } => prompt::chat(&app, &served, messages, add_generation_prompt).await?,
    };
    let strings = asked.strings.then(|| {
        let text = served.text.as_ref();
        ids.iter().map(|id| name(text, *id)).collect::<Vec<_>>()
    });
    Ok(respond(&json!({
        "count": ids.len(),
        "max_model_len": served.card.max_model_len,
        "tokens": ids,
        "token_strs": strings,
    })))
}

/// Ids to text, control tokens by name.
pub(super) async fn detokenize(
    State(app): State<Arc<App>>,
    request: Request,
) -> Result<Response, ApiError> {
    let served = app.slot.serving()?;
    let body = body::read(&app, request).await?;
    let asked = DetokenizeRequest::read(&body.json, served.text.vocab_size())?;
    app.name(asked.model.as_deref())?;
    let prompt = served.text.decode(&asked.tokens);
    Ok(respond(&json!({ "prompt": prompt })))
}
