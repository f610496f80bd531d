// SPDX-License-Identifier: MIT OR Apache-2.0
//! Time by kind of launch, for the first and the last rung of the decode ladder and for the longest prompt.

use super::{Plugin, shares};
use crate::options::{Need, Options};
use crate::report::{GroupRow, Report};
use crate::stats::ratio;
use crate::target::{GroupTime, Step, Target, TargetError};

pub(super) struct Groups;

/// Name of the whole step among its parts.
const STEP: &str = "step";

impl Plugin for Groups {
    fn name(&self) -> &'static str {
        "groups"
    }

    fn about(&self) -> &'static str {
        "time of each kind of launch, alone and back to back"
    }

    /// Steps alone, without answers: how many rows of a prompt one of them takes is known when the model is loaded, and a
    /// whole prompt's have room.
    fn needs(&self, options: &Options) -> Vec<Need> {
        let need = |step: &Step| Need {
            sequences: step.sequences,
            tokens: step.context + step.rows_each,
        };
        steps(options, u32::MAX).iter().map(need).collect()
    }

    fn run(
        &self,
        target: &mut dyn Target,
        options: &Options,
        report: &mut Report,
        note: &mut dyn FnMut(&str),
    ) -> Result<(), TargetError> {
        for step in steps(options, target.about().prefill_tokens) {
            note(&format!(
                "kinds of launch, {} sequences of {} rows",
                step.sequences, step.rows_each
            ));
            let groups = target.groups(step)?;
            let sum: f64 = groups
                .iter()
                .filter(|g| g.name != STEP)
                .map(|g| g.seconds)
                .sum();
            let rows: Vec<GroupRow> = groups.iter().map(|g| row(report, step, g, sum)).collect();
            report.groups.extend(rows);
        }
        Ok(())
    }
}

fn steps(options: &Options, prefill_tokens: u32) -> Vec<Step> {
    let context = options.input + options.output / 2;
    let decode = |sequences| Step {
        sequences,
        rows_each: 1,
        context,
    };
    let least = options.concurrency.iter().copied().min().unwrap_or(1);
    let mut steps = vec![decode(least)];
    if options.sequences() != least {
        steps.push(decode(options.sequences()));
    }
    if let Some(prompt) = options.prompts.iter().copied().max() {
        steps.push(Step {
            sequences: 1,
            rows_each: prompt.min(prefill_tokens),
            context: 0,
        });
    }
    steps
}

fn row(report: &Report, step: Step, g: &GroupTime, sum: f64) -> GroupRow {
    let (share_of_read, share_of_operations) = shares(report, g.work, g.seconds);
    GroupRow {
        sequences: step.sequences,
        rows_each: step.rows_each,
        context: step.context,
        name: g.name.clone(),
        launches: g.launches,
        ms: g.seconds * 1e3,
        share_of_step: match g.name == STEP {
            true => 1.0,
            false => ratio(g.seconds, sum),
        },
        bytes_per_second: ratio(g.work.bytes as f64, g.seconds),
        share_of_read,
        share_of_operations,
    }
}
