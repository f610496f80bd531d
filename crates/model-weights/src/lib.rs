// SPDX-License-Identifier: MIT OR Apache-2.0
//! Weight stores and loaders: safetensors and GGUF files, the fast loader, and preflight.
//!
//! Files are read by `pread` into staging, so that a shrunken file is a short read and an error instead of a fault.
//! Preflight compares the store against the expected tensor list, which comes as a value.

#![forbid(unsafe_code)]
