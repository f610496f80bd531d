// SPDX-License-Identifier: MIT OR Apache-2.0
//! `expert_linear`: `linear` with a matrix of its own for each slot of a row, that of the slot's expert.
//!
//! A stack of matrices is packed as one tensor of `experts * n` rows; `n` is a whole number of groups, so that an expert
//! begins with a group. A row of the launch is a (row, slot) pair. A tile takes its pairs expert by expert, each with the
//! inner loops of `linear`: an output is the same chain whatever pairs stand beside it. *Spec*: that of `linear`.

use metrale_core::{ArgDecl, Elem, StepCounts, Unit};

use super::{TILE_BYTES, TILE_PRODUCTS, Work};
use crate::args::{Args, Grid, Plain, RowShape, Tile};
use crate::decl::{STEP, r, u, w};
use crate::embed::packed;
use crate::formats::Format;
use crate::layout::GROUP;
use crate::point::{BadConstants, HostPoint, Need, RunTile, TileFault, f32s, positive};
use crate::scratch::Scratch;

const ARGS: &[ArgDecl] = &[
    r("x"),
    r("ids"),
    r("w"),
    r("bias"),
    w("y"),
    u("k"),
    u("n"),
    u("experts"),
    u("slots"),
    u("x_slots"),
    u("x_ld"),
    u("y_col"),
    u("y_ld"),
    u("has_ids"),
    u("has_bias"),
    STEP,
];

/// Most pairs of a tile: with many rows, each expert's weights are read once for all of them.
const TILE_PAIRS: usize = 1024;

pub(super) const fn point<F: Format>(id: &'static str, a16: bool, run: RunTile) -> HostPoint {
    HostPoint {
        id,
        args: ARGS,
        needs: if a16 { needs_a16::<F> } else { needs_f32::<F> },
        grid: grid::<F>,
        run,
    }
}

fn needs_f32<F: Format>(a: &Args) -> Result<Vec<Need>, BadConstants> {
    needs::<F>(a, f32s(Unit::Row, a.u32(9) * a.u32(10)))
}

fn needs_a16<F: Format>(a: &Args) -> Result<Vec<Need>, BadConstants> {
    let block = crate::quantize::A16_BLOCK;
    if !a.u32(10).is_multiple_of(block) {
        return Err(BadConstants::new(format!(
            "x_ld is {}, no multiple of the {block} values of an A16 block",
            a.u32(10)
        )));
    }
    needs::<F>(a, crate::quantize::a16s(Unit::Row, a.u32(9) * a.u32(10)))
}

fn needs<F: Format>(a: &Args, x: Need) -> Result<Vec<Need>, BadConstants> {
    let (k, n, experts, slots, x_slots) = (a.u32(5), a.u32(6), a.u32(7), a.u32(8), a.u32(9));
    let (x_ld, y_col, y_ld) = (a.u32(10), a.u32(11), a.u32(12));
    let (has_ids, has_bias) = (a.u32(13) != 0, a.u32(14) != 0);
    positive(&[("k", k), ("n", n), ("experts", experts), ("slots", slots)])?;
    if !n.is_multiple_of(GROUP)
        || k > x_ld
        || y_col + n > y_ld
        || (x_slots != 1 && x_slots != slots)
        || (!has_ids && slots != experts)
    {
        return Err(BadConstants::new(format!(
            "{experts} experts of {n} x {k} (whole groups of {GROUP} rows) for {slots} slots cannot read {x_slots} \
             times {x_ld} columns and write columns {y_col}..{} of {y_ld}",
            y_col + n
        )));
    }
    let ids = Need::Values {
        elem: if has_ids { Elem::U32 } else { Elem::F32 },
        unit: if has_ids { Unit::Row } else { Unit::One },
        elems: if has_ids { slots as u64 } else { 0 },
    };
    let bias = f32s(Unit::One, if has_bias { experts * n } else { 0 });
    let y = f32s(Unit::Row, slots * y_ld);
    Ok(vec![x, ids, packed::<F>(experts * n, k)?, bias, y])
}

fn grid<F: Format>(a: &Args, c: StepCounts) -> Grid {
    let (k, n, slots) = (a.u32(5), a.u32(6), a.u32(8));
    let pairs = (c.rows as usize * slots).clamp(1, TILE_PAIRS);
    let group_bytes = k / F::ELEMS * F::PACKED;
    let touched = pairs.min(a.u32(7));
    let by_bytes = TILE_BYTES / (group_bytes * touched).max(1);
    let by_products = TILE_PRODUCTS / (k * GROUP * pairs).max(1);
    Grid {
        rows: c.rows * slots as u32,
        row_block: pairs as u32,
        cols: (n / GROUP) as u32,
        col_block: by_bytes.max(by_products).max(1) as u32,
    }
}

/// Runs `inner` on each expert of a tile; `per_block` is the values of one activation element.
pub(super) fn run<'a, F: Format, X: Plain>(
    tile: &mut Tile<'a>,
    scratch: &mut Scratch,
    per_block: usize,
    mut inner: impl FnMut(&mut Work<'a, X>),
) -> Result<(), TileFault> {
    let a = tile.args();
    let (k, n, experts, slots, x_slots) = (a.u32(5), a.u32(6), a.u32(7), a.u32(8), a.u32(9));
    let (x_ld, y_col, y_ld, has_ids) = (a.u32(10), a.u32(11), a.u32(12), a.u32(13) != 0);
    let has_bias = a.u32(14) != 0;
    let (weights, bias) = (tile.input::<u8>(2), tile.input::<f32>(3));
    let mut keys = std::mem::take(&mut scratch.keys);
    keys.clear();
    for pair in tile.rows() {
        let expert = match has_ids {
            true => tile.input::<u32>(1)[pair] as usize,
            false => pair % slots,
        };
        if expert >= experts {
            return Err(TileFault::Expert {
                row: pair / slots,
                id: expert as u32,
                experts,
            });
        }
        keys.push((expert as u64) << 32 | pair as u64);
    }
    keys.sort_unstable();
    let (groups, group_bytes) = (tile.cols(), k / F::ELEMS * F::PACKED);
    let mut work = Work {
        x: tile.input::<X>(0),
        ld: k / per_block,
        x_ld: x_ld / per_block,
        x_div: if x_slots == 1 { slots } else { 1 },
        index: std::mem::take(&mut scratch.index),
        w: &[],
        group_bytes,
        rows: 0..0,
        groups: groups.len(),
        y: tile.output::<f32>(
            4,
            RowShape {
                first: 0,
                ld: y_ld,
                base: y_col,
                width: n,
                unit: GROUP,
            },
        ),
        bias: &[],
    };
    for same in keys.chunk_by(|a, b| a >> 32 == b >> 32) {
        let expert = (same[0] >> 32) as usize;
        work.index.clear();
        work.index.extend(same.iter().map(|key| *key as u32));
        work.rows = 0..same.len();
        let first = expert * (n / GROUP) + groups.start;
        work.w = &weights[first * group_bytes..(first + groups.len()) * group_bytes];
        if has_bias {
            work.bias = &bias[expert * n + groups.start * GROUP..expert * n + groups.end * GROUP];
        }
        inner(&mut work);
    }
    scratch.index = work.index;
    scratch.keys = keys;
    Ok(())
}
