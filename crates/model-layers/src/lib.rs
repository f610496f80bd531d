// SPDX-License-Identifier: MIT OR Apache-2.0
//! Layers as bindings of a plan: the generic builder, the weight map and the quantization formats.
//!
//! No mathematics and no launch order is written here; both are the circuit's. A layer has one entry, `bind`, which yields
//! the launches of its plan groups for steps of mixed rows.

#![forbid(unsafe_code)]
