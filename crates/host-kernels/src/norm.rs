// SPDX-License-Identifier: MIT OR Apache-2.0
//! `rmsnorm`, `add_rmsnorm` and `qk_norm`.
//!
//! *Spec*: the sum of squares by `lanes8` ([`crate::lanes`]); `r = 1 / sqrt(sum / cols + eps)`, every step rounded to
//! f32; `y = (x * r) * w`. `add_rmsnorm` is `add` and then `rmsnorm`: the same bits. Source of the formula: Zhang and
//! Sennrich, "Root Mean Square Layer Normalization", arXiv 1910.07467.

use metrale_core::{StepBlock, Unit};

use crate::args::{RowShape, Tile};
use crate::elementwise::add;
use crate::lanes::{Lanes, dot, on_lanes};
use crate::point::{HostPoint, TileFault, f32s, positive, row_unit, unit_rows};
use crate::scratch::Scratch;
use crate::{decl, tiling};

pub(crate) static RMSNORM: HostPoint = HostPoint {
    id: "rmsnorm/f32",
    args: decl::RMSNORM,
    needs: |a| {
        let (cols, unit) = (a.u32(3), row_unit(a.u32(5))?);
        positive(&[("cols", cols)])?;
        Ok(vec![
            f32s(unit, cols),
            f32s(Unit::One, cols),
            f32s(unit, cols),
        ])
    },
    grid: |a, c| tiling::rows(unit_rows(a.u32(5), c), a.u32(3)),
    run: |tile, _, _| {
        let args = tile.args();
        let (cols, eps) = (args.u32(3), args.f32(4));
        let (x, w) = (tile.input::<f32>(0), tile.input::<f32>(1));
        let mut y = tile.output::<f32>(2, RowShape::whole(cols));
        for r in tile.rows() {
            let to = y.row(r);
            let from = &x[r * cols..(r + 1) * cols];
            on_lanes!(args.isa, rmsnorm,
                (y: &mut [f32] = to, x: &[f32] = from, w: &[f32] = &w[..cols], eps: f32 = eps));
        }
        Ok(())
    },
};

pub(crate) static ADD_RMSNORM: HostPoint = HostPoint {
    id: "add_rmsnorm/f32",
    args: decl::ADD_RMSNORM,
    needs: |a| {
        let cols = a.u32(4);
        positive(&[("cols", cols)])?;
        let row = f32s(Unit::Row, cols);
        Ok(vec![row, row, f32s(Unit::One, cols), row])
    },
    grid: |a, c| tiling::rows(c.rows, a.u32(4)),
    run: |tile, _, _| {
        let args = tile.args();
        let (cols, eps) = (args.u32(4), args.f32(5));
        let (delta, w) = (tile.input::<f32>(1), tile.input::<f32>(2));
        let mut res = tile.output::<f32>(0, RowShape::whole(cols));
        let mut y = tile.output::<f32>(3, RowShape::whole(cols));
        for r in tile.rows() {
            let delta = &delta[r * cols..(r + 1) * cols];
            let (res, to) = (res.row(r), y.row(r));
            on_lanes!(args.isa, add_rmsnorm, (res: &mut [f32] = res, delta: &[f32] = delta,
                y: &mut [f32] = to, w: &[f32] = &w[..cols], eps: f32 = eps));
        }
        Ok(())
    },
};

/// `y = rmsnorm(x) * w`; all of one length.
#[inline(always)]
pub(crate) fn rmsnorm<L: Lanes>(y: &mut [f32], x: &[f32], w: &[f32], eps: f32) {
    let scale = inverse_rms::<L>(x, eps);
    scaled::<L>(y, x, w, scale);
}

/// `res += delta`, then `y = rmsnorm(res) * w`.
#[inline(always)]
pub(crate) fn add_rmsnorm<L: Lanes>(
    res: &mut [f32],
    delta: &[f32],
    y: &mut [f32],
    w: &[f32],
    eps: f32,
) {
    add(res, delta);
    rmsnorm::<L>(y, res, w, eps);
}

#[inline(always)]
fn inverse_rms<L: Lanes>(x: &[f32], eps: f32) -> f32 {
    1.0 / (dot::<L>(x, x) / x.len() as f32 + eps).sqrt()
}

#[inline(always)]
fn scaled<L: Lanes>(y: &mut [f32], x: &[f32], w: &[f32], scale: f32) {
    let whole = y.len() / 8 * 8;
    let s = L::splat(scale);
    let mut i = 0;
    while i < whole {
        L::load(&x[i..])
            .mul(s)
            .mul(L::load(&w[i..]))
            .store(&mut y[i..]);
        i += 8;
    }
    for i in whole..y.len() {
        y[i] = x[i] * scale * w[i];
    }
}

/// `x = rmsnorm(x) * w` in place.
#[inline(always)]
pub(crate) fn norm_in_place<L: Lanes>(x: &mut [f32], w: &[f32], eps: f32) {
    let scale = inverse_rms::<L>(x, eps);
    for (x, w) in x.iter_mut().zip(w) {
        *x = *x * scale * *w;
    }
}

pub(crate) static QK_NORM: HostPoint = HostPoint {
    id: "qk_norm/f32",
    args: decl::QK_NORM,
    needs: |a| {
        let (heads, kv, dim) = (a.u32(3), a.u32(4), a.u32(5));
        positive(&[("heads", heads), ("kv_heads", kv), ("head_dim", dim)])?;
        let w = f32s(Unit::One, dim);
        Ok(vec![f32s(Unit::Row, (heads + 2 * kv) * dim), w, w])
    },
    grid: |a, c| tiling::rows(c.rows, (a.u32(3) + a.u32(4)) * a.u32(5)),
    run: qk_norm,
};

fn qk_norm(tile: &mut Tile<'_>, _: &StepBlock, _: &mut Scratch) -> Result<(), TileFault> {
    let args = tile.args();
    let (heads, kv, dim, eps) = (args.u32(3), args.u32(4), args.u32(5), args.f32(6));
    let (qw, kw) = (tile.input::<f32>(1), tile.input::<f32>(2));
    let mut qkv = tile.output::<f32>(0, RowShape::whole((heads + 2 * kv) * dim));
    for r in tile.rows() {
        for (h, head) in qkv
            .row(r)
            .chunks_exact_mut(dim)
            .take(heads + kv)
            .enumerate()
        {
            let w = if h < heads { qw } else { kw };
            on_lanes!(args.isa, norm_in_place,
                (x: &mut [f32] = head, w: &[f32] = &w[..dim], eps: f32 = eps));
        }
    }
    Ok(())
}
