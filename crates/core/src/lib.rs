// SPDX-License-Identifier: MIT OR Apache-2.0
//! Shared plain data: element formats, the flat configuration map, launch data, step blocks, numerics and fault scopes.
//!
//! This is the floor of the workspace: it depends on no other member and does no I/O. What several crates must agree on
//! without depending on each other lives here, the launch data above all: the circuit compiler writes [`PointId`],
//! [`Arg`] and [`MemoryPlan`], the backends read them; model-engine writes a [`StepBlock`], the kernels read it.
//!
//! - [`elem`]: element formats of tensors on disk and in memory, block-quantized ones included.
//! - [`compute`]: kernel targets and what compiles them.
//! - [`fp8`]: rows of e4m3 values with their scales.
//! - [`flat`]: the flat map that a checkpoint's configuration is normalised to.
//! - [`launch`], [`memory`], [`step`]: what crosses the device seam.
//! - [`numeric`]: conversions and the deterministic `exp`, `ln`, `sin_cos` that every path shares.
//! - [`rng`]: the counter generator behind sampling.
//! - [`fault`]: how far a fault reaches.

#![forbid(unsafe_code)]

pub mod compute;
pub mod elem;
pub mod fault;
pub mod flat;
pub mod fp8;
pub mod kv;
pub mod launch;
pub mod memory;
pub mod numeric;
pub mod rng;
pub mod step;

pub use compute::{ComputeTarget, CudaTarget, KernelTarget, PrebuiltTarget};
pub use elem::Elem;
pub use fault::FaultScope;
pub use flat::{FlatMap, Scalar};
pub use launch::{Access, Arg, ArgDecl, PointId, RowRange};
pub use memory::{ArenaKind, Extent, MemoryPlan, Span, SpanId, Unit};
pub use step::{
    FAULT_ADDRESS_WORD, HistoryEntry, LateId, SampleRow, StepBlock, StepCounts, StepFull,
    StepLayout, StepLimits, WorkItem,
};

/// Tokens in a KV block, on every class. A power of two, so that position to block is a shift.
pub const KV_BLOCK: u32 = 16;
