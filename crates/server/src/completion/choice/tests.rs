// SPDX-License-Identifier: MIT OR Apache-2.0
//! Streamed equals unstreamed, whatever the borders of the tokens.

use super::*;
use crate::text_face::{EncodeError, SpecialToken, Specials};

/// A vocabulary given by its tokens' bytes; id 0 is special.
struct Tokens(Vec<Vec<u8>>);

impl TextModel for Tokens {
    fn encode(&self, _: &str, _: Specials) -> Result<Vec<u32>, EncodeError> {
        Ok(Vec::new())
    }
    fn token_bytes(&self, id: u32) -> Option<Cow<'_, [u8]>> {
        self.0.get(id as usize).map(|b| Cow::Borrowed(b.as_slice()))
    }
    fn special_tokens(&self) -> &[SpecialToken] {
        &[]
    }
    fn is_special(&self, id: u32) -> bool {
        id == 0
    }
    fn prompt_prefix(&self) -> &[u32] {
        &[]
    }
    fn eos(&self) -> &[u32] {
        &[]
    }
    fn vocab_size(&self) -> u32 {
        self.0.len() as u32
    }
    fn longest_token(&self) -> usize {
        16
    }
}

/// Runs the tokens `pieces` (ids from 1 on) and gives the deltas; stops as a server would.
fn run(pieces: &[&[u8]], stop: &[&str]) -> Vec<Delta> {
    let mut tokens = vec![b"<end>".to_vec()];
    tokens.extend(pieces.iter().map(|p| p.to_vec()));
    let options = ChoiceOptions {
        stop: stop.iter().map(|s| (*s).to_owned()).collect(),
        skip_special: true,
        entries: true,
        ..ChoiceOptions::default()
    };
    let mut choice = Choice::new(Arc::new(Tokens(tokens)), &options);
    let mut deltas = Vec::new();
    for id in 1..=pieces.len() as u32 {
        deltas.push(choice.token(id, -1.0, Vec::new()));
        if deltas.last().is_some_and(|d| d.finish.is_some()) {
            return deltas;
        }
    }
    deltas.push(choice.finish(Finish::Length));
    deltas
}

fn joined(deltas: Vec<Delta>) -> Delta {
    deltas.into_iter().fold(Delta::default(), |mut all, d| {
        all.append(d);
        all
    })
}

/// Every way to cut `bytes` into pieces.
fn cuttings(bytes: &[u8]) -> Vec<Vec<&[u8]>> {
    (0..1_u32 << (bytes.len() - 1))
        .map(|cuts| {
            let mut pieces = Vec::new();
            let mut start = 0;
            for end in 1..=bytes.len() {
                if end == bytes.len() || cuts >> (end - 1) & 1 == 1 {
                    pieces.push(&bytes[start..end]);
                    start = end;
                }
            }
            pieces
        })
        .collect()
}

#[test]
fn the_text_is_the_same_at_every_border() {
    let cases: [(&[u8], &[&str], &str); 4] = [
        ("né😀.".as_bytes(), &[], "né😀."),
        ("a😀STOP".as_bytes(), &["STOP"], "a😀"),
        ("né😀x".as_bytes(), &["😀"], "né"),
        (b"a\xff\xf0\x9f##", &["##"], "a\u{FFFD}\u{FFFD}"),
    ];
    for (bytes, stop, want) in cases {
        for pieces in cuttings(bytes) {
            let all = joined(run(&pieces, stop));
            assert_eq!(all.text, want, "{pieces:?}");
        }
    }
}

#[test]
fn no_delta_holds_part_of_a_stop_text() {
    for pieces in cuttings(b"ab<|x|>cd") {
        let mut shown = String::new();
        for delta in run(&pieces, &["<|x|>"]) {
            shown.push_str(&delta.text);
            assert!("ab".starts_with(&shown), "{shown:?} of {pieces:?}");
        }
    }
}

#[test]
fn an_entry_comes_with_its_last_byte() {
    let deltas = run(&[b"\xf0\x9f", b"\x98\x80b", b"c"], &[]);
    let entries: Vec<usize> = deltas.iter().map(|d| d.entries.len()).collect();
    assert_eq!(entries, [0, 2, 1, 0]);
    let offsets: Vec<u64> = deltas
        .iter()
        .flat_map(|d| d.entries.iter().map(|e| e.text_offset))
        .collect();
    assert_eq!(offsets, [0, 0, 2]);
}

#[test]
fn entries_of_the_stop_text_are_left_out() {
    // "c" is wholly in the stop text, "b#" begins before it.
    let all = joined(run(&[b"a", b"b#", b"c", b"#d"], &["#c#"]));
    assert_eq!(all.text, "ab");
    let tokens: Vec<u32> = all.entries.iter().map(|e| e.token).collect();
    assert_eq!(tokens, [1, 2]);
    assert_eq!(all.finish, Some(Finish::Stop));
}

#[test]
fn a_special_token_has_an_entry_and_no_text() {
    let options = ChoiceOptions {
        skip_special: true,
        entries: true,
        ..ChoiceOptions::default()
    };
    let model = Arc::new(Tokens(vec![b"<end>".to_vec(), b"a".to_vec()]));
    let mut choice = Choice::new(model, &options);
    let delta = choice.token(0, -0.5, Vec::new());
    assert_eq!((delta.text.as_str(), delta.entries.len()), ("", 1));
}
