// SPDX-License-Identifier: MIT OR Apache-2.0
//! A log of every call, and its replay on another backend.

use std::collections::HashMap;
use std::hash::Hash;
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

/// Where a replay went another way than the log.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("call {index} ({call}) of the log: {what}")]
pub struct Divergence {
    /// Index in the log.
    pub index: usize,
    /// The method.
    pub call: &'static str,
    /// What differs.
    pub what: String,
}

/// Handles of the log, and what they are on the backend of the replay.
struct Map<T>(HashMap<T, T>);

impl<T: Copy + Eq + Hash> Map<T> {
    fn of(&self, recorded: T) -> T {
        // A handle that the log never gave is as unknown to the other backend as to the first.
        self.0.get(&recorded).copied().unwrap_or(recorded)
    }

    /// Notes the pair if both calls went well; differs if only one did.
    fn note<E: std::fmt::Display, F: std::fmt::Display>(
        &mut self,
        recorded: &Result<T, E>,
        got: Result<T, F>,
    ) -> Result<(), String> {
        if let (Ok(a), Ok(b)) = (recorded, &got) {
            self.0.insert(*a, *b);
        }
        same(recorded, &got)
    }
}

/// Both went well, or neither.
fn same<T, U, E: std::fmt::Display, F: std::fmt::Display>(
    recorded: &Result<T, E>,
    got: &Result<U, F>,
) -> Result<(), String> {
    match (recorded, got) {
        (Ok(_), Ok(_)) | (Err(_), Err(_)) => Ok(()),
        (Ok(_), Err(e)) => Err(format!("went well, and now fails: {e}")),
        (Err(e), Ok(_)) => Err(format!("failed ({e}), and now goes well")),
    }
}

/// Makes the calls of a log on another backend. Every call must succeed or fail as it did, and every read must give the
/// same bytes; waits have no timeout.
///
/// # Errors
/// [`Divergence`], the first.
pub fn replay(log: &[Call], on: &dyn GpuBackend) -> Result<(), Divergence> {
    let mut arenas_of = Map(HashMap::new());
    let mut kernels = Map(HashMap::new());
    let mut launches_of = Map(HashMap::new());
    let mut programs = Map(HashMap::new());
    let mut fences = Map(HashMap::new());
    for (index, call) in log.iter().enumerate() {
        let outcome = match call {
            Call::Reserve {
                plan,
                limits,
                result,
            } => arenas_of.note(result, on.reserve(plan, limits)),
            Call::Release { arenas } => {
                on.release(arenas_of.of(*arenas));
                Ok(())
            }
            Call::Resolve { point, result } => kernels.note(result, on.resolve(point)),
            Call::Bind {
                arenas,
                points,
                args,
                result,
            } => {
                let points: Vec<_> = points.iter().map(|(r, k)| (*r, kernels.of(*k))).collect();
                launches_of.note(result, on.bind(arenas_of.of(*arenas), &points, args))
            }
            Call::Record {
                launches,
                bucket,
                result,
            } => {
                let launches: Vec<_> = launches.iter().map(|l| launches_of.of(*l)).collect();
                programs.note(result, on.record(&launches, *bucket))
            }
            Call::Submit {
                queue,
                program,
                step,
                after,
                result,
            } => {
                let after: Vec<_> = after.iter().map(|f| fences.of(*f)).collect();
                fences.note(
                    result,
                    on.submit(*queue, programs.of(*program), step, &after),
                )
            }
            Call::RunOnce {
                launch,
                step,
                result,
            } => same(result, &on.run_once(launches_of.of(*launch), step)),
            Call::Copy {
                queue,
                arenas,
                dst,
                src,
                bytes,
                after,
                result,
            } => {
                let after: Vec<_> = after.iter().map(|f| fences.of(*f)).collect();
                let arenas = arenas_of.of(*arenas);
                fences.note(result, on.copy(*queue, arenas, *dst, *src, *bytes, &after))
            }
            Call::Read {
                arenas,
                src,
                result,
                bytes,
            } => {
                let mut out = vec![0; *bytes];
                let got = on.read(arenas_of.of(*arenas), *src, &mut out);
                same(result, &got).and_then(|()| match result {
                    Ok(want) if *want != out => Err(first_difference(want, &out)),
                    _ => Ok(()),
                })
            }
            Call::Write {
                arenas,
                dst,
                data,
                result,
            } => same(result, &on.write(arenas_of.of(*arenas), *dst, data)),
            Call::Wait { fence, result } => {
                same(result, &on.wait(fences.of(*fence), Duration::MAX))
            }
        };
        outcome.map_err(|what| Divergence {
            index,
            call: call.name(),
            what,
        })?;
    }
    Ok(())
}

fn first_difference(want: &[u8], got: &[u8]) -> String {
    let at = want.iter().zip(got).position(|(a, b)| a != b).unwrap_or(0);
    format!(
        "byte {at} of {} was {:#04x} and is {:#04x}",
        want.len(),
        want[at],
        got[at]
    )
}
