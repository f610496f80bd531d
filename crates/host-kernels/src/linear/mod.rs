// SPDX-License-Identifier: MIT OR Apache-2.0
//! `linear`: `y = W x (+ bias)` for packed weights, any number of rows.
//!
//! *Spec of quantized weights* (activations A16): one chain per output over ascending blocks of 32 k: `acc = fma(f32(dot),
//! d * s, acc)` with the exact integer dot product of the block, rounded to f32 (ties to even: it may pass 2^24), the weight
//! scale `d` and the activation scale `s`, their product rounded; formats with an offset then take `acc =
//! fma(m, sum, acc)` with the block's A16 sum. All of `d` and `m` are exact in f32. Every integer fits 32 bits, in any
//! order of its sum:
//!
//! | weights | `d` | integer | its largest value | `m` |
//! |---|---|---|---|---|
//! | q4_0 | d | dot of 0..=15 | 32 x 15 x 16,383 = 7,863,840 | `-8 d` |
//! | q4_1 | d | as q4_0 | | the stored minimum |
//! | q4_k | `d * sc` | as q4_0 | | `-(dmin * min)` |
//! | q5_0 | d | dot of 0..=31 | 32 x 31 x 16,383 = 16,251,936 | `-16 d` |
//! | q5_1, q5_k | d, `d * sc` | as q5_0 | | as q4_1, q4_k |
//! | q8_0 | d | dot of -128..=127 | 32 x 128 x 16,383 = 67,104,768 | none |
//! | iq4_nl, iq4_xs | d, `d * sc` | dot of the levels -127..=113 | 66,580,512 | none |
//! | mxfp4 | `2^(e - 128)` | dot of the doubled levels -12..=12 | 6,291,072 | none |
//! | q2_k | d | `sc0 * dot(k < 16) + sc1 * dot(k >= 16)` | 32 x 15 x 3 x 16,383 = 23,591,520 | see below |
//! | q3_k | d | the same, of -4..=3 and -32..=31 | 32 x 32 x 4 x 16,383 = 67,104,768 | none |
//! | q6_k | d | the same, of -32..=31 and -128..=127 | 32 x 32 x 128 x 16,383 = 2^31 - 131,072 | none |
//!
//! q2_k's minimums stand for 16 values each, and A16 has one sum for 32: its second step is `acc = fma(f32(mins), -dmin *
//! s, acc)` with the exact integer `mins = min0 * sum(q, k < 16) + min1 * sum(q, k >= 16)`. q6_k is why activations have
//! 15 bits and not 16.
//!
//! *Spec of f32, bf16 and f16 weights* (activations f32): one chain per output over ascending k, `acc = fma(w, x, acc)`,
//! started fresh every [`plain::SEGMENT`] k; segments add up left to right. Vectors run across eight outputs: the same
//! bits for one row or many, and the chains of several groups and rows in flight hide the latency of fma.
//!
//! *Spec of fp8 weights* (activations f32, not rounded): one chain per output over ascending k, `acc = fma(w / 256, x, acc)`
//! with the e4m3 value `w` exact, started fresh every 128 k; `total = fma(acc, 256 * s, total)` ascending, `s` the scale of
//! the row or of those 128 columns. An e4m3 value is an f16 value but for the exponent's bias, 256 apart: so F16C converts it.
//!
//! The bias is added last. Rows of a step share each pass over the weights.
//!
//! Paths of quantized weights: portable, AVX2, AVX-512 with VNNI ([`vector`]), and, from [`amx::rows_from`] rows of a tile on,
//! AMX ([`amx`]), where exact sums leave the instructions free. f32, bf16, f16 and fp8 weights have AVX2 and AVX-512 paths
//! alone: their specs are chains of one fma for each k, which neither `vdpbf16ps` nor a tile gives (docs/adr/0013).

mod a16;
#[cfg(target_arch = "x86_64")]
mod amx;
#[cfg(target_arch = "x86_64")]
mod avx2_fp8;
#[cfg(target_arch = "x86_64")]
mod avx2_plain;
#[cfg(target_arch = "x86_64")]
mod avx512_fp8;
#[cfg(target_arch = "x86_64")]
mod avx512_plain;
mod experts;
mod fp8;
mod plain;
#[cfg(target_arch = "x86_64")]
mod vector;

use metrale_core::{StepCounts, Unit};

use crate::args::{Args, Grid, Out, RowShape, Tile};
use crate::decl;
use crate::embed::packed;
use crate::formats::Format;
use crate::lanes::{F8, Lanes};
use crate::layout::GROUP;
use crate::point::{
    BadConstants, HostPoint, Need, RunTile, TileFault, f32s, positive, row_unit, unit_rows,
};

/// Working memory of the AMX path.
#[cfg(target_arch = "x86_64")]
pub(crate) type TileBuffers = amx::Buffers;
/// Working memory of a path that is not there.
#[cfg(not(target_arch = "x86_64"))]
pub(crate) type TileBuffers = ();

pub(crate) use a16::{EXPERT_POINTS as EXPERT_A16_POINTS, POINTS as A16_POINTS};
pub(crate) use fp8::POINTS as FP8_POINTS;
pub(crate) use plain::{EXPERT_POINTS as EXPERT_PLAIN_POINTS, POINTS as PLAIN_POINTS};

/// Bytes of weights in a tile of one row: a few microseconds at memory speed.
const TILE_BYTES: usize = 32 * 1024;
/// Multiplications in a tile of many rows.
const TILE_PRODUCTS: usize = 2 * 1024 * 1024;
/// Rows of a tile: their activations stay in the first caches while the weights pass.
const TILE_ROWS: usize = 32;

const fn point<F: Format>(id: &'static str, a16: bool, run: RunTile) -> HostPoint {
    let needs = if a16 { needs_a16::<F> } else { needs_f32::<F> };
    HostPoint {
        id,
        args: decl::LINEAR,
        needs,
        grid: grid::<F>,
        run,
    }
}

fn needs_f32<F: Format>(a: &Args) -> Result<Vec<Need>, BadConstants> {
    let unit = row_unit(a.u32(9))?;
    needs::<F>(a, f32s(unit, a.u32(4)), unit)
}

fn needs_a16<F: Format>(a: &Args) -> Result<Vec<Need>, BadConstants> {
    let unit = row_unit(a.u32(9))?;
    needs::<F>(a, crate::quantize::a16s(unit, a.u32(4)), unit)
}

fn needs<F: Format>(a: &Args, x: Need, unit: Unit) -> Result<Vec<Need>, BadConstants> {
    let (k, n, col, ld, has_bias) = (a.u32(4), a.u32(5), a.u32(6), a.u32(7), a.u32(8));
    positive(&[("k", k), ("n", n)])?;
    if col + n > ld {
        return Err(BadConstants::new(format!(
            "columns {col}..{} reach past the row of {ld} values",
            col + n
        )));
    }
    let bias = f32s(Unit::One, if has_bias == 0 { 0 } else { n });
    Ok(vec![x, packed::<F>(n, k)?, bias, f32s(unit, ld)])
}

fn grid<F: Format>(a: &Args, counts: StepCounts) -> Grid {
    let (k, n) = (a.u32(4), a.u32(5));
    let rows = unit_rows(a.u32(9), counts);
    let by_bytes = TILE_BYTES / (k.div_ceil(F::ELEMS) * F::PACKED).max(1);
    let products = |rows: usize| TILE_PRODUCTS / (k * GROUP * rows).max(1);
    // A group at least; where rows make the tile long enough, no more than the products say.
    let (row_block, groups) = match rows.max(1) as usize {
        #[cfg(target_arch = "x86_64")]
        rows if a.isa.has_amx() && F::ELEM.is_block() && rows >= amx::rows_from(F::ELEM) => {
            let block = rows.min(amx::PANEL);
            // What is done once for all groups of a tile takes longer than the products of one.
            (block, products(block.min(16)).max(amx::GROUPS))
        }
        rows => {
            let block = rows.min(TILE_ROWS);
            (block, if block < 4 { by_bytes } else { products(block) })
        }
    };
    Grid {
        rows,
        row_block: row_block as u32,
        cols: n.div_ceil(GROUP) as u32,
        // Two groups to a register of 512 bits.
        col_block: groups.next_multiple_of(2).max(2) as u32,
    }
}

/// What the inner loops of one tile work on.
struct Work<'a, X> {
    /// Activations, `[rows, ld]`.
    x: &'a [X],
    /// Activation elements of a row.
    ld: usize,
    /// Activation elements from one row to the next.
    x_ld: usize,
    /// Rows that share an activation row.
    x_div: usize,
    /// Which row of the launch each of `rows` is; empty: itself.
    index: Vec<u32>,
    /// The packed weights of the tile's groups, group after group.
    w: &'a [u8],
    /// Bytes of a group.
    group_bytes: usize,
    rows: std::ops::Range<usize>,
    groups: usize,
    y: Out<'a, f32>,
    /// The bias of the tile's columns, or empty.
    bias: &'a [f32],
}

impl<X> Work<'_, X> {
    #[inline(always)]
    fn row(&self, row: usize) -> usize {
        self.index.get(row).map_or(row, |r| *r as usize)
    }

    #[inline(always)]
    fn x(&self, row: usize) -> &[X] {
        &self.x[self.row(row) / self.x_div * self.x_ld..][..self.ld]
    }

    #[inline(always)]
    fn w(&self, group: usize) -> &[u8] {
        &self.w[group * self.group_bytes..(group + 1) * self.group_bytes]
    }

    /// Stores the eight outputs of a group of the tile, fewer in the tensor's last group.
    #[inline(always)]
    fn store(&mut self, row: usize, group: usize, mut value: F8) {
        let row = self.row(row);
        let y = self.y.row(row);
        let begin = group * GROUP;
        let n = GROUP.min(y.len() - begin);
        if !self.bias.is_empty() {
            for i in 0..n {
                value.0[i] += self.bias[begin + i];
            }
        }
        if n == GROUP {
            value.store(&mut y[begin..]);
        } else {
            y[begin..].copy_from_slice(&value.0[..n]);
        }
    }
}

/// The tile as [`Work`]. `ld` is the activation elements of a row.
fn work<'a, F: Format, X: crate::args::Plain>(tile: &mut Tile<'a>, ld: usize) -> Work<'a, X> {
    let a = tile.args();
    let (k, n) = (a.u32(4), a.u32(5));
    let shape = RowShape {
        first: 0,
        ld: a.u32(7),
        base: a.u32(6),
        width: n,
        unit: GROUP,
    };
    let group_bytes = k.div_ceil(F::ELEMS) * F::PACKED;
    let cols = tile.cols();
    let bias = if a.u32(8) == 0 {
        &[][..]
    } else {
        &tile.input::<f32>(2)[cols.start * GROUP..n.min(cols.end * GROUP)]
    };
    Work {
        x: tile.input::<X>(0),
        ld,
        x_ld: ld,
        x_div: 1,
        index: Vec::new(),
        w: &tile.input::<u8>(1)[cols.start * group_bytes..cols.end * group_bytes],
        group_bytes,
        rows: tile.rows(),
        groups: cols.len(),
        y: tile.output::<f32>(3, shape),
        bias,
    }
}

/// Fills in the parts of a [`RunTile`] that all formats share.
fn run_with<'a, F: Format, X: crate::args::Plain>(
    tile: &mut Tile<'a>,
    per_row: usize,
    inner: impl FnOnce(&mut Work<'a, X>),
) -> Result<(), TileFault> {
    let mut work = work::<F, X>(tile, per_row);
    inner(&mut work);
    Ok(())
}
