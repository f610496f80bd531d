// SPDX-License-Identifier: MIT OR Apache-2.0
//! Lowering: a point for every op, and the conversions that points ask for.
//!
//! A `linear` over several weights becomes one run per stretch of equal formats. A class's own points are taken before
//! those that it inherits, then those that convert least, then those that stand first. A point may want an input edge in
//! another format: the conversion op is inserted once per edge and format and shared by all consumers, until the edge is
//! rewritten in place. A conversion's point may want its input converted, too (`after` says for which ops' results): what
//! comes out in bf16 of a fused kernel is quantized from there.

use std::collections::BTreeMap;

use metrale_core::{Elem, RowRange};

use super::layouts::Layouts;
use super::shapes::{fixed_elem, value};
use super::{Job, PlanError};
use crate::class::Class;
use crate::instance::{Attr, Edge, EdgeId, Op, OpId, Operand, State, Use};
use crate::library::CircuitLibrary;

/// The lowered program: ops with points, conversions among them.
pub(super) struct Lowered {
    pub(super) ops: Vec<LoweredOp>,
    pub(super) edges: Vec<Edge>,
    pub(super) layouts: Layouts,
}

pub(super) struct LoweredOp {
    pub(super) op: Op,
    /// The instance's op; `None` for an inserted conversion.
    pub(super) id: Option<OpId>,
    pub(super) runs: Vec<Run>,
}

/// A launch of an op: all of it, or a stretch of its weights.
#[derive(Clone, Debug, Default)]
pub(super) struct Run {
    /// Indices into the instance's weights, aliases resolved, by operand.
    pub(super) weights: Vec<(String, Vec<u32>)>,
    /// Format of the run's matrices.
    pub(super) format: Option<Elem>,
    /// Indices into the class's points by row range, ascending.
    pub(super) points: Vec<(RowRange, usize)>,
    /// Inputs, with conversions applied.
    pub(super) edges: Vec<(String, EdgeId)>,
    /// First column of the output that it writes.
    pub(super) column: u64,
    /// The KV group whose tables it fills; only in the op that does.
    pub(super) tables: Option<u32>,
}

pub(super) fn lower(job: Job<'_>) -> Result<Lowered, PlanError> {
    let mut l = Lowering {
        job,
        out: Lowered {
            ops: Vec::new(),
            edges: job.instance.edges.clone(),
            layouts: Layouts::default(),
        },
        converted: BTreeMap::new(),
    };
    for op in job.instance.ops() {
        for run in l.stretches(op)? {
            let candidates = l.candidates(op, &run);
            l.out.layouts.reader(job, &run, &candidates);
        }
    }
    for (i, op) in job.instance.ops().iter().enumerate() {
        l.op(op, OpId(i as u32))?;
    }
    Ok(l.out)
}

struct Lowering<'a> {
    job: Job<'a>,
    out: Lowered,
    converted: BTreeMap<(EdgeId, Elem), EdgeId>,
}

impl Lowering<'_> {
    fn op(&mut self, op: &Op, id: OpId) -> Result<(), PlanError> {
        let mut runs = self.stretches(op)?;
        if fills_tables(self.job, op) {
            let groups = 0..=self.job.request.windows.len() as u32;
            let of = |group| Run {
                tables: Some(group),
                ..Run::default()
            };
            runs = groups.map(of).collect();
        }
        for run in &mut runs {
            self.choose(op, run)?;
        }
        for o in op.edges.iter().filter(|o| o.used != Use::In) {
            self.converted.retain(|(edge, _), _| *edge != o.edge);
        }
        self.out.ops.push(LoweredOp {
            op: op.clone(),
            id: Some(id),
            runs,
        });
        Ok(())
    }

    /// The op's weights cut where the format of its matrices changes; points and edges are still open.
    fn stretches(&self, op: &Op) -> Result<Vec<Run>, PlanError> {
        let weights: Vec<(String, Vec<u32>)> = op
            .weights
            .iter()
            .map(|(name, ids)| {
                (
                    name.clone(),
                    ids.iter().map(|id| self.resolve(*id)).collect(),
                )
            })
            .collect();
        let weight = |id: &u32| &self.job.instance.weights[*id as usize];
        let is_matrix = |ids: &Vec<u32>| ids.first().is_some_and(|id| weight(id).shape.len() > 1);
        let Some((_, main)) = weights.iter().find(|(_, ids)| is_matrix(ids)) else {
            return Ok(vec![Run {
                weights,
                ..Run::default()
            }]);
        };
        let mut cuts: Vec<(std::ops::Range<usize>, Elem, u64)> = Vec::new();
        let mut column = 0;
        for (i, id) in main.iter().enumerate() {
            let format = self.format(*id)?;
            match cuts.last_mut() {
                // Stacks of matrices lie each by itself: their rows do not join.
                Some((range, last, _)) if *last == format && weight(id).shape.len() == 2 => {
                    range.end = i + 1
                }
                _ => cuts.push((i..i + 1, format, column)),
            }
            column += weight(id).outputs();
        }
        let run = |(range, format, column): (std::ops::Range<usize>, Elem, u64)| {
            // Lists parallel to the matrices are cut with them; the circuit checked their lengths in rows.
            let cut = |ids: &Vec<u32>| match ids.len() == main.len() {
                true => ids[range.clone()].to_vec(),
                false => ids.clone(),
            };
            let weights = weights
                .iter()
                .map(|(n, ids)| (n.clone(), cut(ids)))
                .collect();
            Run {
                weights,
                format: Some(format),
                column,
                ..Run::default()
            }
        };
        Ok(cuts.into_iter().map(run).collect())
    }

    fn resolve(&self, id: u32) -> u32 {
        let weights = &self.job.instance.weights;
        let alias = weights[id as usize].alias_of.as_ref();
        alias
            .and_then(|k| weights.iter().position(|w| w.key == *k))
            .map_or(id, |i| i as u32)
    }

    /// The disk format of a weight, checked to fit its rows.
    fn format(&self, id: u32) -> Result<Elem, PlanError> {
        let weight = &self.job.instance.weights[id as usize];
        let key = &weight.key;
        let format = self.job.request.formats.get(key).copied();
        let format = format.ok_or_else(|| PlanError::NoFormat { key: key.clone() })?;
        let cols = weight.shape.last().copied().unwrap_or(0);
        if format.bytes_for(cols).is_none() {
            return Err(PlanError::Blocks {
                key: key.clone(),
                cols,
                format,
            });
        }
        Ok(format)
    }

    /// The op that wrote an edge last, among those lowered.
    fn writer(&self, edge: EdgeId) -> Option<&str> {
        let writes = |o: &&LoweredOp| {
            let mut edges = o.op.edges.iter();
            edges.any(|e| e.edge == edge && e.used != Use::In)
        };
        let last = self.out.ops.iter().rev().find(writes);
        last.map(|o| o.op.op.as_str())
    }

    /// Points that could carry out a run, the preferred first, whatever layout its weights get.
    fn candidates(&self, op: &Op, run: &Run) -> Vec<usize> {
        let (job, class) = (self.job, self.job.class);
        let edges = &self.out.edges;
        let parts = [(op, run)];
        let names = |name: &str| value(job, edges, &parts, false, name);
        let fixed = |arg: &str| fixed_elem(job, edges, op, run.format, arg);
        let conversions = |point: usize| -> Option<usize> {
            let mut conversions = 0;
            for o in op.edges.iter().filter(|o| o.used == Use::In) {
                let have = edges[o.edge.0 as usize].elem;
                match class.points[point].elems.get(&o.name) {
                    Some(want) if *want != have => {
                        conversion(job.library, have, *want)?;
                        conversions += 1;
                    }
                    _ => {}
                }
            }
            Some(conversions)
        };
        let input = op.edges.iter().find(|o| o.used == Use::In);
        let writer = input.and_then(|o| self.writer(o.edge));
        let order = |p: usize| {
            let point = &class.points[p];
            let after = writer.is_some_and(|w| point.after.iter().any(|a| a == w));
            if !after && !point.after.is_empty() {
                return None;
            }
            Some((!after, point.depth, conversions(p)?, p))
        };
        let mut found: Vec<_> = class
            .matching(&op.op, fixed, &names)
            .filter_map(order)
            .collect();
        found.sort_unstable();
        found.into_iter().map(|(.., p)| p).collect()
    }

    /// Points for a run, and its edges with the conversions that they want.
    fn choose(&mut self, op: &Op, run: &mut Run) -> Result<(), PlanError> {
        let class = self.job.class;
        let mut candidates = self.candidates(op, run);
        let layouts = &self.out.layouts;
        candidates.retain(|p| layouts.suits(self.job, run, &class.points[*p], false));
        let Some(points) = class.cover(&candidates) else {
            return Err(match candidates.is_empty() {
                true => self.missing(op, run.format),
                false => PlanError::Library {
                    what: format!("op {}: its points leave row counts out", op.name),
                },
            });
        };
        let chosen = &class.points[points[0].1];
        let wants: Vec<(Operand, Option<Elem>)> = op
            .edges
            .iter()
            .filter(|o| o.used == Use::In)
            .map(|o| (o.clone(), chosen.elems.get(&o.name).copied()))
            .collect();
        let mut edges = Vec::new();
        for (o, want) in wants {
            let have = self.out.edges[o.edge.0 as usize].elem;
            let edge = match want {
                Some(want) if want != have => self.convert(op, o.edge, want)?,
                _ => o.edge,
            };
            edges.push((o.name.clone(), edge));
        }
        let rest = op.edges.iter().filter(|o| o.used != Use::In);
        edges.extend(rest.map(|o| (o.name.clone(), o.edge)));
        (run.points, run.edges) = (points, edges);
        Ok(())
    }

    fn convert(&mut self, for_op: &Op, edge: EdgeId, want: Elem) -> Result<EdgeId, PlanError> {
        if let Some(done) = self.converted.get(&(edge, want)) {
            return Ok(*done);
        }
        let source = self.out.edges[edge.0 as usize].clone();
        let name = conversion(self.job.library, source.elem, want).unwrap_or_default();
        if want.bytes_for(source.cols).is_none() {
            return Err(self.missing(for_op, None));
        }
        let cols = u32::try_from(source.cols).map_err(|_| PlanError::TooLarge {
            what: format!("edge {}", source.name),
        })?;
        let to = EdgeId(self.out.edges.len() as u32);
        let full = format!("{}.{want}", source.name);
        self.out.edges.push(Edge {
            name: full.clone(),
            elem: want,
            ..source
        });
        let place = for_op.layer.map_or(String::new(), |l| format!("L{l}."));
        let op = Op {
            op: name.to_owned(),
            name: format!(
                "{place}{name}.{}",
                full.strip_prefix(&place).unwrap_or(&full)
            ),
            phase: for_op.phase,
            layer: for_op.layer,
            edges: vec![
                Operand {
                    name: "x".into(),
                    used: Use::In,
                    edge,
                },
                Operand {
                    name: "y".into(),
                    used: Use::Out,
                    edge: to,
                },
            ],
            weights: Vec::new(),
            states: Vec::new(),
            consts: Vec::new(),
            attrs: vec![("cols".into(), Attr::U32(cols))],
        };
        let mut run = Run::default();
        self.choose(&op, &mut run)?;
        self.out.ops.push(LoweredOp {
            op,
            id: None,
            runs: vec![run],
        });
        self.converted.insert((edge, want), to);
        Ok(to)
    }

    fn missing(&self, op: &Op, format: Option<Elem>) -> PlanError {
        let edges = op.edges.iter().map(|o| {
            let elem = self.out.edges[o.edge.0 as usize].elem;
            format!("{} = {elem}", o.name)
        });
        let others = op
            .weights
            .iter()
            .map(|(n, _)| n)
            .chain(op.states.iter().map(|(n, _)| n));
        let others = others.filter_map(|n| {
            fixed_elem(self.job, &self.out.edges, op, format, n).map(|elem| format!("{n} = {elem}"))
        });
        let of_family = |class: &Class| {
            let points = class.points.iter().filter(|p| p.id.family() == op.op);
            points.map(|p| p.id.to_string()).collect::<Vec<_>>()
        };
        let class = self.job.class.name.clone();
        let has = of_family(self.job.class);
        if has.is_empty() {
            let classes = self.job.library.classes.values();
            let with = classes.filter(|c| !of_family(c).is_empty());
            return PlanError::NoKernel {
                class,
                op: op.name.clone(),
                model: self.job.instance.family().to_owned(),
                classes: with.map(|c| c.name.clone()).collect(),
            };
        }
        PlanError::MissingPoint {
            class,
            family: op.op.clone(),
            op: op.name.clone(),
            wanted: others.chain(edges).collect::<Vec<_>>().join(", "),
            has,
        }
    }
}

/// Whether an op fills block tables: it has them and works on no edge.
fn fills_tables(job: Job<'_>, op: &Op) -> bool {
    let tables = |id: &u32| job.instance.states()[*id as usize] == State::Tables;
    op.edges.is_empty() && op.states.iter().any(|(_, id)| tables(id))
}

/// The op that converts between two formats.
fn conversion(library: &CircuitLibrary, from: Elem, to: Elem) -> Option<&str> {
    let mut ops = library.ops.iter();
    let found = ops.find(|(_, sig)| {
        sig.converts
            .as_ref()
            .is_some_and(|c| c.from == from && c.to == to)
    });
    found.map(|(name, _)| name.as_str())
}
