// SPDX-License-Identifier: MIT OR Apache-2.0
//! The kept inputs of the fuzz target `chat_request`, and mutations of them.

#![allow(clippy::unwrap_used, clippy::print_stderr, unreachable_pub)] // shared with the fuzz workspace

use std::path::Path;

#[path = "../../../fuzz/entry/chat_request.rs"]
mod chat_request;
#[path = "../../../fuzz/entry/replay.rs"]
mod replay;

const FUZZ: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz");

#[test]
fn survival_10_request_seeds_and_mutations() {
    replay::replay(Path::new(FUZZ), "chat_request", 3000, chat_request::run);
}
