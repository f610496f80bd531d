// SPDX-License-Identifier: MIT OR Apache-2.0
//! The circuit compiler: from a model's configuration to a plan of kernel groups.
//!
//! Config keys become a circuit instance (operations with typed edges), a greedy fuser turns it into groups, each a point
//! of a kernel family, and a hardware class realises them as a plan with a digest, a memory plan and a roofline. The crate
//! is pure: no I/O, no environment, no clock, no randomness; manifests come as text.

#![forbid(unsafe_code)]
