// SPDX-License-Identifier: MIT OR Apache-2.0
//! The kernel families of model variants against plain f64 arithmetic: windows, sinks, caps, latents.
#![allow(clippy::unwrap_used)]

mod common;

use common::{A, Rng, call_all, f32s, raw, read, relative, step, stored, u32_bytes, write};
use metrale_core::{Access, Elem, KV_BLOCK, StepBlock, Unit, kv};

/// Rounding of f32.
const EPS: f64 = 1.0 / 16_777_216.0;
const PER_SLOT: usize = 64;

/// A chunk that crosses the cut at 256 and a decode row's sequence, blocks scattered over the pool.
fn paged(chunk: usize, decode: usize) -> (StepBlock, A) {
    let mut step = step();
    step.push_run(2, 0, &vec![1; chunk]).unwrap();
    step.push_run(0, 0, &vec![1; decode]).unwrap();
    let mut tables = vec![u32::MAX; 4 * PER_SLOT];
    for i in 0..PER_SLOT {
        tables[2 * PER_SLOT + i] = ((i * 37 + 5) % 43 + 20) as u32;
        tables[i] = (i % 20) as u32;
    }
    let tables = raw(
        Access::Read,
        Elem::U32,
        Unit::Slot,
        PER_SLOT,
        u32_bytes(&tables),
    );
    (step, tables)
}

const BLOCKS: usize = 70;

fn pool(elem: Elem, per_block: usize, fill: u8) -> A {
    let bytes = elem.bytes_for((BLOCKS * per_block) as u64).unwrap() as usize;
    raw(
        Access::Write,
        elem,
        Unit::KvBlock,
        per_block,
        vec![fill; bytes],
    )
}

/// One row's softmax over `(score, value)`, a sink's logit in the sum.
fn soft(
    scores: &[f64],
    value: impl Fn(usize, usize) -> f64,
    dim: usize,
    sink: Option<f64>,
) -> Vec<f64> {
    let max = scores.iter().copied().chain(sink).fold(f64::MIN, f64::max);
    let p: Vec<f64> = scores.iter().map(|s| (s - max).exp()).collect();
    let sum: f64 = p.iter().sum::<f64>() + sink.map_or(0.0, |s| (s - max).exp());
    (0..dim)
        .map(|d| {
            p.iter()
                .enumerate()
                .map(|(j, p)| p * value(j, d))
                .sum::<f64>()
                / sum
        })
        .collect()
}

#[test]
fn attention_with_window_cap_and_sinks() {
    let (heads, kv_heads, chunk, decode) = (6, 2, 280, 37);
    let n = chunk + decode;
    for (dim, window, cap, sinks) in [
        (16, 0, 0.0, false),
        (16, 24, 0.0, true),
        (20, 300, 5.0, false),
        (64, 1, 2.0, true),
    ] {
        let cols = (heads + 2 * kv_heads) * dim;
        let mut rng = Rng::new(7);
        let (step, tables) = paged(chunk, decode);
        let qkv = rng.normals(n * cols);
        let sink = rng.normals(heads);
        for elem in kv::FORMATS {
            let name = elem.name();
            let per_block = kv::block_elems(elem, kv_heads as u64, dim as u64).unwrap() as usize;
            let shape = [A::U(heads), A::U(kv_heads), A::U(dim), A::U(PER_SLOT)];
            // What is never written is NaN: out of reach must be out of mind.
            let mut args = vec![
                read(Unit::Row, cols, &qkv),
                pool(elem, per_block, 0xff),
                pool(elem, per_block, 0xff),
                tables.clone(),
            ];
            args.extend(shape.clone());
            args.push(A::Step);
            let out = call_all(&format!("kv_write/{name}"), &args, &step);
            let written =
                |i: usize| raw(Access::Read, elem, Unit::KvBlock, per_block, out[i].clone());
            let mut args = vec![
                read(Unit::Row, cols, &qkv),
                written(1),
                written(2),
                tables.clone(),
            ];
            let plain = args.clone();
            args.push(read(Unit::One, heads, if sinks { &sink } else { &[] }));
            args.push(write(Unit::Row, heads * dim, n));
            args.extend(shape.clone());
            args.extend([
                A::U(window),
                A::U(usize::from(sinks)),
                A::F(0.3),
                A::F(cap),
                A::Step,
            ]);
            let got = call_all(&format!("attention_ext/{name}"), &args, &step);
            let mut want = Vec::new();
            let held = stored(&qkv, elem, (heads, kv_heads, dim));
            let at = |r: usize, h: usize, d: usize| f64::from(held[r * cols + h * dim + d]);
            for (begin, end) in [(0, chunk), (chunk, n)] {
                for r in begin..end {
                    for h in 0..heads {
                        let g = h / (heads / kv_heads);
                        let first = if window == 0 {
                            begin
                        } else {
                            begin.max((r + 1).saturating_sub(window))
                        };
                        let scores: Vec<f64> = (first..=r)
                            .map(|j| {
                                let dot: f64 =
                                    (0..dim).map(|d| at(r, h, d) * at(j, heads + g, d)).sum();
                                let score = 0.3 * dot;
                                let cap = f64::from(cap);
                                if cap > 0.0 {
                                    cap * (score / cap).tanh()
                                } else {
                                    score
                                }
                            })
                            .collect();
                        let sink = sinks.then(|| f64::from(sink[h]));
                        want.extend(soft(
                            &scores,
                            |j, d| at(first + j, heads + kv_heads + g, d),
                            dim,
                            sink,
                        ));
                    }
                }
            }
            let worst = relative(&f32s(&got[5]), &want);
            assert!(worst < 64.0 * EPS, "{name} {dim} {window}: {worst}");
            if window == 0 && cap == 0.0 && !sinks {
                let mut args = plain;
                args.push(write(Unit::Row, heads * dim, n));
                args.extend(shape);
                args.extend([A::F(0.3), A::Step]);
                let same = call_all(&format!("attention/{name}"), &args, &step);
                assert_eq!(
                    got[5], same[4],
                    "{name}: with nothing extended, the bits of attention"
                );
            }
        }
    }
}

#[test]
fn latent_attention_is_attention_over_latent_and_rotated_key() {
    let (chunk, decode) = (280, 37);
    let n = chunk + decode;
    let mut shapes = vec![(4, 32, 8, 24), (11, 24, 4, 12), (3, 20, 6, 6)];
    // A head as models have them; elsewhere it takes long.
    if common::on_gpu() {
        shapes.push((2, 512, 64, 192));
    }
    for (heads, rank, rot, head_dim) in shapes {
        let cols = rank + rot;
        let mut rng = Rng::new(8);
        let (step, tables) = paged(chunk, decode);
        let x = rng.normals(n * cols);
        let (lat, q) = (
            rng.normals(n * heads * rank),
            rng.normals(n * heads * head_dim),
        );
        let per_block = KV_BLOCK as usize * cols;
        for (name, elem, eps) in [
            ("f32", Elem::F32, 64.0 * EPS),
            ("bf16", Elem::BF16, 2e-2),
            ("f16", Elem::F16, 2e-3),
        ] {
            let args = [
                read(Unit::Row, cols, &x),
                pool(elem, per_block, 0xff),
                tables.clone(),
                A::U(cols),
                A::U(PER_SLOT),
                A::Step,
            ];
            let out = call_all(&format!("latent_write/{name}"), &args, &step);
            let args = [
                read(Unit::Row, heads * rank, &lat),
                read(Unit::Row, heads * head_dim, &q),
                raw(Access::Read, elem, Unit::KvBlock, per_block, out[1].clone()),
                tables.clone(),
                write(Unit::Row, heads * rank, n),
                A::U(heads),
                A::U(head_dim),
                A::U(rank),
                A::U(rot),
                A::U(PER_SLOT),
                A::F(0.2),
                A::Step,
            ];
            let got = call_all(&format!("latent_attention/{name}"), &args, &step);
            let mut want = Vec::new();
            let stored = |r: usize, d: usize| f64::from(x[r * cols + d]);
            for (begin, end) in [(0, chunk), (chunk, n)] {
                for r in begin..end {
                    for h in 0..heads {
                        let query = |d: usize| match d.checked_sub(rank) {
                            None => f64::from(lat[(r * heads + h) * rank + d]),
                            Some(d) => f64::from(q[(r * heads + h + 1) * head_dim - rot + d]),
                        };
                        let score = |j: usize| {
                            0.2 * (0..cols).map(|d| query(d) * stored(j, d)).sum::<f64>()
                        };
                        let scores: Vec<f64> = (begin..=r).map(score).collect();
                        want.extend(soft(&scores, |j, d| stored(begin + j, d), rank, None));
                    }
                }
            }
            let worst = relative(&f32s(&got[4]), &want);
            assert!(worst < eps, "{name} {heads}: {worst}");
        }
    }
}
