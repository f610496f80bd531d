// SPDX-License-Identifier: MIT OR Apache-2.0
//! Numerics that every path shares: the deterministic elementary functions, and conversions from disk formats.

pub mod dequantize;
pub mod half;
pub mod math;

pub use dequantize::{DequantizeError, dequantize};
