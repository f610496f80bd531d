// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runs one point on given buffers and gives all buffers back. With `TEST_DEVICE=cuda` in the environment: on CUDA device 0.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used)]

use std::sync::{Arc, OnceLock};

use metrale_core::rng::philox4x32_10;
use metrale_core::{
    Access, ArenaKind, Arg, Elem, Extent, MemoryPlan, PointId, RowRange, SampleRow, Span, SpanId,
    StepBlock, StepLayout, StepLimits, Unit,
};
use metrale_gpu_runtime::{
    Checked, CudaBackend, CudaOptions, GpuBackend, HostBackend, HostOptions, Isa, Loc,
};

/// An argument of a call.
#[derive(Clone)]
pub enum A {
    Buf {
        arena: ArenaKind,
        access: Access,
        elem: Elem,
        unit: Unit,
        elems: u64,
        bytes: Vec<u8>,
    },
    U(usize),
    F(f32),
    Step,
}

pub fn f32_bytes(v: &[f32]) -> Vec<u8> {
    v.iter().flat_map(|v| v.to_le_bytes()).collect()
}

pub fn u32_bytes(v: &[u32]) -> Vec<u8> {
    v.iter().flat_map(|v| v.to_le_bytes()).collect()
}

pub fn f32s(bytes: &[u8]) -> Vec<f32> {
    bytes
        .chunks_exact(4)
        .map(|b| f32::from_le_bytes(b.try_into().unwrap()))
        .collect()
}

pub fn u32s(bytes: &[u8]) -> Vec<u32> {
    bytes
        .chunks_exact(4)
        .map(|b| u32::from_le_bytes(b.try_into().unwrap()))
        .collect()
}

/// f32 activations, `elems` per `unit`.
pub fn buf(access: Access, unit: Unit, elems: usize, v: &[f32]) -> A {
    A::Buf {
        arena: ArenaKind::Activations,
        access,
        elem: Elem::F32,
        unit,
        elems: elems as u64,
        bytes: f32_bytes(v),
    }
}

pub fn read(unit: Unit, elems: usize, v: &[f32]) -> A {
    buf(Access::Read, unit, elems, v)
}

pub fn write(unit: Unit, elems: usize, count: usize) -> A {
    buf(Access::Write, unit, elems, &vec![0.0; elems * count])
}

/// Raw bytes of any format; not dead before the launch.
pub fn raw(access: Access, elem: Elem, unit: Unit, elems: usize, bytes: Vec<u8>) -> A {
    A::Buf {
        arena: ArenaKind::State,
        access,
        elem,
        unit,
        elems: elems as u64,
        bytes,
    }
}

/// Bytes of a span that holds `bytes`: a GPU binds for the largest step, and takes no less.
fn room(bytes: usize, elem: Elem, unit: Unit, elems: u64) -> u64 {
    let units = match unit {
        Unit::Row => LIMITS.rows,
        Unit::LogitsRow => LIMITS.logits_rows,
        _ => 0,
    };
    let largest = elem.bytes_for(elems * u64::from(units)).unwrap();
    (bytes as u64).max(if on_gpu() { largest } else { 0 })
}

/// Runs `point` once; the bytes of every buffer argument afterwards, in order.
pub fn call(backend: &dyn GpuBackend, point: &str, args: &[A], step: &StepBlock) -> Vec<Vec<u8>> {
    let mut plan = MemoryPlan::default();
    let mut bound = Vec::new();
    let mut offset = 0;
    for arg in args {
        bound.push(match arg {
            A::Buf {
                arena,
                access,
                elem,
                unit,
                elems,
                bytes,
            } => {
                let span = SpanId(plan.spans.len() as u32);
                let size = room(bytes.len(), *elem, *unit, *elems);
                plan.spans.push(Span {
                    name: format!("s{}", span.0),
                    arena: *arena,
                    offset,
                    bytes: size,
                    elem: *elem,
                    extent: Extent {
                        unit: *unit,
                        elems: *elems,
                    },
                    live: None,
                });
                offset += size.next_multiple_of(MemoryPlan::ALIGN);
                Arg::Buf {
                    span,
                    access: *access,
                }
            }
            A::U(v) => Arg::U32(*v as u32),
            A::F(v) => Arg::F32(*v),
            A::Step => Arg::Step,
        });
    }
    let arenas = backend.reserve(&plan, &LIMITS).unwrap();
    let buffers = args.iter().filter_map(|a| match a {
        A::Buf { bytes, .. } => Some(bytes),
        _ => None,
    });
    for (i, bytes) in buffers.clone().enumerate() {
        backend.write(arenas, place(i), bytes).unwrap();
    }
    let kernel = backend.resolve(&PointId::parse(point).unwrap()).unwrap();
    let launch = backend
        .bind(arenas, &[(RowRange::ALL, kernel)], &bound)
        .unwrap();
    backend.run_once(launch, step).unwrap();
    let out = buffers
        .enumerate()
        .map(|(i, bytes)| {
            let mut out = vec![0; bytes.len()];
            backend.read(arenas, place(i), &mut out).unwrap();
            out
        })
        .collect();
    backend.release(arenas);
    out
}

fn place(span: usize) -> Loc {
    Loc {
        span: SpanId(span as u32),
        offset: 0,
    }
}

/// Backends that must agree to the bit: portable, AVX2 and AVX-512, one thread and three; every launch checked.
pub fn backends() -> Vec<Checked<HostBackend>> {
    let mut out = Vec::new();
    for isa in Isa::available() {
        for threads in [1, 3] {
            let options = HostOptions {
                threads,
                isa: Some(isa),
                ..HostOptions::default()
            };
            out.push(Checked::new(HostBackend::new(&options).unwrap()));
        }
    }
    out
}

/// Whether the tests run on a GPU: the same binaries, carried to a machine that has one.
pub fn on_gpu() -> bool {
    std::env::var_os("TEST_DEVICE").is_some_and(|v| v == "cuda")
}

fn device() -> &'static Checked<CudaBackend> {
    static DEVICE: OnceLock<Checked<CudaBackend>> = OnceLock::new();
    DEVICE.get_or_init(|| Checked::new(CudaBackend::open(&CudaOptions::default()).unwrap()))
}

/// Points whose bits a GPU shares with no host: packed weights have a layout of the class, attention another spec, and softplus
/// another logarithm.
const OWN_BITS: [&str; 8] = [
    "pack/",
    "linear/",
    "expert_linear/",
    "attention/",
    "attention_ext/",
    "latent_attention/",
    "gated_delta/",
    "ssm_scan/",
];

/// Runs the point on the device; holds that the host gives the same bytes, where it must. Tells of it, so that a log shows what
/// has run.
#[allow(clippy::print_stdout)]
fn call_device(point: &str, args: &[A], step: &StepBlock) -> Vec<Vec<u8>> {
    let got = call(device(), point, args, step);
    let own = OWN_BITS.iter().any(|p| point.starts_with(p));
    if !own {
        let host = Checked::new(HostBackend::new(&HostOptions::default()).unwrap());
        let same = got == call(&host, point, args, step);
        assert!(same, "{point}: the device's bits are not the host's");
    }
    println!(
        "{point}: run, {}",
        if own { "own bits" } else { "the host's bits" }
    );
    got
}

/// Runs the point on every backend, holds that all bytes are equal, and gives them.
pub fn call_all(point: &str, args: &[A], step: &StepBlock) -> Vec<Vec<u8>> {
    if on_gpu() {
        return call_device(point, args, step);
    }
    let mut first: Option<Vec<Vec<u8>>> = None;
    for backend in backends() {
        let got = call(&backend, point, args, step);
        match &first {
            None => first = Some(got),
            Some(want) => {
                let info = backend.device();
                assert!(*want == got, "{point}: {} differs", info.name);
            }
        }
    }
    first.unwrap()
}

/// Deterministic numbers.
pub struct Rng(u32);

impl Rng {
    pub fn new(seed: u32) -> Rng {
        Rng(seed << 16)
    }

    pub fn word(&mut self) -> u32 {
        self.0 += 1;
        philox4x32_10([self.0, 0, 0, 0], [7, 7])[0]
    }

    /// Roughly normal, standard deviation 1.
    pub fn normal(&mut self) -> f32 {
        let sum: f32 = (0..12)
            .map(|_| (self.word() >> 8) as f32 / 16_777_216.0)
            .sum();
        sum - 6.0
    }

    pub fn normals(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.normal()).collect()
    }

    pub fn bytes(&mut self, n: usize) -> Vec<u8> {
        (0..n).map(|_| self.word() as u8).collect()
    }
}

pub const LIMITS: StepLimits = StepLimits {
    rows: 1024,
    logits_rows: 16,
    slots: 4,
    blocks_per_slot: 64,
    tables: 1,
    history: 64,
    bias: 64,
    mask_words: 160,
};

pub fn step() -> StepBlock {
    StepBlock::new(Arc::new(StepLayout::new(LIMITS)))
}

/// A step of `rows` rows of slot 0 from position 0, with `logits` greedy logits rows.
pub fn rows(rows: usize, logits: usize) -> StepBlock {
    let mut step = step();
    if rows > 0 {
        step.push_run(0, 0, &vec![1; rows]).unwrap();
    }
    for i in 0..logits {
        step.push_logits(i as u32, &SampleRow::greedy(0), &[], &[])
            .unwrap();
    }
    step
}

/// Rows of queries, keys and values as attention finds them in a pool of `elem`: keys and values rounded head by head.
pub fn stored(qkv: &[f32], elem: Elem, (heads, kv, dim): (usize, usize, usize)) -> Vec<f32> {
    let round = |(at, head): (usize, &[f32])| match at % (heads + 2 * kv) < heads {
        true => head.to_vec(),
        false => metrale_core::kv::round_trip(elem, head),
    };
    qkv.chunks_exact(dim).enumerate().flat_map(round).collect()
}

/// Largest |a - b| relative to the largest |b|.
pub fn relative(a: &[f32], b: &[f64]) -> f64 {
    assert_eq!(a.len(), b.len());
    let scale = b.iter().fold(1e-30f64, |m, v| m.max(v.abs()));
    let worst = a.iter().zip(b).fold(0.0f64, |m, (a, b)| {
        let d = (f64::from(*a) - b).abs();
        if d.is_nan() { f64::INFINITY } else { m.max(d) }
    });
    worst / scale
}
