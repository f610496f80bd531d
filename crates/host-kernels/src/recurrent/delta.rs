// SPDX-License-Identifier: MIT OR Apache-2.0
//! `gated_delta`: the gated delta rule, one token at a time ("Gated Delta Networks", arXiv 2412.06464, eq. 10).
//!
//! *Spec*, per value head, all in f32: `k` and `q` of its key head divided by their norms, `n = 1 / sqrt(lanes8(x, x) +
//! eps)`, `x * n`, and `q` then times `1 / sqrt(key_dim)`; `g = exp(-exp(a_log) * softplus(a + dt_bias))`; `beta =
//! sigmoid(b)`. For the state `S[key_dim][value_dim]`: `S = S * g`; `m[j] = fma(S[i][j], k[i], m[j])` by ascending `i` from
//! 0; `d[j] = (v[j] - m[j]) * beta`; `S[i][j] = fma(k[i], d[j], S[i][j])`; `y[j] = fma(S[i][j], q[i], y[j])` by ascending `i`
//! from 0.

use metrale_core::numeric::math;
use metrale_core::{StepBlock, Unit};

use super::{by_units, sigmoid, softplus, state};
use crate::args::{RowShape, Tile};
use crate::decl;
use crate::isa::on_isa;
use crate::lanes::{Lanes, dot, on_lanes};
use crate::point::{BadConstants, HostPoint, TileFault, f32s, positive};
use crate::scratch::Scratch;

pub(crate) static GATED_DELTA: HostPoint = HostPoint {
    id: "gated_delta/f32",
    args: decl::GATED_DELTA,
    needs: |a| {
        let (key_heads, heads, dk, dv) = (a.u32(6), a.u32(7), a.u32(8), a.u32(9));
        positive(&[
            ("key_heads", key_heads),
            ("value_heads", heads),
            ("key_dim", dk),
            ("value_dim", dv),
        ])?;
        if !heads.is_multiple_of(key_heads) {
            return Err(BadConstants::new(format!(
                "{heads} value heads do not share {key_heads} key heads evenly"
            )));
        }
        Ok(vec![
            f32s(Unit::Row, 2 * key_heads * dk + heads * dv),
            f32s(Unit::Row, 2 * heads),
            f32s(Unit::One, heads),
            f32s(Unit::One, heads),
            state(heads * dk * dv),
            f32s(Unit::Row, heads * dv),
        ])
    },
    grid: |a, c| by_units(c, a.u32(7), 1),
    run: gated_delta,
};

fn gated_delta(tile: &mut Tile<'_>, step: &StepBlock, _: &mut Scratch) -> Result<(), TileFault> {
    let args = tile.args();
    let (key_heads, heads, dk, dv) = (args.u32(6), args.u32(7), args.u32(8), args.u32(9));
    let eps = args.f32(10);
    let (qkv, ba) = (tile.input::<f32>(0), tile.input::<f32>(1));
    let (a_log, dt_bias) = (tile.input::<f32>(2), tile.input::<f32>(3));
    let own = tile.cols();
    let mut states = tile.slot_output::<f32>(4, heads, dk * dv);
    let mut y = tile.output::<f32>(5, RowShape::units(heads, dv));
    let (mut q, mut k, mut d) = (vec![0.0; dk], vec![0.0; dk], vec![0.0; dv]);
    let width = 2 * key_heads * dk + heads * dv;
    let scale = 1.0 / (dk as f32).sqrt();
    for r in tile.rows() {
        let state = states.slot(step.slots()[r])?;
        if step.positions()[r] == 0 {
            state.fill(0.0);
        }
        let row = &qkv[r * width..(r + 1) * width];
        let (row_q, rest) = row.split_at(key_heads * dk);
        let (row_k, row_v) = rest.split_at(key_heads * dk);
        let out = y.row(r);
        for (i, h) in own.clone().enumerate() {
            let key_head = h / (heads / key_heads);
            on_lanes!(args.isa, unit, (to: &mut [f32] = &mut q, x: &[f32] = &row_q[key_head * dk..][..dk],
                eps: f32 = eps, scale: f32 = scale));
            on_lanes!(args.isa, unit, (to: &mut [f32] = &mut k, x: &[f32] = &row_k[key_head * dk..][..dk],
                eps: f32 = eps, scale: f32 = 1.0));
            let (b, a) = (ba[r * 2 * heads + h], ba[r * 2 * heads + heads + h]);
            let rate = 0.0 - math::exp(a_log[h]);
            let gates = Gates {
                decay: math::exp(rate * softplus(a + dt_bias[h])),
                beta: sigmoid(b),
            };
            let s = &mut state[i * dk * dv..(i + 1) * dk * dv];
            on_isa!(args.isa, advance, (s: &mut [f32] = s, q: &[f32] = &q, k: &[f32] = &k,
                v: &[f32] = &row_v[h * dv..][..dv], d: &mut [f32] = &mut d, y: &mut [f32] = &mut out[i * dv..][..dv],
                gates: Gates = gates));
        }
    }
    Ok(())
}

/// What a token does to a head's state.
#[derive(Clone, Copy)]
struct Gates {
    decay: f32,
    beta: f32,
}

/// `to = x / |x| * scale`.
#[inline(always)]
fn unit<L: Lanes>(to: &mut [f32], x: &[f32], eps: f32, scale: f32) {
    let n = 1.0 / (dot::<L>(x, x) + eps).sqrt();
    for (to, x) in to.iter_mut().zip(x) {
        *to = x * n * scale;
    }
}

/// One token of one head: `s` is `[key_dim, value_dim]`, `d` room for `value_dim` values.
#[inline(always)]
fn advance(
    s: &mut [f32],
    q: &[f32],
    k: &[f32],
    v: &[f32],
    d: &mut [f32],
    y: &mut [f32],
    gates: Gates,
) {
    d.fill(0.0);
    for (row, k) in s.chunks_exact_mut(d.len()).zip(k) {
        for (s, d) in row.iter_mut().zip(d.iter_mut()) {
            *s *= gates.decay;
            *d = s.mul_add(*k, *d);
        }
    }
    for (d, v) in d.iter_mut().zip(v) {
        *d = (v - *d) * gates.beta;
    }
    y.fill(0.0);
    for ((row, k), q) in s.chunks_exact_mut(d.len()).zip(k).zip(q) {
        for ((s, d), y) in row.iter_mut().zip(d.iter()).zip(y.iter_mut()) {
            *s = k.mul_add(*d, *s);
            *y = s.mul_add(*q, *y);
        }
    }
}
