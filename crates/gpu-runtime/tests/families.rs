// SPDX-License-Identifier: MIT OR Apache-2.0
//! Every kernel family against plain f64 arithmetic, on every instruction set and thread count with equal bits.
#![allow(clippy::unwrap_used, clippy::needless_range_loop)]

mod common;

use common::{
    A, Rng, buf, call_all, f32s, raw, read, relative, rows, step, stored, u32_bytes, write,
};
use metrale_core::{Access, Elem, Unit, kv};

/// Rounding of f32.
const EPS: f64 = 1.0 / 16_777_216.0;

#[test]
fn rmsnorm_and_its_fusion_with_add() {
    for (cols, n) in [(64, 1), (100, 3), (576, 17)] {
        let mut rng = Rng::new(1);
        let (res, delta, w) = (
            rng.normals(cols * n),
            rng.normals(cols * n),
            rng.normals(cols),
        );
        let step = rows(n, 0);
        let y = |x: &[f32]| -> Vec<f64> {
            x.chunks(cols)
                .flat_map(|row| {
                    let ss: f64 = row.iter().map(|v| f64::from(*v).powi(2)).sum();
                    let r = 1.0 / (ss / cols as f64 + 1e-5).sqrt();
                    row.iter()
                        .zip(&w)
                        .map(move |(x, w)| f64::from(*x) * r * f64::from(*w))
                })
                .collect()
        };
        let tail = [A::U(cols), A::F(1e-5)];
        let mut args = vec![
            read(Unit::Row, cols, &res),
            read(Unit::One, cols, &w),
            write(Unit::Row, cols, n),
        ];
        args.extend(tail.clone());
        args.extend([A::U(0), A::Step]);
        let out = call_all("rmsnorm/f32", &args, &step);
        assert!(relative(&f32s(&out[2]), &y(&res)) < 16.0 * EPS);

        let mut args = vec![
            buf(Access::ReadWrite, Unit::Row, cols, &res),
            read(Unit::Row, cols, &delta),
            read(Unit::One, cols, &w),
            write(Unit::Row, cols, n),
        ];
        args.extend(tail);
        args.push(A::Step);
        let out = call_all("add_rmsnorm/f32", &args, &step);
        let sum: Vec<f32> = res.iter().zip(&delta).map(|(a, b)| a + b).collect();
        assert_eq!(f32s(&out[0]), sum);
        assert!(relative(&f32s(&out[3]), &y(&sum)) < 16.0 * EPS);
    }
}

#[test]
fn linear_with_float_weights() {
    for (name, elem) in [("f32", Elem::F32), ("bf16", Elem::BF16), ("f16", Elem::F16)] {
        for (n, k, m) in [(8, 8, 1), (13, 40, 2), (72, 300, 9), (200, 576, 5)] {
            let mut rng = Rng::new(2);
            let w = rng.normals(n * k);
            let (disk, w): (Vec<u8>, Vec<f32>) = match elem {
                Elem::F32 => (common::f32_bytes(&w), w),
                Elem::BF16 => {
                    let w: Vec<_> = w.into_iter().map(half::bf16::from_f32).collect();
                    let bytes = w.iter().flat_map(|v| v.to_le_bytes()).collect();
                    (bytes, w.iter().map(|v| v.to_f32()).collect())
                }
                _ => {
                    let w: Vec<_> = w.into_iter().map(half::f16::from_f32).collect();
                    let bytes = w.iter().flat_map(|v| v.to_le_bytes()).collect();
                    (bytes, w.iter().map(|v| v.to_f32()).collect())
                }
            };
            let packed = pack(name, elem, n, k, disk);
            let (x, bias) = (rng.normals(m * k), rng.normals(n));
            let args = [
                read(Unit::Row, k, &x),
                raw(Access::Read, elem, Unit::One, n * k, packed),
                read(Unit::One, n, &bias),
                write(Unit::Row, n + 5, m),
                A::U(k),
                A::U(n),
                A::U(3),
                A::U(n + 5),
                A::U(1),
                A::U(0),
                A::Step,
            ];
            let out = call_all(&format!("linear/{name}"), &args, &rows(m, 0));
            let mut want = Vec::new();
            for x in x.chunks(k) {
                for (w, bias) in w.chunks(k).zip(&bias) {
                    let products = x.iter().zip(w).map(|(x, w)| f64::from(*x) * f64::from(*w));
                    want.push(f64::from(*bias) + products.sum::<f64>());
                }
            }
            let mut got = Vec::new();
            for row in f32s(&out[3]).chunks(n + 5) {
                got.extend(&row[3..3 + n]);
                // The other columns still hold what the decorator put there.
                let outside = row[..3].iter().chain(&row[3 + n..]);
                assert!(outside.map(|v| v.to_bits()).all(|v| v == u32::MAX));
            }
            // A chain of up to 256, in units of the largest output.
            let worst = relative(&got, &want);
            assert!(worst < 64.0 * EPS, "{name} {n} {k} {m}: {worst}");
        }
    }
}

/// Packs in two launches that split a group.
fn pack(name: &str, elem: Elem, n: usize, k: usize, disk: Vec<u8>) -> Vec<u8> {
    let bytes = metrale_host_kernels::packed_bytes(elem, n as u64, k as u64).unwrap() as usize;
    let row = elem.bytes_for(k as u64).unwrap() as usize;
    let first = n / 2;
    let mut dst = vec![0xa5; bytes];
    for (begin, end) in [(0, first), (first, n)] {
        let args = [
            raw(
                Access::Read,
                Elem::U8,
                Unit::One,
                0,
                disk[begin * row..end * row].to_vec(),
            ),
            raw(Access::Write, elem, Unit::One, n * k, dst),
            A::U(end - begin),
            A::U(k),
            A::U(begin),
            A::U(n),
        ];
        dst = call_all(&format!("pack/{name}"), &args, &step())
            .pop()
            .unwrap();
    }
    dst
}

#[test]
fn embed_gives_the_rows_of_the_table() {
    let (vocab, hidden) = (21, 24);
    let mut rng = Rng::new(3);
    let table = rng.normals(vocab * hidden);
    let packed = pack("f32", Elem::F32, vocab, hidden, common::f32_bytes(&table));
    let ids = [20, 0, 7, 8, 13, 13];
    let mut step = step();
    step.push_run(1, 4, &ids).unwrap();
    let args = [
        raw(Access::Read, Elem::F32, Unit::One, vocab * hidden, packed),
        write(Unit::Row, hidden, ids.len()),
        A::U(hidden),
        A::U(vocab),
        A::F(2.0),
        A::Step,
    ];
    let out = call_all("embed/f32", &args, &step);
    let want: Vec<f32> = ids
        .iter()
        .flat_map(|id| {
            table[*id as usize * hidden..][..hidden]
                .iter()
                .map(|v| v * 2.0)
        })
        .collect();
    assert_eq!(f32s(&out[1]), want);
}

#[test]
fn rope_turns_pairs_by_their_angle() {
    let (heads, kv, dim, rot) = (2, 1, 12, 8);
    let mut rng = Rng::new(4);
    let inv_freq: Vec<f32> = (0..rot / 2).map(|i| 0.1f32.powi(i)).collect();
    let rot = rot as usize;
    let mut step = step();
    step.push_run(0, 0, &[1, 1, 1]).unwrap();
    step.push_run(2, 7000, &[1]).unwrap();
    let out = call_all(
        "rope_angles/f32",
        &[
            read(Unit::One, rot / 2, &inv_freq),
            write(Unit::Row, rot, 4),
            A::U(rot),
            A::F(1.0),
            A::Step,
        ],
        &step,
    );
    let cs = f32s(&out[1]);
    let qkv = rng.normals(4 * (heads + 2 * kv) * dim);
    let out = call_all(
        "rope/f32",
        &[
            buf(Access::ReadWrite, Unit::Row, (heads + 2 * kv) * dim, &qkv),
            read(Unit::Row, rot, &cs),
            A::U(heads),
            A::U(kv),
            A::U(dim),
            A::U(rot),
            A::Step,
        ],
        &step,
    );
    let mut want: Vec<f64> = qkv.iter().map(|v| f64::from(*v)).collect();
    for (r, position) in [0.0f32, 1.0, 2.0, 7000.0].into_iter().enumerate() {
        for h in 0..heads + kv {
            for i in 0..rot / 2 {
                let at = (r * (heads + 2 * kv) + h) * dim + i;
                let (s, c) = f64::from(position * inv_freq[i]).sin_cos();
                let (a, b) = (want[at], want[at + rot / 2]);
                want[at] = a * c - b * s;
                want[at + rot / 2] = b * c + a * s;
            }
        }
    }
    assert!(relative(&f32s(&out[0]), &want) < 4.0 * EPS);
}

#[test]
fn qk_norm_leaves_v() {
    let (heads, kv, dim, n) = (4, 2, 16, 3);
    let mut rng = Rng::new(5);
    let cols = (heads + 2 * kv) * dim;
    let (qkv, qw, kw) = (rng.normals(n * cols), rng.normals(dim), rng.normals(dim));
    let out = call_all(
        "qk_norm/f32",
        &[
            buf(Access::ReadWrite, Unit::Row, cols, &qkv),
            read(Unit::One, dim, &qw),
            read(Unit::One, dim, &kw),
            A::U(heads),
            A::U(kv),
            A::U(dim),
            A::F(1e-6),
            A::Step,
        ],
        &rows(n, 0),
    );
    let mut want: Vec<f64> = qkv.iter().map(|v| f64::from(*v)).collect();
    for row in want.chunks_mut(cols) {
        for (h, head) in row.chunks_mut(dim).take(heads + kv).enumerate() {
            let w = if h < heads { &qw } else { &kw };
            let ss: f64 = head.iter().map(|v| v * v).sum();
            for (v, w) in head.iter_mut().zip(w) {
                *v = *v / (ss / dim as f64 + 1e-6).sqrt() * f64::from(*w);
            }
        }
    }
    assert!(relative(&f32s(&out[0]), &want) < 16.0 * EPS);
}

#[test]
fn swiglu_is_silu_times_up() {
    for ffn in [8, 1030, 1536] {
        let mut rng = Rng::new(6);
        let gu = rng.normals(2 * 2 * ffn);
        let args = [
            read(Unit::Row, 2 * ffn, &gu),
            write(Unit::Row, ffn, 2),
            A::U(ffn),
            A::Step,
        ];
        let out = call_all("swiglu/f32", &args, &rows(2, 0));
        let want: Vec<f64> = gu
            .chunks(2 * ffn)
            .flat_map(|row| {
                let (g, u) = row.split_at(ffn);
                g.iter()
                    .zip(u)
                    .map(|(g, u)| f64::from(*g) / (1.0 + (-f64::from(*g)).exp()) * f64::from(*u))
            })
            .collect();
        assert!(relative(&f32s(&out[1]), &want) < 8.0 * EPS);
    }
}

#[test]
fn attention_over_paged_kv_is_softmax() {
    let (heads, kv_heads, per_slot, blocks) = (6, 2, 64, 70);
    for dim in [16, 20, 64] {
        // Two sequences: a chunk that crosses the cut at 256, and a decode row; blocks scattered over the pool.
        let (chunk, decode) = (280, 37);
        let cols = (heads + 2 * kv_heads) * dim;
        let mut rng = Rng::new(7);
        let mut step = step();
        step.push_run(2, 0, &vec![1; chunk]).unwrap();
        step.push_run(0, 0, &vec![1; decode]).unwrap();
        for i in 0..per_slot as u32 {
            step.push_delta(2, i, (i * 37 + 5) % 43 + 20).unwrap();
            step.push_delta(0, i, i % 20).unwrap();
        }
        let n = chunk + decode;
        let qkv = rng.normals(n * cols);
        let entries = 4 * per_slot;
        let tables = raw(
            Access::ReadWrite,
            Elem::U32,
            Unit::Slot,
            per_slot,
            u32_bytes(&vec![u32::MAX; entries]),
        );
        let out = call_all(
            "tables/u32",
            &[tables, A::U(0), A::U(entries), A::Step],
            &step,
        );
        let tables = raw(
            Access::Read,
            Elem::U32,
            Unit::Slot,
            per_slot,
            out[0].clone(),
        );
        for elem in kv::FORMATS {
            let kv_name = elem.name();
            let per_block = kv::block_elems(elem, kv_heads as u64, dim as u64).unwrap() as usize;
            let bytes = elem.bytes_for((blocks * per_block) as u64).unwrap() as usize;
            let pool = raw(
                Access::Write,
                elem,
                Unit::KvBlock,
                per_block,
                vec![0; bytes],
            );
            let shape = [A::U(heads), A::U(kv_heads), A::U(dim), A::U(per_slot)];
            let mut args = vec![
                read(Unit::Row, cols, &qkv),
                pool.clone(),
                pool,
                tables.clone(),
            ];
            args.extend(shape.clone());
            args.push(A::Step);
            let out = call_all(&format!("kv_write/{kv_name}"), &args, &step);
            let mut args = vec![
                read(Unit::Row, cols, &qkv),
                raw(Access::Read, elem, Unit::KvBlock, per_block, out[1].clone()),
                raw(Access::Read, elem, Unit::KvBlock, per_block, out[2].clone()),
                tables.clone(),
                write(Unit::Row, heads * dim, n),
            ];
            args.extend(shape);
            args.extend([A::F(0.3), A::Step]);
            let out = call_all(&format!("attention/{kv_name}"), &args, &step);
            let held = stored(&qkv, elem, (heads, kv_heads, dim));
            let shape = (heads, kv_heads, dim);
            let want = softmax_attention(&held, [(0, chunk), (chunk, n)], shape, 0.3);
            let worst = relative(&f32s(&out[4]), &want);
            assert!(worst < 64.0 * EPS, "{kv_name} {dim}: {worst}");
        }
    }
}

fn softmax_attention(
    qkv: &[f32],
    runs: [(usize, usize); 2],
    (heads, kv, dim): (usize, usize, usize),
    scale: f64,
) -> Vec<f64> {
    let cols = (heads + 2 * kv) * dim;
    let at = |r: usize, h: usize, d: usize| f64::from(qkv[r * cols + h * dim + d]);
    let mut out = Vec::new();
    for (begin, end) in runs {
        for r in begin..end {
            for h in 0..heads {
                let g = h / (heads / kv);
                let scores: Vec<f64> = (begin..=r)
                    .map(|j| {
                        scale
                            * (0..dim)
                                .map(|d| at(r, h, d) * at(j, heads + g, d))
                                .sum::<f64>()
                    })
                    .collect();
                let max = scores.iter().fold(f64::MIN, |a, b| a.max(*b));
                let p: Vec<f64> = scores.iter().map(|s| (s - max).exp()).collect();
                let sum: f64 = p.iter().sum();
                for d in 0..dim {
                    let o = p
                        .iter()
                        .zip(begin..)
                        .map(|(p, j)| p * at(j, heads + kv + g, d));
                    out.push(o.sum::<f64>() / sum);
                }
            }
        }
    }
    out
}
