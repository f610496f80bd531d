// SPDX-License-Identifier: MIT OR Apache-2.0
//! The plan that a checkpoint is served by: for an open device, and for one that is only named.

use anyhow::Result;
use metrale_circuit::{CircuitLibrary, Plan};
use metrale_core::ArenaKind;
use metrale_model_engine::{KvPools, PlanOptions, Prepared};
use metrale_scheduler::PlannerLimits;

use super::LoadOptions;
use super::sizes::{self, Room};

/// What is planned for.
pub(crate) struct Target {
    /// The hardware class.
    pub(crate) class: String,
    /// The device whose peaks give the roofline; `None` = what stands for the class.
    pub(crate) device: Option<String>,
    /// What a KV cache without a size of its own takes.
    pub(crate) memory: Memory,
    /// Rows that a step must have room for, if the options give it fewer.
    pub(crate) rows: u32,
    /// Whether operations are joined.
    pub(crate) fuse: bool,
}

/// Memory that a KV cache is made of.
pub(crate) enum Memory {
    /// A part of what is free on this machine.
    Machine,
    /// A device's own, of so many bytes, beside weights and activations.
    Device(u64),
    /// As much as can be of use.
    Endless,
}

/// The plan of `prepared` by the sizes of `options`, and the planner's limits.
///
/// # Errors
/// Options that do not go together with the checkpoint or the memory, or what the class lacks.
pub(crate) fn plan_on(
    library: &CircuitLibrary,
    prepared: &Prepared,
    options: &LoadOptions,
    target: Target,
) -> Result<(Plan, PlannerLimits)> {
    let sizes = sizes::choose(options, prepared, &target.class)?;
    let mut limits = sizes.step;
    limits.rows = limits.rows.max(target.rows);
    let plan = |pools: KvPools| {
        let options = PlanOptions {
            class: target.class.clone(),
            device: target.device.clone(),
            kv: sizes.kv.clone(),
            limits,
            kv_blocks: pools.blocks,
            windows: pools.windows,
            // One for each sequence that runs, on average.
            snapshots: limits.slots,
            fuse: target.fuse,
        };
        prepared.plan(library, &options)
    };
    let room = match target.memory {
        Memory::Machine => Room::of_machine(),
        Memory::Device(bytes) => {
            let most = plan(sizes.most_pools(prepared))?.memory;
            let rest = most.total_bytes() - most.arena_bytes(ArenaKind::Kv);
            Room::of_device(bytes, rest)
        }
        Memory::Endless => Room::endless(),
    };
    let plan = plan(sizes.kv_pools(options, prepared, room)?)?;
    Ok((plan, sizes.planner))
}
