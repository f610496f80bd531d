// SPDX-License-Identifier: MIT OR Apache-2.0
//! Packing fp8 weights: from rows with their scales ([`metrale_core::fp8`]), or from f32, bf16 and f16 rows, which are
//! quantized on the way, a scale per row or per 128 columns of one, by the rule of [`crate::fp8`].

use metrale_core::{Elem, StepBlock};

use super::{grid, rows_fit};
use crate::args::{Args, RowShape, Tile};
use crate::decl;
use crate::embed::packed;
use crate::formats::fp8::COLUMNS;
use crate::formats::{self, Format};
use crate::fp8;
use crate::isa::on_isa;
use crate::layout::GROUP;
use crate::point::{BadConstants, HostPoint, Need, RunTile, TileFault};
use crate::scratch::{Scratch, grown};

type Needs = fn(&Args) -> Result<Vec<Need>, BadConstants>;

const fn point(id: &'static str, needs: Needs, run: RunTile) -> HostPoint {
    HostPoint {
        id,
        args: decl::PACK,
        needs,
        grid: |a, _| grid(a),
        run,
    }
}

macro_rules! stored {
    ($id:literal, $to:ty) => {
        point($id, |a| needs::<$to>(a, <$to>::ELEM), run::<$to>)
    };
}

macro_rules! quantized {
    ($id:literal, $from:ty, $to:ty) => {
        point(
            $id,
            |a| needs::<$to>(a, <$from>::ELEM),
            quantize::<$from, $to>,
        )
    };
}

pub(super) static POINTS: [HostPoint; 8] = [
    stored!("pack/f8_row", formats::F8Row),
    stored!("pack/f8_block", formats::F8Block),
    quantized!("pack/f32_f8_row", formats::F32, formats::F8Row),
    quantized!("pack/f32_f8_block", formats::F32, formats::F8Block),
    quantized!("pack/bf16_f8_row", formats::BF16, formats::F8Row),
    quantized!("pack/bf16_f8_block", formats::BF16, formats::F8Block),
    quantized!("pack/f16_f8_row", formats::F16, formats::F8Row),
    quantized!("pack/f16_f8_block", formats::F16, formats::F8Block),
];

fn needs<F: Format>(a: &Args, from: Elem) -> Result<Vec<Need>, BadConstants> {
    rows_fit(a)?;
    let (rows, cols, total) = (a.u32(2), a.u32(3), a.u32(5));
    let bytes = (rows * fp8::pitch(from, cols)) as u64;
    Ok(vec![Need::Bytes { bytes }, packed::<F>(total, cols)?])
}

fn run<F: Format>(tile: &mut Tile<'_>, _: &StepBlock, _: &mut Scratch) -> Result<(), TileFault> {
    let cols = tile.args().u32(3);
    let pitch = fp8::pitch(F::ELEM, cols);
    each_row(
        tile,
        |src, row, put| {
            put(&src[row * pitch..(row + 1) * pitch]);
        },
        F::ELEM,
    )
}

fn quantize<F: Format, T: Format>(
    tile: &mut Tile<'_>,
    _: &StepBlock,
    scratch: &mut Scratch,
) -> Result<(), TileFault> {
    let (isa, cols) = (tile.args().isa, tile.args().u32(3));
    let per = fp8::per_scale(T::ELEM, cols);
    let between = grown(&mut scratch.f32s, cols);
    let mut bytes = vec![0; fp8::pitch(T::ELEM, cols)];
    each_row(
        tile,
        |src, row, put| {
            let from = &src[row * cols * F::DISK..(row + 1) * cols * F::DISK];
            for (value, to) in from.chunks_exact(F::DISK).zip(between.iter_mut()) {
                F::unpack(value, 0, std::slice::from_mut(to));
            }
            on_isa!(isa, fp8::quantize, (y: &mut [u8] = &mut bytes, x: &[f32] = between, per: usize = per));
            put(&bytes);
        },
        T::ELEM,
    )
}

/// Walks the rows of the tile's groups: `bytes_of` hands each row's bytes, values and scales, to what puts them in place.
fn each_row(
    tile: &mut Tile<'_>,
    mut bytes_of: impl FnMut(&[u8], usize, &mut dyn FnMut(&[u8])),
    elem: Elem,
) -> Result<(), TileFault> {
    let args = tile.args();
    let (rows, cols, first, total) = (args.u32(2), args.u32(3), args.u32(4), args.u32(5));
    let src = tile.input::<u8>(0);
    let per = fp8::per_scale(elem, cols);
    let shape = RowShape {
        first: first / GROUP,
        ..RowShape::whole(cols.div_ceil(COLUMNS) * formats::F8Row::PACKED)
    };
    let mut dst = tile.output::<u8>(1, shape);
    for r in tile.rows() {
        let group = dst.row(r);
        for lane in 0..GROUP {
            let row = (first / GROUP + r) * GROUP + lane;
            let mut put = |bytes: &[u8]| {
                let (values, scales) = bytes.split_at(cols.next_multiple_of(COLUMNS));
                let blocks = group.chunks_exact_mut(formats::F8Row::PACKED);
                for (b, (packed, values)) in blocks.zip(values.chunks_exact(COLUMNS)).enumerate() {
                    let mut block = [0; COLUMNS + 4];
                    block[..COLUMNS].copy_from_slice(values);
                    block[COLUMNS..].copy_from_slice(&scales[b * COLUMNS / per * 4..][..4]);
                    formats::F8Row::pack(&block, lane, packed);
                }
            };
            if (first..first + rows).contains(&row) {
                bytes_of(src, row - first, &mut put);
            } else if first + rows == total && row >= total {
                put(&vec![0; fp8::pitch(elem, cols)]);
            }
        }
    }
    Ok(())
}
