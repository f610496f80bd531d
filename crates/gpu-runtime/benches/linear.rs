// SPDX-License-Identifier: MIT OR Apache-2.0
//! `linear` by format, shape and rows: products per second with the processor's best instruction set and with the one before
//! it, taken in turns, and what the best gains.
//!
//! `cargo bench -p metrale-gpu-runtime --bench linear [-- FORMAT...]`
#![allow(clippy::unwrap_used, clippy::print_stdout, missing_docs)]

use std::sync::Arc;
use std::time::{Duration, Instant};

use metrale_core::{
    Access, ArenaKind, Arg, Elem, Extent, MemoryPlan, PointId, RowRange, Span, SpanId, StepBlock,
    StepLayout, StepLimits, Unit,
};
use metrale_gpu_runtime::{
    ArenasId, GpuBackend, HostBackend, HostOptions, Isa, Loc, Program, Queue,
};
use metrale_host_kernels::packed_bytes;

/// Most rows of a step.
const ROWS: u32 = 512;
/// Limits of its step.
const LIMITS: StepLimits = StepLimits {
    rows: ROWS,
    logits_rows: 1,
    slots: 1,
    blocks_per_slot: 1,
    tables: 1,
    history: 0,
    bias: 0,
    mask_words: 0,
};
/// Products of a measurement, at least.
const PRODUCTS: u64 = 20_000_000;
/// Turns; the best counts.
const TURNS: usize = 4;

fn main() {
    let wanted: Vec<String> = std::env::args()
        .skip(1)
        .filter(|a| !a.starts_with('-'))
        .collect();
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let all: Vec<Isa> = Isa::available().collect();
    let isas = &all[all.len().saturating_sub(2)..];
    let backends = [1, cores].map(|threads| {
        let one = |isa: &Isa| {
            HostBackend::new(&HostOptions {
                threads,
                isa: Some(*isa),
                ..HostOptions::default()
            })
            .unwrap()
        };
        isas.iter().map(one).collect::<Vec<_>>()
    });
    for elem in [
        "q4_1", "q8_0", "q4_0", "q5_0", "q5_1", "q2_k", "q3_k", "q4_k", "q5_k", "q6_k", "iq4_nl",
        "iq4_xs", "mxfp4", "f8_row", "bf16", "f16", "f32",
    ] {
        if !wanted.is_empty() && !wanted.iter().any(|w| w == elem) {
            continue;
        }
        for (backends, threads) in backends.iter().zip([1, cores]) {
            println!(
                "{}; {threads} threads, G products/s",
                backends[0].device().name
            );
            for (n, k) in [(3072, 768), (4096, 4096)] {
                compare(backends, Elem::from_name(elem).unwrap(), n, k);
            }
        }
    }
}

/// One line for each number of rows.
fn compare(backends: &[HostBackend], elem: Elem, n: u64, k: u64) {
    let linears: Vec<Linear<'_>> = backends
        .iter()
        .map(|b| Linear::new(b, elem, n, k))
        .collect();
    for rows in [1, 4, 8, 16, 32, 128, 256] {
        let products = n * k * rows;
        let repeats = PRODUCTS.div_ceil(products);
        let mut best = vec![f64::INFINITY; linears.len()];
        for turn in 0..TURNS {
            for (linear, best) in linears.iter().zip(&mut best) {
                let seconds = linear.run(rows, repeats);
                if turn > 0 {
                    *best = best.min(seconds);
                }
            }
        }
        print!("{elem:6} {n:5} x {k:5}, {rows:4} rows:");
        for (i, (linear, seconds)) in linears.iter().zip(&best).enumerate() {
            let name = &linear.isa;
            print!("  {name} {:7.1}", products as f64 / seconds / 1e9);
            if i > 0 {
                print!(" ({:.2}x)", best[i - 1] / seconds);
            }
        }
        println!();
    }
}

/// A product of its own weights, so many times that they do not stay in a core's caches.
struct Linear<'a> {
    backend: &'a HostBackend,
    isa: String,
    arenas: ArenasId,
    program: Program,
    copies: u64,
}

impl Linear<'_> {
    fn new(backend: &HostBackend, elem: Elem, n: u64, k: u64) -> Linear<'_> {
        let weight_bytes = packed_bytes(elem, n, k).unwrap();
        let x_elem = if elem.is_block() {
            Elem::A16
        } else {
            Elem::F32
        };
        let mut plan = MemoryPlan::default();
        let mut offset = 0;
        let mut span = |elem, unit, elems: u64, bytes: u64| {
            plan.spans.push(Span {
                name: format!("s{}", plan.spans.len()),
                arena: ArenaKind::State,
                offset,
                bytes,
                elem,
                extent: Extent { unit, elems },
                live: None,
            });
            offset += bytes.next_multiple_of(MemoryPlan::ALIGN);
            SpanId(plan.spans.len() as u32 - 1)
        };
        let copies = (16_000_000 / weight_bytes).clamp(1, 4);
        let x_bytes = x_elem.bytes_for(k).unwrap() * u64::from(ROWS);
        let x = span(x_elem, Unit::Row, k, x_bytes);
        let none = span(Elem::F32, Unit::One, 1, 4);
        let y = span(Elem::F32, Unit::Row, n, 4 * n * u64::from(ROWS));
        let w: Vec<SpanId> = (0..copies)
            .map(|_| span(elem, Unit::One, n * k, weight_bytes))
            .collect();
        let arenas = backend.reserve(&plan, &LIMITS).unwrap();
        let kernel = backend
            .resolve(&PointId::new("linear", elem.name()))
            .unwrap();
        let launches: Vec<_> = w
            .iter()
            .map(|w| {
                let buf = |span, access| Arg::Buf { span, access };
                let args = [
                    buf(x, Access::Read),
                    buf(*w, Access::Read),
                    buf(none, Access::Read),
                    buf(y, Access::Write),
                    Arg::U32(k as u32),
                    Arg::U32(n as u32),
                    Arg::U32(0),
                    Arg::U32(n as u32),
                    Arg::U32(0),
                    Arg::U32(0),
                    Arg::Step,
                ];
                backend
                    .bind(arenas, &[(RowRange::ALL, kernel)], &args)
                    .unwrap()
            })
            .collect();
        // Written once: pages that were only read would all be the same page of zeros.
        let fill = |span, bytes: Vec<u8>| {
            let at = Loc { span, offset: 0 };
            backend.write(arenas, at, &bytes).unwrap();
        };
        // 0.0115 as f32, 15,420 as a step.
        fill(x, vec![0x3c; x_bytes as usize]);
        for span in w {
            fill(
                span,
                (0..weight_bytes).map(|i| (i * 37 % 64) as u8).collect(),
            );
        }
        Linear {
            backend,
            isa: isa_of(backend),
            arenas,
            program: backend.record(&launches, ROWS).unwrap(),
            copies,
        }
    }

    /// Seconds of one product.
    fn run(&self, rows: u64, repeats: u64) -> f64 {
        let mut step = StepBlock::new(Arc::new(StepLayout::new(LIMITS)));
        step.push_run(0, 0, &vec![0; rows as usize]).unwrap();
        let steps = repeats.div_ceil(self.copies);
        let begin = Instant::now();
        for _ in 0..steps {
            let fence = self
                .backend
                .submit(Queue(0), self.program, &step, &[])
                .unwrap();
            self.backend.wait(fence, Duration::from_secs(60)).unwrap();
        }
        begin.elapsed().as_secs_f64() / (steps * self.copies) as f64
    }
}

impl Drop for Linear<'_> {
    fn drop(&mut self) {
        self.backend.release(self.arenas);
    }
}

/// The instruction set is the last word of a backend's name.
fn isa_of(backend: &HostBackend) -> String {
    let name = &backend.device().name;
    name.rsplit(' ').next().unwrap_or_default().to_owned()
}
