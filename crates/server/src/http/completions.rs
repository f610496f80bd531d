// SPDX-License-Identifier: MIT OR Apache-2.0
//! POST /v1/completions

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::Response;

use super::app::App;
use super::deadline::Arrival;
use super::generate::{Answering, Prepared, Wanted};
use super::{body, constraint, prompt, shape, tenant};
use crate::api::completions::{CompletionRequest, Prompt};
use crate::api::error::ApiError;
use crate::completion::echo::Echo;
use crate::engine_face::ServedModel;

/// Completes each prompt.
pub(super) async fn completions(
    State(app): State<Arc<App>>,
    request: Request,
) -> Result<Response, ApiError> {
    let served = app.slot.serving()?;
    let arrival = Arrival::now(request.headers())?;
    let tenant = tenant::tenant(&app.config, request.headers());
    let body = arrival.read(body::read(&app, request)).await?;
    let mut asked = CompletionRequest::read(&body.json, &app.facts(&served))?;
    drop(body);
    let name = app.name(asked.model.as_deref())?;
    let mut prompts = Vec::new();
    for prompt in std::mem::take(&mut asked.prompts) {
        prompts.push(prepare(&app, &served, &asked, prompt).await?);
    }
    let wanted = Wanted {
        arrival,
        namespace: tenant::namespace(&tenant, asked.generation.cache_salt.as_deref()),
        generation: &asked.generation,
        constraint: constraint::of(&app, &served, &asked.generation).await?,
        logprobs: asked.logprobs,
        length: Some(CompletionRequest::MAX_TOKENS),
    };
    let shape = shape::Completion {
        model: Arc::clone(&served.text),
        logprobs: asked.logprobs.is_some(),
    };
    let answering = Answering::start(&app, &served, name, prompts, &wanted, shape)?;
    answering.respond().await
}

async fn prepare(
    app: &App,
    served: &Arc<ServedModel>,
    asked: &CompletionRequest,
    prompt: Prompt,
) -> Result<Prepared, ApiError> {
    let logprobs = asked.logprobs.is_some();
    match prompt {
        Prompt::Text(text) => {
            prompt::check_bytes(served, text.len())?;
            let kept = asked.echo.then(|| text.clone());
            let add = asked.add_special_tokens;
            let (ids, prefix) = prompt::plain(app, served, text, add).await?;
            let ids: Arc<[u32]> = ids.into();
            let echo = kept.map(|text| Echo::of_text(text, Arc::clone(&ids), prefix, logprobs));
            Ok(Prepared { ids, echo })
        }
        Prompt::Ids(ids) => {
            let ids: Arc<[u32]> = ids.into();
            let skip = asked.generation.skip_special;
            let model = served.text.as_ref();
            let echo = asked
                .echo
                .then(|| Echo::of_ids(model, Arc::clone(&ids), skip, logprobs));
            Ok(Prepared { ids, echo })
        }
    }
}
