// SPDX-License-Identifier: MIT OR Apache-2.0
//! How the two endpoints write what is new of a choice, and whole choices.

use std::sync::Arc;

use serde::Serialize;

use crate::api::answer::{
    AssistantMessage, ChatChoice, ChatChunkChoice, ChatDelta, ChatLogprobs, CompletionChoice,
    CompletionLogprobs, Finish,
};
use crate::completion::choice::{Delta, Entry};
use crate::completion::logprobs;
use crate::text_face::TextModel;

/// An endpoint's answers.
pub(super) trait Shape: Send + Unpin + 'static {
    /// A choice of a whole answer.
    type Whole: Serialize;
    /// A choice of an event.
    type Part: Serialize;
    /// Before the digits of an answer's id.
    const PREFIX: &'static str;
    /// `object` of a whole answer.
    const WHOLE: &'static str;
    /// `object` of an event.
    const PART: &'static str;

    /// What a choice's first event holds, if there is one before its text.
    fn begin(&self, index: u32) -> Option<Self::Part>;
    /// The events for something new, which is not empty.
    fn parts(&self, index: u32, delta: Delta) -> Vec<Self::Part>;
    /// The whole choice.
    fn whole(&self, index: u32, all: Delta) -> Self::Whole;
}

/// /v1/chat/completions
pub(super) struct Chat {
    pub(super) model: Arc<dyn TextModel>,
    /// Whether logprobs were asked for.
    pub(super) logprobs: bool,
}

impl Chat {
    fn logprobs(&self, entries: Vec<Entry>) -> Option<ChatLogprobs> {
        self.logprobs
            .then(|| logprobs::chat(self.model.as_ref(), entries))
    }
}

impl Shape for Chat {
    type Whole = ChatChoice;
    type Part = ChatChunkChoice;
    const PREFIX: &'static str = "chatcmpl";
    const WHOLE: &'static str = "chat.completion";
    const PART: &'static str = "chat.completion.chunk";

    fn begin(&self, index: u32) -> Option<ChatChunkChoice> {
        let delta = ChatDelta {
            role: Some("assistant"),
            content: Some(String::new()),
        };
        Some(part(index, delta, None, None))
    }

    fn parts(&self, index: u32, delta: Delta) -> Vec<ChatChunkChoice> {
        let mut parts = Vec::new();
        if !delta.text.is_empty() || !delta.entries.is_empty() {
            let content = ChatDelta {
                role: None,
                content: Some(delta.text),
            };
            parts.push(part(index, content, self.logprobs(delta.entries), None));
        }
        if delta.finish.is_some() {
            parts.push(part(index, ChatDelta::default(), None, delta.finish));
        }
        parts
    }

    fn whole(&self, index: u32, all: Delta) -> ChatChoice {
        ChatChoice {
            index,
            message: AssistantMessage {
                role: "assistant",
                content: all.text,
                refusal: None,
            },
            logprobs: self.logprobs(all.entries),
            finish_reason: all.finish,
        }
    }
}

fn part(
    index: u32,
    delta: ChatDelta,
    logprobs: Option<ChatLogprobs>,
    finish_reason: Option<Finish>,
) -> ChatChunkChoice {
    ChatChunkChoice {
        index,
        delta,
        logprobs,
        finish_reason,
    }
}

/// /v1/completions
pub(super) struct Completion {
    pub(super) model: Arc<dyn TextModel>,
    /// Whether logprobs were asked for.
    pub(super) logprobs: bool,
}

impl Completion {
    fn logprobs(&self, entries: Vec<Entry>) -> Option<CompletionLogprobs> {
        self.logprobs
            .then(|| logprobs::completion(self.model.as_ref(), entries))
    }
}

impl Shape for Completion {
    type Whole = CompletionChoice;
    type Part = CompletionChoice;
    const PREFIX: &'static str = "cmpl";
    const WHOLE: &'static str = "text_completion";
    const PART: &'static str = "text_completion";

    fn begin(&self, _: u32) -> Option<CompletionChoice> {
        None
    }

    fn parts(&self, index: u32, delta: Delta) -> Vec<CompletionChoice> {
        vec![self.whole(index, delta)]
    }

    fn whole(&self, index: u32, all: Delta) -> CompletionChoice {
        CompletionChoice {
            index,
            text: all.text,
            logprobs: self.logprobs(all.entries),
            finish_reason: all.finish,
        }
    }
}
