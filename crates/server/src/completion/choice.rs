// SPDX-License-Identifier: MIT OR Apache-2.0
//! One answer: token ids in, finished text out.
//!
//! Tokens become bytes, bytes pass the stop scanner, and what passes becomes text. A token's entry (for logprobs) comes
//! out with the text that holds its last byte, so that the entries of a stream, joined, are those of the whole answer.
//! The same machine serves streamed and unstreamed answers.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::sync::Arc;

use super::stop::StopScanner;
use super::utf8::Utf8Decoder;
use crate::api::answer::Finish;
use crate::text_face::TextModel;

/// A token of an answer, for logprobs.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    /// The token.
    pub token: u32,
    /// Natural log of its probability; `None` for a prompt's first token.
    pub logprob: Option<f32>,
    /// The most probable tokens, best first.
    pub top: Vec<(u32, f32)>,
    /// Where it starts in the text, in characters.
    pub text_offset: u64,
}

/// What is new of an answer.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Delta {
    /// New text.
    pub text: String,
    /// New entries, if logprobs are wanted.
    pub entries: Vec<Entry>,
    /// Set once, in the last delta.
    pub finish: Option<Finish>,
}

impl Delta {
    /// Whether there is nothing to tell.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.text.is_empty() && self.entries.is_empty() && self.finish.is_none()
    }

    /// Joins what came later.
    pub fn append(&mut self, later: Delta) {
        self.text.push_str(&later.text);
        self.entries.extend(later.entries);
        self.finish = self.finish.or(later.finish);
    }
}

/// How an answer's tokens become text.
#[derive(Clone, Debug, Default)]
pub struct ChoiceOptions {
    /// Texts that end it.
    pub stop: Vec<String>,
    /// Keep the stop text.
    pub include_stop: bool,
    /// Control tokens leave no text.
    pub skip_special: bool,
    /// Entries are wanted.
    pub entries: bool,
    /// Characters of an echoed prompt before it.
    pub offset: u64,
}

/// The state of one answer.
pub struct Choice {
    model: Arc<dyn TextModel>,
    skip_special: bool,
    scanner: StopScanner,
    decoder: Utf8Decoder,
    /// Bytes of all tokens so far.
    bytes: usize,
    /// Bytes of them that the scanner let pass.
    passed: usize,
    /// Entries that wait for their last byte, each with its first and end byte; `None`: entries are not wanted.
    waiting: Option<VecDeque<(Entry, usize, usize)>>,
    offsets: Offsets,
}

impl Choice {
    /// An answer without a token.
    pub fn new(model: Arc<dyn TextModel>, options: &ChoiceOptions) -> Choice {
        Choice {
            model,
            skip_special: options.skip_special,
            scanner: StopScanner::new(&options.stop, options.include_stop),
            decoder: Utf8Decoder::default(),
            bytes: 0,
            passed: 0,
            waiting: options.entries.then(VecDeque::new),
            offsets: Offsets::new(options.offset),
        }
    }

    /// Takes the next token. If the delta says the answer is finished (a stop text), it takes no more.
    pub fn token(&mut self, token: u32, logprob: f32, top: Vec<(u32, f32)>) -> Delta {
        let model = Arc::clone(&self.model);
        let bytes = text_of(model.as_ref(), token, self.skip_special);
        let start = self.bytes;
        self.bytes += bytes.len();
        if let Some(waiting) = &mut self.waiting {
            let entry = Entry {
                token,
                logprob: Some(logprob),
                top,
                text_offset: self.offsets.before(&bytes),
            };
            waiting.push_back((entry, start, self.bytes));
        }
        let mut passed = Vec::new();
        let stopped = self.scanner.push(&bytes, &mut passed);
        self.emit(&passed, stopped.then_some(Finish::Stop))
    }

    /// The generation ended by itself: what was held back is part of the answer.
    pub fn finish(&mut self, why: Finish) -> Delta {
        let mut passed = Vec::new();
        self.scanner.flush(&mut passed);
        self.emit(&passed, Some(why))
    }

    fn emit(&mut self, passed: &[u8], finish: Option<Finish>) -> Delta {
        let mut text = String::new();
        self.passed += passed.len();
        self.decoder.push(passed, &mut text);
        let settled = self.passed - self.decoder.pending();
        if finish.is_some() {
            self.decoder.flush(&mut text);
        }
        Delta {
            text,
            entries: self.settled_entries(settled, finish.is_some()),
            finish,
        }
    }

    /// Entries whose bytes are all out; at the end also one that a stop text cut in two.
    fn settled_entries(&mut self, settled: usize, last: bool) -> Vec<Entry> {
        let Some(waiting) = &mut self.waiting else {
            return Vec::new();
        };
        let passed = self.passed;
        let out = |start, end| end <= settled || last && (start < passed || end <= passed);
        let count = waiting
            .iter()
            .take_while(|(_, start, end)| out(*start, *end))
            .count();
        waiting.drain(..count).map(|(entry, ..)| entry).collect()
    }
}

/// The bytes that a token adds to a text.
pub(super) fn text_of(model: &dyn TextModel, token: u32, skip_special: bool) -> Cow<'_, [u8]> {
    if skip_special && model.is_special(token) {
        return Cow::Borrowed(&[]);
    }
    model.token_bytes(token).unwrap_or_default()
}

/// Counts the characters before each token.
#[derive(Clone, Debug, Default)]
pub(super) struct Offsets {
    decoder: Utf8Decoder,
    characters: u64,
}

impl Offsets {
    /// With so many characters before the first token.
    pub(super) fn new(characters: u64) -> Offsets {
        Offsets {
            decoder: Utf8Decoder::default(),
            characters,
        }
    }

    /// Whole characters before the token that adds `bytes`.
    pub(super) fn before(&mut self, bytes: &[u8]) -> u64 {
        let before = self.characters;
        let mut text = String::new();
        self.decoder.push(bytes, &mut text);
        self.characters += text.chars().count() as u64;
        before
    }
}

#[cfg(test)]
mod tests;
