// SPDX-License-Identifier: MIT OR Apache-2.0
//! GET /v1/events: what the server does, as server-sent events: requests as they start and end, and the engine's counts each
//! second. No event holds a prompt or an answer.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::extract::State;
use axum::response::Response;
use serde_json::{Value, json};
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::time::{Instant, Sleep, sleep};

use super::app::App;
use super::events::{self, Events};
use super::health;
use crate::api::error::ApiError;
use crate::engine_face::EngineState;

/// Events that wait for a reader; what comes when so many wait is counted and left out.
const WAITING: usize = 1024;
/// Readers at once.
const READERS: usize = 64;
/// How often the engine's counts are told.
const TICK: Duration = Duration::from_secs(1);

/// Whoever reads the events.
#[derive(Default)]
pub(super) struct Readers(Mutex<Vec<Reader>>);

struct Reader {
    to: Sender<Value>,
    missed: u64,
}

impl Readers {
    /// Tells all of them; makes the event only if there is one.
    pub(super) fn tell(&self, event: impl FnOnce() -> Value) {
        let mut readers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if readers.is_empty() {
            return;
        }
        let event = event();
        readers.retain_mut(|reader| {
            if reader.missed > 0 {
                let note = json!({"event": "missed", "count": reader.missed});
                if reader.to.try_send(note).is_ok() {
                    reader.missed = 0;
                }
            }
            if reader.to.try_send(event.clone()).is_err() {
                reader.missed += 1;
            }
            !reader.to.is_closed()
        });
    }

    /// One more reader, if there is a place.
    fn enter(&self) -> Option<Receiver<Value>> {
        let mut readers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        readers.retain(|r| !r.to.is_closed());
        (readers.len() < READERS).then(|| {
            let (to, from) = channel(WAITING);
            readers.push(Reader { to, missed: 0 });
            from
        })
    }
}

/// The stream.
pub(super) async fn feed(State(app): State<Arc<App>>) -> Result<Response, ApiError> {
    let Some(from) = app.readers.enter() else {
        return Err(ApiError::Busy {
            what: format!("{READERS} clients read the events already"),
            retry_after: TICK,
        });
    };
    let keep_alive = app.config.limits.keep_alive;
    let feed = Feed {
        from,
        tick: Box::pin(sleep(Duration::ZERO)),
        app,
    };
    Ok(events::response(feed, keep_alive))
}

struct Feed {
    app: Arc<App>,
    from: Receiver<Value>,
    tick: Pin<Box<Sleep>>,
}

impl Events for Feed {
    fn poll_events(&mut self, cx: &mut Context<'_>, out: &mut Vec<String>) -> Poll<bool> {
        if self.tick.as_mut().poll(cx).is_ready() {
            self.tick.as_mut().reset(Instant::now() + TICK);
            out.push(engine(&self.app).to_string());
            // A server that drains waits for its connections.
            if self.app.slot.state() == EngineState::Draining {
                return Poll::Ready(false);
            }
            return Poll::Ready(true);
        }
        match self.from.poll_recv(cx) {
            Poll::Ready(Some(event)) => {
                out.push(event.to_string());
                Poll::Ready(true)
            }
            Poll::Ready(None) => Poll::Ready(false),
            Poll::Pending => Poll::Pending,
        }
    }
}

fn engine(app: &App) -> Value {
    let (state, reason) = health::name(app.slot.state());
    let stats = app.slot.loaded().map(|served| served.engine.stats());
    let stats = stats.unwrap_or_default();
    json!({
        "event": "engine",
        "state": state,
        "reason": reason,
        "running": stats.running,
        "waiting": stats.waiting,
        "kv_blocks": stats.kv_blocks,
        "kv_blocks_used": stats.kv_blocks_used,
        "preemptions": stats.preemptions,
        "steps": stats.steps,
        "restarts": stats.restarts,
    })
}
