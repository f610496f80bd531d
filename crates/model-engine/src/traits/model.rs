// SPDX-License-Identifier: MIT OR Apache-2.0
//! The `Model` trait: step blocks in, sampled tokens out.

use std::time::Duration;

use metrale_core::{SpanId, StepBlock, StepLimits};
use metrale_gpu_runtime::{DeviceFault, Progress};
use metrale_scheduler::RowStatus;

/// What one logits row of a finished step gave.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RowResult {
    /// The token drawn, or the forced one.
    pub token: u32,
    /// Its logarithm of probability in the raw distribution.
    pub logprob: f32,
    /// Whether it can be used.
    pub status: RowStatus,
}

/// A model that runs steps in the order in which they are submitted, and is waited for in that order. A step's results stand
/// until the next wait; its logits until the next submit.
pub trait Model: Send {
    /// Capacities of a step; a block of another layout must not be submitted.
    fn limits(&self) -> &StepLimits;

    /// The numerics digest: what the logits' bits depend on beside the tokens.
    fn digest(&self) -> &str;

    /// Ids are below this.
    fn vocab(&self) -> u32;

    /// Copies the KV of block `src` over block `dst`, all layers of the first group, before the next submit.
    ///
    /// # Errors
    /// [`DeviceFault`].
    fn copy_block(&mut self, src: u32, dst: u32) -> Result<(), DeviceFault>;

    /// Copies the recurrent state of place `src` over place `dst`, all layers: after the steps submitted so far, before those
    /// to come. Places are the live ones, by slot, then the snapshots. A live place counts as empty for rows at position 0.
    ///
    /// # Errors
    /// [`DeviceFault`]; also where the model has no such state.
    fn copy_state(&mut self, _src: u32, _dst: u32) -> Result<(), DeviceFault> {
        Err(DeviceFault::rejected(
            "a state was to be copied of a model that has none: cache and plan disagree",
        ))
    }

    /// The span in which a step leaves its tokens (by logits row), if the next step may take ids from there
    /// ([`StepBlock::push_late`]) and be submitted while it runs; two may be in flight then.
    fn late_ids(&self) -> Option<SpanId> {
        None
    }

    /// Starts a step.
    ///
    /// # Errors
    /// [`DeviceFault`]; the step did not start.
    fn submit(&mut self, step: &StepBlock) -> Result<(), DeviceFault>;

    /// Waits at most `timeout` for the oldest step in flight; parks the thread.
    ///
    /// # Errors
    /// [`DeviceFault`]; the step's results are lost.
    fn wait(&mut self, timeout: Duration) -> Result<Progress, DeviceFault>;

    /// The result of logits row `index` of the finished step, its alternatives (token, logprob) appended to `top`.
    ///
    /// # Errors
    /// [`DeviceFault`].
    fn result(
        &mut self,
        index: u32,
        top_count: u32,
        top: &mut Vec<(u32, f32)>,
    ) -> Result<RowResult, DeviceFault>;

    /// The raw logits of logits row `index` of the finished step into `out`, `[vocab]`.
    ///
    /// # Errors
    /// [`DeviceFault`].
    fn logits(&mut self, index: u32, out: &mut [f32]) -> Result<(), DeviceFault>;

    /// A hash of the bits of the raw logits row: the currency of every invariance test.
    ///
    /// # Errors
    /// [`DeviceFault`].
    fn logits_hash(&mut self, index: u32) -> Result<u64, DeviceFault>;
}
