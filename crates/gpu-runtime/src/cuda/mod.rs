// SPDX-License-Identifier: MIT OR Apache-2.0
//! NVIDIA devices over the driver API.
//!
//! Arenas are plain allocations. A program is a CUDA graph, captured from its launches between listening and ready: grids
//! are those of the bucket, arguments are constant, and kernels read the live counts from the step block. A submit copies
//! the step block's live part to one fixed address and starts the graph, both on one stream, which serves all queues; so
//! work runs in the order of submission, and the fences of `after` are over by then.
//!
//! The driver library is loaded at run time. On a machine without it, [`CudaBackend::open`] gives an error and nothing else
//! of this module runs. Every call is checked; an error that poisons the context is remembered, and every later call
//! answers with it.

mod arenas;
mod bind;
mod driver;
mod fault;
mod fences;
mod inject;
mod launch;
mod maps;
mod open;
mod outputs;
mod pages;
mod program;
mod stamps;
mod state;

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cudarc::driver::sys;
use metrale_core::{ArenaKind, Arg, MemoryPlan, PointId, RowRange, SpanId, StepBlock, StepLimits};
use metrale_kernels::Target;

use crate::backend::{
    ArenasId, DeviceInfo, Fence, GpuBackend, Kernel, Launch, Loc, PagesId, Program, Progress,
    Queue, Stamp, Transfer,
};
use crate::error::{BindError, DeviceFault, OutOfMemory, Unresolved};
use crate::faults::FaultPlan;
use arenas::Arenas;
use bind::Bound;
use driver::{Context, Stream, check};
use fences::Fences;
use inject::{Allocations, Submits};
use pages::{Pages, Transfers};
use program::Recorded;
use stamps::Stamps;
use state::{Pause, State, known, unknown};

pub use open::CudaStartError;

/// How a CUDA device is opened.
#[derive(Clone, Debug)]
pub struct CudaOptions {
    /// Its number, as the driver counts (`CUDA_VISIBLE_DEVICES` applies).
    pub ordinal: u32,
    /// Work that is waited for takes no longer, or the device hangs. Default 120 seconds.
    pub patience: Duration,
    /// Whether programs are stamped ([`GpuBackend::stamps`]): about two microseconds each. Default no.
    pub stamps: bool,
    /// Faults to inject. Default none.
    pub faults: FaultPlan,
}

impl Default for CudaOptions {
    fn default() -> Self {
        CudaOptions {
            ordinal: 0,
            patience: Duration::from_secs(120),
            stamps: false,
            faults: FaultPlan::default(),
        }
    }
}

/// A CUDA device.
#[derive(Debug)]
pub struct CudaBackend {
    info: DeviceInfo,
    target: &'static Target,
    // Dropped in this order: what lives in the context before the context.
    state: Mutex<State>,
    context: Context,
}

impl CudaBackend {
    /// Opens a device.
    ///
    /// # Errors
    /// [`CudaStartError`]: no kernels in this build, no driver, too old a driver, no such device, another architecture.
    pub fn open(options: &CudaOptions) -> Result<CudaBackend, CudaStartError> {
        let open::Opened {
            context,
            target,
            info,
            processors,
            shared_limit,
        } = open::open(options.ordinal, &options.faults)?;
        let mut state = State {
            lost: None,
            next: 0,
            fences: Fences::default(),
            programs: HashMap::new(),
            launches: HashMap::new(),
            arenas: HashMap::new(),
            pages: HashMap::new(),
            transfers: None,
            functions: vec![None; target.points.len()],
            images: target.images.iter().map(|_| None).collect(),
            patience: options.patience,
            hangs: false,
            allocations: Allocations::new(&options.faults),
            submits: Submits::new(&options.faults),
            stamps: None,
            stream: Stream::new()?,
            processors,
            shared_limit,
        };
        if options.stamps {
            state.stamps = Some(Stamps::new(&mut state, target)?);
        }
        Ok(CudaBackend {
            info,
            target,
            state: Mutex::new(state),
            context,
        })
    }

    /// The classes whose kernels this build holds, with their compute capabilities: `hopper (9.0), gb10 (12.0, 12.1)`.
    ///
    /// # Errors
    /// What the build says, if it holds none.
    pub fn kernels() -> Result<String, &'static str> {
        match metrale_kernels::targets() {
            [] => Err(metrale_kernels::STATUS),
            targets => Ok(open::built(targets)),
        }
    }

    /// Waits for what is in flight before something of it is given back. A lost context takes its memory with it: freeing
    /// fails without harm.
    fn end_work(&self, state: &mut State) {
        if self.context.enter().is_ok()
            && state.lost.is_none()
            && let Err(fault) = state.settle_all()
            && fault.sticky
        {
            state.lost = Some(fault);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // The tables are never left half changed: nothing that can panic stands between two changes.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The state, with the context current; the fault that lost the device if it is lost.
    fn enter(&self) -> Result<MutexGuard<'_, State>, DeviceFault> {
        let state = self.lock();
        if let Some(fault) = &state.lost {
            return Err(fault.clone());
        }
        self.context.enter()?;
        Ok(state)
    }

    /// Runs `work` on the state and remembers a fault that loses the context.
    fn with<T>(
        &self,
        work: impl FnOnce(&mut State) -> Result<T, DeviceFault>,
    ) -> Result<T, DeviceFault> {
        let mut state = self.enter()?;
        let result = work(&mut state);
        if let Err(fault) = &result
            && fault.sticky
        {
            state.lost = Some(fault.clone());
        }
        result
    }
}

impl GpuBackend for CudaBackend {
    fn device(&self) -> &DeviceInfo {
        &self.info
    }

    fn reserve(&self, plan: &MemoryPlan, limits: &StepLimits) -> Result<ArenasId, OutOfMemory> {
        let refused = |fault: DeviceFault| OutOfMemory {
            device: self.info.name.clone(),
            arena: ArenaKind::Weights,
            needed: plan.total_bytes(),
            available: 0,
            why: fault.what,
        };
        let mut state = self.enter().map_err(refused)?;
        let (stream, allocations) = (&state.stream, &state.allocations);
        let arenas = Arenas::reserve(plan, limits, stream, &self.info.name, allocations)?;
        let id = state.id();
        state.arenas.insert(id, arenas);
        Ok(ArenasId(id))
    }

    fn release(&self, arenas: ArenasId) {
        let mut state = self.lock();
        self.end_work(&mut state);
        state.give_back(|id| id == arenas.0);
    }

    fn resolve(&self, point: &PointId) -> Result<Kernel, Unresolved> {
        let unresolved = |remedy: String| Unresolved {
            point: point.clone(),
            class: self.info.class.clone(),
            remedy,
        };
        let index = self
            .target
            .points
            .binary_search_by(|p| p.id.cmp(point.as_str()));
        let Ok(index) = index else {
            return Err(unresolved(
                "the class has no such kernel yet; another weight or KV format may have".into(),
            ));
        };
        self.with(|state| state.function(self.target, index))
            .map_err(|f| unresolved(f.what))?;
        Ok(Kernel(index as u32))
    }

    fn bind(
        &self,
        arenas: ArenasId,
        points: &[(RowRange, Kernel)],
        args: &[Arg],
    ) -> Result<Launch, BindError> {
        let mut state = self.lock();
        let resolved: Option<Vec<_>> = points
            .iter()
            .map(|(range, kernel)| {
                let known = state.functions.get(kernel.0 as usize).copied().flatten();
                known.map(|r| (*range, r))
            })
            .collect();
        let Some(resolved) = resolved else {
            return Err(BindError::Points("a kernel that was not resolved".into()));
        };
        let memory = state.arenas.get(&arenas.0).ok_or(BindError::Arenas)?;
        let bound = Bound::new(arenas.0, memory, state.processors, &resolved, args)?;
        let id = state.id();
        state.launches.insert(id, bound);
        Ok(Launch(id))
    }

    fn record(&self, launches: &[Launch], bucket: u32) -> Result<Program, DeviceFault> {
        self.with(|state| {
            let bound = launches.iter().map(|l| {
                state
                    .launches
                    .get(&l.0)
                    .ok_or_else(|| unknown("launch", l.0.into()))
            });
            let bound = bound.collect::<Result<Vec<_>, _>>()?;
            let id = bound.first().map_or(0, |b| b.arenas);
            if bound.iter().any(|b| b.arenas != id) {
                return Err(DeviceFault::rejected(
                    "a program of launches of several arenas",
                ));
            }
            let Some(memory) = state.arenas.get(&id) else {
                return Err(DeviceFault::rejected("a program needs at least one launch"));
            };
            let stamps = state.stamps.as_ref();
            let stamps = stamps.map(|s| (s, memory.ring.device_address()));
            let (limits, stream) = (&memory.limits, &state.stream);
            let recorded = Recorded::capture(id, &bound, bucket, limits, stream, stamps)?;
            let program = state.id();
            state.programs.insert(program, recorded);
            Ok(Program(program))
        })
    }

    fn submit(
        &self,
        _queue: Queue,
        program: Program,
        step: &StepBlock,
        after: &[Fence],
    ) -> Result<Fence, DeviceFault> {
        self.with(|state| {
            known(state, after)?;
            let Some(recorded) = state.programs.get(&program.0) else {
                return Err(unknown("program", program.0.into()));
            };
            recorded.fits(step.counts())?;
            state.inject(self.target)?;
            let Some(recorded) = state.programs.get(&program.0) else {
                return Err(unknown("program", program.0.into()));
            };
            let (rows, samples) = (recorded.runs_rows(), recorded.samples());
            let record = state.send(recorded.arenas, step, rows, samples)?;
            if let Some(recorded) = state.programs.get(&program.0) {
                recorded.launch(&state.stream)?;
                if let Some(memory) = state.arenas.get(&record.0).filter(|_| recorded.samples()) {
                    memory.fetch(record.1, &state.stream)?;
                }
            }
            state.sent(record).map(Fence)
        })
    }

    fn run_once(&self, launch: Launch, step: &StepBlock) -> Result<(), DeviceFault> {
        self.with(|state| {
            let Some(bound) = state.launches.remove(&launch.0) else {
                return Err(unknown("launch", launch.0.into()));
            };
            state.inject(self.target)?;
            let record = state.send(bound.arenas, step, true, true)?;
            let rows = bound.rows(step.counts());
            let Some(point) = bound.point(rows) else {
                let text = format!("{}: no point of the launch takes {rows} rows", bound.name());
                return Err(DeviceFault::rejected(text));
            };
            let Some(memory) = state.arenas.get(&bound.arenas) else {
                return Err(unknown("arenas", bound.arenas.into()));
            };
            bound.launch(point, rows, &memory.limits, &state.stream)?;
            let fence = state.sent(record)?;
            state.finish(fence)?;
            state.progress(Fence(fence)).map(|_| ())
        })
    }

    fn copy(
        &self,
        _queue: Queue,
        arenas: ArenasId,
        dst: Loc,
        src: Loc,
        bytes: u64,
        after: &[Fence],
    ) -> Result<Fence, DeviceFault> {
        self.with(|state| {
            known(state, after)?;
            state.inject(self.target)?;
            let memory = state
                .arenas
                .get(&arenas.0)
                .ok_or_else(|| unknown("arenas", arenas.0.into()))?;
            let (to, from) = (memory.range(dst, bytes)?, memory.range(src, bytes)?);
            // SAFETY: both ranges lie inside their spans.
            let copied =
                unsafe { sys::cuMemcpyDtoDAsync_v2(to, from, bytes as usize, state.stream.0) };
            check("copying on the device", copied)?;
            state.fences.push(&state.stream, None).map(Fence)
        })
    }

    fn read(&self, arenas: ArenasId, src: Loc, out: &mut [u8]) -> Result<(), DeviceFault> {
        self.with(|state| {
            // A copy to memory of this kind blocks the thread: that nothing hangs is found before.
            state.settle()?;
            let State {
                arenas: all,
                stream,
                ..
            } = state;
            let memory = all.get(&arenas.0);
            let memory = memory.ok_or_else(|| unknown("arenas", arenas.0.into()))?;
            memory.read(src, out, stream)
        })
    }

    fn read_of(
        &self,
        fence: Fence,
        arenas: ArenasId,
        src: Loc,
        out: &mut [u8],
    ) -> Result<(), DeviceFault> {
        self.with(|state| {
            let passed = state.fences.passed(fence.0);
            let memory = state.arenas.get(&arenas.0);
            let memory = memory.ok_or_else(|| unknown("arenas", arenas.0.into()))?;
            if passed && memory.read_copy(fence.0, src, out) {
                return Ok(());
            }
            state.settle()?;
            let memory = state.arenas.get(&arenas.0);
            let memory = memory.ok_or_else(|| unknown("arenas", arenas.0.into()))?;
            memory.read(src, out, &state.stream)
        })
    }

    fn takes_late_ids(&self) -> bool {
        true
    }

    fn write(&self, arenas: ArenasId, dst: Loc, data: &[u8]) -> Result<(), DeviceFault> {
        self.with(|state| {
            state.settle()?;
            let memory = state
                .arenas
                .get(&arenas.0)
                .ok_or_else(|| unknown("arenas", arenas.0.into()))?;
            let to = memory.range(dst, data.len() as u64)?;
            // SAFETY: the range lies inside its span, and `data` outlives the wait below (a copy from pageable memory may
            // return before it has reached its place).
            let copied = unsafe {
                sys::cuMemcpyHtoDAsync_v2(to, data.as_ptr().cast(), data.len(), state.stream.0)
            };
            check("writing device memory", copied)?;
            state.stream.synchronize()
        })
    }

    fn poll(&self, fence: Fence) -> Result<Progress, DeviceFault> {
        self.with(|state| state.progress(fence))
    }

    fn wait(&self, fence: Fence, timeout: Duration) -> Result<Progress, DeviceFault> {
        let mut pause = Pause::new();
        loop {
            // The lock is free between two looks: others may submit meanwhile.
            let progress = self.poll(fence)?;
            let left = timeout.saturating_sub(pause.since.elapsed());
            if progress == Progress::Done || left.is_zero() {
                return Ok(progress);
            }
            pause.once(left);
        }
    }

    fn pages(
        &self,
        arenas: ArenasId,
        parts: &[(SpanId, u64)],
        count: u32,
    ) -> Result<Option<PagesId>, OutOfMemory> {
        let needed: u64 = parts.iter().map(|p| p.1).sum();
        let made = self.with(|state| {
            if state.transfers.is_none() {
                state.transfers = Some(Transfers::new()?);
            }
            let memory = state.arenas.get(&arenas.0);
            let memory = memory.ok_or_else(|| unknown("arenas", arenas.0.into()))?;
            let (stream, allocations) = (&state.stream, &state.allocations);
            let pages = Pages::new(arenas.0, memory, parts, count, stream, allocations)?;
            let id = state.id();
            state.pages.insert(id, pages);
            Ok(PagesId(id))
        });
        made.map(Some).map_err(|fault| OutOfMemory {
            device: self.info.name.clone(),
            arena: ArenaKind::Kv,
            needed,
            available: self.free_memory().unwrap_or(0),
            why: fault.what,
        })
    }

    fn page_out(&self, pages: PagesId, page: u32, index: u64) -> Result<Transfer, DeviceFault> {
        self.with(|state| state.page_out(pages.0, page, index).map(Transfer))
    }

    fn page_in(&self, pages: PagesId, page: u32, index: u64) -> Result<Transfer, DeviceFault> {
        self.with(|state| state.page_in(pages.0, page, index).map(Transfer))
    }

    fn transferred(&self, transfer: Transfer, wait: bool) -> Result<Option<Duration>, DeviceFault> {
        self.with(|state| state.transferred(transfer.0, wait))
    }

    fn page(
        &self,
        pages: PagesId,
        page: u32,
        look: &mut dyn FnMut(&mut [u8]),
    ) -> Result<(), DeviceFault> {
        self.with(|state| state.look(pages.0, page, look))
    }

    fn free_memory(&self) -> Option<u64> {
        let _state = self.enter().ok()?;
        open::free_memory().ok()
    }

    fn stamps(&self) -> Result<Option<Vec<Stamp>>, DeviceFault> {
        self.with(|state| {
            if state.stamps.is_none() {
                return Ok(None);
            }
            state.settle()?;
            state.stamps.as_mut().map(Stamps::take).transpose()
        })
    }

    fn reserved(&self, kind: ArenaKind) -> u64 {
        self.lock().arenas.values().map(|a| a.bytes(kind)).sum()
    }
}

impl Drop for CudaBackend {
    fn drop(&mut self) {
        let mut state = self.lock();
        self.end_work(&mut state);
        state.give_back(|_| true);
        if state.hangs {
            let left = (
                std::mem::take(&mut state.images),
                state.stamps.take(),
                state.transfers.take(),
            );
            std::mem::forget((left, std::mem::take(&mut state.submits)));
            self.context.abandon();
        }
    }
}
