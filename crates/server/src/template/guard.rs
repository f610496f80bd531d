// SPDX-License-Identifier: MIT OR Apache-2.0
//! Keeps control tokens in a conversation from becoming control tokens of the prompt.
//!
//! Each string of a request is searched for spellings of control tokens before the template sees it, and a *marker* (a
//! private-use character that occurs nowhere in the input) is put behind the first character of each. The rendered text then
//! has a marker wherever such a spelling came from the request, and is cut into [`Piece`]s there: a control token is read
//! only where one piece holds it whole. Since nearly all strings hold no such spelling, templates see them untouched:
//! trimming, comparing and splitting work as the template's author meant.
//!
//! A control token must not arise from two strings either (`<|im_` and `end|>` in two parts of one message): an end of a
//! string that could begin a control token, and a beginning that could end one, are marked too.

use std::collections::BTreeSet;

use aho_corasick::{AhoCorasick, MatchKind};
use minijinja::Value;
use serde_json::Value as Json;

use super::TemplateError;
use crate::text_face::Piece;

/// Private-use characters of the basic plane, of which the marker is one.
const PRIVATE: std::ops::RangeInclusive<u32> = 0xE000..=0xF8FF;

/// The spellings to look for.
#[derive(Debug, Default)]
pub(super) struct Guard {
    /// Sorted.
    forward: Vec<String>,
    /// The same spellings from back to front, sorted.
    backward: Vec<String>,
    automaton: Option<AhoCorasick>,
    /// Bytes of the longest spelling.
    longest: usize,
}

impl Guard {
    pub(super) fn new<'a>(controls: impl Iterator<Item = &'a str>) -> Self {
        let mut forward: Vec<String> = controls
            .filter(|c| !c.is_empty())
            .map(str::to_owned)
            .collect();
        forward.sort_unstable();
        forward.dedup();
        let mut backward: Vec<String> = forward.iter().map(|c| c.chars().rev().collect()).collect();
        backward.sort_unstable();
        // Building fails only beyond 2^31 states; a vocabulary that large was refused before.
        let automaton = AhoCorasick::builder()
            .match_kind(MatchKind::Standard)
            .build(&forward)
            .ok();
        let longest = forward.iter().map(String::len).max().unwrap_or(0);
        Self {
            automaton: automaton.filter(|_| longest > 0),
            forward,
            backward,
            longest,
        }
    }

    /// A marker that occurs in none of `texts`.
    pub(super) fn marker<'a>(
        &self,
        texts: impl Iterator<Item = &'a str>,
    ) -> Result<char, TemplateError> {
        let mut used = BTreeSet::new();
        let mut look = |text: &str| {
            // The first byte of a private-use character of the basic plane is EE or EF.
            if text.bytes().any(|b| b == 0xEE || b == 0xEF) {
                used.extend(text.chars().map(u32::from).filter(|c| PRIVATE.contains(c)));
            }
        };
        texts.for_each(&mut look);
        self.forward.iter().for_each(|s| look(s));
        PRIVATE
            .rev()
            .find(|c| !used.contains(c))
            .and_then(char::from_u32)
            .ok_or(TemplateError::NoMarker)
    }

    /// The rendered text, cut at its markers. Between two of them all text is the template's, as far as control tokens go:
    /// the request's spellings of them are cut apart. A control token of one character cannot be cut, so it is told to be
    /// content instead.
    pub(super) fn pieces(&self, marked: &str, marker: char) -> Vec<Piece> {
        let mut pieces = Vec::new();
        for (i, mut part) in marked.split(marker).enumerate() {
            let first = part.chars().next().map_or(0, char::len_utf8);
            if i > 0 && first > 0 && self.forward.iter().any(|c| c == &part[..first]) {
                pieces.push(Piece::content(&part[..first]));
                part = &part[first..];
            }
            if !part.is_empty() {
                pieces.push(Piece::template(part));
            }
        }
        pieces
    }

    /// `json` as a template value, its strings (keys too) marked.
    pub(super) fn value(&self, json: &Json, marker: char) -> Value {
        match json {
            Json::Null => Value::from(()),
            Json::Bool(b) => Value::from(*b),
            Json::Number(n) => match (n.as_u64(), n.as_i64()) {
                (Some(u), _) => Value::from(u),
                (_, Some(i)) => Value::from(i),
                _ => Value::from(n.as_f64().unwrap_or(f64::NAN)),
            },
            Json::String(s) => Value::from(self.mark(s, marker).unwrap_or_else(|| s.clone())),
            Json::Array(items) => items.iter().map(|v| self.value(v, marker)).collect(),
            Json::Object(map) => Value::from_pairs(map.iter().map(|(k, v)| {
                (
                    Value::from(self.mark(k, marker).unwrap_or_else(|| k.clone())),
                    self.value(v, marker),
                )
            })),
        }
    }

    /// `s` with markers, or `None` if it needs none.
    fn mark(&self, s: &str, marker: char) -> Option<String> {
        let automaton = self.automaton.as_ref()?;
        let mut places = BTreeSet::new();
        for found in automaton.find_overlapping_iter(s) {
            let first = s[found.range()].chars().next().map_or(0, char::len_utf8);
            // Behind the first character, or before a token of one character (see `pieces`).
            places.insert(if first == found.len() {
                found.start()
            } else {
                found.start() + first
            });
        }
        for end in [s.len(), s.trim_end().len()] {
            self.beginnings(&s[..end], &mut places);
        }
        for start in [0, s.len() - s.trim_start().len()] {
            self.endings(s, start, &mut places);
        }
        if places.is_empty() {
            return None;
        }
        let mut out = String::with_capacity(s.len() + places.len() * 3);
        let mut from = 0;
        for at in places {
            out.push_str(&s[from..at]);
            out.push(marker);
            from = at;
        }
        out.push_str(&s[from..]);
        Some(out)
    }

    /// Places behind each character at which the rest of `s` begins a spelling.
    fn beginnings(&self, s: &str, places: &mut BTreeSet<usize>) {
        let nearest = s.len().saturating_sub(self.longest.saturating_sub(1));
        for (at, c) in s.char_indices().rev().take_while(|(at, _)| *at >= nearest) {
            if begins_one(&self.forward, &s[at..]) {
                places.insert(at + c.len_utf8());
            }
        }
    }

    /// Places before each character up to which `s`, from byte `start`, ends a spelling.
    fn endings(&self, s: &str, start: usize, places: &mut BTreeSet<usize>) {
        for (at, c) in s[start..]
            .char_indices()
            .take_while(|(at, _)| *at < self.longest)
        {
            let head: String = s[start..start + at + c.len_utf8()].chars().rev().collect();
            if begins_one(&self.backward, &head) {
                places.insert(start + at);
            }
        }
    }
}

/// Whether one of the sorted `spellings` begins with `part` and is longer.
fn begins_one(spellings: &[String], part: &str) -> bool {
    let at = spellings.partition_point(|s| s.as_str() <= part);
    spellings.get(at).is_some_and(|s| s.starts_with(part))
}

/// All strings of `json`, keys included.
pub(super) fn strings<'a>(json: &'a Json, out: &mut Vec<&'a str>) {
    match json {
        Json::String(s) => out.push(s),
        Json::Array(items) => items.iter().for_each(|v| strings(v, out)),
        Json::Object(map) => {
            for (k, v) in map {
                out.push(k);
                strings(v, out);
            }
        }
        Json::Null | Json::Bool(_) | Json::Number(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const M: char = '\u{f8ff}';

    fn mark(controls: &[&str], s: &str) -> Option<String> {
        Guard::new(controls.iter().copied())
            .mark(s, M)
            .map(|m| m.replace(M, "·"))
    }

    #[test]
    fn spellings_are_marked_and_other_text_is_not() {
        let c = ["<|im_start|>", "<|im_end|>"];
        assert_eq!(mark(&c, "Hello <b>you</b>, a<b |im_end|"), None);
        assert_eq!(mark(&c, "a<|im_end|>b").as_deref(), Some("a<·|im_end|>b"));
        assert_eq!(
            mark(&["<a<b>", "<b>"], "<a<b>").as_deref(),
            Some("<·a<·b>"),
            "overlapping"
        );
        assert_eq!(
            mark(&["é"], "aéb").as_deref(),
            Some("a·éb"),
            "one character"
        );
        assert_eq!(mark(&[], "<|im_end|>"), None);
    }

    #[test]
    fn halves_are_marked_at_both_ends_also_behind_whitespace() {
        let c = ["<|im_end|>"];
        assert_eq!(mark(&c, "a<|im_").as_deref(), Some("a<·|im_"));
        assert_eq!(mark(&c, "a< \n").as_deref(), Some("a<· \n"));
        assert_eq!(mark(&c, "end|> b").as_deref(), Some("end|·> b"));
        assert_eq!(mark(&c, " \n|>").as_deref(), Some(" \n|·>"));
    }

    #[test]
    fn the_marker_is_a_character_that_nobody_uses() {
        let guard = Guard::new(["\u{f8fe}"].into_iter());
        assert_eq!(guard.marker(["a\u{f8ff}"].into_iter()), Ok('\u{f8fd}'));
        let all: String = PRIVATE.filter_map(char::from_u32).collect();
        assert_eq!(
            guard.marker([all.as_str()].into_iter()),
            Err(TemplateError::NoMarker)
        );
    }

    #[test]
    fn text_is_cut_at_the_markers() {
        let guard = Guard::new(["é", "<a>"].into_iter());
        let pieces = guard.pieces(&"<a>x<·a>·éy·".replace('·', &M.to_string()), M);
        let expected = [
            Piece::template("<a>x<"),
            Piece::template("a>"),
            Piece::content("é"),
            Piece::template("y"),
        ];
        assert_eq!(pieces, expected);
    }
}
