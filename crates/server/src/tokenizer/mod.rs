// SPDX-License-Identifier: MIT OR Apache-2.0
//! Text to token ids and back, from a GGUF header or a `tokenizer.json`.
//!
//! The vocabulary's own algorithm (normalizer, pre-tokenizer, BPE) is a `tokenizers` object. What stands around it is done
//! here, because a server needs more than the library offers: control tokens are matched in a template's text and spelt out
//! in a message's ([`Specials`], [`Piece`]), both in one pass over one string; every token has exact bytes
//! ([`Tokenizer::token_bytes`]).
//!
//! Invariants: every id that comes out is below [`Tokenizer::vocab_size`]; no input, invalid UTF-8 included, panics; with
//! [`Specials::AsText`] no control token comes out, whatever the text.

mod absent;
mod added;
mod bpe;
mod bytes;
mod error;
mod face;
mod gguf;
mod hf;
mod pre;
mod spm;

use std::ops::Range;
use std::path::Path;

use crate::text_face::{Origin, Piece, SpecialToken};
use metrale_config::gguf::GgufHeader;
use metrale_model_weights::{Checkpoint, read_small};
use tokenizers::tokenizer::normalizer::Range as Within;
use tokenizers::{Model, Normalizer, OffsetType, PreTokenizedString, PreTokenizer, Token};

use self::added::{Added, Found, Matcher};
use self::bytes::TokenBytes;

pub use self::absent::NoTokenizer;
pub use self::error::TokenizerError;
pub use crate::text_face::Specials;

/// A checkpoint's tokenizer. Shared by all requests; immutable.
#[derive(Debug)]
pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    bytes: TokenBytes,
    control: Matcher,
    always: Matcher,
    is_control: Vec<bool>,
    specials: Vec<SpecialToken>,
    longest: usize,
    bos: Option<u32>,
    eos: Option<u32>,
    padding: Option<u32>,
    unknown: Option<u32>,
    ends: Vec<u32>,
    prefix: Vec<u32>,
    suffix: Vec<u32>,
    strips_first_space: bool,
}

/// What the two readers hand over.
struct Parts {
    inner: tokenizers::Tokenizer,
    bytes: TokenBytes,
    control: Vec<Added>,
    always: Vec<Added>,
    bos: Option<u32>,
    eos: Option<u32>,
    padding: Option<u32>,
    unknown: Option<u32>,
    ends: Vec<u32>,
    prefix: Vec<u32>,
    suffix: Vec<u32>,
    strips_first_space: bool,
}

/// Bytes of a tokenizer.json at most; the largest in use have a tenth.
const FILE_LIMIT: u64 = 512 << 20;

impl Tokenizer {
    /// Builds the tokenizer that a GGUF header describes.
    ///
    /// # Errors
    /// [`TokenizerError`] if a key is missing or contradicts another, or the algorithm or pre-tokenizer is unknown.
    pub fn from_gguf(header: &GgufHeader) -> Result<Self, TokenizerError> {
        gguf::build(&gguf::Facts::read(header)?)
    }

    /// Builds the tokenizer of a `tokenizer.json`; `config` is `tokenizer_config.json`, which names BOS, EOS and padding.
    ///
    /// # Errors
    /// [`TokenizerError::Json`] if the file is not one that the `tokenizers` library reads.
    pub fn from_json(json: &[u8], config: Option<&[u8]>) -> Result<Self, TokenizerError> {
        hf::build(json, config)
    }

    /// Builds the tokenizer of an opened checkpoint, with the ends that its configuration states. A tokenizer.json beside a
    /// GGUF file is not looked at: the header is the one that belongs to the weights.
    ///
    /// # Errors
    /// [`TokenizerError`]; [`TokenizerError::File`] if a file cannot be read.
    pub fn from_checkpoint(checkpoint: &Checkpoint) -> Result<Self, TokenizerError> {
        let read = |path: &Path| read_small(path, FILE_LIMIT);
        let tokenizer = match (&checkpoint.gguf, &checkpoint.files.tokenizer) {
            (Some(header), _) => Self::from_gguf(header)?,
            (None, Some(path)) => {
                let config = checkpoint
                    .files
                    .tokenizer_config
                    .as_deref()
                    .map(read)
                    .transpose()?;
                Self::from_json(&read(path)?, config.as_deref())?
            }
            (None, None) => {
                return Err(TokenizerError::Missing {
                    key: "tokenizer.json",
                });
            }
        };
        Ok(tokenizer.with_ends(&checkpoint.config.eos))
    }

    fn assemble(parts: Parts) -> Result<Self, TokenizerError> {
        let mut is_control = vec![false; parts.bytes.len()];
        for token in &parts.control {
            if let Some(slot) = is_control.get_mut(token.id as usize) {
                *slot = true;
            }
        }
        let specials = parts.control.iter().map(SpecialToken::from).collect();
        let longest = (0..parts.bytes.len() as u32)
            .filter_map(|id| parts.bytes.get(id))
            .map(<[u8]>::len)
            .max();
        Ok(Self {
            inner: parts.inner,
            bytes: parts.bytes,
            control: Matcher::new(parts.control)?,
            always: Matcher::new(parts.always)?,
            is_control,
            specials,
            longest: longest.unwrap_or(0),
            bos: parts.bos,
            eos: parts.eos,
            padding: parts.padding,
            unknown: parts.unknown,
            ends: sorted(parts.ends),
            prefix: parts.prefix,
            suffix: parts.suffix,
            strips_first_space: parts.strips_first_space,
        })
    }

    /// Ids of `text`. With `frame`, the ids that the checkpoint puts around a text (BOS, mostly) are added.
    ///
    /// # Errors
    /// [`TokenizerError::Encode`] if the vocabulary cannot express the text.
    pub fn encode(
        &self,
        text: &str,
        specials: Specials,
        frame: bool,
    ) -> Result<Vec<u32>, TokenizerError> {
        let mut found = Vec::new();
        if specials == Specials::Parse {
            self.control.find(text, 0..text.len(), &mut found);
        }
        let ids = self.encode_around(text, found)?;
        Ok(if frame { self.framed(ids) } else { ids })
    }

    /// Ids of a rendered prompt, tokenized as one string in which control tokens are matched where one piece of the
    /// template's holds them whole.
    ///
    /// # Errors
    /// As [`encode`](Self::encode).
    pub fn encode_prompt(&self, pieces: &[Piece]) -> Result<Vec<u32>, TokenizerError> {
        let mut text = String::with_capacity(pieces.iter().map(|p| p.text.len()).sum());
        let mut found = Vec::new();
        for piece in pieces {
            let start = text.len();
            text.push_str(&piece.text);
            if piece.origin == Origin::Template {
                self.control.find(&text, start..text.len(), &mut found);
            }
        }
        self.encode_around(&text, found)
    }

    /// Ids of bytes that may not be UTF-8: each byte that is part of no character counts as U+FFFD.
    ///
    /// # Errors
    /// As [`encode`](Self::encode).
    pub fn encode_bytes(
        &self,
        bytes: &[u8],
        specials: Specials,
        frame: bool,
    ) -> Result<Vec<u32>, TokenizerError> {
        let mut text = String::with_capacity(bytes.len());
        for chunk in bytes.utf8_chunks() {
            text.push_str(chunk.valid());
            text.extend(chunk.invalid().iter().map(|_| char::REPLACEMENT_CHARACTER));
        }
        self.encode(&text, specials, frame)
    }

    /// `ids` with what the checkpoint puts before and after a text.
    fn framed(&self, ids: Vec<u32>) -> Vec<u32> {
        self.prefix
            .iter()
            .copied()
            .chain(ids)
            .chain(self.suffix.iter().copied())
            .collect()
    }

    /// Tokenizes `text`, in which `control` has been found: what lies between is searched for the tokens that always match,
    /// and the rest goes through the vocabulary's own algorithm as one string with holes.
    fn encode_around(&self, text: &str, control: Vec<Found>) -> Result<Vec<u32>, TokenizerError> {
        let mut found = Vec::with_capacity(control.len());
        let mut start = 0;
        for f in control {
            self.always.find(text, start..f.range.start, &mut found);
            start = f.range.end;
            found.push(f);
        }
        self.always.find(text, start..text.len(), &mut found);
        self.encode_pieces(text, &found)
            .map_err(|e| TokenizerError::Encode(e.to_string()))
    }

    fn encode_pieces(&self, text: &str, found: &[Found]) -> tokenizers::Result<Vec<u32>> {
        let mut string = PreTokenizedString::from(text);
        if !found.is_empty() {
            // Nothing is normalized yet, so both ranges are the same; finding an original one would cost the whole text.
            string.split(|_, whole| {
                let piece = |range: Range<usize>, id: Option<u32>| {
                    let len = range.len();
                    let tokens = id.map(|id| vec![Token::new(id, String::new(), (0, len))]);
                    whole
                        .slice(Within::Normalized(range))
                        .map(|s| (s, tokens))
                        .ok_or("a token off a character's border")
                };
                let mut pieces = Vec::with_capacity(found.len() * 2 + 1);
                let mut start = 0;
                for f in found {
                    if start < f.range.start {
                        pieces.push(piece(start..f.range.start, None)?);
                    }
                    pieces.push(piece(f.range.clone(), Some(f.id))?);
                    start = f.range.end;
                }
                if start < text.len() {
                    pieces.push(piece(start..text.len(), None)?);
                }
                Ok(pieces)
            })?;
        }
        if let Some(normalizer) = self.inner.get_normalizer() {
            string.normalize(|s| normalizer.normalize(s))?;
        }
        if let Some(pre) = self.inner.get_pre_tokenizer() {
            pre.pre_tokenize(&mut string)?;
        }
        let model = self.inner.get_model();
        string.tokenize(|s| model.tokenize(s.get()))?;
        Ok(string
            .into_encoding(None, 0, OffsetType::None)?
            .get_ids()
            .to_vec())
    }

    /// The exact bytes that the token stands for; `None` outside the vocabulary. Control tokens have the bytes of their
    /// spelling.
    pub fn token_bytes(&self, id: u32) -> Option<&[u8]> {
        self.bytes.get(id)
    }

    /// Text of `ids`. With `skip_control`, control tokens leave no trace.
    ///
    /// # Errors
    /// [`TokenizerError::UnknownId`] for an id outside the vocabulary.
    pub fn decode(&self, ids: &[u32], skip_control: bool) -> Result<String, TokenizerError> {
        let mut bytes = Vec::new();
        for &id in ids {
            let token = self.token_bytes(id).ok_or(TokenizerError::UnknownId {
                id,
                size: self.vocab_size(),
            })?;
            if !(skip_control && self.is_control(id)) {
                bytes.extend_from_slice(token);
            }
        }
        let start = usize::from(self.strips_first_space && bytes.first() == Some(&b' '));
        Ok(String::from_utf8_lossy(&bytes[start..]).into_owned())
    }

    /// Whether the token carries structure and no text.
    pub fn is_control(&self, id: u32) -> bool {
        self.is_control.get(id as usize).copied().unwrap_or(false)
    }

    /// The id of a token by its text as a user would write it: a control token, one that always matches, or a word that
    /// is a single token.
    pub fn token_id(&self, text: &str) -> Option<u32> {
        let ids = self.encode(text, Specials::Parse, false).ok()?;
        match ids[..] {
            [id] if self.token_bytes(id) == Some(text.as_bytes()) => Some(id),
            _ => None,
        }
    }

    /// The spellings of all control tokens.
    pub fn control_texts(&self) -> impl Iterator<Item = &str> {
        self.control.texts()
    }

    /// Number of ids, which is one more than the highest.
    pub fn vocab_size(&self) -> usize {
        self.bytes.len()
    }

    /// Begin of sequence.
    pub fn bos(&self) -> Option<u32> {
        self.bos
    }

    /// End of sequence.
    pub fn eos(&self) -> Option<u32> {
        self.eos
    }

    /// Padding.
    pub fn padding(&self) -> Option<u32> {
        self.padding
    }

    /// The token that stands for what the vocabulary cannot express.
    pub fn unknown(&self) -> Option<u32> {
        self.unknown
    }

    /// Tokens that the tokenizer's own data says end an answer (end of sequence, of turn, of message), ascending.
    pub fn ends(&self) -> &[u32] {
        &self.ends
    }

    /// Adds tokens that end an answer, from the checkpoint's generation settings.
    #[must_use]
    pub fn with_ends(mut self, more: &[u32]) -> Self {
        self.ends
            .extend(more.iter().filter(|&&id| (id as usize) < self.bytes.len()));
        self.ends = sorted(self.ends);
        self
    }

    /// Text of a token as it would stand in a template (`bos_token`), if it is valid UTF-8.
    pub fn token_text(&self, id: u32) -> Option<&str> {
        std::str::from_utf8(self.token_bytes(id)?).ok()
    }
}

fn sorted(mut ids: Vec<u32>) -> Vec<u32> {
    ids.sort_unstable();
    ids.dedup();
    ids
}
