// SPDX-License-Identifier: MIT OR Apache-2.0
//! The paged KV pool: its formats, `tables` and `kv_write`.
//!
//! Pool spans are `[blocks, kv_heads, head]`, a head's 16 tokens as [`metrale_core::kv`] draws them; the block tables are
//! `[slots, blocks_per_slot]`. *Spec* of `kv_write`: round to nearest even to the pool's type; int8 and e4m3 by
//! [`metrale_core::kv::scale`] of each token and head.

mod format;

use metrale_core::{Elem, KV_BLOCK, StepBlock, StepCounts, Unit, kv as layout};

use crate::args::{Args, Grid, RowShape, Tile};
use crate::decl;
use crate::point::{BadConstants, HostPoint, Need, TileFault, f32s, positive};
use crate::scratch::Scratch;
pub(crate) use format::{Bf16, E4m3, F16, Int8, KvElem};

/// The pool's need for one of K or V.
pub(crate) fn pool<T: KvElem>(kv_heads: usize, head_dim: usize) -> Result<Need, BadConstants> {
    let elems = layout::block_elems(T::ELEM, kv_heads as u64, head_dim as u64);
    let too_large = || BadConstants::new(format!("{kv_heads} KV heads of {head_dim}"));
    Ok(Need::Values {
        elem: T::ELEM,
        unit: Unit::KvBlock,
        elems: elems.ok_or_else(too_large)?,
    })
}

/// The tables' need.
pub(crate) fn tables(blocks_per_slot: usize) -> Need {
    Need::Values {
        elem: Elem::U32,
        unit: Unit::Slot,
        elems: blocks_per_slot as u64,
    }
}

/// The block that holds `position` of `slot`.
#[inline]
pub(crate) fn block_of(
    tables: &[u32],
    blocks_per_slot: usize,
    slot: u32,
    position: u32,
) -> Result<usize, TileFault> {
    let index = (position / KV_BLOCK) as usize;
    let past = TileFault::Position {
        slot,
        position,
        blocks: blocks_per_slot,
    };
    if index >= blocks_per_slot {
        return Err(past);
    }
    let at = slot as usize * blocks_per_slot + index;
    tables.get(at).map(|b| *b as usize).ok_or(past)
}

pub(crate) static TABLES: HostPoint = HostPoint {
    id: "tables/u32",
    args: decl::TABLES,
    needs: |_| Ok(vec![tables(1)]),
    grid: |_, c| Grid::rows(u32::from(c.deltas > 0), 1),
    run: |tile, step, _| {
        let (first, own) = (tile.args().u32(1), tile.args().u32(2));
        let entries = tile.span_len::<u32>(0);
        let mut tables = tile.output::<u32>(0, RowShape::whole(entries));
        let tables = tables.row(0);
        for (entry, block) in step.deltas() {
            let Some(index) = (entry as usize).checked_sub(first).filter(|i| *i < own) else {
                continue; // Of another group's tables.
            };
            match tables.get_mut(index) {
                Some(at) => *at = block,
                None => return Err(TileFault::Delta { entry, entries }),
            }
        }
        Ok(())
    },
};

const fn kv_write_point<T: KvElem>(id: &'static str) -> HostPoint {
    HostPoint {
        id,
        args: decl::KV_WRITE,
        needs: kv_write_needs::<T>,
        // By heads alone: whatever the tables say, two tiles then never write the same bytes.
        grid: |a: &Args, c: StepCounts| Grid {
            rows: u32::from(c.rows > 0),
            row_block: 1,
            cols: a.u32(5) as u32,
            col_block: 1,
        },
        run: kv_write::<T>,
    }
}

pub(crate) static KV_WRITE: [HostPoint; 5] = [
    kv_write_point::<f32>("kv_write/f32"),
    kv_write_point::<Bf16>("kv_write/bf16"),
    kv_write_point::<F16>("kv_write/f16"),
    kv_write_point::<Int8>("kv_write/i8"),
    kv_write_point::<E4m3>("kv_write/f8_e4m3"),
];

fn kv_write_needs<T: KvElem>(a: &Args) -> Result<Vec<Need>, BadConstants> {
    let (heads, kv, dim, per_slot) = (a.u32(4), a.u32(5), a.u32(6), a.u32(7));
    positive(&[
        ("heads", heads),
        ("kv_heads", kv),
        ("head_dim", dim),
        ("blocks_per_slot", per_slot),
    ])?;
    let pool = pool::<T>(kv, dim)?;
    Ok(vec![
        f32s(Unit::Row, (heads + 2 * kv) * dim),
        pool,
        pool,
        tables(per_slot),
    ])
}

fn kv_write<T: KvElem>(
    tile: &mut Tile<'_>,
    step: &StepBlock,
    _: &mut Scratch,
) -> Result<(), TileFault> {
    let args = tile.args();
    let (heads, kv, dim, per_slot) = (args.u32(4), args.u32(5), args.u32(6), args.u32(7));
    let (qkv, tables) = (tile.input::<f32>(0), tile.input::<u32>(3));
    let mut k = tile.kv_output::<T::Raw>(1, kv, T::head_len(dim));
    let mut v = tile.kv_output::<T::Raw>(2, kv, T::head_len(dim));
    for (r, (slot, position)) in step.slots().iter().zip(step.positions()).enumerate() {
        let block = block_of(tables, per_slot, *slot, *position)?;
        let offset = (position % KV_BLOCK) as usize;
        let row = &qkv[r * (heads + 2 * kv) * dim..][..(heads + 2 * kv) * dim];
        for head in tile.cols() {
            let fault = TileFault::Block {
                slot: *slot,
                block: block as u32,
            };
            let key = &row[(heads + head) * dim..][..dim];
            T::store(args.isa, k.head(block, head).ok_or(fault)?, offset, key);
            let value = &row[(heads + kv + head) * dim..][..dim];
            T::store(args.isa, v.head(block, head).ok_or(fault)?, offset, value);
        }
    }
    Ok(())
}
