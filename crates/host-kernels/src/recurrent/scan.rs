// SPDX-License-Identifier: MIT OR Apache-2.0
//! `ssm_scan`: the selective state space of Mamba-2, one token at a time (arXiv 2405.21060, section 2).
//!
//! *Spec*, per head, all in f32: `t = softplus(dt + dt_bias)`; `g = exp(t * -exp(a_log))`; for each
//! of the head's columns `p`: `u = t * x[p]`; `S[p][n] = fma(S[p][n], g, u * B[n])`; `y[p] = fma(D, x[p], lanes8(S[p], C))`. `B` and
//! `C` are those of the head's group.

use metrale_core::numeric::math;
use metrale_core::{StepBlock, Unit};

use super::{by_units, softplus, state};
use crate::args::{RowShape, Tile};
use crate::decl;
use crate::lanes::{Lanes, dot, on_lanes};
use crate::point::{BadConstants, HostPoint, TileFault, f32s, positive};
use crate::scratch::Scratch;

pub(crate) static SSM_SCAN: HostPoint = HostPoint {
    id: "ssm_scan/f32",
    args: decl::SSM_SCAN,
    needs: |a| {
        let (heads, dim, groups, n) = (a.u32(7), a.u32(8), a.u32(9), a.u32(10));
        positive(&[
            ("heads", heads),
            ("head_dim", dim),
            ("groups", groups),
            ("state", n),
        ])?;
        if !heads.is_multiple_of(groups) {
            return Err(BadConstants::new(format!(
                "{heads} heads do not share {groups} groups evenly"
            )));
        }
        Ok(vec![
            f32s(Unit::Row, heads * dim + 2 * groups * n),
            f32s(Unit::Row, heads),
            f32s(Unit::One, heads),
            f32s(Unit::One, heads),
            f32s(Unit::One, heads),
            state(heads * dim * n),
            f32s(Unit::Row, heads * dim),
        ])
    },
    grid: |a, c| by_units(c, a.u32(7), 1),
    run: ssm_scan,
};

fn ssm_scan(tile: &mut Tile<'_>, step: &StepBlock, _: &mut Scratch) -> Result<(), TileFault> {
    let args = tile.args();
    let (heads, dim, groups, n) = (args.u32(7), args.u32(8), args.u32(9), args.u32(10));
    let (xbc, dt) = (tile.input::<f32>(0), tile.input::<f32>(1));
    let (a_log, dt_bias, skip) = (
        tile.input::<f32>(2),
        tile.input::<f32>(3),
        tile.input::<f32>(4),
    );
    let own = tile.cols();
    let mut states = tile.slot_output::<f32>(5, heads, dim * n);
    let mut y = tile.output::<f32>(6, RowShape::units(heads, dim));
    let width = heads * dim + 2 * groups * n;
    for r in tile.rows() {
        let state = states.slot(step.slots()[r])?;
        if step.positions()[r] == 0 {
            state.fill(0.0);
        }
        let row = &xbc[r * width..(r + 1) * width];
        let (x, rest) = row.split_at(heads * dim);
        let (b, c) = rest.split_at(groups * n);
        let out = y.row(r);
        for (i, h) in own.clone().enumerate() {
            let group = h / (heads / groups);
            let t = softplus(dt[r * heads + h] + dt_bias[h]);
            let head = Head {
                step: t,
                decay: math::exp(t * (0.0 - math::exp(a_log[h]))),
                skip: skip[h],
            };
            on_lanes!(args.isa, advance, (s: &mut [f32] = &mut state[i * dim * n..][..dim * n],
                x: &[f32] = &x[h * dim..][..dim], b: &[f32] = &b[group * n..][..n], c: &[f32] = &c[group * n..][..n],
                y: &mut [f32] = &mut out[i * dim..][..dim], head: Head = head));
        }
    }
    Ok(())
}

/// What one token gives a head.
#[derive(Clone, Copy)]
struct Head {
    step: f32,
    decay: f32,
    skip: f32,
}

#[inline(always)]
fn advance<L: Lanes>(s: &mut [f32], x: &[f32], b: &[f32], c: &[f32], y: &mut [f32], head: Head) {
    for ((row, x), y) in s.chunks_exact_mut(b.len()).zip(x).zip(y) {
        let u = head.step * x;
        for (s, b) in row.iter_mut().zip(b) {
            *s = s.mul_add(head.decay, u * b);
        }
        *y = head.skip.mul_add(*x, dot::<L>(row, c));
    }
}
