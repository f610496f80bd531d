// SPDX-License-Identifier: MIT OR Apache-2.0
//! The persistent team: threads that walk a program's launches together.
//!
//! A [`Work`] is a list of launches, each cut into tiles. All of the state that threads contend for is two words:
//!
//! - `cursor`: number of the current launch (of all time) in the high half, tiles not yet taken in the low half. A thread
//!   takes a tile by one compare-exchange from `c` to `c - 1`. The launch number makes a late thread harmless: its
//!   exchange fails once the team has moved on.
//! - `done`: tiles finished in the current launch. Who finishes the last one has the *right to advance*: it alone writes
//!   the description of the next launch, then publishes it by storing the cursor.
//!
//! So a launch ends when its tiles are done, never when all threads have arrived; a thread that the system has taken off
//! its core holds up at most the tile it is in. A thread without a tile spins for [`TeamOptions::spin`] and then parks;
//! it is woken when a launch has more tiles than threads awake. A submit to an idle team is one wake.
//!
//! A panic in a tile is caught: the rest of its work is skipped, its [`Outcome`] says so, and the team goes on.

mod futex;
#[cfg(all(test, loom))]
mod model;
mod shared;
mod sync;

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use crate::scratch::Scratch;
use shared::Shared;

/// Something to run: launches in order, each a number of tiles.
pub trait Work: Send + Sync {
    /// How many launches.
    fn launches(&self) -> usize;
    /// How many tiles a launch has. Asked once, when every earlier launch has ended.
    fn tiles(&self, launch: usize) -> u32;
    /// Runs a tile. Called once for each tile of the current launch, from any thread.
    ///
    /// # Errors
    /// A message; the rest of the work is then skipped.
    fn run(&self, launch: usize, tile: u32, scratch: &mut Scratch) -> Result<(), String>;
}

/// How a team is made.
#[derive(Clone, Debug)]
pub struct TeamOptions {
    /// Threads, at least 1.
    pub threads: usize,
    /// Cores to pin the threads to, one each, in order, of [`allowed_cores`]; empty = the system places them.
    pub affinity: Vec<usize>,
    /// How long a thread without a tile spins before it parks. Long enough for the short launches between two
    /// contractions, short against a scheduler's time slice.
    pub spin: Duration,
}

impl TeamOptions {
    /// `threads` threads, placed by the system.
    #[must_use]
    pub fn new(threads: usize) -> TeamOptions {
        TeamOptions {
            threads,
            affinity: Vec::new(),
            spin: Duration::from_micros(50),
        }
    }
}

/// The cores that the process may use, ascending; empty where the system does not say (only Linux does), and then no
/// thread can be pinned.
#[must_use]
pub fn allowed_cores() -> Vec<usize> {
    futex::allowed()
}

/// Number of a submitted work, ascending from 1.
pub type Ticket = u64;

/// What became of a work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Every tile ran.
    Done,
    /// A tile failed or panicked in this launch; what followed was skipped.
    Failed {
        /// Index of the launch.
        launch: usize,
        /// The message.
        what: String,
    },
}

/// Worker threads that run [`Work`]s in the order of submission. Dropped, it ends what was submitted and joins.
#[derive(Debug)]
pub struct Team {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

impl Team {
    /// Starts the threads.
    ///
    /// # Errors
    /// If the system refuses a thread.
    pub fn new(options: &TeamOptions) -> std::io::Result<Team> {
        let shared = Arc::new(Shared::new(options));
        let mut team = Team {
            shared,
            threads: Vec::new(),
        };
        for i in 0..options.threads.max(1) {
            let shared = team.shared.clone();
            let core = options.affinity.get(i).copied();
            let thread = std::thread::Builder::new()
                .name(format!("met-cpu-{i}"))
                .spawn(move || {
                    if let Some(core) = core {
                        futex::pin(core);
                    }
                    shared.work_until_stopped();
                })?;
            team.threads.push(thread);
        }
        Ok(team)
    }

    /// How many threads.
    #[must_use]
    pub fn threads(&self) -> usize {
        self.threads.len()
    }

    /// Queues a work; it begins when all earlier ones have ended.
    pub fn submit(&self, work: Arc<dyn Work>) -> Ticket {
        self.shared.submit(work)
    }

    /// The newest ticket.
    #[must_use]
    pub fn submitted(&self) -> Ticket {
        self.shared.submitted()
    }

    /// What became of a work, `None` while it is not done. Failures of the last 64 failed works are remembered.
    #[must_use]
    pub fn poll(&self, ticket: Ticket) -> Option<Outcome> {
        self.shared.poll(ticket)
    }

    /// Parks until the work has ended, at most `timeout`.
    #[must_use]
    pub fn wait(&self, ticket: Ticket, timeout: Duration) -> Option<Outcome> {
        self.shared.wait(ticket, timeout)
    }
}

impl Drop for Team {
    fn drop(&mut self) {
        self.shared.stop();
        for thread in self.threads.drain(..) {
            // A worker's panic was reported when it happened; there is nothing to add here.
            let _ = thread.join();
        }
    }
}
