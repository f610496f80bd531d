// SPDX-License-Identifier: MIT OR Apache-2.0
//! The kept inputs of the fuzz targets `gguf` and `config_json`, and mutations of them.

#![allow(clippy::unwrap_used, clippy::print_stderr, unreachable_pub)] // shared with the fuzz workspace

use std::path::Path;

#[path = "../../../fuzz/entry/config_json.rs"]
mod config_json;
#[path = "../../../fuzz/entry/gguf.rs"]
mod gguf;
#[path = "../../../fuzz/entry/replay.rs"]
mod replay;

const FUZZ: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz");

#[test]
fn survival_36_gguf_seeds_and_mutations() {
    replay::replay(Path::new(FUZZ), "gguf", 500, gguf::run);
}

#[test]
fn survival_38_config_seeds_and_mutations() {
    replay::replay(Path::new(FUZZ), "config_json", 2000, config_json::run);
}
