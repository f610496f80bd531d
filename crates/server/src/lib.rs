// SPDX-License-Identifier: MIT OR Apache-2.0
//! The deliverable: the HTTP API, the command line, tokenizer and chat templates, and the wiring of everything below.
//!
//! The library holds the logic, so that tests and the bench can drive it; the binary `met` is a thin `main`.

#![forbid(unsafe_code)]

pub mod api;
pub mod assembly;
pub mod cli;
pub mod completion;
mod constraint;
mod digits;
pub mod engine_face;
pub mod http;
pub mod hub;
pub mod recipe;
pub mod template;
pub mod text_face;
pub mod tokenizer;
