// SPDX-License-Identifier: MIT OR Apache-2.0
//! The HTTP side over real sockets, with a scripted engine and a byte-level toy tokenizer.

#![allow(clippy::expect_used, reason = "a panic is how a test fails")]

mod support;

mod cancel;
mod chat;
mod completions;
mod drain;
mod faults;
mod feed;
mod fields;
mod guards;
mod health;
mod hostile;
mod logprobs;
mod parameters;
mod spans;
mod stops;
mod streaming;
mod tokenize;
