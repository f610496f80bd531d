// SPDX-License-Identifier: MIT OR Apache-2.0
//! The plan that a checkpoint would be served by, without its device.

use anyhow::Result;
use metrale_circuit::{CircuitLibrary, Plan};
use metrale_model_engine::{KvPools, PlanOptions, Prepared};

use super::LoadOptions;
use super::sizes::{self, Room, rest};

/// What is planned for.
pub(crate) struct Shown {
    /// The hardware class.
    pub(crate) class: String,
    /// The device whose peaks give the roofline; `None` = what stands for the class.
    pub(crate) device: Option<String>,
    /// Rows that a step must have room for, if the options give it fewer.
    pub(crate) rows: u32,
    /// Whether operations are joined.
    pub(crate) fuse: bool,
}

/// The plan of `prepared` by the sizes of `options`. Without a size of the KV cache it holds every sequence at full length, on a
/// device whose memory DEVICES.toml states at most what a server would give it there.
///
/// # Errors
/// As [`open_on`](super::open_on) without its device.
pub(crate) fn plan_on(
    library: &CircuitLibrary,
    prepared: &Prepared,
    options: &LoadOptions,
    shown: Shown,
) -> Result<Plan> {
    let sizes = sizes::choose(options, prepared, &shown.class)?;
    let mut limits = sizes.step;
    limits.rows = limits.rows.max(shown.rows);
    let plan = |pools: KvPools| {
        let options = PlanOptions {
            class: shown.class.clone(),
            device: shown.device.clone(),
            kv: sizes.kv.clone(),
            limits,
            kv_blocks: pools.blocks,
            windows: pools.windows,
            snapshots: limits.slots,
            fuse: shown.fuse,
        };
        prepared.plan(library, &options)
    };
    let device = shown.device.as_ref().and_then(|d| library.devices().get(d));
    let room = match device.and_then(|d| d.memory_bytes) {
        Some(bytes) => Room::of_device(bytes, rest(&plan(sizes.most_pools(prepared))?.memory)),
        None => Room::endless(),
    };
    Ok(plan(sizes.kv_pools(options, prepared, room)?)?)
}
