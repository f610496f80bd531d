// SPDX-License-Identifier: MIT OR Apache-2.0
//! `DEVICES.toml`: devices, their class and their peaks.

use std::collections::BTreeMap;

use serde::Deserialize;

/// One device: where its class comes from, and what bounds it.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Device {
    /// Its hardware class.
    pub class: String,
    /// Where the figures come from.
    pub source: String,
    /// Memory in bytes; absent where it is the machine's.
    pub memory_bytes: Option<u64>,
    /// Memory bandwidth in bytes per second.
    pub bandwidth: f64,
    /// Operations per second by arithmetic (`f32`, `bf16`, `int16`, `int8`, `fp8`); a multiply-add counts two.
    pub flops: BTreeMap<String, f64>,
}

pub(crate) type Devices = BTreeMap<String, Device>;
