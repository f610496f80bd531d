// SPDX-License-Identifier: MIT OR Apache-2.0
//! An answer as events.

use std::task::{Context, Poll};

use super::events::Events;
use super::generate::Answering;
use super::shape::Shape;
use crate::api::answer::{Answer, Usage};
use crate::api::error::ApiError;
use crate::completion::run::Output;

/// The answer as events.
pub(super) struct Stream<S> {
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
    /// Nothing of it has gone out yet.
    pub(super) fn new(answering: Answering<S>) -> Stream<S> {
        Stream {
            begun: vec![false; answering.run.choices()],
            answering,
            first: true,
            done: false,
        }
    }

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
