// SPDX-License-Identifier: MIT OR Apache-2.0
//! The fields that chat and completions share: sampling, length, ends, streaming.

use metrale_sampling::{Sampling, SamplingFields};
use serde_json::Value;

use super::error::ApiError;
use super::fields::{Fields, wrong};
use super::limits::Limits;
use crate::engine_face::SamplingDefaults;

/// What validation needs to know of the served model.
#[derive(Clone, Copy)]
pub struct Facts<'a> {
    /// Limits of the server.
    pub limits: &'a Limits,
    /// Ids are below it.
    pub vocab_size: u32,
    /// What a request gets that leaves a field out.
    pub defaults: &'a SamplingDefaults,
    /// The seed of a request that has none.
    pub fresh_seed: u64,
}

/// Validated common fields; defaults are filled in.
#[derive(Clone, Debug, PartialEq)]
pub struct Generation {
    /// How tokens are drawn, the seed included.
    pub sampling: Sampling,
    /// (token, added to its logit), ascending by token.
    pub logit_bias: Vec<(u32, f32)>,
    /// Answers per prompt.
    pub n: u32,
    /// Most tokens, if the request says.
    pub max_tokens: Option<u32>,
    /// No stop token before this many.
    pub min_tokens: u32,
    /// Texts that end the answer.
    pub stop: Vec<String>,
    /// Tokens that end the answer, beside the model's own.
    pub stop_token_ids: Vec<u32>,
    /// The model's own end tokens do not end it.
    pub ignore_eos: bool,
    /// Keep the stop text.
    pub include_stop: bool,
    /// Control tokens leave no text.
    pub skip_special: bool,
    /// Answer as server-sent events.
    pub stream: bool,
    /// A last event with token counts.
    pub include_usage: bool,
}

impl Generation {
    /// Reads them. `least_tokens` is the smallest `max_tokens`.
    ///
    /// # Errors
    /// The errors of [`Fields`]; [`ApiError::InvalidValue`].
    pub fn read(
        fields: &Fields<'_>,
        facts: &Facts<'_>,
        least_tokens: i64,
    ) -> Result<Generation, ApiError> {
        let stream = fields.boolean("stream")?.unwrap_or(false);
        let max_tokens = max_tokens(fields, least_tokens)?;
        Ok(Generation {
            sampling: sampling(fields, facts)?,
            logit_bias: logit_bias(fields, facts)?,
            n: fields
                .integer("n", 1..=i64::from(facts.limits.n))?
                .unwrap_or(1) as u32,
            max_tokens,
            min_tokens: fields
                .integer("min_tokens", 0..=i64::from(u32::MAX))?
                .unwrap_or(0) as u32,
            stop: stop(fields, facts.limits)?,
            stop_token_ids: token_ids(
                fields,
                "stop_token_ids",
                facts.vocab_size,
                facts.limits.stop_tokens,
            )?,
            ignore_eos: fields.boolean("ignore_eos")?.unwrap_or(false),
            include_stop: fields
                .boolean("include_stop_str_in_output")?
                .unwrap_or(false),
            skip_special: fields.boolean("skip_special_tokens")?.unwrap_or(true),
            stream,
            include_usage: include_usage(fields, stream)?,
        })
    }
}

/// How tokens are drawn; the ranges are the sampling crate's.
fn sampling(fields: &Fields<'_>, facts: &Facts<'_>) -> Result<Sampling, ApiError> {
    let defaults = facts.defaults;
    let number = |name, default: f32| {
        let given = fields.number(name)?;
        Ok::<_, ApiError>(given.unwrap_or(f64::from(default)))
    };
    let asked = SamplingFields {
        temperature: number("temperature", defaults.temperature.value)?,
        top_p: number("top_p", defaults.top_p.value)?,
        min_p: number("min_p", defaults.min_p.value)?,
        top_k: fields
            .integer("top_k", -1..=i64::from(u32::MAX))?
            .unwrap_or(i64::from(defaults.top_k.value)),
        repetition_penalty: number("repetition_penalty", defaults.repetition_penalty.value)?,
        presence_penalty: number("presence_penalty", 0.0)?,
        frequency_penalty: number("frequency_penalty", 0.0)?,
    };
    let seed = fields.integer("seed", i64::MIN..=i64::MAX)?;
    let seed = seed.map_or(facts.fresh_seed, i64::cast_unsigned);
    Sampling::new(&asked, seed).map_err(|e| {
        ApiError::invalid(e.field, format!("must be {}, and is {}", e.wanted, e.value))
    })
}

/// `max_completion_tokens` or `max_tokens`; beyond u32 is u32's largest, which no context holds.
fn max_tokens(fields: &Fields<'_>, least: i64) -> Result<Option<u32>, ApiError> {
    let read = |name| {
        let value = fields.integer(name, least..=i64::MAX);
        value.map(|v| v.map(|v| u32::try_from(v).unwrap_or(u32::MAX)))
    };
    let (old, new) = (read("max_tokens")?, read("max_completion_tokens")?);
    match (old, new) {
        (Some(a), Some(b)) if a != b => Err(ApiError::invalid(
            "max_tokens",
            "and `max_completion_tokens` differ; give one of them",
        )),
        _ => Ok(new.or(old)),
    }
}

fn include_usage(fields: &Fields<'_>, stream: bool) -> Result<bool, ApiError> {
    let Some(value) = fields.get("stream_options") else {
        return Ok(false);
    };
    if !stream {
        return Err(ApiError::invalid(
            "stream_options",
            "needs `stream` to be true",
        ));
    }
    let options = Fields::inner(
        value,
        "stream_options.",
        &["include_usage", "include_obfuscation"],
    )?;
    if options.boolean("include_obfuscation")? == Some(true) {
        return Err(ApiError::Unsupported {
            path: options.path("include_obfuscation"),
            why: "events are not padded here".to_owned(),
        });
    }
    Ok(options.boolean("include_usage")?.unwrap_or(false))
}

fn stop(fields: &Fields<'_>, limits: &Limits) -> Result<Vec<String>, ApiError> {
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

fn logit_bias(fields: &Fields<'_>, facts: &Facts<'_>) -> Result<Vec<(u32, f32)>, ApiError> {
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
        let digits = key.bytes().all(|b| b.is_ascii_digit());
        let token = key.parse().ok().filter(|t| digits && *t < facts.vocab_size);
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
