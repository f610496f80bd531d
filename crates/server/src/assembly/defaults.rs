// SPDX-License-Identifier: MIT OR Apache-2.0
//! Sampling defaults by authority: flag, then the checkpoint's generation_config, then OpenAI's.

use metrale_config::GenerationDefaults;
use metrale_sampling::{InvalidSampling, Range, SamplingFields};

use crate::engine_face::{SamplingDefaults, Source, Sourced};

/// Sampling defaults given on the command line.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SamplingFlags {
    /// `--temperature`.
    pub temperature: Option<f64>,
    /// `--top-p`.
    pub top_p: Option<f64>,
    /// `--top-k`.
    pub top_k: Option<u32>,
    /// `--min-p`.
    pub min_p: Option<f64>,
    /// `--repetition-penalty`.
    pub repetition_penalty: Option<f64>,
    /// `--max-tokens`.
    pub max_tokens: Option<u32>,
}

/// A default that no request may have.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum DefaultError {
    /// Given by a flag.
    #[error("--{name}: {0}", name = flag(.0))]
    Flag(InvalidSampling),
    /// Of the checkpoint: every request that leaves the field out would be refused.
    #[error("the checkpoint's generation settings: {0}; give --{name} to use another", name = flag(.0))]
    Checkpoint(InvalidSampling),
}

fn flag(error: &InvalidSampling) -> String {
    error.range.field.replace('_', "-")
}

/// The effective defaults, each with its source.
///
/// # Errors
/// [`DefaultError`] for the first that lies outside its range.
pub(super) fn merge(
    flags: &SamplingFlags,
    checkpoint: &GenerationDefaults,
) -> Result<SamplingDefaults, DefaultError> {
    let openai = SamplingDefaults::default();
    let number = |range: Range, flag, file, otherwise| {
        let picked: Sourced<f64> = pick(flag, file, otherwise);
        let blame = match picked.source {
            Source::Flag => DefaultError::Flag,
            Source::GenerationConfig | Source::OpenAi => DefaultError::Checkpoint,
        };
        range.check(picked.value).map_err(blame)?;
        Ok(picked)
    };
    let count = |value: u64| u32::try_from(value).unwrap_or(u32::MAX);
    Ok(SamplingDefaults {
        temperature: number(
            SamplingFields::TEMPERATURE,
            flags.temperature,
            checkpoint.default_temperature(),
            openai.temperature,
        )?,
        top_p: number(
            SamplingFields::TOP_P,
            flags.top_p,
            checkpoint.top_p,
            openai.top_p,
        )?,
        top_k: pick(flags.top_k, checkpoint.top_k.map(count), openai.top_k),
        min_p: number(
            SamplingFields::MIN_P,
            flags.min_p,
            checkpoint.min_p,
            openai.min_p,
        )?,
        repetition_penalty: number(
            SamplingFields::REPETITION_PENALTY,
            flags.repetition_penalty,
            checkpoint.repetition_penalty,
            openai.repetition_penalty,
        )?,
        max_tokens: pick(
            flags.max_tokens.map(Some),
            checkpoint.max_new_tokens.map(|n| Some(count(n))),
            openai.max_tokens,
        ),
    })
}

fn pick<T>(flag: Option<T>, file: Option<T>, otherwise: Sourced<T>) -> Sourced<T> {
    let from = |value, source| Sourced { value, source };
    match (flag, file) {
        (Some(value), _) => from(value, Source::Flag),
        (None, Some(value)) => from(value, Source::GenerationConfig),
        (None, None) => otherwise,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flag_beats_file_beats_openai() {
        let flags = SamplingFlags {
            top_p: Some(0.5),
            ..SamplingFlags::default()
        };
        let file = GenerationDefaults {
            do_sample: Some(false),
            temperature: Some(0.7),
            top_p: Some(0.9),
            ..GenerationDefaults::default()
        };
        let merged = merge(&flags, &file).unwrap();
        assert_eq!(
            merged.top_p,
            Sourced {
                value: 0.5,
                source: Source::Flag
            }
        );
        assert_eq!(
            merged.temperature,
            Sourced {
                value: 0.0,
                source: Source::GenerationConfig
            }
        );
        assert_eq!(
            merged.min_p,
            Sourced {
                value: 0.0,
                source: Source::OpenAi
            }
        );
    }

    #[test]
    fn a_default_that_every_request_would_be_refused_for_is_refused_at_once() {
        let file = GenerationDefaults {
            top_p: Some(0.0),
            ..GenerationDefaults::default()
        };
        let said = merge(&SamplingFlags::default(), &file).unwrap_err();
        assert_eq!(
            said.to_string(),
            "the checkpoint's generation settings: top_p is 0, but must be a number above 0, at most 1; give --top-p to use another"
        );
        let flags = SamplingFlags {
            top_p: Some(1.0),
            ..SamplingFlags::default()
        };
        assert_eq!(merge(&flags, &file).unwrap().top_p.value, 1.0);
        let flags = SamplingFlags {
            repetition_penalty: Some(0.0),
            ..flags
        };
        assert!(matches!(merge(&flags, &file), Err(DefaultError::Flag(_))));
    }
}
