// SPDX-License-Identifier: MIT OR Apache-2.0
//! Sampling defaults by authority: flag, then the checkpoint's generation_config, then OpenAI's.

use metrale_config::GenerationDefaults;

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

/// The effective defaults, each with its source.
pub(super) fn merge(flags: &SamplingFlags, checkpoint: &GenerationDefaults) -> SamplingDefaults {
    let openai = SamplingDefaults::default();
    let float = |flag: Option<f64>, file: Option<f64>, otherwise| {
        pick(flag.map(|v| v as f32), file.map(|v| v as f32), otherwise)
    };
    let count = |value: u64| u32::try_from(value).unwrap_or(u32::MAX);
    SamplingDefaults {
        temperature: float(
            flags.temperature,
            checkpoint.default_temperature(),
            openai.temperature,
        ),
        top_p: float(flags.top_p, checkpoint.top_p, openai.top_p),
        top_k: pick(flags.top_k, checkpoint.top_k.map(count), openai.top_k),
        min_p: float(flags.min_p, checkpoint.min_p, openai.min_p),
        repetition_penalty: float(
            flags.repetition_penalty,
            checkpoint.repetition_penalty,
            openai.repetition_penalty,
        ),
        max_tokens: pick(
            flags.max_tokens.map(Some),
            checkpoint.max_new_tokens.map(|n| Some(count(n))),
            openai.max_tokens,
        ),
    }
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
        let merged = merge(&flags, &file);
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
}
