// SPDX-License-Identifier: MIT OR Apache-2.0
//! Measuring a loaded model and its device, outside of the engine: what launches take alone ([`groups()`]), and what the
//! device can do at best ([`rates()`]).
//!
//! A program is submitted several times in a row and waited for once, so that the time of a submission hides behind the
//! device's work as it does while serving.

mod groups;
mod rates;

pub use groups::{GroupTime, StepShape, groups};
pub use rates::{Rates, rates};

use std::time::{Duration, Instant};

use metrale_core::{StepBlock, StepFull};
use metrale_gpu_runtime::{
    BindError, DeviceFault, GpuBackend, Program, Progress, Queue, Unresolved,
};
use metrale_model_layers::BindFailure;

/// A measurement that could not be made.
#[derive(Debug, thiserror::Error)]
pub enum GaugeError {
    /// The device failed.
    #[error(transparent)]
    Device(#[from] DeviceFault),
    /// The step is larger than the model was planned for.
    #[error(transparent)]
    Full(#[from] StepFull),
    /// The device lacks a point.
    #[error(transparent)]
    Unresolved(#[from] Unresolved),
    /// A launch could not be bound.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// A group of the plan could not be bound.
    #[error(transparent)]
    Group(#[from] BindFailure),
    /// It took longer than anything should.
    #[error("the device did not end a measurement within {0:?}")]
    Hangs(Duration),
}

/// Seconds that a batch of submissions takes about.
const BATCH: f64 = 0.03;
/// Most submissions of a batch.
const MOST: f64 = 256.0;
/// A measurement takes no longer.
const LIMIT: Duration = Duration::from_secs(300);

/// Seconds of one pass over `programs`, submitted in order, of each of several batches, ascending.
fn time<const BATCHES: usize>(
    backend: &dyn GpuBackend,
    programs: &[Program],
    step: &StepBlock,
) -> Result<[f64; BATCHES], GaugeError> {
    batch(backend, programs, step, 1)?;
    let once = batch(backend, programs, step, 1)?;
    let passes = (BATCH / once.max(1e-9)).clamp(1.0, MOST) as u32;
    let mut seconds = [0.0; BATCHES];
    for of_batch in &mut seconds {
        *of_batch = batch(backend, programs, step, passes)? / f64::from(passes);
    }
    seconds.sort_by(f64::total_cmp);
    Ok(seconds)
}

fn batch(
    backend: &dyn GpuBackend,
    programs: &[Program],
    step: &StepBlock,
    passes: u32,
) -> Result<f64, GaugeError> {
    let started = Instant::now();
    let mut last = None;
    for _ in 0..passes {
        for program in programs {
            last = Some(backend.submit(Queue::default(), *program, step, &[])?);
        }
    }
    if let Some(fence) = last
        && backend.wait(fence, LIMIT)? == Progress::Running
    {
        return Err(GaugeError::Hangs(LIMIT));
    }
    Ok(started.elapsed().as_secs_f64())
}
