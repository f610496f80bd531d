// SPDX-License-Identifier: MIT OR Apache-2.0
//! Binding: the checks that make a launch safe to run.

use std::sync::Arc;

use metrale_core::{Access, Arg, ArgDecl, PointId, RowRange, Span, StepCounts, Unit};
use metrale_host_kernels::args::{Args, Value};
use metrale_host_kernels::point::Need;
use metrale_host_kernels::{HostLaunch, HostPoint, Isa};

use super::arenas::Arenas;
use crate::error::BindError;

/// What the rows of a launch are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RowsOf {
    /// The step's rows.
    Step,
    /// Its logits rows.
    Logits,
    /// It has none (packing, tables).
    Nothing,
}

/// A bound group.
#[derive(Debug)]
pub(super) struct Bound {
    pub(super) arenas_id: u32,
    _keep: Arc<Arenas>,
    points: Vec<(RowRange, HostLaunch)>,
    pub(super) rows_of: RowsOf,
    /// Spans used, and whether they are written.
    pub(super) uses: Vec<(u32, bool)>,
}

impl Bound {
    pub(super) fn new(
        arenas_id: u32,
        arenas: Arc<Arenas>,
        points: &[(RowRange, &'static HostPoint)],
        args: &[Arg],
        isa: Isa,
    ) -> Result<Bound, BindError> {
        let Some((_, first)) = points.first() else {
            return Err(BindError::Points("none".into()));
        };
        if let Some((_, other)) = points.iter().find(|(_, p)| family(p) != family(first)) {
            return Err(BindError::Points(format!("{} and {}", first.id, other.id)));
        }
        let mut rows_of = RowsOf::Nothing;
        let mut bound = Vec::new();
        for (range, point) in points {
            let (args, needs) = check(point, &arenas, args, isa)?;
            let counted = |wanted: Unit| {
                let is = |n: &Need| matches!(n, Need::Values { unit, .. } if *unit == wanted);
                needs.iter().any(is)
            };
            rows_of = if counted(Unit::LogitsRow) {
                RowsOf::Logits
            } else if counted(Unit::Row) {
                RowsOf::Step
            } else {
                RowsOf::Nothing
            };
            bound.push((*range, HostLaunch { point, args }));
        }
        let uses = args
            .iter()
            .filter_map(|a| match a {
                Arg::Buf { span, access } => Some((span.0, *access != Access::Read)),
                _ => None,
            })
            .collect();
        Ok(Bound {
            arenas_id,
            _keep: arenas,
            points: bound,
            rows_of,
            uses,
        })
    }

    /// How many rows a step has for this launch; `None` if it works on no rows.
    pub(super) fn rows(&self, counts: StepCounts) -> Option<u32> {
        match self.rows_of {
            RowsOf::Step => Some(counts.rows),
            RowsOf::Logits => Some(counts.logits_rows),
            RowsOf::Nothing => None,
        }
    }

    /// The point for a step; `None` if no range holds its rows.
    pub(super) fn launch(&self, counts: StepCounts) -> Option<&HostLaunch> {
        let rows = self.rows(counts);
        let fits = |range: &RowRange| rows.is_none_or(|rows| range.contains(rows));
        self.points
            .iter()
            .find(|(range, _)| fits(range))
            .map(|(_, launch)| launch)
    }

    /// The id of its first point, for messages.
    pub(super) fn point(&self) -> &'static str {
        self.points[0].1.point.id
    }
}

fn family(point: &HostPoint) -> &'static str {
    point.id.split('/').next().unwrap_or(point.id)
}

fn id(point: &HostPoint) -> PointId {
    let (family, name) = point.id.split_once('/').unwrap_or((point.id, "?"));
    PointId::new(family, name)
}

fn check(
    point: &'static HostPoint,
    arenas: &Arenas,
    args: &[Arg],
    isa: Isa,
) -> Result<(Args, Vec<Need>), BindError> {
    if point.args.len() != args.len() {
        let (wanted, got) = (point.args.len(), args.len());
        return Err(BindError::Count {
            point: id(point),
            wanted,
            got,
        });
    }
    let mismatch = |index: usize, wanted: String, got: String| BindError::Argument {
        point: id(point),
        index,
        name: point.args[index].name().into(),
        wanted,
        got,
    };
    let mut values = Vec::with_capacity(args.len());
    let mut spans: Vec<(usize, &Span)> = Vec::new();
    for (i, (decl, arg)) in point.args.iter().zip(args).enumerate() {
        values.push(match (decl, arg) {
            (ArgDecl::Buf { access: wanted, .. }, Arg::Buf { span, access: got }) => {
                if wanted != got {
                    return Err(mismatch(i, format!("{wanted:?}"), format!("{got:?}")));
                }
                let Some(buf) = arenas.buf(*span) else {
                    let wanted = format!("one of {} spans", arenas.plan.spans.len());
                    return Err(mismatch(i, wanted, format!("span {}", span.0)));
                };
                spans.push((i, arenas.plan.span(*span)));
                Value::Buf(buf)
            }
            (ArgDecl::U32(_), Arg::U32(v)) => Value::U32(*v),
            (ArgDecl::F32(_), Arg::F32(v)) => Value::F32(*v),
            (ArgDecl::Step, Arg::Step) => Value::Step,
            _ => return Err(mismatch(i, decl.kind().into(), arg.kind().into())),
        });
    }
    let name = |i: usize| point.args[i].name();
    let args = Args::new(point.args, values, isa).map_err(|alias| {
        let wanted = format!(
            "bytes that {} does not use, since one is written",
            name(alias.a)
        );
        mismatch(alias.b, wanted, "an overlap".into())
    })?;
    let needs = point.needs(&args).map_err(|bad| BindError::Constants {
        point: id(point),
        what: bad.what,
    })?;
    for ((i, span), need) in spans.iter().zip(&needs) {
        if let Some(wanted) = unmet(*need, span) {
            let (extent, name) = (span.extent, &span.name);
            let got = format!(
                "{name}: {} {} values per {:?}, {} bytes",
                extent.elems, span.elem, extent.unit, span.bytes
            );
            return Err(mismatch(*i, wanted, got));
        }
    }
    Ok((args, needs))
}

/// What was wanted, if the span is not that.
fn unmet(need: Need, span: &Span) -> Option<String> {
    match need {
        Need::Values { elems: 0, .. } => None,
        Need::Values { elem, unit, elems } => {
            let extent = span.extent;
            let met = span.elem == elem
                && extent.unit == unit
                && extent.elems >= elems
                && span.bytes >= elem.bytes_for(elems).unwrap_or(u64::MAX);
            (!met).then(|| format!("at least {elems} {elem} values per {unit:?}"))
        }
        Need::Packed { elem, bytes } => {
            let met = span.elem == elem && span.bytes >= bytes;
            (!met).then(|| format!("packed {elem} of at least {bytes} bytes"))
        }
        Need::Bytes { bytes } => (span.bytes < bytes).then(|| format!("at least {bytes} bytes")),
    }
}
