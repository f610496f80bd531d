// SPDX-License-Identifier: MIT OR Apache-2.0
//! GET /v1/models and /v1/models/{id}

use std::sync::Arc;

use axum::extract::{Path, State};
use axum::response::Response;
use serde_json::{Value, json};

use super::app::App;
use super::error::json as respond;
use crate::api::error::ApiError;
use crate::engine_face::ServedModel;

/// The served model, under each of its names.
pub(super) async fn list(State(app): State<Arc<App>>) -> Result<Response, ApiError> {
    let served = loaded(&app)?;
    let names = app.config.served_names.iter();
    let data: Vec<Value> = names.map(|name| card(&app, &served, name)).collect();
    Ok(respond(&json!({"object": "list", "data": data})))
}

/// One of them. A name may hold slashes.
pub(super) async fn one(
    State(app): State<Arc<App>>,
    Path(name): Path<String>,
) -> Result<Response, ApiError> {
    let served = loaded(&app)?;
    let name = app.name(Some(&name))?;
    Ok(respond(&card(&app, &served, &name)))
}

fn loaded(app: &App) -> Result<Arc<ServedModel>, ApiError> {
    match app.slot.loaded() {
        Some(served) => Ok(served),
        None => app.slot.serving(),
    }
}

fn card(app: &App, served: &ServedModel, name: &str) -> Value {
    json!({
        "id": name,
        "object": "model",
        "created": served.card.created,
        "owned_by": "metrale",
        "root": app.config.served_names.first(),
        "parent": null,
        "max_model_len": served.card.max_model_len,
    })
}
