// SPDX-License-Identifier: MIT OR Apache-2.0
//! Routers, experts, gates, and norms and rotation of parts of heads, against plain f64 arithmetic.
#![allow(clippy::unwrap_used)]

mod common;

use common::{
    A, Rng, buf, call_all, f32s, raw, read, relative, rows, step, u32_bytes, u32s, write,
};
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
