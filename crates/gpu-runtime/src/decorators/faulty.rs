// SPDX-License-Identifier: MIT OR Apache-2.0
//! A backend that fails where it is told to. Time is virtual: waiting for a submit that hangs returns at once, as if the
//! timeout had passed.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use metrale_core::{ArenaKind, Arg, MemoryPlan, PointId, RowRange, StepBlock, StepLimits};

use crate::backend::{
    ArenasId, DeviceInfo, Fence, GpuBackend, Kernel, Launch, Loc, Program, Progress, Queue,
};
use crate::error::{BindError, DeviceFault, OutOfMemory, Unresolved};
use crate::faults::FaultPlan;

/// A backend with planned faults.
#[derive(Debug)]
pub struct Faulty<B> {
    inner: B,
    plan: FaultPlan,
    allocations: AtomicU64,
    submits: AtomicU64,
    lost: AtomicBool,
}

/// Fences of submits that hang lie above every real one.
const HUNG: u64 = 1 << 63;

impl<B> Faulty<B> {
    /// `inner`, failing as planned.
    pub fn new(inner: B, plan: FaultPlan) -> Faulty<B> {
        let (allocations, submits) = (AtomicU64::new(0), AtomicU64::new(0));
        Faulty {
            inner,
            plan,
            allocations,
            submits,
            lost: AtomicBool::new(false),
        }
    }

    /// The backend inside.
    pub fn inner(&self) -> &B {
        &self.inner
    }

    fn alive(&self) -> Result<(), DeviceFault> {
        if self.lost.load(Ordering::SeqCst) {
            return Err(DeviceFault::lost("the device was lost (injected)"));
        }
        Ok(())
    }

    /// Counts a submit. Whether it hangs.
    fn count(&self) -> Result<Option<Fence>, DeviceFault> {
        self.alive()?;
        let n = self.submits.fetch_add(1, Ordering::SeqCst);
        if self.plan.lose.is_some_and(|k| n >= k) {
            self.lost.store(true, Ordering::SeqCst);
        }
        self.alive()?;
        Ok(self
            .plan
            .hang
            .is_some_and(|k| n >= k)
            .then_some(Fence(HUNG | n)))
    }
}

impl<B: GpuBackend> GpuBackend for Faulty<B> {
    fn device(&self) -> &DeviceInfo {
        self.inner.device()
    }

    fn reserve(&self, plan: &MemoryPlan, limits: &StepLimits) -> Result<ArenasId, OutOfMemory> {
        for arena in ArenaKind::ALL {
            let needed = plan.arena_bytes(arena);
            if needed == 0 {
                continue;
            }
            let n = self.allocations.fetch_add(1, Ordering::SeqCst);
            if self.plan.allocation == Some(n) {
                return Err(OutOfMemory {
                    device: self.device().name.clone(),
                    arena,
                    needed,
                    available: 0,
                    why: format!("allocation {n} fails (injected)"),
                });
            }
        }
        self.inner.reserve(plan, limits)
    }

    fn release(&self, arenas: ArenasId) {
        self.inner.release(arenas);
    }

    fn resolve(&self, point: &PointId) -> Result<Kernel, Unresolved> {
        self.inner.resolve(point)
    }

    fn bind(
        &self,
        arenas: ArenasId,
        points: &[(RowRange, Kernel)],
        args: &[Arg],
    ) -> Result<Launch, BindError> {
        self.inner.bind(arenas, points, args)
    }

    fn record(&self, launches: &[Launch], bucket: u32) -> Result<Program, DeviceFault> {
        self.alive()?;
        self.inner.record(launches, bucket)
    }

    fn submit(
        &self,
        queue: Queue,
        program: Program,
        step: &StepBlock,
        after: &[Fence],
    ) -> Result<Fence, DeviceFault> {
        match self.count()? {
            Some(hung) => Ok(hung),
            None => self.inner.submit(queue, program, step, after),
        }
    }

    fn run_once(&self, launch: Launch, step: &StepBlock) -> Result<(), DeviceFault> {
        match self.count()? {
            Some(_) => Err(DeviceFault::lost("a launch never ended (injected)")),
            None => self.inner.run_once(launch, step),
        }
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
        match self.count()? {
            Some(hung) => Ok(hung),
            None => self.inner.copy(queue, arenas, dst, src, bytes, after),
        }
    }

    fn read(&self, arenas: ArenasId, src: Loc, out: &mut [u8]) -> Result<(), DeviceFault> {
        self.alive()?;
        self.inner.read(arenas, src, out)
    }

    fn write(&self, arenas: ArenasId, dst: Loc, data: &[u8]) -> Result<(), DeviceFault> {
        self.alive()?;
        self.inner.write(arenas, dst, data)
    }

    fn poll(&self, fence: Fence) -> Result<Progress, DeviceFault> {
        self.alive()?;
        if fence.0 >= HUNG {
            return Ok(Progress::Running);
        }
        self.inner.poll(fence)
    }

    fn wait(&self, fence: Fence, timeout: Duration) -> Result<Progress, DeviceFault> {
        self.alive()?;
        if fence.0 >= HUNG {
            return Ok(Progress::Running);
        }
        self.inner.wait(fence, timeout)
    }

    fn reserved(&self, kind: ArenaKind) -> u64 {
        self.inner.reserved(kind)
    }
}
