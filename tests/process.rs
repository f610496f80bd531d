// SPDX-License-Identifier: MIT OR Apache-2.0
//! The binary `met` as a process: it starts, listens, answers, drains, is killed, and says what is wrong.
//!
//! What a test waits for is a condition with a deadline far beyond any machine's need; nothing here measures speed.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test fails by panicking"
)]

#[path = "process/answers.rs"]
mod answers;
#[path = "process/bench.rs"]
mod bench;
#[path = "process/checkpoints.rs"]
mod checkpoints;
#[path = "process/client.rs"]
mod client;
#[path = "process/commands.rs"]
mod commands;
#[path = "process/dummy.rs"]
mod dummy;
#[path = "process/fixtures.rs"]
mod fixtures;
#[path = "process/lifecycle.rs"]
mod lifecycle;
#[path = "process/met.rs"]
mod met;
#[path = "process/refusals.rs"]
mod refusals;
