// SPDX-License-Identifier: MIT OR Apache-2.0
//! Model configuration: `config.json` and GGUF headers, read from bytes into a flat map and a typed `ModelConfig`.
//!
//! The readers are pure functions over bytes; opening files is the caller's work. What is architecture stays in the flat
//! map, for the circuit's config map to read; what is not (ids, context length, dtypes, files) is typed here. The registry
//! of every `METRALE_*` environment lever also lives in this crate.

#![forbid(unsafe_code)]
