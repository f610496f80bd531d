// SPDX-License-Identifier: MIT OR Apache-2.0
//! `attention` of one decode row after a context, by KV format: microseconds a layer and bytes of keys and values per second.
//!
//! `cargo bench -p metrale-gpu-runtime --bench attention [-- FORMAT...]`. The shapes are SmolLM2-135M's: 9 heads over 3 key
//! heads of 64, 30 layers with pools of their own, so that they come from memory as they do in a model.
#![allow(clippy::unwrap_used, clippy::print_stdout, missing_docs)]

use std::sync::Arc;
use std::time::{Duration, Instant};

use metrale_core::{
    Access, ArenaKind, Arg, Elem, Extent, KV_BLOCK, MemoryPlan, PointId, RowRange, Span, SpanId,
    StepBlock, StepLayout, StepLimits, Unit, kv,
};
use metrale_gpu_runtime::{GpuBackend, HostBackend, HostOptions, Loc, Queue};

const LAYERS: usize = 30;
const HEADS: u64 = 9;
const KV_HEADS: u64 = 3;
const DIM: u64 = 64;

fn main() {
    let wanted: Vec<String> = std::env::args()
        .skip(1)
        .filter(|a| !a.starts_with('-'))
        .collect();
    for threads in [1, 2] {
        let options = HostOptions {
            threads,
            ..HostOptions::default()
        };
        let backend = HostBackend::new(&options).unwrap();
        println!("{}", backend.device().name);
        for elem in kv::FORMATS {
            if !wanted.is_empty() && !wanted.iter().any(|w| w == elem.name()) {
                continue;
            }
            for context in [128, 1024, 4096, 16384] {
                bench(&backend, elem, context);
            }
        }
    }
}

fn bench(backend: &HostBackend, elem: Elem, context: u32) {
    let blocks = context / KV_BLOCK;
    let block = kv::block_elems(elem, KV_HEADS, DIM).unwrap();
    let pool_bytes = elem.bytes_for(block).unwrap() * u64::from(blocks);
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
    let qkv = (HEADS + 2 * KV_HEADS) * DIM;
    let q = span(Elem::F32, Unit::Row, qkv, 4 * qkv);
    let out = span(Elem::F32, Unit::Row, HEADS * DIM, 4 * HEADS * DIM);
    let tables = span(Elem::U32, Unit::Slot, blocks.into(), 4 * u64::from(blocks));
    let pools: Vec<[SpanId; 2]> = (0..LAYERS)
        .map(|_| [0; 2].map(|_| span(elem, Unit::KvBlock, block, pool_bytes)))
        .collect();
    let limits = StepLimits {
        rows: 1,
        logits_rows: 1,
        slots: 1,
        blocks_per_slot: blocks,
        tables: 1,
        history: 0,
        bias: 0,
        mask_words: 0,
    };
    let arenas = backend.reserve(&plan, &limits).unwrap();
    let write = |span, bytes: &[u8]| {
        let at = Loc { span, offset: 0 };
        backend.write(arenas, at, bytes).unwrap();
    };
    let kernel = backend
        .resolve(&PointId::new("attention", elem.name()))
        .unwrap();
    let launches: Vec<_> = pools
        .iter()
        .map(|[k, v]| {
            let buf = |span, access| Arg::Buf { span, access };
            let args = [
                buf(q, Access::Read),
                buf(*k, Access::Read),
                buf(*v, Access::Read),
                buf(tables, Access::Read),
                buf(out, Access::Write),
                Arg::U32(HEADS as u32),
                Arg::U32(KV_HEADS as u32),
                Arg::U32(DIM as u32),
                Arg::U32(blocks),
                Arg::F32(0.125),
                Arg::Step,
            ];
            let points = [(RowRange::ALL, kernel)];
            backend.bind(arenas, &points, &args).unwrap()
        })
        .collect();
    let entries: Vec<u8> = (0..blocks).flat_map(u32::to_le_bytes).collect();
    write(tables, &entries);
    let values: Vec<u8> = (0..qkv)
        .flat_map(|i| (i as f32 * 0.01).to_le_bytes())
        .collect();
    write(q, &values);
    // Written once: pages that were only read would all be the same page of zeros.
    let bytes: Vec<u8> = (0..pool_bytes).map(|i| (i * 37 % 61) as u8).collect();
    for span in pools.iter().flatten() {
        write(*span, &bytes);
    }
    let program = backend.record(&launches, 1).unwrap();
    let mut step = StepBlock::new(Arc::new(StepLayout::new(limits)));
    step.push_run(0, context - 1, &[0]).unwrap();
    let mut best = f64::INFINITY;
    for i in 0..12 {
        let begin = Instant::now();
        let fence = backend.submit(Queue(0), program, &step, &[]).unwrap();
        backend.wait(fence, Duration::from_secs(60)).unwrap();
        if i > 1 {
            best = best.min(begin.elapsed().as_secs_f64() / LAYERS as f64);
        }
    }
    println!(
        "{elem:8} {context:6} keys: {:8.1} us a layer, {:6.1} GB/s",
        best * 1e6,
        2.0 * pool_bytes as f64 / best / 1e9
    );
    backend.release(arenas);
}
