// SPDX-License-Identifier: MIT OR Apache-2.0
//! `embed`: gathers rows of a packed table and dequantizes them. *Spec*: the values of [`crate::formats`], times `scale`.

use metrale_core::{StepBlock, Unit};

use crate::args::{Args, Grid, RowShape, Tile};
use crate::decl;
use crate::formats::{self, Format};
use crate::layout::{GROUP, packed_bytes};
use crate::point::{BadConstants, HostPoint, Need, TileFault, f32s, positive};
use crate::scratch::Scratch;

const fn point<F: Format>(id: &'static str) -> HostPoint {
    HostPoint {
        id,
        args: decl::EMBED,
        needs: needs::<F>,
        grid: |_, c| Grid::rows(c.rows, 4),
        run: run::<F>,
    }
}

pub(crate) static POINTS: [HostPoint; 18] = [
    point::<formats::F32>("embed/f32"),
    point::<formats::BF16>("embed/bf16"),
    point::<formats::F16>("embed/f16"),
    point::<formats::Q8_0>("embed/q8_0"),
    point::<formats::Q4_0>("embed/q4_0"),
    point::<formats::Q4_1>("embed/q4_1"),
    point::<formats::Q5_0>("embed/q5_0"),
    point::<formats::Q5_1>("embed/q5_1"),
    point::<formats::Q2K>("embed/q2_k"),
    point::<formats::Q3K>("embed/q3_k"),
    point::<formats::Q4K>("embed/q4_k"),
    point::<formats::Q5K>("embed/q5_k"),
    point::<formats::Q6K>("embed/q6_k"),
    point::<formats::Iq4Nl>("embed/iq4_nl"),
    point::<formats::Iq4Xs>("embed/iq4_xs"),
    point::<formats::Mxfp4>("embed/mxfp4"),
    point::<formats::F8Row>("embed/f8_row"),
    point::<formats::F8Block>("embed/f8_block"),
];

fn needs<F: Format>(a: &Args) -> Result<Vec<Need>, BadConstants> {
    let (hidden, vocab) = (a.u32(2), a.u32(3));
    positive(&[("hidden", hidden), ("vocab", vocab)])?;
    Ok(vec![packed::<F>(vocab, hidden)?, f32s(Unit::Row, hidden)])
}

/// The need of a packed tensor.
pub(crate) fn packed<F: Format>(n: usize, k: usize) -> Result<Need, BadConstants> {
    match packed_bytes(F::ELEM, n as u64, k as u64) {
        Some(bytes) => Ok(Need::Packed {
            elem: F::ELEM,
            bytes,
        }),
        None => Err(BadConstants::new(format!(
            "{n} rows of {k} columns cannot be packed as {}: rows are blocks of {} values",
            F::ELEM,
            F::ELEMS
        ))),
    }
}

fn run<F: Format>(tile: &mut Tile<'_>, step: &StepBlock, _: &mut Scratch) -> Result<(), TileFault> {
    let args = tile.args();
    let (hidden, vocab, scale) = (args.u32(2), args.u32(3), args.f32(4));
    let table = tile.input::<u8>(0);
    let group_bytes = hidden.div_ceil(F::ELEMS) * F::PACKED;
    let mut out = tile.output::<f32>(1, RowShape::whole(hidden));
    for r in tile.rows() {
        let id = step.ids()[r];
        if id as usize >= vocab {
            return Err(TileFault::Token { row: r, id, vocab });
        }
        let group = &table[id as usize / GROUP * group_bytes..][..group_bytes];
        let out = out.row(r);
        let blocks = group.chunks_exact(F::PACKED);
        for (block, values) in blocks.zip(out.chunks_mut(F::ELEMS)) {
            F::unpack(block, id as usize % GROUP, values);
        }
        for v in out {
            *v *= scale;
        }
    }
    Ok(())
}
