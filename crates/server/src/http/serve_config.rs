// SPDX-License-Identifier: MIT OR Apache-2.0
//! GET /serve-config: what this server does with a request, and why.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::app::App;
use super::error::json as respond;
use super::router::PATHS;
use crate::api::table::{Endpoint, describe};
use crate::engine_face::{ModelCard, Source, Sourced};

/// Models, digest, defaults with their sources, limits, and the table of request fields.
pub(super) async fn serve_config(State(app): State<Arc<App>>) -> Response {
    let served = app.slot.loaded();
    let card = served.as_ref().map(|s| &s.card);
    respond(&json!({
        "version": env!("CARGO_PKG_VERSION"),
        "models": app.config.served_names,
        "system_fingerprint": card.map(|c| &c.digest),
        "max_model_len": card.map(|c| c.max_model_len),
        "defaults": card.map(defaults),
        "settings": card.map(settings),
        "limits": app.config.limits.describe(),
        "paths": PATHS,
        "fields": {
            "/v1/chat/completions": describe(Endpoint::Chat),
            "/v1/completions": describe(Endpoint::Completions),
            "/tokenize": describe(Endpoint::Tokenize),
            "/detokenize": describe(Endpoint::Detokenize),
        },
    }))
}

fn defaults(card: &ModelCard) -> Value {
    let d = &card.defaults;
    json!({
        "temperature": sourced(&d.temperature),
        "top_p": sourced(&d.top_p),
        "top_k": sourced(&d.top_k),
        "min_p": sourced(&d.min_p),
        "repetition_penalty": sourced(&d.repetition_penalty),
        "max_tokens": sourced(&d.max_tokens),
    })
}

fn sourced<T: Serialize>(default: &Sourced<T>) -> Value {
    let source = match default.source {
        Source::Flag => "flag",
        Source::GenerationConfig => "generation_config",
        Source::OpenAi => "openai",
    };
    json!({"value": default.value, "source": source})
}

fn settings(card: &ModelCard) -> Value {
    let settings = card.settings.iter();
    let settings = settings.map(|s| {
        let shown = json!({"value": s.value, "source": s.source});
        (s.name.clone(), shown)
    });
    settings.collect::<Map<_, _>>().into()
}
