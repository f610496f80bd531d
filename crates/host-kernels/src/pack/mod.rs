// SPDX-License-Identifier: MIT OR Apache-2.0
//! `pack`: raw disk rows into the packed layout, and plain vectors to f32. No arithmetic but exact widening, and
//! quantization to fp8 where a plan asks for it ([`fp8`]).
//!
//! `pack/<format>` writes rows `dst_row..dst_row + rows` of a tensor of `dst_rows_total` rows. The launch that holds the
//! last row zeroes the rows that fill up its group. `pack/<format>_vec` widens `rows * cols` values to f32, from value
//! `dst_row * cols` of `dst` on.

mod fp8;

use metrale_core::{Elem, StepBlock, Unit};

use crate::args::{Args, Grid, RowShape, Tile};
use crate::decl;
use crate::embed::packed;
use crate::formats::{self, Format};
use crate::layout::GROUP;
use crate::point::{BadConstants, HostPoint, Need, TileFault, f32s, positive};
use crate::scratch::Scratch;

const fn point<F: Format>(id: &'static str) -> HostPoint {
    HostPoint {
        id,
        args: decl::PACK,
        needs: needs::<F>,
        grid: |a, _| grid(a),
        run: run::<F>,
    }
}

const fn vector<F: Format>(id: &'static str) -> HostPoint {
    HostPoint {
        id,
        args: decl::PACK,
        needs: vector_needs::<F>,
        grid: |a, _| Grid::rows(a.u32(2) as u32, 64),
        run: vector_run::<F>,
    }
}

static PLAIN: [HostPoint; 19] = [
    point::<formats::F32>("pack/f32"),
    point::<formats::BF16>("pack/bf16"),
    point::<formats::F16>("pack/f16"),
    point::<formats::Q8_0>("pack/q8_0"),
    point::<formats::Q4_0>("pack/q4_0"),
    point::<formats::Q4_1>("pack/q4_1"),
    point::<formats::Q5_0>("pack/q5_0"),
    point::<formats::Q5_1>("pack/q5_1"),
    point::<formats::Q2K>("pack/q2_k"),
    point::<formats::Q3K>("pack/q3_k"),
    point::<formats::Q4K>("pack/q4_k"),
    point::<formats::Q5K>("pack/q5_k"),
    point::<formats::Q6K>("pack/q6_k"),
    point::<formats::Iq4Nl>("pack/iq4_nl"),
    point::<formats::Iq4Xs>("pack/iq4_xs"),
    point::<formats::Mxfp4>("pack/mxfp4"),
    vector::<formats::F32>("pack/f32_vec"),
    vector::<formats::BF16>("pack/bf16_vec"),
    vector::<formats::F16>("pack/f16_vec"),
];

pub(crate) fn points() -> impl Iterator<Item = &'static HostPoint> {
    PLAIN.iter().chain(&fp8::POINTS)
}

fn rows_fit(a: &Args) -> Result<(), BadConstants> {
    let (rows, cols, first, total) = (a.u32(2), a.u32(3), a.u32(4), a.u32(5));
    positive(&[("rows", rows), ("cols", cols)])?;
    if first + rows > total {
        return Err(BadConstants::new(format!(
            "rows {first}..{} end past the tensor's {total} rows",
            first + rows
        )));
    }
    Ok(())
}

fn needs<F: Format>(a: &Args) -> Result<Vec<Need>, BadConstants> {
    rows_fit(a)?;
    let (rows, cols, total) = (a.u32(2), a.u32(3), a.u32(5));
    let dst = packed::<F>(total, cols)?;
    let bytes = (rows * (cols / F::ELEMS) * F::DISK) as u64;
    Ok(vec![Need::Bytes { bytes }, dst])
}

/// Rows of the grid are the groups that the rows touch.
fn grid(a: &Args) -> Grid {
    let (rows, first) = (a.u32(2), a.u32(4));
    let groups = (first + rows).div_ceil(GROUP) - first / GROUP;
    Grid::rows(groups as u32, 4)
}

fn run<F: Format>(tile: &mut Tile<'_>, _: &StepBlock, _: &mut Scratch) -> Result<(), TileFault> {
    let args = tile.args();
    let (rows, cols, first, total) = (args.u32(2), args.u32(3), args.u32(4), args.u32(5));
    let src = tile.input::<u8>(0);
    let blocks = cols / F::ELEMS;
    let shape = RowShape {
        first: first / GROUP,
        ..RowShape::whole(blocks * F::PACKED)
    };
    let mut dst = tile.output::<u8>(1, shape);
    for r in tile.rows() {
        let group = dst.row(r);
        for lane in 0..GROUP {
            let row = (first / GROUP + r) * GROUP + lane;
            let last = first + rows == total && row >= total;
            if !last && !(first..first + rows).contains(&row) {
                continue;
            }
            let disk = |b: usize| {
                let at = ((row - first) * blocks + b) * F::DISK;
                &src[at..at + F::DISK]
            };
            for (b, packed) in group.chunks_exact_mut(F::PACKED).enumerate() {
                if last {
                    F::pack(&[0; 256][..F::DISK], lane, packed);
                } else {
                    F::pack(disk(b), lane, packed);
                }
            }
        }
    }
    Ok(())
}

fn vector_needs<F: Format>(a: &Args) -> Result<Vec<Need>, BadConstants> {
    rows_fit(a)?;
    let (rows, cols, total) = (a.u32(2), a.u32(3), a.u32(5));
    debug_assert!(matches!(F::ELEM, Elem::F32 | Elem::BF16 | Elem::F16));
    Ok(vec![
        Need::Bytes {
            bytes: (rows * cols * F::DISK) as u64,
        },
        f32s(Unit::One, total * cols),
    ])
}

fn vector_run<F: Format>(
    tile: &mut Tile<'_>,
    _: &StepBlock,
    _: &mut Scratch,
) -> Result<(), TileFault> {
    let args = tile.args();
    let cols = args.u32(3);
    let src = tile.input::<u8>(0);
    let shape = RowShape {
        first: args.u32(4),
        ..RowShape::whole(cols)
    };
    let mut dst = tile.output::<f32>(1, shape);
    for r in tile.rows() {
        let from = &src[r * cols * F::DISK..(r + 1) * cols * F::DISK];
        for (value, to) in from.chunks_exact(F::DISK).zip(dst.row(r)) {
            F::unpack(value, 0, std::slice::from_mut(to));
        }
    }
    Ok(())
}
