// SPDX-License-Identifier: MIT OR Apache-2.0
//! The fields that chat and completions share: sampling, length, ends, streaming.

use std::time::Duration;

use metrale_sampling::{Range, Sampling, SamplingFields};

use super::error::ApiError;
use super::fields::Fields;
use super::limits::Limits;
use super::lists::{allowed_token_ids, bad_words, logit_bias, stop, token_ids};
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
    /// Whether requests are served by their priority.
    pub by_priority: bool,
}

/// Validated common fields; defaults are filled in.
#[derive(Clone, Debug, PartialEq)]
pub struct Generation {
    /// How tokens are drawn, the seed included.
    pub sampling: Sampling,
    /// (token, added to its logit), ascending by token.
    pub logit_bias: Vec<(u32, f32)>,
    /// The only tokens that may be drawn, if the request says; at least one, each once.
    pub allowed_token_ids: Option<Vec<u32>>,
    /// Texts that must not be written.
    pub bad_words: Vec<String>,
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
    /// Lower is served first.
    pub priority: i32,
    /// It must be done in this time from its arrival.
    pub deadline: Option<Duration>,
    /// Requests of another salt share no cached prefix.
    pub cache_salt: Option<String>,
}

impl Generation {
    /// Milliseconds of the longest deadline: a day.
    pub const MOST_DEADLINE: i64 = 86_400_000;

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
            allowed_token_ids: allowed_token_ids(fields, facts)?,
            bad_words: bad_words(fields, facts.limits)?,
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
            priority: priority(fields, facts.by_priority)?,
            deadline: fields
                .integer("deadline_ms", 1..=Self::MOST_DEADLINE)?
                .map(|ms| Duration::from_millis(ms.cast_unsigned())),
            cache_salt: cache_salt(fields)?,
        })
    }
}

/// How tokens are drawn; the ranges are the sampling crate's.
fn sampling(fields: &Fields<'_>, facts: &Facts<'_>) -> Result<Sampling, ApiError> {
    let defaults = facts.defaults.fields();
    let number = |range: Range, default| {
        let given = fields.number(range.field)?;
        Ok::<_, ApiError>(given.unwrap_or(default))
    };
    let top_k = SamplingFields::TOP_K;
    let counts = top_k.least as i64..=top_k.most as i64;
    let asked = SamplingFields {
        temperature: number(SamplingFields::TEMPERATURE, defaults.temperature)?,
        top_p: number(SamplingFields::TOP_P, defaults.top_p)?,
        min_p: number(SamplingFields::MIN_P, defaults.min_p)?,
        top_k: fields
            .integer(top_k.field, counts)?
            .unwrap_or(defaults.top_k),
        repetition_penalty: number(
            SamplingFields::REPETITION_PENALTY,
            defaults.repetition_penalty,
        )?,
        presence_penalty: number(SamplingFields::PRESENCE_PENALTY, defaults.presence_penalty)?,
        frequency_penalty: number(
            SamplingFields::FREQUENCY_PENALTY,
            defaults.frequency_penalty,
        )?,
    };
    let seed = fields.integer("seed", i64::MIN..=i64::MAX)?;
    let seed = seed.map_or(facts.fresh_seed, i64::cast_unsigned);
    Sampling::new(&asked, seed).map_err(|e| {
        let what = format!("must be {}, and is {}", e.range, e.value);
        ApiError::invalid(e.range.field, what)
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

/// As vLLM has it: a number of its own is an error unless the server serves by priority.
fn priority(fields: &Fields<'_>, honoured: bool) -> Result<i32, ApiError> {
    let range = i64::from(i32::MIN)..=i64::from(i32::MAX);
    let priority = fields.integer("priority", range)?.unwrap_or(0) as i32;
    if priority != 0 && !honoured {
        return Err(ApiError::Unsupported {
            path: fields.path("priority"),
            why: "requests are not served by priority here: the server was started without `--policy priority` (only 0 is accepted)".to_owned(),
        });
    }
    Ok(priority)
}

fn cache_salt(fields: &Fields<'_>) -> Result<Option<String>, ApiError> {
    match fields.string("cache_salt")? {
        Some("") => Err(ApiError::invalid("cache_salt", "must not be empty")),
        salt => Ok(salt.map(str::to_owned)),
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
