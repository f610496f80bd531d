// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the handlers share.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use metrale_telemetry::Metrics;
use tokio::sync::{Notify, Semaphore};

use super::feed::Readers;
use super::slot::ModelSlot;
use crate::api::error::ApiError;
use crate::api::limits::Limits;
use crate::api::sampling::Facts;
use crate::engine_face::ServedModel;

/// How the server is to behave; made once from flags.
#[derive(Clone, Debug, Default)]
pub struct HttpConfig {
    /// Names the model answers to, at least one; the first is shown.
    pub served_names: Vec<String>,
    /// Keys that are let in; empty: no key is needed.
    pub api_keys: Vec<String>,
    /// Host names this server answers to beside loopback ones (and, where it listens beyond loopback, any address).
    /// `*`: all.
    pub allowed_hosts: Vec<String>,
    /// Origins (`https://app.example`) whose web pages may use it. `*`: all.
    pub allowed_origins: Vec<String>,
    /// Whether the listener is bound beyond loopback, so that clients name it by its address.
    pub beyond_loopback: bool,
    /// Limits.
    pub limits: Limits,
}

/// Wall clock and randomness.
pub trait Ambient: Send + Sync {
    /// Seconds since 1970.
    fn unix_seconds(&self) -> u64;
    /// A random number.
    fn random(&self) -> u64;
}

/// The machine's clock, and randomness seeded by it.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemAmbient;

impl Ambient for SystemAmbient {
    fn unix_seconds(&self) -> u64 {
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        since.map_or(0, |d| d.as_secs())
    }

    fn random(&self) -> u64 {
        // A RandomState is seeded by the operating system, once a thread, and differs at every call.
        use std::hash::{BuildHasher, RandomState};
        RandomState::new().hash_one(self.unix_seconds())
    }
}

/// The server's state, shared by all connections.
pub struct App {
    /// How it behaves.
    pub config: HttpConfig,
    /// The model.
    pub slot: ModelSlot,
    /// Clock and randomness.
    pub ambient: Box<dyn Ambient>,
    pub(super) metrics: Metrics,
    /// Readers of /v1/events.
    pub(super) readers: Readers,
    /// Long tokenizations at once.
    pub(super) tokenizers: Arc<Semaphore>,
    /// KiB of request bodies in memory.
    pub(super) bodies: Arc<Semaphore>,
    in_flight: AtomicUsize,
    idle: Notify,
}

impl App {
    /// A server without a model yet.
    #[must_use]
    pub fn new(config: HttpConfig, ambient: Box<dyn Ambient>) -> Arc<App> {
        let name = config.served_names.first().cloned().unwrap_or_default();
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let bodies = (config.limits.bodies_bytes / 1024).min(Semaphore::MAX_PERMITS);
        Arc::new(App {
            config,
            slot: ModelSlot::default(),
            ambient,
            metrics: Metrics::new(&name),
            readers: Readers::default(),
            tokenizers: Arc::new(Semaphore::new(threads)),
            bodies: Arc::new(Semaphore::new(bodies)),
            in_flight: AtomicUsize::new(0),
            idle: Notify::new(),
        })
    }

    /// The model's name as the request calls it, which must be one of the served ones.
    pub(super) fn name(&self, asked: Option<&str>) -> Result<String, ApiError> {
        let served = &self.config.served_names;
        match asked {
            None => Ok(served.first().cloned().unwrap_or_default()),
            Some(name) if served.iter().any(|s| s == name) => Ok(name.to_owned()),
            Some(name) => Err(ApiError::ModelNotFound {
                asked: name.chars().take(128).collect(),
                served: served.join("`, `"),
            }),
        }
    }

    /// What validation needs to know.
    pub(super) fn facts<'a>(&'a self, served: &'a ServedModel) -> Facts<'a> {
        Facts {
            limits: &self.config.limits,
            vocab_size: served.text.vocab_size(),
            defaults: &served.card.defaults,
            fresh_seed: self.fresh_seed(),
            by_priority: served.card.by_priority,
        }
    }

    /// A seed that survives JSON numbers of every client: 53 bits.
    fn fresh_seed(&self) -> u64 {
        self.ambient.random() >> 11
    }

    /// `PREFIX-` and 24 hex digits.
    pub(super) fn fresh_id(&self, prefix: &str) -> String {
        let (high, low) = (self.ambient.random(), self.ambient.random() as u32);
        format!("{prefix}-{high:016x}{low:08x}")
    }

    /// Counts a request as in flight until the guard is dropped.
    pub(super) fn enter(self: &Arc<App>) -> InFlight {
        self.in_flight.fetch_add(1, Ordering::AcqRel);
        InFlight(Arc::clone(self))
    }

    /// Waits until no request is in flight.
    pub async fn wait_idle(&self) {
        loop {
            let notified = self.idle.notified();
            if self.in_flight.load(Ordering::Acquire) == 0 {
                return;
            }
            notified.await;
        }
    }
}

/// A request in flight.
pub(super) struct InFlight(Arc<App>);

impl Drop for InFlight {
    fn drop(&mut self) {
        if self.0.in_flight.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0.idle.notify_waiters();
        }
    }
}
