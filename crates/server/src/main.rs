// SPDX-License-Identifier: MIT OR Apache-2.0
//! `met`: the command line of Metrale Engine.

#![forbid(unsafe_code)]

fn main() {}
