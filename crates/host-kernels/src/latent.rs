// SPDX-License-Identifier: MIT OR Apache-2.0
//! Parts of rows: `head_norm`, `rope_part`, and `latent_write`, which stores a row in a paged stream of its own.
//!
//! *Spec*: those of `rmsnorm`, `rope` and `kv_write`, on the columns named. For multi-head latent attention, DeepSeek-V2,
//! arXiv 2405.04434.

use metrale_core::{ArgDecl, KV_BLOCK, StepBlock, Unit};

use crate::args::{Args, Grid, RowShape, Tile};
use crate::decl::{STEP, f, r, rw, u, w};
use crate::isa::on_isa;
use crate::kv::{Bf16, F16, KvElem, block_of, pool, tables};
use crate::lanes::on_lanes;
use crate::norm::norm_in_place;
use crate::point::{BadConstants, HostPoint, Need, TileFault, f32s, positive};
use crate::rope::{even, rotate};
use crate::scratch::Scratch;
use crate::tiling;

const HEAD_NORM_ARGS: &[ArgDecl] = &[
    rw("x"),
    r("w"),
    u("heads"),
    u("stride"),
    u("offset"),
    u("dim"),
    f("eps"),
    STEP,
];
const ROPE_PART_ARGS: &[ArgDecl] = &[
    rw("x"),
    r("cs"),
    u("heads"),
    u("stride"),
    u("offset"),
    u("rot"),
    STEP,
];
const LATENT_WRITE_ARGS: &[ArgDecl] = &[
    r("x"),
    w("kv"),
    r("tables"),
    u("cols"),
    u("blocks_per_slot"),
    STEP,
];

fn within(what: &str, end: usize, stride: usize) -> Result<(), BadConstants> {
    if end <= stride {
        return Ok(());
    }
    Err(BadConstants::new(format!(
        "{what} end at column {end} of a head of {stride}"
    )))
}

pub(crate) static HEAD_NORM: HostPoint = HostPoint {
    id: "head_norm/f32",
    args: HEAD_NORM_ARGS,
    needs: |a| {
        let (heads, stride, offset, dim) = (a.u32(2), a.u32(3), a.u32(4), a.u32(5));
        positive(&[("heads", heads), ("dim", dim)])?;
        within("normed columns", offset + dim, stride)?;
        Ok(vec![f32s(Unit::Row, heads * stride), f32s(Unit::One, dim)])
    },
    grid: |a, c| tiling::rows(c.rows, a.u32(2) * a.u32(3)),
    run: |tile, _, _| {
        let args = tile.args();
        let (heads, stride, offset, dim) = (args.u32(2), args.u32(3), args.u32(4), args.u32(5));
        let eps = args.f32(6);
        let weight = &tile.input::<f32>(1)[..dim];
        let mut x = tile.output::<f32>(0, RowShape::whole(heads * stride));
        for r in tile.rows() {
            for head in x.row(r).chunks_exact_mut(stride) {
                on_lanes!(args.isa, norm_in_place,
                    (x: &mut [f32] = &mut head[offset..offset + dim], w: &[f32] = weight, eps: f32 = eps));
            }
        }
        Ok(())
    },
};

pub(crate) static ROPE_PART: HostPoint = HostPoint {
    id: "rope_part/f32",
    args: ROPE_PART_ARGS,
    needs: |a| {
        let (heads, stride, offset, rot) = (a.u32(2), a.u32(3), a.u32(4), a.u32(5));
        positive(&[("heads", heads)])?;
        even(rot)?;
        within("rotated columns", offset + rot, stride)?;
        Ok(vec![f32s(Unit::Row, heads * stride), f32s(Unit::Row, rot)])
    },
    grid: |a, c| tiling::rows(c.rows, a.u32(2) * a.u32(3)),
    run: |tile, _, _| {
        let args = tile.args();
        let (heads, stride, offset, rot) = (args.u32(2), args.u32(3), args.u32(4), args.u32(5));
        let cs = tile.input::<f32>(1);
        let mut x = tile.output::<f32>(0, RowShape::whole(heads * stride));
        for r in tile.rows() {
            let cs = &cs[r * rot..(r + 1) * rot];
            for head in x.row(r).chunks_exact_mut(stride) {
                let part = &mut head[offset..offset + rot];
                on_isa!(args.isa, rotate, (x: &mut [f32] = part, cs: &[f32] = cs));
            }
        }
        Ok(())
    },
};

const fn write_point<T: KvElem>(id: &'static str) -> HostPoint {
    HostPoint {
        id,
        args: LATENT_WRITE_ARGS,
        needs: write_needs::<T>,
        // One tile: whatever the tables say, no two tiles then write the same bytes.
        grid: |_, c| Grid::rows(u32::from(c.rows > 0), 1),
        run: write::<T>,
    }
}

pub(crate) static LATENT_WRITE: [HostPoint; 3] = [
    write_point::<f32>("latent_write/f32"),
    write_point::<Bf16>("latent_write/bf16"),
    write_point::<F16>("latent_write/f16"),
];

fn write_needs<T: KvElem>(a: &Args) -> Result<Vec<Need>, BadConstants> {
    let (cols, per_slot) = (a.u32(3), a.u32(4));
    positive(&[("cols", cols), ("blocks_per_slot", per_slot)])?;
    let x = f32s(Unit::Row, cols);
    Ok(vec![x, pool::<T>(1, cols)?, tables(per_slot)])
}

fn write<T: KvElem>(
    tile: &mut Tile<'_>,
    step: &StepBlock,
    _: &mut Scratch,
) -> Result<(), TileFault> {
    let (cols, per_slot, isa) = (tile.args().u32(3), tile.args().u32(4), tile.args().isa);
    let (x, tables) = (tile.input::<f32>(0), tile.input::<u32>(2));
    let mut kv = tile.kv_output::<T::Raw>(1, 1, T::head_len(cols));
    for (r, (slot, position)) in step.slots().iter().zip(step.positions()).enumerate() {
        let block = block_of(tables, per_slot, *slot, *position)?;
        let fault = TileFault::Block {
            slot: *slot,
            block: block as u32,
        };
        let offset = (position % KV_BLOCK) as usize;
        let to = kv.head(block, 0).ok_or(fault)?;
        T::store(isa, to, offset, &x[r * cols..(r + 1) * cols]);
    }
    Ok(())
}
