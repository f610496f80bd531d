// SPDX-License-Identifier: MIT OR Apache-2.0
//! `GpuBackend`: the device seam.
//!
//! A backend is told a memory plan once ([`reserve`](GpuBackend::reserve)), resolves kernel points, binds each launch
//! once, records programs, and from then on only [`submit`](GpuBackend::submit)s programs with step blocks. What it hands
//! out are plain ids, so that the trait is object-safe and a decorator is an ordinary type. Nothing here allocates on the
//! device but `reserve`; nothing compiles.
//!
//! Order: work submitted to one queue runs in order. Across queues, `after` names the fences to wait for. The calls
//! [`read`](GpuBackend::read), [`write`](GpuBackend::write) and [`copy`](GpuBackend::copy) are ordered after all that was
//! submitted to their queue.

use std::time::Duration;

use metrale_core::{ArenaKind, Arg, MemoryPlan, PointId, RowRange, SpanId, StepBlock, StepLimits};

use crate::error::{BindError, DeviceFault, OutOfMemory, Unresolved};

/// A resolved point.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Kernel(pub u32);

/// A bound launch: points by row count, and one list of arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Launch(pub u32);

/// A recorded list of launches for one row bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Program(pub u32);

/// The arenas of one reserved memory plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ArenasId(pub u32);

/// Work that was submitted: done when the device has passed it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fence(pub u64);

/// Page-locked pages of host memory, each as large as a block in all spans that were named.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PagesId(pub u32);

/// A copy between a page and a block that was started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Transfer(pub u64);

/// A queue of the device. 0 is the compute queue; a backend may serve all queues as one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Queue(pub u8);

/// Whether a fence has been passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// The device has passed it.
    Done,
    /// Not yet.
    Running,
}

/// A place in an arena: a span and an offset in bytes into it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Loc {
    /// The span.
    pub span: SpanId,
    /// Bytes from its start.
    pub offset: u64,
}

/// When a program ran, by the device's own clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stamp {
    /// Nanoseconds, from a begin of the device's own: before its first launch.
    pub begin: u64,
    /// Nanoseconds: behind its last launch.
    pub end: u64,
    /// Rows of its step.
    pub rows: u32,
    /// Logits rows of its step.
    pub logits_rows: u32,
}

/// What a device is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// Readable name (`NVIDIA H200`, `AMD EPYC, 2 threads, avx2`).
    pub name: String,
    /// Hardware class of the kernel tree (`cpu`, `hopper`).
    pub class: String,
    /// Memory in bytes that arenas can be taken from, when it was opened.
    pub memory: u64,
    /// Instruction sets or capabilities in use, for `met doctor` and logs.
    pub features: Vec<String>,
    /// Whether reserved memory is backed page by page when first touched (a host), not at once (a GPU).
    pub lazy_memory: bool,
}

/// A backend without pages was given one.
const NO_PAGES: &str = "this device has no page-locked pages";

/// A device.
pub trait GpuBackend: Send + Sync {
    /// What it is.
    fn device(&self) -> &DeviceInfo;

    /// Takes the memory of a plan: one allocation per arena, zeroed or lazily zero, and what the backend needs to pass
    /// step blocks of `limits` to the device. The only allocation.
    ///
    /// # Errors
    /// [`OutOfMemory`] names the arena, what it needs and what there is; nothing stays allocated.
    fn reserve(&self, plan: &MemoryPlan, limits: &StepLimits) -> Result<ArenasId, OutOfMemory>;

    /// Gives back arenas with every launch and program bound in them. Waits for work in flight. Unknown ids are ignored.
    fn release(&self, arenas: ArenasId);

    /// Looks up a point.
    ///
    /// # Errors
    /// [`Unresolved`]: this backend was built without it.
    fn resolve(&self, point: &PointId) -> Result<Kernel, Unresolved>;

    /// Binds the points of one group (all of one family, by row count) to arguments. Count, kind, access and alignment
    /// are checked here, once.
    ///
    /// # Errors
    /// [`BindError`] names the argument, what the declaration wants and what it got.
    fn bind(
        &self,
        arenas: ArenasId,
        points: &[(RowRange, Kernel)],
        args: &[Arg],
    ) -> Result<Launch, BindError>;

    /// Records launches, in order, as a program for steps of at most `bucket` rows (logits rows, where the launches run
    /// over those). Of a launch's points the one for `bucket` rows is taken; a step below it has the same bits.
    ///
    /// # Errors
    /// [`DeviceFault`].
    fn record(&self, launches: &[Launch], bucket: u32) -> Result<Program, DeviceFault>;

    /// Starts a program on `step`, which is copied before this returns.
    ///
    /// # Errors
    /// [`DeviceFault`]: the program did not start.
    fn submit(
        &self,
        queue: Queue,
        program: Program,
        step: &StepBlock,
        after: &[Fence],
    ) -> Result<Fence, DeviceFault>;

    /// Binds nothing and records nothing: runs one launch on `step` and waits. For load time (packing weights). The
    /// launch is forgotten afterwards.
    ///
    /// # Errors
    /// [`DeviceFault`].
    fn run_once(&self, launch: Launch, step: &StepBlock) -> Result<(), DeviceFault>;

    /// Copies `bytes` from one place of the arenas to another.
    ///
    /// # Errors
    /// [`DeviceFault`] if a range lies outside its span, or the device fails.
    fn copy(
        &self,
        queue: Queue,
        arenas: ArenasId,
        dst: Loc,
        src: Loc,
        bytes: u64,
        after: &[Fence],
    ) -> Result<Fence, DeviceFault>;

    /// Reads device memory into `out`; waits for the compute queue.
    ///
    /// # Errors
    /// [`DeviceFault`] if the range lies outside the span, or the device fails.
    fn read(&self, arenas: ArenasId, src: Loc, out: &mut [u8]) -> Result<(), DeviceFault>;

    /// Reads an output as the program behind `fence` left it, though others may have been started since; the fence must have
    /// been passed. Backends that do not take late ids have nothing started since.
    ///
    /// # Errors
    /// As [`GpuBackend::read`].
    fn read_of(
        &self,
        _fence: Fence,
        arenas: ArenasId,
        src: Loc,
        out: &mut [u8],
    ) -> Result<(), DeviceFault> {
        self.read(arenas, src, out)
    }

    /// Whether it takes steps with ids that an earlier step leaves on the device ([`StepBlock::late`]).
    fn takes_late_ids(&self) -> bool {
        false
    }

    /// Writes device memory; waits for the compute queue only if the span may be in use (every kind but KV and staging:
    /// there the caller says by writing that nothing in flight touches the range).
    ///
    /// # Errors
    /// [`DeviceFault`] if the range lies outside the span, or the device fails.
    fn write(&self, arenas: ArenasId, dst: Loc, data: &[u8]) -> Result<(), DeviceFault>;

    /// Whether `fence` has been passed; does not wait.
    ///
    /// # Errors
    /// [`DeviceFault`] of the work before the fence.
    fn poll(&self, fence: Fence) -> Result<Progress, DeviceFault>;

    /// Waits at most `timeout` for `fence`; parks the thread.
    ///
    /// # Errors
    /// [`DeviceFault`] of the work before the fence.
    fn wait(&self, fence: Fence, timeout: Duration) -> Result<Progress, DeviceFault>;

    /// Takes `count` pages of host memory that the device copies to and from by itself, while it computes; each holds a block:
    /// of each span in `parts` as many bytes as stand beside it, side by side. They are given back with the arenas. `None`:
    /// the device has no such copies, and [`read`](GpuBackend::read) and [`write`](GpuBackend::write) do.
    ///
    /// # Errors
    /// [`OutOfMemory`] for the places on the device that pages pass through. Host memory is taken when a page is used first.
    fn pages(
        &self,
        _arenas: ArenasId,
        _parts: &[(SpanId, u64)],
        _count: u32,
    ) -> Result<Option<PagesId>, OutOfMemory> {
        Ok(None)
    }

    /// Starts copying block `index` into a page, after all that was submitted to the compute queue; what is submitted later may
    /// write the block.
    ///
    /// # Errors
    /// [`DeviceFault`]; also if the system gives no memory for the page.
    fn page_out(&self, _pages: PagesId, _page: u32, _index: u64) -> Result<Transfer, DeviceFault> {
        Err(DeviceFault::rejected(NO_PAGES))
    }

    /// Starts copying a page into block `index`, after all that was submitted to the compute queue and before what is
    /// submitted later.
    ///
    /// # Errors
    /// [`DeviceFault`].
    fn page_in(&self, _pages: PagesId, _page: u32, _index: u64) -> Result<Transfer, DeviceFault> {
        Err(DeviceFault::rejected(NO_PAGES))
    }

    /// What a transfer took; `None` while it runs, unless it is to be waited for. Each is asked for once.
    ///
    /// # Errors
    /// [`DeviceFault`].
    fn transferred(
        &self,
        _transfer: Transfer,
        _wait: bool,
    ) -> Result<Option<Duration>, DeviceFault> {
        Err(DeviceFault::rejected(NO_PAGES))
    }

    /// Shows the bytes of a page, once nothing is on its way to or from it.
    ///
    /// # Errors
    /// [`DeviceFault`].
    fn page(
        &self,
        _pages: PagesId,
        _page: u32,
        _look: &mut dyn FnMut(&mut [u8]),
    ) -> Result<(), DeviceFault> {
        Err(DeviceFault::rejected(NO_PAGES))
    }

    /// Bytes that can still be allocated, where the device has memory of its own.
    fn free_memory(&self) -> Option<u64> {
        None
    }

    /// When the programs ran that have ended since this was last asked, in their order; waits for the compute queue. `None`: it
    /// does not stamp them.
    ///
    /// # Errors
    /// [`DeviceFault`].
    fn stamps(&self) -> Result<Option<Vec<Stamp>>, DeviceFault> {
        Ok(None)
    }

    /// Bytes in use by arenas of a kind, over all that is reserved.
    fn reserved(&self, kind: ArenaKind) -> u64;
}
