// SPDX-License-Identifier: MIT OR Apache-2.0
//! Model configuration: `config.json` and GGUF headers, read from bytes into a flat map and a typed [`ModelConfig`].
//!
//! The readers are pure functions over bytes; opening files is the caller's work. What is architecture stays in the flat
//! map, for the circuit's config map to read; what is not (ids, context length, dtypes, files) is typed here. The registry
//! of every `METRALE_*` environment lever also lives in this crate.
//!
//! - [`gguf`]: the GGUF header. [`gguf_config`]: a header to a [`ModelConfig`].
//! - [`json`]: bounded JSON. [`hf`]: a Hugging Face checkpoint's JSON files to a [`ModelConfig`].
//! - [`flatten`]: nested JSON and GGUF metadata to the flat map.
//! - [`quantization`]: `quantization_config`: fp8 and its scales.
//! - [`levers`]: the environment.

#![forbid(unsafe_code)]

pub mod chat_template;
pub mod flatten;
pub mod generation;
pub mod gguf;
pub mod gguf_config;
pub mod hf;
pub mod json;
pub mod levers;
pub mod model;
pub mod quantization;

pub use chat_template::ChatTemplate;
pub use generation::GenerationDefaults;
pub use gguf::{GgufHeader, GgufLimits};
pub use levers::Levers;
pub use model::{ConfigError, ConfigSource, ModelConfig};
pub use quantization::Quantization;
