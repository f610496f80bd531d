// SPDX-License-Identifier: MIT OR Apache-2.0
//! Fields that hold lists: stop texts, biases, token ids.

use serde_json::Value;

use super::error::ApiError;
use super::fields::{Fields, wrong};
use super::limits::Limits;
use super::sampling::Facts;

use crate::digits::whole;

/// `stop`: a text or a list of texts, none empty.
pub(super) fn stop(fields: &Fields<'_>, limits: &Limits) -> Result<Vec<String>, ApiError> {
    let one = std::slice::from_ref;
    let items = match fields.get("stop") {
        None => return Ok(Vec::new()),
        Some(text @ Value::String(_)) => one(text),
        Some(Value::Array(items)) => items.as_slice(),
        Some(other) => return Err(wrong("stop".into(), "a string or a list of strings", other)),
    };
    if items.len() > limits.stops {
        return Err(ApiError::invalid(
            "stop",
            format!(
                "has {} texts, at most {} are taken",
                items.len(),
                limits.stops
            ),
        ));
    }
    items
        .iter()
        .enumerate()
        .map(|(i, item)| {
            let path = || format!("stop[{i}]");
            let text = item
                .as_str()
                .ok_or_else(|| wrong(path(), "a string", item))?;
            if text.is_empty() {
                return Err(ApiError::invalid(
                    path(),
                    "is empty, and would end every answer at once",
                ));
            }
            if text.len() > limits.stop_bytes {
                return Err(ApiError::invalid(
                    path(),
                    format!(
                        "has {} bytes, at most {} are taken",
                        text.len(),
                        limits.stop_bytes
                    ),
                ));
            }
            Ok(text.to_owned())
        })
        .collect()
}

/// `logit_bias`: entries ascending by token.
pub(super) fn logit_bias(
    fields: &Fields<'_>,
    facts: &Facts<'_>,
) -> Result<Vec<(u32, f32)>, ApiError> {
    let Some(value) = fields.get("logit_bias") else {
        return Ok(Vec::new());
    };
    let map = value.as_object().ok_or_else(|| {
        wrong(
            "logit_bias".into(),
            "an object of token ids and numbers",
            value,
        )
    })?;
    if map.len() > facts.limits.logit_bias {
        return Err(ApiError::invalid(
            "logit_bias",
            format!(
                "has {} entries, at most {} are taken",
                map.len(),
                facts.limits.logit_bias
            ),
        ));
    }
    let mut bias = Vec::with_capacity(map.len());
    for (key, value) in map {
        let shown: String = key.chars().take(32).collect();
        let path = format!("logit_bias.{shown}");
        let token = whole(key).filter(|t| *t < facts.vocab_size);
        let Some(token) = token else {
            let why = format!("names no token; ids are from 0 to {}", facts.vocab_size - 1);
            return Err(ApiError::invalid(path, why));
        };
        match value.as_f64() {
            None => return Err(wrong(path, "a number", value)),
            Some(v) if !(-100.0..=100.0).contains(&v) => {
                let why = format!("must be a number from -100 to 100, and is {v}");
                return Err(ApiError::invalid(path, why));
            }
            Some(v) => bias.push((token, v as f32)),
        }
    }
    bias.sort_unstable_by_key(|(token, _)| *token);
    // Two spellings of one id ("7", "07").
    if let Some(pair) = bias.windows(2).find(|pair| pair[0].0 == pair[1].0) {
        let path = format!("logit_bias.{}", pair[0].0);
        return Err(ApiError::invalid(path, "is given twice"));
    }
    Ok(bias)
}

/// `allowed_token_ids`: at least one, each once.
pub(super) fn allowed_token_ids(
    fields: &Fields<'_>,
    facts: &Facts<'_>,
) -> Result<Option<Vec<u32>>, ApiError> {
    const NAME: &str = "allowed_token_ids";
    if fields.get(NAME).is_none() {
        return Ok(None);
    }
    let ids = token_ids(fields, NAME, facts.vocab_size, facts.vocab_size as usize)?;
    if ids.is_empty() {
        let why = "is empty, and would leave no token; leave it out to allow all";
        return Err(ApiError::invalid(fields.path(NAME), why));
    }
    let mut seen = vec![false; facts.vocab_size as usize];
    let twice = |id: &u32| std::mem::replace(&mut seen[*id as usize], true);
    match ids.iter().position(twice) {
        None => Ok(Some(ids)),
        Some(i) => {
            let path = format!("{}[{i}]", fields.path(NAME));
            let why = format!("is {}, which is given twice", ids[i]);
            Err(ApiError::invalid(path, why))
        }
    }
}

/// `bad_words`: a list of texts, none blank.
pub(super) fn bad_words(fields: &Fields<'_>, limits: &Limits) -> Result<Vec<String>, ApiError> {
    let items = fields.array("bad_words")?.map_or(&[][..], Vec::as_slice);
    if items.len() > limits.bad_words {
        let (has, most) = (items.len(), limits.bad_words);
        let why = format!("has {has} texts, at most {most} are taken");
        return Err(ApiError::invalid("bad_words", why));
    }
    let word = |(i, item): (usize, &Value)| {
        let path = || format!("bad_words[{i}]");
        let text = item
            .as_str()
            .ok_or_else(|| wrong(path(), "a string", item))?;
        if text.trim_start().is_empty() {
            let why = "is empty, or white space alone";
            return Err(ApiError::invalid(path(), why));
        }
        if text.len() > limits.stop_bytes {
            let (has, most) = (text.len(), limits.stop_bytes);
            let why = format!("has {has} bytes, at most {most} are taken");
            return Err(ApiError::invalid(path(), why));
        }
        Ok(text.to_owned())
    };
    items.iter().enumerate().map(word).collect()
}

/// A list of token ids of the vocabulary, at most `limit` long.
pub(super) fn token_ids(
    fields: &Fields<'_>,
    name: &str,
    vocab_size: u32,
    limit: usize,
) -> Result<Vec<u32>, ApiError> {
    match fields.array(name)? {
        None => Ok(Vec::new()),
        Some(items) if items.len() > limit => Err(ApiError::invalid(
            fields.path(name),
            format!("has {} entries, at most {limit} are taken", items.len()),
        )),
        Some(items) => read_ids(items, &fields.path(name), vocab_size),
    }
}

/// The ids of a list that stands at `path`.
pub(super) fn read_ids(items: &[Value], path: &str, vocab_size: u32) -> Result<Vec<u32>, ApiError> {
    items
        .iter()
        .enumerate()
        .map(|(i, item)| match item.as_u64() {
            Some(id) if id < u64::from(vocab_size) => Ok(id as u32),
            _ if !item.is_number() || item.is_f64() => {
                Err(wrong(format!("{path}[{i}]"), "a token id", item))
            }
            _ => Err(ApiError::invalid(
                format!("{path}[{i}]"),
                format!(
                    "names no token; ids are from 0 to {}, and it is {item}",
                    vocab_size - 1
                ),
            )),
        })
        .collect()
}
