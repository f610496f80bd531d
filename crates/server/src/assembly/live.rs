// SPDX-License-Identifier: MIT OR Apache-2.0
//! The engine face over the real engine.

use std::time::Duration;

use metrale_model_engine::Engine;
use metrale_sampling::Sampling;
use metrale_scheduler::{Delivery, Event, Handle, Health, Refusal};
use tokio::sync::mpsc;

use crate::engine_face::{self, EngineState, EngineStats, EventStream, Request};

/// The running engine, as the HTTP side sees it.
pub struct LiveEngine {
    handle: Handle<Sampling>,
    engine: Engine,
}

impl LiveEngine {
    /// The face of `engine`.
    #[must_use]
    pub fn new(engine: Engine) -> LiveEngine {
        LiveEngine {
            handle: engine.handle().clone(),
            engine,
        }
    }

    /// Most tokens of a sequence, prompt and answer.
    #[must_use]
    pub fn capacity(&self) -> u32 {
        self.handle.capacity()
    }

    /// Takes no more requests and finishes those it has.
    pub fn drain(&self) {
        self.handle.drain();
    }

    /// Fails what runs, and stops. At most `within` for the step that is on the device; whether it has ended by then. A step
    /// that has not is left behind: dropping the engine does not wait for it.
    pub fn stop(&self, within: Duration) -> bool {
        self.engine.stop(within)
    }
}

impl engine_face::Engine for LiveEngine {
    fn generate(&self, mut request: Request) -> Result<EventStream, Refusal> {
        request.id = self.handle.fresh_id();
        request.history = request.sampling.needs_history();
        let id = request.id;
        // Unbounded for the engine's sake, which must never wait for a reader: a request holds at most its max_tokens
        // events, and the HTTP side cuts a reader that does not read.
        let (sender, receiver) = mpsc::unbounded_channel();
        let sink = move |event: Event| match sender.send(event) {
            Ok(()) => Delivery::Taken,
            Err(_) => Delivery::Gone,
        };
        self.handle.submit(request, Box::new(sink))?;
        let handle = self.handle.clone();
        Ok(EventStream::new(receiver, move || handle.cancel(id)))
    }

    fn shut_down(&self) {
        self.handle.shutdown();
    }

    fn state(&self) -> EngineState {
        match self.handle.health() {
            Health::Serving => EngineState::Ready,
            Health::Recovering(why) => EngineState::Recovering(why),
            Health::Draining => EngineState::Draining,
            Health::Failed(why) => EngineState::Failed(why),
            Health::Stopped => EngineState::Failed("the engine has stopped".into()),
        }
    }

    fn stats(&self) -> EngineStats {
        let stats = self.handle.stats();
        EngineStats {
            running: stats.running as u64,
            waiting: stats.waiting as u64,
            kv_blocks_used: u64::from(stats.kv_used),
            kv_blocks: u64::from(stats.kv_blocks),
            block_tokens: u64::from(metrale_core::KV_BLOCK),
            prefix_queries: stats.prompt_tokens,
            prefix_hits: stats.cached_tokens,
            preemptions: stats.preemptions,
            drafted: stats.drafted,
            accepted: stats.accepted,
            steps: stats.steps,
            restarts: stats.restarts,
        }
    }
}
