// SPDX-License-Identifier: MIT OR Apache-2.0
//! Routers, experts, gates, and norms and rotation of parts of heads, against plain f64 arithmetic.
#![allow(clippy::unwrap_used)]

mod common;

use common::{
    A, Rng, buf, call_all, f32s, on_gpu, raw, read, relative, rows, step, u32_bytes, u32s, write,
};
use metrale_core::numeric::dequantize::dequantize;
use metrale_core::{Access, Elem, Unit};

/// Rounding of f32.
const EPS: f64 = 1.0 / 16_777_216.0;

/// What a router gives for one row of logits.
fn route(logits: &[f32], bias: &[f32], shape: [usize; 5], scale: f32) -> (Vec<u32>, Vec<f32>) {
    let [top_k, score, renorm, groups, top_groups] = shape;
    let experts = logits.len();
    let args = [
        read(Unit::Row, experts, logits),
        read(Unit::One, bias.len(), bias),
        raw(
            Access::Write,
            Elem::U32,
            Unit::Row,
            top_k,
            vec![0; 4 * top_k],
        ),
        write(Unit::Row, top_k, 1),
        A::U(experts),
        A::U(top_k),
        A::U(score),
        A::U(renorm),
        A::U(groups),
        A::U(top_groups),
        A::U(usize::from(!bias.is_empty())),
        A::F(scale),
        A::Step,
    ];
    let out = call_all("router/f32", &args, &rows(1, 0));
    (u32s(&out[2]), f32s(&out[3]))
}

fn near(got: &[f32], want: &[f64]) {
    let worst = relative(got, want);
    assert!(worst < 32.0 * EPS, "{got:?} {want:?}");
}

#[test]
fn routers_choose_and_weigh() {
    let logits = [1.0, 3.0, -2.0, 3.0, 0.5, 2.0, -1.0, 0.0];
    let exp = |i: usize| f64::from(logits[i]).exp();
    let all: f64 = (0..8).map(exp).sum();
    // Softmax over all; equal logits go to the lower id.
    let (ids, weights) = route(&logits, &[], [3, 0, 0, 1, 1], 1.0);
    assert_eq!(ids, [1, 3, 5]);
    near(&weights, &[exp(1) / all, exp(3) / all, exp(5) / all]);
    let (_, weights) = route(&logits, &[], [3, 0, 1, 1, 1], 1.0);
    let sum = exp(1) + exp(3) + exp(5);
    near(&weights, &[exp(1) / sum, exp(3) / sum, exp(5) / sum]);
    // Softmax over the chosen ones is the same function, renormalised.
    let (ids, weights) = route(&logits, &[], [3, 1, 0, 1, 1], 1.0);
    assert_eq!(ids, [1, 3, 5]);
    near(&weights, &[exp(1) / sum, exp(3) / sum, exp(5) / sum]);
    // Sigmoid: the bias chooses, and does not weigh.
    let sigmoid = |i: usize| 1.0 / (1.0 + (-f64::from(logits[i])).exp());
    let bias = [0.0, -1.0, 0.0, 0.0, 0.0, 0.0, 0.9, 0.0];
    let (ids, weights) = route(&logits, &bias, [2, 2, 0, 1, 1], 2.5);
    assert_eq!(ids, [6, 3]);
    near(&weights, &[2.5 * sigmoid(6), 2.5 * sigmoid(3)]);
    // Groups of four: the second is better by its best two, though the best expert stands in the first.
    let logits = [5.0, -9.0, -9.0, -9.0, 3.0, 2.0, 1.0, 0.0];
    let (ids, _) = route(&logits, &[], [2, 3, 0, 2, 1], 1.0);
    assert_eq!(ids, [4, 5]);
}

#[test]
fn experts_have_the_bits_of_linear() {
    let (experts, n, k, slots, m) = (5, 16, 40, 3, 9);
    let mut rng = Rng::new(4);
    let w = rng.normals(experts * n * k);
    let bias = rng.normals(experts * n);
    let pack = |w: &[f32]| {
        let total = w.len() / k;
        let bytes = metrale_host_kernels::packed_bytes(Elem::F32, total as u64, k as u64).unwrap();
        let args = [
            raw(Access::Read, Elem::U8, Unit::One, 0, common::f32_bytes(w)),
            raw(
                Access::Write,
                Elem::F32,
                Unit::One,
                w.len(),
                vec![0; bytes as usize],
            ),
            A::U(total),
            A::U(k),
            A::U(0),
            A::U(total),
        ];
        let packed = call_all("pack/f32", &args, &step()).pop().unwrap();
        raw(Access::Read, Elem::F32, Unit::One, w.len(), packed)
    };
    let ids: Vec<u32> = (0..m * slots)
        .map(|_| rng.word() % experts as u32)
        .collect();
    // One x for all slots with columns that are not read, then an x of its own for each.
    for (x_slots, x_ld) in [(1, k + 3), (slots, k)] {
        let x = rng.normals(m * x_slots * x_ld);
        let y_ld = n + 8;
        let args = [
            read(Unit::Row, x_slots * x_ld, &x),
            raw(Access::Read, Elem::U32, Unit::Row, slots, u32_bytes(&ids)),
            pack(&w),
            read(Unit::One, experts * n, &bias),
            write(Unit::Row, slots * y_ld, m),
            A::U(k),
            A::U(n),
            A::U(experts),
            A::U(slots),
            A::U(x_slots),
            A::U(x_ld),
            A::U(8),
            A::U(y_ld),
            A::U(1),
            A::U(1),
            A::Step,
        ];
        let got = f32s(&call_all("expert_linear/f32", &args, &rows(m, 0))[4]);
        for pair in 0..m * slots {
            let e = ids[pair] as usize;
            let from = if x_slots == 1 { pair / slots } else { pair } * x_ld;
            let args = [
                read(Unit::Row, k, &x[from..from + k]),
                pack(&w[e * n * k..(e + 1) * n * k]),
                read(Unit::One, n, &bias[e * n..(e + 1) * n]),
                write(Unit::Row, n, 1),
                A::U(k),
                A::U(n),
                A::U(0),
                A::U(n),
                A::U(1),
                A::U(0),
                A::Step,
            ];
            let want = f32s(&call_all("linear/f32", &args, &rows(1, 0))[3]);
            assert_eq!(got[pair * y_ld + 8..(pair + 1) * y_ld], want, "pair {pair}");
        }
    }
}

/// Many experts in groups, of all sizes: the chosen are the best of the best groups, in order, and weigh as they should.
#[test]
fn routers_of_many_experts_choose_the_best() {
    let mut rng = Rng::new(7);
    for (experts, top_k, groups, top_groups, score) in [
        (256, 8, 8, 4, 2),
        (64, 6, 1, 1, 0),
        (129, 8, 3, 2, 2),
        (33, 4, 1, 1, 1),
        (512, 10, 1, 1, 0),
        (5, 5, 1, 1, 3),
    ] {
        for _ in 0..8 {
            let (logits, bias) = (rng.normals(experts), rng.normals(experts));
            let shape = [top_k, score, 1, groups, top_groups];
            let (ids, weights) = route(&logits, &bias, shape, 1.5);
            let all: f64 = logits.iter().map(|l| f64::from(*l).exp()).sum();
            let scored = |e: usize| {
                let l = f64::from(logits[e]);
                match score {
                    0 => l.exp() / all,
                    2 => 1.0 / (1.0 + (-l).exp()),
                    _ => l,
                }
            };
            let by = |e: usize| scored(e) + f64::from(bias[e]);
            let size = experts / groups;
            let of = |g: usize| {
                let mut best: Vec<f64> = (g * size..(g + 1) * size).map(by).collect();
                best.sort_by(|a, b| b.total_cmp(a));
                best.iter().take(2).sum::<f64>()
            };
            let mut order: Vec<usize> = (0..groups).collect();
            order.sort_by(|a, b| of(*b).total_cmp(&of(*a)));
            let kept = &order[..top_groups];
            let mut want: Vec<usize> = (0..experts)
                .filter(|e| kept.contains(&(e / size)))
                .collect();
            want.sort_by(|a, b| by(*b).total_cmp(&by(*a)));
            want.truncate(top_k);
            assert_eq!(ids, want.iter().map(|e| *e as u32).collect::<Vec<_>>());
            let raw: Vec<f64> = want
                .iter()
                .map(|e| match score {
                    1 => f64::from(logits[*e]).exp(),
                    _ => scored(*e),
                })
                .collect();
            // Weights of score 3 may cancel: their sum is no measure of them.
            if score != 3 {
                let sum: f64 = raw.iter().sum();
                near(
                    &weights,
                    &raw.iter().map(|w| 1.5 * w / sum).collect::<Vec<_>>(),
                );
            }
        }
    }
}

/// Stacks in every format, by both schedules where a device has two: few rows, and rows that stand in several groups of eight.
#[test]
fn experts_of_every_format() {
    let (experts, n, k, slots) = (7, 40, 320, 3);
    let mut rng = Rng::new(8);
    for elem in [Elem::F32, Elem::BF16, Elem::F16, Elem::Mxfp4] {
        // The host multiplies it with activations in a format of their own (quantized.rs).
        if elem == Elem::Mxfp4 && !on_gpu() {
            continue;
        }
        let name = elem.name();
        let total = experts * n;
        let disk: Vec<u8> = match elem {
            Elem::F32 => common::f32_bytes(&rng.normals(total * k)),
            Elem::BF16 => (rng.normals(total * k).iter())
                .flat_map(|v| half::bf16::from_f32(*v).to_le_bytes())
                .collect(),
            Elem::F16 => (rng.normals(total * k).iter())
                .flat_map(|v| half::f16::from_f32(*v).to_le_bytes())
                .collect(),
            _ => {
                let mut bytes = rng.bytes(total * k / 32 * 17);
                bytes
                    .chunks_exact_mut(17)
                    .for_each(|b| b[0] = 118 + b[0] % 8);
                bytes
            }
        };
        let mut w = vec![0.0; total * k];
        dequantize(elem, &disk, &mut w).unwrap();
        let bytes = metrale_host_kernels::packed_bytes(elem, total as u64, k as u64).unwrap();
        let packed = raw(
            Access::Write,
            elem,
            Unit::One,
            w.len(),
            vec![0; bytes as usize],
        );
        let args = [
            raw(Access::Read, Elem::U8, Unit::One, 0, disk),
            packed,
            A::U(total),
            A::U(k),
            A::U(0),
            A::U(total),
        ];
        let packed = call_all(&format!("pack/{name}"), &args, &step());
        let bias = rng.normals(total);
        for m in [1, 4, 9, 150] {
            // Without ids a slot's expert is the slot.
            for has_ids in [true, false] {
                let slots = if has_ids { slots } else { experts };
                let x = rng.normals(m * k);
                let ids: Vec<u32> = (0..m * slots)
                    .map(|_| rng.word() % experts as u32)
                    .collect();
                let (elem_of_ids, unit) = match has_ids {
                    true => (Elem::U32, Unit::Row),
                    false => (Elem::F32, Unit::One),
                };
                let (given, per) = if has_ids {
                    (&ids[..], slots)
                } else {
                    (&[][..], 0)
                };
                let args = [
                    read(Unit::Row, k, &x),
                    raw(Access::Read, elem_of_ids, unit, per, u32_bytes(given)),
                    raw(Access::Read, elem, Unit::One, w.len(), packed[1].clone()),
                    read(Unit::One, total, &bias),
                    write(Unit::Row, slots * n, m),
                    A::U(k),
                    A::U(n),
                    A::U(experts),
                    A::U(slots),
                    A::U(1),
                    A::U(k),
                    A::U(0),
                    A::U(n),
                    A::U(usize::from(has_ids)),
                    A::U(1),
                    A::Step,
                ];
                let run = |point: &str| call_all(point, &args, &rows(m, 0)).swap_remove(4);
                let point = format!("expert_linear/{name}");
                let got = run(&point);
                if on_gpu() {
                    assert_eq!(got, run(&format!("{point}_few")), "{point}, {m} rows");
                }
                let mut want = Vec::new();
                for pair in 0..m * slots {
                    let e = if has_ids {
                        ids[pair] as usize
                    } else {
                        pair % slots
                    };
                    let x = &x[pair / slots * k..][..k];
                    for o in e * n..(e + 1) * n {
                        let products = x
                            .iter()
                            .zip(&w[o * k..])
                            .map(|(x, w)| f64::from(*x) * f64::from(*w));
                        want.push(f64::from(bias[o]) + products.sum::<f64>());
                    }
                }
                let worst = relative(&f32s(&got), &want);
                assert!(worst < 64.0 * EPS, "{point}, {m} rows: {worst}");
            }
        }
    }
}

#[test]
fn gates_sums_scales_and_caps() {
    let (slots, ffn, m) = (3, 20, 4);
    let mut rng = Rng::new(5);
    let gu: Vec<f32> = rng
        .normals(m * slots * 2 * ffn)
        .iter()
        .map(|v| v * 4.0)
        .collect();
    let gate = |i: usize| f64::from(gu[i / ffn * 2 * ffn + i % ffn]);
    let up = |i: usize| f64::from(gu[i / ffn * 2 * ffn + ffn + i % ffn]);
    let silu = |g: f64, a: f64| g / (1.0 + (-a * g).exp());
    let glu = |act: usize| {
        let args = [
            read(Unit::Row, slots * 2 * ffn, &gu),
            write(Unit::Row, slots * ffn, m),
            A::U(slots),
            A::U(ffn),
            A::U(act),
            A::F(1.702),
            A::F(7.0),
            A::Step,
        ];
        f32s(&call_all("expert_glu/f32", &args, &rows(m, 0))[1])
    };
    let count = m * slots * ffn;
    near(
        &glu(0),
        &(0..count)
            .map(|i| silu(gate(i), 1.0) * up(i))
            .collect::<Vec<_>>(),
    );
    let alpha = f64::from(1.702f32);
    let clamped = |i: usize| (up(i).clamp(-7.0, 7.0) + 1.0) * silu(gate(i).min(7.0), alpha);
    near(&glu(1), &(0..count).map(clamped).collect::<Vec<_>>());

    let args = [
        read(Unit::Row, slots * 2 * ffn, &gu),
        write(Unit::Row, slots * ffn, m),
        A::U(slots * ffn),
        A::Step,
    ];
    let got = f32s(&call_all("geglu/f32", &args, &rows(m, 0))[1]);
    let half = slots * ffn;
    let want: Vec<f64> = (0..m * half)
        .map(|i| {
            let (g, u) = (
                f64::from(gu[i / half * 2 * half + i % half]),
                f64::from(gu[i / half * 2 * half + half + i % half]),
            );
            0.5 * g * (1.0 + (0.797_884_560_802_865_4 * (g + 0.044715 * g * g * g)).tanh()) * u
        })
        .collect();
    near(&got, &want);

    let (d, weights) = (rng.normals(m * slots * ffn), rng.normals(m * slots));
    let args = [
        read(Unit::Row, slots * ffn, &d),
        read(Unit::Row, slots, &weights),
        write(Unit::Row, ffn, m),
        A::U(slots),
        A::U(ffn),
        A::Step,
    ];
    let got = f32s(&call_all("expert_sum/f32", &args, &rows(m, 0))[2]);
    let sum = |r: usize, c: usize| -> f64 {
        (0..slots)
            .map(|s| f64::from(weights[r * slots + s]) * f64::from(d[(r * slots + s) * ffn + c]))
            .sum()
    };
    near(
        &got,
        &(0..m * ffn)
            .map(|i| sum(i / ffn, i % ffn))
            .collect::<Vec<_>>(),
    );

    for (point, value) in [("scale/f32", 0.37), ("softcap/f32", 3.0)] {
        let args = [
            buf(Access::ReadWrite, Unit::Row, ffn, &gu[..m * ffn]),
            A::U(ffn),
            A::F(value),
            A::U(0),
            A::Step,
        ];
        let got = f32s(&call_all(point, &args, &rows(m, 0))[0]);
        let v = f64::from(value);
        let want = gu[..m * ffn].iter().map(|x| match point {
            "scale/f32" => f64::from(*x) * v,
            _ => v * (f64::from(*x) / v).tanh(),
        });
        near(&got, &want.collect::<Vec<_>>());
    }
}

#[test]
fn parts_of_heads_are_normed_and_turned() {
    let (heads, stride, m) = (3, 22, 5);
    let mut rng = Rng::new(6);
    let x = rng.normals(m * heads * stride);
    let (from, dim, offset, rot) = (3, 14, 14, 8);
    let w = rng.normals(dim);
    let args = [
        buf(Access::ReadWrite, Unit::Row, heads * stride, &x),
        read(Unit::One, dim, &w),
        A::U(heads),
        A::U(stride),
        A::U(from),
        A::U(dim),
        A::F(1e-5),
        A::Step,
    ];
    let got = f32s(&call_all("head_norm/f32", &args, &rows(m, 0))[0]);
    let cs = rng.normals(m * rot);
    let args = [
        buf(Access::ReadWrite, Unit::Row, heads * stride, &x),
        read(Unit::Row, rot, &cs),
        A::U(heads),
        A::U(stride),
        A::U(offset),
        A::U(rot),
        A::Step,
    ];
    let turned = f32s(&call_all("rope_part/f32", &args, &rows(m, 0))[0]);
    let (mut normed, mut rotated) = (Vec::new(), Vec::new());
    for (i, head) in x.chunks(stride).enumerate() {
        let head: Vec<f64> = head.iter().map(|v| f64::from(*v)).collect();
        let ss: f64 = head[from..from + dim].iter().map(|v| v * v).sum();
        let r = 1.0 / (ss / dim as f64 + 1e-5).sqrt();
        normed.extend(head.iter().enumerate().map(|(c, v)| {
            match c.checked_sub(from).and_then(|c| w.get(c)) {
                Some(w) => v * r * f64::from(*w),
                None => *v,
            }
        }));
        let cs = &cs[i / heads * rot..];
        rotated.extend(head.iter().enumerate().map(|(c, v)| {
            let Some(j) = c.checked_sub(offset) else {
                return *v;
            };
            let (cos, sin) = (f64::from(cs[j % 4]), f64::from(cs[4 + j % 4]));
            if j < 4 {
                v * cos - head[c + 4] * sin
            } else {
                v * cos + head[c - 4] * sin
            }
        }));
    }
    near(&got, &normed);
    near(&turned, &rotated);
}
