// SPDX-License-Identifier: MIT OR Apache-2.0
//! A panic ends its request and nothing else.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::task::{Context, Poll};

use crate::api::error::ApiError;

/// Runs `f`; a panic in it becomes an error. What `f` touched is dropped by the caller, never used again.
pub(super) fn guarded<T>(f: impl FnOnce() -> T) -> Result<T, ApiError> {
    catch_unwind(AssertUnwindSafe(f)).map_err(|_| {
        // The payload may quote the request, which is not logged; the panic hook has told the place.
        tracing::error!("a request panicked, and was ended");
        ApiError::Internal("it is in the server's log".to_owned())
    })
}

/// A future whose panics become errors.
pub(super) struct Guarded<F>(Pin<Box<F>>);

impl<F: Future> Guarded<F> {
    /// Guards `future`.
    pub(super) fn new(future: F) -> Guarded<F> {
        Guarded(Box::pin(future))
    }
}

impl<F: Future> Future for Guarded<F> {
    type Output = Result<F::Output, ApiError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match guarded(|| self.0.as_mut().poll(cx)) {
            Ok(Poll::Ready(value)) => Poll::Ready(Ok(value)),
            Ok(Poll::Pending) => Poll::Pending,
            Err(e) => Poll::Ready(Err(e)),
        }
    }
}
