// SPDX-License-Identifier: MIT OR Apache-2.0
//! The open connections: how many, and which of them idle.
//!
//! At the limit the one that has idled longest is closed, so that ten thousand idle ones keep nobody out. A connection
//! idles from its start, or from the end of a response, until the next request's header fields are complete.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use axum::body::{Body, Bytes};
use hyper::body::{Frame, SizeHint};
use tokio::sync::Notify;

/// All of them.
#[derive(Default)]
pub(super) struct Connections {
    table: Mutex<Table>,
    /// Told when one is closed.
    closed: Notify,
}

#[derive(Default)]
struct Table {
    open: HashMap<u64, Entry>,
    /// Counts starts, and ends of responses: larger is later.
    clock: u64,
}

struct Entry {
    /// The clock when it began to idle; `None`: it is busy.
    idle: Option<u64>,
    close: Arc<Notify>,
}

impl Connections {
    /// Enters a connection; the `Notify` says that it should close.
    pub(super) fn enter(self: &Arc<Self>) -> (Seat, Arc<Notify>) {
        let close = Arc::new(Notify::new());
        let mut table = self.lock();
        table.clock += 1;
        let id = table.clock;
        let entry = Entry {
            idle: Some(id),
            close: Arc::clone(&close),
        };
        table.open.insert(id, entry);
        let seat = Seat {
            id,
            all: Arc::clone(self),
        };
        (seat, close)
    }

    /// Waits until fewer than `limit` are open, closing the longest idle one for it.
    pub(super) async fn room(&self, limit: usize) {
        loop {
            let closed = self.closed.notified();
            if self.lock().open.len() < limit.max(1) {
                return;
            }
            self.close_idle();
            closed.await;
        }
    }

    /// Tells the longest idle one to close.
    pub(super) fn close_idle(&self) {
        let table = self.lock();
        let idle = table.open.values().filter(|e| e.idle.is_some());
        if let Some(entry) = idle.min_by_key(|e| e.idle) {
            entry.close.notify_one();
        }
    }

    /// Waits until none is open.
    pub(super) async fn none(&self) {
        loop {
            let closed = self.closed.notified();
            if self.lock().open.is_empty() {
                return;
            }
            closed.await;
        }
    }

    fn set(&self, id: u64, busy: bool) {
        let mut table = self.lock();
        table.clock += 1;
        let now = table.clock;
        if let Some(entry) = table.open.get_mut(&id) {
            entry.idle = (!busy).then_some(now);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        // Nothing under the lock can panic, so a poisoned one holds whole data.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A connection's place; it is open until this is dropped.
pub(super) struct Seat {
    id: u64,
    all: Arc<Connections>,
}

impl Seat {
    /// It is busy until the returned guard is dropped.
    pub(super) fn busy(&self) -> Busy {
        self.all.set(self.id, true);
        Busy {
            id: self.id,
            all: Arc::clone(&self.all),
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.all.lock().open.remove(&self.id);
        self.all.closed.notify_one();
        self.all.closed.notify_waiters();
    }
}

/// A request on a connection.
pub(super) struct Busy {
    id: u64,
    all: Arc<Connections>,
}

impl Busy {
    /// Keeps the connection busy until `body` is sent or dropped.
    pub(super) fn until_sent(self, body: Body) -> Body {
        Body::new(Held { body, _busy: self })
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.all.set(self.id, false);
    }
}

struct Held {
    body: Body,
    _busy: Busy,
}

impl hyper::body::Body for Held {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
