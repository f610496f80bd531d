// SPDX-License-Identifier: MIT OR Apache-2.0
//! All answers of one request: the engine's events in, what is new of each choice out.
//!
//! It is polled by whoever wants the answer, so nothing runs for a client that does not take it, and dropping it
//! cancels what still runs. The engine never waits for it: events queue up, at most `max_tokens` of them.

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::{Context, Poll};

use metrale_scheduler::{Event, Fault, FaultKind, FinishReason};

use super::choice::{Choice, ChoiceOptions, Delta};
use super::echo::Echo;
use crate::api::answer::{Finish, PromptTokensDetails, Usage};
use crate::api::error::ApiError;
use crate::engine_face::EventStream;
use crate::text_face::TextModel;

/// One choice that runs.
struct Running {
    /// `None` once it is finished.
    events: Option<EventStream>,
    choice: Choice,
    echo: Option<Echo>,
    tokens: u64,
}

/// Something new of a choice, perhaps only that a token came whose text is held back.
#[derive(Clone, Debug, PartialEq)]
pub struct Output {
    /// The choice's number.
    pub index: usize,
    /// What is new.
    pub delta: Delta,
    /// Tokens behind it: 1 for a generated token, 0 otherwise.
    pub tokens: u64,
}

/// The choices of one request.
pub struct Run {
    model: Arc<dyn TextModel>,
    choices: Vec<Running>,
    /// Choices to one prompt stand together.
    per_prompt: usize,
    prompt_tokens: u64,
    cached: Vec<u64>,
    ready: VecDeque<Output>,
    admitted: bool,
}

impl Run {
    /// No choices yet; `per_prompt` of them share a prompt.
    pub fn new(model: Arc<dyn TextModel>, per_prompt: usize) -> Run {
        Run {
            model,
            choices: Vec::new(),
            per_prompt: per_prompt.max(1),
            prompt_tokens: 0,
            cached: Vec::new(),
            ready: VecDeque::new(),
            admitted: false,
        }
    }

    /// Adds the next choice. `prompt_tokens` of its prompt are counted once per prompt.
    pub fn add(
        &mut self,
        events: EventStream,
        options: &ChoiceOptions,
        echo: Option<Echo>,
        prompt_tokens: usize,
    ) {
        if self.choices.len().is_multiple_of(self.per_prompt) {
            self.prompt_tokens += prompt_tokens as u64;
            self.cached.push(0);
        }
        self.choices.push(Running {
            events: Some(events),
            choice: Choice::new(Arc::clone(&self.model), options),
            echo,
            tokens: 0,
        });
    }

    /// Whether a choice has left the queue.
    pub fn admitted(&self) -> bool {
        self.admitted
    }

    /// The number of choices.
    pub fn choices(&self) -> usize {
        self.choices.len()
    }

    /// Token counts so far; final once every choice ended.
    pub fn usage(&self) -> Usage {
        let completion_tokens = self.choices.iter().map(|c| c.tokens).sum();
        Usage {
            prompt_tokens: self.prompt_tokens,
            completion_tokens,
            total_tokens: self.prompt_tokens + completion_tokens,
            prompt_tokens_details: PromptTokensDetails {
                cached_tokens: self.cached.iter().sum(),
            },
        }
    }

    /// The next output; `None` when every choice has ended.
    ///
    /// # Errors
    /// The first failure of a choice; the run is then over.
    pub fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Output, ApiError>>> {
        loop {
            if let Some(output) = self.ready.pop_front() {
                return Poll::Ready(Some(Ok(output)));
            }
            let (mut open, mut moved) = (false, false);
            for index in 0..self.choices.len() {
                let Some(events) = &mut self.choices[index].events else {
                    continue;
                };
                open = true;
                let Poll::Ready(event) = events.poll_next(cx) else {
                    continue;
                };
                moved = true;
                if let Err(e) = self.take(index, event) {
                    self.choices.iter_mut().for_each(|c| c.events = None);
                    return Poll::Ready(Some(Err(e)));
                }
            }
            if !open {
                return Poll::Ready(None);
            }
            if !moved {
                return Poll::Pending;
            }
        }
    }

    fn take(&mut self, index: usize, event: Option<Event>) -> Result<(), ApiError> {
        let running = &mut self.choices[index];
        match event {
            Some(Event::Admitted { cached_tokens }) => {
                self.admitted = true;
                if index.is_multiple_of(self.per_prompt) {
                    self.cached[index / self.per_prompt] = u64::from(cached_tokens);
                }
            }
            Some(Event::Prompt {
                position,
                token,
                logprob,
                top,
            }) => {
                if let Some(echo) = &mut running.echo {
                    echo.token(position, token, logprob, top);
                }
            }
            Some(Event::Token {
                token,
                logprob,
                top,
                ..
            }) => {
                running.tokens += 1;
                let mut delta = running.echoed(self.model.as_ref());
                delta.append(running.choice.token(token, logprob, top));
                self.emit(index, delta, 1);
            }
            Some(Event::Finished { reason, usage, .. }) => {
                let why = match reason {
                    FinishReason::Stop => Finish::Stop,
                    FinishReason::Length => Finish::Length,
                    FinishReason::Cancelled => {
                        return Err(ApiError::Generation("the engine cancelled it".to_owned()));
                    }
                };
                running.tokens = u64::from(usage.completion_tokens);
                let mut delta = running.echoed(self.model.as_ref());
                delta.append(running.choice.finish(why));
                self.emit(index, delta, 0);
            }
            Some(Event::Failed(fault)) => return Err(from_fault(fault)),
            None => {
                return Err(ApiError::Generation(
                    "the engine ended without finishing it".to_owned(),
                ));
            }
        }
        Ok(())
    }

    fn emit(&mut self, index: usize, delta: Delta, tokens: u64) {
        let ended = delta.finish.is_some();
        self.ready.push_back(Output {
            index,
            delta,
            tokens,
        });
        if ended {
            // What the engine sends after a stop text is not wanted; dropping the stream cancels it.
            self.choices[index].events = None;
        }
    }
}

impl Running {
    /// The echoed prompt, the first time.
    fn echoed(&mut self, model: &dyn TextModel) -> Delta {
        self.echo
            .take()
            .map(|echo| echo.into_delta(model))
            .unwrap_or_default()
    }
}

/// What a request's fault means to the caller.
pub(crate) fn from_fault(fault: Fault) -> ApiError {
    match fault.kind {
        FaultKind::NoToken => ApiError::NoToken(fault.what),
        FaultKind::Deadline => ApiError::Deadline(fault.what),
        FaultKind::Shutdown => ApiError::Draining,
        FaultKind::NonFinite | FaultKind::Constraint | FaultKind::Device => {
            ApiError::Generation(fault.what)
        }
        FaultKind::Internal => ApiError::Internal(fault.what),
    }
}
