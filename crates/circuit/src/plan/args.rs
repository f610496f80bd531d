// SPDX-License-Identifier: MIT OR Apache-2.0
//! The arguments of a launch, resolved by the names of its kernel family, and what the launch costs.

use std::collections::BTreeMap;

use metrale_core::{Access, Arg, KV_BLOCK, SpanId, Unit};

use super::PlanError;
use super::cost::Cost;
use super::lower::{LoweredOp, Run};
use super::realize::Realizer;
use crate::expr::{Expr, Value};
use crate::instance::{Attr, EdgeId};
use crate::manifest::families::{ArgSig, FamilyFile};

/// What becomes one group.
pub(super) struct Launch<'a> {
    pub(super) family: &'a str,
    pub(super) points: &'a [usize],
    pub(super) parts: &'a [(&'a LoweredOp, &'a Run)],
    pub(super) internal: &'a [EdgeId],
    pub(super) suffix: Option<usize>,
}

impl Launch<'_> {
    pub(super) fn attr(&self, name: &str) -> Option<Attr> {
        self.parts.iter().find_map(|(o, _)| o.op.attr(name))
    }

    pub(super) fn fault(&self, what: &str) -> PlanError {
        let op = self.parts.first().map_or("", |(o, _)| o.op.name.as_str());
        PlanError::Library {
            what: format!("kernel family {}, op {op}: {what}", self.family),
        }
    }
}

impl Realizer<'_> {
    pub(super) fn buffer(&mut self, launch: &Launch<'_>, name: &str) -> Result<SpanId, PlanError> {
        for (op, run) in launch.parts {
            let edges = run
                .edges
                .iter()
                .filter(|(_, e)| !launch.internal.contains(e));
            if let Some((_, edge)) = edges.into_iter().find(|(n, _)| n == name) {
                return self.edge(*edge);
            }
            if let Some((_, ids)) = run.weights.iter().find(|(n, _)| n == name) {
                return self.slot(ids);
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
        if let Some(Attr::U32(v)) = launch.attr(name) {
            return Ok(v);
        }
        let (op, run) = launch.parts[launch.parts.len() - 1];
        let edge_cols = |n: &str| {
            let edge = run.edges.iter().find(|(e, _)| e == n);
            edge.map(|(_, e)| self.lowered.edges[e.0 as usize].cols)
        };
        let value = match name {
            "blocks_per_slot" => Some(u64::from(self.job.request.limits.blocks_per_slot)),
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
                        .map(|id| self.job.instance.weights[*id as usize].shape[0])
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
                let shape = |id: &u32| &self.job.instance.weights[*id as usize].shape;
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
