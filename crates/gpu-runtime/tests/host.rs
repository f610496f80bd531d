// SPDX-License-Identifier: MIT OR Apache-2.0
//! The host backend: what it refuses, how it orders, how it survives faults.
#![allow(clippy::unwrap_used)]

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::{LIMITS, f32_bytes, f32s, rows, step};
use metrale_core::{
    Access, ArenaKind, Arg, Elem, Extent, MemoryPlan, PointId, RowRange, SampleRow, Span, SpanId,
    StepBlock, StepLayout, Unit,
};
use metrale_gpu_runtime::{
    ArenasId, BindError, Fence, GpuBackend, HostBackend, HostOptions, Launch, Loc, Progress, Queue,
    StartError,
};
use metrale_host_kernels::team::allowed_cores;

fn host() -> HostBackend {
    HostBackend::new(&HostOptions {
        threads: 2,
        ..HostOptions::default()
    })
    .unwrap()
}

fn span(name: &str, offset: u64, bytes: u64, elem: Elem, unit: Unit, elems: u64) -> Span {
    let extent = Extent { unit, elems };
    Span {
        name: name.into(),
        arena: ArenaKind::State,
        offset,
        bytes,
        elem,
        extent,
        live: None,
    }
}

/// 0 `x` and 1 `y`: four rows of eight f32; 2 `w`: eight f32; 3 `ids`: u32; 4 `over`: overlaps `x`.
fn plan() -> MemoryPlan {
    MemoryPlan {
        spans: vec![
            span("x", 0, 128, Elem::F32, Unit::Row, 8),
            span("y", 256, 128, Elem::F32, Unit::Row, 8),
            span("w", 512, 32, Elem::F32, Unit::One, 8),
            span("ids", 768, 128, Elem::U32, Unit::Row, 8),
            span("over", 64, 128, Elem::F32, Unit::Row, 8),
        ],
    }
}

const fn buf(span: u32, access: Access) -> Arg {
    Arg::Buf {
        span: SpanId(span),
        access,
    }
}

fn bind(
    backend: &HostBackend,
    arenas: ArenasId,
    point: &str,
    args: &[Arg],
) -> Result<Launch, BindError> {
    let kernel = backend.resolve(&PointId::parse(point).unwrap()).unwrap();
    backend.bind(arenas, &[(RowRange::ALL, kernel)], args)
}

#[test]
fn binding_refuses_what_does_not_fit_and_says_what() {
    use Access::{Read, ReadWrite, Write};
    let backend = host();
    let arenas = backend.reserve(&plan(), &LIMITS).unwrap();
    let good = [
        buf(0, Read),
        buf(2, Read),
        buf(1, Write),
        Arg::U32(8),
        Arg::F32(1e-5),
        Arg::U32(0),
        Arg::Step,
    ];
    assert!(bind(&backend, arenas, "rmsnorm/f32", &good).is_ok());
    let with = |i: usize, arg: Arg| {
        let mut args = good;
        args[i] = arg;
        bind(&backend, arenas, "rmsnorm/f32", &args)
            .unwrap_err()
            .to_string()
    };
    let cases = [
        (
            with(0, buf(0, ReadWrite)),
            "argument 0 (x): wants Read, got ReadWrite",
        ),
        (
            with(2, buf(9, Write)),
            "argument 2 (y): wants one of 5 spans, got span 9",
        ),
        (
            with(2, buf(3, Write)),
            "argument 2 (y): wants at least 8 f32 values per Row, got ids",
        ),
        (
            with(1, buf(0, Read)),
            "argument 1 (w): wants at least 8 f32 values per One, got x",
        ),
        (
            with(2, buf(4, Write)),
            "argument 2 (y): wants bytes that x does not use",
        ),
        (
            with(3, Arg::F32(8.0)),
            "argument 3 (cols): wants a u32, got an f32",
        ),
        (
            with(3, Arg::U32(9)),
            "argument 0 (x): wants at least 9 f32 values per Row",
        ),
        (with(3, Arg::U32(0)), "cols is 0"),
        (with(5, Arg::U32(2)), "rows_unit is 2"),
        (
            with(6, Arg::U32(2)),
            "argument 6 (step): wants the step block, got a u32",
        ),
    ];
    for (got, want) in cases {
        assert!(
            got.contains("rmsnorm/f32") && got.contains(want),
            "{got}\n  lacks {want}"
        );
    }
    let short = bind(&backend, arenas, "rmsnorm/f32", &good[..6]).unwrap_err();
    assert!(matches!(
        short,
        BindError::Count {
            wanted: 7,
            got: 6,
            ..
        }
    ));
    let none = backend.bind(arenas, &[], &good).unwrap_err();
    assert!(matches!(none, BindError::Points(_)));
    backend.release(arenas);
    assert_eq!(
        bind(&backend, arenas, "rmsnorm/f32", &good),
        Err(BindError::Arenas)
    );
}

#[test]
fn an_unknown_point_names_its_family() {
    let refused = host()
        .resolve(&PointId::new("linear", "f8_e4m3"))
        .unwrap_err()
        .to_string();
    assert!(
        refused.contains("linear/f8_e4m3") && refused.contains("linear/q4_1"),
        "{refused}"
    );
}

/// `x = x + y`, on `x` = 1 and `y` = `delta`.
fn adder(backend: &HostBackend, delta: f32) -> (ArenasId, Launch) {
    let arenas = backend.reserve(&plan(), &LIMITS).unwrap();
    backend
        .write(arenas, at(0), &f32_bytes(&[1.0; 32]))
        .unwrap();
    backend
        .write(arenas, at(1), &f32_bytes(&[delta; 32]))
        .unwrap();
    let args = [
        buf(0, Access::ReadWrite),
        buf(1, Access::Read),
        Arg::U32(8),
        Arg::Step,
    ];
    (arenas, bind(backend, arenas, "add/f32", &args).unwrap())
}

fn at(span: u32) -> Loc {
    Loc {
        span: SpanId(span),
        offset: 0,
    }
}

fn x(backend: &HostBackend, arenas: ArenasId) -> Vec<f32> {
    let mut out = vec![0; 128];
    backend.read(arenas, at(0), &mut out).unwrap();
    f32s(&out)
}

#[test]
fn a_program_serves_any_step_up_to_its_bucket() {
    let backend = host();
    let (arenas, launch) = adder(&backend, 1.0);
    let program = backend.record(&[launch, launch], 3).unwrap();
    for n in [0, 1, 3] {
        let fence = backend.submit(Queue(0), program, &rows(n, 0), &[]).unwrap();
        assert_eq!(backend.wait(fence, Duration::MAX).unwrap(), Progress::Done);
    }
    let got = x(&backend, arenas);
    assert_eq!((got[0], got[8], got[23], got[24]), (5.0, 3.0, 3.0, 1.0));
    let refused = backend
        .submit(Queue(0), program, &rows(4, 0), &[])
        .unwrap_err();
    assert!(
        refused.what.contains("4 rows") && refused.what.contains("at most 3"),
        "{refused}"
    );
}

#[test]
fn submits_run_in_order_and_reads_wait_for_them() {
    let backend = Arc::new(host());
    let (arenas, launch) = adder(&backend, 1.0);
    let program = backend.record(&[launch; 50], 4).unwrap();
    // Steps are copied: the block is filled again while the program runs.
    let mut step = step();
    for i in 0..40 {
        step.clear();
        step.push_run(0, 0, &vec![0; 1 + i % 2]).unwrap();
        backend.submit(Queue(0), program, &step, &[]).unwrap();
    }
    let got = x(&backend, arenas);
    assert_eq!((got[0], got[8], got[16]), (2001.0, 1001.0, 1.0));
}

#[test]
fn copies_are_ordered_with_programs() {
    let backend = host();
    let (arenas, launch) = adder(&backend, 2.0);
    let program = backend.record(&[launch], 4).unwrap();
    backend.submit(Queue(0), program, &rows(4, 0), &[]).unwrap();
    // y = x (now 3), then x = x + y.
    let fence = backend
        .copy(Queue(1), arenas, at(1), at(0), 128, &[])
        .unwrap();
    backend
        .submit(Queue(0), program, &rows(4, 0), &[fence])
        .unwrap();
    assert_eq!(x(&backend, arenas), [6.0; 32]);
    let overlap = Loc {
        span: SpanId(0),
        offset: 4,
    };
    assert!(
        backend
            .copy(Queue(0), arenas, at(0), overlap, 8, &[])
            .is_err()
    );
    assert!(
        backend
            .copy(Queue(0), arenas, at(1), at(0), 129, &[])
            .is_err()
    );
    assert!(
        backend
            .read(
                arenas,
                Loc {
                    span: SpanId(0),
                    offset: 125
                },
                &mut [0; 4]
            )
            .is_err()
    );
    assert!(
        backend
            .write(
                arenas,
                Loc {
                    span: SpanId(0),
                    offset: u64::MAX
                },
                &[0; 4]
            )
            .is_err()
    );
}

#[test]
fn a_kernel_fault_fails_its_fence_alone() {
    let backend = host();
    let vocab = 8;
    let plan = MemoryPlan {
        spans: vec![
            span("table", 0, 256, Elem::F32, Unit::One, 64),
            span("out", 256, 128, Elem::F32, Unit::Row, 8),
        ],
    };
    let arenas = backend.reserve(&plan, &LIMITS).unwrap();
    let args = [
        buf(0, Access::Read),
        buf(1, Access::Write),
        Arg::U32(8),
        Arg::U32(vocab),
        Arg::F32(1.0),
        Arg::Step,
    ];
    let embed = bind(&backend, arenas, "embed/f32", &args).unwrap();
    let program = backend.record(&[embed, embed], 4).unwrap();
    let run = |id: u32| {
        let mut step = step();
        step.push_run(0, 0, &[id]).unwrap();
        let fence = backend.submit(Queue(0), program, &step, &[]).unwrap();
        backend.wait(fence, Duration::MAX)
    };
    assert_eq!(run(vocab - 1).unwrap(), Progress::Done);
    let fault = run(vocab).unwrap_err();
    assert!(!fault.sticky && fault.what.contains("embed/f32"), "{fault}");
    assert!(
        fault.what.contains("token 8") && fault.what.contains("ends at 8"),
        "{fault}"
    );
    assert_eq!(run(0).unwrap(), Progress::Done);
}

#[test]
fn a_row_range_without_a_point_is_a_fault() {
    let backend = host();
    let arenas = backend.reserve(&plan(), &LIMITS).unwrap();
    let kernel = backend.resolve(&PointId::new("add", "f32")).unwrap();
    let args = [
        buf(0, Access::ReadWrite),
        buf(1, Access::Read),
        Arg::U32(8),
        Arg::Step,
    ];
    let launch = backend
        .bind(arenas, &[(RowRange { min: 1, max: 2 }, kernel)], &args)
        .unwrap();
    let program = backend.record(&[launch], 4).unwrap();
    let fence = backend.submit(Queue(0), program, &rows(3, 0), &[]).unwrap();
    let fault = backend.wait(fence, Duration::MAX).unwrap_err();
    assert!(fault.what.contains("no point"), "{fault}");
}

#[test]
fn handles_of_released_things_are_errors() {
    let backend = host();
    let (arenas, launch) = adder(&backend, 1.0);
    let program = backend.record(&[launch], 4).unwrap();
    assert_eq!(backend.reserved(ArenaKind::State), 896);
    backend.submit(Queue(0), program, &rows(4, 0), &[]).unwrap();
    backend.release(arenas);
    backend.release(arenas);
    assert_eq!(backend.reserved(ArenaKind::State), 0);
    assert!(backend.record(&[launch], 4).is_err());
    assert!(backend.submit(Queue(0), program, &rows(4, 0), &[]).is_err());
    assert!(backend.read(arenas, at(0), &mut [0; 4]).is_err());
    assert!(backend.poll(Fence(1000)).is_err());
    let (_, launch) = adder(&backend, 1.0);
    backend.run_once(launch, &rows(1, 0)).unwrap();
    // Run once, then forgotten.
    assert!(backend.run_once(launch, &rows(1, 0)).is_err());
}

#[test]
fn a_plan_larger_than_the_machine_is_refused() {
    let backend = host();
    let big = span("w", 0, 1 << 60, Elem::U8, Unit::One, 1 << 60);
    let refused = backend
        .reserve(&MemoryPlan { spans: vec![big] }, &LIMITS)
        .unwrap_err();
    assert_eq!((refused.arena, refused.needed), (ArenaKind::State, 1 << 60));
    assert_eq!(backend.reserved(ArenaKind::State), 0);
}

#[test]
fn steps_of_other_limits_do_not_mix() {
    let backend = host();
    let (arenas, launch) = adder(&backend, 1.0);
    let program = backend.record(&[launch], 4).unwrap();
    let mut small = LIMITS;
    small.rows = 2;
    let mut other = StepBlock::new(Arc::new(StepLayout::new(small)));
    other.push_run(0, 0, &[1, 1]).unwrap();
    other
        .push_logits(0, &SampleRow::greedy(1), &[], &[])
        .unwrap();
    for step in [&rows(1, 0), &other, &rows(1, 0)] {
        backend.submit(Queue(0), program, step, &[]).unwrap();
    }
    let got = x(&backend, arenas);
    assert_eq!((got[0], got[8]), (4.0, 2.0));
}

#[test]
fn threads_are_pinned_to_cores_that_there_are_or_not_at_all() {
    let start = |threads, affinity: &[usize]| {
        HostBackend::new(&HostOptions {
            threads,
            affinity: affinity.to_vec(),
            ..HostOptions::default()
        })
    };
    let core = allowed_cores()[0];
    let pinned = start(0, &[core]).unwrap();
    assert!(pinned.device().name.contains(", 1 threads"));
    let error = start(2, &[core]).unwrap_err();
    assert!(matches!(
        error,
        StartError::Cores {
            threads: 2,
            cores: 1
        }
    ));
    let said = |cores: &[usize]| start(0, cores).unwrap_err().to_string();
    let twice = said(&[core, core]);
    assert!(twice.contains(&format!("core {core} twice")), "{twice}");
    let none = said(&[core, 100_000]);
    assert!(none.contains("core 100000; it can be one of"), "{none}");
}
