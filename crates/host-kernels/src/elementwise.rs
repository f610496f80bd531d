// SPDX-License-Identifier: MIT OR Apache-2.0
//! `add`, `swiglu` and `gather_rows`: no contraction, one rounding order per value.
//!
//! *Spec*: `add`: `res + delta`. `swiglu`: `(g / (1 + exp(-g))) * u` with [`metrale_core::numeric::math::exp`].
//! `gather_rows`: `res + delta` of the named row, or `res` without a delta.

use metrale_core::{StepBlock, Unit};

use crate::args::{Grid, RowShape, Tile};
use crate::isa::on_isa;
use crate::lanes::{Lanes, exp, on_lanes};
use crate::point::{HostPoint, TileFault, f32s, positive};
use crate::scratch::Scratch;
use crate::{decl, tiling};

pub(crate) static ADD: HostPoint = HostPoint {
    id: "add/f32",
    args: decl::ADD,
    needs: |a| {
        let cols = a.u32(2);
        positive(&[("cols", cols)])?;
        Ok(vec![f32s(Unit::Row, cols), f32s(Unit::Row, cols)])
    },
    grid: |a, c| tiling::rows(c.rows, a.u32(2)),
    run: |tile, _, _| {
        let cols = tile.args().u32(2);
        let delta = tile.input::<f32>(1);
        let mut res = tile.output::<f32>(0, RowShape::whole(cols));
        for r in tile.rows() {
            let row = res.row(r);
            on_isa!(tile.args().isa, add, (row: &mut [f32] = row,
                delta: &[f32] = &delta[r * cols..(r + 1) * cols]));
        }
        Ok(())
    },
};

/// `res += delta`.
#[inline(always)]
pub(crate) fn add(res: &mut [f32], delta: &[f32]) {
    for (r, d) in res.iter_mut().zip(delta) {
        *r += *d;
    }
}

pub(crate) static SWIGLU: HostPoint = HostPoint {
    id: "swiglu/f32",
    args: decl::SWIGLU,
    needs: |a| {
        let ffn = a.u32(2);
        positive(&[("ffn", ffn)])?;
        Ok(vec![f32s(Unit::Row, 2 * ffn), f32s(Unit::Row, ffn)])
    },
    grid: |a, c| {
        // A wide row is cut so that one decode row keeps several threads busy.
        let ffn = a.u32(2) as u32;
        Grid {
            rows: c.rows,
            row_block: 1,
            cols: ffn.div_ceil(SLICE),
            col_block: 1,
        }
    },
    run: |tile, _, _| {
        let ffn = tile.args().u32(2);
        let gu = tile.input::<f32>(0);
        let shape = RowShape {
            first: 0,
            ld: ffn,
            base: 0,
            width: ffn,
            unit: SLICE as usize,
        };
        let mut h = tile.output::<f32>(1, shape);
        let begin = tile.cols().start * SLICE as usize;
        for r in tile.rows() {
            let out = h.row(r);
            let gate = &gu[r * 2 * ffn + begin..][..out.len()];
            let up = &gu[r * 2 * ffn + ffn + begin..][..out.len()];
            on_lanes!(tile.args().isa, swiglu,
                (out: &mut [f32] = out, gate: &[f32] = gate, up: &[f32] = up));
        }
        Ok(())
    },
};

/// Columns of a `swiglu` tile.
const SLICE: u32 = 1024;

/// `out = silu(gate) * up`.
#[inline(always)]
pub(crate) fn swiglu<L: Lanes>(out: &mut [f32], gate: &[f32], up: &[f32]) {
    let whole = out.len() / 8 * 8;
    let one = L::splat(1.0);
    let mut i = 0;
    while i < whole {
        let g = L::load(&gate[i..]);
        let e = L::splat(0.0).sub(g).exp();
        g.div(one.add(e))
            .mul(L::load(&up[i..]))
            .store(&mut out[i..]);
        i += 8;
    }
    for i in whole..out.len() {
        let g = gate[i];
        out[i] = g / (1.0 + exp(0.0 - g)) * up[i];
    }
}

pub(crate) static GATHER_ROWS: HostPoint = HostPoint {
    id: "gather_rows/f32",
    args: decl::GATHER_ROWS,
    needs: |a| {
        let cols = a.u32(3);
        positive(&[("cols", cols)])?;
        let delta = if a.u32(4) == 0 {
            f32s(Unit::One, 0)
        } else {
            f32s(Unit::Row, cols)
        };
        Ok(vec![
            f32s(Unit::Row, cols),
            delta,
            f32s(Unit::LogitsRow, cols),
        ])
    },
    grid: |a, c| tiling::rows(c.logits_rows, a.u32(3)),
    run: gather_rows,
};

fn gather_rows(tile: &mut Tile<'_>, step: &StepBlock, _: &mut Scratch) -> Result<(), TileFault> {
    let (cols, has_delta) = (tile.args().u32(3), tile.args().u32(4) != 0);
    let (res, delta) = (tile.input::<f32>(0), tile.input::<f32>(1));
    let mut out = tile.output::<f32>(2, RowShape::whole(cols));
    for index in tile.rows() {
        let (row, rows) = (step.logits_rows()[index], step.counts().rows);
        if row >= rows {
            return Err(TileFault::LogitsRow { index, row, rows });
        }
        let at = row as usize * cols;
        let to = out.row(index);
        to.copy_from_slice(&res[at..at + cols]);
        if has_delta {
            add(to, &delta[at..at + cols]);
        }
    }
    Ok(())
}
