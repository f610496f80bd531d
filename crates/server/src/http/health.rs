// SPDX-License-Identifier: MIT OR Apache-2.0
//! GET /health, /ready (whether requests would be answered) and /health/live (whether the process answers at all).

use std::sync::Arc;

use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use metrale_telemetry::CONTENT_TYPE;
use serde_json::json;

use super::app::App;
use super::error::json as respond;
use crate::api::error::ApiError;
use crate::engine_face::{EngineState, EngineStats};

/// 200 only if a request sent now would be taken.
pub(super) async fn ready(State(app): State<Arc<App>>) -> Response {
    let (status, reason) = match app.slot.state() {
        EngineState::Ready => return respond(&json!({"status": "ready"})),
        other => name(other),
    };
    let body = respond(&json!({"status": status, "reason": reason}));
    (StatusCode::SERVICE_UNAVAILABLE, body).into_response()
}

/// A state's name, and its reason.
pub(super) fn name(state: EngineState) -> (&'static str, Option<String>) {
    match state {
        EngineState::Ready => ("ready", None),
        EngineState::Loading => ("loading", None),
        EngineState::Recovering(why) => ("recovering", Some(why)),
        EngineState::Draining => ("draining", None),
        EngineState::Failed(why) => ("failed", Some(why)),
    }
}

/// 200 always: a process that should be restarted does not answer. A failed engine is `/ready`'s to tell.
pub(super) async fn live() -> Response {
    respond(&json!({"status": "live"}))
}

/// GET /metrics
pub(super) async fn metrics(State(app): State<Arc<App>>) -> Response {
    let stats = app
        .slot
        .loaded()
        .map_or_else(EngineStats::default, |served| served.engine.stats());
    match app.metrics.page(stats) {
        Ok(page) => ([(header::CONTENT_TYPE, CONTENT_TYPE)], page).into_response(),
        Err(e) => ApiError::Internal(e.to_string()).into_response(),
    }
}
