// SPDX-License-Identifier: MIT OR Apache-2.0
//! From lowered and fused ops to groups: spans are declared, arguments resolved by name, costs counted.

use std::collections::BTreeMap;

use metrale_core::{ArenaKind, Arg, Elem, MemoryPlan, SpanId, StepLimits, Unit};

use super::args::Launch;
use super::digest::Digest;
use super::fuse::Fused;
use super::lower::{Lowered, LoweredOp};
use super::memory;
use super::{Constant, Group, Job, KvGroup, Plan, PlanError, PlanRequest, WeightSlot};
use crate::constants::constant;
use crate::instance::{Attr, EdgeId, Instance, Use};
use crate::manifest::families::ArgSig;

/// Computed constants, by name and in the instance's order.
pub(super) struct Constants(pub(super) Vec<(String, Vec<f32>)>);

pub(super) fn constants(
    instance: &Instance,
    request: &PlanRequest<'_>,
) -> Result<Constants, PlanError> {
    let mut out = Vec::new();
    for decl in instance.constants() {
        let mut data = constant(decl, instance.params()).ok_or_else(|| PlanError::Library {
            what: format!("constant {} cannot be made by {}", decl.name, decl.make),
        })?;
        if let Some(key) = &decl.divide_by {
            let values = request.values.get(key).map_or(&[][..], Vec::as_slice);
            if values.len() != data.len() {
                return Err(PlanError::Values {
                    key: key.clone(),
                    want: data.len() as u64,
                    have: values.len() as u64,
                });
            }
            data.iter_mut().zip(values).for_each(|(d, v)| *d /= v);
        }
        out.push((decl.name.clone(), data));
    }
    Ok(Constants(out))
}

/// Name of the one-value span that stands for an absent operand.
const NONE: &str = "none";

pub(super) struct Realizer<'a> {
    pub(super) job: Job<'a>,
    pub(super) lowered: &'a Lowered,
    pub(super) memory: MemoryPlan,
    pub(super) edge_spans: BTreeMap<EdgeId, SpanId>,
    pub(super) state_spans: Vec<SpanId>,
    pub(super) constant_spans: Vec<SpanId>,
    pub(super) kv_groups: Vec<KvGroup>,
    /// Index into `weights` and the layout, by the ids of a slot's parts.
    pub(super) slots: BTreeMap<Vec<u32>, (usize, Option<String>)>,
    /// Buffers of kernel families that are neither operands nor read by another launch.
    pub(super) scratch: BTreeMap<(String, String), SpanId>,
    pub(super) weights: Vec<WeightSlot>,
    pub(super) none: SpanId,
    groups: Vec<Group>,
}

pub(super) fn realize(
    job: Job<'_>,
    lowered: &Lowered,
    fused: &[Fused],
    constants: Constants,
    digest: Digest,
) -> Result<Plan, PlanError> {
    let Job {
        class,
        instance,
        request,
        ..
    } = job;
    check_limits(request)?;
    check_kv(instance, request)?;
    let mut r = Realizer {
        job,
        lowered,
        memory: MemoryPlan::default(),
        edge_spans: BTreeMap::new(),
        state_spans: Vec::new(),
        constant_spans: Vec::new(),
        kv_groups: Vec::new(),
        slots: BTreeMap::new(),
        scratch: BTreeMap::new(),
        weights: Vec::new(),
        none: SpanId(0),
        groups: Vec::new(),
    };
    r.none = r.span(NONE, ArenaKind::Weights, Elem::F32, Unit::One, 1)?;
    let mut written = vec![Constant {
        span: r.none,
        data: vec![0.0],
    }];
    for (name, data) in constants.0 {
        let span = r.span(
            &name,
            ArenaKind::Weights,
            Elem::F32,
            Unit::One,
            data.len() as u64,
        )?;
        r.constant_spans.push(span);
        written.push(Constant { span, data });
    }
    r.states()?;
    for f in fused {
        r.group(f)?;
    }
    let staging = r.staging()?;
    let outputs = r.outputs()?;
    memory::lay_out(&mut r.memory, &r.groups)?;
    let plan = Plan {
        class: class.name.clone(),
        family: instance.family().to_owned(),
        device: None,
        digest,
        kv_head: r.kv_head(),
        kv_spans: r.kv_spans(),
        snapshots: if r.slot_spans().is_empty() {
            0
        } else {
            r.job.request.snapshots
        },
        slot_spans: r.slot_spans(),
        groups: r.groups,
        memory: r.memory,
        weights: r.weights,
        constants: written,
        limits: StepLimits {
            tables: r.kv_groups.len() as u32,
            mask_words: instance.vocab().div_ceil(32) as u32,
            ..request.limits
        },
        kv: request.kv.clone(),
        kv_blocks: request.kv_blocks,
        kv_groups: r.kv_groups,
        staging,
        outputs,
    };
    memory::check_memory(&plan.memory, &plan.groups).map_err(|e| PlanError::Library {
        what: e.to_string(),
    })?;
    Ok(plan)
}

fn check_limits(request: &PlanRequest<'_>) -> Result<(), PlanError> {
    let l = request.limits;
    let all = [
        ("rows", u64::from(l.rows)),
        ("logits_rows", u64::from(l.logits_rows)),
        ("slots", u64::from(l.slots)),
        ("blocks_per_slot", u64::from(l.blocks_per_slot)),
        ("kv_blocks", request.kv_blocks),
    ];
    let windows = request.windows.iter();
    let pools = windows.flat_map(|w| {
        let tokens = u64::from(w.tokens);
        [("window tokens", tokens), ("window blocks", w.blocks)]
    });
    let all: Vec<_> = all.into_iter().chain(pools).collect();
    match all.iter().find(|(_, v)| *v == 0) {
        Some((what, _)) => Err(PlanError::ZeroLimit { what }),
        None => Ok(()),
    }
}

/// Pools and formats are of layers that there are.
fn check_kv(instance: &Instance, request: &PlanRequest<'_>) -> Result<(), PlanError> {
    let layers = instance.kv_layers();
    for (i, pool) in request.windows.iter().enumerate() {
        let tokens = pool.tokens;
        let known = layers.iter().any(|l| instance.window(*l) == Some(tokens));
        let twice = request.windows[..i].iter().any(|w| w.tokens == tokens);
        if !known || twice {
            return Err(PlanError::NoWindow { tokens });
        }
    }
    let mut named = request.kv.layers.keys();
    match named.find(|l| !layers.contains(l)) {
        None => Ok(()),
        Some(layer) => Err(PlanError::NoKvLayer {
            layer: *layer,
            has: layers,
        }),
    }
}

impl Realizer<'_> {
    fn group(&mut self, fused: &Fused) -> Result<(), PlanError> {
        let lowered = self.lowered;
        let ops = &lowered.ops[fused.first..fused.first + fused.count];
        if let Some(joined) = &fused.joined {
            let parts: Vec<_> = ops
                .iter()
                .filter_map(|o| Some((o, o.runs.first()?)))
                .collect();
            let launch = Launch {
                family: &joined.family,
                points: &joined.points,
                parts: &parts,
                internal: &joined.internal,
                bind: &joined.bind,
                suffix: None,
            };
            return self.launch(&launch);
        }
        for op in ops {
            for (i, run) in op.runs.iter().enumerate() {
                let launch = Launch {
                    family: &op.op.op,
                    points: &run.points,
                    parts: &[(op, run)],
                    internal: &[],
                    bind: &BTreeMap::new(),
                    suffix: (op.runs.len() > 1).then_some(i),
                };
                self.launch(&launch)?;
            }
        }
        Ok(())
    }

    fn launch(&mut self, launch: &Launch<'_>) -> Result<(), PlanError> {
        let library = self.job.library;
        let family = library.kernel_families.get(launch.family);
        let family = family.ok_or_else(|| launch.fault("there is no such kernel family"))?;
        let mut args = Vec::new();
        let mut numbers: BTreeMap<&str, u64> = BTreeMap::new();
        for sig in &family.args {
            let arg = match sig {
                ArgSig::Buf { name, access } => Arg::Buf {
                    span: self.buffer(launch, name)?,
                    access: *access,
                },
                ArgSig::U32(name) => {
                    let value = self.number(launch, name)?;
                    numbers.insert(name, u64::from(value));
                    Arg::U32(value)
                }
                ArgSig::F32(name) => match launch.attr(name) {
                    Some(Attr::F32(v)) => Arg::F32(v),
                    _ => return Err(launch.fault(&format!("no value for f32 {name}"))),
                },
                ArgSig::Step => Arg::Step,
            };
            args.push(arg);
        }
        let points: Vec<_> = launch
            .points
            .iter()
            .map(|(rows, p)| (*rows, &self.job.class.points[*p]))
            .collect();
        let cost = self.cost(launch, family, &args, &numbers)?;
        let (first, _) = launch.parts[0];
        let mut name = match launch.parts {
            [_] => first.op.name.clone(),
            [.., (last, _)] => {
                // The family's name with the place and edge of the last op; of the last that makes an edge, if one does.
                let makes = |o: &LoweredOp| o.op.edges.iter().any(|e| e.used == Use::Out);
                let ops = launch.parts.iter().map(|(o, _)| *o);
                let last = ops.rev().find(|o| makes(o)).unwrap_or(last);
                let place = first.op.layer.map_or(String::new(), |l| format!("L{l}."));
                let rest = last.op.name.strip_prefix(&place).unwrap_or(&last.op.name);
                let edge = rest.split_once('.').map_or(rest, |(_, e)| e);
                format!("{place}{}.{edge}", launch.family)
            }
            [] => String::new(),
        };
        if let Some(i) = launch.suffix {
            name = format!("{name}.{i}");
        }
        self.groups.push(Group {
            name,
            phase: first.op.phase,
            layer: first.op.layer,
            points: points
                .iter()
                .map(|(rows, p)| (*rows, p.id.clone()))
                .collect(),
            args,
            ops: launch.parts.iter().filter_map(|(o, _)| o.id).collect(),
            cost,
            peak: points.first().map_or("f32", |(_, p)| &p.peak).to_owned(),
            shape: self.shape(launch),
        });
        Ok(())
    }
}
