// SPDX-License-Identifier: MIT OR Apache-2.0
//! The device memory of a model, given back when its last user is gone.

use std::sync::Arc;

use metrale_circuit::Plan;
use metrale_gpu_runtime::{ArenasId, GpuBackend, OutOfMemory};

/// A plan's memory, reserved on a backend. The model and the thread that populates the KV pool share it.
pub struct Reserved {
    /// The plan.
    pub plan: Arc<Plan>,
    /// The backend.
    pub backend: Arc<dyn GpuBackend>,
    /// Its arenas.
    pub arenas: ArenasId,
}

impl Reserved {
    /// Reserves the memory of `plan`.
    ///
    /// # Errors
    /// [`OutOfMemory`].
    pub fn new(
        plan: Arc<Plan>,
        backend: Arc<dyn GpuBackend>,
    ) -> Result<Arc<Reserved>, OutOfMemory> {
        let arenas = backend.reserve(&plan.memory, &plan.limits)?;
        Ok(Arc::new(Reserved {
            plan,
            backend,
            arenas,
        }))
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        self.backend.release(self.arenas);
    }
}
