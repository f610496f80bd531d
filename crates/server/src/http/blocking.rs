// SPDX-License-Identifier: MIT OR Apache-2.0
//! Work that takes long runs on threads of its own, as many at once as there are cores.

use super::app::App;
use super::panics::guarded;
use crate::api::error::ApiError;

/// Bytes of text up to which work is done where it is.
const SHORT: usize = 8 << 10;

/// Runs `work` on `bytes` of text: at once if they are few, else on a thread for it.
pub(super) async fn on_text<T: Send + 'static>(
    app: &App,
    bytes: usize,
    work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    if bytes <= SHORT {
        return guarded(work)?;
    }
    let internal = |what: String| ApiError::Internal(what);
    let permit = app.tokenizers.clone().acquire_owned().await;
    let permit = permit.map_err(|e| internal(e.to_string()))?;
    let task = tokio::task::spawn_blocking(move || {
        let _permit = permit;
        guarded(work)
    });
    task.await.map_err(|e| internal(e.to_string()))??
}
