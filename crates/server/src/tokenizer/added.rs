// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tokens that are matched as whole strings in the text, before the vocabulary's own algorithm runs.
//!
//! Two kinds exist, and they are kept apart. *Control* tokens (`<|im_start|>`, `</s>`) carry the structure of a prompt: they
//! may be matched in a template's own text and never in a message, or a user could write a turn of the assistant. *Always*
//! tokens (`<think>`, or Gemma's runs of newlines) are vocabulary that the algorithm alone would not reach: they are
//! matched everywhere. GGUF says which by token type (3 and 4), tokenizer.json by `special`.

use std::ops::Range;

use aho_corasick::{AhoCorasick, MatchKind};

use super::TokenizerError;

/// One token matched as a whole string. The three flags are those of tokenizer.json's `added_tokens`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Added {
    pub(super) id: u32,
    pub(super) text: String,
    /// Takes the whitespace on its left with it.
    pub(super) lstrip: bool,
    /// Takes the whitespace on its right with it.
    pub(super) rstrip: bool,
    /// Matches only between non-word characters.
    pub(super) single_word: bool,
}

/// Finds added tokens: leftmost, longest.
#[derive(Debug, Default)]
pub(super) struct Matcher {
    tokens: Vec<Added>,
    automaton: Option<AhoCorasick>,
}

/// A token found in a text: bytes `range` of the text become `id`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Found {
    pub(super) range: Range<usize>,
    pub(super) id: u32,
}

impl Matcher {
    pub(super) fn new(tokens: Vec<Added>) -> Result<Self, TokenizerError> {
        let tokens: Vec<Added> = tokens.into_iter().filter(|t| !t.text.is_empty()).collect();
        if tokens.is_empty() {
            return Ok(Self::default());
        }
        let automaton = AhoCorasick::builder()
            .match_kind(MatchKind::LeftmostLongest)
            .build(tokens.iter().map(|t| t.text.as_bytes()))
            .map_err(|e| TokenizerError::invalid("added tokens", e.to_string()))?;
        Ok(Self {
            tokens,
            automaton: Some(automaton),
        })
    }

    pub(super) fn texts(&self) -> impl Iterator<Item = &str> {
        self.tokens.iter().map(|t| t.text.as_str())
    }

    /// Appends what stands in bytes `within` of `text`, in order. Neighbours outside `within` count for `single_word` and
    /// are never taken by `lstrip` or `rstrip`.
    pub(super) fn find(&self, text: &str, within: Range<usize>, out: &mut Vec<Found>) {
        let Some(automaton) = &self.automaton else {
            return;
        };
        let mut floor = within.start;
        for m in automaton.find_iter(&text.as_bytes()[within.clone()]) {
            let (mut start, mut end) = (within.start + m.start(), within.start + m.end());
            if start < floor {
                continue; // swallowed by the rstrip of the token before
            }
            let token = &self.tokens[m.pattern().as_usize()];
            if token.single_word && (ends_in_word(&text[..start]) || starts_in_word(&text[end..])) {
                continue;
            }
            if token.lstrip {
                start = floor + text[floor..start].trim_end().len();
            }
            if token.rstrip {
                let rest = &text[end..within.end];
                end += rest.len() - rest.trim_start().len();
            }
            out.push(Found {
                range: start..end,
                id: token.id,
            });
            floor = end;
        }
    }
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

fn ends_in_word(s: &str) -> bool {
    s.chars().next_back().is_some_and(is_word)
}

fn starts_in_word(s: &str) -> bool {
    s.chars().next().is_some_and(is_word)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(tokens: Vec<Added>, text: &str) -> Vec<(usize, usize, u32)> {
        let mut out = Vec::new();
        Matcher::new(tokens)
            .unwrap()
            .find(text, 0..text.len(), &mut out);
        out.into_iter()
            .map(|f| (f.range.start, f.range.end, f.id))
            .collect()
    }

    fn token(id: u32, text: &str) -> Added {
        Added {
            id,
            text: text.into(),
            ..Added::default()
        }
    }

    #[test]
    fn the_longest_of_the_leftmost_wins() {
        assert_eq!(
            found(vec![token(1, "\n"), token(2, "\n\n")], "a\n\n\nb"),
            [(1, 3, 2), (3, 4, 1)]
        );
        assert_eq!(
            found(vec![token(1, "<s>"), token(2, "<s>x")], "<s>x<s>"),
            [(0, 4, 2), (4, 7, 1)]
        );
    }

    #[test]
    fn flags_take_whitespace_and_refuse_parts_of_words() {
        let strip = Added {
            lstrip: true,
            rstrip: true,
            ..token(7, "<mask>")
        };
        assert_eq!(found(vec![strip], "a  <mask> \n b"), [(1, 12, 7)]);
        let word = Added {
            single_word: true,
            ..token(7, "ab")
        };
        assert_eq!(found(vec![word], "ab xab ab_ ab"), [(0, 2, 7), (11, 13, 7)]);
    }

    #[test]
    fn nothing_outside_the_range_is_taken() {
        let m = Matcher::new(vec![Added {
            lstrip: true,
            ..token(7, "<s>")
        }])
        .unwrap();
        let mut out = Vec::new();
        m.find("  <s><s>", 2..5, &mut out);
        assert_eq!(out, [Found { range: 2..5, id: 7 }]);
    }
}
