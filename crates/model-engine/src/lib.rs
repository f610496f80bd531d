// SPDX-License-Identifier: MIT OR Apache-2.0
//! The model assembly: the `Model` trait, `TransformerModel`, the factory and the generate loop.
//!
//! It turns a loaded checkpoint into a model that the scheduler can drive, and joins crates that may not know each other
//! through adapters. There is no HTTP here and no direct device call.

#![forbid(unsafe_code)]
