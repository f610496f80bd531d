// SPDX-License-Identifier: MIT OR Apache-2.0
//! The prompt before the answer (`echo`), with its logprobs where they are wanted.

use std::sync::Arc;

use super::choice::{Delta, Entry, Offsets, text_of};
use crate::text_face::TextModel;

/// A prompt token's log probability and the most probable tokens at its place.
type Known = (f32, Vec<(u32, f32)>);

/// A prompt that is to stand before an answer.
#[derive(Clone, Debug)]
pub struct Echo {
    text: String,
    ids: Arc<[u32]>,
    /// Tokens at the start that the server put there; they have no text.
    prefix: usize,
    skip_special: bool,
    /// Logprobs of prompt tokens by position, if wanted.
    logprobs: Option<Vec<Option<Known>>>,
}

impl Echo {
    /// Of a prompt given as text: the text as it came. `prefix` tokens were put before it.
    pub fn of_text(text: String, ids: Arc<[u32]>, prefix: usize, logprobs: bool) -> Echo {
        Echo {
            text,
            prefix,
            skip_special: false,
            logprobs: logprobs.then(|| vec![None; ids.len()]),
            ids,
        }
    }

    /// Of a prompt given as ids: the text that they stand for.
    pub fn of_ids(
        model: &dyn TextModel,
        ids: Arc<[u32]>,
        skip_special: bool,
        logprobs: bool,
    ) -> Echo {
        let bytes: Vec<u8> = ids
            .iter()
            .flat_map(|id| text_of(model, *id, skip_special).into_owned())
            .collect();
        Echo {
            text: String::from_utf8_lossy(&bytes).into_owned(),
            prefix: 0,
            skip_special,
            logprobs: logprobs.then(|| vec![None; ids.len()]),
            ids,
        }
    }

    /// Characters of the text.
    pub fn characters(&self) -> u64 {
        self.text.chars().count() as u64
    }

    /// Takes the probability of the prompt token at `position`.
    pub fn token(&mut self, position: u32, token: u32, logprob: f32, top: Vec<(u32, f32)>) {
        let place = self
            .logprobs
            .as_mut()
            .and_then(|l| l.get_mut(position as usize));
        if let Some(place) = place
            && self.ids.get(position as usize) == Some(&token)
        {
            *place = Some((logprob, top));
        }
    }

    /// The text and its entries.
    pub fn into_delta(self, model: &dyn TextModel) -> Delta {
        let mut offsets = Offsets::new(0);
        let entry = |(i, known): (usize, Option<Known>)| {
            let token = self.ids[i];
            let bytes = match i < self.prefix {
                true => Default::default(),
                false => text_of(model, token, self.skip_special),
            };
            let (logprob, top) = known.map_or((None, Vec::new()), |(l, top)| (Some(l), top));
            Entry {
                token,
                logprob,
                top,
                text_offset: offsets.before(&bytes),
            }
        };
        let entries = self.logprobs.unwrap_or_default();
        Delta {
            entries: entries.into_iter().enumerate().map(entry).collect(),
            text: self.text,
            finish: None,
        }
    }
}
