// SPDX-License-Identifier: MIT OR Apache-2.0
//! `attention`: causal, paged, grouped queries, online softmax at fixed cuts.
//!
//! *Spec*, per row and head: keys `0..=position`, cut at absolute multiples of 256; a cut starts fresh (m = -inf, l = 0,
//! o = 0) and takes ascending steps of 16 keys (one KV block). In a step: score = `lanes8(q, k) * scale`; `m' = max(m,
//! scores)`; `c = exp(m - m')`, `p = exp(score - m')`; `l = l * c`, then `l + p` ascending; `o = o * c`, then `fma(p, v,
//! o)` ascending. Cuts merge ascending: `M' = max(M, m)`, `a = exp(M - M')`, `b = exp(m - M')`, `L = fma(l, b, L * a)`,
//! `O = fma(o, b, O * a)`. The result is `O * (1 / L)`. Keys past the position are never loaded. K and V are read as the
//! pool stores them, this step's included; everything else is f32. After Milakov and Gimelshein, "Online normalizer
//! calculation for softmax", arXiv 1805.02867.

#[cfg(target_arch = "x86_64")]
mod avx2;
mod step;

use std::ops::Range;

use metrale_core::{KV_BLOCK, StepBlock, StepCounts, Unit};

use crate::args::{Args, Grid, Out, RowShape, Tile};
use crate::decl;
use crate::isa::{Isa, on_isa};
use crate::kv::{Bf16, F16, KvElem, block_of, pool, tables};
use crate::point::{BadConstants, HostPoint, Need, TileFault, f32s, positive};
use crate::scratch::{Scratch, grown};
pub(crate) use step::Running;
use step::{FRESH, Keys, merge};

/// Keys in a cut.
const CUT: usize = 256;
/// Keys in a step: a block of the pool.
const STEP: usize = KV_BLOCK as usize;
/// Most rows of a tile: neighbours of one sequence share each block that is read and widened.
const TILE_ROWS: u32 = 16;
/// Tiles that a launch should have before rows are put together.
const TILES: u32 = 32;

const fn point<T: KvElem>(id: &'static str) -> HostPoint {
    HostPoint {
        id,
        args: decl::ATTENTION,
        needs: needs::<T>,
        grid,
        run: run::<T>,
    }
}

pub(crate) static ATTENTION_F32: HostPoint = point::<f32>("attention/f32");
pub(crate) static ATTENTION_BF16: HostPoint = point::<Bf16>("attention/bf16");
pub(crate) static ATTENTION_F16: HostPoint = point::<F16>("attention/f16");

fn needs<T: KvElem>(a: &Args) -> Result<Vec<Need>, BadConstants> {
    let (heads, kv, dim, per_slot) = (a.u32(5), a.u32(6), a.u32(7), a.u32(8));
    positive(&[
        ("heads", heads),
        ("kv_heads", kv),
        ("head_dim", dim),
        ("blocks_per_slot", per_slot),
    ])?;
    if !heads.is_multiple_of(kv) {
        return Err(BadConstants::new(format!(
            "{heads} heads do not share {kv} KV heads evenly"
        )));
    }
    let pool = pool(T::ELEM, kv, dim);
    let qkv = f32s(Unit::Row, (heads + 2 * kv) * dim);
    Ok(vec![
        qkv,
        pool,
        pool,
        tables(per_slot),
        f32s(Unit::Row, heads * dim),
    ])
}

fn grid(a: &Args, c: StepCounts) -> Grid {
    let kv_heads = a.u32(6) as u32;
    Grid {
        rows: c.rows,
        row_block: (c.rows * kv_heads / TILES).clamp(1, TILE_ROWS),
        cols: kv_heads,
        col_block: 1,
    }
}

/// The constants of a launch.
#[derive(Clone, Copy)]
struct Shape {
    heads: usize,
    kv: usize,
    dim: usize,
    per_slot: usize,
    /// Query heads of a KV head.
    group: usize,
    scale: f32,
    isa: Isa,
}

fn run<T: KvElem>(
    tile: &mut Tile<'_>,
    step: &StepBlock,
    scratch: &mut Scratch,
) -> Result<(), TileFault> {
    let a = tile.args();
    let (heads, kv, dim, per_slot) = (a.u32(5), a.u32(6), a.u32(7), a.u32(8));
    let (group, scale, isa) = (heads / kv, a.f32(9), a.isa);
    let shape = Shape {
        heads,
        kv,
        dim,
        per_slot,
        group,
        scale,
        isa,
    };
    let pools = Pools {
        k: tile.input::<T>(1),
        v: tile.input::<T>(2),
        tables: tile.input::<u32>(3),
        head: tile.cols().start,
    };
    let qkv = tile.input::<f32>(0);
    let columns = RowShape {
        first: 0,
        ld: heads * dim,
        base: 0,
        width: heads * dim,
        unit: group * dim,
    };
    let mut out = tile.output::<f32>(4, columns);
    let (slots, rows) = (step.slots(), tile.rows());
    let mut begin = rows.start;
    while begin < rows.end {
        let same = slots[begin..rows.end]
            .iter()
            .take_while(|s| **s == slots[begin]);
        let end = begin + same.count();
        attend(shape, &pools, qkv, &mut out, step, begin..end, scratch)?;
        begin = end;
    }
    Ok(())
}

/// Where keys and values are: the pools, the tables, and which KV head.
struct Pools<'a, T> {
    k: &'a [T],
    v: &'a [T],
    tables: &'a [u32],
    head: usize,
}

impl<T: KvElem> Pools<'_, T> {
    /// Widens `n` keys and values of a slot from position `first` on, the begin of a block.
    fn load(
        &self,
        s: Shape,
        slot: u32,
        first: usize,
        n: usize,
        to: &mut (&mut [f32], &mut [f32]),
    ) -> Result<(), TileFault> {
        let block = block_of(self.tables, s.per_slot, slot, first as u32)?;
        let at = (block * s.kv + self.head) * STEP * s.dim;
        let fault = TileFault::Block {
            slot,
            block: block as u32,
        };
        for (to, pool) in [(&mut *to.0, self.k), (&mut *to.1, self.v)] {
            let from = pool.get(at..at + n * s.dim).ok_or(fault)?;
            T::widen(s.isa, &mut to[..n * s.dim], from);
        }
        Ok(())
    }
}

/// Rows of one sequence against its keys.
fn attend<T: KvElem>(
    s: Shape,
    pools: &Pools<'_, T>,
    qkv: &[f32],
    out: &mut Out<'_, f32>,
    step: &StepBlock,
    rows: Range<usize>,
    scratch: &mut Scratch,
) -> Result<(), TileFault> {
    let (dim, group, slot) = (s.dim, s.group, step.slots()[rows.start]);
    let q = |r: usize, g: usize| {
        let at = r * (s.heads + 2 * s.kv) * dim + (pools.head * group + g) * dim;
        &qkv[at..at + dim]
    };
    let states = rows.len() * group;
    let (keys, values) = grown(&mut scratch.f32s, 2 * STEP * dim).split_at_mut(STEP * dim);
    let mut widened = (keys, values);
    let partial = grown(&mut scratch.more, states * dim);
    scratch.running.clear();
    scratch.running.resize(2 * states, FRESH);
    let (cut, total) = scratch.running.split_at_mut(states);
    for r in rows.clone() {
        out.row(r).fill(0.0);
    }
    let live = |r: usize| step.positions()[r] as usize + 1;
    let longest = rows.clone().map(live).max().unwrap_or(0);
    for begin in (0..longest).step_by(CUT) {
        cut.fill(FRESH);
        partial.fill(0.0);
        for first in (begin..longest.min(begin + CUT)).step_by(STEP) {
            pools.load(s, slot, first, STEP.min(longest - first), &mut widened)?;
            for (i, r) in rows.clone().enumerate().filter(|(_, r)| live(*r) > first) {
                let keys = Keys {
                    keys: &*widened.0,
                    values: &*widened.1,
                    n: STEP.min(live(r) - first),
                    scale: s.scale,
                };
                for g in 0..group {
                    let at = i * group + g;
                    let o = &mut partial[at * dim..(at + 1) * dim];
                    cut[at] = take(s.isa, cut[at], o, q(r, g), keys);
                }
            }
        }
        for (i, r) in rows.clone().enumerate().filter(|(_, r)| live(*r) > begin) {
            for g in 0..group {
                let at = i * group + g;
                let o = &mut out.row(r)[g * dim..(g + 1) * dim];
                total[at] = on_isa!(s.isa, merge, (total: Running = total[at], out: &mut [f32] = o,
                    cut: Running = cut[at], partial: &[f32] = &partial[at * dim..(at + 1) * dim]
                ) -> Running);
            }
        }
    }
    for (i, r) in rows.enumerate() {
        for (g, o) in out.row(r).chunks_exact_mut(dim).enumerate() {
            let inverse = 1.0 / total[i * group + g].l;
            o.iter_mut().for_each(|o| *o *= inverse);
        }
    }
    Ok(())
}

fn take(isa: Isa, state: Running, o: &mut [f32], q: &[f32], keys: Keys<'_>) -> Running {
    #[cfg(target_arch = "x86_64")]
    if isa.has_avx2() && q.len().is_multiple_of(8) {
        // SAFETY: `Isa` says AVX2 only after the processor said it, with FMA and F16C.
        return unsafe { avx2::take(state, o, q, keys) };
    }
    let _ = isa;
    step::take(state, o, q, keys)
}
