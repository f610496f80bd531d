// SPDX-License-Identifier: MIT OR Apache-2.0
//! POST /v1/chat/completions

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::Response;

use super::app::App;
use super::deadline::Arrival;
use super::generate::{Answering, Prepared, Wanted};
use super::{body, constraint, prompt, shape, tenant};
use crate::api::chat::ChatRequest;
use crate::api::error::ApiError;

/// Answers a chat.
pub(super) async fn chat(
    State(app): State<Arc<App>>,
    request: Request,
) -> Result<Response, ApiError> {
    let served = app.slot.serving()?;
    let arrival = Arrival::now(request.headers())?;
    let tenant = tenant::tenant(&app.config, request.headers());
    let body = arrival.read(body::read(&app, request)).await?;
    let chat = ChatRequest::read(&body.json, &app.facts(&served))?;
    drop(body);
    let name = app.name(chat.model.as_deref())?;
    let texts = chat.messages.iter().filter_map(|m| m.content.as_ref());
    prompt::check_bytes(&served, texts.map(String::len).sum())?;
    let ids = prompt::chat(&app, &served, chat.messages, chat.add_generation_prompt).await?;
    let prompts = vec![Prepared {
        ids: ids.into(),
        echo: None,
    }];
    let wanted = Wanted {
        arrival,
        namespace: tenant::namespace(&tenant, chat.generation.cache_salt.as_deref()),
        generation: &chat.generation,
        constraint: constraint::of(&app, &served, &chat.generation).await?,
        logprobs: chat.logprobs,
        length: None,
    };
    let shape = shape::Chat {
        model: Arc::clone(&served.text),
        logprobs: chat.logprobs.is_some(),
    };
    let answering = Answering::start(&app, &served, name, prompts, &wanted, shape)?;
    answering.respond().await
}
