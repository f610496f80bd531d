// SPDX-License-Identifier: MIT OR Apache-2.0
//! The plan: an instance realised on a hardware class. It is what runs.
//!
//! Stages, each a module: `lower` picks a point for every op and inserts the conversions that points ask for; `fuse` joins
//! adjacent ops; `realize` turns the result into groups with arguments and spans; `memory` lays the spans out and proves
//! that none overwrites another; `digest` hashes what fixes the bits; `cost` and `show` say what it costs.

mod args;
mod cost;
mod digest;
mod error;
mod fuse;
mod kv;
mod layouts;
mod lower;
mod memory;
mod realize;
mod shapes;
mod show;
mod slots;
mod spans;

use std::collections::BTreeMap;
use std::fmt;

use metrale_core::{Arg, Elem, MemoryPlan, PointId, RowRange, SpanId, StepLimits};

pub use cost::{Cost, Workload};
pub use digest::Digest;
pub use error::PlanError;
pub use kv::{KvFormats, KvGroup, WindowPool};
pub use memory::{MemoryFault, check_memory};

use crate::class::Class;
use crate::instance::{Instance, OpId, Phase, WeightKey};
use crate::library::CircuitLibrary;
use crate::manifest::devices::Device;

/// Staging buffer in bytes where a tensor is larger: pack launches take it in pieces of whole rows.
pub const STAGING_BYTES: u64 = 16 << 20;

/// What a plan is made for.
#[derive(Clone, Copy, Debug)]
pub struct PlanRequest<'a> {
    /// Hardware class (`cpu`).
    pub class: &'a str,
    /// Device of the roofline, a name in DEVICES.toml; `None` takes `<class>-generic` if there is one.
    pub device: Option<&'a str>,
    /// Format of every weight, as it lies on disk unless `stored` says otherwise; [`Instance::uniform_formats`] where only
    /// a config is known.
    pub formats: &'a BTreeMap<WeightKey, Elem>,
    /// Disk formats of the weights that packing quantizes to their format.
    pub stored: &'a BTreeMap<WeightKey, Elem>,
    /// Values of the weights that are declared `constant`, `[n]` each.
    pub values: &'a BTreeMap<WeightKey, Vec<f32>>,
    /// Formats of the KV pools.
    pub kv: &'a KvFormats,
    /// Largest step. The plan sets its count of tables and the words of a mask.
    pub limits: StepLimits,
    /// Blocks of the first KV group's pool.
    pub kv_blocks: u64,
    /// Windows whose layers get a group with a pool of its own; the layers of others keep every block.
    pub windows: &'a [WindowPool],
    /// Places for snapshots of recurrent state, beside the live place of each slot. Without such state they cost nothing.
    pub snapshots: u32,
    /// What identifies the checkpoint's contents; it enters the digest.
    pub checkpoint: &'a str,
    /// Whether to fuse. Unfused plans exist for tests: every edge has a span to tap.
    pub fuse: bool,
}

/// One launch of a program.
#[derive(Clone, Debug, PartialEq)]
pub struct Group {
    /// A unique name (`L3.linear.qkv`).
    pub name: String,
    /// The program it belongs to.
    pub phase: Phase,
    /// Its layer.
    pub layer: Option<u32>,
    /// Points by row range, ascending, covering every row count; all of one reduction spec.
    pub points: Vec<(RowRange, PointId)>,
    /// Arguments, in the order of the kernel family's list.
    pub args: Vec<Arg>,
    /// The instance's ops that it carries out; an inserted conversion belongs to none.
    pub ops: Vec<OpId>,
    /// What it moves and computes.
    pub cost: Cost,
    /// The arithmetic peak that bounds it (a key of the device's `flops`).
    pub peak: String,
    /// Shape in words, for printed plans (`960 x 576 q4_1`).
    pub shape: String,
}

/// A packed tensor: where its parts come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WeightSlot {
    /// Where it lies, in the weights arena.
    pub span: SpanId,
    /// Format of the packed values; f32 for vectors.
    pub elem: Elem,
    /// Rows of all parts together. A vector has one value per row.
    pub rows: u64,
    /// Values per row; 1 for vectors.
    pub cols: u64,
    /// Its parts, in the order of their rows.
    pub parts: Vec<WeightPart>,
}

/// One checkpoint weight inside a packed tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WeightPart {
    /// Which.
    pub key: WeightKey,
    /// Its format on disk.
    pub format: Elem,
    /// The pack point that reads that format.
    pub pack: PointId,
    /// The fill point that makes values of that format where there is no file; `None` if the class has none.
    pub fill: Option<PointId>,
    /// Its rows.
    pub rows: u64,
    /// Where they begin in the slot.
    pub row_offset: u64,
}

/// Values that the loader writes before anything runs.
#[derive(Clone, Debug, PartialEq)]
pub struct Constant {
    /// Where, in the weights arena; f32.
    pub span: SpanId,
    /// What.
    pub data: Vec<f32>,
}

/// What the host reads back after the sample program. All are `[logits_rows, ..]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutputSpans {
    /// Raw logits, f32 `[logits_rows, vocab]`.
    pub logits: SpanId,
    /// The sampled token, u32.
    pub token: SpanId,
    /// Its log-probability, f32.
    pub logprob: SpanId,
    /// Alternatives, u32 `[logits_rows, 20 * 2]`: token and the bits of its log-probability.
    pub top: SpanId,
    /// Faults of the row, u32; 0 is none.
    pub status: SpanId,
}

/// An instance realised on a class.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// Hardware class.
    pub class: String,
    /// Model family.
    pub family: String,
    /// Device of the roofline.
    pub device: Option<(String, Device)>,
    /// The numerics digest.
    pub digest: Digest,
    /// Launches: those of `forward`, then those of `sample`.
    pub groups: Vec<Group>,
    /// Every byte on the device.
    pub memory: MemoryPlan,
    /// Packed tensors.
    pub weights: Vec<WeightSlot>,
    /// Computed values.
    pub constants: Vec<Constant>,
    /// Largest step.
    pub limits: StepLimits,
    /// Formats of the KV pools.
    pub kv: KvFormats,
    /// Blocks of the first KV group's pool: 16 tokens each.
    pub kv_blocks: u64,
    /// Layers by block tables and pool: the first group, then one for each window of the request.
    pub kv_groups: Vec<KvGroup>,
    /// Values of a token's head in a KV stream, the most of any; they have one scale where the format has scales.
    pub kv_head: u64,
    /// K and V spans of each layer, `[layer]`, in the order of the circuit's streams.
    pub kv_spans: Vec<Vec<SpanId>>,
    /// Recurrent states, f32 `[slots + snapshots, ..]` each: what a snapshot of a sequence copies.
    pub slot_spans: Vec<SpanId>,
    /// Places for snapshots in them; 0 where there is no such state.
    pub snapshots: u32,
    /// Raw disk rows on their way into a pack launch.
    pub staging: SpanId,
    /// What the host reads back.
    pub outputs: OutputSpans,
}

/// What every stage looks at.
#[derive(Clone, Copy)]
struct Job<'a> {
    library: &'a CircuitLibrary,
    class: &'a Class,
    instance: &'a Instance,
    request: &'a PlanRequest<'a>,
}

impl Plan {
    /// The groups of a phase.
    pub fn groups_of(&self, phase: Phase) -> impl Iterator<Item = &Group> {
        self.groups.iter().filter(move |g| g.phase == phase)
    }
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Instance {
    /// One format for every weight: a plan without a checkpoint.
    #[must_use]
    pub fn uniform_formats(&self, elem: Elem) -> BTreeMap<WeightKey, Elem> {
        self.weights.iter().map(|w| (w.key.clone(), elem)).collect()
    }
}

impl CircuitLibrary {
    /// Realises an instance on a class.
    ///
    /// # Errors
    /// [`PlanError`]: an unknown class or device, a first missing point, a format that the class cannot pack, a size that
    /// overflows.
    pub fn plan(&self, instance: &Instance, request: &PlanRequest<'_>) -> Result<Plan, PlanError> {
        let class = self
            .classes
            .get(request.class)
            .ok_or_else(|| PlanError::UnknownClass {
                name: request.class.to_owned(),
                known: self.classes().map(str::to_owned).collect(),
            })?;
        if !class
            .serves
            .iter()
            .any(|f| f == "*" || f == instance.family())
        {
            return Err(PlanError::NotServed {
                class: class.name.clone(),
                family: instance.family().to_owned(),
                serves: class.serves.clone(),
            });
        }
        let device = self.device(request)?;
        let job = Job {
            library: self,
            class,
            instance,
            request,
        };
        let lowered = lower::lower(job)?;
        let fused = fuse::fuse(job, &lowered);
        let constants = realize::constants(instance, request)?;
        let digest = digest::digest(job, &lowered, &fused, &constants);
        let mut plan = realize::realize(job, &lowered, &fused, constants, digest)?;
        plan.device = device;
        Ok(plan)
    }

    fn device(&self, request: &PlanRequest<'_>) -> Result<Option<(String, Device)>, PlanError> {
        let Some(name) = request.device else {
            let generic = format!("{}-generic", request.class);
            return Ok(self
                .devices()
                .get_key_value(&generic)
                .map(|(n, d)| (n.clone(), d.clone())));
        };
        let of_class = |d: &&Device| d.class == request.class;
        let device = self.devices().get(name).filter(of_class);
        let device = device.ok_or_else(|| PlanError::UnknownDevice {
            name: name.to_owned(),
            class: request.class.to_owned(),
            known: self
                .devices()
                .iter()
                .filter(|(_, d)| of_class(d))
                .map(|(n, _)| n.clone())
                .collect(),
        })?;
        Ok(Some((name.to_owned(), device.clone())))
    }
}
