// SPDX-License-Identifier: MIT OR Apache-2.0
//! The fuser: greedy, in execution order, driven by the class's FUSIONS.toml.

use std::collections::BTreeMap;

use metrale_core::Elem;

use super::lower::{Lowered, LoweredOp};
use crate::class::{Class, Fusion};
use crate::instance::{EdgeId, Use};
use crate::manifest::class::Numerics;

/// One launch group to be: ops `first..first + count` of the lowered program.
pub(super) struct Fused {
    pub(super) first: usize,
    pub(super) count: usize,
    /// Kernel family and points, where ops were joined.
    pub(super) joined: Option<Joined>,
}

pub(super) struct Joined {
    pub(super) family: String,
    pub(super) points: Vec<usize>,
    pub(super) numerics: Numerics,
    pub(super) internal: Vec<EdgeId>,
}

pub(super) fn fuse(class: &Class, lowered: &Lowered, enabled: bool) -> Vec<Fused> {
    let readers = readers(lowered);
    let mut out = Vec::new();
    let mut at = 0;
    while at < lowered.ops.len() {
        let found = class.fusions.iter().filter(|_| enabled).find_map(|f| {
            let ops = lowered.ops.get(at..at + f.ops.len())?;
            join(class, f, ops, lowered, &readers).map(|joined| (f.ops.len(), joined))
        });
        let (count, joined) = match found {
            Some((count, joined)) => (count, Some(joined)),
            None => (1, None),
        };
        out.push(Fused {
            first: at,
            count,
            joined,
        });
        at += count;
    }
    out
}

/// How many launches read each edge.
fn readers(lowered: &Lowered) -> BTreeMap<EdgeId, usize> {
    let mut readers = BTreeMap::new();
    for op in &lowered.ops {
        for run in &op.runs {
            for (name, edge) in &run.edges {
                let written = op
                    .op
                    .edges
                    .iter()
                    .any(|o| o.name == *name && o.used == Use::Out);
                if !written {
                    *readers.entry(*edge).or_insert(0) += 1;
                }
            }
        }
    }
    readers
}

fn join(
    class: &Class,
    fusion: &Fusion,
    ops: &[LoweredOp],
    lowered: &Lowered,
    readers: &BTreeMap<EdgeId, usize>,
) -> Option<Joined> {
    let first = ops.first()?;
    let fits = ops
        .iter()
        .zip(&fusion.ops)
        .all(|(o, name)| o.op.op == *name && o.runs.len() == 1 && o.op.phase == first.op.phase);
    if !fits {
        return None;
    }
    let edge = |(index, operand): &(usize, String)| {
        let run = ops[*index].runs.first()?;
        run.edges
            .iter()
            .find(|(n, _)| n == operand)
            .map(|(_, e)| *e)
    };
    for (a, b) in &fusion.links {
        if edge(a)? != edge(b)? {
            return None;
        }
    }
    let internal = fusion
        .internal
        .iter()
        .map(edge)
        .collect::<Option<Vec<_>>>()?;
    // The only reader of an internal edge is the next op of the fusion.
    if internal.iter().any(|e| readers.get(e) != Some(&1)) {
        return None;
    }
    let elem_of = |arg: &str| -> Option<Elem> {
        let mut edges = ops
            .iter()
            .flat_map(|o| o.runs.iter())
            .flat_map(|r| &r.edges);
        let found = edges.find(|(n, e)| n == arg && !internal.contains(e));
        found.map(|(_, e)| lowered.edges[e.0 as usize].elem)
    };
    let points: Vec<usize> = class
        .matching(&fusion.family, elem_of)
        .filter_map(|p| class.points.iter().position(|q| std::ptr::eq(p, q)))
        .collect();
    if points.is_empty() {
        return None;
    }
    Some(Joined {
        family: fusion.family.clone(),
        points,
        numerics: fusion.numerics,
        internal,
    })
}
