// SPDX-License-Identifier: MIT OR Apache-2.0
//! What `generation_config.json` (or a GGUF's `general.sampling.*`) says about sampling.

use serde_json::{Map, Value};

use crate::gguf::{GgufHeader, GgufValue};
use crate::model::ConfigError;

/// Sampling defaults that the checkpoint's authors give. `None` = the checkpoint is silent.
///
/// They stand between a server flag and OpenAI's defaults; a request's own field always wins.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct GenerationDefaults {
    /// `false` means greedy by default: the temperature default is then 0, whatever `temperature` says.
    pub do_sample: Option<bool>,
    /// Softmax temperature, >= 0.
    pub temperature: Option<f64>,
    /// Nucleus mass, 0 to 1.
    pub top_p: Option<f64>,
    /// Number of candidates; 0 = no cut. Negative values in a file mean the same and are read as 0.
    pub top_k: Option<u64>,
    /// Least probability relative to the largest, 0 to 1.
    pub min_p: Option<f64>,
    /// Divides positive, multiplies negative logits of seen tokens; > 0, 1 = none.
    pub repetition_penalty: Option<f64>,
    /// Tokens to generate at most.
    pub max_new_tokens: Option<u64>,
}

impl GenerationDefaults {
    /// The default temperature: 0 if the checkpoint asks for greedy decoding.
    pub fn default_temperature(&self) -> Option<f64> {
        match self.do_sample {
            Some(false) => Some(0.0),
            _ => self.temperature,
        }
    }

    /// From the top object of `generation_config.json`.
    ///
    /// # Errors
    /// [`ConfigError::Key`] for a value of the wrong type or outside its range.
    pub(crate) fn from_json(file: &str, object: &Map<String, Value>) -> Result<Self, ConfigError> {
        let get = |key: &str| object.get(key).filter(|v| !v.is_null());
        let bad = |key: &str, want: &str| {
            let found = get(key).map(ToString::to_string).unwrap_or_default();
            ConfigError::key(file, key, format!("is {found}, expected {want}"))
        };
        let number = |key: &str, range: Range| match get(key) {
            None => Ok(None),
            Some(v) => match v.as_f64() {
                Some(n) if range.holds(n) => Ok(Some(n)),
                _ => Err(bad(key, range.name())),
            },
        };
        let top_k = match get("top_k") {
            None => None,
            Some(v) => Some(v.as_i64().ok_or_else(|| bad("top_k", "an integer"))?.max(0) as u64),
        };
        let do_sample = match get("do_sample") {
            None => None,
            Some(v) => Some(
                v.as_bool()
                    .ok_or_else(|| bad("do_sample", "true or false"))?,
            ),
        };
        let max_new_tokens = match get("max_new_tokens") {
            None => None,
            Some(v) => Some(v.as_u64().ok_or_else(|| bad("max_new_tokens", "a count"))?),
        };
        Ok(Self {
            do_sample,
            temperature: number("temperature", Range::NotNegative)?,
            top_p: number("top_p", Range::Unit)?,
            top_k,
            min_p: number("min_p", Range::Unit)?,
            repetition_penalty: number("repetition_penalty", Range::Positive)?,
            max_new_tokens,
        })
    }

    /// From the `general.sampling.*` keys of a GGUF header.
    ///
    /// # Errors
    /// As [`GenerationDefaults::from_json`].
    pub(crate) fn from_gguf(file: &str, header: &GgufHeader) -> Result<Self, ConfigError> {
        let number = |name: &str, range: Range| {
            let key = format!("general.sampling.{name}");
            match header.get(&key) {
                None => Ok(None),
                Some(v) => match v.as_f64() {
                    Some(n) if range.holds(n) => Ok(Some(n)),
                    _ => Err(ConfigError::key(
                        file,
                        &key,
                        format!("is {v}, expected {}", range.name()),
                    )),
                },
            }
        };
        Ok(Self {
            do_sample: None,
            temperature: number("temp", Range::NotNegative)?,
            top_p: number("top_p", Range::Unit)?,
            top_k: header
                .get("general.sampling.top_k")
                .and_then(GgufValue::as_i64)
                .map(|k| k.max(0) as u64),
            min_p: number("min_p", Range::Unit)?,
            repetition_penalty: number("penalty_repeat", Range::Positive)?,
            max_new_tokens: None,
        })
    }
}

#[derive(Clone, Copy)]
enum Range {
    NotNegative,
    Positive,
    Unit,
}

impl Range {
    fn holds(self, n: f64) -> bool {
        match self {
            Range::NotNegative => n.is_finite() && n >= 0.0,
            Range::Positive => n.is_finite() && n > 0.0,
            Range::Unit => (0.0..=1.0).contains(&n),
        }
    }

    fn name(self) -> &'static str {
        match self {
            Range::NotNegative => "a number >= 0",
            Range::Positive => "a number > 0",
            Range::Unit => "a number from 0 to 1",
        }
    }
}
