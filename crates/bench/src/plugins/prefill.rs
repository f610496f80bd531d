// SPDX-License-Identifier: MIT OR Apache-2.0
//! Time to the first token of one prompt, by its length.

use super::{Plugin, prompt_work, shares};
use crate::options::{Need, Options};
use crate::prompts::Prompts;
use crate::report::{PrefillRow, Report};
use crate::stats::{median, ratio};
use crate::target::{Target, TargetError};

pub(super) struct Prefill;

impl Plugin for Prefill {
    fn name(&self) -> &'static str {
        "prefill"
    }

    fn about(&self) -> &'static str {
        "time to the first token of one prompt, by its length"
    }

    fn needs(&self, options: &Options) -> Vec<Need> {
        let need = |prompt: &u32| Need {
            sequences: 1,
            tokens: prompt + 1,
        };
        options.prompts.iter().map(need).collect()
    }

    fn run(
        &self,
        target: &mut dyn Target,
        options: &Options,
        report: &mut Report,
        note: &mut dyn FnMut(&str),
    ) -> Result<(), TargetError> {
        // Prompts of other ladders begin otherwise.
        let mut prompts = Prompts::new(options.seed ^ 0x5eed_0001, target.about().vocab);
        for input in &options.prompts {
            note(&format!("prefill of {input}"));
            let mut times = Vec::new();
            let mut computed = None;
            // The first is for warmth alone.
            for run in 0..=options.repeats {
                let answer = target.generate(prompts.take(1, *input), 1)?;
                let first = answer.timelines.first().and_then(|t| t.tokens.first());
                let first = first.ok_or_else(|| TargetError::new("the prompt gave no token"))?;
                match run {
                    0 => computed = target.processor_seconds(),
                    _ => times.push(*first),
                }
            }
            let computed = since(computed, target.processor_seconds());
            let seconds = median(times.iter().copied());
            let (share_of_read, share_of_operations) =
                shares(report, prompt_work(target, *input), seconds);
            report.prefill.push(PrefillRow {
                input: *input,
                ttft_ms: seconds * 1e3,
                ttft_ms_range: range(&times).map(|s| s * 1e3),
                tokens_per_second: ratio(f64::from(*input), seconds),
                share_of_read,
                share_of_operations,
                processor_seconds_per_token: computed
                    .map(|s| ratio(s, f64::from(options.repeats) * f64::from(*input))),
            });
        }
        Ok(())
    }
}

/// Seconds between two readings.
pub(super) fn since(before: Option<f64>, after: Option<f64>) -> Option<f64> {
    Some(after? - before?)
}

pub(super) fn range(values: &[f64]) -> [f64; 2] {
    let least = values.iter().copied().fold(f64::INFINITY, f64::min);
    let most = values.iter().copied().fold(0.0, f64::max);
    [least.min(most), most]
}
