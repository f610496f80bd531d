// SPDX-License-Identifier: MIT OR Apache-2.0
//! From lowered and fused ops to groups: spans are declared, arguments resolved by name, costs counted.

use std::collections::BTreeMap;

use metrale_core::{
    Access, ArenaKind, Arg, Elem, Extent, KV_BLOCK, MemoryPlan, RowRange, Span, SpanId, Unit,
};

use super::cost::Cost;
use super::digest::Digest;
use super::fuse::Fused;
use super::lower::{Lowered, LoweredOp, Run};
use super::memory;
use super::{
    Constant, Group, OutputSpans, Plan, PlanError, PlanRequest, STAGING_BYTES, WeightPart,
    WeightSlot,
};
use crate::class::Class;
use crate::constants::make;
use crate::expr::Value;
use crate::instance::{Attr, EdgeId, Instance, State};
use crate::library::CircuitLibrary;
use crate::manifest::families::{ArgSig, FamilyFile};

/// Computed constants, by name and in the instance's order.
pub(super) struct Constants(pub(super) Vec<(String, Vec<f32>)>);

pub(super) fn constants(
    instance: &Instance,
    request: &PlanRequest<'_>,
) -> Result<Constants, PlanError> {
    let mut out = Vec::new();
    for decl in instance.constants() {
        let mut data = make(&decl.make, instance.params()).ok_or_else(|| PlanError::Library {
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

struct Realizer<'a> {
    library: &'a CircuitLibrary,
    class: &'a Class,
    instance: &'a Instance,
    request: &'a PlanRequest<'a>,
    lowered: &'a Lowered,
    memory: MemoryPlan,
    edge_spans: BTreeMap<EdgeId, SpanId>,
    state_spans: Vec<SpanId>,
    constant_spans: Vec<SpanId>,
    slots: BTreeMap<Vec<u32>, usize>,
    weights: Vec<WeightSlot>,
    none: SpanId,
    groups: Vec<Group>,
}

#[allow(clippy::too_many_arguments)]
pub(super) fn realize(
    library: &CircuitLibrary,
    class: &Class,
    instance: &Instance,
    request: &PlanRequest<'_>,
    lowered: &Lowered,
    fused: &[Fused],
    constants: Constants,
    digest: Digest,
) -> Result<Plan, PlanError> {
    check_limits(request)?;
    let mut r = Realizer {
        library,
        class,
        instance,
        request,
        lowered,
        memory: MemoryPlan::default(),
        edge_spans: BTreeMap::new(),
        state_spans: Vec::new(),
        constant_spans: Vec::new(),
        slots: BTreeMap::new(),
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
    let mut cost = Cost::default();
    r.groups.iter().for_each(|g| cost += g.cost);
    let plan = Plan {
        class: class.name.clone(),
        family: instance.family().to_owned(),
        device: None,
        digest,
        kv_spans: r.kv_spans(),
        tables: r.state_spans[0],
        groups: r.groups,
        memory: r.memory,
        weights: r.weights,
        constants: written,
        limits: request.limits,
        kv: request.kv,
        kv_blocks: request.kv_blocks,
        staging,
        outputs,
        cost,
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
    match all.iter().find(|(_, v)| *v == 0) {
        Some((what, _)) => Err(PlanError::ZeroLimit { what }),
        None => Ok(()),
    }
}

impl Realizer<'_> {
    fn span(
        &mut self,
        name: &str,
        arena: ArenaKind,
        elem: Elem,
        unit: Unit,
        elems: u64,
    ) -> Result<SpanId, PlanError> {
        let too_large = || PlanError::TooLarge {
            what: name.to_owned(),
        };
        let l = &self.request.limits;
        let count = match unit {
            Unit::One => 1,
            Unit::Row => u64::from(l.rows),
            Unit::LogitsRow => u64::from(l.logits_rows),
            Unit::KvBlock => self.request.kv_blocks,
            Unit::Slot => u64::from(l.slots),
        };
        let bytes = elem
            .bytes_for(elems)
            .and_then(|b| b.checked_mul(count))
            .ok_or_else(too_large)?;
        self.sized_span(name, arena, elem, Extent { unit, elems }, bytes)
    }

    fn sized_span(
        &mut self,
        name: &str,
        arena: ArenaKind,
        elem: Elem,
        extent: Extent,
        bytes: u64,
    ) -> Result<SpanId, PlanError> {
        if bytes > memory::MAX_BYTES {
            return Err(PlanError::TooLarge {
                what: name.to_owned(),
            });
        }
        let id = SpanId(self.memory.spans.len() as u32);
        self.memory.spans.push(Span {
            name: name.to_owned(),
            arena,
            offset: 0,
            bytes,
            elem,
            extent,
            live: None,
        });
        Ok(id)
    }

    fn states(&mut self) -> Result<(), PlanError> {
        for state in self.instance.states() {
            let name = state.name();
            let span = match state {
                State::Tables => {
                    let entries = u64::from(self.request.limits.blocks_per_slot);
                    self.span(&name, ArenaKind::State, Elem::U32, Unit::Slot, entries)?
                }
                State::Kv { cols, .. } => {
                    let elems = cols * u64::from(KV_BLOCK);
                    self.span(&name, ArenaKind::Kv, self.request.kv, Unit::KvBlock, elems)?
                }
            };
            self.state_spans.push(span);
        }
        Ok(())
    }

    fn kv_spans(&self) -> Vec<Vec<SpanId>> {
        let mut layers = vec![Vec::new(); self.instance.layers() as usize];
        for (state, span) in self.instance.states().iter().zip(&self.state_spans) {
            if let State::Kv { layer, .. } = state {
                layers[*layer as usize].push(*span);
            }
        }
        layers
    }

    fn edge(&mut self, id: EdgeId) -> Result<SpanId, PlanError> {
        if let Some(span) = self.edge_spans.get(&id) {
            return Ok(*span);
        }
        let edge = &self.lowered.edges[id.0 as usize];
        let is_output = self.instance.outputs.iter().any(|(_, e)| *e == id);
        let arena = if is_output {
            ArenaKind::Outputs
        } else {
            ArenaKind::Activations
        };
        let span = self.span(&edge.name, arena, edge.elem, edge.rows, edge.cols)?;
        self.edge_spans.insert(id, span);
        Ok(span)
    }

    fn outputs(&self) -> Result<OutputSpans, PlanError> {
        let find = |name: &str| {
            let edge = self.instance.outputs.iter().find(|(n, _)| n == name);
            let span = edge.and_then(|(_, e)| self.edge_spans.get(e)).copied();
            span.ok_or_else(|| PlanError::Library {
                what: format!("family {} has no output `{name}`", self.instance.family()),
            })
        };
        Ok(OutputSpans {
            logits: find("logits")?,
            token: find("token")?,
            logprob: find("logprob")?,
            top: find("top")?,
            status: find("status")?,
        })
    }

    /// At least eight rows of every tensor fit, so that a pack launch always has whole row groups to work on.
    fn staging(&mut self) -> Result<SpanId, PlanError> {
        let row = |p: &WeightPart, cols: u64| p.format.bytes_for(cols).unwrap_or(0);
        let rows = self
            .weights
            .iter()
            .flat_map(|s| s.parts.iter().map(|p| row(p, s.cols)));
        let bytes = rows.max().unwrap_or(0).saturating_mul(8).max(STAGING_BYTES);
        self.span("staging", ArenaKind::Staging, Elem::U8, Unit::One, bytes)
    }

    /// The packed tensor of some weights, rows concatenated; made on first use, shared by every other.
    fn slot(&mut self, ids: &[u32]) -> Result<usize, PlanError> {
        if let Some(slot) = self.slots.get(ids) {
            return Ok(*slot);
        }
        let mut slot = WeightSlot {
            span: self.none,
            elem: Elem::F32,
            rows: 0,
            cols: 1,
            parts: Vec::new(),
        };
        let mut names = Vec::new();
        for id in ids {
            let weight = &self.instance.weights[*id as usize];
            let key = weight.key.clone();
            let format = self.request.formats.get(&key).copied();
            let format = format.ok_or_else(|| PlanError::NoFormat { key: key.clone() })?;
            let matrix = weight.shape.len() > 1;
            let pack = match matrix {
                true => self.class.formats.get(&format).map(|f| &f.pack),
                false => self.class.vectors.get(&format),
            };
            let pack = pack.cloned().ok_or_else(|| PlanError::NoPack {
                class: self.class.name.clone(),
                key: key.clone(),
                format,
                packs: match matrix {
                    true => self.class.formats.keys().map(ToString::to_string).collect(),
                    false => self.class.vectors.keys().map(ToString::to_string).collect(),
                },
            })?;
            if matrix {
                (slot.elem, slot.cols) = (format, weight.shape[1]);
            }
            let rows = weight.shape[0];
            slot.parts.push(WeightPart {
                key: key.clone(),
                format,
                pack,
                rows,
                row_offset: slot.rows,
            });
            slot.rows += rows;
            names.push(match names.is_empty() {
                true => key.to_string(),
                false => key.name,
            });
        }
        let name = names.join("+");
        let elems = slot.rows * slot.cols;
        let matrix = self.instance.weights[ids[0] as usize].shape.len() > 1;
        slot.span = if matrix {
            let bytes = self.packed_bytes(slot.elem, slot.rows, slot.cols)?;
            let extent = Extent {
                unit: Unit::One,
                elems,
            };
            self.sized_span(&name, ArenaKind::Weights, slot.elem, extent, bytes)?
        } else {
            self.span(&name, ArenaKind::Weights, Elem::F32, Unit::One, elems)?
        };
        self.slots.insert(ids.to_vec(), self.weights.len());
        self.weights.push(slot);
        Ok(self.weights.len() - 1)
    }

    fn packed_bytes(&self, elem: Elem, n: u64, k: u64) -> Result<u64, PlanError> {
        let what = || format!("packed size of {elem} [{n}, {k}]");
        let format = self.class.formats.get(&elem);
        let format = format.ok_or_else(|| PlanError::Library { what: what() })?;
        let names = |name: &str| match name {
            "n" => Some(Value::Count(n)),
            "k" => Some(Value::Count(k)),
            _ => None,
        };
        format.bytes.count(&names).map_err(|e| PlanError::Library {
            what: format!("{}: {e}", what()),
        })
    }

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
                    suffix: (op.runs.len() > 1).then_some(i),
                };
                self.launch(&launch)?;
            }
        }
        Ok(())
    }

    fn launch(&mut self, launch: &Launch<'_>) -> Result<(), PlanError> {
        let library = self.library;
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
            .map(|p| &self.class.points[*p])
            .collect();
        covers_all_rows(&points.iter().map(|p| p.rows).collect::<Vec<_>>())
            .ok_or_else(|| launch.fault("its points leave row counts out, or overlap"))?;
        let cost = self.cost(launch, family, &args, &numbers)?;
        let (first, _) = launch.parts[0];
        let mut name = match launch.parts {
            [_] => first.op.name.clone(),
            [.., (last, _)] => {
                // The family's name with the place and edge of the last op.
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
            points: points.iter().map(|p| (p.rows, p.id.clone())).collect(),
            args,
            ops: launch.parts.iter().filter_map(|(o, _)| o.id).collect(),
            cost,
            peak: points.first().map_or("f32", |p| &p.peak).to_owned(),
            shape: self.shape(launch),
        });
        Ok(())
    }

    fn buffer(&mut self, launch: &Launch<'_>, name: &str) -> Result<SpanId, PlanError> {
        for (op, run) in launch.parts {
            let edges = run
                .edges
                .iter()
                .filter(|(_, e)| !launch.internal.contains(e));
            if let Some((_, edge)) = edges.into_iter().find(|(n, _)| n == name) {
                return self.edge(*edge);
            }
            if let Some((_, ids)) = run.weights.iter().find(|(n, _)| n == name) {
                let slot = self.slot(&ids.clone())?;
                return Ok(self.weights[slot].span);
            }
            if let Some((_, id)) = op.op.states.iter().find(|(n, _)| n == name) {
                return Ok(self.state_spans[*id as usize]);
            }
            if let Some((_, id)) = op.op.consts.iter().find(|(n, _)| n == name) {
                return Ok(self.constant_spans[*id as usize]);
            }
        }
        // What the signature allows to be absent is absent.
        let signatures = launch
            .parts
            .iter()
            .filter_map(|(o, _)| self.library.ops.get(&o.op.op));
        for sig in signatures {
            let edge = sig.edges.iter().any(|e| e.name == name && e.optional);
            if edge || sig.weights.iter().any(|w| w.name == name && w.optional) {
                return Ok(self.none);
            }
        }
        Err(launch.fault(&format!("no operand for buffer {name}")))
    }

    fn number(&self, launch: &Launch<'_>, name: &str) -> Result<u32, PlanError> {
        if let Some(Attr::U32(v)) = launch.attr(name) {
            return Ok(v);
        }
        let (op, run) = launch.parts[launch.parts.len() - 1];
        let edge_cols = |n: &str| {
            let edge = run.edges.iter().find(|(e, _)| e == n);
            edge.map(|(_, e)| self.lowered.edges[e.0 as usize].cols)
        };
        let value = match name {
            "blocks_per_slot" => Some(u64::from(self.request.limits.blocks_per_slot)),
            "rows_unit" => {
                let edge = run
                    .edges
                    .first()
                    .map(|(_, e)| &self.lowered.edges[e.0 as usize]);
                edge.map(|e| u64::from(e.rows == Unit::LogitsRow))
            }
            "n" => {
                let weights = run.weights.iter().find(|(n, _)| n == "w");
                weights.map(|(_, ids)| {
                    ids.iter()
                        .map(|id| self.instance.weights[*id as usize].shape[0])
                        .sum()
                })
            }
            "y_col" => Some(run.column),
            "y_ld" => edge_cols("y"),
            _ => name.strip_prefix("has_").map(|operand| {
                let bound = run.edges.iter().any(|(n, _)| n == operand)
                    || run.weights.iter().any(|(n, _)| n == operand);
                u64::from(bound)
            }),
        };
        let value = value.ok_or_else(|| launch.fault(&format!("no value for u32 {name}")))?;
        u32::try_from(value).map_err(|_| PlanError::TooLarge {
            what: format!("{name} of {}", op.op.name),
        })
    }

    fn cost(
        &self,
        launch: &Launch<'_>,
        family: &FamilyFile,
        args: &[Arg],
        numbers: &BTreeMap<&str, u64>,
    ) -> Result<Cost, PlanError> {
        let names = |n: &str| numbers.get(n).copied().map(Value::Count);
        let eval = |e: &Option<crate::expr::Expr>| match e {
            Some(e) => e.count(&names).map_err(|e| launch.fault(&e.to_string())),
            None => Ok(0),
        };
        let mut cost = Cost {
            flops_per_row: eval(&family.flops)?,
            flops_per_context: eval(&family.flops_context)?,
            ..Cost::default()
        };
        for (sig, arg) in family.args.iter().zip(args) {
            let (ArgSig::Buf { name, access }, Arg::Buf { span, .. }) = (sig, arg) else {
                continue;
            };
            if family.free.contains(name) || *span == self.none {
                continue;
            }
            let span = self.memory.span(*span);
            if let Some(rows) = family.gathered.get(name) {
                let rows = rows
                    .count(&names)
                    .map_err(|e| launch.fault(&e.to_string()))?;
                cost.bytes_per_row += span.bytes / rows.max(1);
            } else if family.context.contains(name) {
                let block = span.elem.bytes_for(span.extent.elems).unwrap_or(0);
                cost.bytes_per_context += block / u64::from(KV_BLOCK);
            } else if span.extent.unit == Unit::One {
                cost.fixed_bytes += span.bytes;
            } else {
                let elems = match family.columns.get(name) {
                    Some(e) => e.count(&names).map_err(|e| launch.fault(&e.to_string()))?,
                    None => span.extent.elems,
                };
                let twice = if *access == Access::ReadWrite { 2 } else { 1 };
                cost.bytes_per_row += span.elem.bytes_for(elems).unwrap_or(0) * twice;
            }
        }
        Ok(cost)
    }

    fn shape(&self, launch: &Launch<'_>) -> String {
        for (_, run) in launch.parts {
            if let (Some(format), Some((_, ids))) = (run.format, run.weights.first()) {
                let shape = |id: &u32| &self.instance.weights[*id as usize].shape;
                let rows: u64 = ids.iter().map(|id| shape(id)[0]).sum();
                return format!("{rows} x {} {format}", shape(&ids[0])[1]);
            }
        }
        let (_, run) = launch.parts[launch.parts.len() - 1];
        run.edges.last().map_or(String::new(), |(_, e)| {
            let edge = &self.lowered.edges[e.0 as usize];
            format!("{} {}", edge.cols, edge.elem)
        })
    }
}

/// What becomes one group.
struct Launch<'a> {
    family: &'a str,
    points: &'a [usize],
    parts: &'a [(&'a LoweredOp, &'a Run)],
    internal: &'a [EdgeId],
    suffix: Option<usize>,
}

impl Launch<'_> {
    fn attr(&self, name: &str) -> Option<Attr> {
        self.parts.iter().find_map(|(o, _)| o.op.attr(name))
    }

    fn fault(&self, what: &str) -> PlanError {
        let op = self.parts.first().map_or("", |(o, _)| o.op.name.as_str());
        PlanError::Library {
            what: format!("kernel family {}, op {op}: {what}", self.family),
        }
    }
}

/// Whether ascending ranges cover every row count from 0 on, each once.
fn covers_all_rows(ranges: &[RowRange]) -> Option<()> {
    let mut next = Some(0);
    for range in ranges {
        if next != Some(range.min) || range.max < range.min {
            return None;
        }
        next = range.max.checked_add(1);
    }
    (next.is_none()).then_some(())
}
