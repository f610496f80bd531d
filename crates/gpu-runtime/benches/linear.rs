// SPDX-License-Identifier: MIT OR Apache-2.0
//! `linear` by format, shape and rows: weight bytes and products per second.
//!
//! `cargo bench -p metrale-gpu-runtime --bench linear [-- FORMAT...]`
#![allow(clippy::unwrap_used, clippy::print_stdout, missing_docs)]

use std::sync::Arc;
use std::time::{Duration, Instant};

use metrale_core::{
    Access, ArenaKind, Arg, Elem, Extent, MemoryPlan, PointId, RowRange, Span, SpanId, StepBlock,
    StepLayout, StepLimits, Unit,
};
use metrale_gpu_runtime::{GpuBackend, HostBackend, HostOptions, Loc, Queue};
use metrale_host_kernels::packed_bytes;

const ROWS: u32 = 512;

fn main() {
    let wanted: Vec<String> = std::env::args()
        .skip(1)
        .filter(|a| !a.starts_with('-'))
        .collect();
    for threads in [1, 2] {
        let backend = HostBackend::new(&HostOptions {
            threads,
            ..HostOptions::default()
        })
        .unwrap();
        println!("{}", backend.device().name);
        for elem in [
            "q4_1", "q8_0", "q4_0", "q5_0", "q5_1", "q2_k", "q3_k", "q4_k", "q5_k", "q6_k",
            "iq4_nl", "iq4_xs", "mxfp4", "bf16", "f16", "f32",
        ] {
            if !wanted.is_empty() && !wanted.iter().any(|w| w == elem) {
                continue;
            }
            for (n, k) in [(3072, 768), (768, 3072), (49152, 768)] {
                for rows in [1, 2, 4, 8, 16, 128] {
                    if n > 10_000 && rows > 4 {
                        continue;
                    }
                    bench(&backend, Elem::from_name(elem).unwrap(), n, k, rows);
                }
            }
        }
    }
}

fn bench(backend: &HostBackend, elem: Elem, n: u64, k: u64, rows: u32) {
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
    // Several copies of small weights, so that they come from memory as they do in a model.
    let copies = (64_000_000 / weight_bytes).max(1);
    let x = span(
        x_elem,
        Unit::Row,
        k,
        x_elem.bytes_for(k).unwrap() * u64::from(ROWS),
    );
    let none = span(Elem::F32, Unit::One, 1, 4);
    let y = span(Elem::F32, Unit::Row, n, 4 * n * u64::from(ROWS));
    let w: Vec<SpanId> = (0..copies)
        .map(|_| span(elem, Unit::One, n * k, weight_bytes))
        .collect();
    let limits = StepLimits {
        rows: ROWS,
        logits_rows: 1,
        slots: 1,
        blocks_per_slot: 1,
        tables: 1,
        history: 0,
        bias: 0,
    };
    let arenas = backend.reserve(&plan, &limits).unwrap();
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
    let bytes: Vec<u8> = (0..weight_bytes).map(|i| (i * 37 % 64) as u8).collect();
    for span in w {
        backend
            .write(arenas, Loc { span, offset: 0 }, &bytes)
            .unwrap();
    }
    let program = backend.record(&launches, ROWS).unwrap();
    let mut step = StepBlock::new(Arc::new(StepLayout::new(limits)));
    step.push_run(0, 0, &vec![0; rows as usize]).unwrap();
    let mut best = f64::INFINITY;
    for i in 0..6 {
        let begin = Instant::now();
        let fence = backend.submit(Queue(0), program, &step, &[]).unwrap();
        backend.wait(fence, Duration::from_secs(60)).unwrap();
        if i > 0 {
            best = best.min(begin.elapsed().as_secs_f64() / copies as f64);
        }
    }
    println!(
        "{elem:5} {n:6} x {k:5}, {rows:4} rows: {:9.1} us, {:6.1} GB/s of weights, {:7.1} G products/s",
        best * 1e6,
        weight_bytes as f64 / best / 1e9,
        (n * k * u64::from(rows)) as f64 / best / 1e9
    );
    backend.release(arenas);
}
