// SPDX-License-Identifier: MIT OR Apache-2.0
//! Errors and values to responses.

use axum::body::Body;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;

use crate::api::error::ApiError;

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = json(&self.body());
        let internal = StatusCode::INTERNAL_SERVER_ERROR;
        *response.status_mut() = StatusCode::from_u16(self.status()).unwrap_or(internal);
        let headers = response.headers_mut();
        if let Some(after) = self.retry_after() {
            let seconds = after.as_secs().max(1);
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if matches!(self, ApiError::ApiKey(_)) {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        if matches!(self, ApiError::Deadline(_)) {
            // OpenAI's clients would ask again on their own; nobody waits for it.
            headers.insert("x-should-retry", HeaderValue::from_static("false"));
        }
        // What is left of a body that was not read is not worth reading.
        if matches!(self.status(), 408 | 413) {
            headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        response
    }
}

/// A JSON response with status 200.
pub(super) fn json<T: Serialize>(value: &T) -> Response {
    match serde_json::to_vec(value) {
        Ok(bytes) => (
            [(header::CONTENT_TYPE, "application/json")],
            Body::from(bytes),
        )
            .into_response(),
        Err(e) => ApiError::Internal(format!("an answer is no JSON: {e}")).into_response(),
    }
}
