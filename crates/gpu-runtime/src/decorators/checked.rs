// SPDX-License-Identifier: MIT OR Apache-2.0
//! Finds kernels that break their declarations.
//!
//! - Arenas are laid out again: every span has bytes of its own, with red zones before and after it. A red zone that
//!   changed is a write past an end; a span that a plan shares by mistake (two lives that overlap) shows as a wrong result.
//! - Programs are walked launch by launch, each alone. After each, every byte that it was not to write must be as before:
//!   spans that it does not declare as written, and of the others what lies past the step's live rows.
//! - Before a launch that declares an activation or an output as written, and which nothing has written since it was last
//!   read, the span is filled with 0xff (NaN for floats). So whatever is left out, or read before it is written, reaches
//!   the logits as NaN. Two launches that write columns of one span, one after the other, are one such life.
//!
//! Slow by design: every launch reads all memory. Weights above `WATCHED_WEIGHTS` (16 MiB) bytes are not compared.

use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use metrale_core::{
    Access, ArenaKind, Arg, Elem, Extent, MemoryPlan, PointId, RowRange, Span, SpanId, StepBlock,
    StepLimits, Unit,
};

use crate::backend::{
    ArenasId, DeviceInfo, Fence, GpuBackend, Kernel, Launch, Loc, Program, Progress, Queue,
};
use crate::error::{BindError, DeviceFault, OutOfMemory, Unresolved};

/// Bytes of a red zone, besides what rounds the span up to its alignment.
const ZONE: u64 = MemoryPlan::ALIGN;
/// What red zones hold.
const ZONE_BYTE: u8 = 0xa5;
/// What a span holds before it is written.
const POISON: u8 = 0xff;
/// Weight arenas up to this size are compared after every launch.
const WATCHED_WEIGHTS: u64 = 16 << 20;

/// A backend whose launches are checked, one by one.
#[derive(Debug)]
pub struct Checked<B> {
    inner: B,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    arenas: HashMap<ArenasId, Laid>,
    points: HashMap<Kernel, PointId>,
    launches: HashMap<Launch, Bound>,
    /// Launches of a program, each with its own program inside.
    programs: HashMap<Program, Vec<(Launch, Program)>>,
}

/// Arenas as laid out again: the plan's spans under their own ids, then the zones.
#[derive(Clone, Debug)]
struct Laid {
    plan: MemoryPlan,
    spans: usize,
}

#[derive(Clone, Debug)]
struct Bound {
    arenas: ArenasId,
    point: String,
    uses: Vec<(SpanId, Access)>,
}

impl<B: GpuBackend> Checked<B> {
    /// `inner`, checked.
    pub fn new(inner: B) -> Checked<B> {
        Checked {
            inner,
            state: Mutex::new(State::default()),
        }
    }

    /// The backend inside.
    pub fn inner(&self) -> &B {
        &self.inner
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn bytes_of(
        &self,
        arenas: ArenasId,
        plan: &MemoryPlan,
        span: usize,
    ) -> Result<Vec<u8>, DeviceFault> {
        let mut out = vec![0; plan.spans[span].bytes as usize];
        let at = Loc {
            span: SpanId(span as u32),
            offset: 0,
        };
        self.inner.read(arenas, at, &mut out)?;
        Ok(out)
    }

    /// Everything that is compared after a launch: by span, `None` for what is not watched.
    fn snapshot(&self, arenas: ArenasId, laid: &Laid) -> Result<Vec<Option<Vec<u8>>>, DeviceFault> {
        let weights = laid.plan.arena_bytes(ArenaKind::Weights) <= WATCHED_WEIGHTS;
        let mut out = Vec::with_capacity(laid.plan.spans.len());
        for (i, span) in laid.plan.spans.iter().enumerate() {
            let watched = i >= laid.spans || span.arena != ArenaKind::Weights || weights;
            out.push(match watched {
                true => Some(self.bytes_of(arenas, &laid.plan, i)?),
                false => None,
            });
        }
        Ok(out)
    }

    /// Runs one launch between two snapshots. `written` are the spans that hold something not yet read.
    fn walk(
        &self,
        bound: &Bound,
        laid: &Laid,
        step: &StepBlock,
        written: &mut HashSet<SpanId>,
        run: impl FnOnce() -> Result<(), DeviceFault>,
    ) -> Result<(), DeviceFault> {
        for (span, access) in &bound.uses {
            let arena = laid.plan.span(*span).arena;
            let dies = matches!(arena, ArenaKind::Activations | ArenaKind::Outputs);
            if *access == Access::Write && dies && !written.contains(span) {
                let poison = vec![POISON; laid.plan.span(*span).bytes as usize];
                self.inner.write(
                    bound.arenas,
                    Loc {
                        span: *span,
                        offset: 0,
                    },
                    &poison,
                )?;
            }
        }
        let before = self.snapshot(bound.arenas, laid)?;
        run()?;
        for (i, before) in before.iter().enumerate() {
            let Some(before) = before else { continue };
            let after = self.bytes_of(bound.arenas, &laid.plan, i)?;
            let writes = bound
                .uses
                .iter()
                .any(|(s, a)| s.0 as usize == i && *a != Access::Read);
            let span = &laid.plan.spans[i];
            let free = if writes { live_bytes(span, step) } else { 0 };
            if let Some(at) = (free..before.len()).find(|at| before[*at] != after[*at]) {
                return Err(violation(&bound.point, laid, i, at, writes));
            }
        }
        for (span, access) in &bound.uses {
            match access {
                Access::Write => written.insert(*span),
                Access::Read | Access::ReadWrite => written.remove(span),
            };
        }
        Ok(())
    }
}

fn violation(point: &str, laid: &Laid, index: usize, at: usize, writes: bool) -> DeviceFault {
    let name = &laid.plan.spans[index].name;
    let what = if index >= laid.spans {
        format!("wrote byte {at} of the red zone {name}")
    } else if writes {
        format!("wrote byte {at} of {name}, past the step's live rows")
    } else {
        format!("wrote byte {at} of {name}, which it does not declare as written")
    };
    DeviceFault::rejected(format!("{point} {what}"))
}

/// Bytes of a span that a launch on this step may write.
fn live_bytes(span: &Span, step: &StepBlock) -> usize {
    let rows = match span.extent.unit {
        Unit::Row => step.counts().rows,
        Unit::LogitsRow => step.counts().logits_rows,
        Unit::One | Unit::KvBlock | Unit::Slot => return span.bytes as usize,
    };
    let row = span.elem.bytes_for(span.extent.elems);
    row.and_then(|row| row.checked_mul(rows.into()))
        .unwrap_or(span.bytes)
        .min(span.bytes) as usize
}

/// The plan with a place of its own for every span, and a zone before the first and after each.
fn lay_out(plan: &MemoryPlan) -> MemoryPlan {
    let mut laid = plan.clone();
    let mut zones = Vec::new();
    for arena in ArenaKind::ALL {
        let mut end = 0;
        let mut zone = |name: String, offset: u64, bytes: u64| {
            let extent = Extent {
                unit: Unit::One,
                elems: bytes,
            };
            zones.push(Span {
                name,
                arena,
                offset,
                bytes,
                elem: Elem::U8,
                extent,
                live: None,
            });
        };
        for span in laid.spans.iter_mut().filter(|s| s.arena == arena) {
            if end == 0 {
                zone(format!("before {}", span.name), 0, ZONE);
                end = ZONE;
            }
            span.offset = end;
            end = (span.offset + span.bytes).next_multiple_of(MemoryPlan::ALIGN) + ZONE;
            let begin = span.offset + span.bytes;
            zone(format!("after {}", span.name), begin, end - begin);
        }
    }
    laid.spans.append(&mut zones);
    laid
}

impl<B: GpuBackend> GpuBackend for Checked<B> {
    fn device(&self) -> &DeviceInfo {
        self.inner.device()
    }

    fn reserve(&self, plan: &MemoryPlan, limits: &StepLimits) -> Result<ArenasId, OutOfMemory> {
        let laid = Laid {
            plan: lay_out(plan),
            spans: plan.spans.len(),
        };
        let arenas = self.inner.reserve(&laid.plan, limits)?;
        for (i, zone) in laid.plan.spans.iter().enumerate().skip(laid.spans) {
            let bytes = vec![ZONE_BYTE; zone.bytes as usize];
            let at = Loc {
                span: SpanId(i as u32),
                offset: 0,
            };
            if let Err(fault) = self.inner.write(arenas, at, &bytes) {
                self.inner.release(arenas);
                return Err(OutOfMemory {
                    device: self.device().name.clone(),
                    arena: zone.arena,
                    needed: zone.bytes,
                    available: 0,
                    why: format!("red zones cannot be written: {fault}"),
                });
            }
        }
        self.state().arenas.insert(arenas, laid);
        Ok(arenas)
    }

    fn release(&self, arenas: ArenasId) {
        let mut state = self.state();
        state.arenas.remove(&arenas);
        state.launches.retain(|_, l| l.arenas != arenas);
        let State {
            launches, programs, ..
        } = &mut *state;
        programs.retain(|_, p| p.iter().all(|(l, _)| launches.contains_key(l)));
        drop(state);
        self.inner.release(arenas);
    }

    fn resolve(&self, point: &PointId) -> Result<Kernel, Unresolved> {
        let kernel = self.inner.resolve(point)?;
        self.state().points.insert(kernel, point.clone());
        Ok(kernel)
    }

    fn bind(
        &self,
        arenas: ArenasId,
        points: &[(RowRange, Kernel)],
        args: &[Arg],
    ) -> Result<Launch, BindError> {
        let launch = self.inner.bind(arenas, points, args)?;
        let uses = args.iter().filter_map(|a| match a {
            Arg::Buf { span, access } => Some((*span, *access)),
            _ => None,
        });
        let uses = uses.collect();
        let mut state = self.state();
        let point = points
            .first()
            .and_then(|(_, kernel)| state.points.get(kernel));
        let point = point.map_or_else(|| format!("launch {}", launch.0), PointId::to_string);
        state.launches.insert(
            launch,
            Bound {
                arenas,
                point,
                uses,
            },
        );
        Ok(launch)
    }

    fn record(&self, launches: &[Launch], bucket: u32) -> Result<Program, DeviceFault> {
        let program = self.inner.record(launches, bucket)?;
        let mut alone = Vec::with_capacity(launches.len());
        for launch in launches {
            alone.push((*launch, self.inner.record(&[*launch], bucket)?));
        }
        self.state().programs.insert(program, alone);
        Ok(program)
    }

    /// Walks the program at once: the fence is over when this returns, and a violation is this call's error.
    fn submit(
        &self,
        queue: Queue,
        program: Program,
        step: &StepBlock,
        after: &[Fence],
    ) -> Result<Fence, DeviceFault> {
        let launches = self.state().programs.get(&program).cloned();
        let Some(launches) = launches else {
            // The inner backend knows what to say of an unknown handle.
            return self.inner.submit(queue, program, step, after);
        };
        let mut written = HashSet::new();
        let mut last = None;
        for (index, (launch, alone)) in launches.into_iter().enumerate() {
            let (mut bound, laid) = self.bound(launch)?;
            bound.point = format!("launch {index} ({})", bound.point);
            self.walk(&bound, &laid, step, &mut written, || {
                let fence = self.inner.submit(queue, alone, step, after)?;
                self.inner.wait(fence, Duration::MAX)?;
                last = Some(fence);
                Ok(())
            })?;
        }
        match last {
            Some(fence) => Ok(fence),
            // A program without launches.
            None => self.inner.submit(queue, program, step, after),
        }
    }

    fn run_once(&self, launch: Launch, step: &StepBlock) -> Result<(), DeviceFault> {
        let (bound, laid) = self.bound(launch)?;
        self.state().launches.remove(&launch);
        let run = || self.inner.run_once(launch, step);
        self.walk(&bound, &laid, step, &mut HashSet::new(), run)
    }

    fn copy(
        &self,
        queue: Queue,
        arenas: ArenasId,
        dst: Loc,
        src: Loc,
        bytes: u64,
        after: &[Fence],
    ) -> Result<Fence, DeviceFault> {
        self.inner.copy(queue, arenas, dst, src, bytes, after)
    }

    fn read(&self, arenas: ArenasId, src: Loc, out: &mut [u8]) -> Result<(), DeviceFault> {
        self.inner.read(arenas, src, out)
    }

    fn write(&self, arenas: ArenasId, dst: Loc, data: &[u8]) -> Result<(), DeviceFault> {
        self.inner.write(arenas, dst, data)
    }

    fn poll(&self, fence: Fence) -> Result<Progress, DeviceFault> {
        self.inner.poll(fence)
    }

    fn wait(&self, fence: Fence, timeout: Duration) -> Result<Progress, DeviceFault> {
        self.inner.wait(fence, timeout)
    }

    fn reserved(&self, kind: ArenaKind) -> u64 {
        self.inner.reserved(kind)
    }
}

impl<B> Checked<B> {
    fn bound(&self, launch: Launch) -> Result<(Bound, Laid), DeviceFault> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let found = state.launches.get(&launch).and_then(|bound| {
            let laid = state.arenas.get(&bound.arenas)?;
            Some((bound.clone(), laid.clone()))
        });
        found.ok_or_else(|| DeviceFault::rejected(format!("unknown launch handle {}", launch.0)))
    }
}
