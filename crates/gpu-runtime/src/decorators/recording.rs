// SPDX-License-Identifier: MIT OR Apache-2.0
//! A log of every call.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use metrale_core::{ArenaKind, Arg, MemoryPlan, PointId, RowRange, StepBlock, StepLimits};

use crate::backend::{
    ArenasId, DeviceInfo, Fence, GpuBackend, Kernel, Launch, Loc, Program, Progress, Queue,
};
use crate::error::{BindError, DeviceFault, OutOfMemory, Unresolved};

/// A call with its answer, each with the handles of the backend that was recorded. `poll` is not logged: its answer is a
/// matter of time.
#[derive(Clone, Debug)]
#[allow(missing_docs)] // the fields are the arguments of the method of that name, and `result` its answer
pub enum Call {
    Reserve {
        plan: MemoryPlan,
        limits: StepLimits,
        result: Result<ArenasId, OutOfMemory>,
    },
    Release {
        arenas: ArenasId,
    },
    Resolve {
        point: PointId,
        result: Result<Kernel, Unresolved>,
    },
    Bind {
        arenas: ArenasId,
        points: Vec<(RowRange, Kernel)>,
        args: Vec<Arg>,
        result: Result<Launch, BindError>,
    },
    Record {
        launches: Vec<Launch>,
        bucket: u32,
        result: Result<Program, DeviceFault>,
    },
    Submit {
        queue: Queue,
        program: Program,
        step: StepBlock,
        after: Vec<Fence>,
        result: Result<Fence, DeviceFault>,
    },
    RunOnce {
        launch: Launch,
        step: StepBlock,
        result: Result<(), DeviceFault>,
    },
    Copy {
        queue: Queue,
        arenas: ArenasId,
        dst: Loc,
        src: Loc,
        bytes: u64,
        after: Vec<Fence>,
        result: Result<Fence, DeviceFault>,
    },
    Read {
        arenas: ArenasId,
        src: Loc,
        result: Result<Vec<u8>, DeviceFault>,
        bytes: usize,
    },
    Write {
        arenas: ArenasId,
        dst: Loc,
        data: Vec<u8>,
        result: Result<(), DeviceFault>,
    },
    Wait {
        fence: Fence,
        result: Result<Progress, DeviceFault>,
    },
}

impl Call {
    /// The method.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Call::Reserve { .. } => "reserve",
            Call::Release { .. } => "release",
            Call::Resolve { .. } => "resolve",
            Call::Bind { .. } => "bind",
            Call::Record { .. } => "record",
            Call::Submit { .. } => "submit",
            Call::RunOnce { .. } => "run_once",
            Call::Copy { .. } => "copy",
            Call::Read { .. } => "read",
            Call::Write { .. } => "write",
            Call::Wait { .. } => "wait",
        }
    }
}

/// A backend that logs what is asked of it. The log grows without end: for tests and for catching a fault.
#[derive(Debug)]
pub struct Recording<B> {
    inner: B,
    log: Mutex<Vec<Call>>,
}

impl<B> Recording<B> {
    /// `inner`, logged from now on.
    pub fn new(inner: B) -> Recording<B> {
        Recording {
            inner,
            log: Mutex::new(Vec::new()),
        }
    }

    /// The backend inside.
    pub fn inner(&self) -> &B {
        &self.inner
    }

    /// The log so far, emptied by this.
    pub fn take_log(&self) -> Vec<Call> {
        std::mem::take(&mut self.log.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn push(&self, call: Call) {
        self.log
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(call);
    }
}

impl<B: GpuBackend> GpuBackend for Recording<B> {
    fn device(&self) -> &DeviceInfo {
        self.inner.device()
    }

    fn reserve(&self, plan: &MemoryPlan, limits: &StepLimits) -> Result<ArenasId, OutOfMemory> {
        let result = self.inner.reserve(plan, limits);
        self.push(Call::Reserve {
            plan: plan.clone(),
            limits: *limits,
            result: result.clone(),
        });
        result
    }

    fn release(&self, arenas: ArenasId) {
        self.inner.release(arenas);
        self.push(Call::Release { arenas });
    }

    fn resolve(&self, point: &PointId) -> Result<Kernel, Unresolved> {
        let result = self.inner.resolve(point);
        self.push(Call::Resolve {
            point: point.clone(),
            result: result.clone(),
        });
        result
    }

    fn bind(
        &self,
        arenas: ArenasId,
        points: &[(RowRange, Kernel)],
        args: &[Arg],
    ) -> Result<Launch, BindError> {
        let result = self.inner.bind(arenas, points, args);
        let (points, args) = (points.to_vec(), args.to_vec());
        self.push(Call::Bind {
            arenas,
            points,
            args,
            result: result.clone(),
        });
        result
    }

    fn record(&self, launches: &[Launch], bucket: u32) -> Result<Program, DeviceFault> {
        let result = self.inner.record(launches, bucket);
        let launches = launches.to_vec();
        self.push(Call::Record {
            launches,
            bucket,
            result: result.clone(),
        });
        result
    }

    fn submit(
        &self,
        queue: Queue,
        program: Program,
        step: &StepBlock,
        after: &[Fence],
    ) -> Result<Fence, DeviceFault> {
        let result = self.inner.submit(queue, program, step, after);
        let (step, after) = (step.clone(), after.to_vec());
        self.push(Call::Submit {
            queue,
            program,
            step,
            after,
            result: result.clone(),
        });
        result
    }

    fn run_once(&self, launch: Launch, step: &StepBlock) -> Result<(), DeviceFault> {
        let result = self.inner.run_once(launch, step);
        self.push(Call::RunOnce {
            launch,
            step: step.clone(),
            result: result.clone(),
        });
        result
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
        let result = self.inner.copy(queue, arenas, dst, src, bytes, after);
        let (after, answer) = (after.to_vec(), result.clone());
        self.push(Call::Copy {
            queue,
            arenas,
            dst,
            src,
            bytes,
            after,
            result: answer,
        });
        result
    }

    fn read(&self, arenas: ArenasId, src: Loc, out: &mut [u8]) -> Result<(), DeviceFault> {
        let result = self.inner.read(arenas, src, out);
        let answer = result.clone().map(|()| out.to_vec());
        self.push(Call::Read {
            arenas,
            src,
            result: answer,
            bytes: out.len(),
        });
        result
    }

    fn write(&self, arenas: ArenasId, dst: Loc, data: &[u8]) -> Result<(), DeviceFault> {
        let result = self.inner.write(arenas, dst, data);
        self.push(Call::Write {
            arenas,
            dst,
            data: data.to_vec(),
            result: result.clone(),
        });
        result
    }

    fn poll(&self, fence: Fence) -> Result<Progress, DeviceFault> {
        self.inner.poll(fence)
    }

    fn wait(&self, fence: Fence, timeout: Duration) -> Result<Progress, DeviceFault> {
        let result = self.inner.wait(fence, timeout);
        self.push(Call::Wait {
            fence,
            result: result.clone(),
        });
        result
    }

    fn reserved(&self, kind: ArenaKind) -> u64 {
        self.inner.reserved(kind)
    }
}
