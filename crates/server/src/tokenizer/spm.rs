// SPDX-License-Identifier: MIT OR Apache-2.0
//! SentencePiece BPE from a list of tokens and scores.
//!
//! The file holds no merges: the algorithm joins the two neighbours whose joined token has the highest score. Written as
//! merges, that is every way to part a token into two others, ranked by the token's score. Characters outside the
//! vocabulary fall back to the 256 byte tokens.

use ahash::AHashMap;
use tokenizers::NormalizerWrapper;
use tokenizers::models::bpe::BPE;
use tokenizers::normalizers::{Prepend, Replace, Sequence};

use super::TokenizerError;
use super::bytes::byte_token;

const SCORES: &str = "tokenizer.ggml.scores";

/// Builds the `tokenizers` object. `scores` has an entry for every id of the vocabulary.
pub(super) fn build(
    tokens: &[(&str, u32)],
    scores: &[f32],
    unknown: Option<u32>,
    prefix_space: bool,
) -> Result<tokenizers::Tokenizer, TokenizerError> {
    if scores.is_empty() {
        return Err(TokenizerError::Missing { key: SCORES });
    }
    let mut vocab = AHashMap::with_capacity(tokens.len());
    for &(text, id) in tokens {
        vocab.entry(text.to_owned()).or_insert(id);
    }
    let unknown_text = tokens
        .iter()
        .find(|(_, id)| Some(*id) == unknown)
        .map(|(t, _)| (*t).to_owned());
    let merges = merges(tokens, scores, &vocab);
    let mut builder = BPE::builder()
        .vocab_and_merges(vocab, merges)
        .byte_fallback(true)
        .fuse_unk(true);
    if let Some(text) = unknown_text {
        builder = builder.unk_token(text);
    }
    let model = builder
        .build()
        .map_err(|e| TokenizerError::invalid("tokenizer.ggml.tokens", e.to_string()))?;
    let spaces = Replace::new(" ", "\u{2581}")
        .map_err(|e| TokenizerError::invalid("tokenizer.ggml.tokens", e.to_string()))?;
    let mut steps = Vec::new();
    if prefix_space {
        steps.push(NormalizerWrapper::Prepend(Prepend::new(
            "\u{2581}".to_owned(),
        )));
    }
    steps.push(NormalizerWrapper::Replace(spaces));
    let mut inner = tokenizers::Tokenizer::new(model);
    inner
        .with_normalizer(Some(NormalizerWrapper::Sequence(Sequence::new(steps))))
        .map_err(|e| TokenizerError::invalid("tokenizer.ggml.model", e.to_string()))?;
    Ok(inner)
}

fn merges(
    tokens: &[(&str, u32)],
    scores: &[f32],
    vocab: &AHashMap<String, u32>,
) -> Vec<(String, String)> {
    let score = |id: u32| scores.get(id as usize).copied().unwrap_or(f32::MIN);
    let mut ranked: Vec<(f32, u32, usize, &str)> = Vec::new();
    for &(text, id) in tokens {
        if vocab.get(text) != Some(&id) || byte_token(text).is_some() {
            continue;
        }
        for (at, _) in text.char_indices().skip(1) {
            if vocab.contains_key(&text[..at]) && vocab.contains_key(&text[at..]) {
                ranked.push((score(id), id, at, text));
            }
        }
    }
    ranked.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)).then(a.2.cmp(&b.2)));
    ranked
        .into_iter()
        .map(|(_, _, at, text)| (text[..at].to_owned(), text[at..].to_owned()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::gguf::{Facts, build};
    use crate::text_face::Specials;
    use crate::tokenizer::Tokenizer;

    /// A vocabulary of its own kind: `<unk> <s> </s>`, the 256 bytes, then the tokens given, each with its score.
    fn tokenizer(tokens: &[(&str, f32)], user_defined: &[&str]) -> Tokenizer {
        let mut facts = Facts {
            model: "llama".into(),
            bos: Some(1),
            eos: Some(2),
            unknown: Some(0),
            ..Facts::default()
        };
        let mut put = |text: String, kind: i64, score: f32| {
            facts.tokens.push(text);
            facts.types.push(kind);
            facts.scores.push(score);
        };
        for (text, kind) in [("<unk>", 2), ("<s>", 3), ("</s>", 3)] {
            put(text.into(), kind, 0.0);
        }
        (0..=255u8).for_each(|b| put(format!("<0x{b:02X}>"), 6, 0.0));
        for (text, score) in tokens {
            put((*text).into(), 1, *score);
        }
        for text in user_defined {
            put((*text).into(), 4, 0.0);
        }
        build(&facts).unwrap()
    }

    fn texts(t: &Tokenizer, text: &str) -> Vec<String> {
        let ids = t.encode(text, Specials::Parse, true).unwrap();
        ids.into_iter()
            .map(|id| String::from_utf8_lossy(t.token_bytes(id).unwrap()).into_owned())
            .collect()
    }

    #[test]
    fn the_pair_with_the_highest_score_is_joined_first() {
        let base = [("\u{2581}", -9.0), ("a", -9.0), ("b", -9.0), ("c", -9.0)];
        let left = [&base[..], &[("ab", -1.0), ("bc", -2.0)]].concat();
        let right = [&base[..], &[("ab", -2.0), ("bc", -1.0)]].concat();
        // BOS, the space that opens a text, then the joined pair and the rest.
        assert_eq!(
            texts(&tokenizer(&left, &[]), "abc"),
            ["<s>", " ", "ab", "c"]
        );
        assert_eq!(
            texts(&tokenizer(&right, &[]), "abc"),
            ["<s>", " ", "a", "bc"]
        );
    }

    #[test]
    fn what_the_vocabulary_lacks_falls_back_to_bytes() {
        let t = tokenizer(&[("\u{2581}", -1.0), ("a", -1.0)], &[]);
        assert_eq!(
            t.encode("a\u{e9}", Specials::AsText, false).unwrap(),
            [259, 260, 3 + 0xc3, 3 + 0xa9]
        );
        assert_eq!(
            t.decode(&[259, 260, 3 + 0xc3, 3 + 0xa9], true).unwrap(),
            "a\u{e9}"
        );
    }

    #[test]
    fn user_defined_tokens_are_split_off_first() {
        let t = tokenizer(
            &[("\u{2581}", -1.0), ("\n", -1.0), ("\n\n", -0.5)],
            &["\n\n\n"],
        );
        assert_eq!(
            t.encode("\n\n\n\n", Specials::AsText, false).unwrap()[0],
            262
        );
    }

    #[test]
    fn scores_of_another_length_are_refused() {
        let facts = Facts {
            model: "llama".into(),
            tokens: vec!["a".into(), "b".into()],
            scores: vec![0.0],
            ..Facts::default()
        };
        assert!(
            build(&facts)
                .unwrap_err()
                .to_string()
                .contains("1 entries for 2 tokens")
        );
    }
}
