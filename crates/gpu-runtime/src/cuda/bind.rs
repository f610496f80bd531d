// SPDX-License-Identifier: MIT OR Apache-2.0
//! Binding: one list of arguments held against each point's declaration, and turned into the words that the driver takes.

use cudarc::driver::sys;
use metrale_core::{Access, Arg, ArgDecl, PointId, RowRange, StepCounts, StepLimits};
use metrale_kernels::formula::Op;
use metrale_kernels::{Formula, Point, Values, Var};

use super::arenas::Arenas;
use super::maps;
use crate::error::BindError;

/// A point with its function on the device.
#[derive(Clone, Copy, Debug)]
pub(super) struct Resolved {
    pub(super) point: &'static Point,
    pub(super) function: sys::CUfunction,
}

// SAFETY: a function handle is valid in every thread for as long as its module is loaded, which is the backend's life.
unsafe impl Send for Resolved {}

/// A bound group.
#[derive(Debug)]
pub(super) struct Bound {
    pub(super) arenas: u32,
    points: Vec<BoundPoint>,
    /// One 64-bit word an argument: addresses, or a scalar in the low half.
    pub(super) words: Vec<u64>,
    scalars: Vec<u32>,
    processors: u32,
}

/// A point of a group, with what is its own.
#[derive(Debug)]
pub(super) struct BoundPoint {
    range: RowRange,
    pub(super) resolved: Resolved,
    /// Parameters after the family's arguments.
    pub(super) maps: Vec<sys::CUtensorMap>,
}

/// What a launch counts its rows in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RowsOf {
    Step,
    Logits,
    Nothing,
}

/// What formulas are evaluated over.
pub(super) struct Env<'a> {
    pub(super) scalars: &'a [u32],
    pub(super) rows: u32,
    pub(super) logits_rows: u32,
    pub(super) slots: u32,
    pub(super) processors: u32,
}

impl Values for Env<'_> {
    fn arg(&self, index: u8) -> u32 {
        self.scalars[usize::from(index)]
    }

    fn var(&self, var: Var) -> u32 {
        match var {
            Var::Rows => self.rows,
            Var::LogitsRows => self.logits_rows,
            Var::UnitRows(arg) if self.arg(arg) == 0 => self.rows,
            Var::UnitRows(_) => self.logits_rows,
            Var::Slots => self.slots,
            Var::Processors => self.processors,
        }
    }
}

impl Bound {
    pub(super) fn new(
        id: u32,
        arenas: &Arenas,
        processors: u32,
        points: &[(RowRange, Resolved)],
        args: &[Arg],
    ) -> Result<Bound, BindError> {
        let Some((_, first)) = points.first() else {
            return Err(BindError::Points("none".into()));
        };
        if let Some((_, other)) = points
            .iter()
            .find(|(_, r)| family(r.point) != family(first.point))
        {
            return Err(BindError::Points(format!(
                "{} and {}",
                first.point.id, other.point.id
            )));
        }
        let (mut words, mut bound) = (Vec::new(), Vec::new());
        for (range, resolved) in points {
            words = check(resolved.point, arenas, processors, args)?;
            let scalars = scalars(&words);
            let env = limits_env(&arenas.limits, processors, &scalars);
            bound.push(BoundPoint {
                range: *range,
                resolved: *resolved,
                maps: maps::encode(resolved.point, &words, &env)?,
            });
        }
        Ok(Bound {
            arenas: id,
            points: bound,
            scalars: scalars(&words),
            words,
            processors,
        })
    }

    /// The point for a row count; `None` if no range holds it.
    pub(super) fn point(&self, rows: u32) -> Option<&BoundPoint> {
        self.points.iter().find(|p| p.range.contains(rows))
    }

    /// The point's name, for messages.
    pub(super) fn name(&self) -> &'static str {
        self.points[0].resolved.point.id
    }

    /// What limits the steps of a program that holds this launch: what its grid counts; where a kernel walks its tiles on a
    /// grid of its own, what the buffers count that it writes.
    pub(super) fn rows_of(&self) -> RowsOf {
        let point = self.points[0].resolved.point;
        let written = |i: usize| match point.args[i] {
            ArgDecl::Buf { access, .. } => access != Access::Read,
            _ => false,
        };
        let buffers = point.needs.iter().filter(|(i, _)| written(*i));
        let mut counts = point.grid.iter().chain(buffers.map(|(_, need)| need));
        let found = counts.find_map(|f| self.counted(f));
        found.unwrap_or(RowsOf::Nothing)
    }

    fn counted(&self, formula: &Formula) -> Option<RowsOf> {
        formula.0.iter().find_map(|op| match op {
            Op::Var(Var::Rows) => Some(RowsOf::Step),
            Op::Var(Var::LogitsRows) => Some(RowsOf::Logits),
            Op::Var(Var::UnitRows(arg)) => match self.scalars[usize::from(*arg)] {
                0 => Some(RowsOf::Step),
                _ => Some(RowsOf::Logits),
            },
            _ => None,
        })
    }

    /// How many rows a step has for this launch.
    pub(super) fn rows(&self, counts: StepCounts) -> u32 {
        match self.rows_of() {
            RowsOf::Step => counts.rows,
            RowsOf::Logits => counts.logits_rows,
            RowsOf::Nothing => 0,
        }
    }

    /// What formulas of a launch are evaluated over, for steps of at most `bucket` rows.
    pub(super) fn env(&self, bucket: u32, limits: &StepLimits) -> Env<'_> {
        Env {
            rows: bucket,
            logits_rows: bucket,
            ..limits_env(limits, self.processors, &self.scalars)
        }
    }
}

/// The low half of each word: scalars stand there.
fn scalars(words: &[u64]) -> Vec<u32> {
    words.iter().map(|w| *w as u32).collect()
}

fn limits_env<'a>(limits: &StepLimits, processors: u32, scalars: &'a [u32]) -> Env<'a> {
    Env {
        scalars,
        rows: limits.rows,
        logits_rows: limits.logits_rows,
        slots: limits.slots,
        processors,
    }
}

fn family(point: &Point) -> &'static str {
    point.id.split('/').next().unwrap_or(point.id)
}

pub(super) fn id(point: &Point) -> PointId {
    PointId::parse(point.id).unwrap_or_else(|| PointId::new("unknown", "point"))
}

fn check(
    point: &'static Point,
    arenas: &Arenas,
    processors: u32,
    args: &[Arg],
) -> Result<Vec<u64>, BindError> {
    if point.args.len() != args.len() {
        return Err(BindError::Count {
            point: id(point),
            wanted: point.args.len(),
            got: args.len(),
        });
    }
    let mismatch = |index: usize, wanted: String, got: String| BindError::Argument {
        point: id(point),
        index,
        name: point.args[index].name().into(),
        wanted,
        got,
    };
    let mut words = Vec::with_capacity(args.len());
    let mut spans = Vec::new();
    for (i, (decl, arg)) in point.args.iter().zip(args).enumerate() {
        words.push(match (decl, arg) {
            (ArgDecl::Buf { access: wanted, .. }, Arg::Buf { span, access: got }) => {
                if wanted != got {
                    return Err(mismatch(i, format!("{wanted:?}"), format!("{got:?}")));
                }
                let Some(address) = arenas.address(*span) else {
                    let wanted = format!("one of {} spans", arenas.plan.spans.len());
                    return Err(mismatch(i, wanted, format!("span {}", span.0)));
                };
                spans.push((i, *span, *got, address));
                address
            }
            (ArgDecl::U32(_), Arg::U32(v)) => u64::from(*v),
            (ArgDecl::F32(_), Arg::F32(v)) => u64::from(v.to_bits()),
            (ArgDecl::Step, Arg::Step) => arenas.ring.device_address(),
            _ => return Err(mismatch(i, decl.kind().into(), arg.kind().into())),
        });
    }
    let scalars = scalars(&words);
    let env = limits_env(&arenas.limits, processors, &scalars);
    let mut sizes = Vec::new();
    for ((i, span, access, address), (index, need)) in spans.iter().zip(point.needs) {
        debug_assert_eq!(i, index, "the registry lists needs in the order of buffers");
        let span = arenas.plan.span(*span);
        let need = need.eval(&env).unwrap_or(u64::MAX);
        if span.bytes < need {
            let got = format!("{}, {} bytes", span.name, span.bytes);
            return Err(mismatch(*i, format!("at least {need} bytes"), got));
        }
        sizes.push((*i, *access, *address, span.bytes, need));
    }
    // What is written is no other argument's: the plan's own proof, held here again since kernels count on it.
    for (n, (_, access, at, bytes, need)) in sizes.iter().enumerate() {
        for (other, other_access, other_at, other_bytes, other_need) in &sizes[n + 1..] {
            let written = *access != Access::Read || *other_access != Access::Read;
            let overlap = at < &(other_at + other_bytes) && other_at < &(at + bytes);
            if written && overlap && *need > 0 && *other_need > 0 {
                let wanted = format!(
                    "bytes that {} does not use, since one is written",
                    point.args[sizes[n].0].name()
                );
                return Err(mismatch(*other, wanted, "an overlap".into()));
            }
        }
    }
    Ok(words)
}
