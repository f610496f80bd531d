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
