// SPDX-License-Identifier: MIT OR Apache-2.0
//! The open connections: how many, and which of them idle.
//!
//! Beyond the limit those that have idled longest are closed, so that ten thousand idle ones keep nobody out. A connection
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
    /// Told when one is closed or begins to idle.
    changed: Notify,
}

#[derive(Default)]
struct Table {
    open: HashMap<u64, Entry>,
    /// Counts starts, and ends of responses: larger is later.
    clock: u64,
    /// The one that was entered last.
    newest: u64,
}

struct Entry {
    state: State,
    close: Arc<Notify>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    /// Since this time of the clock.
    Idle(u64),
    /// A request is being read or answered.
    Busy,
    /// It was told to close.
    Closing,
}

impl Entry {
    fn idle(&self) -> Option<u64> {
        match self.state {
            State::Idle(since) => Some(since),
            State::Busy | State::Closing => None,
        }
    }
}

impl Connections {
    /// Enters a connection; the `Notify` says that it should close.
    pub(super) fn enter(self: &Arc<Self>) -> (Seat, Arc<Notify>) {
        let close = Arc::new(Notify::new());
        let mut table = self.lock();
        table.clock += 1;
        let id = table.clock;
        table.newest = id;
        let entry = Entry {
            state: State::Idle(id),
            close: Arc::clone(&close),
        };
        table.open.insert(id, entry);
        let seat = Seat {
            id,
            all: Arc::clone(self),
        };
        (seat, close)
    }

    /// Waits until no more than `limit` are open, closing some that idle for it.
    pub(super) async fn room(&self, limit: usize) {
        loop {
            let changed = self.changed.notified();
            if self.lock().open.len() <= limit.max(1) {
                return;
            }
            self.close_idle(limit / 16 + 1);
            changed.await;
        }
    }

    /// Tells the `count` longest idle ones to close, but not the one that came last.
    pub(super) fn close_idle(&self, count: usize) {
        let mut table = self.lock();
        let newest = table.newest;
        let others = table.open.iter_mut().filter(|(id, _)| **id != newest);
        let others = others.map(|(_, entry)| entry);
        let mut idle: Vec<_> = others.filter(|e| e.idle().is_some()).collect();
        idle.sort_unstable_by_key(|e| e.idle());
        for entry in idle.into_iter().take(count) {
            entry.state = State::Closing;
            entry.close.notify_one();
        }
    }

    /// Waits until none is open.
    pub(super) async fn none(&self) {
        loop {
            let changed = self.changed.notified();
            if self.lock().open.is_empty() {
                return;
            }
            changed.await;
        }
    }

    fn set(&self, id: u64, busy: bool) {
        let mut table = self.lock();
        table.clock += 1;
        let now = table.clock;
        if let Some(entry) = table.open.get_mut(&id) {
            entry.state = match busy {
                true => State::Busy,
                false => State::Idle(now),
            };
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
    /// Whether a request is being read or answered.
    pub(super) fn is_busy(&self) -> bool {
        let table = self.all.lock();
        table
            .open
            .get(&self.id)
            .is_some_and(|e| e.state == State::Busy)
    }

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
        self.all.changed.notify_waiters();
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
        self.all.changed.notify_waiters();
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
