// SPDX-License-Identifier: MIT OR Apache-2.0
//! From a validated request to the engine, and from its events to a response.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use axum::response::Response;
use metrale_scheduler::TokenConstraint;
use metrale_telemetry::{Meter, Stage};
use tokio::time::timeout;

use super::app::{App, InFlight};
use super::ask::{options, refused, request};
use super::deadline::Arrival;
use super::error::json;
use super::events;
use super::shape::Shape;
use super::stages::Stages;
use super::stream::Stream;
use crate::api::answer::{Answer, Extension};
use crate::api::error::ApiError;
use crate::api::sampling::Generation;
use crate::completion::choice::Delta;
use crate::completion::echo::Echo;
use crate::completion::run::{Output, Run};
use crate::engine_face::{Request, ServedModel};

/// A prompt, ready for the engine.
pub(super) struct Prepared {
    /// Its tokens, at least one.
    pub(super) ids: Arc<[u32]>,
    /// It is to stand before its answers.
    pub(super) echo: Option<Echo>,
}

/// What a request asks for, beside its prompts.
pub(super) struct Wanted<'a> {
    pub(super) generation: &'a Generation,
    /// What its tokens may be.
    pub(super) constraint: Option<Box<dyn TokenConstraint>>,
    /// When it came.
    pub(super) arrival: Arrival,
    /// Where cached prefixes are looked for.
    pub(super) namespace: u64,
    /// Alternatives at each token.
    pub(super) logprobs: Option<u32>,
    /// Tokens if the request and the defaults say nothing; `None`: what the context leaves.
    pub(super) length: Option<u32>,
}

/// A request whose answers are being generated.
pub(super) struct Answering<S> {
    app: Arc<App>,
    pub(super) run: Run,
    pub(super) shape: S,
    meter: Meter,
    stages: Stages,
    pub(super) head: Head,
    /// Outputs that were awaited before the response began.
    early: VecDeque<Output>,
    _in_flight: InFlight,
}

impl<S> Drop for Answering<S> {
    /// Without effect on one that ended.
    fn drop(&mut self) {
        let tokens = self.run.usage().completion_tokens;
        self.stages.end(&self.app, tokens, Some("client_left"));
    }
}

/// What all events of an answer have in common.
pub(super) struct Head {
    id: String,
    created: u64,
    model: String,
    digest: String,
    seed: u64,
    stream: bool,
    pub(super) include_usage: bool,
}

impl Head {
    /// An answer or event with these choices.
    pub(super) fn answer<C>(&self, object: &'static str, choices: Vec<C>) -> Answer<C> {
        Answer {
            id: self.id.clone(),
            object,
            created: self.created,
            model: self.model.clone(),
            choices,
            usage: None,
            system_fingerprint: self.digest.clone(),
            metrale: None,
        }
    }

    /// This server's extension.
    pub(super) fn extension(&self) -> Option<Extension> {
        Some(Extension {
            seed: self.seed.cast_signed(),
        })
    }
}

impl<S: Shape> Answering<S> {
    /// Hands every choice of every prompt to the engine. If one is refused, none runs.
    pub(super) fn start(
        app: &Arc<App>,
        served: &ServedModel,
        name: String,
        prompts: Vec<Prepared>,
        wanted: &Wanted<'_>,
        shape: S,
    ) -> Result<Answering<S>, ApiError> {
        let start = Instant::now();
        let in_flight = app.enter();
        let generation = wanted.generation;
        let n = generation.n;
        let mut run = Run::new(Arc::clone(&served.text), n as usize);
        for prompt in &prompts {
            let request = request(served, prompt, wanted)?;
            let options = options(prompt, wanted);
            for choice in 0..n {
                let request = Request {
                    choice,
                    ..request.clone()
                };
                let events = served.engine.generate(request).map_err(refused)?;
                run.add(events, &options, prompt.echo.clone(), prompt.ids.len());
            }
        }
        let id = app.fresh_id(S::PREFIX);
        Ok(Answering {
            stages: Stages::new(app, &id, run.choices(), run.usage().prompt_tokens),
            meter: Meter::new(start, run.choices()),
            run,
            shape,
            head: Head {
                id,
                created: app.ambient.unix_seconds(),
                model: name,
                digest: served.card.digest.clone(),
                seed: generation.sampling.seed(),
                stream: generation.stream,
                include_usage: generation.include_usage,
            },
            early: VecDeque::new(),
            app: Arc::clone(app),
            _in_flight: in_flight,
        })
    }

    /// The response: one JSON object, or a stream of events.
    pub(super) async fn respond(mut self) -> Result<Response, ApiError> {
        if !self.head.stream {
            return self.whole().await.map(|answer| json(&answer));
        }
        // A failure before the first output still gets its own status; but a proxy is not kept waiting for long.
        let keep_alive = self.app.config.limits.keep_alive;
        if let Ok(first) = timeout(keep_alive, poll_fn(|cx| self.poll_output(cx))).await
            && let Some(output) = first.transpose()?
        {
            self.early.push_back(output);
        }
        let stream = Stream::new(self);
        Ok(events::response(stream, keep_alive))
    }

    async fn whole(&mut self) -> Result<Answer<S::Whole>, ApiError> {
        let mut all: Vec<Delta> = (0..self.run.choices()).map(|_| Delta::default()).collect();
        while let Some(output) = poll_fn(|cx| self.poll_output(cx)).await.transpose()? {
            all[output.index].append(output.delta);
        }
        let choices = all.into_iter().zip(0..);
        let choices = choices.map(|(delta, index)| self.shape.whole(index, delta));
        let choices = choices.collect();
        Ok(Answer {
            usage: Some(Some(self.run.usage())),
            metrale: self.head.extension(),
            ..self.head.answer(S::WHOLE, choices)
        })
    }

    /// The run's next output, counted and timed.
    pub(super) fn poll_output(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Output, ApiError>>> {
        if let Some(output) = self.early.pop_front() {
            return Poll::Ready(Some(Ok(output)));
        }
        let polled = self.run.poll_next(cx);
        let (app, stages) = (&self.app, &mut self.stages);
        if self.run.admitted() {
            stages.reach(app, Stage::Prefill);
        }
        let metrics = &app.metrics;
        match &polled {
            Poll::Ready(Some(Ok(output))) => {
                if output.tokens > 0 {
                    stages.reach(app, Stage::Decode);
                }
                self.meter.tokens(metrics, output.index, output.tokens);
                if let Some(finish) = output.delta.finish {
                    self.meter.ended(metrics, finish.name());
                }
            }
            Poll::Ready(Some(Err(e))) => {
                stages.end(app, self.run.usage().completion_tokens, Some(e.code()));
                metrics.failure();
            }
            Poll::Ready(None) => {
                let usage = self.run.usage();
                stages.end(app, usage.completion_tokens, None);
                self.meter
                    .done(metrics, usage.prompt_tokens, usage.completion_tokens);
            }
            _ => {}
        }
        polled
    }
}
