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
mod mirror;
mod open;
mod program;

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use cudarc::driver::sys;
use metrale_core::{
    ArenaKind, Arg, MemoryPlan, PointId, RowRange, StepBlock, StepLayout, StepLimits,
};
use metrale_kernels::Target;

use crate::backend::{
    ArenasId, DeviceInfo, Fence, GpuBackend, Kernel, Launch, Loc, Program, Progress, Queue,
};
use crate::error::{BindError, DeviceFault, OutOfMemory, Unresolved};
use arenas::Arenas;
use bind::{Bound, Resolved};
use driver::{Context, Stream, check};
use fences::Fences;
use program::Recorded;

pub use open::CudaStartError;

/// How a CUDA device is opened.
#[derive(Clone, Debug, Default)]
pub struct CudaOptions {
    /// Its number, as the driver counts (`CUDA_VISIBLE_DEVICES` applies).
    pub ordinal: u32,
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

#[derive(Debug)]
struct State {
    /// The fault that lost the context.
    lost: Option<DeviceFault>,
    next: u32,
    fences: Fences,
    programs: HashMap<u32, Recorded>,
    launches: HashMap<u32, Bound>,
    arenas: HashMap<u32, Arenas>,
    functions: Vec<Option<Resolved>>,
    images: Vec<Option<Module>>,
    stream: Stream,
}

/// A loaded image.
#[derive(Debug)]
struct Module(sys::CUmodule);

// SAFETY: a module handle is valid in every thread.
unsafe impl Send for Module {}

impl Drop for Module {
    fn drop(&mut self) {
        // SAFETY: loaded once; functions of it are gone with the state.
        unsafe { sys::cuModuleUnload(self.0) };
    }
}

/// A step is waited for by looking at its fence: this long without giving up the processor ...
const SPIN: Duration = Duration::from_micros(50);
/// ... and then in naps of this length.
const NAP: Duration = Duration::from_micros(20);

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
        } = open::open(options.ordinal)?;
        let state = State {
            lost: None,
            next: 0,
            fences: Fences::default(),
            programs: HashMap::new(),
            launches: HashMap::new(),
            arenas: HashMap::new(),
            functions: vec![None; target.points.len()],
            images: target.images.iter().map(|_| None).collect(),
            stream: Stream::new()?,
        };
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

    /// Bytes that can still be allocated on the device.
    ///
    /// # Errors
    /// [`DeviceFault`].
    pub fn free_memory(&self) -> Result<u64, DeviceFault> {
        let _state = self.enter()?;
        open::free_memory()
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

impl State {
    fn id(&mut self) -> u32 {
        self.next += 1;
        self.next
    }

    fn retire(&mut self) -> Result<(), DeviceFault> {
        let arenas = &self.arenas;
        self.fences
            .retire(|(id, slot)| arenas.get(&id)?.ring.record(slot))
    }

    /// Waits until a fence is passed, without a limit: for places where the caller cannot go on otherwise.
    fn finish(&mut self, fence: u64) -> Result<(), DeviceFault> {
        let mut pause = Pause::new();
        loop {
            self.retire()?;
            if self.fences.passed(fence) {
                return Ok(());
            }
            pause.once(Duration::MAX);
        }
    }

    /// Loads the image of a point if need be, and finds its entry.
    fn function(&mut self, target: &'static Target, index: usize) -> Result<Resolved, DeviceFault> {
        if let Some(resolved) = self.functions[index] {
            return Ok(resolved);
        }
        let point = &target.points[index];
        let image = &target.images[point.image];
        if self.images[point.image].is_none() {
            let mut module = std::ptr::null_mut();
            // SAFETY: a whole image, as the compiler wrote it.
            let loaded = unsafe { sys::cuModuleLoadData(&mut module, image.bytes.as_ptr().cast()) };
            check(&format!("loading the kernels of {}", image.file), loaded)?;
            self.images[point.image] = Some(Module(module));
        }
        let Some(Module(module)) = &self.images[point.image] else {
            return Err(DeviceFault::rejected("an image vanished"));
        };
        let entry = std::ffi::CString::new(point.entry).map_err(|_| {
            DeviceFault::rejected(format!("{}: a zero byte in its entry", point.id))
        })?;
        let mut function = std::ptr::null_mut();
        // SAFETY: the module is loaded, the name is terminated. The function is loaded at once, not at its first launch:
        // that would be inside a capture.
        unsafe {
            let found = sys::cuModuleGetFunction(&mut function, *module, entry.as_ptr());
            check(&format!("finding {} in {}", point.entry, image.file), found)?;
            check(
                &format!("loading {}", point.entry),
                sys::cuFuncLoad(function),
            )?;
        }
        let resolved = Resolved { point, function };
        self.functions[index] = Some(resolved);
        Ok(resolved)
    }

    /// Copies a step block to the device in stream order. Returns the fault record's place.
    fn send(&mut self, arenas: u32, step: &StepBlock) -> Result<fences::Record, DeviceFault> {
        let Some(memory) = self.arenas.get(&arenas) else {
            return Err(unknown("arenas", arenas.into()));
        };
        let wanted = StepLayout::new(memory.limits);
        if step.layout().words() > wanted.words() {
            return Err(DeviceFault::rejected(format!(
                "the step block has {} words, and the arenas were reserved for {}",
                step.layout().words(),
                wanted.words()
            )));
        }
        let busy = memory.ring.busy_until();
        self.finish(busy)?;
        let Some(memory) = self.arenas.get_mut(&arenas) else {
            return Err(unknown("arenas", arenas.into()));
        };
        memory.touched();
        let (slot, host, bytes) = memory.ring.fill(step);
        let device = memory.ring.device_address();
        // SAFETY: the slot is page-locked and stays until its fence is passed; the device block is as long as any.
        let copied = unsafe {
            sys::cuMemcpyHtoDAsync_v2(
                device,
                host as *const std::ffi::c_void,
                bytes,
                self.stream.0,
            )
        };
        check("sending a step block", copied)?;
        Ok((arenas, slot))
    }

    /// The fence behind a step that was sent and whose work was started.
    fn sent(&mut self, record: fences::Record) -> Result<u64, DeviceFault> {
        let fence = self.fences.push(&self.stream, Some(record))?;
        if let Some(memory) = self.arenas.get_mut(&record.0) {
            memory.ring.sent(record.1, fence);
        }
        Ok(fence)
    }

    fn progress(&mut self, fence: Fence) -> Result<Progress, DeviceFault> {
        if !self.fences.knows(fence.0) {
            return Err(unknown("fence", fence.0));
        }
        self.retire()?;
        if !self.fences.passed(fence.0) {
            return Ok(Progress::Running);
        }
        match self.fences.fault(fence.0) {
            Some(fault) => Err(fault.clone()),
            None => Ok(Progress::Done),
        }
    }
}

/// Looks again and again, first without rest, then in naps.
struct Pause {
    since: Instant,
}

impl Pause {
    fn new() -> Pause {
        Pause {
            since: Instant::now(),
        }
    }

    fn once(&mut self, at_most: Duration) {
        if self.since.elapsed() < SPIN {
            std::hint::spin_loop();
        } else {
            std::thread::sleep(NAP.min(at_most));
        }
    }
}

fn unknown(what: &str, id: u64) -> DeviceFault {
    DeviceFault::rejected(format!("{what} {id} does not exist on this device"))
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
        let arenas = Arenas::reserve(plan, limits, &state.stream, &self.info.name)?;
        let id = state.id();
        state.arenas.insert(id, arenas);
        Ok(ArenasId(id))
    }

    fn release(&self, arenas: ArenasId) {
        let mut state = self.lock();
        // A lost context takes its memory with it; freeing fails without harm.
        if self.context.enter().is_ok() && state.lost.is_none() {
            let _ = state.stream.synchronize();
            let _ = state.retire();
        }
        state.programs.retain(|_, p| p.arenas != arenas.0);
        state.launches.retain(|_, l| l.arenas != arenas.0);
        state.arenas.remove(&arenas.0);
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
        let bound = Bound::new(arenas.0, memory, &resolved, args)?;
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
            let recorded = Recorded::capture(id, &bound, bucket, &memory.limits, &state.stream)?;
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
            let record = state.send(recorded.arenas, step)?;
            if let Some(recorded) = state.programs.get(&program.0) {
                recorded.launch(&state.stream)?;
            }
            state.sent(record).map(Fence)
        })
    }

    fn run_once(&self, launch: Launch, step: &StepBlock) -> Result<(), DeviceFault> {
        self.with(|state| {
            let Some(bound) = state.launches.remove(&launch.0) else {
                return Err(unknown("launch", launch.0.into()));
            };
            let record = state.send(bound.arenas, step)?;
            let rows = bound.rows(step.counts());
            let Some(point) = bound.point(rows) else {
                let text = format!("{}: no point of the launch takes {rows} rows", bound.name());
                return Err(DeviceFault::rejected(text));
            };
            let Some(memory) = state.arenas.get(&bound.arenas) else {
                return Err(unknown("arenas", bound.arenas.into()));
            };
            let geometry = bound.geometry(point.point, rows, &memory.limits)?;
            check(
                point.point.id,
                bound.launch(point, geometry, state.stream.0),
            )?;
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
            let memory = state
                .arenas
                .get_mut(&arenas.0)
                .ok_or_else(|| unknown("arenas", arenas.0.into()))?;
            let (to, from) = (memory.range(dst, bytes)?, memory.range(src, bytes)?);
            // SAFETY: both ranges lie inside their spans.
            let copied =
                unsafe { sys::cuMemcpyDtoDAsync_v2(to, from, bytes as usize, state.stream.0) };
            check("copying on the device", copied)?;
            memory.touched();
            state.fences.push(&state.stream, None).map(Fence)
        })
    }

    fn read(&self, arenas: ArenasId, src: Loc, out: &mut [u8]) -> Result<(), DeviceFault> {
        self.with(|state| {
            let State {
                arenas: all,
                stream,
                ..
            } = state;
            let memory = all.get_mut(&arenas.0);
            let memory = memory.ok_or_else(|| unknown("arenas", arenas.0.into()))?;
            memory.read(src, out, stream)
        })
    }

    fn write(&self, arenas: ArenasId, dst: Loc, data: &[u8]) -> Result<(), DeviceFault> {
        self.with(|state| {
            let memory = state
                .arenas
                .get_mut(&arenas.0)
                .ok_or_else(|| unknown("arenas", arenas.0.into()))?;
            let to = memory.range(dst, data.len() as u64)?;
            // SAFETY: the range lies inside its span, and `data` outlives the wait below (a copy from pageable memory may
            // return before it has reached its place).
            let copied = unsafe {
                sys::cuMemcpyHtoDAsync_v2(to, data.as_ptr().cast(), data.len(), state.stream.0)
            };
            check("writing device memory", copied)?;
            memory.touched();
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

    fn reserved(&self, kind: ArenaKind) -> u64 {
        self.lock().arenas.values().map(|a| a.bytes(kind)).sum()
    }
}

/// One stream: a fence that exists is over by then.
fn known(state: &State, after: &[Fence]) -> Result<(), DeviceFault> {
    match after.iter().find(|f| !state.fences.knows(f.0)) {
        Some(fence) => Err(unknown("fence", fence.0)),
        None => Ok(()),
    }
}

impl Drop for CudaBackend {
    fn drop(&mut self) {
        let mut state = self.lock();
        if self.context.enter().is_ok() && state.lost.is_none() {
            let _ = state.stream.synchronize();
        }
        // In this order: programs hold arguments into arenas.
        state.programs.clear();
        state.launches.clear();
        state.arenas.clear();
    }
}
