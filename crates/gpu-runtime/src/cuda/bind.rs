// SPDX-License-Identifier: MIT OR Apache-2.0
//! Binding: one list of arguments held against each point's declaration, and turned into the words that the driver takes.

use cudarc::driver::sys;
use metrale_core::{Access, Arg, ArgDecl, PointId, RowRange, StepCounts, StepLimits};
use metrale_kernels::{Formula, Point, Values, Var};

use super::arenas::Arenas;
use crate::error::{BindError, DeviceFault};

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
    points: Vec<(RowRange, Resolved)>,
    /// One 64-bit word an argument: addresses, or a scalar in the low half.
    words: Vec<u64>,
    scalars: Vec<u32>,
}

/// What a launch counts its rows in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RowsOf {
    Step,
    Logits,
    Nothing,
}

/// A launch ready for the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Geometry {
    pub(super) grid: [u32; 3],
    pub(super) block: u32,
    pub(super) shared: u32,
}

struct Env<'a> {
    scalars: &'a [u32],
    rows: u32,
    logits_rows: u32,
    slots: u32,
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
        }
    }
}

impl Bound {
    pub(super) fn new(
        id: u32,
        arenas: &Arenas,
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
        let mut words = Vec::new();
        for (_, resolved) in points {
            words = check(resolved.point, arenas, args)?;
        }
        // The 64-bit words of scalars carry them in the low half.
        let scalars = words.iter().map(|w| *w as u32).collect();
        Ok(Bound {
            arenas: id,
            points: points.to_vec(),
            words,
            scalars,
        })
    }

    /// The point for a row count; `None` if no range holds it.
    pub(super) fn point(&self, rows: u32) -> Option<Resolved> {
        self.points
            .iter()
            .find(|(range, _)| range.contains(rows))
            .map(|(_, r)| *r)
    }

    /// The point's name, for messages.
    pub(super) fn name(&self) -> &'static str {
        self.points[0].1.point.id
    }

    /// What limits the steps of a program that holds this launch: what its grid counts.
    pub(super) fn rows_of(&self) -> RowsOf {
        let grid = &self.points[0].1.point.grid;
        let uses = |wanted: fn(Var) -> bool| grid.iter().any(|f| f.uses(wanted));
        let unit = grid
            .iter()
            .flat_map(|f| f.0.iter())
            .find_map(|op| match op {
                metrale_kernels::formula::Op::Var(Var::UnitRows(arg)) => {
                    Some(self.scalars[usize::from(*arg)])
                }
                _ => None,
            });
        match unit {
            Some(0) => RowsOf::Step,
            Some(_) => RowsOf::Logits,
            None if uses(|v| v == Var::Rows) => RowsOf::Step,
            None if uses(|v| v == Var::LogitsRows) => RowsOf::Logits,
            None => RowsOf::Nothing,
        }
    }

    /// How many rows a step has for this launch.
    pub(super) fn rows(&self, counts: StepCounts) -> u32 {
        match self.rows_of() {
            RowsOf::Step => counts.rows,
            RowsOf::Logits => counts.logits_rows,
            RowsOf::Nothing => 0,
        }
    }

    /// Grid and block for steps of at most `bucket` rows.
    pub(super) fn geometry(
        &self,
        point: &Point,
        bucket: u32,
        limits: &StepLimits,
    ) -> Result<Geometry, DeviceFault> {
        let env = Env {
            scalars: &self.scalars,
            rows: bucket,
            logits_rows: bucket,
            slots: limits.slots,
        };
        let value = |f: &Formula| f.eval(&env).and_then(|v| u32::try_from(v).ok());
        let bad = || DeviceFault::rejected(format!("{}: no grid for {bucket} rows", point.id));
        let mut grid = [0; 3];
        for (to, formula) in grid.iter_mut().zip(&point.grid) {
            // A dimension of 0 (no rows) is no launch for the driver: one block that finds nothing to do.
            *to = value(formula).ok_or_else(bad)?.max(1);
        }
        if grid[1] > 65_535 || grid[2] > 65_535 {
            return Err(bad());
        }
        let shared = value(&point.shared).ok_or_else(bad)?;
        Ok(Geometry {
            grid,
            block: point.block,
            shared,
        })
    }

    /// Launches on `stream`, or records the launch where the stream is capturing.
    pub(super) fn launch(
        &self,
        resolved: Resolved,
        g: Geometry,
        stream: sys::CUstream,
    ) -> sys::CUresult {
        let mut words = self.words.clone();
        let mut params: Vec<*mut std::ffi::c_void> = words
            .iter_mut()
            .map(|w| std::ptr::from_mut(w).cast())
            .collect();
        // SAFETY: the function is of a loaded module; each parameter points to as many bytes as its kernel declares, which
        // the family's argument list fixes (addresses 8, scalars 4); the driver copies them before it returns.
        unsafe {
            sys::cuLaunchKernel(
                resolved.function,
                g.grid[0],
                g.grid[1],
                g.grid[2],
                g.block,
                1,
                1,
                g.shared,
                stream,
                params.as_mut_ptr(),
                std::ptr::null_mut(),
            )
        }
    }
}

fn family(point: &Point) -> &'static str {
    point.id.split('/').next().unwrap_or(point.id)
}

fn id(point: &Point) -> PointId {
    PointId::parse(point.id).unwrap_or_else(|| PointId::new("unknown", "point"))
}

fn check(point: &'static Point, arenas: &Arenas, args: &[Arg]) -> Result<Vec<u64>, BindError> {
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
        name: name(&point.args[index]).into(),
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
            _ => return Err(mismatch(i, decl_kind(decl).into(), arg_kind(arg).into())),
        });
    }
    let scalars: Vec<u32> = words.iter().map(|w| *w as u32).collect();
    let env = Env {
        scalars: &scalars,
        rows: arenas.limits.rows,
        logits_rows: arenas.limits.logits_rows,
        slots: arenas.limits.slots,
    };
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
                    name(&point.args[sizes[n].0])
                );
                return Err(mismatch(*other, wanted, "an overlap".into()));
            }
        }
    }
    Ok(words)
}

fn name(decl: &ArgDecl) -> &'static str {
    match decl {
        ArgDecl::Buf { name, .. } | ArgDecl::U32(name) | ArgDecl::F32(name) => name,
        ArgDecl::Step => "step",
    }
}

fn decl_kind(decl: &ArgDecl) -> &'static str {
    match decl {
        ArgDecl::Buf { .. } => "a span",
        ArgDecl::U32(_) => "a u32",
        ArgDecl::F32(_) => "an f32",
        ArgDecl::Step => "the step block",
    }
}

fn arg_kind(arg: &Arg) -> &'static str {
    match arg {
        Arg::Buf { .. } => "a span",
        Arg::U32(_) => "a u32",
        Arg::F32(_) => "an f32",
        Arg::Step => "the step block",
    }
}
