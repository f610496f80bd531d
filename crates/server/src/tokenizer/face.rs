// SPDX-License-Identifier: MIT OR Apache-2.0
//! The tokenizer as the HTTP side sees it.

use std::borrow::Cow;

use super::added::Added;
use super::{Tokenizer, TokenizerError};
use crate::text_face::{EncodeError, Piece, SpecialToken, Specials, TextModel};

impl From<&Added> for SpecialToken {
    fn from(token: &Added) -> Self {
        Self {
            text: token.text.clone(),
            id: token.id,
            lstrip: token.lstrip,
            rstrip: token.rstrip,
        }
    }
}

impl From<TokenizerError> for EncodeError {
    fn from(e: TokenizerError) -> Self {
        Self { why: e.to_string() }
    }
}

impl TextModel for Tokenizer {
    fn encode(&self, text: &str, specials: Specials) -> Result<Vec<u32>, EncodeError> {
        Ok(self.encode(text, specials, false)?)
    }

    fn token_bytes(&self, id: u32) -> Option<Cow<'_, [u8]>> {
        self.token_bytes(id).map(Cow::Borrowed)
    }

    fn special_tokens(&self) -> &[SpecialToken] {
        &self.specials
    }

    fn is_special(&self, id: u32) -> bool {
        self.is_control(id)
    }

    fn prompt_prefix(&self) -> &[u32] {
        &self.prefix
    }

    fn eos(&self) -> &[u32] {
        self.ends()
    }

    fn vocab_size(&self) -> u32 {
        // Ids are u32, and the readers bound a vocabulary far below.
        u32::try_from(self.vocab_size()).unwrap_or(u32::MAX)
    }

    fn longest_token(&self) -> usize {
        self.longest
    }

    fn encode_pieces(&self, pieces: &[Piece]) -> Result<Vec<u32>, EncodeError> {
        Ok(self.encode_prompt(pieces)?)
    }
}
