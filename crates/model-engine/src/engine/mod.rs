// SPDX-License-Identifier: MIT OR Apache-2.0
//! The engine: a model behind the scheduler's driver, on a thread of its own.

mod populate;

pub use populate::Populator;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use metrale_cache::{CacheOptions, KvCache, StateOptions, WindowOptions};
use metrale_core::{KV_BLOCK, StepLimits};
use metrale_sampling::Sampling;
use metrale_scheduler::{
    ClockRouter, Driver, Handle, LimitsError, Lookahead, PlannerLimits, Routers,
};

use crate::adapters::{
    CacheAccounts, Guess, Guesses, HostSpill, HostTier, ModelRouter, StepPace, TierError,
};
use crate::model::TransformerModel;
use crate::traits::Model;

/// How an engine runs. The model must have been planned for at least these limits.
#[derive(Clone, Debug)]
pub struct EngineOptions {
    /// Limits of the planner.
    pub limits: PlannerLimits,
    /// Report a hash of every logits row with its token. Default false; costs a pass over each row on the host.
    pub row_hashes: bool,
    /// A step that runs longer is a device fault. Default 120 s: the longest prefill step of a slow machine stays below.
    pub step_deadline: Duration,
    /// Key of the prefix cache's hash; a server takes a random one.
    pub hash_key: u64,
    /// How far ahead steps are planned. Default [`Lookahead::Slot`]: step n+1 is submitted while n runs, where the model takes
    /// ids that n leaves on its device; elsewhere it is planned meanwhile ([`Lookahead::Late`]). Answers do not depend on it.
    pub lookahead: Lookahead,
    /// Bytes of host memory for the KV of evicted prefixes and preempted sequences. Default 0: none is kept. Without effect
    /// where there is recurrent state.
    pub kv_host_bytes: u64,
    /// Tokens between two snapshots of recurrent state, a multiple of the KV block, where the plan has places for them. Default
    /// 256: a prefix of such a model is resumed from there, and prefill is cut there.
    pub snapshot_every: u32,
    /// Guesses how texts go on; `limits.max_drafts` says how far. Default none. Answers do not depend on it.
    pub guess: Option<Guess>,
}

impl Default for EngineOptions {
    fn default() -> Self {
        EngineOptions {
            limits: PlannerLimits::default(),
            row_hashes: false,
            step_deadline: Duration::from_secs(120),
            hash_key: 0,
            lookahead: Lookahead::Slot,
            kv_host_bytes: 0,
            snapshot_every: 256,
            guess: None,
        }
    }
}

/// The engine could not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The planner's limits contradict each other.
    #[error(transparent)]
    Limits(#[from] LimitsError),
    /// The memory for spilled KV cannot be had.
    #[error(transparent)]
    Host(#[from] TierError),
    /// A thread could not be started.
    #[error("the engine's thread could not be started: {0}")]
    Thread(#[from] io::Error),
}

/// The largest step of a planner's limits. The plan adds what follows from the model: tables, words of a mask.
#[must_use]
pub fn step_limits(limits: &PlannerLimits) -> StepLimits {
    StepLimits {
        rows: limits.max_rows,
        logits_rows: limits.max_logits_rows,
        slots: limits.max_num_seqs,
        blocks_per_slot: limits.max_seq_len.div_ceil(KV_BLOCK),
        tables: 1,
        history: limits.max_history,
        bias: limits.max_bias,
        mask_words: 0,
    }
}

/// A running engine. Dropping it drains: what runs is finished, then the thread ends. [`Engine::stop`] does not wait so long.
pub struct Engine {
    handle: Handle<Sampling>,
    thread: Option<JoinHandle<()>>,
    /// Whether the thread is left to itself.
    left: AtomicBool,
    _populator: Populator,
}

impl Engine {
    /// Starts the driver's thread over `model`, and the thread that populates the KV pool.
    ///
    /// # Errors
    /// [`StartError`].
    pub fn start(model: TransformerModel, options: EngineOptions) -> Result<Engine, StartError> {
        let (driver, populator) = assemble(model, options)?;
        let handle = driver.handle();
        let thread = driver.spawn("met-engine")?;
        Ok(Engine {
            handle,
            thread: Some(thread),
            left: AtomicBool::new(false),
            _populator: populator,
        })
    }

    /// Submits, cancels, drains; tells health and counts.
    #[must_use]
    pub fn handle(&self) -> &Handle<Sampling> {
        &self.handle
    }

    /// Fails what runs, and waits at most `within` for the step that is on the device. Whether the thread has ended; if not,
    /// it is left to that step, and nothing waits for it: it ends with the process at the latest.
    pub fn stop(&self, within: Duration) -> bool {
        self.handle.shutdown();
        let (since, ended) = (Instant::now(), || match &self.thread {
            Some(thread) => thread.is_finished(),
            None => true,
        });
        while !ended() && since.elapsed() < within {
            std::thread::sleep(Duration::from_millis(1));
        }
        self.left.store(!ended(), Ordering::Relaxed);
        ended()
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.handle.drain();
        if let Some(thread) = self.thread.take()
            && !self.left.load(Ordering::Relaxed)
        {
            // A panic of the loop was reported through health; there is nobody left to tell.
            let _ = thread.join();
        }
    }
}

/// Tokens between snapshots where there are none: whole blocks, beyond any context.
const NEVER: u32 = 1 << 30;

/// The engine's driver, to be stepped by hand in tests.
pub type EngineDriver = Driver<
    Routers<ModelRouter<TransformerModel>, MonotonicClock, HostSpill, Guesses>,
    CacheAccounts,
>;

/// Joins model, cache and planner; the KV pool populates while the populator lives.
///
/// # Errors
/// [`StartError`].
pub fn assemble(
    model: TransformerModel,
    options: EngineOptions,
) -> Result<(EngineDriver, Populator), StartError> {
    let plan = Arc::clone(model.plan());
    let populated = Arc::new(AtomicU32::new(0));
    let populator = Populator::start(&model, Arc::clone(&populated))?;
    let pace = StepPace::default();
    // Without a place for snapshots no prefix can be resumed, and no prefill need be cut.
    let every = match plan.snapshots {
        0 => NEVER,
        _ => options.snapshot_every,
    };
    let states = (!plan.slot_spans.is_empty()).then_some(StateOptions {
        snapshots: plan.snapshots,
        every,
    });
    let windows: Vec<WindowOptions> = plan.kv_groups[1..]
        .iter()
        .map(|group| WindowOptions {
            tokens: group.window.unwrap_or(u32::MAX),
            blocks: group.blocks as u32,
        })
        .collect();
    let tier = match options.kv_host_bytes {
        0 => None,
        _ if states.is_some() => None,
        bytes => {
            let device = Arc::clone(model.device());
            Some(HostTier::new(device, bytes, pace.clone())?)
        }
    };
    let mut cache = KvCache::new(CacheOptions {
        blocks: plan.kv_blocks as u32,
        slots: model.limits().slots,
        hash_key: options.hash_key,
        windows,
        states,
        ..CacheOptions::default()
    });
    if let Some(tier) = &tier {
        cache = cache.with_sink(Box::new(tier.clone()));
    }
    // A sequence with drafts is planned when its text is known: with two steps in flight it would have every second one.
    let lookahead = match options.guess {
        Some(_) => Lookahead::Late,
        None => options.lookahead,
    };
    let accounts = CacheAccounts::new(cache, populated);
    let router = ModelRouter::new(model, options.row_hashes, options.step_deadline)
        .with_lookahead(lookahead)
        .with_pace(pace);
    let routers = Routers {
        device: router,
        clock: MonotonicClock::default(),
        spill: HostSpill(tier),
        drafts: Guesses(options.guess),
    };
    Ok((Driver::new(options.limits, routers, accounts)?, populator))
}

/// The process's monotonic clock.
#[derive(Clone, Copy, Debug)]
pub struct MonotonicClock(Instant);

impl Default for MonotonicClock {
    fn default() -> Self {
        MonotonicClock(Instant::now())
    }
}

impl ClockRouter for MonotonicClock {
    fn now(&mut self) -> Duration {
        self.0.elapsed()
    }
}
