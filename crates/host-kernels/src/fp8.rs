// SPDX-License-Identifier: MIT OR Apache-2.0
//! `quantize_f8_row` and `quantize_f8_block`: f32 activations to rows of e4m3 with scales ([`metrale_core::fp8`]).
//!
//! *Spec*: `m` = the largest magnitude of the row, or of 128 columns; `s = m / 448`; `r = 1 / s`; `q` = e4m3 of `x * r`,
//! nearest even, saturating; each quotient and product rounded to f32. Where `r` is infinite all `q` are 0. A NaN or an
//! infinity makes `s` NaN and `q` 0.
//!
//! Class cpu multiplies fp8 weights by f32 activations: these points are the reference of the GPU classes', and packing
//! quantizes weights by the same rule.

use metrale_core::Elem;
use metrale_core::fp8::{self, scale_for};
use metrale_core::numeric::half::f8e4m3_from_f32;

use crate::args::RowShape;
use crate::isa::on_isa;
use crate::point::{HostPoint, Need, f32s, positive, row_unit, unit_rows};
use crate::{decl, tiling};

/// Columns that share a scale, in a row of `cols` columns.
pub(crate) fn per_scale(elem: Elem, cols: usize) -> usize {
    match elem {
        Elem::F8Row => cols,
        _ => fp8::BLOCK as usize,
    }
}

/// Bytes of a row of `cols` columns.
pub(crate) fn pitch(elem: Elem, cols: usize) -> usize {
    elem.bytes_for(cols as u64).unwrap_or(0) as usize
}

/// Quantizes one row into its bytes, a scale per `per` columns.
#[inline(always)]
pub(crate) fn quantize(y: &mut [u8], x: &[f32], per: usize) {
    let tail = x.len().next_multiple_of(fp8::BLOCK as usize);
    let (values, scales) = y.split_at_mut(tail);
    values[x.len()..].fill(0);
    scales.fill(0);
    let blocks = x.chunks(per).zip(values.chunks_mut(per));
    for ((x, q), to) in blocks.zip(scales.chunks_exact_mut(4)) {
        let (scale, inverse) = scale_for(largest(x));
        to.copy_from_slice(&scale.to_le_bytes());
        if inverse == 0.0 {
            q.fill(0);
            continue;
        }
        for (q, x) in q.iter_mut().zip(x) {
            *q = f8e4m3_from_f32(*x * inverse);
        }
    }
}

/// The largest magnitude; NaN counts above infinity, so that none is lost.
#[inline(always)]
pub(crate) fn largest(x: &[f32]) -> f32 {
    let mut top = [0u32; 8];
    for x in x.chunks(8) {
        for (top, x) in top.iter_mut().zip(x) {
            *top = (*top).max(x.to_bits() & 0x7fff_ffff);
        }
    }
    f32::from_bits(top.iter().fold(0, |a, b| a.max(*b)))
}

macro_rules! quantize_point {
    ($id:literal, $elem:expr) => {
        HostPoint {
            id: $id,
            args: decl::QUANTIZE,
            needs: |a| {
                let (cols, unit) = (a.u32(2), row_unit(a.u32(3))?);
                positive(&[("cols", cols)])?;
                let y = Need::Values {
                    elem: $elem,
                    unit,
                    elems: cols as u64,
                };
                Ok(vec![f32s(unit, cols), y])
            },
            grid: |a, c| tiling::rows(unit_rows(a.u32(3), c), a.u32(2)),
            run: |tile, _, _| {
                let args = tile.args();
                let cols = args.u32(2);
                let per = per_scale($elem, cols);
                let x = tile.input::<f32>(0);
                let mut y = tile.output::<u8>(1, RowShape::whole(pitch($elem, cols)));
                for r in tile.rows() {
                    let from = &x[r * cols..(r + 1) * cols];
                    on_isa!(args.isa, quantize,
                        (y: &mut [u8] = y.row(r), x: &[f32] = from, per: usize = per));
                }
                Ok(())
            },
        }
    };
}

pub(crate) static POINTS: [HostPoint; 2] = [
    quantize_point!("quantize_f8_row/f32", Elem::F8Row),
    quantize_point!("quantize_f8_block/f32", Elem::F8Block),
];
