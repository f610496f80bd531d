// SPDX-License-Identifier: MIT OR Apache-2.0
//! The decode ladder: sequences that start at once and generate equally many tokens.

use super::prefill::{range, since};
use super::{Plugin, shares};
use crate::idle;
use crate::options::{Need, Options};
use crate::prompts::Prompts;
use crate::report::{DecodeRow, Energy, Report, Value, unmeasured};
use crate::stats::{median, ratio};
use crate::target::{Step, Target, TargetError, Timeline};

pub(super) struct Decode;

impl Plugin for Decode {
    fn name(&self) -> &'static str {
        "decode"
    }

    fn about(&self) -> &'static str {
        "tokens per second, by sequences at once"
    }

    fn needs(&self, options: &Options) -> Vec<Need> {
        vec![Need {
            sequences: options.sequences(),
            tokens: options.input + options.output,
        }]
    }

    fn run(
        &self,
        target: &mut dyn Target,
        options: &Options,
        report: &mut Report,
        note: &mut dyn FnMut(&str),
    ) -> Result<(), TargetError> {
        let mut prompts = Prompts::new(options.seed ^ 0x5eed_0002, target.about().vocab);
        for concurrency in &options.concurrency {
            note(&format!("decode, {concurrency} at once"));
            // A short run for warmth: a program's first submission costs more.
            target.generate(
                prompts.take(*concurrency, options.input),
                4.min(options.output),
            )?;
            let mut runs = Vec::new();
            let mut decoding = Vec::new();
            let mut idle = Vec::new();
            let (joules, computed) = (target.joules(), target.processor_seconds());
            for _ in 0..options.repeats {
                let batch = prompts.take(*concurrency, options.input);
                let answers = target.generate(batch, options.output)?;
                runs.push(Run::of(&answers.timelines));
                decoding.extend(answers.processor_seconds_per_token);
                idle.push(idle_share(answers.stamps, *concurrency));
            }
            let tokens: f64 = runs.iter().map(|r| r.tokens).sum();
            let computed = since(computed, target.processor_seconds());
            let used = Used {
                joules_per_token: energy(joules, target.joules(), tokens),
                processor_seconds_per_token: computed.map(|s| ratio(s, tokens)),
                decoding: (!decoding.is_empty()).then(|| median(decoding)),
                idle_share: all(idle),
            };
            let row = row(target, options, report, *concurrency, &runs, used);
            report.decode.push(row);
        }
        Ok(())
    }
}

/// What the runs of a rung took.
struct Used {
    joules_per_token: Energy,
    processor_seconds_per_token: Option<f64>,
    decoding: Option<f64>,
    idle_share: Value,
}

/// What one run of a rung gave.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Run {
    /// Mean seconds between two tokens of a sequence.
    between: f64,
    /// Median seconds to the first token.
    first: f64,
    /// Seconds until the last token.
    whole: f64,
    /// Tokens.
    tokens: f64,
    /// Seconds of a step while all sequences decode.
    step: f64,
}

impl Run {
    fn of(timelines: &[Timeline]) -> Run {
        let first = || timelines.iter().filter_map(|t| t.tokens.first().copied());
        let last = || timelines.iter().filter_map(|t| t.tokens.last().copied());
        let gaps: usize = timelines
            .iter()
            .map(|t| t.tokens.len().saturating_sub(1))
            .sum();
        let spans: f64 = last().sum::<f64>() - first().sum::<f64>();
        // From when the last sequence has its first token to when the first has its last.
        let all_from = first().fold(0.0, f64::max);
        let all_to = last().fold(f64::INFINITY, f64::min);
        let steps = timelines.first().map_or(0, |t| {
            let inside = t
                .tokens
                .iter()
                .filter(|at| (all_from..=all_to).contains(*at));
            inside.count().saturating_sub(1)
        });
        let inside = |t: &Timeline| {
            let mut within = t
                .tokens
                .iter()
                .filter(|at| (all_from..=all_to).contains(*at));
            let begin = within.next().copied().unwrap_or(0.0);
            within.next_back().copied().unwrap_or(begin) - begin
        };
        let between = ratio(spans, gaps as f64);
        let step = timelines
            .first()
            .map_or(0.0, |t| ratio(inside(t), steps as f64));
        Run {
            between,
            first: median(first()),
            whole: last().fold(0.0, f64::max),
            tokens: timelines.iter().map(|t| t.tokens.len()).sum::<usize>() as f64,
            step: if step > 0.0 { step } else { between },
        }
    }
}

fn row(
    target: &dyn Target,
    options: &Options,
    report: &Report,
    concurrency: u32,
    runs: &[Run],
    used: Used,
) -> DecodeRow {
    let rates: Vec<f64> = runs
        .iter()
        .map(|r| ratio(f64::from(concurrency), r.between))
        .collect();
    let step_seconds = median(runs.iter().map(|r| r.step));
    let work = target.work(Step {
        sequences: concurrency,
        rows_each: 1,
        context: options.input + options.output / 2,
    });
    let (share_of_read, share_of_operations) = shares(report, work, step_seconds);
    DecodeRow {
        input: options.input,
        output: options.output,
        concurrency,
        tokens_per_second: median(rates.iter().copied()),
        tokens_per_second_range: range(&rates),
        tpot_ms: median(runs.iter().map(|r| r.between)) * 1e3,
        ttft_ms: median(runs.iter().map(|r| r.first)) * 1e3,
        end_to_end_tokens_per_second: median(runs.iter().map(|r| ratio(r.tokens, r.whole))),
        step_ms: step_seconds * 1e3,
        share_of_read,
        share_of_operations,
        processor_seconds_per_token: used.processor_seconds_per_token,
        decode_processor_seconds_per_token: used.decoding,
        joules_per_token: used.joules_per_token,
        idle_share: used.idle_share,
    }
}

fn idle_share(
    stamps: Result<Vec<crate::target::Stamp>, String>,
    sequences: u32,
) -> Result<f64, String> {
    idle::share(&stamps?, sequences)
        .ok_or_else(|| "too few steps in which all sequences decode".to_owned())
}

/// The median of the repeats, or why one of them gave none.
fn all(runs: Vec<Result<f64, String>>) -> Value {
    let runs: Result<Vec<f64>, String> = runs.into_iter().collect();
    runs.map_or_else(unmeasured, |runs| Value::of(median(runs)))
}

/// Joules per token between two readings of the counter.
fn energy(before: Result<f64, String>, after: Result<f64, String>, tokens: f64) -> Energy {
    match (before, after) {
        (Ok(before), Ok(after)) if after > before => Energy::of(ratio(after - before, tokens)),
        (Ok(_), Ok(_)) => unmeasured("the counter did not move: the run was too short for it"),
        (Err(why), _) | (_, Err(why)) => unmeasured(why),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_read_from_its_timelines() {
        let of = |tokens: &[f64]| Timeline {
            tokens: tokens.to_vec(),
            cached: 0,
        };
        // The second starts two seconds later and ends two later.
        let run = Run::of(&[
            of(&[1.0, 2.0, 3.0, 4.0, 5.0]),
            of(&[3.0, 4.0, 5.0, 6.0, 7.0]),
        ]);
        assert_eq!(run.between, 1.0);
        assert_eq!((run.first, run.whole, run.tokens), (2.0, 7.0, 10.0));
        assert_eq!(run.step, 1.0);
        // A slow step before all run does not count as a step of all.
        let run = Run::of(&[of(&[1.0, 4.0, 5.0, 6.0]), of(&[4.0, 5.0, 6.0, 7.0])]);
        assert_eq!(run.step, 1.0);
        assert!((run.between - 8.0 / 6.0).abs() < 1e-12);
        assert_eq!(Run::of(&[of(&[1.0])]).step, 0.0);
    }
}
