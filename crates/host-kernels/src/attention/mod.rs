// SPDX-License-Identifier: MIT OR Apache-2.0
//! `attention`: causal, paged, grouped queries, online softmax at fixed cuts.
//!
//! *Spec*, per row and head: keys `0..=position`, cut at absolute multiples of 256. In a cut: score = `lanes8(q, k) *
//! scale`; `m` = the largest score; `p = exp(score - m)`; `l` by 16 lanes: key `j` of the cut goes to lane `j mod 16`, each
//! lane one ascending chain from 0, lanes fold `l(i) + l(i + 8)` and then as in `lanes8`; `o = fma(p, v, o)` ascending from
//! 0. Cuts merge ascending from M = -inf, L = 0, O = 0: `M' = max(M, m)`, `a = exp(M - M')`, `b = exp(m - M')`, `L = fma(l,
//! b, L * a)`, `O = fma(o, b, O * a)`. The result is `O * (1 / L)`. Keys past the position are never used. K and V are
//! read as the pool stores them, this step's included; everything else is f32. In int8 and e4m3, k and v are the stored
//! values without their scales: score = `(lanes8(q, k) * s_k) * scale`, and `p * s_v` stands for `p` in `o`. After Milakov and
//! Gimelshein, "Online normalizer calculation for softmax", arXiv 1805.02867.
//!
//! `attention_ext` is the same over the keys from `max(0, position + 1 - window)` on, with capped scores (`c * tanh(score /
//! c)`) and a sink's logit `s` at the end: `M' = max(M, s)`, `a = exp(M - M')`, `L = L * a + exp(s - M')`, `O = O * a`. Cuts
//! keep their borders and keys their lanes; cuts without a key in reach are left out. `latent_attention` has one key head for
//! all query heads, whose values are the first columns of its keys (DeepSeek-V2, arXiv 2405.04434, absorbed).

mod attend;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod cut;
mod latent;
mod pools;
mod portable;

use metrale_core::{ArgDecl, KV_BLOCK, StepBlock, StepCounts, Unit};

use crate::args::{Args, Grid, RowShape, Tile};
use crate::decl::{self, STEP as STEP_ARG, f, r, u, w};
use crate::kv::{Bf16, E4m3, F16, Int8, KvElem, pool, tables};
use crate::point::{BadConstants, HostPoint, Need, TileFault, f32s, positive};
use crate::scratch::Scratch;
use attend::{Query, Shape, by_sequence};
pub(crate) use latent::POINTS as LATENT_POINTS;
use pools::Pools;
pub(crate) use portable::Running;

/// Keys in a cut.
const CUT: usize = 256;
/// Keys in a step: a block of the pool.
const STEP: usize = KV_BLOCK as usize;
/// Most rows of a tile: neighbours of one sequence share each block that is read and widened.
const TILE_ROWS: u32 = 16;
/// Tiles that a launch should have before rows are put together.
const TILES: u32 = 32;
/// Tiles below which the query heads of a key head are parted. Each part reads and widens all keys again, so that it pays
/// only where a second thread would have nothing to do.
const SPLIT: u32 = 2;

const EXT_ARGS: &[ArgDecl] = &[
    r("qkv"),
    r("k"),
    r("v"),
    r("tables"),
    r("sinks"),
    w("a"),
    u("heads"),
    u("kv_heads"),
    u("head_dim"),
    u("blocks_per_slot"),
    u("window"),
    u("has_sinks"),
    f("scale"),
    f("softcap"),
    STEP_ARG,
];

const fn point<T: KvElem>(id: &'static str) -> HostPoint {
    HostPoint {
        id,
        args: decl::ATTENTION,
        needs: |a| {
            let need = Sizes::plain(a).needs::<T>()?;
            let [qkv, k, v, tables, out] = need;
            Ok(vec![qkv, k, v, tables, out])
        },
        grid: |a, c| Sizes::plain(a).grid(c),
        run: |tile, step, scratch| run::<T>(tile, step, scratch, false),
    }
}

const fn ext_point<T: KvElem>(id: &'static str) -> HostPoint {
    HostPoint {
        id,
        args: EXT_ARGS,
        needs: |a| {
            let sizes = Sizes::ext(a);
            let [qkv, k, v, tables, out] = sizes.needs::<T>()?;
            let sinks = f32s(Unit::One, if a.u32(11) == 0 { 0 } else { sizes.heads });
            Ok(vec![qkv, k, v, tables, sinks, out])
        },
        grid: |a, c| Sizes::ext(a).grid(c),
        run: |tile, step, scratch| run::<T>(tile, step, scratch, true),
    }
}

pub(crate) static POINTS: [HostPoint; 5] = [
    point::<f32>("attention/f32"),
    point::<Bf16>("attention/bf16"),
    point::<F16>("attention/f16"),
    point::<Int8>("attention/i8"),
    point::<E4m3>("attention/f8_e4m3"),
];
pub(crate) static EXT_POINTS: [HostPoint; 5] = [
    ext_point::<f32>("attention_ext/f32"),
    ext_point::<Bf16>("attention_ext/bf16"),
    ext_point::<F16>("attention_ext/f16"),
    ext_point::<Int8>("attention_ext/i8"),
    ext_point::<E4m3>("attention_ext/f8_e4m3"),
];

/// The sizes of a launch.
#[derive(Clone, Copy)]
struct Sizes {
    heads: usize,
    kv: usize,
    dim: usize,
    per_slot: usize,
}

impl Sizes {
    fn plain(a: &Args) -> Sizes {
        Sizes::at(a, 5)
    }

    fn ext(a: &Args) -> Sizes {
        Sizes::at(a, 6)
    }

    fn at(a: &Args, first: usize) -> Sizes {
        Sizes {
            heads: a.u32(first),
            kv: a.u32(first + 1),
            dim: a.u32(first + 2),
            per_slot: a.u32(first + 3),
        }
    }

    /// Of queries, keys, values, tables and the output.
    fn needs<T: KvElem>(self) -> Result<[Need; 5], BadConstants> {
        let Sizes {
            heads,
            kv,
            dim,
            per_slot,
        } = self;
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
        let pool = pool::<T>(kv, dim)?;
        let qkv = f32s(Unit::Row, (heads + 2 * kv) * dim);
        let out = f32s(Unit::Row, heads * dim);
        Ok([qkv, pool, pool, tables(per_slot), out])
    }

    /// Column units are query heads. A tile has those of one key head, which share what is read; where that would leave
    /// fewer tiles than [`SPLIT`], half as many, so that a second thread finds work.
    fn grid(self, c: StepCounts) -> Grid {
        let (heads, kv_heads) = (self.heads as u32, self.kv as u32);
        let (group, tiles) = (heads / kv_heads, c.rows * kv_heads);
        Grid {
            rows: c.rows,
            row_block: (tiles / TILES).clamp(1, TILE_ROWS),
            cols: heads,
            col_block: if tiles < SPLIT {
                group.div_ceil(2)
            } else {
                group
            },
        }
    }
}

fn run<T: KvElem>(
    tile: &mut Tile<'_>,
    step: &StepBlock,
    scratch: &mut Scratch,
    ext: bool,
) -> Result<(), TileFault> {
    let a = tile.args();
    let s = if ext { Sizes::ext(a) } else { Sizes::plain(a) };
    let (group, cols) = (s.heads / s.kv, tile.cols());
    let columns = RowShape {
        first: 0,
        ld: s.heads * s.dim,
        base: 0,
        width: s.heads * s.dim,
        unit: s.dim,
    };
    let mut out = tile.output::<f32>(if ext { 5 } else { 4 }, columns);
    let mut first = cols.start;
    while first < cols.end {
        let head = first / group;
        let end = cols.end.min((head + 1) * group);
        let mut shape = Shape {
            dim: s.dim,
            width: s.dim,
            group: end - first,
            skip: first - cols.start,
            window: 0,
            scale: a.f32(if ext { 12 } else { 9 }),
            cap: 0.0,
            isa: a.isa,
        };
        let mut sinks = &[][..];
        if ext {
            (shape.window, shape.cap) = (a.u32(10), a.f32(13));
            if a.u32(11) != 0 {
                sinks = &tile.input::<f32>(4)[first..end];
            }
        }
        let pools = Pools::<T> {
            k: tile.input::<T::Raw>(1),
            v: Some(tile.input::<T::Raw>(2)),
            tables: tile.input::<u32>(3),
            per_slot: s.per_slot,
            heads: s.kv,
            head,
            dim: s.dim,
        };
        let query = Query {
            data: tile.input::<f32>(0),
            first_row: 0,
            row_stride: (s.heads + 2 * s.kv) * s.dim,
            first: first * s.dim,
            stride: s.dim,
        };
        by_sequence(step, tile.rows(), |rows| {
            shape.attend(&pools, query, sinks, &mut out, step, rows, scratch)
        })?;
        first = end;
    }
    Ok(())
}
