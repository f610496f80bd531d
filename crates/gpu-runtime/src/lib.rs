// SPDX-License-Identifier: MIT OR Apache-2.0
//! The device seam: [`GpuBackend`], its backends, arenas, programs and fences.
//!
//! Layers bind launches once, programs are recorded per row bucket, and each step submits them with a step block. The
//! arenas are the only device allocation; they are raw memory, and no safe code ever holds a reference into one.
//!
//! - [`HostBackend`]: class `cpu`, the kernels and the thread team of `metrale-host-kernels`.
//! - [`CudaBackend`]: NVIDIA devices, with the kernels that the build compiled. Loads the driver when it is opened.
//! - [`Recording`], [`Checked`], [`Faulty`]: decorators, for tests and for catching faults.

mod backend;
mod cuda;
mod decorators;
mod error;
mod faults;
mod host;

pub use backend::{
    ArenasId, DeviceInfo, Fence, GpuBackend, Kernel, Launch, Loc, PagesId, Program, Progress,
    Queue, Stamp, Transfer,
};
pub use cuda::{CudaBackend, CudaOptions, CudaStartError};
pub use decorators::{Call, Checked, Divergence, Faulty, Recording, replay};
pub use error::{BindError, DeviceFault, OutOfMemory, Unresolved};
pub use faults::FaultPlan;
pub use host::{HostBackend, HostOptions, StartError};
pub use metrale_host_kernels::Isa;
