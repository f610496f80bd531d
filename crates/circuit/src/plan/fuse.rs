// SPDX-License-Identifier: MIT OR Apache-2.0
//! The fuser: greedy, in execution order, driven by the class's FUSIONS.toml.

use std::collections::BTreeMap;

use metrale_core::{Elem, RowRange};

use super::Job;
use super::lower::{Lowered, LoweredOp};
use super::shapes::{Part, fixed_elem, value};
use crate::class::Fusion;
use crate::instance::{EdgeId, State, Use};
use crate::manifest::class::Numerics;
use crate::manifest::families::ArgSig;

/// One launch group to be: ops `first..first + count` of the lowered program.
pub(super) struct Fused {
    pub(super) first: usize,
    pub(super) count: usize,
    /// Kernel family and points, where ops were joined.
    pub(super) joined: Option<Joined>,
}

pub(super) struct Joined {
    pub(super) family: String,
    pub(super) points: Vec<(RowRange, usize)>,
    pub(super) numerics: Numerics,
    pub(super) internal: Vec<EdgeId>,
    /// Edges of arguments that take another operand than the one of their name.
    pub(super) bind: BTreeMap<String, EdgeId>,
}

/// Groups of all ops. Kernels that lay a KV stream out their own way are taken only if all that touch it do; formats may
/// differ by layer, and layouts with them.
pub(super) fn fuse(job: Job<'_>, lowered: &Lowered) -> Vec<Fused> {
    let fused = fuse_with(job, lowered, true);
    let mut pools = BTreeMap::new();
    let mut streams = fused.iter().flat_map(|f| pools_of(job, lowered, f));
    match streams.all(|(id, pool)| *pools.entry(id).or_insert(pool) == pool) {
        true => fused,
        false => fuse_with(job, lowered, false),
    }
}

/// The KV streams that a group touches, and how it takes them to lie.
fn pools_of<'a>(job: Job<'a>, lowered: &Lowered, fused: &Fused) -> Vec<(u32, Option<&'a String>)> {
    let ops = &lowered.ops[fused.first..fused.first + fused.count];
    let joined = fused.joined.as_ref().and_then(|j| j.points.first());
    let point = joined.or_else(|| ops[0].runs.first()?.points.first());
    let pool = point.and_then(|(_, p)| job.class.points[*p].pool.as_ref());
    let states = ops.iter().flat_map(|o| &o.op.states).map(|(_, id)| *id);
    let is_kv = |id: &u32| matches!(job.instance.states[*id as usize], State::Kv { .. });
    states.filter(is_kv).map(|id| (id, pool)).collect()
}

fn fuse_with(job: Job<'_>, lowered: &Lowered, own_pools: bool) -> Vec<Fused> {
    let readers = readers(lowered);
    let mut out = Vec::new();
    let mut at = 0;
    while at < lowered.ops.len() {
        let fusions = job.class.fusions.iter().filter(|_| job.request.fuse);
        let found = fusions.into_iter().find_map(|f| {
            let ops = lowered.ops.get(at..at + f.ops.len())?;
            let joined = join(job, f, ops, lowered, &readers, own_pools);
            joined.map(|joined| (f.ops.len(), joined))
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
    job: Job<'_>,
    fusion: &Fusion,
    ops: &[LoweredOp],
    lowered: &Lowered,
    readers: &BTreeMap<EdgeId, usize>,
    own_pools: bool,
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
    let bind: BTreeMap<String, EdgeId> = fusion
        .bind
        .iter()
        .map(|(arg, place)| Some((arg.clone(), edge(place)?)))
        .collect::<Option<_>>()?;
    let parts: Vec<Part<'_>> = ops
        .iter()
        .filter_map(|o| Some((&o.op, o.runs.first()?)))
        .collect();
    if !takes_everything(job, fusion, &parts, &internal, &bind) {
        return None;
    }
    let elem_of = |arg: &str| -> Option<Elem> {
        let of_edge = |e: &EdgeId| lowered.edges[e.0 as usize].elem;
        if let Some(edge) = bind.get(arg) {
            return Some(of_edge(edge));
        }
        let mut edges = parts.iter().flat_map(|(_, r)| &r.edges);
        if let Some((_, e)) = edges.find(|(n, e)| n == arg && !internal.contains(e)) {
            return Some(of_edge(e));
        }
        parts.iter().find_map(|(op, run)| {
            let edge = op.edges.iter().any(|o| o.name == arg);
            fixed_elem(job, &lowered.edges, op, run.format, arg).filter(|_| !edge)
        })
    };
    let names = |name: &str| value(job, &lowered.edges, &parts, false, name);
    let mut candidates: Vec<usize> = job
        .class
        .matching(&fusion.family, elem_of, &names)
        .filter(|p| {
            let point = &job.class.points[*p];
            let suits = |run| lowered.layouts.suits(job, run, point, true);
            (own_pools || point.pool.is_none()) && parts.iter().all(|(_, run)| suits(run))
        })
        .collect();
    candidates.sort_by_key(|p| (job.class.points[*p].depth, *p));
    let points = job.class.cover(&candidates)?;
    Some(Joined {
        family: fusion.family.clone(),
        points,
        numerics: fusion.numerics,
        internal,
        bind,
    })
}

/// Whether the family has an argument for all that the ops bind: a bias that it does not know must not be lost.
fn takes_everything(
    job: Job<'_>,
    fusion: &Fusion,
    parts: &[Part<'_>],
    internal: &[EdgeId],
    bind: &BTreeMap<String, EdgeId>,
) -> bool {
    let Some(family) = job.library.kernel_families.get(&fusion.family) else {
        return false;
    };
    let arg = |name: &str| {
        let buffer = |a: &ArgSig| matches!(a, ArgSig::Buf { .. }) && a.name() == name;
        family.args.iter().any(buffer)
    };
    let edges = || parts.iter().flat_map(|(_, run)| &run.edges);
    let taken: Vec<EdgeId> = edges()
        .filter(|(name, _)| arg(name) && !bind.contains_key(name))
        .map(|(_, e)| *e)
        .chain(bind.values().copied())
        .collect();
    let operands = parts.iter().flat_map(|(op, run)| {
        let states = op.states.iter().chain(&op.consts).map(|(n, _)| n);
        run.weights.iter().map(|(n, _)| n).chain(states)
    });
    edges().all(|(_, e)| internal.contains(e) || taken.contains(e))
        && operands.into_iter().all(|name| arg(name))
}
