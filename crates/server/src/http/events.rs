// SPDX-License-Identifier: MIT OR Apache-2.0
//! Server-sent events as a response body.
//!
//! The body is pulled: an event is made when the connection has room for it. So a reader that does not read costs the
//! events that the engine has queued for it and one frame, until the connection's stall limit cuts it.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use hyper::body::Frame;
use tokio::time::{Instant, Sleep, sleep};

use super::panics::guarded;

/// Bytes at which a frame is sent although more events are ready.
const FRAME: usize = 16 << 10;

/// A source of events.
pub(super) trait Events: Send + Unpin + 'static {
    /// Appends the JSON texts of the next events to `out`. `Ready(false)`: there are no more.
    fn poll_events(&mut self, cx: &mut Context<'_>, out: &mut Vec<String>) -> Poll<bool>;
}

/// The response that carries the events of `source`, with a comment line where none came for `keep_alive`.
pub(super) fn response(source: impl Events, keep_alive: Duration) -> Response {
    let body = EventBody {
        source: Some(source),
        keep_alive,
        quiet: Box::pin(sleep(keep_alive)),
        queue: Vec::new(),
    };
    let headers = [
        (header::CONTENT_TYPE, "text/event-stream"),
        (header::CACHE_CONTROL, "no-cache"),
        // nginx would collect the events otherwise.
        (header::HeaderName::from_static("x-accel-buffering"), "no"),
    ];
    (headers, Body::new(body)).into_response()
}

struct EventBody<S> {
    /// `None` after the last event.
    source: Option<S>,
    keep_alive: Duration,
    quiet: Pin<Box<Sleep>>,
    queue: Vec<String>,
}

impl<S: Events> EventBody<S> {
    /// Fills `frame` with what is ready. Returns whether the source is to be asked again later.
    fn fill(&mut self, cx: &mut Context<'_>, frame: &mut Vec<u8>) {
        while frame.len() < FRAME {
            let Some(source) = &mut self.source else {
                return;
            };
            let queue = &mut self.queue;
            let polled = guarded(|| source.poll_events(cx, queue));
            for event in self.queue.drain(..) {
                line(frame, &event);
            }
            match polled {
                Ok(Poll::Ready(true)) => {}
                Ok(Poll::Pending) => return,
                Ok(Poll::Ready(false)) => self.source = None,
                Err(panicked) => {
                    line(frame, &panicked.body().to_string());
                    self.source = None;
                }
            }
        }
    }
}

/// JSON texts hold no raw line ends, so an event is one line.
fn line(frame: &mut Vec<u8>, event: &str) {
    frame.extend_from_slice(b"data: ");
    frame.extend_from_slice(event.as_bytes());
    frame.extend_from_slice(b"\n\n");
}

impl<S: Events> hyper::body::Body for EventBody<S> {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let this = &mut *self;
        let mut frame = Vec::new();
        this.fill(cx, &mut frame);
        if frame.is_empty() {
            if this.source.is_none() {
                return Poll::Ready(None);
            }
            if this.quiet.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
            frame.extend_from_slice(b": waiting\n\n");
        }
        this.quiet.as_mut().reset(Instant::now() + this.keep_alive);
        Poll::Ready(Some(Ok(Frame::data(frame.into()))))
    }
}
