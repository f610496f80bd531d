// SPDX-License-Identifier: MIT OR Apache-2.0
//! The circuit compiler: from a model's configuration to a plan of kernel groups.
//!
//! ```text
//! flat map --config map--> params --circuit--> Instance --points of a class--> lowered --fuser--> groups --> Plan
//! ```
//!
//! A model family is data: `kernels/circuits/<family>/circuit.toml` states its params, weights and ops,
//! `map.toml` what each config key means. A hardware class is data too: `kernels/<class>/KERNEL_FAMILIES.toml` lists its
//! points, `FUSIONS.toml` which adjacent ops it joins. The crate is pure: no I/O, no environment, no clock, no randomness;
//! manifests come as text ([`CircuitLibrary::new`]).
//!
//! Invariants: a key of a configuration is never passed over in silence; a plan that is returned has passed
//! [`check_memory`]; equal [`Digest`]s promise equal bits of logits.

#![forbid(unsafe_code)]

mod class;
mod config_map;
mod constants;
mod expr;
mod fuzz;
mod instance;
mod library;
mod manifest;
mod plan;
mod refusal;
mod show;
mod text;
mod unroll;

pub use config_map::Params;
pub use expr::{Expr, ExprError, Names, Value};
pub use instance::{
    Attr, ConstantDecl, Edge, EdgeId, Instance, Op, OpId, Operand, Phase, Source, State, Use,
    WeightDecl, WeightKey,
};
pub use library::{CircuitLibrary, ConfigInput};
pub use manifest::LibraryError;
pub use manifest::class::Numerics;
pub use manifest::devices::Device;
pub use manifest::families::ArgSig;
pub use plan::{
    Constant, Cost, Digest, Group, KvFormats, KvGroup, MemoryFault, OutputSpans, Plan, PlanError,
    PlanRequest, STAGING_BYTES, WeightPart, WeightSlot, WindowPool, Workload, check_memory,
};
pub use refusal::Refusal;
