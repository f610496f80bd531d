// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reads a request's JSON body: its type, size and pace are checked before its content.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderMap, header};
use hyper::body::Body as _;
use serde_json::Value;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout, timeout_at};

use super::app::App;
use super::blocking::on_text;
use crate::api::error::ApiError;
use crate::api::json;
use crate::api::limits::Limits;

/// A body's JSON value, and its share of the memory for bodies until it is dropped.
pub(super) struct Read {
    /// The value.
    pub(super) json: Value,
    _share: Share,
}

/// The JSON value of the body.
pub(super) async fn read(app: &App, request: Request) -> Result<Read, ApiError> {
    let limits = &app.config.limits;
    check_headers(request.headers(), limits)?;
    let mut share = Share::new(&app.bodies);
    let bytes = collect(request.into_body(), limits, &mut share).await?;
    let (depth, values) = (limits.json_depth, limits.json_values);
    let work = move || json::parse(&bytes, depth, values);
    let json = on_text(app, share.bytes, work).await?;
    Ok(Read {
        json,
        _share: share,
    })
}

/// A body's share of the memory for bodies, counted in KiB.
struct Share {
    all: Arc<Semaphore>,
    held: Option<OwnedSemaphorePermit>,
    bytes: usize,
}

impl Share {
    fn new(all: &Arc<Semaphore>) -> Share {
        Share {
            all: Arc::clone(all),
            held: None,
            bytes: 0,
        }
    }

    /// Takes as much more as `bytes` more need.
    fn grow(&mut self, bytes: usize) -> Result<(), ApiError> {
        self.bytes += bytes;
        let held = self
            .held
            .as_ref()
            .map_or(0, OwnedSemaphorePermit::num_permits);
        let more = self.bytes.div_ceil(1024).saturating_sub(held);
        let permits = u32::try_from(more).unwrap_or(u32::MAX);
        let taken = Arc::clone(&self.all).try_acquire_many_owned(permits);
        let taken = taken.map_err(|_| ApiError::Busy {
            what: "it is reading as many request bodies as it has memory for".to_owned(),
            retry_after: Duration::from_secs(1),
        })?;
        match &mut self.held {
            Some(held) => held.merge(taken),
            None => self.held = Some(taken),
        }
        Ok(())
    }
}

fn check_headers(headers: &HeaderMap, limits: &Limits) -> Result<(), ApiError> {
    let text = |name| {
        headers
            .get(name)
            .map(|v| String::from_utf8_lossy(v.as_bytes()).into_owned())
    };
    let kind = text(header::CONTENT_TYPE);
    let essence = kind.as_deref().and_then(|k| k.split(';').next());
    if !essence.is_some_and(|e| e.trim().eq_ignore_ascii_case("application/json")) {
        let shown = kind.map_or("absent".to_owned(), |k| {
            format!("`{}`", k.chars().take(64).collect::<String>())
        });
        return Err(ApiError::ContentType(shown));
    }
    if let Some(encoding) = text(header::CONTENT_ENCODING)
        && !encoding.trim().eq_ignore_ascii_case("identity")
    {
        let shown = encoding.chars().take(64).collect();
        return Err(ApiError::ContentEncoding(shown));
    }
    let length = text(header::CONTENT_LENGTH).and_then(|l| l.parse::<u64>().ok());
    if length.is_some_and(|l| l > limits.body_bytes as u64) {
        return Err(ApiError::BodyTooLarge(limits.body_bytes));
    }
    Ok(())
}

async fn collect(mut body: Body, limits: &Limits, share: &mut Share) -> Result<Vec<u8>, ApiError> {
    let end = Instant::now() + limits.body_timeout;
    let mut bytes = Vec::new();
    loop {
        let frame = poll_fn(|cx| Pin::new(&mut body).poll_frame(cx));
        let frame = timeout_at(end, timeout(limits.body_idle, frame)).await;
        let frame = frame
            .map_err(|_| ApiError::BodyTimeout(limits.body_timeout))?
            .map_err(|_| ApiError::BodyTimeout(limits.body_idle))?;
        match frame {
            None => return Ok(bytes),
            Some(Err(e)) => return Err(ApiError::BodyBroken(e.to_string())),
            Some(Ok(frame)) => {
                let Ok(data) = frame.into_data() else {
                    continue;
                };
                if data.len() > limits.body_bytes - bytes.len() {
                    return Err(ApiError::BodyTooLarge(limits.body_bytes));
                }
                share.grow(data.len())?;
                bytes.extend_from_slice(&data);
            }
        }
    }
}
