// SPDX-License-Identifier: MIT OR Apache-2.0
//! From a validated request to the engine, and from its events to a response.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use axum::response::Response;
use metrale_scheduler::{Refusal, RequestId};
use metrale_telemetry::Meter;
use tokio::time::timeout;

use super::app::{App, InFlight};
use super::error::json;
use super::events::{self, Events};
use super::shape::Shape;
use crate::api::answer::{Answer, Extension, Usage};
use crate::api::error::ApiError;
use crate::api::sampling::Generation;
use crate::completion::choice::{ChoiceOptions, Delta};
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
    /// Alternatives at each token.
    pub(super) logprobs: Option<u32>,
    /// Tokens if the request and the defaults say nothing; `None`: what the context leaves.
    pub(super) length: Option<u32>,
}

/// A request whose answers are being generated.
pub(super) struct Answering<S> {
    app: Arc<App>,
    run: Run,
    shape: S,
    meter: Meter,
    head: Head,
    /// Outputs that were awaited before the response began.
    early: VecDeque<Output>,
    _in_flight: InFlight,
}

struct Head {
    id: String,
    created: u64,
    model: String,
    digest: String,
    seed: u64,
    stream: bool,
    include_usage: bool,
}

impl Head {
    fn answer<C>(&self, object: &'static str, choices: Vec<C>) -> Answer<C> {
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

    fn extension(&self) -> Option<Extension> {
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
        Ok(Answering {
            meter: Meter::new(start, run.choices()),
            run,
            shape,
            head: Head {
                id: app.fresh_id(S::PREFIX),
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
        let count = self.run.choices();
        let stream = Stream {
            begun: vec![false; count],
            answering: self,
            first: true,
            done: false,
        };
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
    fn poll_output(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Output, ApiError>>> {
        if let Some(output) = self.early.pop_front() {
            return Poll::Ready(Some(Ok(output)));
        }
        let polled = self.run.poll_next(cx);
        let metrics = &self.app.metrics;
        match &polled {
            Poll::Ready(Some(Ok(output))) => {
                self.meter.tokens(metrics, output.index, output.tokens);
                if let Some(finish) = output.delta.finish {
                    self.meter.ended(metrics, finish.name());
                }
            }
            Poll::Ready(Some(Err(_))) => metrics.failure(),
            Poll::Ready(None) => {
                let usage = self.run.usage();
                self.meter
                    .done(metrics, usage.prompt_tokens, usage.completion_tokens);
            }
            _ => {}
        }
        polled
    }
}

/// The answer as events.
struct Stream<S> {
    answering: Answering<S>,
    /// Choices whose first event went out.
    begun: Vec<bool>,
    /// Nothing went out yet.
    first: bool,
    done: bool,
}

impl<S: Shape> Events for Stream<S> {
    fn poll_events(&mut self, cx: &mut Context<'_>, out: &mut Vec<String>) -> Poll<bool> {
        if self.done {
            return Poll::Ready(false);
        }
        match self.answering.poll_output(cx) {
            Poll::Pending => return Poll::Pending,
            Poll::Ready(Some(Ok(output))) => self.output(output, out),
            Poll::Ready(Some(Err(e))) => {
                // No [DONE] follows: the answer is not done.
                out.push(e.body().to_string());
                self.done = true;
            }
            Poll::Ready(None) => {
                if self.answering.head.include_usage {
                    let usage = self.answering.run.usage();
                    out.push(self.event(Vec::new(), Some(usage)));
                }
                out.push("[DONE]".to_owned());
                self.done = true;
            }
        }
        Poll::Ready(true)
    }
}

impl<S: Shape> Stream<S> {
    fn output(&mut self, output: Output, out: &mut Vec<String>) {
        if output.delta.is_empty() {
            return;
        }
        let index = output.index as u32;
        let shape = &self.answering.shape;
        let begin = match std::mem::replace(&mut self.begun[output.index], true) {
            true => None,
            false => shape.begin(index),
        };
        let parts = shape.parts(index, output.delta);
        for part in begin.into_iter().chain(parts) {
            let event = self.event(vec![part], None);
            out.push(event);
        }
    }

    fn event(&mut self, choices: Vec<S::Part>, usage: Option<Usage>) -> String {
        let head = &self.answering.head;
        let answer = Answer {
            usage: head.include_usage.then_some(usage),
            metrale: head.extension().filter(|_| self.first),
            ..head.answer(S::PART, choices)
        };
        self.first = false;
        serde_json::to_string(&answer)
            .unwrap_or_else(|e| ApiError::Internal(e.to_string()).body().to_string())
    }
}

fn options(prompt: &Prepared, wanted: &Wanted<'_>) -> ChoiceOptions {
    ChoiceOptions {
        stop: wanted.generation.stop.clone(),
        include_stop: wanted.generation.include_stop,
        skip_special: wanted.generation.skip_special,
        entries: wanted.logprobs.is_some(),
        offset: prompt.echo.as_ref().map_or(0, Echo::characters),
    }
}

fn request(
    served: &ServedModel,
    prompt: &Prepared,
    wanted: &Wanted<'_>,
) -> Result<Request, ApiError> {
    let g = wanted.generation;
    if prompt.ids.is_empty() {
        return Err(refused(Refusal::EmptyPrompt));
    }
    let max_tokens = max_tokens(served, prompt.ids.len() as u64, wanted)?;
    if g.min_tokens > max_tokens {
        let why = format!("must not be above the {max_tokens} tokens of the answer");
        return Err(ApiError::invalid("min_tokens", why));
    }
    let mut stop_tokens = g.stop_token_ids.clone();
    if !g.ignore_eos {
        stop_tokens.extend(served.text.eos());
    }
    stop_tokens.sort_unstable();
    stop_tokens.dedup();
    Ok(Request {
        id: RequestId(0),
        choice: 0,
        prompt: Arc::clone(&prompt.ids),
        sampling: g.sampling,
        history: g.sampling.needs_history(),
        bias: g.logit_bias.as_slice().into(),
        max_tokens,
        min_tokens: g.min_tokens,
        stop_tokens: stop_tokens.into(),
        logprobs: wanted.logprobs,
        prompt_logprobs: wanted.logprobs.filter(|_| prompt.echo.is_some()),
        namespace: 0,
        priority: 0,
        deadline: None,
    })
}

/// What the request says must fit; what it leaves open is cut to what the context leaves.
fn max_tokens(served: &ServedModel, prompt: u64, wanted: &Wanted<'_>) -> Result<u32, ApiError> {
    let card = &served.card;
    let limit = u64::from(card.max_model_len);
    let asked = wanted.generation.max_tokens;
    let answer = u64::from(asked.unwrap_or(1));
    if prompt >= limit || prompt + answer > limit {
        return Err(ApiError::ContextLength {
            limit,
            prompt,
            answer,
        });
    }
    let room = (limit - prompt) as u32;
    let open = card.defaults.max_tokens.value.or(wanted.length);
    Ok(asked.unwrap_or_else(|| open.map_or(room, |open| open.min(room))))
}

fn refused(why: Refusal) -> ApiError {
    let context = |tokens: usize, limit: usize| ApiError::ContextLength {
        limit: limit as u64,
        prompt: tokens as u64,
        answer: 1,
    };
    match why {
        Refusal::Busy { .. } => ApiError::Busy {
            what: why.to_string(),
            retry_after: Duration::from_secs(1),
        },
        Refusal::ShuttingDown => ApiError::Draining,
        Refusal::Failed(what) => ApiError::EngineFailed(what),
        Refusal::EmptyPrompt => ApiError::invalid("prompt", "has no tokens; give at least one"),
        Refusal::PromptTooLong { tokens, limit } => context(tokens, limit),
        Refusal::PromptExceedsPool { tokens, limit } => context(tokens, limit),
        Refusal::TooManyBias { .. } => {
            ApiError::invalid("logit_bias", format!("is too large: {why}"))
        }
        Refusal::DuplicateId(_) => ApiError::Internal(why.to_string()),
    }
}
