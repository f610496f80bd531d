// SPDX-License-Identifier: MIT OR Apache-2.0
//! Steps of a model with the shapes of SmolLM2-135M (Q4_1, tied Q8_0 head, f16 KV) and random weights: whole steps, and
//! each kind of launch by itself.
//!
//! `cargo bench -p metrale-gpu-runtime --bench smollm2 [-- THREADS...]`
#![allow(clippy::unwrap_used, clippy::print_stdout, missing_docs)]

use std::sync::Arc;
use std::time::{Duration, Instant};

use metrale_core::{
    Access, ArenaKind, Arg, Elem, Extent, MemoryPlan, PointId, RowRange, SampleRow, Span, SpanId,
    StepBlock, StepLayout, StepLimits, Unit,
};
use metrale_gpu_runtime::{
    ArenasId, GpuBackend, HostBackend, HostOptions, Launch, Loc, Program, Queue,
};
use metrale_host_kernels::packed_bytes;

const LAYERS: usize = 30;
const HIDDEN: u64 = 576;
const FFN: u64 = 1536;
const HEADS: u64 = 9;
const KV: u64 = 3;
const DIM: u64 = 64;
const QKV: u64 = (HEADS + 2 * KV) * DIM;
const VOCAB: u64 = 49152;
const LIMITS: StepLimits = StepLimits {
    rows: 512,
    logits_rows: 8,
    slots: 8,
    blocks_per_slot: 64,
    tables: 1,
    history: 0,
    bias: 0,
    mask_words: 0,
};

fn main() {
    let wanted: Vec<usize> = std::env::args().filter_map(|a| a.parse().ok()).collect();
    let threads = if wanted.is_empty() {
        vec![1, 2]
    } else {
        wanted
    };
    for threads in threads {
        let backend = HostBackend::new(&HostOptions {
            threads,
            ..HostOptions::default()
        })
        .unwrap();
        println!("{}", backend.device().name);
        let model = Model::new(&backend);
        model.measure("decode at 16", &[(0, 16, 1)]);
        model.measure("decode at 128", &[(0, 128, 1)]);
        model.measure("decode at 1000", &[(0, 1000, 1)]);
        let crowd: Vec<_> = (0..8).map(|slot| (slot, 128, 1)).collect();
        model.measure("8 decodes at 128", &crowd);
        model.measure("prefill of 512", &[(0, 0, 512)]);
    }
}

struct Model<'a> {
    backend: &'a HostBackend,
    launches: Vec<(&'static str, Launch)>,
    arenas: ArenasId,
}

#[derive(Default)]
struct Plan {
    plan: MemoryPlan,
    ends: [u64; 6],
}

impl Plan {
    fn span(&mut self, arena: ArenaKind, elem: Elem, unit: Unit, elems: u64, bytes: u64) -> SpanId {
        let end = &mut self.ends[arena as usize];
        let span = Span {
            name: format!("s{}", self.plan.spans.len()),
            arena,
            offset: *end,
            bytes,
            elem,
            extent: Extent { unit, elems },
            live: None,
        };
        *end += bytes.next_multiple_of(MemoryPlan::ALIGN);
        self.plan.spans.push(span);
        SpanId(self.plan.spans.len() as u32 - 1)
    }

    fn rows(&mut self, elem: Elem, unit: Unit, elems: u64) -> SpanId {
        let n = if unit == Unit::Row {
            LIMITS.rows
        } else {
            LIMITS.logits_rows
        };
        let bytes = elem.bytes_for(elems).unwrap() * u64::from(n);
        self.span(ArenaKind::Activations, elem, unit, elems, bytes)
    }

    fn weight(&mut self, elem: Elem, n: u64, k: u64) -> SpanId {
        let bytes = packed_bytes(elem, n, k).unwrap();
        self.span(ArenaKind::Weights, elem, Unit::One, n * k, bytes)
    }

    fn vector(&mut self, n: u64) -> SpanId {
        self.span(ArenaKind::Weights, Elem::F32, Unit::One, n, 4 * n)
    }
}

fn r(span: SpanId) -> Arg {
    Arg::Buf {
        span,
        access: Access::Read,
    }
}
fn w(span: SpanId) -> Arg {
    Arg::Buf {
        span,
        access: Access::Write,
    }
}
fn rw(span: SpanId) -> Arg {
    Arg::Buf {
        span,
        access: Access::ReadWrite,
    }
}
fn u(v: u64) -> Arg {
    Arg::U32(v as u32)
}

impl<'a> Model<'a> {
    fn new(backend: &'a HostBackend) -> Model<'a> {
        let mut p = Plan::default();
        let mut groups: Vec<(&'static str, Vec<Arg>)> = Vec::new();
        let (row, logits) = (Unit::Row, Unit::LogitsRow);
        let [res, cs, qkv, a, delta, gu] =
            [HIDDEN, DIM, QKV, HIDDEN, HIDDEN, 2 * FFN].map(|n| p.rows(Elem::F32, row, n));
        let [n8, h8] = [HIDDEN, FFN].map(|n| p.rows(Elem::A16, row, n));
        let gathered = p.rows(Elem::F32, logits, HIDDEN);
        let g8 = p.rows(Elem::A16, logits, HIDDEN);
        let out = p.rows(Elem::F32, logits, VOCAB);
        let [token, top, status] = [1, 40, 1].map(|n| p.rows(Elem::U32, logits, n));
        let logprob = p.rows(Elem::F32, logits, 1);
        let (none, freq) = (p.vector(1), p.vector(DIM / 2));
        let embed = p.weight(Elem::Q8_0, VOCAB, HIDDEN);
        let per_slot = u64::from(LIMITS.blocks_per_slot);
        let slots = u64::from(LIMITS.slots);
        let tables = p.span(
            ArenaKind::State,
            Elem::U32,
            Unit::Slot,
            per_slot,
            4 * per_slot * slots,
        );
        let linear = |x, weight, y, k, n, unit: u64| {
            let end = [u(k), u(n), u(0), u(n), u(0), u(unit), Arg::Step];
            [vec![r(x), r(weight), r(none), w(y)], end.to_vec()].concat()
        };
        let heads = [u(HEADS), u(KV), u(DIM)];
        let step = Arg::Step;
        groups.push((
            "tables/u32",
            vec![
                rw(tables),
                u(0),
                u(u64::from(LIMITS.slots * LIMITS.blocks_per_slot)),
                step,
            ],
        ));
        let args = vec![r(embed), w(res), u(HIDDEN), u(VOCAB), Arg::F32(1.0), step];
        groups.push(("embed/q8_0", args));
        groups.push((
            "rope_angles/f32",
            vec![r(freq), w(cs), u(DIM), Arg::F32(1.0), step],
        ));
        for layer in 0..LAYERS {
            let [n1, n2] = [HIDDEN, HIDDEN].map(|n| p.vector(n));
            let [wqkv, wo, wgu, wdown] = [
                (QKV, HIDDEN),
                (HIDDEN, HIDDEN),
                (2 * FFN, HIDDEN),
                (HIDDEN, FFN),
            ]
            .map(|(n, k)| p.weight(Elem::Q4_1, n, k));
            let block = KV * 16 * DIM;
            let [k, v] = [0, 1].map(|_| {
                let bytes = 2 * block * per_slot * slots;
                p.span(ArenaKind::Kv, Elem::F16, Unit::KvBlock, block, bytes)
            });
            let eps = Arg::F32(1e-5);
            if layer == 0 {
                let args = vec![r(res), r(n1), w(n8), u(HIDDEN), eps, u(0), step];
                groups.push(("rmsnorm_quantize/a16", args));
            } else {
                let args = vec![rw(res), r(delta), r(n1), w(n8), u(HIDDEN), eps, step];
                groups.push(("add_rmsnorm_quantize/a16", args));
            }
            groups.push(("linear/q4_1", linear(n8, wqkv, qkv, HIDDEN, QKV, 0)));
            let args = [vec![rw(qkv), r(cs)], heads.to_vec(), vec![u(DIM), step]].concat();
            groups.push(("rope/f32", args));
            let end = vec![u(per_slot), step];
            let args = [vec![r(qkv), w(k), w(v), r(tables)], heads.to_vec(), end].concat();
            groups.push(("kv_write/f16", args));
            let end = vec![u(per_slot), Arg::F32(0.125), step];
            let args = [
                vec![r(qkv), r(k), r(v), r(tables), w(a)],
                heads.to_vec(),
                end,
            ]
            .concat();
            groups.push(("attention/f16", args));
            groups.push(("quantize/a16", vec![r(a), w(n8), u(HIDDEN), u(0), step]));
            groups.push(("linear/q4_1", linear(n8, wo, delta, HIDDEN, HIDDEN, 0)));
            let args = vec![rw(res), r(delta), r(n2), w(n8), u(HIDDEN), eps, step];
            groups.push(("add_rmsnorm_quantize/a16", args));
            groups.push(("linear/q4_1", linear(n8, wgu, gu, HIDDEN, 2 * FFN, 0)));
            groups.push(("swiglu_quantize/a16", vec![r(gu), w(h8), u(FFN), step]));
            groups.push(("linear/q4_1", linear(h8, wdown, delta, FFN, HIDDEN, 0)));
        }
        let last = p.vector(HIDDEN);
        let args = vec![r(res), r(delta), w(gathered), u(HIDDEN), u(1), step];
        groups.push(("gather_rows/f32", args));
        let args = vec![
            r(gathered),
            r(last),
            w(g8),
            u(HIDDEN),
            Arg::F32(1e-5),
            u(1),
            step,
        ];
        groups.push(("rmsnorm_quantize/a16", args));
        groups.push(("linear/q8_0", linear(g8, embed, out, HIDDEN, VOCAB, 1)));
        let args = vec![
            rw(out),
            w(token),
            w(logprob),
            w(top),
            w(status),
            u(VOCAB),
            step,
        ];
        groups.push(("sample/f32", args));

        let arenas = backend.reserve(&p.plan, &LIMITS).unwrap();
        for (i, span) in p.plan.spans.iter().enumerate() {
            if span.arena == ArenaKind::Weights {
                // Bytes below 0x30 are small f16 scales, and some integers.
                let bytes: Vec<u8> = (0..span.bytes).map(|b| (b * 31 % 47) as u8).collect();
                backend
                    .write(
                        arenas,
                        Loc {
                            span: SpanId(i as u32),
                            offset: 0,
                        },
                        &bytes,
                    )
                    .unwrap();
            }
        }
        let mut launches = Vec::new();
        for (point, args) in groups {
            let kernel = backend.resolve(&PointId::parse(point).unwrap()).unwrap();
            let launch = backend
                .bind(arenas, &[(RowRange::ALL, kernel)], &args)
                .unwrap();
            launches.push((point, launch));
        }
        Model {
            backend,
            launches,
            arenas,
        }
    }

    /// `runs`: slot, first position, rows; one logits row each.
    fn measure(&self, name: &str, runs: &[(u32, u32, usize)]) {
        let mut step = StepBlock::new(Arc::new(StepLayout::new(LIMITS)));
        let mut rows = 0;
        for (slot, position, n) in runs {
            for i in 0..LIMITS.blocks_per_slot {
                step.push_delta(*slot, i, slot * LIMITS.blocks_per_slot + i)
                    .unwrap();
            }
            step.push_run(*slot, *position, &vec![7; *n]).unwrap();
            rows += n;
            step.push_logits(rows as u32 - 1, &SampleRow::greedy(0), &[], &[])
                .unwrap();
        }
        let all: Vec<_> = self.launches.iter().map(|(_, l)| *l).collect();
        let whole = self.time(&self.record(&all), &step);
        println!(
            "{name}: {:.2} ms, {:.0} tokens/s",
            whole * 1e3,
            rows as f64 / whole
        );
        let mut points: Vec<_> = self.launches.iter().map(|(p, _)| *p).collect();
        points.sort_unstable();
        points.dedup();
        for point in points {
            let of: Vec<_> = self
                .launches
                .iter()
                .filter(|(p, _)| *p == point)
                .map(|(_, l)| *l)
                .collect();
            let t = self.time(&self.record(&of), &step);
            println!(
                "  {point:24} x{:<4} {:9.1} us, {:5.1} %",
                of.len(),
                t * 1e6,
                t / whole * 100.0
            );
        }
    }

    fn record(&self, launches: &[Launch]) -> Program {
        self.backend.record(launches, LIMITS.rows).unwrap()
    }

    /// Median of some runs, in seconds.
    fn time(&self, program: &Program, step: &StepBlock) -> f64 {
        let mut times: Vec<f64> = (0..9)
            .map(|_| {
                let begin = Instant::now();
                let fence = self.backend.submit(Queue(0), *program, step, &[]).unwrap();
                self.backend.wait(fence, Duration::from_secs(60)).unwrap();
                begin.elapsed().as_secs_f64()
            })
            .collect();
        times.sort_by(f64::total_cmp);
        times[times.len() / 2]
    }
}

impl Drop for Model<'_> {
    fn drop(&mut self) {
        self.backend.release(self.arenas);
    }
}
