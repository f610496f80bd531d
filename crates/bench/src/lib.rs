// SPDX-License-Identifier: MIT OR Apache-2.0
//! Benchmarks of a model on a device: `met bench`.
//!
//! A [`Plugin`] is one benchmark; the [`Registry`] holds them in the order in which they run. What they measure is a
//! [`Target`]: the server implements it over the engine that serves, in the same process and without HTTP, so that nothing
//! but the engine is measured. Results go into one [`Report`], which is a table for people and JSON for programs
//! (docs/bench.md).
//!
//! Every figure is said with its bound: the target measures in the same run what the device reads per second (and on a
//! processor what it multiplies), and states the bytes and operations of a step from the plan.

#![forbid(unsafe_code)]

mod config;
mod idle;
mod options;
pub mod plugins;
mod prompts;
mod report;
mod stats;
mod table;
mod target;

pub use config::{CONFIGS, Config, config};
pub use options::{Need, Options, OptionsError, list};
pub use plugins::{Plugin, Registry};
pub use report::{
    DecodeRow, Energy, GroupRow, PrefillRow, Report, SCHEMA, StartRow, Value, unmeasured,
};
pub use target::{
    About, Gauges, Generated, GroupTime, Stamp, Step, Target, TargetError, Timeline, Work,
};
