// SPDX-License-Identifier: MIT OR Apache-2.0
//! Entries of tokens to the two shapes of logprobs.

use super::choice::Entry;
use crate::api::answer::{ChatLogprob, ChatLogprobs, CompletionLogprobs, Ranked, TokenLogprob};
use crate::text_face::TextModel;

/// The least log probability that is written: JSON has no infinity, and OpenAI uses this value.
const FLOOR: f32 = -9999.0;

/// As chat answers hold them.
pub fn chat(model: &dyn TextModel, entries: Vec<Entry>) -> ChatLogprobs {
    let token = |(id, logprob): (u32, f32)| {
        let bytes = model.token_bytes(id).unwrap_or_default().into_owned();
        TokenLogprob {
            token: String::from_utf8_lossy(&bytes).into_owned(),
            logprob: logprob.max(FLOOR),
            bytes,
        }
    };
    let content = entries
        .into_iter()
        .map(|e| ChatLogprob {
            token: token((e.token, e.logprob.unwrap_or(0.0))),
            top_logprobs: e.top.into_iter().map(token).collect(),
        })
        .collect();
    ChatLogprobs {
        content,
        refusal: None,
    }
}

/// As completions hold them.
pub fn completion(model: &dyn TextModel, entries: Vec<Entry>) -> CompletionLogprobs {
    let mut out = CompletionLogprobs::default();
    for entry in entries {
        out.text_offset.push(entry.text_offset);
        out.token_logprobs.push(entry.logprob.map(|l| l.max(FLOOR)));
        out.tokens.push(name(model, entry.token));
        out.top_logprobs.push(entry.logprob.map(|own| {
            let mut ranked = entry.top;
            if ranked.iter().all(|(token, _)| *token != entry.token) {
                ranked.push((entry.token, own));
            }
            let named = ranked
                .into_iter()
                .map(|(token, logprob)| (name(model, token), logprob.max(FLOOR)));
            Ranked(named.collect())
        }));
    }
    out
}

/// A token's text as a key: `bytes:\x..` where its bytes are no UTF-8 by themselves, so that two tokens differ.
pub fn name(model: &dyn TextModel, token: u32) -> String {
    let bytes = model.token_bytes(token).unwrap_or_default();
    match std::str::from_utf8(&bytes) {
        Ok(text) => text.to_owned(),
        Err(_) => {
            let escaped: String = bytes.iter().map(|b| format!("\\x{b:02x}")).collect();
            format!("bytes:{escaped}")
        }
    }
}
