// SPDX-License-Identifier: MIT OR Apache-2.0
//! Shared plain data: dtypes, shapes, tensors, compute and kernel targets, errors, fault scopes and launch data.
//!
//! This is the floor of the workspace: it depends on no other member and does no I/O. What several crates must agree on
//! without depending on each other lives here, the launch data above all (point ids, argument declarations, step fields,
//! memory plans), which the circuit compiler writes and the backends read.

#![forbid(unsafe_code)]
