// SPDX-License-Identifier: MIT OR Apache-2.0
//! Time to the first token of one prompt, by its length.

use super::{Plugin, prompt_work, shares};
use crate::options::Options;
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
            // The first is for warmth alone.
            for run in 0..=options.repeats {
                let timelines = target.generate(prompts.take(1, *input), 1)?;
                let first = timelines.first().and_then(|t| t.tokens.first());
                let first = first.ok_or_else(|| TargetError::new("the prompt gave no token"))?;
                if run > 0 {
                    times.push(*first);
                }
            }
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
            });
        }
        Ok(())
    }
}

pub(super) fn range(values: &[f64]) -> [f64; 2] {
    let least = values.iter().copied().fold(f64::INFINITY, f64::min);
    let most = values.iter().copied().fold(0.0, f64::max);
    [least.min(most), most]
}
