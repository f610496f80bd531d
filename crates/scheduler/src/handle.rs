// SPDX-License-Identifier: MIT OR Apache-2.0
//! The face that other threads see: submit, cancel, stop, look.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::event::EventSink;
use crate::limits::PlannerLimits;
use crate::request::{Refusal, Request, RequestId};

/// Sends requests to a [`Driver`](crate::Driver), from any thread. When the last handle is dropped the driver drains.
pub struct Handle<S> {
    shared: Arc<Shared<S>>,
}

/// Whether the driver serves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Health {
    /// It takes requests.
    Serving,
    /// A fault of the step or the device, or a panic: what ran has failed, and cache and device are being made fit again.
    /// Requests are queued.
    Recovering(String),
    /// It finishes what it has and takes no more.
    Draining,
    /// The device is lost, and why.
    Failed(String),
    /// It has ended.
    Stopped,
}

/// Counts of a driver: gauges as of the last step, counters since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Sequences that run.
    pub running: usize,
    /// Sequences that wait, preempted ones included.
    pub waiting: usize,
    /// Blocks of the KV pool.
    pub kv_blocks: u32,
    /// Blocks that could be handed out: free ones, and cached ones that no sequence uses.
    pub kv_available: u32,
    /// Blocks that sequences hold. While the pool is being populated, used and available ones are fewer than all.
    pub kv_used: u32,
    /// Steps done.
    pub steps: u64,
    /// Rows run, recomputed ones included.
    pub rows: u64,
    /// Prompt tokens of requests that finished or were cancelled.
    pub prompt_tokens: u64,
    /// Prompt tokens of admitted requests that came from the prefix cache.
    pub cached_tokens: u64,
    /// Tokens generated, stop tokens included.
    pub generated_tokens: u64,
    /// Draft tokens that were run.
    pub drafted: u64,
    /// Of these, those that became tokens of an answer.
    pub accepted: u64,
    /// Preemptions.
    pub preemptions: u64,
    /// Requests that finished, cancelled ones aside.
    pub finished: u64,
    /// Requests that were cancelled.
    pub cancelled: u64,
    /// Requests that failed.
    pub failed: u64,
    /// Times that all that ran failed, and the loop began again.
    pub restarts: u64,
}

pub(crate) struct Shared<S> {
    pub(crate) limits: PlannerLimits,
    pub(crate) capacity: u32,
    inbox: Mutex<Inbox<S>>,
    wake: Condvar,
    handles: AtomicUsize,
    ids: AtomicU64,
}

pub(crate) struct Inbox<S> {
    pub(crate) messages: VecDeque<Message<S>>,
    /// Submissions among the messages.
    pub(crate) submissions: usize,
    /// Requests that the planner has queued, as of its last step.
    pub(crate) queued: usize,
    pub(crate) health: Health,
    pub(crate) stats: Stats,
}

pub(crate) enum Message<S> {
    Submit(Request<S>, Box<dyn EventSink>),
    Cancel(RequestId),
    Shutdown,
}

impl<S> Handle<S> {
    /// Puts a request into the queue; its events go to `sink`, on the driver's thread.
    ///
    /// # Errors
    /// [`Refusal`]; the sink then gets no event.
    pub fn submit(&self, request: Request<S>, sink: Box<dyn EventSink>) -> Result<(), Refusal> {
        self.shared.limits.check(self.shared.capacity, &request)?;
        let mut inbox = self.shared.lock();
        match &inbox.health {
            Health::Serving | Health::Recovering(_) => {}
            Health::Draining | Health::Stopped => return Err(Refusal::ShuttingDown),
            Health::Failed(what) => return Err(Refusal::Failed(what.clone())),
        }
        let queued = inbox.submissions + inbox.queued;
        let limit = self.shared.limits.queue_len;
        if queued >= limit {
            return Err(Refusal::Busy { queued, limit });
        }
        inbox.submissions += 1;
        inbox.messages.push_back(Message::Submit(request, sink));
        self.shared.wake.notify_one();
        Ok(())
    }

    /// Ends a request; its sink gets its last event within a step. An id that is not live is ignored.
    pub fn cancel(&self, id: RequestId) {
        self.shared.send(Message::Cancel(id));
    }

    /// An id that this driver's handles have not given out before.
    #[must_use]
    pub fn fresh_id(&self) -> RequestId {
        RequestId(self.shared.ids.fetch_add(1, Ordering::Relaxed))
    }

    /// Takes no more requests; the driver ends when those it has are done.
    pub fn drain(&self) {
        self.shared.drain();
    }

    /// Fails what lives and ends the driver, after the step in flight.
    pub fn shutdown(&self) {
        self.shared.send(Message::Shutdown);
    }

    /// Whether the driver serves.
    #[must_use]
    pub fn health(&self) -> Health {
        self.shared.lock().health.clone()
    }

    /// Counts as of the last step.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.shared.lock().stats
    }

    /// The planner's limits.
    #[must_use]
    pub fn limits(&self) -> &PlannerLimits {
        &self.shared.limits
    }

    /// Most tokens of a sequence, prompt and answer: the context length, or what the whole KV pool holds.
    #[must_use]
    pub fn capacity(&self) -> u32 {
        self.shared.capacity
    }
}

impl<S> Clone for Handle<S> {
    fn clone(&self) -> Self {
        Handle::new(Arc::clone(&self.shared))
    }
}

impl<S> Drop for Handle<S> {
    fn drop(&mut self) {
        if self.shared.handles.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.shared.drain();
        }
    }
}

impl<S> Handle<S> {
    pub(crate) fn new(shared: Arc<Shared<S>>) -> Handle<S> {
        shared.handles.fetch_add(1, Ordering::AcqRel);
        Handle { shared }
    }
}

impl<S> Shared<S> {
    pub(crate) fn new(limits: PlannerLimits, capacity: u32) -> Shared<S> {
        Shared {
            limits,
            capacity,
            inbox: Mutex::new(Inbox {
                messages: VecDeque::new(),
                submissions: 0,
                queued: 0,
                health: Health::Serving,
                stats: Stats::default(),
            }),
            wake: Condvar::new(),
            handles: AtomicUsize::new(0),
            ids: AtomicU64::new(1),
        }
    }

    /// No code that can panic runs under the lock, so a poisoned one holds whole data.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Inbox<S>> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn send(&self, message: Message<S>) {
        let mut inbox = self.lock();
        if inbox.health != Health::Stopped {
            inbox.messages.push_back(message);
            self.wake.notify_one();
        }
    }

    fn drain(&self) {
        let mut inbox = self.lock();
        if matches!(inbox.health, Health::Serving | Health::Recovering(_)) {
            inbox.health = Health::Draining;
        }
        self.wake.notify_one();
    }

    /// Parks until a message, a change of health or `timeout`.
    pub(crate) fn park(&self, timeout: Option<Duration>) {
        let inbox = self.lock();
        if !inbox.messages.is_empty() || inbox.health != Health::Serving {
            return;
        }
        // A spurious wake costs one idle turn.
        match timeout {
            Some(t) => drop(self.wake.wait_timeout(inbox, t)),
            None => drop(self.wake.wait(inbox)),
        }
    }
}
