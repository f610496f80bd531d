// SPDX-License-Identifier: MIT OR Apache-2.0
//! The kept inputs of the fuzz target `safetensors`, and mutations of them.

#![allow(clippy::unwrap_used, clippy::print_stderr, unreachable_pub)] // shared with the fuzz workspace

use std::path::Path;

#[path = "../../../fuzz/entry/replay.rs"]
mod replay;
#[path = "../../../fuzz/entry/safetensors.rs"]
mod safetensors;

const FUZZ: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz");

#[test]
fn survival_37_safetensors_seeds_and_mutations() {
    replay::replay(Path::new(FUZZ), "safetensors", 5000, safetensors::run);
}
