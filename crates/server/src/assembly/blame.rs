// SPDX-License-Identifier: MIT OR Apache-2.0
//! Whose fault it is that a model is not served.

use anyhow::Error;
use metrale_circuit::PlanError;
use metrale_gpu_runtime::{DeviceFault, StartError};
use metrale_model_engine::{LoadError, PrepareError, engine};

use super::{DefaultError, DeviceError, SizeError};

/// Whose fault it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blame {
    /// The caller's: an option.
    Options,
    /// The checkpoint's.
    Checkpoint,
    /// The machine's: memory, threads.
    Machine,
}

impl Blame {
    /// For an error of [`open`](super::open) or [`Opened::load`](super::Opened::load).
    #[must_use]
    pub fn of(error: &Error) -> Blame {
        // Wherever it struck: a device that is lost while weights are brought to it says nothing of them.
        if error.chain().any(|cause| cause.is::<DeviceFault>()) {
            return Blame::Machine;
        }
        if let Some(PrepareError::Plan(plan)) = error.downcast_ref()
            && let PlanError::UnknownClass { .. } | PlanError::UnknownDevice { .. } = **plan
        {
            return Blame::Options;
        }
        match error.downcast_ref::<SizeError>() {
            Some(
                SizeError::LittleMemory { .. } | SizeError::Plan { .. } | SizeError::Host { .. },
            ) => return Blame::Machine,
            Some(_) => return Blame::Options,
            None => {}
        }
        if let Some(DefaultError::Flag(_)) = error.downcast_ref::<DefaultError>() {
            return Blame::Options;
        }
        match error.downcast_ref::<LoadError>() {
            Some(LoadError::Memory(_) | LoadError::Setup(_)) => return Blame::Machine,
            Some(LoadError::NoWeights(_) | LoadError::Pack(_)) => return Blame::Checkpoint,
            None => {}
        }
        match error.downcast_ref::<DeviceError>() {
            Some(DeviceError::Host(StartError::Twice { .. } | StartError::Cores { .. })) => {
                return Blame::Options;
            }
            Some(DeviceError::Host(_) | DeviceError::Cuda { .. }) => return Blame::Machine,
            Some(DeviceError::Kernels { .. }) => return Blame::Checkpoint,
            None => {}
        }
        match error.is::<engine::StartError>() {
            true => Blame::Machine,
            false => Blame::Checkpoint,
        }
    }
}
