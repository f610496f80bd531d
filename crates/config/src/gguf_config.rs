// SPDX-License-Identifier: MIT OR Apache-2.0
//! A GGUF header to a [`ModelConfig`].

use std::collections::BTreeSet;

use crate::chat_template::{self, DEFAULT_TEMPLATE};
use crate::flatten::flatten_gguf;
use crate::generation::GenerationDefaults;
use crate::gguf::{GgufError, GgufHeader, GgufValue};
use crate::model::{ConfigError, ConfigSource, ModelConfig};
use metrale_core::Scalar;

const TOKENS: &str = "tokenizer.ggml.tokens";
const TEMPLATE: &str = "tokenizer.chat_template";

/// Ids at which generation stops: end of sequence, of turn, of message.
const END_KEYS: &[&str] = &[
    "tokenizer.ggml.eos_token_id",
    "tokenizer.ggml.eot_token_id",
    "tokenizer.ggml.eom_token_id",
];

/// Reads the configuration that a GGUF header carries. `file` is only for messages.
///
/// # Errors
/// [`ConfigError`], naming the key: no `general.architecture`, or a special token outside of the vocabulary.
pub fn from_gguf(file: &str, header: &GgufHeader) -> Result<ModelConfig, ConfigError> {
    let architecture = header.require_str("general.architecture")?.to_owned();
    check_token_ids(header)?;
    let mut flat = flatten_gguf(header).map_err(|source| ConfigError::Flatten {
        file: file.to_owned(),
        source,
    })?;
    // Many files leave `<architecture>.vocab_size` out: the token list then says it.
    if let Some(tokens) = header.get(TOKENS).and_then(GgufValue::as_strings) {
        flat.insert("vocab_size".to_owned(), Scalar::Int(tokens.len() as i64));
    }
    let mut eos = Vec::new();
    for key in END_KEYS {
        if let Some(id) = token_id(header, key)?
            && !eos.contains(&id)
        {
            eos.push(id);
        }
    }
    Ok(ModelConfig {
        class: None,
        source: ConfigSource::Gguf,
        name: header
            .get("general.name")
            .and_then(GgufValue::as_str)
            .map(str::to_owned),
        context_length: header.optional_u64(&format!("{architecture}.context_length"))?,
        bos: token_id(header, "tokenizer.ggml.bos_token_id")?,
        eos,
        pad: token_id(header, "tokenizer.ggml.padding_token_id")?,
        dtype: None,
        generation: GenerationDefaults::from_gguf(file, header)?,
        chat_templates: templates(header),
        architecture,
        flat,
        nulls: BTreeSet::new(),
    })
}

fn templates(header: &GgufHeader) -> Vec<chat_template::ChatTemplate> {
    let mut list = Vec::new();
    for (key, value) in header.tokenizer() {
        let (Some(rest), Some(text)) = (key.strip_prefix(TEMPLATE), value.as_str()) else {
            continue;
        };
        match rest.strip_prefix('.') {
            None if rest.is_empty() => {
                chat_template::put(&mut list, DEFAULT_TEMPLATE, TEMPLATE, text);
            }
            Some(name) => chat_template::put(&mut list, name, key, text),
            None => {}
        }
    }
    list
}

fn token_id(header: &GgufHeader, key: &str) -> Result<Option<u32>, GgufError> {
    let Some(id) = header.optional_u64(key)? else {
        return Ok(None);
    };
    match u32::try_from(id) {
        Ok(id) => Ok(Some(id)),
        Err(_) => Err(bad_key(key, format!("is {id}, no token id"))),
    }
}

/// Every special token of the file must be a token of its vocabulary.
fn check_token_ids(header: &GgufHeader) -> Result<(), GgufError> {
    let tokens = match header.get(TOKENS) {
        None => None,
        Some(value) => match value.as_strings() {
            Some(tokens) => Some(tokens.len() as u64),
            None => {
                let why = format!("is a {}, expected an array of strings", value.type_name());
                return Err(bad_key(TOKENS, why));
            }
        },
    };
    for (key, _) in header
        .tokenizer()
        .filter(|(key, _)| key.ends_with("_token_id"))
    {
        if let (Some(id), Some(tokens)) = (header.optional_u64(key)?, tokens)
            && id >= tokens
        {
            let why = format!("is {id}, outside of the vocabulary of {tokens} tokens");
            return Err(bad_key(key, why));
        }
    }
    Ok(())
}

fn bad_key(key: &str, why: String) -> GgufError {
    GgufError::Key {
        key: key.to_owned(),
        why,
    }
}
