// SPDX-License-Identifier: MIT OR Apache-2.0
//! The crate through its public face, one module a subject; one binary, so that it links once.
#![allow(clippy::unwrap_used)] // helpers of tests count as no tests

mod classes;
mod common;
mod cpu_class;
mod digest;
mod fixtures;
mod fp8;
mod fusion;
mod gguf;
mod golden;
mod known_configs;
mod known_models;
mod layouts;
mod llama;
mod plan_errors;
mod properties;
mod refusals;
mod rope;
