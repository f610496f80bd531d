// SPDX-License-Identifier: MIT OR Apache-2.0
//! The paged KV pool: its element types, `tables` and `kv_write`.
//!
//! Pool spans are `[blocks, kv_heads, 16, head_dim]`; the block tables are `[slots, blocks_per_slot]`. *Spec* of
//! `kv_write`: round to nearest even to the pool's type.

use metrale_core::{Elem, KV_BLOCK, StepBlock, StepCounts, Unit};

use crate::args::{Args, Grid, Plain, RowShape, Tile};
use crate::decl;
use crate::isa::{Isa, on_isa};
use crate::lanes::{bf16_to_f32, f16_to_f32};
use crate::point::{BadConstants, HostPoint, Need, TileFault, f32s, positive};
use crate::scratch::Scratch;

/// A type that the pool may hold.
pub(crate) trait KvElem: Plain {
    const ELEM: Elem;
    fn to_f32(self) -> f32;
    fn from_f32(v: f32) -> Self;
    /// Widens equally many values.
    fn widen(isa: Isa, to: &mut [f32], from: &[Self]);
}

#[inline(always)]
fn widen<T: KvElem>(to: &mut [f32], from: &[T]) {
    for (t, f) in to.iter_mut().zip(from) {
        *t = f.to_f32();
    }
}

/// bfloat16 by its bits.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(crate) struct Bf16(u16);
// SAFETY: a transparent u16.
unsafe impl Plain for Bf16 {}

/// IEEE half by its bits.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(crate) struct F16(u16);
// SAFETY: a transparent u16.
unsafe impl Plain for F16 {}

/// [`widen`] by F16C: exact, so the same bits.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c")]
fn widen_f16c(to: &mut [f32], from: &[F16]) {
    use std::arch::x86_64::*;
    let whole = to.len().min(from.len()) / 8 * 8;
    for i in (0..whole).step_by(8) {
        // SAFETY: eight values from `i` on, in both; `F16` is a transparent u16.
        unsafe {
            let halves = _mm_loadu_si128(from.as_ptr().add(i).cast());
            _mm256_storeu_ps(to.as_mut_ptr().add(i), _mm256_cvtph_ps(halves));
        }
    }
    widen(&mut to[whole..], &from[whole..]);
}

impl KvElem for f32 {
    const ELEM: Elem = Elem::F32;
    #[inline(always)]
    fn to_f32(self) -> f32 {
        self
    }
    #[inline(always)]
    fn from_f32(v: f32) -> f32 {
        v
    }
    fn widen(isa: Isa, to: &mut [f32], from: &[f32]) {
        on_isa!(isa, widen::<f32>, (to: &mut [f32] = to, from: &[f32] = from));
    }
}

impl KvElem for Bf16 {
    const ELEM: Elem = Elem::BF16;
    #[inline(always)]
    fn to_f32(self) -> f32 {
        bf16_to_f32(self.0)
    }
    #[inline(always)]
    fn from_f32(v: f32) -> Bf16 {
        Bf16(half::bf16::from_f32(v).to_bits())
    }
    fn widen(isa: Isa, to: &mut [f32], from: &[Bf16]) {
        on_isa!(isa, widen::<Bf16>, (to: &mut [f32] = to, from: &[Bf16] = from));
    }
}

impl KvElem for F16 {
    const ELEM: Elem = Elem::F16;
    #[inline(always)]
    fn to_f32(self) -> f32 {
        f16_to_f32(self.0)
    }
    #[inline(always)]
    fn from_f32(v: f32) -> F16 {
        F16(half::f16::from_f32(v).to_bits())
    }
    fn widen(isa: Isa, to: &mut [f32], from: &[F16]) {
        #[cfg(target_arch = "x86_64")]
        if isa.has_avx2() {
            // SAFETY: `Isa` says AVX2 only after the processor said it, with F16C.
            return unsafe { widen_f16c(to, from) };
        }
        let _ = isa;
        widen(to, from);
    }
}

/// The pool's need for one of K or V.
pub(crate) fn pool(elem: Elem, kv_heads: usize, head_dim: usize) -> Need {
    let elems = (kv_heads * KV_BLOCK as usize * head_dim) as u64;
    Need::Values {
        elem,
        unit: Unit::KvBlock,
        elems,
    }
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
        let entries = tile.span_len::<u32>(0);
        let mut tables = tile.output::<u32>(0, RowShape::whole(entries));
        let tables = tables.row(0);
        for (entry, block) in step.deltas() {
            match tables.get_mut(entry as usize) {
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

pub(crate) static KV_WRITE_F32: HostPoint = kv_write_point::<f32>("kv_write/f32");
pub(crate) static KV_WRITE_BF16: HostPoint = kv_write_point::<Bf16>("kv_write/bf16");
pub(crate) static KV_WRITE_F16: HostPoint = kv_write_point::<F16>("kv_write/f16");

fn kv_write_needs<T: KvElem>(a: &Args) -> Result<Vec<Need>, BadConstants> {
    let (heads, kv, dim, per_slot) = (a.u32(4), a.u32(5), a.u32(6), a.u32(7));
    positive(&[
        ("heads", heads),
        ("kv_heads", kv),
        ("head_dim", dim),
        ("blocks_per_slot", per_slot),
    ])?;
    let pool = pool(T::ELEM, kv, dim);
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
    let mut k = tile.kv_output::<T>(1, kv, dim);
    let mut v = tile.kv_output::<T>(2, kv, dim);
    for (r, (slot, position)) in step.slots().iter().zip(step.positions()).enumerate() {
        let block = block_of(tables, per_slot, *slot, *position)?;
        let offset = (position % KV_BLOCK) as usize;
        let row = &qkv[r * (heads + 2 * kv) * dim..][..(heads + 2 * kv) * dim];
        for head in tile.cols() {
            let fault = TileFault::Block {
                slot: *slot,
                block: block as u32,
            };
            let to = k.token(block, head, offset).ok_or(fault)?;
            round(to, &row[(heads + head) * dim..][..dim]);
            let to = v.token(block, head, offset).ok_or(fault)?;
            round(to, &row[(heads + kv + head) * dim..][..dim]);
        }
    }
    Ok(())
}

pub(crate) fn round<T: KvElem>(to: &mut [T], from: &[f32]) {
    for (t, f) in to.iter_mut().zip(from) {
        *t = T::from_f32(*f);
    }
}
