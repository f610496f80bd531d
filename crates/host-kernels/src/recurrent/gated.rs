// SPDX-License-Identifier: MIT OR Apache-2.0
//! `gated_norm`, `sigmoid_gate` and `relu2`: what stands between a recurrence and its output projection.
//!
//! *Spec*. `silu(z) = z / (1 + exp(-z))`. `gated_norm` with `gate_first = 0`, per group of columns: `y = ((x * r) * w) *
//! silu(z)`, `r` as in `rmsnorm`; with `gate_first = 1`: `h = x * silu(z)` and `y = (h * r) * w`, `r` of `h`. `sigmoid_gate`: `a * (1 / (1 +
//! exp(-g)))`. `relu2`: `m * m`, `m = max(x, 0)`.

use metrale_core::numeric::math;
use metrale_core::{StepBlock, Unit};

use super::sigmoid;
use crate::args::{RowShape, Tile};
use crate::lanes::{Lanes, dot, on_lanes};
use crate::point::{BadConstants, HostPoint, TileFault, f32s, positive};
use crate::scratch::Scratch;
use crate::{decl, tiling};

pub(crate) static GATED_NORM: HostPoint = HostPoint {
    id: "gated_norm/f32",
    args: decl::GATED_NORM,
    needs: |a| {
        let (cols, group, w_cols) = (a.u32(4), a.u32(5), a.u32(6));
        positive(&[("cols", cols), ("group", group), ("w_cols", w_cols)])?;
        if !cols.is_multiple_of(group) || !(w_cols == group || w_cols == cols) {
            return Err(BadConstants::new(format!(
                "{cols} columns in groups of {group} do not fit a weight of {w_cols}"
            )));
        }
        let row = f32s(Unit::Row, cols);
        Ok(vec![row, row, f32s(Unit::One, w_cols), row])
    },
    grid: |a, c| tiling::rows(c.rows, 4 * a.u32(4)),
    run: gated_norm,
};

fn gated_norm(tile: &mut Tile<'_>, _: &StepBlock, _: &mut Scratch) -> Result<(), TileFault> {
    let args = tile.args();
    let (cols, group, w_cols) = (args.u32(4), args.u32(5), args.u32(6));
    let (gate_first, eps) = (args.u32(7) != 0, args.f32(8));
    let (x, z, w) = (
        tile.input::<f32>(0),
        tile.input::<f32>(1),
        tile.input::<f32>(2),
    );
    let mut y = tile.output::<f32>(3, RowShape::whole(cols));
    for r in tile.rows() {
        let to = y.row(r);
        for (g, to) in to.chunks_exact_mut(group).enumerate() {
            let at = r * cols + g * group;
            let w = &w[g * group % w_cols..][..group];
            on_lanes!(args.isa, norm_group, (y: &mut [f32] = to, x: &[f32] = &x[at..][..group],
                z: &[f32] = &z[at..][..group], w: &[f32] = w, gate_first: bool = gate_first, eps: f32 = eps));
        }
    }
    Ok(())
}

#[inline(always)]
fn norm_group<L: Lanes>(
    y: &mut [f32],
    x: &[f32],
    z: &[f32],
    w: &[f32],
    gate_first: bool,
    eps: f32,
) {
    for ((y, x), z) in y.iter_mut().zip(x).zip(z) {
        *y = if gate_first { x * silu(*z) } else { *x };
    }
    let r = 1.0 / (dot::<L>(y, y) / y.len() as f32 + eps).sqrt();
    for ((y, w), z) in y.iter_mut().zip(w).zip(z) {
        let v = *y * r * w;
        *y = if gate_first { v } else { v * silu(*z) };
    }
}

#[inline(always)]
fn silu(z: f32) -> f32 {
    z / (1.0 + math::exp(0.0 - z))
}

pub(crate) static SIGMOID_GATE: HostPoint = HostPoint {
    id: "sigmoid_gate/f32",
    args: decl::SIGMOID_GATE,
    needs: |a| {
        let (cols, gates) = (a.u32(2), a.u32(3));
        positive(&[("cols", cols), ("gates", gates)])?;
        if !cols.is_multiple_of(gates) {
            return Err(BadConstants::new(format!(
                "{gates} gates do not share {cols} columns evenly"
            )));
        }
        Ok(vec![f32s(Unit::Row, cols), f32s(Unit::Row, gates)])
    },
    grid: |a, c| tiling::rows(c.rows, 4 * a.u32(2)),
    run: |tile, _, _| {
        let (cols, gates) = (tile.args().u32(2), tile.args().u32(3));
        let g = tile.input::<f32>(1);
        let mut x = tile.output::<f32>(0, RowShape::whole(cols));
        for r in tile.rows() {
            let row = x.row(r).chunks_exact_mut(cols / gates);
            for (part, g) in row.zip(&g[r * gates..(r + 1) * gates]) {
                let s = sigmoid(*g);
                part.iter_mut().for_each(|x| *x *= s);
            }
        }
        Ok(())
    },
};

pub(crate) static RELU2: HostPoint = HostPoint {
    id: "relu2/f32",
    args: decl::RELU2,
    needs: |a| {
        let cols = a.u32(2);
        positive(&[("cols", cols)])?;
        Ok(vec![f32s(Unit::Row, cols), f32s(Unit::Row, cols)])
    },
    grid: |a, c| tiling::rows(c.rows, a.u32(2)),
    run: |tile, _, _| {
        let cols = tile.args().u32(2);
        let x = tile.input::<f32>(0);
        let mut y = tile.output::<f32>(1, RowShape::whole(cols));
        for r in tile.rows() {
            let x = &x[r * cols..(r + 1) * cols];
            for (y, x) in y.row(r).iter_mut().zip(x) {
                let m = if *x > 0.0 { *x } else { *x * 0.0 };
                *y = m * m;
            }
        }
        Ok(())
    },
};
