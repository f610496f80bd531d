// SPDX-License-Identifier: MIT OR Apache-2.0
//! The shapes of answers, as OpenAI's clients read them. Field order is that of OpenAI's documentation.

use serde::{Serialize, Serializer};

/// Token counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Usage {
    /// Over all prompts.
    pub prompt_tokens: u64,
    /// Over all answers, stop tokens included.
    pub completion_tokens: u64,
    /// Their sum.
    pub total_tokens: u64,
    /// Of the prompt tokens.
    pub prompt_tokens_details: PromptTokensDetails,
}

/// Part of [`Usage`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PromptTokensDetails {
    /// Prompt tokens whose KV came from the prefix cache.
    pub cached_tokens: u64,
}

/// This server's extension of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Extension {
    /// The seed that was used: the request's, or the fresh one it got. Sent back with the same request under the same
    /// `system_fingerprint`, it gives the same answer.
    pub seed: i64,
}

/// Why an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Finish {
    /// An end token or a stop text.
    Stop,
    /// `max_tokens`, or the context is full.
    Length,
}

impl Finish {
    /// As it stands in an answer.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Finish::Stop => "stop",
            Finish::Length => "length",
        }
    }
}

/// An answer, or one event of it. `C` is the choice of the endpoint.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Answer<C> {
    /// `chatcmpl-...` or `cmpl-...`.
    pub id: String,
    /// OpenAI's name of the type.
    pub object: &'static str,
    /// Seconds since 1970.
    pub created: u64,
    /// The served model's name, as the request called it.
    pub model: String,
    /// The choices, or what is new of one.
    pub choices: Vec<C>,
    /// Token counts: in a whole answer; in a stream with `include_usage` null but in the last event.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage: Option<Option<Usage>>,
    /// The numerics digest.
    pub system_fingerprint: String,
    /// In a whole answer and in the first event.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metrale: Option<Extension>,
}

/// A choice of a whole chat answer.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ChatChoice {
    /// Its number.
    pub index: u32,
    /// The answer.
    pub message: AssistantMessage,
    /// Of its tokens, if asked for.
    pub logprobs: Option<ChatLogprobs>,
    /// Why it ended.
    pub finish_reason: Option<Finish>,
}

/// The message of a [`ChatChoice`].
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct AssistantMessage {
    /// `assistant`.
    pub role: &'static str,
    /// The text.
    pub content: String,
    /// Always null: nothing here refuses.
    pub refusal: Option<String>,
}

/// A choice of a chat event.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ChatChunkChoice {
    /// Its number.
    pub index: u32,
    /// What is new.
    pub delta: ChatDelta,
    /// Of the new tokens, if asked for.
    pub logprobs: Option<ChatLogprobs>,
    /// Set in the last event of the choice.
    pub finish_reason: Option<Finish>,
}

/// The new text of a [`ChatChunkChoice`].
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ChatDelta {
    /// `assistant`, in the first event.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub role: Option<&'static str>,
    /// The text; absent in the last event if nothing is left.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content: Option<String>,
}

/// Logprobs of a chat answer.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ChatLogprobs {
    /// Each token of the answer.
    pub content: Vec<ChatLogprob>,
    /// Always null.
    pub refusal: Option<Vec<ChatLogprob>>,
}

/// One token and what else could have stood there.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ChatLogprob {
    /// The token.
    #[serde(flatten)]
    pub token: TokenLogprob,
    /// The most probable ones, best first.
    pub top_logprobs: Vec<TokenLogprob>,
}

/// A token and its natural-log probability.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TokenLogprob {
    /// Its text, U+FFFD where its bytes are no UTF-8 by themselves.
    pub token: String,
    /// Not below -9999.
    pub logprob: f32,
    /// Its bytes.
    pub bytes: Vec<u8>,
}

/// A choice of a completion, or what is new of it in an event.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CompletionChoice {
    /// Its number: prompt number times `n`, plus the number among the answers to that prompt.
    pub index: u32,
    /// The text.
    pub text: String,
    /// Of its tokens, if asked for.
    pub logprobs: Option<CompletionLogprobs>,
    /// Why it ended; null before that.
    pub finish_reason: Option<Finish>,
}

/// Logprobs of a completion: four lists of one length.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct CompletionLogprobs {
    /// Where each token starts in the choice's text, in characters.
    pub text_offset: Vec<u64>,
    /// Their log probabilities; null for a prompt's first token.
    pub token_logprobs: Vec<Option<f32>>,
    /// Their texts; `bytes:\x..` where the bytes are no UTF-8 by themselves.
    pub tokens: Vec<String>,
    /// The most probable ones and the one that stands there; null for a prompt's first token.
    pub top_logprobs: Vec<Option<Ranked>>,
}

/// Token texts and log probabilities, serialized as an object in this order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Ranked(pub Vec<(String, f32)>);

impl Serialize for Ranked {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(token, logprob)| (token, logprob)))
    }
}
