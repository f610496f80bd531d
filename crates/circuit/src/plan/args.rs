// SPDX-License-Identifier: MIT OR Apache-2.0
//! The arguments of a launch, resolved by the names of its kernel family, and what the launch costs.

use std::collections::BTreeMap;

use metrale_core::{Access, Arg, KV_BLOCK, RowRange, SpanId, Unit};

use super::PlanError;
use super::cost::Cost;
use super::lower::{LoweredOp, Run};
use super::realize::Realizer;
use super::shapes::{Part, number};
use crate::expr::{Expr, Value};
use crate::instance::{Attr, EdgeId, State};
use crate::manifest::families::{ArgSig, FamilyFile};

/// What becomes one group.
pub(super) struct Launch<'a> {
    pub(super) family: &'a str,
    pub(super) points: &'a [(RowRange, usize)],
    pub(super) parts: &'a [(&'a LoweredOp, &'a Run)],
    pub(super) internal: &'a [EdgeId],
    /// Edges of arguments that take another operand than the one of their name.
    pub(super) bind: &'a BTreeMap<String, EdgeId>,
    pub(super) suffix: Option<usize>,
}

impl Launch<'_> {
    pub(super) fn attr(&self, name: &str) -> Option<Attr> {
        self.parts.iter().find_map(|(o, _)| o.op.attr(name))
    }

    pub(super) fn ops(&self) -> Vec<Part<'_>> {
        self.parts.iter().map(|(o, run)| (&o.op, *run)).collect()
    }

    /// The name of its first op.
    fn name(&self) -> &str {
        self.parts.first().map_or("", |(o, _)| o.op.name.as_str())
    }

    pub(super) fn fault(&self, what: &str) -> PlanError {
        PlanError::Library {
            what: format!("kernel family {}, op {}: {what}", self.family, self.name()),
        }
    }
}

impl Realizer<'_> {
    pub(super) fn buffer(&mut self, launch: &Launch<'_>, name: &str) -> Result<SpanId, PlanError> {
        if let Some(edge) = launch.bind.get(name) {
            return self.edge(*edge);
        }
        for (op, run) in launch.parts {
            let edges = run
                .edges
                .iter()
                .filter(|(_, e)| !launch.internal.contains(e));
            if let Some((_, edge)) = edges.into_iter().find(|(n, _)| n == name) {
                return self.edge(*edge);
            }
            if let Some((_, ids)) = run.weights.iter().find(|(n, _)| n == name) {
                let class = self.job.class;
                let first = launch.points.first().map(|(_, p)| &class.points[*p]);
                let layout = first.and_then(|p| p.layouts.get(name));
                return self.slot(ids, layout.map(String::as_str));
            }
            if let Some((_, id)) = op.op.states.iter().find(|(n, _)| n == name) {
                if self.job.instance.states()[*id as usize] != State::Tables {
                    return Ok(self.state_spans[*id as usize]);
                }
                // The op that fills tables says whose; every other wants those of its layer.
                let group = match run.tables {
                    Some(group) => group as usize,
                    None => self.kv_group(op.op.layer),
                };
                return Ok(self.kv_groups[group].tables);
            }
            if let Some((_, id)) = op.op.consts.iter().find(|(n, _)| n == name) {
                return Ok(self.constant_spans[*id as usize]);
            }
        }
        if let Some(span) = self.scratch(launch, name)? {
            return Ok(span);
        }
        // What the signature allows to be absent is absent.
        let signatures = launch
            .parts
            .iter()
            .filter_map(|(o, _)| self.job.library.ops.get(&o.op.op));
        for sig in signatures {
            let edge = sig.edges.iter().any(|e| e.name == name && e.optional);
            if edge || sig.weights.iter().any(|w| w.name == name && w.optional) {
                return Ok(self.none);
            }
        }
        Err(launch.fault(&format!("no operand for buffer {name}")))
    }

    pub(super) fn number(&self, launch: &Launch<'_>, name: &str) -> Result<u32, PlanError> {
        let value = number(self.job, &self.lowered.edges, &launch.ops(), name);
        let value = value.ok_or_else(|| launch.fault(&format!("no value for u32 {name}")))?;
        u32::try_from(value).map_err(|_| PlanError::TooLarge {
            what: format!("{name} of {}", launch.name()),
        })
    }

    pub(super) fn cost(
        &self,
        launch: &Launch<'_>,
        family: &FamilyFile,
        args: &[Arg],
        numbers: &BTreeMap<&str, u64>,
    ) -> Result<Cost, PlanError> {
        let names = |n: &str| numbers.get(n).copied().map(Value::Count);
        let eval = |e: &Option<Expr>| match e {
            Some(e) => e.count(&names).map_err(|e| launch.fault(&e.to_string())),
            None => Ok(0),
        };
        let mut cost = Cost {
            flops_per_row: eval(&family.flops)?,
            flops_per_context: eval(&family.flops_context)?,
            // 0 is none.
            window: numbers.get("window").copied().filter(|w| *w > 0),
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

    pub(super) fn shape(&self, launch: &Launch<'_>) -> String {
        for (_, run) in launch.parts {
            if let (Some(format), Some((_, ids))) = (run.format, run.weights.first()) {
                let weight = |id: &u32| &self.job.instance.weights[*id as usize];
                let rows: u64 = ids.iter().map(|id| weight(id).outputs()).sum();
                let (one, cols) = (weight(&ids[0]), weight(&ids[0]).cols());
                return match one.shape[..] {
                    [stack, ..] if one.shape.len() > 2 => {
                        format!("{stack} x {rows} x {cols} {format}")
                    }
                    _ => format!("{rows} x {cols} {format}"),
                };
            }
        }
        let (_, run) = launch.parts[launch.parts.len() - 1];
        run.edges.last().map_or(String::new(), |(_, e)| {
            let edge = &self.lowered.edges[e.0 as usize];
            format!("{} {}", edge.cols, edge.elem)
        })
    }
}
