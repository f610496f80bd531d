// SPDX-License-Identifier: MIT OR Apache-2.0
//! The kept inputs of the fuzz target `config_map`, and mutations of them.

#![allow(clippy::unwrap_used, clippy::print_stderr, unreachable_pub)] // shared with the fuzz workspace

use std::path::Path;

#[path = "../../../fuzz/entry/config_map.rs"]
mod config_map;
#[path = "../../../fuzz/entry/replay.rs"]
mod replay;

const FUZZ: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz");

#[test]
fn survival_38_config_map_seeds_and_mutations() {
    replay::replay(Path::new(FUZZ), "config_map", 300, config_map::run);
}
