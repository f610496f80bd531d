// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a layer is to the engine: something that binds.

mod binder;

pub use binder::{BindFailure, Binder};

use metrale_gpu_runtime::Launch;

/// One stretch of the plan: a transformer layer, or what stands before, between and after them.
///
/// There is no forward here. The plan's groups are the forward; a layer turns its own into launches once, at load.
pub trait TransformerLayer: Send + Sync {
    /// Readable name (`layer 3`, `prelude`).
    fn name(&self) -> String;

    /// The launches of its groups, in the plan's order.
    ///
    /// # Errors
    /// [`BindFailure`]: the backend lacks a point, or an argument does not fit its declaration.
    fn bind(&self, binder: &mut Binder<'_>) -> Result<Vec<Launch>, BindFailure>;
}
