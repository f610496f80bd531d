// SPDX-License-Identifier: MIT OR Apache-2.0
//! Layers as bindings of a plan: the generic builder, the weight map and weight packing.
//!
//! No mathematics and no launch order is written here; both are the circuit's. A [`TransformerLayer`] has one entry,
//! [`bind`](TransformerLayer::bind), which yields the launches of its plan groups for steps of mixed rows. Weights reach
//! the device through [`pack`]: disk rows are staged, and the class's own `pack` points lay them out, once.

#![forbid(unsafe_code)]

pub mod layer;
pub mod layers;
pub mod pack;
pub mod weight_map;

pub use layer::{BindFailure, Binder, TransformerLayer};
pub use metrale_circuit::{Source, WeightKey};
