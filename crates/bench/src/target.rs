// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a benchmark needs of the thing that it measures.

use std::sync::Arc;

/// A model on a device, ready to be measured. The server implements it over the engine.
pub trait Target {
    /// What it is.
    fn about(&self) -> &About;

    /// What the device can do, measured now.
    ///
    /// # Errors
    /// [`TargetError`]; also once the engine has taken the model.
    fn gauges(&mut self) -> Result<Gauges, TargetError>;

    /// Seconds of each kind of launch in a step of that shape, alone and back to back. Before the first
    /// [`generate`](Target::generate): the engine takes the model then.
    ///
    /// # Errors
    /// [`TargetError`].
    fn groups(&mut self, step: Step) -> Result<Vec<GroupTime>, TargetError>;

    /// Bytes and operations of a step, from the plan.
    fn work(&self, step: Step) -> Work;

    /// Generates `output` tokens after each prompt, greedily, whatever the tokens; all are submitted at once. Returns when
    /// the last has ended.
    ///
    /// # Errors
    /// [`TargetError`]: refused, failed, or ended early.
    fn generate(&mut self, prompts: Vec<Arc<[u32]>>, output: u32)
    -> Result<Generated, TargetError>;

    /// Seconds that this process has computed, on all its threads; `None` where the system does not say.
    fn processor_seconds(&mut self) -> Option<f64>;

    /// Joules that the device has used since some moment before.
    ///
    /// # Errors
    /// Why it is not known, in words.
    fn joules(&mut self) -> Result<f64, String>;
}

/// A measurement that did not come about.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what}")]
pub struct TargetError {
    /// What happened, with the remedy where there is one.
    pub what: String,
}

impl TargetError {
    /// With its text.
    pub fn new(what: impl Into<String>) -> TargetError {
        TargetError { what: what.into() }
    }
}

/// What is measured.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct About {
    /// The model's name.
    pub model: String,
    /// Where its weights come from: `checkpoint` or `dummy`.
    pub weights: &'static str,
    /// Format that most bytes of them have on the device (`bf16`, `f8_row`).
    pub format: String,
    /// The device (`NVIDIA H200`, `AMD EPYC, 2 threads, avx2`).
    pub device: String,
    /// Its hardware class.
    pub class: String,
    /// The numerics digest.
    pub digest: String,
    /// met's version.
    pub met: &'static str,
    /// Format of the KV cache.
    pub kv: String,
    /// Bytes of weights on the device.
    pub weight_bytes: u64,
    /// Ids are below this.
    pub vocab: u32,
    /// Most tokens of a sequence.
    pub context: u32,
    /// Tokens that the KV pool holds.
    pub kv_tokens: u64,
    /// Most prompt tokens of a step.
    pub prefill_tokens: u32,
    /// Seconds to load the weights, or make them.
    pub load_seconds: f64,
}

/// What the device can do.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Gauges {
    /// Bytes per second of a launch that only reads.
    pub read: f64,
    /// Bytes that it read, each pass.
    pub read_bytes: u64,
    /// Operations per second that bound the linear layers, if known; a multiply-add counts two.
    pub operations: Option<f64>,
    /// How they are known: `measured: ...`, `stated: ...`, or why not.
    pub operations_source: String,
}

/// The shape of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// Sequences.
    pub sequences: u32,
    /// Rows of each.
    pub rows_each: u32,
    /// Tokens that each has behind it.
    pub context: u32,
}

/// What a step moves and computes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// Bytes.
    pub bytes: u64,
    /// Operations.
    pub operations: u64,
}

/// The time of one kind of launch.
#[derive(Clone, Debug, PartialEq)]
pub struct GroupTime {
    /// Its name without the layer (`linear.qkv`); the whole step is `step`.
    pub name: String,
    /// Launches of a step.
    pub launches: u32,
    /// Seconds of all of them.
    pub seconds: f64,
    /// What all of them move and compute.
    pub work: Work,
}

/// What a batch of sequences gave.
#[derive(Clone, Debug, PartialEq)]
pub struct Generated {
    /// One entry a sequence, in the order of the prompts.
    pub timelines: Vec<Timeline>,
    /// Processor seconds per generated token, from when all sequences had a token until one had its last; `None` where the
    /// system does not tell them, or there was no such time.
    pub processor_seconds_per_token: Option<f64>,
    /// When each program ran on the device, in order; or why that is not known.
    pub stamps: Result<Vec<Stamp>, String>,
}

impl Default for Generated {
    fn default() -> Generated {
        Generated {
            timelines: Vec::new(),
            processor_seconds_per_token: None,
            stamps: Ok(Vec::new()),
        }
    }
}

/// When a program ran on the device, by the device's clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stamp {
    /// Nanoseconds, before its first launch.
    pub begin: u64,
    /// Nanoseconds, behind its last.
    pub end: u64,
    /// Rows of its step.
    pub rows: u32,
    /// Logits rows of its step.
    pub logits_rows: u32,
}

/// When the tokens of one sequence came, in seconds from the moment of submission, by the engine's thread.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Timeline {
    /// One entry a token.
    pub tokens: Vec<f64>,
    /// Prompt tokens that came from the prefix cache; 0 in an honest run.
    pub cached: u32,
}
