// SPDX-License-Identifier: MIT OR Apache-2.0
//! `scale`, `softcap` and `geglu`: what some families do beside or instead of the usual.
//!
//! *Spec*: `scale`: `x * factor`. `softcap`: `cap * tanh(x / cap)`. `geglu`: `(0.5 * g * (1 + tanh(0.7978846 * (g +
//! 0.044715 * (g * g * g))))) * u`. [`metrale_core::numeric::math::tanh`]; each operation rounded, products from the left.

use metrale_core::numeric::math::tanh;
use metrale_core::{ArgDecl, Unit};

use crate::args::{Grid, RowShape, Tile};
use crate::decl::{STEP, f, r, rw, u, w};
use crate::isa::on_isa;
use crate::point::{HostPoint, f32s, positive, row_unit, unit_rows};
use crate::tiling;

const SCALE_ARGS: &[ArgDecl] = &[rw("x"), u("cols"), f("factor"), u("rows_unit"), STEP];
const SOFTCAP_ARGS: &[ArgDecl] = &[rw("x"), u("cols"), f("cap"), u("rows_unit"), STEP];
const GEGLU_ARGS: &[ArgDecl] = &[r("gu"), w("h"), u("ffn"), STEP];

/// Runs `body` on each row of the tile, with the constant.
fn in_place(tile: &mut Tile<'_>, body: impl Fn(&mut [f32], f32)) {
    let (cols, value) = (tile.args().u32(1), tile.args().f32(2));
    let mut x = tile.output::<f32>(0, RowShape::whole(cols));
    for r in tile.rows() {
        body(x.row(r), value);
    }
}

pub(crate) static SCALE: HostPoint = HostPoint {
    id: "scale/f32",
    args: SCALE_ARGS,
    needs: |a| {
        positive(&[("cols", a.u32(1))])?;
        Ok(vec![f32s(row_unit(a.u32(3))?, a.u32(1))])
    },
    grid: |a, c| tiling::rows(unit_rows(a.u32(3), c), a.u32(1)),
    run: |tile, _, _| {
        let isa = tile.args().isa;
        in_place(
            tile,
            |row, factor| on_isa!(isa, scale, (x: &mut [f32] = row, factor: f32 = factor)),
        );
        Ok(())
    },
};

#[inline(always)]
fn scale(x: &mut [f32], factor: f32) {
    x.iter_mut().for_each(|x| *x *= factor);
}

pub(crate) static SOFTCAP: HostPoint = HostPoint {
    id: "softcap/f32",
    args: SOFTCAP_ARGS,
    needs: |a| {
        positive(&[("cols", a.u32(1))])?;
        Ok(vec![f32s(row_unit(a.u32(3))?, a.u32(1))])
    },
    grid: |a, c| tiling::rows(unit_rows(a.u32(3), c), a.u32(1)),
    run: |tile, _, _| {
        in_place(tile, |row, cap| {
            row.iter_mut().for_each(|x| *x = cap * tanh(*x / cap));
        });
        Ok(())
    },
};

/// Columns of a `geglu` tile.
const SLICE: u32 = 512;

pub(crate) static GEGLU: HostPoint = HostPoint {
    id: "geglu/f32",
    args: GEGLU_ARGS,
    needs: |a| {
        let ffn = a.u32(2);
        positive(&[("ffn", ffn)])?;
        Ok(vec![f32s(Unit::Row, 2 * ffn), f32s(Unit::Row, ffn)])
    },
    grid: |a, c| Grid {
        rows: c.rows,
        row_block: 1,
        cols: (a.u32(2) as u32).div_ceil(SLICE),
        col_block: 1,
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
            for ((h, g), u) in out.iter_mut().zip(gate).zip(up) {
                *h = gelu(*g) * u;
            }
        }
        Ok(())
    },
};

/// The tanh form: Hendrycks and Gimpel, "Gaussian Error Linear Units", arXiv 1606.08415.
fn gelu(g: f32) -> f32 {
    let t = tanh(0.797_884_6 * (g + 0.044_715 * (g * g * g)));
    0.5 * g * (1.0 + t)
}
