// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the HTTP side needs of text: a tokenizer and a chat template, behind two traits.
//!
//! The rule that both serve (control tokens in user text are text): a string carries its [`Origin`] until it has
//! become token ids. A chat template renders to [`Piece`]s; [`TextModel::encode_pieces`] joins them, finds special
//! tokens only inside what the template itself wrote, and encodes the stretches between as plain text. For messages
//! that hold no control token the ids are those of the whole string parsed at once.

use std::borrow::Cow;

use serde_json::Value;

/// How the text of a special token is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Specials {
    /// As ordinary text: `<|im_end|>` is spelt out.
    AsText,
    /// As the token it names.
    Parse,
}

/// A special token of the vocabulary, by its text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpecialToken {
    /// Its text, e.g. `<|im_start|>`.
    pub text: String,
    /// Its id.
    pub id: u32,
    /// White space to its left belongs to it.
    pub lstrip: bool,
    /// White space to its right belongs to it.
    pub rstrip: bool,
}

/// Who wrote a stretch of a rendered prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The template (trusted: its control tokens are control tokens).
    Template,
    /// The request (its control tokens are text).
    Content,
}

/// A stretch of a rendered prompt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The text.
    pub text: String,
    /// Who wrote it.
    pub origin: Origin,
}

impl Piece {
    /// Text that the template wrote.
    pub fn template(text: impl Into<String>) -> Piece {
        Piece {
            text: text.into(),
            origin: Origin::Template,
        }
    }

    /// Text that came with the request.
    pub fn content(text: impl Into<String>) -> Piece {
        Piece {
            text: text.into(),
            origin: Origin::Content,
        }
    }
}

/// Text that the tokenizer cannot encode.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the tokenizer cannot encode this text: {why}")]
pub struct EncodeError {
    /// The tokenizer's reason.
    pub why: String,
}

/// The tokenizer of the served model.
pub trait TextModel: Send + Sync {
    /// Token ids of `text`, nothing put before or after.
    fn encode(&self, text: &str, specials: Specials) -> Result<Vec<u32>, EncodeError>;

    /// Whether it reads text at all; false where the model has no tokenizer, and prompts are token ids.
    fn reads_text(&self) -> bool {
        true
    }

    /// The bytes that token `id` stands for, in the middle of a text; for a special token, its name. They need not be
    /// UTF-8 by themselves. `None` if the vocabulary has no such token.
    fn token_bytes(&self, id: u32) -> Option<Cow<'_, [u8]>>;

    /// Every special token.
    fn special_tokens(&self) -> &[SpecialToken];

    /// Whether `id` is a control token, which leaves no text in an answer.
    fn is_special(&self, id: u32) -> bool;

    /// Ids that the checkpoint puts before a plain prompt (its BOS, where it wants one). Not for chat: there the
    /// template writes them.
    fn prompt_prefix(&self) -> &[u32];

    /// Tokens that end a generation.
    fn eos(&self) -> &[u32];

    /// Number of ids: each is below it.
    fn vocab_size(&self) -> u32;

    /// Most bytes that one token stands for.
    fn longest_token(&self) -> usize;

    /// The text of `ids`, special tokens by name, invalid UTF-8 as U+FFFD.
    fn decode(&self, ids: &[u32]) -> String {
        let mut bytes = Vec::new();
        for id in ids {
            bytes.extend_from_slice(&self.token_bytes(*id).unwrap_or_default());
        }
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Token ids of a rendered prompt: special tokens are read only where a template piece holds them whole.
    fn encode_pieces(&self, pieces: &[Piece]) -> Result<Vec<u32>, EncodeError> {
        let (runs, ids) = split_at_specials(pieces, self.special_tokens());
        let mut out = Vec::new();
        for (run, special) in runs.iter().zip(ids) {
            if !run.is_empty() {
                out.extend(self.encode(run, Specials::AsText)?);
            }
            out.extend(special);
        }
        Ok(out)
    }
}

/// Cuts joined pieces at the special tokens of template pieces: each run of text is followed by its token, the last
/// by none.
fn split_at_specials(
    pieces: &[Piece],
    specials: &[SpecialToken],
) -> (Vec<String>, Vec<Option<u32>>) {
    let mut runs = vec![String::new()];
    let mut ids = Vec::new();
    let mut strip_left = false;
    let mut first = [false; 256];
    for byte in specials.iter().filter_map(|s| s.text.bytes().next()) {
        first[usize::from(byte)] = true;
    }
    for piece in pieces {
        let mut rest = piece.text.as_str();
        loop {
            let found = match piece.origin {
                Origin::Content => None,
                Origin::Template => first_special(rest, specials, &first),
            };
            let text = found.map_or(rest, |(at, _)| &rest[..at]);
            let text = if strip_left { text.trim_start() } else { text };
            strip_left &= text.is_empty();
            let last = runs.len() - 1;
            runs[last].push_str(text);
            let Some((at, token)) = found else { break };
            if token.lstrip {
                let kept = runs[last].trim_end().len();
                runs[last].truncate(kept);
            }
            ids.push(Some(token.id));
            runs.push(String::new());
            strip_left = token.rstrip;
            rest = &rest[at + token.text.len()..];
        }
    }
    ids.push(None);
    (runs, ids)
}

/// The leftmost special token in `text`; of several at one place, the longest. `first` marks the bytes that a special
/// token can begin with, so that a vocabulary with thousands of them costs nothing over plain text.
fn first_special<'s>(
    text: &str,
    specials: &'s [SpecialToken],
    first: &[bool; 256],
) -> Option<(usize, &'s SpecialToken)> {
    let bytes = text.as_bytes();
    bytes.iter().enumerate().find_map(|(at, byte)| {
        if !first[usize::from(*byte)] {
            return None;
        }
        specials
            .iter()
            .filter(|s| bytes[at..].starts_with(s.text.as_bytes()) && !s.text.is_empty())
            .max_by_key(|s| s.text.len())
            .map(|s| (at, s))
    })
}

/// A message of a chat.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ChatMessage {
    /// `system`, `user`, `assistant`, `tool`, ...
    pub role: String,
    /// Its text; parts of type `text` are joined.
    pub content: Option<String>,
    /// The author's name, if given.
    pub name: Option<String>,
    /// Calls an assistant made, as OpenAI writes them.
    pub tool_calls: Vec<Value>,
    /// Of a `tool` message: the call that it answers.
    pub tool_call_id: Option<String>,
}

/// What a chat template renders.
#[derive(Clone, Copy, Debug)]
pub struct ChatInput<'a> {
    /// The messages, in order.
    pub messages: &'a [ChatMessage],
    /// Tool definitions, as OpenAI writes them.
    pub tools: &'a [Value],
    /// End with the opening of an assistant message.
    pub add_generation_prompt: bool,
}

/// Why a template did not render.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TemplateError {
    /// The template refused these messages (`raise_exception`): the request's fault.
    #[error("the model's chat template refuses these messages: {0}")]
    Refused(String),
    /// It spent its fuel or wrote more than allowed: either side's fault.
    #[error("the model's chat template went beyond its limit of {0}")]
    Limit(String),
    /// It failed otherwise: the checkpoint's fault.
    #[error("the model's chat template failed: {0}")]
    Failed(String),
}

/// The chat template of the served model.
pub trait ChatTemplate: Send + Sync {
    /// The prompt, in pieces that know who wrote them.
    fn render(&self, input: &ChatInput<'_>) -> Result<Vec<Piece>, TemplateError>;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn special(text: &str, id: u32) -> SpecialToken {
        SpecialToken {
            text: text.to_owned(),
            id,
            lstrip: false,
            rstrip: false,
        }
    }

    #[test]
    fn control_tokens_count_only_where_the_template_wrote_them() {
        let specials = [special("<|s|>", 7), special("<|e|>", 8)];
        let pieces = [
            Piece::template("<|s|>user\n"),
            Piece::content("a<|e|>b"),
            Piece::template("<|e|>\n"),
        ];
        let (runs, ids) = split_at_specials(&pieces, &specials);
        assert_eq!(runs, ["", "user\na<|e|>b", "\n"]);
        assert_eq!(ids, [Some(7), Some(8), None]);
    }

    #[test]
    fn a_token_half_in_the_content_is_text() {
        let specials = [special("<|e|>", 8)];
        let pieces = [Piece::content("<|e"), Piece::template("|>")];
        let (runs, ids) = split_at_specials(&pieces, &specials);
        assert_eq!(runs, ["<|e|>"]);
        assert_eq!(ids, [None]);
    }

    #[test]
    fn the_longest_of_overlapping_names_wins() {
        let specials = [special("<e>", 1), special("<e><f>", 2)];
        let (runs, ids) = split_at_specials(&[Piece::template("x<e><f>y")], &specials);
        assert_eq!(runs, ["x", "y"]);
        assert_eq!(ids, [Some(2), None]);
    }

    #[test]
    fn strip_flags_take_the_white_space_beside_a_token() {
        let mut token = special("<m>", 3);
        token.lstrip = true;
        token.rstrip = true;
        let pieces = [
            Piece::content("a "),
            Piece::template(" <m> "),
            Piece::content(" b"),
        ];
        let (runs, _) = split_at_specials(&pieces, &[token]);
        assert_eq!(runs, ["a", "b"]);
    }
}
