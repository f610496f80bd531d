// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the team's threads share. The protocol is described in [`super`].

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use super::futex::Parking;
use super::sync::{AtomicBool, AtomicU32, AtomicU64, Guarded, Mutex, MutexGuard, fence};
use super::{Outcome, TeamOptions, Ticket, Work};
use crate::scratch::Scratch;

/// Failures that are remembered.
const REMEMBERED: usize = 64;
/// Pauses between two looks at the clock while spinning: about a microsecond.
const PAUSES: u32 = if cfg!(loom) { 1 } else { 32 };

/// On its own cache lines: neighbours on x86 are fetched in pairs.
#[repr(align(128))]
struct Apart<T>(T);

/// The launch that is running.
struct Current {
    work: Option<Arc<dyn Work>>,
    ticket: Ticket,
    launch: usize,
    tiles: u32,
}

/// Whom to wake for a launch.
#[derive(Clone, Copy)]
enum Wake {
    /// Every thread: a step begins.
    All,
    /// As many as there are tiles besides the publishing thread's.
    Helpers,
}

#[derive(Default)]
struct Queue {
    waiting: VecDeque<Arc<dyn Work>>,
    submitted: Ticket,
    running: bool,
    failures: VecDeque<(Ticket, Outcome)>,
}

pub(super) struct Shared {
    cursor: Apart<AtomicU64>,
    done: Apart<AtomicU32>,
    /// Written by the thread with the right to advance; read by threads that hold a tile.
    current: Guarded<Current>,
    failed: AtomicBool,
    queue: Mutex<Queue>,
    /// Bumped to wake parked workers.
    wake: Apart<Parking>,
    parked: AtomicU32,
    completed: Apart<AtomicU64>,
    /// Bumped after each completion, to park on.
    completed_word: Parking,
    waiters: AtomicU32,
    stop: AtomicBool,
    threads: u32,
    spin: Duration,
}

// SAFETY: `current` is the only part that is not shareable by itself. It is written only with the right to advance, which
// one thread has at a time (it finished the last tile, or it set `running` under the lock), and read only between taking a
// tile and counting it as done; while a taken tile is not counted, nobody has the right to advance.
unsafe impl Sync for Shared {}
// SAFETY: as above; `Work` is Send and Sync.
unsafe impl Send for Shared {}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared")
            .field("threads", &self.threads)
            .field("completed", &self.completed.0.load(Ordering::Relaxed))
            .finish_non_exhaustive()
    }
}

impl Shared {
    pub(super) fn new(options: &TeamOptions) -> Shared {
        let current = Current {
            work: None,
            ticket: 0,
            launch: 0,
            tiles: 0,
        };
        Shared {
            cursor: Apart(AtomicU64::new(0)),
            done: Apart(AtomicU32::new(0)),
            current: Guarded::new(current),
            failed: AtomicBool::new(false),
            queue: Mutex::new(Queue::default()),
            wake: Apart(Parking::default()),
            parked: AtomicU32::new(0),
            completed: Apart(AtomicU64::new(0)),
            completed_word: Parking::default(),
            waiters: AtomicU32::new(0),
            stop: AtomicBool::new(false),
            threads: options.threads.max(1) as u32,
            spin: options.spin,
        }
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        // No code that can panic runs under the lock.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn submit(&self, work: Arc<dyn Work>) -> Ticket {
        let mut queue = self.queue();
        queue.submitted += 1;
        let ticket = queue.submitted;
        if queue.running {
            queue.waiting.push_back(work);
            return ticket;
        }
        queue.running = true;
        drop(queue);
        // SAFETY: `running` was false, so nobody had the right to advance; setting it took the right.
        unsafe { self.current.with_mut(|current| self.begin(current, work)) };
        self.publish_next(Wake::All);
        ticket
    }

    pub(super) fn submitted(&self) -> Ticket {
        self.queue().submitted
    }

    pub(super) fn poll(&self, ticket: Ticket) -> Option<Outcome> {
        if self.completed.0.load(Ordering::Acquire) < ticket {
            return None;
        }
        let queue = self.queue();
        let failure = queue.failures.iter().find(|(t, _)| *t == ticket);
        Some(failure.map_or(Outcome::Done, |(_, outcome)| outcome.clone()))
    }

    pub(super) fn wait(&self, ticket: Ticket, timeout: Duration) -> Option<Outcome> {
        let deadline = Instant::now().checked_add(timeout);
        loop {
            if let Some(outcome) = self.poll(ticket) {
                return Some(outcome);
            }
            let left = deadline.map(|d| d.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                return None;
            }
            self.waiters.fetch_add(1, Ordering::Relaxed);
            fence(Ordering::SeqCst); // Pairs with that of `end_work`.
            let seen = self.completed_word.load();
            if self.completed.0.load(Ordering::Acquire) < ticket {
                self.completed_word.wait(seen, left);
            }
            self.waiters.fetch_sub(1, Ordering::Relaxed);
        }
    }

    pub(super) fn stop(&self) {
        let last = self.submitted();
        let _ = self.wait(last, Duration::MAX);
        self.stop.store(true, Ordering::Release);
        self.wake.0.bump();
        self.wake.0.wake(u32::MAX);
    }

    pub(super) fn work_until_stopped(&self) {
        let mut scratch = Scratch::default();
        while !self.stop.load(Ordering::Relaxed) {
            let seen = self.cursor.0.load(Ordering::Acquire);
            if seen as u32 == 0 {
                self.rest(seen);
            } else if self
                .cursor
                .0
                .compare_exchange_weak(seen, seen - 1, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok()
            {
                self.run_tile(seen as u32, &mut scratch);
            }
        }
    }

    /// Runs the tile that was taken when `remaining` tiles were left.
    fn run_tile(&self, remaining: u32, scratch: &mut Scratch) {
        // SAFETY: this thread holds a tile that is not counted as done: nobody writes `current`. The Acquire of the
        // exchange saw the Release of the store that published the launch.
        let tiles = unsafe { self.current.with(|c| self.run_one(c, remaining, scratch)) };
        if self.done.0.fetch_add(1, Ordering::AcqRel) + 1 == tiles {
            // The last tile was counted: this thread has the right to advance.
            self.publish_next(Wake::Helpers);
        }
    }

    /// Returns how many tiles the launch has.
    fn run_one(&self, current: &Current, remaining: u32, scratch: &mut Scratch) -> u32 {
        let tiles = current.tiles;
        if !self.failed.load(Ordering::Relaxed)
            && let Some(work) = &current.work
        {
            let (launch, tile) = (current.launch, tiles - remaining);
            let run = catch_unwind(AssertUnwindSafe(|| work.run(launch, tile, scratch)));
            let failure = match run {
                Ok(Ok(())) => None,
                Ok(Err(what)) => Some(what),
                Err(panic) => Some(format!("panic: {}", message(&*panic))),
            };
            if let Some(what) = failure {
                self.fail(current.ticket, launch, what);
            }
        }
        tiles
    }

    /// Remembers the first failure of a work and has the rest of it skipped.
    fn fail(&self, ticket: Ticket, launch: usize, what: String) {
        if self.failed.swap(true, Ordering::AcqRel) {
            return;
        }
        let mut queue = self.queue();
        if queue.failures.len() == REMEMBERED {
            queue.failures.pop_front();
        }
        queue
            .failures
            .push_back((ticket, Outcome::Failed { launch, what }));
    }

    fn begin(&self, current: &mut Current, work: Arc<dyn Work>) {
        current.work = Some(work);
        current.ticket += 1;
        current.launch = 0;
        current.tiles = 0;
        self.failed.store(false, Ordering::Relaxed);
    }

    /// Publishes the next launch that has tiles, of this work or of the next in the queue; ends the works on the way.
    /// Needs the right to advance and gives it up.
    fn publish_next(&self, wake: Wake) {
        loop {
            // SAFETY: this thread has the right to advance.
            match unsafe { self.current.with_mut(|current| self.next_launch(current)) } {
                Some(tiles) => return self.publish(tiles, wake),
                None if self.end_work() => {}
                None => return,
            }
        }
    }

    /// Goes on to the next launch that has tiles; `None`: the work has none left, or has failed.
    fn next_launch(&self, current: &mut Current) -> Option<u32> {
        while let Some(work) = &current.work {
            // `tiles` is 0 before the first launch of a work: nothing to step over yet.
            if current.tiles > 0 {
                current.launch += 1;
            }
            let launch = current.launch;
            if launch >= work.launches() || self.failed.load(Ordering::Acquire) {
                return None;
            }
            match catch_unwind(AssertUnwindSafe(|| work.tiles(launch))) {
                Ok(0) => {
                    current.launch += 1;
                    current.tiles = 0;
                }
                Ok(tiles) => {
                    current.tiles = tiles;
                    return Some(tiles);
                }
                Err(panic) => {
                    let what = format!("panic: {}", message(&*panic));
                    self.fail(current.ticket, launch, what);
                }
            }
        }
        None
    }

    fn publish(&self, tiles: u32, wake: Wake) {
        self.done.0.store(0, Ordering::Relaxed);
        let launch = (self.cursor.0.load(Ordering::Relaxed) >> 32).wrapping_add(1);
        self.cursor
            .0
            .store(launch << 32 | u64::from(tiles), Ordering::Release);
        match wake {
            Wake::All => self.wake_workers(u32::MAX),
            // A launch of one tile is run by the thread that publishes it, or by another that is awake.
            Wake::Helpers if tiles > 1 => self.wake_workers(tiles - 1),
            Wake::Helpers => {}
        }
    }

    fn wake_workers(&self, n: u32) {
        // Pairs with the counting in `park`: either this sees the parked thread, or that sees the new cursor.
        fence(Ordering::SeqCst);
        if self.parked.load(Ordering::Relaxed) > 0 {
            self.wake.0.bump();
            self.wake.0.wake(n);
        }
    }

    /// Ends the current work and begins the next. Whether there was one; if not, the right to advance is given up.
    fn end_work(&self) -> bool {
        // SAFETY: this thread has the right to advance.
        let (work, ticket) = unsafe { self.current.with_mut(|c| (c.work.take(), c.ticket)) };
        drop(work);
        let mut queue = self.queue();
        let next = queue.waiting.pop_front();
        let more = next.is_some();
        match next {
            // SAFETY: as above; the right is given up only where `running` becomes false.
            Some(work) => unsafe { self.current.with_mut(|c| self.begin(c, work)) },
            None => queue.running = false,
        }
        // Under the lock, so that a submit that finds the team idle also finds the ticket complete.
        self.completed.0.store(ticket, Ordering::Release);
        drop(queue);
        self.completed_word.bump();
        fence(Ordering::SeqCst); // Either this sees the waiter, or that sees the ticket complete.
        if self.waiters.load(Ordering::Relaxed) > 0 {
            self.completed_word.wake(u32::MAX);
        }
        more
    }

    /// Spins while the cursor stays `seen`, then parks.
    fn rest(&self, seen: u64) {
        let begin = Instant::now();
        loop {
            for _ in 0..PAUSES {
                if self.cursor.0.load(Ordering::Relaxed) != seen {
                    return;
                }
                std::hint::spin_loop();
            }
            if begin.elapsed() >= self.spin {
                break;
            }
        }
        self.park(seen);
    }

    fn park(&self, seen: u64) {
        self.parked.fetch_add(1, Ordering::Relaxed);
        let word = self.wake.0.load();
        fence(Ordering::SeqCst); // Pairs with that of `wake_workers`.
        if self.cursor.0.load(Ordering::Relaxed) == seen && !self.stop.load(Ordering::Acquire) {
            self.wake.0.wait(word, None);
        }
        self.parked.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The text of a panic.
fn message(panic: &(dyn std::any::Any + Send)) -> String {
    match panic.downcast_ref::<&str>() {
        Some(text) => (*text).to_owned(),
        None => panic
            .downcast_ref::<String>()
            .cloned()
            .unwrap_or_else(|| "(no message)".into()),
    }
}
