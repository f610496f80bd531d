// SPDX-License-Identifier: MIT OR Apache-2.0
//! Content hash of a kernel target's transitive include closure.
//!
//! A kernel target is identified by what compiles it: its sources, every header they reach, and the flags. This crate
//! resolves the layered layout `kernels/<hw>/<model>/<quant>/` and hashes that closure, so that a stale binary is seen.

#![forbid(unsafe_code)]
