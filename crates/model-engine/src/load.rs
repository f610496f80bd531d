// SPDX-License-Identifier: MIT OR Apache-2.0
//! Loading: reserve the plan's memory, pack the weights, bind and record.

use std::sync::Arc;

use metrale_circuit::Plan;
use metrale_gpu_runtime::{GpuBackend, OutOfMemory};
use metrale_model_layers::pack::{PackError, Packer, Source};

use crate::model::{Reserved, SetupError, TransformerModel};
use crate::prepare::Prepared;

/// The model could not be loaded.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The memory plan does not fit the device.
    #[error(transparent)]
    Memory(#[from] OutOfMemory),
    /// A folder that holds a configuration only.
    #[error(
        "{0} has a configuration but no weights: plans can be made from it, answers cannot; fetch its safetensors files too, or take --load-format dummy for weights of no meaning"
    )]
    NoWeights(String),
    /// A weight could not be brought to the device.
    #[error(transparent)]
    Pack(#[from] PackError),
    /// A group could not be bound, or a program not recorded.
    #[error(transparent)]
    Setup(#[from] SetupError),
}

/// Loads `prepared` as `plan` says onto `backend`. `progress` is told the bytes read or made since it was told last.
///
/// # Errors
/// [`LoadError`]; nothing stays reserved.
pub fn load(
    prepared: &Prepared,
    plan: Arc<Plan>,
    backend: Arc<dyn GpuBackend>,
    progress: impl FnMut(u64),
) -> Result<TransformerModel, LoadError> {
    let checkpoint = &prepared.checkpoint;
    let source = match (prepared.made(), &checkpoint.store) {
        (Some(seed), _) => Source::Made(seed),
        (None, Some(store)) => Source::Files(store),
        (None, None) => return Err(LoadError::NoWeights(checkpoint.path.display().to_string())),
    };
    let device = Reserved::new(plan, backend)?;
    let packer = Packer {
        backend: device.backend.as_ref(),
        arenas: device.arenas,
        plan: &device.plan,
        source,
        recipe: &|key| prepared.recipes.get(key),
    };
    packer.run(progress)?;
    Ok(TransformerModel::new(device)?)
}
