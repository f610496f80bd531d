// SPDX-License-Identifier: MIT OR Apache-2.0
//! The kernels of recurrent layers against plain f64 arithmetic: two sequences in one step, one of which goes on from an
//! earlier step, on every instruction set and thread count with equal bits.
#![allow(clippy::unwrap_used, clippy::needless_range_loop)]

mod common;

use common::{A, LIMITS, Rng, buf, call_all, f32_bytes, f32s, raw, read, relative, step, write};
use metrale_core::{Access, Elem, StepBlock, Unit};

/// Rounding of f32, and how many of them a result may gather: chains of 64 and a handful of exponentials.
const BOUND: f64 = 128.0 / 16_777_216.0;
/// Rows of the two sequences: slot 2 goes on from position 5, slot 0 begins.
const RUNS: [(u32, u32, usize); 2] = [(2, 5, 3), (0, 0, 6)];
const ROWS: usize = 9;

fn two_runs() -> StepBlock {
    let mut step = step();
    for (slot, position, rows) in RUNS {
        step.push_run(slot, position, &vec![1; rows]).unwrap();
    }
    step
}

/// Every slot holds something: what begins must not see it.
fn state(rng: &mut Rng, per_slot: usize) -> (A, Vec<f32>) {
    let values = rng.normals(per_slot * LIMITS.slots as usize);
    let bytes = f32_bytes(&values);
    let span = raw(Access::ReadWrite, Elem::F32, Unit::Slot, per_slot, bytes);
    (span, values)
}

/// Calls `row(state of its slot, row)` for every row in order, the state as of the row before.
fn walk(state: &[f32], per_slot: usize, mut row: impl FnMut(&mut [f64], usize)) -> Vec<f64> {
    let mut all: Vec<f64> = state.iter().map(|v| f64::from(*v)).collect();
    let mut r = 0;
    for (slot, position, rows) in RUNS {
        let own = &mut all[slot as usize * per_slot..][..per_slot];
        if position == 0 {
            own.fill(0.0);
        }
        for _ in 0..rows {
            row(own, r);
            r += 1;
        }
    }
    all
}

fn f64s(x: &[f32]) -> Vec<f64> {
    x.iter().map(|v| f64::from(*v)).collect()
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

#[test]
fn conv1d() {
    let mut rng = Rng::new(1);
    for (channels, width) in [(8, 4), (300, 2)] {
        let x = rng.normals(channels * ROWS);
        let (w, bias) = (rng.normals(channels * width), rng.normals(channels));
        let taps = width - 1;
        let (span, before) = state(&mut rng, channels * taps);
        let args = [
            read(Unit::Row, channels, &x),
            read(Unit::One, channels * width, &w),
            read(Unit::One, channels, &bias),
            span,
            write(Unit::Row, channels, ROWS),
            A::U(channels),
            A::U(width),
            A::U(1),
            A::Step,
        ];
        let out = call_all("conv1d/f32", &args, &two_runs());
        let mut want = vec![0.0; channels * ROWS];
        let after = walk(&before, channels * taps, |past, r| {
            for c in 0..channels {
                let past = &mut past[c * taps..(c + 1) * taps];
                let x = f64::from(x[r * channels + c]);
                let w = f64s(&w[c * width..(c + 1) * width]);
                let sum = f64::from(bias[c]) + dot(past, &w) + x * w[taps];
                want[r * channels + c] = sum * sigmoid(sum);
                past.rotate_left(1);
                past[taps - 1] = x;
            }
        });
        assert!(relative(&f32s(&out[4]), &want) < BOUND);
        assert_eq!(f64s(&f32s(&out[3])), after);
    }
}

#[test]
fn gated_delta() {
    let mut rng = Rng::new(2);
    for (key_heads, heads, dk, dv) in [(2, 4, 16, 24), (1, 3, 20, 9), (1, 2, 128, 128)] {
        let width = 2 * key_heads * dk + heads * dv;
        let qkv = rng.normals(width * ROWS);
        let ba = rng.normals(2 * heads * ROWS);
        let (a_log, dt) = (rng.normals(heads), rng.normals(heads));
        let per_slot = heads * dk * dv;
        let (span, before) = state(&mut rng, per_slot);
        let args = [
            read(Unit::Row, width, &qkv),
            read(Unit::Row, 2 * heads, &ba),
            read(Unit::One, heads, &a_log),
            read(Unit::One, heads, &dt),
            span,
            write(Unit::Row, heads * dv, ROWS),
            A::U(key_heads),
            A::U(heads),
            A::U(dk),
            A::U(dv),
            A::F(1e-6),
            A::Step,
        ];
        let out = call_all("gated_delta/f32", &args, &two_runs());
        let mut want = vec![0.0; heads * dv * ROWS];
        let after = walk(&before, per_slot, |s, r| {
            let row = f64s(&qkv[r * width..(r + 1) * width]);
            let (gates, values) = (&ba[r * 2 * heads..], &row[2 * key_heads * dk..]);
            for h in 0..heads {
                let key = h / (heads / key_heads);
                let unit = |x: &[f64]| -> Vec<f64> {
                    let n = (dot(x, x) + 1e-6).sqrt();
                    x.iter().map(|v| v / n).collect()
                };
                let q = unit(&row[key * dk..][..dk]);
                let k = unit(&row[(key_heads + key) * dk..][..dk]);
                let rate = (f64::from(gates[heads + h]) + f64::from(dt[h]))
                    .exp()
                    .ln_1p();
                let decay = (-f64::from(a_log[h]).exp() * rate).exp();
                let beta = sigmoid(f64::from(gates[h]));
                let s = &mut s[h * dk * dv..][..dk * dv];
                s.iter_mut().for_each(|v| *v *= decay);
                for j in 0..dv {
                    let column =
                        |s: &[f64]| -> Vec<f64> { (0..dk).map(|i| s[i * dv + j]).collect() };
                    let d = (values[h * dv + j] - dot(&column(s), &k)) * beta;
                    (0..dk).for_each(|i| s[i * dv + j] += k[i] * d);
                    want[r * heads * dv + h * dv + j] = dot(&column(s), &q) / (dk as f64).sqrt();
                }
            }
        });
        assert!(relative(&f32s(&out[5]), &want) < BOUND);
        assert!(relative(&f32s(&out[4]), &after) < BOUND);
    }
}

#[test]
fn ssm_scan() {
    let mut rng = Rng::new(3);
    for (heads, dim, groups, n) in [(4, 8, 2, 16), (3, 5, 1, 10), (2, 64, 1, 128)] {
        let width = heads * dim + 2 * groups * n;
        let (xbc, dt) = (rng.normals(width * ROWS), rng.normals(heads * ROWS));
        let (a_log, bias, skip) = (rng.normals(heads), rng.normals(heads), rng.normals(heads));
        let per_slot = heads * dim * n;
        let (span, before) = state(&mut rng, per_slot);
        let args = [
            read(Unit::Row, width, &xbc),
            read(Unit::Row, heads, &dt),
            read(Unit::One, heads, &a_log),
            read(Unit::One, heads, &bias),
            read(Unit::One, heads, &skip),
            span,
            write(Unit::Row, heads * dim, ROWS),
            A::U(heads),
            A::U(dim),
            A::U(groups),
            A::U(n),
            A::Step,
        ];
        let out = call_all("ssm_scan/f32", &args, &two_runs());
        let mut want = vec![0.0; heads * dim * ROWS];
        let after = walk(&before, per_slot, |s, r| {
            let row = f64s(&xbc[r * width..(r + 1) * width]);
            for h in 0..heads {
                let group = h / (heads / groups);
                let b = &row[heads * dim + group * n..][..n];
                let c = &row[heads * dim + (groups + group) * n..][..n];
                let t = (f64::from(dt[r * heads + h]) + f64::from(bias[h]))
                    .exp()
                    .ln_1p();
                let decay = (-f64::from(a_log[h]).exp() * t).exp();
                for p in 0..dim {
                    let x = row[h * dim + p];
                    let s = &mut s[(h * dim + p) * n..][..n];
                    for i in 0..n {
                        s[i] = s[i] * decay + t * x * b[i];
                    }
                    want[r * heads * dim + h * dim + p] = dot(s, c) + f64::from(skip[h]) * x;
                }
            }
        });
        assert!(relative(&f32s(&out[6]), &want) < BOUND);
        assert!(relative(&f32s(&out[5]), &after) < BOUND);
    }
}

#[test]
fn gated_norm() {
    let mut rng = Rng::new(4);
    for (cols, group, w_cols, gate_first) in [(64, 16, 16, 0), (60, 20, 60, 1), (24, 24, 24, 1)] {
        let (x, z, w) = (
            rng.normals(cols * ROWS),
            rng.normals(cols * ROWS),
            rng.normals(w_cols),
        );
        let args = [
            read(Unit::Row, cols, &x),
            read(Unit::Row, cols, &z),
            read(Unit::One, w_cols, &w),
            write(Unit::Row, cols, ROWS),
            A::U(cols),
            A::U(group),
            A::U(w_cols),
            A::U(gate_first),
            A::F(1e-5),
            A::Step,
        ];
        let out = call_all("gated_norm/f32", &args, &two_runs());
        let (x, z) = (f64s(&x), f64s(&z));
        let want: Vec<f64> = (0..cols * ROWS)
            .map(|i| {
                let begin = i / group * group;
                let gate = |i: usize| z[i] * sigmoid(z[i]);
                let h = |i: usize| {
                    if gate_first == 1 {
                        x[i] * gate(i)
                    } else {
                        x[i]
                    }
                };
                let sum: f64 = (begin..begin + group).map(|i| h(i).powi(2)).sum();
                let y = h(i) / (sum / group as f64 + 1e-5).sqrt() * f64::from(w[i % cols % w_cols]);
                if gate_first == 1 { y } else { y * gate(i) }
            })
            .collect();
        assert!(relative(&f32s(&out[3]), &want) < BOUND);
    }
}

#[test]
fn gates_and_squares() {
    let mut rng = Rng::new(5);
    for (cols, gates) in [(40, 40), (40, 1), (42, 3)] {
        let (x, g) = (rng.normals(cols * ROWS), rng.normals(gates * ROWS));
        let args = [
            buf(Access::ReadWrite, Unit::Row, cols, &x),
            read(Unit::Row, gates, &g),
            A::U(cols),
            A::U(gates),
            A::Step,
        ];
        let out = call_all("sigmoid_gate/f32", &args, &two_runs());
        let want: Vec<f64> = (0..cols * ROWS)
            .map(|i| f64::from(x[i]) * sigmoid(f64::from(g[i / (cols / gates)])))
            .collect();
        assert!(relative(&f32s(&out[0]), &want) < BOUND);

        let args = [
            read(Unit::Row, cols, &x),
            write(Unit::Row, cols, ROWS),
            A::U(cols),
            A::Step,
        ];
        let out = call_all("relu2/f32", &args, &two_runs());
        let want: Vec<f64> = x.iter().map(|v| f64::from(v.max(0.0)).powi(2)).collect();
        assert!(relative(&f32s(&out[1]), &want) < BOUND);
    }
}
