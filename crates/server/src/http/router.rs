// SPDX-License-Identifier: MIT OR Apache-2.0
//! The routes, all behind the guard.

use std::sync::Arc;

use axum::Router;
use axum::extract::Request;
use axum::middleware::from_fn_with_state;
use axum::routing::{get, post};

use super::app::App;
use super::{chat, completions, feed, guard, health, models, serve_config, tokenize};
use crate::api::error::ApiError;

/// Every path, as /serve-config lists them.
pub(super) const PATHS: [&str; 12] = [
    "POST /v1/chat/completions",
    "POST /v1/completions",
    "GET /v1/models",
    "GET /v1/models/{id}",
    "GET /v1/events",
    "POST /tokenize",
    "POST /detokenize",
    "GET /health",
    "GET /health/live",
    "GET /ready",
    "GET /metrics",
    "GET /serve-config",
];

/// The service of one server.
pub(super) fn router(app: Arc<App>) -> Router {
    Router::new()
        .route("/v1/chat/completions", post(chat::chat))
        .route("/v1/completions", post(completions::completions))
        .route("/v1/models", get(models::list))
        .route("/v1/models/{*id}", get(models::one))
        .route("/v1/events", get(feed::feed))
        .route("/tokenize", post(tokenize::tokenize))
        .route("/detokenize", post(tokenize::detokenize))
        .route("/health", get(health::ready))
        .route("/health/live", get(health::live))
        .route("/ready", get(health::ready))
        .route("/metrics", get(health::metrics))
        .route("/serve-config", get(serve_config::serve_config))
        .method_not_allowed_fallback(wrong_method)
        .fallback(unknown_path)
        .layer(from_fn_with_state(Arc::clone(&app), guard::guard))
        .with_state(app)
}

fn path(request: &Request) -> String {
    request.uri().path().chars().take(128).collect()
}

async fn unknown_path(request: Request) -> ApiError {
    ApiError::NotFound(path(&request))
}

async fn wrong_method(request: Request) -> ApiError {
    ApiError::Method {
        path: path(&request),
        method: request.method().to_string().chars().take(32).collect(),
    }
}
