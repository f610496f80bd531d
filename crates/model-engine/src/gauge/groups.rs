// SPDX-License-Identifier: MIT OR Apache-2.0
//! The time of each kind of launch: all launches of a name, over all layers, as a program of their own.

use std::sync::Arc;

use metrale_circuit::{Group, Phase, Workload};
use metrale_core::{KV_BLOCK, SampleRow, StepBlock, StepLayout};
use metrale_gpu_runtime::{Launch, Loc, Program};
use metrale_model_layers::Binder;

use super::{GaugeError, time};
use crate::model::{Reserved, TransformerModel};

/// The shape of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepShape {
    /// Sequences; one logits row each.
    pub sequences: u32,
    /// Rows of each.
    pub rows_each: u32,
    /// Tokens that each has behind it.
    pub context: u32,
}

impl StepShape {
    /// The same for the cost model.
    #[must_use]
    pub fn workload(&self) -> Workload {
        Workload {
            rows: u64::from(self.sequences) * u64::from(self.rows_each),
            logits_rows: u64::from(self.sequences),
            sequences: u64::from(self.sequences),
            context: u64::from(self.context),
        }
    }
}

/// The time of one kind of launch.
#[derive(Clone, Debug, PartialEq)]
pub struct GroupTime {
    /// Its name without the layer (`linear.qkv`); `step` is the whole step.
    pub name: String,
    /// Launches of a step.
    pub launches: u32,
    /// Seconds of all of them.
    pub seconds: f64,
    /// Bytes that they move, from the plan.
    pub bytes: u64,
    /// Operations, from the plan.
    pub operations: u64,
}

/// Times a step of that shape: whole, then each kind of launch. The KV cache and the block tables hold nothing of use
/// afterwards, so this comes before the engine starts.
///
/// # Errors
/// [`GaugeError`].
pub fn groups(model: &TransformerModel, shape: StepShape) -> Result<Vec<GroupTime>, GaugeError> {
    let device = model.device();
    let step = step(device, shape)?;
    let w = shape.workload();
    let mut kinds: Vec<(GroupTime, Vec<Launch>, Phase)> = Vec::new();
    let mut phases = [(Phase::Forward, Vec::new()), (Phase::Sample, Vec::new())];
    let mut binder = Binder::new(device.backend.as_ref(), device.arenas, &device.plan);
    for (index, group) in device.plan.groups.iter().enumerate() {
        let launch = binder.group(index)?;
        for (phase, launches) in &mut phases {
            if *phase == group.phase {
                launches.push(launch);
            }
        }
        let name = kind(group);
        let at = kinds.iter().position(|(k, ..)| k.name == name);
        let at = at.unwrap_or_else(|| {
            kinds.push((empty(name), Vec::new(), group.phase));
            kinds.len() - 1
        });
        let (time, launches, _) = &mut kinds[at];
        let rows = match group.phase {
            Phase::Forward => w.rows,
            Phase::Sample => w.logits_rows,
        };
        time.launches += 1;
        time.bytes += group.cost.bytes(rows, &w);
        time.operations += group.cost.flops(rows, &w);
        launches.push(launch);
    }
    let record = |launches: &[Launch], phase| -> Result<Program, GaugeError> {
        let rows = match phase {
            Phase::Forward => w.rows,
            Phase::Sample => w.logits_rows,
        };
        Ok(device.backend.record(launches, rows as u32)?)
    };
    let mut whole = empty("step".to_owned());
    for (time, ..) in &kinds {
        whole.launches += time.launches;
        whole.bytes += time.bytes;
        whole.operations += time.operations;
    }
    let mut programs = Vec::new();
    for (phase, launches) in &phases {
        programs.push(record(launches, *phase)?);
    }
    [_, whole.seconds, _] = time(device.backend.as_ref(), &programs, &step)?;
    let mut out = vec![whole];
    for (mut kind, launches, phase) in kinds {
        let program = record(&launches, phase)?;
        [_, kind.seconds, _] = time(device.backend.as_ref(), &[program], &step)?;
        out.push(kind);
    }
    Ok(out)
}

fn empty(name: String) -> GroupTime {
    GroupTime {
        name,
        launches: 0,
        seconds: 0.0,
        bytes: 0,
        operations: 0,
    }
}

/// The group's name without its layer.
fn kind(group: &Group) -> String {
    match (group.layer, group.name.split_once('.')) {
        (Some(_), Some((_, rest))) => rest.to_owned(),
        _ => group.name.clone(),
    }
}

/// A step of that shape, its block tables included. Sequences share blocks where the pool has too few: the times are the
/// same.
fn step(device: &Reserved, shape: StepShape) -> Result<StepBlock, GaugeError> {
    let plan = &device.plan;
    let mut step = StepBlock::new(Arc::new(StepLayout::new(plan.limits)));
    let vocab = plan.memory.span(plan.outputs.logits).extent.elems.max(1);
    let blocks = (shape.context + shape.rows_each).div_ceil(KV_BLOCK);
    for slot in 0..shape.sequences {
        for (group, row) in plan.kv_groups.iter().zip(0..) {
            let pool = u32::try_from(group.blocks).unwrap_or(u32::MAX).max(1);
            let table = row * plan.limits.slots + slot;
            for index in 0..blocks {
                step.push_delta(table, index, (slot * blocks + index) % pool)?;
            }
        }
        let tokens: Vec<u32> = (0..shape.rows_each)
            .map(|row| ((u64::from(slot) * 7919 + u64::from(row) * 104_729) % vocab) as u32)
            .collect();
        let item = step.push_run(slot, shape.context, &tokens)?;
        let last = item.first_row + item.rows - 1;
        let sample = SampleRow::greedy(shape.context + item.rows);
        step.push_logits(last, &sample, &[], &[])?;
    }
    touch(device, u64::from(shape.sequences * blocks))?;
    Ok(step)
}

/// Memory that nobody has written may be one shared page of zeros, read faster than any other.
fn touch(device: &Reserved, blocks: u64) -> Result<(), GaugeError> {
    if !device.backend.device().lazy_memory {
        return Ok(());
    }
    for group in &device.plan.kv_groups {
        for (span, block) in &group.streams {
            let zeros = vec![0; (blocks.min(group.blocks) * block) as usize];
            let start = Loc {
                span: *span,
                offset: 0,
            };
            device.backend.write(device.arenas, start, &zeros)?;
        }
    }
    Ok(())
}
