// SPDX-License-Identifier: MIT OR Apache-2.0
//! A tokenizer from the `tokenizer.ggml.*` keys of a GGUF header.
//!
//! Two algorithms are known: `gpt2` (byte-level BPE: tokens, merges and the name of a pre-tokenizer) and `llama`
//! (SentencePiece BPE: tokens and scores). Token types 3 (control) and 4 (user defined) become added tokens and leave the
//! vocabulary proper, so that no sequence of merges can reach them. Source: the GGUF specification, "Tokenizer".

use metrale_config::gguf::{GgufArray, GgufHeader, GgufValue};

use super::added::Added;
use super::bytes::{Spelling, TokenBytes};
use super::{Parts, Tokenizer, TokenizerError, bpe, pre, spm};

const CONTROL: i64 = 3;
const USER_DEFINED: i64 = 4;
const UNUSED: i64 = 5;

/// Bytes of one token. The longest in published vocabularies are runs of some hundred spaces; finding the merges of a
/// token costs the square of its length.
const LONGEST_TOKEN: usize = 4096;

/// What a GGUF header says about its tokenizer, types checked.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Facts {
    pub(super) model: String,
    pub(super) pre: Option<String>,
    pub(super) tokens: Vec<String>,
    /// One per token, or empty: all are ordinary.
    pub(super) types: Vec<i64>,
    /// One per token, or empty.
    pub(super) scores: Vec<f32>,
    pub(super) merges: Vec<String>,
    pub(super) bos: Option<u32>,
    pub(super) eos: Option<u32>,
    pub(super) eot: Option<u32>,
    pub(super) eom: Option<u32>,
    pub(super) unknown: Option<u32>,
    pub(super) padding: Option<u32>,
    pub(super) add_bos: Option<bool>,
    pub(super) add_eos: Option<bool>,
    pub(super) add_space_prefix: Option<bool>,
}

impl Facts {
    /// Reads the keys; a key of another type than the specification's is an error.
    pub(super) fn read(header: &GgufHeader) -> Result<Self, TokenizerError> {
        let tokens = strings(header, "tokenizer.ggml.tokens")?;
        let size = tokens.len();
        let facts = Self {
            model: header
                .get("tokenizer.ggml.model")
                .and_then(GgufValue::as_str)
                .ok_or(TokenizerError::Missing {
                    key: "tokenizer.ggml.model",
                })?
                .to_owned(),
            pre: header
                .get("tokenizer.ggml.pre")
                .and_then(GgufValue::as_str)
                .map(str::to_owned),
            tokens,
            types: integers(header, "tokenizer.ggml.token_type")?,
            scores: floats(header, "tokenizer.ggml.scores")?,
            merges: strings(header, "tokenizer.ggml.merges")?,
            bos: id(header, "tokenizer.ggml.bos_token_id", size)?,
            eos: id(header, "tokenizer.ggml.eos_token_id", size)?,
            eot: id(header, "tokenizer.ggml.eot_token_id", size)?,
            eom: id(header, "tokenizer.ggml.eom_token_id", size)?,
            unknown: id(header, "tokenizer.ggml.unknown_token_id", size)?,
            padding: id(header, "tokenizer.ggml.padding_token_id", size)?,
            add_bos: flag(header, "tokenizer.ggml.add_bos_token")?,
            add_eos: flag(header, "tokenizer.ggml.add_eos_token")?,
            add_space_prefix: flag(header, "tokenizer.ggml.add_space_prefix")?,
        };
        Ok(facts)
    }

    fn token_type(&self, id: usize) -> i64 {
        self.types.get(id).copied().unwrap_or(1)
    }
}

/// Builds the tokenizer.
pub(super) fn build(facts: &Facts) -> Result<Tokenizer, TokenizerError> {
    let size = facts.tokens.len();
    if size == 0 {
        return Err(TokenizerError::Missing {
            key: "tokenizer.ggml.tokens",
        });
    }
    for (key, len) in [
        ("tokenizer.ggml.token_type", facts.types.len()),
        ("tokenizer.ggml.scores", facts.scores.len()),
    ] {
        if len != 0 && len != size {
            return Err(TokenizerError::invalid(
                key,
                format!("has {len} entries for {size} tokens"),
            ));
        }
    }
    if let Some(id) = facts.tokens.iter().position(|t| t.len() > LONGEST_TOKEN) {
        let what = format!(
            "token {id} is {} bytes long, above {LONGEST_TOKEN}",
            facts.tokens[id].len()
        );
        return Err(TokenizerError::invalid("tokenizer.ggml.tokens", what));
    }
    let ordinary: Vec<(&str, u32)> = (0u32..)
        .zip(&facts.tokens)
        .filter(|(id, _)| {
            !matches!(
                facts.token_type(*id as usize),
                CONTROL | USER_DEFINED | UNUSED
            )
        })
        .map(|(id, text)| (text.as_str(), id))
        .collect();
    let (inner, spelling) = match facts.model.as_str() {
        "gpt2" => {
            let name = facts.pre.as_deref().ok_or(TokenizerError::Missing {
                key: "tokenizer.ggml.pre",
            })?;
            (
                bpe::build(&ordinary, &facts.merges, pre::find(name)?)?,
                Spelling::ByteLevel,
            )
        }
        "llama" => {
            let prefix = facts.add_space_prefix.unwrap_or(true);
            (
                spm::build(&ordinary, &facts.scores, facts.unknown, prefix)?,
                Spelling::SentencePiece,
            )
        }
        other => {
            return Err(TokenizerError::UnknownModel {
                model: other.to_owned(),
                known: "gpt2, llama".into(),
            });
        }
    };
    let mut bytes = TokenBytes::with_capacity(size);
    let (mut control, mut always) = (Vec::new(), Vec::new());
    for (id, text) in (0u32..).zip(&facts.tokens) {
        let added = || Added {
            id,
            text: text.clone(),
            ..Added::default()
        };
        let (list, spelt) = match facts.token_type(id as usize) {
            CONTROL => (Some(&mut control), Spelling::Plain),
            USER_DEFINED if spelling == Spelling::SentencePiece => (Some(&mut always), spelling),
            USER_DEFINED => (Some(&mut always), Spelling::Plain),
            UNUSED => (None, Spelling::Plain),
            _ => (None, spelling),
        };
        bytes.push(text, spelt);
        if let Some(list) = list {
            let mut added = added();
            if spelt == Spelling::SentencePiece {
                added.text = added.text.replace('\u{2581}', " ");
            }
            list.push(added);
        }
    }
    // SentencePiece models open with BOS unless the file says otherwise; byte-level ones do only if it says so.
    let opens = facts.add_bos.unwrap_or(facts.model == "llama");
    let named = |key, wanted: bool, id: Option<u32>| match (wanted, id) {
        (true, None) => Err(TokenizerError::Missing { key }),
        (true, Some(id)) => Ok(vec![id]),
        (false, _) => Ok(Vec::new()),
    };
    let prefix = named("tokenizer.ggml.bos_token_id", opens, facts.bos)?;
    let suffix = named(
        "tokenizer.ggml.eos_token_id",
        facts.add_eos.unwrap_or(false),
        facts.eos,
    )?;
    Tokenizer::assemble(Parts {
        inner,
        bytes,
        control,
        always,
        bos: facts.bos,
        eos: facts.eos,
        padding: facts.padding,
        unknown: facts.unknown,
        ends: [facts.eos, facts.eot, facts.eom]
            .into_iter()
            .flatten()
            .collect(),
        prefix,
        suffix,
        strips_first_space: facts.model == "llama" && facts.add_space_prefix.unwrap_or(true),
    })
}

fn wrong_type(key: &'static str, value: &GgufValue, expected: &str) -> TokenizerError {
    TokenizerError::invalid(
        key,
        format!("is a {}, expected {expected}", value.type_name()),
    )
}

fn strings(header: &GgufHeader, key: &'static str) -> Result<Vec<String>, TokenizerError> {
    match header.get(key) {
        None => Ok(Vec::new()),
        Some(GgufValue::Array(a)) if a.is_empty() => Ok(Vec::new()),
        Some(v) => {
            let table = v
                .as_strings()
                .ok_or_else(|| wrong_type(key, v, "an array of strings"))?;
            Ok(table.iter().map(str::to_owned).collect())
        }
    }
}

fn integers(header: &GgufHeader, key: &'static str) -> Result<Vec<i64>, TokenizerError> {
    match header.get(key) {
        None => Ok(Vec::new()),
        Some(GgufValue::Array(a)) => {
            let all: Option<Vec<i64>> = a.iter().map(|v| v.as_i64()).collect();
            all.ok_or_else(|| TokenizerError::invalid(key, "holds something else than integers"))
        }
        Some(v) => Err(wrong_type(key, v, "an array of integers")),
    }
}

fn floats(header: &GgufHeader, key: &'static str) -> Result<Vec<f32>, TokenizerError> {
    match header.get(key) {
        None => Ok(Vec::new()),
        Some(GgufValue::Array(GgufArray::F32(v))) if v.iter().all(|s| s.is_finite()) => {
            Ok(v.clone())
        }
        Some(GgufValue::Array(GgufArray::F32(_))) => Err(TokenizerError::invalid(
            key,
            "holds a score that is not finite",
        )),
        Some(GgufValue::Array(a)) if a.is_empty() => Ok(Vec::new()),
        Some(v) => Err(wrong_type(key, v, "an array of f32")),
    }
}

fn id(header: &GgufHeader, key: &'static str, size: usize) -> Result<Option<u32>, TokenizerError> {
    let Some(value) = header.get(key) else {
        return Ok(None);
    };
    let n = value
        .as_u64()
        .ok_or_else(|| wrong_type(key, value, "a token id"))?;
    match u32::try_from(n) {
        Ok(id) if (id as usize) < size => Ok(Some(id)),
        _ => Err(TokenizerError::invalid(
            key,
            format!("is {n}, outside the vocabulary of {size} tokens"),
        )),
    }
}

fn flag(header: &GgufHeader, key: &'static str) -> Result<Option<bool>, TokenizerError> {
    header
        .get(key)
        .map(|v| v.as_bool().ok_or_else(|| wrong_type(key, v, "a boolean")))
        .transpose()
}
