// SPDX-License-Identifier: MIT OR Apache-2.0
//! From the `target` of a `HARDWARE.toml` to what compiles it.

use metrale_core::{ComputeTarget, CudaTarget, PrebuiltTarget};

/// The compute target of that name.
pub(crate) fn resolve_compute_target(name: &str) -> Option<&'static dyn ComputeTarget> {
    const ALL: [&dyn ComputeTarget; 2] = [&CudaTarget, &PrebuiltTarget];
    ALL.into_iter().find(|t| t.name() == name)
}
