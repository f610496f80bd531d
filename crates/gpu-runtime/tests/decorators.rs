// SPDX-License-Identifier: MIT OR Apache-2.0
//! What each decorator promises.
#![allow(clippy::unwrap_used)]

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::{LIMITS, f32_bytes, rows};
use metrale_core::{
    Access, ArenaKind, Arg, Elem, Extent, MemoryPlan, PointId, RowRange, Span, SpanId, StepBlock,
    StepLimits, Unit,
};
use metrale_gpu_runtime::{
    ArenasId, BindError, Checked, DeviceFault, DeviceInfo, FaultPlan, Faulty, Fence, GpuBackend,
    HostBackend, HostOptions, Isa, Kernel, Launch, Loc, OutOfMemory, Program, Progress, Queue,
    Recording, Unresolved, replay,
};

fn host(threads: usize, isa: Isa) -> HostBackend {
    HostBackend::new(&HostOptions {
        threads,
        isa: Some(isa),
        ..HostOptions::default()
    })
    .unwrap()
}

const ROWS: u64 = 4;
const COLS: u64 = 8;

/// `res`, `delta` and an unrelated `other`, four rows of eight each, and one weight.
fn plan() -> MemoryPlan {
    let span = |i: u64, name: &str, arena| Span {
        name: name.into(),
        arena,
        offset: i * 256,
        bytes: ROWS * COLS * 4,
        elem: Elem::F32,
        extent: Extent {
            unit: Unit::Row,
            elems: COLS,
        },
        live: None,
    };
    MemoryPlan {
        spans: vec![
            span(0, "res", ArenaKind::Activations),
            span(1, "delta", ArenaKind::Activations),
            span(2, "other", ArenaKind::Activations),
            span(0, "weight", ArenaKind::Weights),
        ],
    }
}

const RES: SpanId = SpanId(0);
const DELTA: SpanId = SpanId(1);
const OTHER: SpanId = SpanId(2);

fn at(span: SpanId, offset: u64) -> Loc {
    Loc { span, offset }
}

/// Binds `add`, writes `res` and `delta`, runs it on two rows, reads `res`.
fn session(backend: &dyn GpuBackend) -> Result<Vec<u8>, DeviceFault> {
    let arenas = backend.reserve(&plan(), &LIMITS).unwrap();
    let kernel = backend.resolve(&PointId::new("add", "f32")).unwrap();
    let args = [
        Arg::Buf {
            span: RES,
            access: Access::ReadWrite,
        },
        Arg::Buf {
            span: DELTA,
            access: Access::Read,
        },
        Arg::U32(COLS as u32),
        Arg::Step,
    ];
    let launch = backend
        .bind(arenas, &[(RowRange::ALL, kernel)], &args)
        .unwrap();
    let program = backend.record(&[launch], 4)?;
    backend.write(arenas, at(RES, 0), &f32_bytes(&[1.0; 32]))?;
    backend.write(arenas, at(DELTA, 0), &f32_bytes(&[0.5; 32]))?;
    let fence = backend.submit(Queue(0), program, &rows(2, 0), &[])?;
    backend.wait(fence, Duration::from_secs(10))?;
    let mut out = vec![0; 128];
    backend.read(arenas, at(RES, 0), &mut out)?;
    backend.release(arenas);
    Ok(out)
}

fn expected() -> Vec<u8> {
    let mut want = vec![1.5; 16];
    want.extend([1.0; 16]);
    f32_bytes(&want)
}

/// Writes a byte somewhere after each submit, as a broken kernel would.
struct Vandal {
    inner: HostBackend,
    at: Loc,
    arenas: std::sync::Mutex<Option<ArenasId>>,
}

impl GpuBackend for Vandal {
    fn device(&self) -> &DeviceInfo {
        self.inner.device()
    }
    fn reserve(&self, plan: &MemoryPlan, limits: &StepLimits) -> Result<ArenasId, OutOfMemory> {
        let arenas = self.inner.reserve(plan, limits)?;
        *self.arenas.lock().unwrap() = Some(arenas);
        Ok(arenas)
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
        self.inner.record(launches, bucket)
    }
    fn submit(
        &self,
        queue: Queue,
        program: Program,
        step: &StepBlock,
        after: &[Fence],
    ) -> Result<Fence, DeviceFault> {
        let fence = self.inner.submit(queue, program, step, after)?;
        let arenas = self.arenas.lock().unwrap().unwrap();
        self.inner.write(arenas, self.at, &[1])?;
        Ok(fence)
    }
    fn run_once(&self, launch: Launch, step: &StepBlock) -> Result<(), DeviceFault> {
        self.inner.run_once(launch, step)
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

#[test]
fn checked_lets_a_right_kernel_pass() {
    assert_eq!(
        session(&Checked::new(host(2, Isa::detect()))).unwrap(),
        expected()
    );
}

#[test]
fn checked_names_what_was_written_wrongly() {
    // A span that the launch only reads, one that it does not use, a weight, the rows past the live two of the span that
    // it writes, and a red zone (the first of the activation arena follows the plan's four spans).
    let cases = [
        (at(DELTA, 5), "byte 5 of delta, which it does not declare"),
        (at(OTHER, 0), "byte 0 of other, which it does not declare"),
        (
            at(SpanId(3), 3),
            "byte 3 of weight, which it does not declare",
        ),
        (at(RES, 64), "byte 64 of res, past the step's live rows"),
        (at(SpanId(6), 9), "byte 9 of the red zone before res"),
        (at(SpanId(7), 0), "byte 0 of the red zone after res"),
    ];
    for (at, want) in cases {
        let vandal = Vandal {
            inner: host(1, Isa::PORTABLE),
            at,
            arenas: None.into(),
        };
        let fault = session(&Checked::new(vandal)).unwrap_err();
        assert!(
            fault.what.contains(want) && fault.what.contains("add/f32"),
            "{}",
            fault.what
        );
    }
    let inside = Vandal {
        inner: host(1, Isa::PORTABLE),
        at: at(RES, 63),
        arenas: None.into(),
    };
    assert!(session(&Checked::new(inside)).is_ok());
}

#[test]
fn checked_shows_what_is_read_before_it_is_written() {
    let backend = Checked::new(host(1, Isa::PORTABLE));
    let arenas = backend.reserve(&plan(), &LIMITS).unwrap();
    let kernel = backend
        .resolve(&PointId::new("gather_rows", "f32"))
        .unwrap();
    // Gathers one of two rows: the row that no logits row fills stays poison.
    let mut logits = plan();
    logits.spans[1].extent.unit = Unit::LogitsRow;
    let laid = backend.reserve(&logits, &LIMITS).unwrap();
    let args = [
        Arg::Buf {
            span: RES,
            access: Access::Read,
        },
        Arg::Buf {
            span: OTHER,
            access: Access::Read,
        },
        Arg::Buf {
            span: DELTA,
            access: Access::Write,
        },
        Arg::U32(COLS as u32),
        Arg::U32(0),
        Arg::Step,
    ];
    let launch = backend
        .bind(laid, &[(RowRange::ALL, kernel)], &args)
        .unwrap();
    backend.run_once(launch, &rows(2, 1)).unwrap();
    let mut out = vec![0; 64];
    backend.read(laid, at(DELTA, 0), &mut out).unwrap();
    assert_eq!(out[..32], [0; 32]);
    assert_eq!(out[32..], [0xff; 32]);
    backend.release(arenas);
}

#[test]
fn a_recording_replays_on_another_backend() {
    let recording = Recording::new(host(1, Isa::PORTABLE));
    assert_eq!(session(&recording).unwrap(), expected());
    let mut log = recording.take_log();
    let names: Vec<_> = log.iter().map(metrale_gpu_runtime::Call::name).collect();
    assert_eq!(
        names,
        [
            "reserve", "resolve", "bind", "record", "write", "write", "submit", "wait", "read",
            "release"
        ]
    );
    let other = host(2, Isa::detect());
    // Handles that differ from the recorded ones.
    other.reserve(&plan(), &LIMITS).unwrap();
    replay(&log, &other).unwrap();
    if let metrale_gpu_runtime::Call::Read {
        result: Ok(bytes), ..
    } = &mut log[8]
    {
        bytes[6] ^= 1;
    }
    let divergence = replay(&log, &other).unwrap_err();
    assert_eq!((divergence.index, divergence.call), (8, "read"));
    assert!(divergence.what.contains("byte 6"), "{divergence}");
}

#[test]
fn every_allocation_can_fail_and_leaves_nothing() {
    for (k, arena) in [(0, ArenaKind::Weights), (1, ArenaKind::Activations)] {
        let plan_of = FaultPlan {
            allocation: Some(k),
            ..FaultPlan::default()
        };
        let faulty = Faulty::new(host(1, Isa::PORTABLE), plan_of);
        let refused = faulty.reserve(&plan(), &LIMITS).unwrap_err();
        assert_eq!(refused.arena, arena);
        assert!(ArenaKind::ALL.iter().all(|k| faulty.reserved(*k) == 0));
        // The next try goes well.
        assert_eq!(session(&faulty).unwrap(), expected());
    }
}

#[test]
fn a_hang_is_a_fence_that_stays_pending() {
    let plan_of = FaultPlan {
        hang: Some(1),
        ..FaultPlan::default()
    };
    let faulty: Arc<dyn GpuBackend> = Arc::new(Faulty::new(host(1, Isa::PORTABLE), plan_of));
    assert_eq!(session(&*faulty).unwrap(), expected());
    let arenas = faulty.reserve(&plan(), &LIMITS).unwrap();
    let program = faulty.record(&[], 1).unwrap();
    let fence = faulty.submit(Queue(0), program, &rows(1, 0), &[]).unwrap();
    assert_eq!(
        faulty.wait(fence, Duration::from_secs(3600)).unwrap(),
        Progress::Running
    );
    assert_eq!(faulty.poll(fence).unwrap(), Progress::Running);
    faulty.release(arenas);
}

#[test]
fn a_lost_device_stays_lost() {
    let plan_of = FaultPlan {
        lose: Some(0),
        ..FaultPlan::default()
    };
    let faulty = Faulty::new(host(1, Isa::PORTABLE), plan_of);
    let fault = session(&faulty).unwrap_err();
    assert!(fault.sticky);
    let arenas = faulty.reserve(&plan(), &LIMITS).unwrap();
    assert!(
        faulty
            .read(arenas, at(RES, 0), &mut [0])
            .unwrap_err()
            .sticky
    );
    assert!(faulty.poll(Fence(1)).unwrap_err().sticky);
}
