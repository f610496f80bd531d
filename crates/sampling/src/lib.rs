// SPDX-License-Identifier: MIT OR Apache-2.0
//! What sampling means: the parameters, their encoding for the device, and the host reference.
//!
//! On every hardware class sampling is part of the plan; this crate defines the semantics it is tested against. The random
//! numbers are a function of (seed, choice, position, draw) alone.

#![forbid(unsafe_code)]

mod params;
pub mod reference;

pub use params::{InvalidSampling, Range, Sampling, SamplingFields};
