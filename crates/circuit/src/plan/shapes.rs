// SPDX-License-Identifier: MIT OR Apache-2.0
//! What is known of a launch before it has arguments: the numbers of its shape, and the formats that nothing converts.

use metrale_core::{Elem, Unit};

use super::Job;
use super::lower::Run;
use crate::expr::Value;
use crate::instance::{Attr, Edge, Op, State, Use};

/// One op of a launch, with its run.
pub(super) type Part<'a> = (&'a Op, &'a Run);

/// A u32 argument of a kernel family by its name; `None` if the parts do not say it.
pub(super) fn number(job: Job<'_>, edges: &[Edge], parts: &[Part<'_>], name: &str) -> Option<u64> {
    if let Some(Attr::U32(v)) = parts.iter().find_map(|(op, _)| op.attr(name)) {
        return Some(u64::from(v));
    }
    let (op, run) = parts.last()?;
    let edge = |id: crate::instance::EdgeId| &edges[id.0 as usize];
    match name {
        "blocks_per_slot" => Some(u64::from(job.request.limits.blocks_per_slot)),
        "entries" => Some(table_entries(job)),
        "first" => Some(table_entries(job) * u64::from(run.tables?)),
        "rows_unit" => {
            let inputs = op.edges.iter().filter(|o| o.used == Use::In);
            let first = inputs.chain(&op.edges).next()?;
            Some(u64::from(edge(first.edge).rows == Unit::LogitsRow))
        }
        "n" => {
            let weights = parts.iter().flat_map(|(_, run)| &run.weights);
            let (_, ids) = weights.into_iter().find(|(n, _)| n == "w")?;
            let rows = |id: &u32| job.instance.weights[*id as usize].outputs();
            Some(ids.iter().map(rows).sum())
        }
        // What divides the row at which each part of a packed tensor begins; 0 where there is one part.
        "n_step" => {
            let mut weights = parts.iter().flat_map(|(_, run)| &run.weights);
            let (_, ids) = weights.find(|(n, _)| n == "w")?;
            let rows = |id: &u32| job.instance.weights[*id as usize].outputs();
            let (_, begun) = ids.split_last()?;
            Some(begun.iter().map(rows).fold(0, gcd))
        }
        "y_col" => Some(run.column),
        "y_ld" => {
            let y = op.edges.iter().find(|o| o.name == "y")?;
            Some(edge(y.edge).cols)
        }
        _ => {
            let operand = name.strip_prefix("has_")?;
            let bound = parts.iter().any(|(op, run)| {
                op.edges.iter().any(|o| o.name == operand)
                    || run.weights.iter().any(|(n, _)| n == operand)
            });
            Some(u64::from(bound))
        }
    }
}

/// The greatest common divisor; that of 0 and a number is the number.
fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// Entries of the tables of one KV group.
fn table_entries(job: Job<'_>) -> u64 {
    let l = &job.request.limits;
    u64::from(l.slots) * u64::from(l.blocks_per_slot)
}

/// The same for expressions; with the plan's limits where `limits` says so.
pub(super) fn value(
    job: Job<'_>,
    edges: &[Edge],
    parts: &[Part<'_>],
    limits: bool,
    name: &str,
) -> Option<Value> {
    let l = &job.request.limits;
    let limit = match name {
        "rows" => Some(l.rows),
        "logits_rows" => Some(l.logits_rows),
        "slots" => Some(l.slots),
        _ => None,
    };
    let limit = limit.filter(|_| limits).map(u64::from);
    number(job, edges, parts, name).or(limit).map(Value::Count)
}

/// Formats that no conversion changes: weights, state, edges that are written.
pub(super) fn fixed_elem(
    job: Job<'_>,
    edges: &[Edge],
    op: &Op,
    format: Option<Elem>,
    arg: &str,
) -> Option<Elem> {
    if let Some((_, ids)) = op.weights.iter().find(|(n, _)| n == arg) {
        let rank = job.instance.weights[*ids.first()? as usize].shape.len();
        return if rank > 1 { format } else { Some(Elem::F32) };
    }
    if let Some((_, id)) = op.states.iter().find(|(n, _)| n == arg) {
        return Some(match job.instance.states[*id as usize] {
            State::Tables => Elem::U32,
            State::Kv { layer, .. } => job.request.kv.of(layer),
            State::Slot { .. } => Elem::F32,
        });
    }
    let operand = op
        .edges
        .iter()
        .find(|o| o.name == arg && o.used != Use::In)?;
    Some(edges[operand.edge.0 as usize].elem)
}
