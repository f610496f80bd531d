// SPDX-License-Identifier: MIT OR Apache-2.0
//! A tokenizer from `tokenizer.json`, with the special tokens' roles from `tokenizer_config.json`.
//!
//! `tokenizers` reads the file; what it would do with added tokens is done by this module's owner instead (see
//! [`added`](super::added)), so truncation, padding and dropout of the file have no effect here.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

use serde::Deserialize;
use serde_json::Value;
use tokenizers::ModelWrapper;

use super::added::Added;
use super::bytes::{Spelling, TokenBytes};
use super::{Parts, Tokenizer, TokenizerError};

/// The parts of tokenizer.json that are looked at beside `tokenizers`' own reading.
#[derive(Deserialize)]
struct Shape {
    decoder: Option<Value>,
    pre_tokenizer: Option<Value>,
}

/// The parts of tokenizer_config.json that concern the tokenizer.
#[derive(Default, Deserialize)]
struct Roles {
    bos_token: Option<Text>,
    eos_token: Option<Text>,
    pad_token: Option<Text>,
    unk_token: Option<Text>,
}

/// A special token by text, or as an object with its text.
#[derive(Deserialize)]
#[serde(untagged)]
enum Text {
    Plain(String),
    Object { content: String },
}

impl Text {
    fn as_str(&self) -> &str {
        match self {
            Self::Plain(s) | Self::Object { content: s } => s,
        }
    }
}

/// Builds the tokenizer.
pub(super) fn build(json: &[u8], config: Option<&[u8]>) -> Result<Tokenizer, TokenizerError> {
    let shape: Shape =
        serde_json::from_slice(json).map_err(|e| TokenizerError::Json(e.to_string()))?;
    let roles: Roles = match config {
        None => Roles::default(),
        Some(bytes) => serde_json::from_slice(bytes)
            .map_err(|e| TokenizerError::invalid("tokenizer_config.json", e.to_string()))?,
    };
    let mut inner = read(json)?;
    if let ModelWrapper::BPE(bpe) = inner.get_model()
        && bpe.dropout.is_some()
    {
        let mut steady = bpe.clone();
        steady.dropout = None;
        inner.with_model(steady);
    }

    let added: BTreeMap<u32, tokenizers::AddedToken> =
        inner.get_added_tokens_decoder().into_iter().collect();
    let (mut control, mut always) = (Vec::new(), Vec::new());
    for (&id, token) in &added {
        let list = if token.special {
            &mut control
        } else {
            &mut always
        };
        list.push(Added {
            id,
            text: token.content.clone(),
            lstrip: token.lstrip,
            rstrip: token.rstrip,
            single_word: token.single_word,
        });
    }
    let spelling = spelling(&shape);
    let bytes = spell(&inner, &added, spelling)?;
    let id_of = |text: &Option<Text>| text.as_ref().and_then(|t| inner.token_to_id(t.as_str()));
    let (bos, eos) = (id_of(&roles.bos_token), id_of(&roles.eos_token));
    let (padding, unknown) = (id_of(&roles.pad_token), id_of(&roles.unk_token));
    let (prefix, suffix) = frame(&inner)?;
    let strips_first_space = spelling == Spelling::SentencePiece
        && shape
            .decoder
            .as_ref()
            .is_some_and(|d| mentions(d, "Strip") || mentions(d, "Metaspace"));
    Tokenizer::assemble(Parts {
        inner,
        bytes,
        control,
        always,
        bos,
        eos,
        padding,
        unknown,
        ends: eos.into_iter().collect(),
        prefix,
        suffix,
        strips_first_space,
    })
}

/// Reads the file through the library, which panics on some contradictory ones (a merge longer than every token).
fn read(json: &[u8]) -> Result<tokenizers::Tokenizer, TokenizerError> {
    catch_unwind(AssertUnwindSafe(|| tokenizers::Tokenizer::from_bytes(json)))
        .map_err(|_| {
            TokenizerError::Json("its vocabulary and merges contradict each other".into())
        })?
        .map_err(|e| TokenizerError::Json(e.to_string()))
}

/// Ids that tokenizing puts before and after a text: what the post-processor makes of two texts, less the texts.
fn frame(inner: &tokenizers::Tokenizer) -> Result<(Vec<u32>, Vec<u32>), TokenizerError> {
    let encode = |text: &str, framed| {
        inner
            .encode_fast(text, framed)
            .map(|e| e.get_ids().to_vec())
            .map_err(|e| TokenizerError::Json(format!("its post-processor: {e}")))
    };
    let (bare, framed) = (encode("a", false)?, encode("a", true)?);
    let at = framed.windows(bare.len().max(1)).position(|w| w == bare);
    match at {
        Some(at) => Ok((framed[..at].to_vec(), framed[at + bare.len()..].to_vec())),
        None => Ok((Vec::new(), Vec::new())),
    }
}

fn spelling(shape: &Shape) -> Spelling {
    let in_either = |name| {
        [&shape.decoder, &shape.pre_tokenizer]
            .into_iter()
            .flatten()
            .any(|v| mentions(v, name))
    };
    if in_either("ByteLevel") {
        Spelling::ByteLevel
    } else if in_either("ByteFallback") || in_either("Metaspace") {
        Spelling::SentencePiece
    } else {
        Spelling::Plain
    }
}

/// Whether a component, or one inside a sequence, has the type `name`.
fn mentions(component: &Value, name: &str) -> bool {
    match component {
        Value::Object(map) => {
            map.get("type").and_then(Value::as_str) == Some(name)
                || ["decoders", "pretokenizers"]
                    .iter()
                    .any(|k| map.get(*k).is_some_and(|v| mentions(v, name)))
        }
        Value::Array(list) => list.iter().any(|v| mentions(v, name)),
        _ => false,
    }
}

fn spell(
    inner: &tokenizers::Tokenizer,
    added: &BTreeMap<u32, tokenizers::AddedToken>,
    spelling: Spelling,
) -> Result<TokenBytes, TokenizerError> {
    let mut by_id: Vec<(u32, String)> = inner
        .get_vocab(true)
        .into_iter()
        .map(|(t, id)| (id, t))
        .collect();
    by_id.sort_unstable();
    let size = by_id.last().map_or(0, |(id, _)| *id as usize + 1);
    // Ids need not be dense, but a hostile file must not buy 4 billion entries with one token.
    if size > by_id.len().saturating_mul(4).saturating_add(65_536) {
        return Err(TokenizerError::Json(format!(
            "{} tokens, but ids up to {}",
            by_id.len(),
            size - 1
        )));
    }
    let mut bytes = TokenBytes::with_capacity(size);
    for (id, text) in by_id {
        while bytes.len() < id as usize {
            bytes.push("", Spelling::Plain);
        }
        if bytes.len() == id as usize {
            bytes.push(
                &text,
                if added.contains_key(&id) {
                    Spelling::Plain
                } else {
                    spelling
                },
            );
        }
    }
    Ok(bytes)
}
