// SPDX-License-Identifier: MIT OR Apache-2.0
//! Per-family weight loaders: the tensor names, splits and transforms of each model family.
//!
//! A family is data: a file that maps Hugging Face and GGUF names onto weight recipes. Counts and shapes come from the
//! circuit instance, never from here.

#![forbid(unsafe_code)]

pub mod weight_loader;
