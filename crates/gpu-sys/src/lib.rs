// SPDX-License-Identifier: MIT OR Apache-2.0
//! Raw access to what comes with a GPU. Libraries are opened when they are first asked for, never linked: a machine without
//! them runs the same binary.

#![forbid(unsafe_code)]

pub mod nvml;
