// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the HTTP side needs of the engine, behind one object-safe trait.
//!
//! The real engine is model-engine's; tests bring a scripted one. The face says nothing of devices or models: requests
//! go in, events come out, and a stream that is dropped is a request that is cancelled.

use std::sync::Arc;
use std::task::{Context, Poll};

use metrale_sampling::{Sampling, SamplingFields};
use metrale_scheduler::{Event, Refusal};
pub use metrale_telemetry::EngineStats;
use tokio::sync::mpsc::UnboundedReceiver;

use crate::api::error::Room;
use crate::text_face::{ChatTemplate, TextModel};

/// Whether the engine can answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EngineState {
    /// Weights are being read or programs recorded.
    Loading,
    /// It takes requests.
    Ready,
    /// What ran has failed, and the engine is being made fit again, for this reason. It takes requests, and they wait.
    Recovering(String),
    /// It finishes what it has and takes no more.
    Draining,
    /// It is broken, and why.
    Failed(String),
}

/// One answer to generate.
pub type Request = metrale_scheduler::Request<Sampling>;

/// The engine.
pub trait Engine: Send + Sync {
    /// Starts an answer. `request.id` is the engine's to choose: what stands there is replaced.
    ///
    /// # Errors
    /// [`Refusal`]; nothing of the request is kept.
    fn generate(&self, request: Request) -> Result<EventStream, Refusal>;

    /// Whether it can answer.
    fn state(&self) -> EngineState;

    /// Its counters now.
    fn stats(&self) -> EngineStats;

    /// Fails what it has, with a fault of kind [`Shutdown`](metrale_scheduler::FaultKind::Shutdown), and takes no more. It does
    /// not wait for that.
    fn shut_down(&self);
}

/// Events of one answer, in order; the last is `Finished` or `Failed`. Dropped before that, it cancels the request.
pub struct EventStream {
    receiver: UnboundedReceiver<Event>,
    cancel: Option<Box<dyn FnOnce() + Send>>,
}

impl EventStream {
    /// What `receiver` gives. `cancel` is called if the stream is dropped before its last event.
    pub fn new(
        receiver: UnboundedReceiver<Event>,
        cancel: impl FnOnce() + Send + 'static,
    ) -> EventStream {
        EventStream {
            receiver,
            cancel: Some(Box::new(cancel)),
        }
    }

    /// The next event; `None` after the last, or if the engine went away without one.
    pub fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Event>> {
        let event = self.receiver.poll_recv(cx);
        if matches!(&event, Poll::Ready(e) if e.as_ref().is_none_or(Event::is_last)) {
            self.cancel = None;
        }
        event
    }
}

impl Drop for EventStream {
    fn drop(&mut self) {
        if let Some(cancel) = self.cancel.take() {
            cancel();
        }
    }
}

/// A sampling default and where it came from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sourced<T> {
    /// The value.
    pub value: T,
    /// Its source.
    pub source: Source,
}

/// Who set a default; the order of authority is downward from the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// A flag or variable of this server.
    Flag,
    /// The checkpoint's generation_config.
    GenerationConfig,
    /// OpenAI's documented default.
    OpenAi,
}

/// What a request gets that leaves a sampling field out.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SamplingDefaults {
    /// Softmax temperature; 0 = greedy.
    pub temperature: Sourced<f64>,
    /// Nucleus mass; 1 = off.
    pub top_p: Sourced<f64>,
    /// Candidates kept; 0 = off.
    pub top_k: Sourced<u32>,
    /// Smallest probability relative to the largest; 0 = off.
    pub min_p: Sourced<f64>,
    /// Multiplicative penalty over prompt and output; 1 = off.
    pub repetition_penalty: Sourced<f64>,
    /// Tokens to generate at most; `None`: 16 for completions, what the context leaves for chat.
    pub max_tokens: Sourced<Option<u32>>,
}

impl SamplingDefaults {
    /// The fields of a request that leaves all of them out.
    #[must_use]
    pub fn fields(&self) -> SamplingFields {
        SamplingFields {
            temperature: self.temperature.value,
            top_p: self.top_p.value,
            min_p: self.min_p.value,
            top_k: i64::from(self.top_k.value),
            repetition_penalty: self.repetition_penalty.value,
            ..SamplingFields::default()
        }
    }
}

impl Default for SamplingDefaults {
    /// OpenAI's.
    fn default() -> Self {
        fn openai<T>(value: T) -> Sourced<T> {
            Sourced {
                value,
                source: Source::OpenAi,
            }
        }
        SamplingDefaults {
            temperature: openai(1.0),
            top_p: openai(1.0),
            top_k: openai(0),
            min_p: openai(0.0),
            repetition_penalty: openai(1.0),
            max_tokens: openai(None),
        }
    }
}

/// A setting of the server that /serve-config shows, beside the sampling defaults.
#[derive(Clone, Debug, PartialEq)]
pub struct Setting {
    /// Its name, as the flag spells it.
    pub name: String,
    /// Its effective value.
    pub value: serde_json::Value,
    /// Where it came from: `flag`, `env METRALE_...`, `default`, `measured`, ...
    pub source: String,
}

/// What is known of the model once it is loaded.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelCard {
    /// Most tokens of prompt and answer together.
    pub max_model_len: u32,
    /// Whether the KV pool bounds them, and not the context.
    pub pool_bound: bool,
    /// The numerics digest, `system_fingerprint` of every answer.
    pub digest: String,
    /// Seconds since 1970 of the checkpoint or the load; `created` in the list of models.
    pub created: u64,
    /// Sampling defaults.
    pub defaults: SamplingDefaults,
    /// Whether requests are served by their priority.
    pub by_priority: bool,
    /// Other effective settings.
    pub settings: Vec<Setting>,
}

impl ModelCard {
    /// What a sequence can hold.
    #[must_use]
    pub fn room(&self) -> Room {
        Room {
            tokens: u64::from(self.max_model_len),
            pool: self.pool_bound,
        }
    }
}

/// A loaded model: all that the HTTP side needs to serve it.
#[derive(Clone)]
pub struct ServedModel {
    /// The engine.
    pub engine: Arc<dyn Engine>,
    /// The tokenizer.
    pub text: Arc<dyn TextModel>,
    /// The chat template; without one, chat requests are refused by name.
    pub template: Option<Arc<dyn ChatTemplate>>,
    /// Facts and defaults.
    pub card: ModelCard,
}
