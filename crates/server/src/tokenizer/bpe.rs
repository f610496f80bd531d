// SPDX-License-Identifier: MIT OR Apache-2.0
//! Byte-level BPE from a list of tokens and a list of merges.

use ahash::AHashMap;
use tokenizers::models::bpe::BPE;

use super::TokenizerError;
use super::pre::Pre;

const MERGES: &str = "tokenizer.ggml.merges";

/// Builds the `tokenizers` object. `tokens` are the ordinary tokens with their ids, `merges` are `left right` by rank.
pub(super) fn build(
    tokens: &[(&str, u32)],
    merges: &[String],
    pre: Pre,
) -> Result<tokenizers::Tokenizer, TokenizerError> {
    if merges.is_empty() {
        return Err(TokenizerError::Missing { key: MERGES });
    }
    let mut vocab = AHashMap::with_capacity(tokens.len());
    for &(text, id) in tokens {
        vocab.entry(text.to_owned()).or_insert(id); // of two equal tokens only the first can be reached
    }
    let mut pairs = Vec::with_capacity(merges.len());
    let mut joined = String::new();
    for (rank, merge) in merges.iter().enumerate() {
        let (left, right) = split(merge).ok_or_else(|| {
            TokenizerError::invalid(
                MERGES,
                format!("entry {rank}, `{merge}`, is not two tokens"),
            )
        })?;
        joined.clear();
        joined.push_str(left);
        joined.push_str(right);
        for token in [left, right, joined.as_str()] {
            if !vocab.contains_key(token) {
                let what = format!(
                    "entry {rank}, `{merge}`, needs the token `{token}`, which the vocabulary lacks"
                );
                return Err(TokenizerError::invalid(MERGES, what));
            }
        }
        pairs.push((left.to_owned(), right.to_owned()));
    }
    finish(vocab, pairs, pre)
}

fn finish(
    vocab: AHashMap<String, u32>,
    pairs: Vec<(String, String)>,
    pre: Pre,
) -> Result<tokenizers::Tokenizer, TokenizerError> {
    let model = BPE::builder()
        .vocab_and_merges(vocab, pairs)
        .ignore_merges(pre.whole_words)
        .build()
        .map_err(|e| TokenizerError::invalid(MERGES, e.to_string()))?;
    let mut inner = tokenizers::Tokenizer::new(model);
    inner.with_pre_tokenizer(Some(pre.pre_tokenizer));
    inner
        .with_normalizer(pre.normalizer)
        .map_err(|e| TokenizerError::invalid("tokenizer.ggml.pre", e.to_string()))?;
    Ok(inner)
}

/// The two tokens of a merge: a space parts them, and a token may begin with one.
fn split(merge: &str) -> Option<(&str, &str)> {
    let first = merge.chars().next()?.len_utf8();
    let at = first + merge[first..].find(' ')?;
    let (left, right) = (&merge[..at], &merge[at + 1..]);
    (!right.is_empty()).then_some((left, right))
}

#[cfg(test)]
mod tests {
    use super::super::pre;
    use super::*;

    fn refusal(tokens: &[&str], merges: &[&str]) -> String {
        let tokens: Vec<(&str, u32)> = tokens.iter().copied().zip(0..).collect();
        let merges: Vec<String> = merges.iter().map(|m| (*m).to_owned()).collect();
        build(&tokens, &merges, pre::find("gpt-2").unwrap())
            .map(|_| ())
            .unwrap_err()
            .to_string()
    }

    #[test]
    fn a_merge_outside_the_vocabulary_is_refused_by_rank_and_name() {
        let e = refusal(&["a", "b"], &["a b"]);
        assert!(e.contains("entry 0, `a b`") && e.contains("`ab`"), "{e}");
        assert!(refusal(&["a", "b", "ab"], &["a b", "ab c"]).contains("`c`"));
        assert!(refusal(&["a", "b", "ab"], &["ab"]).contains("is not two tokens"));
        assert!(refusal(&["a", "b", "ab"], &[""]).contains("is not two tokens"));
        assert!(refusal(&["a"], &[]).contains("tokenizer.ggml.merges"));
    }
}
