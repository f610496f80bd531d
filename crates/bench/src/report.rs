// SPDX-License-Identifier: MIT OR Apache-2.0
//! The report: one value, as JSON (docs/bench.md says what each field means) or as tables.

use serde::Serialize;

use crate::options::Options;
use crate::table;
use crate::target::{About, Gauges};

/// Name and version of the JSON.
pub const SCHEMA: &str = "metrale-bench/1";

/// A number, or why there is none.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Value {
    /// The number.
    pub value: Option<f64>,
    /// Why there is none; absent if there is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

impl Value {
    /// A number that was measured.
    #[must_use]
    pub fn of(value: f64) -> Value {
        Value {
            value: Some(value),
            reason: None,
        }
    }
}

/// A number that was not measured, and why.
pub fn unmeasured(reason: impl Into<String>) -> Value {
    Value {
        value: None,
        reason: Some(reason.into()),
    }
}

/// Joules of a rung.
pub type Energy = Value;

/// Everything that a run measured.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// [`SCHEMA`].
    pub schema: &'static str,
    /// What was measured.
    pub about: About,
    /// How.
    pub options: ReportedOptions,
    /// What the device can do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gauges: Option<Gauges>,
    /// Time by kind of launch.
    pub groups: Vec<GroupRow>,
    /// The prefill ladder.
    pub prefill: Vec<PrefillRow>,
    /// The decode ladder.
    pub decode: Vec<DecodeRow>,
}

/// The part of [`Options`] that rows do not repeat.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ReportedOptions {
    /// Times that each rung ran.
    pub repeats: u32,
    /// Seed of the prompts.
    pub seed: u64,
}

/// One kind of launch in a step of one shape.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct GroupRow {
    /// Sequences of the step.
    pub sequences: u32,
    /// Rows of each.
    pub rows_each: u32,
    /// Tokens behind each.
    pub context: u32,
    /// Kind of launch; `step` is the whole step.
    pub name: String,
    /// Launches.
    pub launches: u32,
    /// Milliseconds of all of them.
    pub ms: f64,
    /// Share of the sum of all kinds; 1 for `step`.
    pub share_of_step: f64,
    /// Bytes moved per second.
    pub bytes_per_second: f64,
    /// Share of the measured reading speed.
    pub share_of_read: f64,
    /// Share of the operations per second, if known.
    pub share_of_operations: Option<f64>,
}

/// One rung of the prefill ladder: one prompt, one token.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PrefillRow {
    /// Prompt tokens.
    pub input: u32,
    /// Milliseconds to the first token, median.
    pub ttft_ms: f64,
    /// Smallest and largest.
    pub ttft_ms_range: [f64; 2],
    /// Prompt tokens per second.
    pub tokens_per_second: f64,
    /// Share of the measured reading speed.
    pub share_of_read: f64,
    /// Share of the operations per second, if known.
    pub share_of_operations: Option<f64>,
    /// Processor seconds of the process per prompt token, if the system tells them.
    pub processor_seconds_per_token: Option<f64>,
}

/// One rung of the decode ladder.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DecodeRow {
    /// Prompt tokens of each sequence.
    pub input: u32,
    /// Tokens that each generated.
    pub output: u32,
    /// Sequences at once.
    pub concurrency: u32,
    /// Concurrency over the mean time between two tokens, median of the repeats.
    pub tokens_per_second: f64,
    /// Smallest and largest.
    pub tokens_per_second_range: [f64; 2],
    /// Mean milliseconds between two tokens of a sequence.
    pub tpot_ms: f64,
    /// Milliseconds to the first token, median over the sequences.
    pub ttft_ms: f64,
    /// Generated tokens over the whole time, prefill included.
    pub end_to_end_tokens_per_second: f64,
    /// Milliseconds of a step while all sequences decode and none prefills.
    pub step_ms: f64,
    /// Bytes of such a step over what the device reads in that time.
    pub share_of_read: f64,
    /// Operations of such a step over what the device computes in that time, if known.
    pub share_of_operations: Option<f64>,
    /// Processor seconds of the process per generated token, prefill included, if the system tells them.
    pub processor_seconds_per_token: Option<f64>,
    /// The same while all sequences decode and none prefills, median of the repeats.
    pub decode_processor_seconds_per_token: Option<f64>,
    /// Joules per generated token.
    pub joules_per_token: Energy,
    /// Share of the time in which the device ran no kernel, while all sequences decode.
    pub idle_share: Value,
}

/// The start of the server (`met bench start`): milliseconds from the start of the process.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StartRow {
    /// [`SCHEMA`].
    pub schema: &'static str,
    /// The model's name.
    pub model: String,
    /// Until it listens.
    pub listening_ms: f64,
    /// Until /ready says so.
    pub ready_ms: f64,
    /// Until the first token has arrived.
    pub first_token_ms: f64,
    /// Runs; each figure is its median over them.
    pub repeats: u32,
}

impl Report {
    /// An empty report.
    #[must_use]
    pub fn new(about: About, options: &Options) -> Report {
        Report {
            schema: SCHEMA,
            about,
            options: ReportedOptions {
                repeats: options.repeats,
                seed: options.seed,
            },
            gauges: None,
            groups: Vec::new(),
            prefill: Vec::new(),
            decode: Vec::new(),
        }
    }

    /// As JSON, one line.
    #[must_use]
    pub fn json(&self) -> String {
        line(self)
    }

    /// As tables.
    #[must_use]
    pub fn text(&self) -> String {
        table::report(self)
    }
}

impl StartRow {
    /// As JSON, one line.
    #[must_use]
    pub fn json(&self) -> String {
        line(self)
    }

    /// As text.
    #[must_use]
    pub fn text(&self) -> String {
        table::start(self)
    }
}

/// Plain data of ours always serializes: no map with keys that are no text, no failing implementation.
fn line(value: &impl Serialize) -> String {
    serde_json::to_string(value).unwrap_or_default() + "\n"
}
