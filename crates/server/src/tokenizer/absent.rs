// SPDX-License-Identifier: MIT OR Apache-2.0
//! What stands in the place of a tokenizer where a model has none: token ids in, token ids out.

use std::borrow::Cow;

use crate::text_face::{EncodeError, SpecialToken, Specials, TextModel};

/// A model without a tokenizer (`--load-format dummy` from a config.json alone). Prompts are token ids; the text of an
/// answer is its ids in decimal, each followed by a space.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NoTokenizer {
    vocab: u32,
    ends: Vec<u32>,
}

impl NoTokenizer {
    /// For ids below `vocab`, of which `ends` end an answer.
    #[must_use]
    pub fn new(vocab: u32, ends: &[u32]) -> NoTokenizer {
        let ends = ends.iter().copied().filter(|id| *id < vocab).collect();
        NoTokenizer { vocab, ends }
    }
}

impl TextModel for NoTokenizer {
    fn encode(&self, _: &str, _: Specials) -> Result<Vec<u32>, EncodeError> {
        Err(EncodeError {
            why: "the model has none: give token ids".to_owned(),
        })
    }

    fn token_bytes(&self, id: u32) -> Option<Cow<'_, [u8]>> {
        (id < self.vocab).then(|| Cow::Owned(format!("{id} ").into_bytes()))
    }

    fn reads_text(&self) -> bool {
        false
    }

    fn special_tokens(&self) -> &[SpecialToken] {
        &[]
    }

    fn is_special(&self, _: u32) -> bool {
        false
    }

    fn prompt_prefix(&self) -> &[u32] {
        &[]
    }

    fn eos(&self) -> &[u32] {
        &self.ends
    }

    fn vocab_size(&self) -> u32 {
        self.vocab
    }

    fn longest_token(&self) -> usize {
        // Ten digits and a space.
        11
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_their_own_text_and_text_is_refused() {
        let text = NoTokenizer::new(100, &[7, 100]);
        assert_eq!(text.decode(&[5, 99]), "5 99 ");
        assert_eq!(text.token_bytes(100), None);
        assert_eq!(text.eos(), [7]);
        let said = text.encode("5", Specials::AsText).unwrap_err().to_string();
        assert!(said.contains("token ids"), "{said}");
    }
}
