// SPDX-License-Identifier: MIT OR Apache-2.0
//! A tokenizer of bytes, and a template of two control tokens.

use std::borrow::Cow;

use metrale_server::text_face::{
    ChatInput, ChatTemplate, EncodeError, Piece, SpecialToken, Specials, TemplateError, TextModel,
};

/// Ends an answer.
const EOS: u32 = 258;
const BOS: u32 = 256;

/// Ids 0 to 255 are bytes; 256 `<s>`, 257 `<|im_start|>`, 258 `<|im_end|>`; 259 is `STOP`, a token of four bytes.
pub(crate) struct ToyModel {
    specials: Vec<SpecialToken>,
    bytes: Vec<Vec<u8>>,
}

impl ToyModel {
    pub(crate) fn new() -> ToyModel {
        let mut bytes: Vec<Vec<u8>> = (0..=255).map(|b| vec![b]).collect();
        let names = ["<s>", "<|im_start|>", "<|im_end|>"];
        bytes.extend(names.iter().map(|n| n.as_bytes().to_vec()));
        bytes.push(b"STOP".to_vec());
        let special = |(text, id): (&str, u32)| SpecialToken {
            text: text.to_owned(),
            id,
            lstrip: false,
            rstrip: false,
        };
        ToyModel {
            specials: names.into_iter().zip(BOS..).map(special).collect(),
            bytes,
        }
    }
}

impl TextModel for ToyModel {
    fn encode(&self, text: &str, specials: Specials) -> Result<Vec<u32>, EncodeError> {
        assert!(!text.contains("PANIC IN TOKENIZER"), "asked for");
        match specials {
            Specials::Parse => self.encode_pieces(&[Piece::template(text)]),
            Specials::AsText => Ok(text.bytes().map(u32::from).collect()),
        }
    }

    fn token_bytes(&self, id: u32) -> Option<Cow<'_, [u8]>> {
        self.bytes
            .get(id as usize)
            .map(|b| Cow::Borrowed(b.as_slice()))
    }

    fn special_tokens(&self) -> &[SpecialToken] {
        &self.specials
    }

    fn is_special(&self, id: u32) -> bool {
        (BOS..=EOS).contains(&id)
    }

    fn prompt_prefix(&self) -> &[u32] {
        &[BOS]
    }

    fn eos(&self) -> &[u32] {
        &[EOS]
    }

    fn vocab_size(&self) -> u32 {
        self.bytes.len() as u32
    }

    fn longest_token(&self) -> usize {
        12
    }
}

/// `<|im_start|>ROLE\nCONTENT<|im_end|>\n` for each message.
pub(crate) struct PairTemplate;

impl ChatTemplate for PairTemplate {
    fn render(&self, input: &ChatInput<'_>) -> Result<Vec<Piece>, TemplateError> {
        let mut pieces = Vec::new();
        for message in input.messages {
            let content = message.content.clone().unwrap_or_default();
            assert!(!content.contains("PANIC IN TEMPLATE"), "asked for");
            if content == "REFUSE" {
                return Err(TemplateError::Refused("no such chat".to_owned()));
            }
            pieces.push(Piece::template(format!("<|im_start|>{}\n", message.role)));
            pieces.push(Piece::content(content));
            pieces.push(Piece::template("<|im_end|>\n"));
        }
        if input.add_generation_prompt {
            pieces.push(Piece::template("<|im_start|>assistant\n"));
        }
        Ok(pieces)
    }
}
