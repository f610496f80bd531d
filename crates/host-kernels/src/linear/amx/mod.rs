// SPDX-License-Identifier: MIT OR Apache-2.0
//! The AMX path of `linear` for quantized weights and many rows: the bits of the portable path, 16 rows by 16 outputs (two
//! groups) to a tile.
//!
//! A block's integer is computed in bf16 tiles, exactly. Integers of eight bits are exact in bf16, products of two of them
//! in f32, and so is every sum below 2^24, in whatever order and by whatever steps `tdpbf16ps` adds. So each activation `x`
//! of 15 bits is the sum of two planes, a multiple of 128 and what is left:
//!
//! | weights | upper plane | lower plane | largest partial sum |
//! |---|---|---|---|
//! | of 8 bits | `(x & !127) - 128`, -16,512..=16,256 | `(x & 127) + 128` | see below |
//! | q6_k | `x & !127`, -16,384..=16,256 | `x & 127` | of the upper plane 32 x 4,096 x 128 = 2^24, 128 times that |
//!
//! - q4_0, q4_1, q4_k, q5_0, q5_1, q5_k and mxfp4: both planes add up in one tile, at most 32 x 31 x 16,512 = 16,379,904 <
//!   2^24; the f32 in it is the block's integer.
//! - q8_0, iq4_nl, iq4_xs, q2_k, q3_k (the last two multiplied by their sub-scales: at most 45 and 128): a tile for each
//!   plane, at most 32 x 128 x 129 times 128 and 32 x 128 x 255; their sum, rounded once, is `f32(dot)`.
//! - q6_k: with its sub-scale a weight has 13 bits, itself the sum of a multiple of 64 and of 0..=63: two planes, both
//!   added up in the tile of the activations' plane.
//!
//! A zero is `+0` as of an integer: sums start at `+0`, and rounding to nearest never makes `-0` of that.
//!
//! Why not the int8 tiles: a block is 32 k, half of what one of their instructions takes, so that they would do no more at
//! a time; and their two sums must be joined and converted, three vector instructions in the place of none or one.
//!
//! A tile of the launch is walked in panels of [`PANEL`] rows and passes of [`PASS`] blocks, so that the planes of both
//! sides stay in the first cache: activations are converted once for all groups, weights once for all rows of the panel.
//! Tiles wait for each other (measured: the shortest sequence for one tile of sums, two products, takes seven times as long as
//! one), so several are multiplied at once, 32 rows by 32 outputs where one sum is enough, and the vector units take up the
//! sums of a [`Step`] while the tiles of the next are multiplied.
//!
//! Few rows ([`rows_from`]) and a last group without a neighbour go through [`super::vector`].

mod tiles;
mod weights;

use std::arch::x86_64::*;

use metrale_core::Elem;

use super::Work;
use super::a16::Offset;
use super::vector;
use crate::lanes::F8;
use crate::quantize::{A16_BLOCK, A16Block};

use tiles::{Hardware, Line, ROWS, Tiles};
pub(super) use weights::Planar;
use weights::{to_bf16, unpack};

/// Fewest rows of a tile that come here: with fewer, AVX-512 was as fast or faster (bench/cpu/results/2026-11-30-amx.md).
/// Weights of eight bits need a tile of sums for each plane, and AVX-512 is at its best with them.
pub(super) const fn rows_from(weights: Elem) -> usize {
    match weights {
        Elem::Q8_0 | Elem::Q6K | Elem::Iq4Nl | Elem::Iq4Xs => PANEL,
        _ => ROWS,
    }
}

/// Rows that share the conversion of the weights.
pub(super) const PANEL: usize = 64;
/// Groups that share the conversion of the activations, at least.
pub(super) const GROUPS: usize = 16;
/// Blocks of 32 k of one pass.
const PASS: usize = 2;

/// A tile.
type Block = [Line; ROWS];
/// Scale, sum and the sums of both halves of an activation block, a lane for each row; or `d`, `m` and the two minimums of
/// a weight block, a lane for each output.
type Terms = [Line; 4];

const ZERO: Line = Line([0; 16]);

/// Working memory of one thread.
#[derive(Debug, Default)]
pub(crate) struct Buffers {
    fixed: Option<Box<Fixed>>,
    /// The chains between two passes: by pair of groups, then by 16 rows.
    chains: Vec<Block>,
}

/// What one pass works on.
#[derive(Debug)]
struct Fixed {
    /// Planes of the activations, by 16 rows and block.
    x: [[[Block; 2]; PASS]; PANEL / ROWS],
    rows: [[Terms; PASS]; PANEL / ROWS],
    /// Planes of the weights, by pair of groups and block.
    w: [[[Block; 2]; PASS]; 2],
    /// Of these pairs and of the ones before.
    scales: [[[Terms; PASS]; 2]; 2],
    /// Exact sums of this step and of the one before, by block.
    sums: [[[Block; 4]; PASS]; 2],
}

impl Fixed {
    fn new() -> Fixed {
        Fixed {
            x: [[[[ZERO; ROWS]; 2]; PASS]; PANEL / ROWS],
            rows: [[[ZERO; 4]; PASS]; PANEL / ROWS],
            w: [[[[ZERO; ROWS]; 2]; PASS]; 2],
            scales: [[[[ZERO; 4]; PASS]; 2]; 2],
            sums: [[[[ZERO; ROWS]; 4]; PASS]; 2],
        }
    }
}

/// Up to 32 rows by up to 32 outputs of a pass.
#[derive(Clone, Copy)]
struct Step {
    /// First tile of 16 rows, and how many.
    tile: usize,
    tiles: usize,
    /// First pair of groups, and how many.
    pair: usize,
    pairs: usize,
    /// Which of the two `sums` and of the two `scales`.
    sums: usize,
    scales: usize,
    /// Blocks of the pass.
    blocks: usize,
}

/// All rows of a tile against all its groups. The caller holds an `Isa` that says AMX.
pub(super) fn tile<F: Planar>(work: &mut Work<'_, A16Block>, buffers: &mut Buffers) {
    // SAFETY: only called when `Isa` says AMX, which implies AVX-512.
    unsafe { all::<F, _>(work, buffers, &mut Hardware) }
    if !work.groups.is_multiple_of(2) {
        vector::tile::<F>(work, work.groups - 1, true);
    }
}

/// Pairs of groups.
///
/// # Safety
/// The instructions of `tiles`.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
unsafe fn all<F: Planar, T: Tiles>(
    work: &mut Work<'_, A16Block>,
    buffers: &mut Buffers,
    tiles: &mut T,
) {
    let fixed = buffers.fixed.get_or_insert_with(|| Box::new(Fixed::new()));
    let mut row = work.rows.start;
    // SAFETY: opened before, closed after; the instructions are the caller's.
    unsafe {
        tiles.open();
        while row < work.rows.end {
            let rows = row..work.rows.end.min(row + PANEL);
            row = rows.end;
            panel::<F, T>(work, rows.clone(), fixed, &mut buffers.chains, tiles);
            store(work, rows, &buffers.chains);
        }
        tiles.close();
    }
}

/// Takes the chains of up to [`PANEL`] rows from their begin to their end.
///
/// # Safety
/// The instructions of `tiles`, opened.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
unsafe fn panel<F: Planar, T: Tiles>(
    work: &Work<'_, A16Block>,
    rows: std::ops::Range<usize>,
    fixed: &mut Fixed,
    chains: &mut Vec<Block>,
    tiles: &mut T,
) {
    let (pairs, across) = (work.groups / 2, rows.len().div_ceil(ROWS));
    // Rows of one step: where each plane has sums of its own, there are tiles for 16.
    let tall = if F::ONE_SUM { 2 } else { 1 };
    chains.clear();
    chains.resize(pairs * across, [ZERO; ROWS]);
    let mut x: [&[A16Block]; PANEL] = [&[]; PANEL];
    for (x, row) in x.iter_mut().zip(rows.clone()) {
        *x = work.x(row);
    }
    let x = &x[..rows.len()];
    for begin in (0..work.ld).step_by(PASS) {
        let blocks = PASS.min(work.ld - begin);
        for (r, x) in x.iter().enumerate() {
            activations::<F>(fixed, r, &x[begin..begin + blocks]);
        }
        let mut before: Option<Step> = None;
        for pair in (0..pairs).step_by(2) {
            for tile in (0..across).step_by(tall) {
                let step = Step {
                    tile,
                    tiles: tall.min(across - tile),
                    pair,
                    pairs: 2.min(pairs - pair),
                    sums: before.map_or(0, |s| 1 - s.sums),
                    scales: pair / 2 % 2,
                    blocks,
                };
                if tile == 0 {
                    weights::<F>(work, begin, step, fixed);
                    prefetch::<F>(work, 2 * pair + 4, begin, blocks);
                }
                // SAFETY: the features are enabled here, where these are inlined; the tiles are open.
                unsafe {
                    match (step.tiles, step.pairs) {
                        (1, 1) => multiply::<F, T, 1, 1>(fixed, step, tiles),
                        (1, _) => multiply::<F, T, 1, 2>(fixed, step, tiles),
                        (_, 1) => multiply::<F, T, 2, 1>(fixed, step, tiles),
                        _ => multiply::<F, T, 2, 2>(fixed, step, tiles),
                    }
                }
                if let Some(before) = before {
                    link::<F>(fixed, before, chains, across);
                }
                before = Some(step);
            }
        }
        if let Some(last) = before {
            link::<F>(fixed, last, chains, across);
        }
    }
}

/// Stores the chains of a panel.
fn store(work: &mut Work<'_, A16Block>, rows: std::ops::Range<usize>, chains: &[Block]) {
    let across = rows.len().div_ceil(ROWS);
    for (pair, chains) in chains.chunks_exact(across).enumerate() {
        for (line, row) in chains.as_flattened().iter().zip(rows.clone()) {
            for (g, lanes) in line.0.as_chunks::<8>().0.iter().enumerate() {
                work.store(row, 2 * pair + g, F8(lanes.map(f32::from_bits)));
            }
        }
    }
}

/// Puts the blocks of row `r` of the panel in place.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn activations<F: Planar>(fixed: &mut Fixed, r: usize, x: &[A16Block]) {
    let (at, r) = (r / ROWS, r % ROWS);
    let low = _mm512_set1_epi16(127);
    for (block, x) in x.iter().enumerate() {
        let [upper, lower] = &mut fixed.x[at][block];
        // SAFETY: 32 values of 16 bits are read; a line each is written.
        unsafe {
            let v = _mm512_loadu_si512(x.q.as_ptr().cast());
            let (mut high, rest) = (_mm512_andnot_si512(low, v), _mm512_and_si512(low, v));
            let rest = if F::PLANES == 1 {
                high = _mm512_sub_epi16(high, _mm512_set1_epi16(128));
                // 128 to 255 as bf16: the last seven bits are the fraction.
                _mm512_or_si512(rest, _mm512_set1_epi16(0x4300))
            } else {
                to_bf16(rest)
            };
            _mm512_store_si512((&raw mut upper[r]).cast(), to_bf16(high));
            _mm512_store_si512((&raw mut lower[r]).cast(), rest);
        }
        let rows = &mut fixed.rows[at][block];
        rows[0].0[r] = x.scale.to_bits();
        rows[1].0[r] = x.sum.to_bits();
        if F::OFFSET == Offset::Integer {
            for (half, q) in x.q.as_chunks::<{ A16_BLOCK / 2 }>().0.iter().enumerate() {
                let sum: i32 = q.iter().map(|q| i32::from(*q)).sum();
                rows[2 + half].0[r] = (sum as f32).to_bits();
            }
        }
    }
}

/// Puts the weights of a step's groups in place.
#[inline]
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
fn weights<F: Planar>(work: &Work<'_, A16Block>, begin: usize, step: Step, fixed: &mut Fixed) {
    for n in 0..step.pairs {
        let group = 2 * (step.pair + n);
        let w = [work.w(group), work.w(group + 1)];
        for block in 0..step.blocks {
            let (at, sub) = ((begin + block) / F::SUBS, (begin + block) % F::SUBS);
            let p = w.map(|w| w[at * F::PACKED..(at + 1) * F::PACKED].as_ptr());
            // SAFETY: whole packed blocks of two groups; planes lie one behind the other; four lines of scales.
            unsafe {
                unpack::<F>(p, sub, fixed.w[n][block].as_mut_ptr().cast());
                let (d, m) = F::scales_ps::<vector::Z>(p, sub);
                let [min0, min1] = F::mins_ps(p, sub);
                let to = &mut fixed.scales[step.scales][n][block];
                for (to, v) in to.iter_mut().zip([d, m, min0, min1]) {
                    _mm512_store_ps((&raw mut *to).cast(), v);
                }
            }
        }
    }
}

/// Asks for what [`weights()`] reads next; past the last group, of nothing that is ours.
#[inline]
fn prefetch<F: Planar>(work: &Work<'_, A16Block>, group: usize, begin: usize, blocks: usize) {
    let (from, to) = (
        begin * F::PACKED / F::SUBS,
        (begin + blocks) * F::PACKED / F::SUBS,
    );
    for group in group..group + 4 {
        for line in (from..to).step_by(64) {
            let at = work
                .w
                .as_ptr()
                .wrapping_add(group * work.group_bytes + line);
            // SAFETY: a hint: any address is allowed.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) };
        }
    }
}

/// The exact sums of a step, `R` tiles of rows by `N` of outputs: in one tile (`2 r + n`), or in one for each plane of the
/// activations (`2 n + plane`, `R` = 1).
///
/// # Safety
/// The instructions of `tiles`, opened.
#[inline(always)]
unsafe fn multiply<F: Planar, T: Tiles, const R: usize, const N: usize>(
    fixed: &mut Fixed,
    step: Step,
    tiles: &mut T,
) {
    for block in 0..step.blocks {
        let x = |r: usize, plane: usize| fixed.x[step.tile + r][block][plane].as_ptr();
        let w = |n: usize, plane: usize| fixed.w[n][block][plane].as_ptr();
        let sums = &mut fixed.sums[step.sums][block];
        // SAFETY: the caller's; every address is that of 16 lines.
        unsafe {
            tiles.load::<4>(w(0, 0));
            tiles.load::<6>(x(0, 0));
            tiles.zero::<0>();
            tiles.dot::<0, 6, 4>();
            if F::ONE_SUM {
                if N == 2 {
                    tiles.load::<5>(w(1, 0));
                    tiles.zero::<1>();
                    tiles.dot::<1, 6, 5>();
                }
                if R == 1 {
                    tiles.load::<7>(x(0, 1));
                    tiles.dot::<0, 7, 4>();
                    if N == 2 {
                        tiles.dot::<1, 7, 5>();
                    }
                } else {
                    tiles.load::<7>(x(1, 0));
                    tiles.zero::<2>();
                    tiles.dot::<2, 7, 4>();
                    if N == 2 {
                        tiles.zero::<3>();
                        tiles.dot::<3, 7, 5>();
                    }
                    tiles.load::<6>(x(0, 1));
                    tiles.dot::<0, 6, 4>();
                    if N == 2 {
                        tiles.dot::<1, 6, 5>();
                    }
                    tiles.load::<7>(x(1, 1));
                    tiles.dot::<2, 7, 4>();
                    if N == 2 {
                        tiles.dot::<3, 7, 5>();
                    }
                }
            } else {
                tiles.load::<7>(x(0, 1));
                tiles.zero::<1>();
                tiles.dot::<1, 7, 4>();
                if F::PLANES == 2 {
                    tiles.load::<5>(w(0, 1));
                    tiles.dot::<0, 6, 5>();
                    tiles.dot::<1, 7, 5>();
                }
                if N == 2 {
                    tiles.zero::<2>();
                    tiles.zero::<3>();
                    if F::PLANES == 2 {
                        tiles.load::<4>(w(1, 0));
                        tiles.dot::<2, 6, 4>();
                        tiles.dot::<3, 7, 4>();
                    }
                    tiles.load::<5>(w(1, F::PLANES - 1));
                    tiles.dot::<2, 6, 5>();
                    tiles.dot::<3, 7, 5>();
                }
            }
            tiles.store::<0>(sums[0].as_mut_ptr());
            if N == 2 || !F::ONE_SUM {
                tiles.store::<1>(sums[1].as_mut_ptr());
            }
            if R == 2 || N == 2 && !F::ONE_SUM {
                tiles.store::<2>(sums[2].as_mut_ptr());
            }
            if N == 2 && (R == 2 || !F::ONE_SUM) {
                tiles.store::<3>(sums[3].as_mut_ptr());
            }
        }
    }
}

/// Takes the chains of a step through its blocks.
#[inline]
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
fn link<F: Planar>(fixed: &Fixed, step: Step, chains: &mut [Block], across: usize) {
    for r in 0..step.tiles {
        let at = step.pair * across + step.tile + r;
        let (first, second) = chains.split_at_mut(at + 1);
        if step.pairs == 1 {
            rows::<F, 1>(fixed, step, r, [&mut first[at]]);
        } else {
            rows::<F, 2>(fixed, step, r, [&mut first[at], &mut second[across - 1]]);
        }
    }
}

/// The chains of 16 rows, tile `r` of the step, and of `N` pairs of groups.
#[inline]
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
fn rows<F: Planar, const N: usize>(fixed: &Fixed, step: Step, r: usize, chains: [&mut Block; N]) {
    let terms = &fixed.rows[step.tile + r];
    let sums = &fixed.sums[step.sums];
    let first = if F::ONE_SUM { 2 * r } else { 0 };
    let sums = [&sums[0][first..], &sums[1][first..]];
    // Loops, not closures: those would be compiled without the features.
    let mut scales = [[[_mm512_setzero_ps(); 4]; N]; PASS];
    for (block, scales) in scales.iter_mut().enumerate() {
        for (n, scales) in scales.iter_mut().enumerate() {
            for (to, l) in scales.iter_mut().zip(&fixed.scales[step.scales][n][block]) {
                *to = line(l);
            }
        }
    }
    for row in 0..ROWS {
        let mut acc = [_mm512_setzero_ps(); N];
        for n in 0..N {
            acc[n] = line(&chains[n][row]);
        }
        acc = one::<F, N>(sums[0], &terms[0], &scales[0], row, acc);
        if step.blocks == PASS {
            acc = one::<F, N>(sums[1], &terms[1], &scales[1], row, acc);
        }
        for n in 0..N {
            // SAFETY: a line.
            unsafe { _mm512_store_ps((&raw mut chains[n][row]).cast(), acc[n]) };
        }
    }
}

/// One link of the chains of a row: a block of 32 k.
#[inline]
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
fn one<F: Planar, const N: usize>(
    sums: &[Block],
    terms: &Terms,
    scales: &[[__m512; 4]; N],
    row: usize,
    mut acc: [__m512; N],
) -> [__m512; N] {
    let (scale, sum) = (lane(&terms[0], row), lane(&terms[1], row));
    for n in 0..N {
        let [d, m, min0, min1] = scales[n];
        let dot = if F::ONE_SUM {
            line(&sums[n][row])
        } else {
            _mm512_add_ps(line(&sums[2 * n][row]), line(&sums[2 * n + 1][row]))
        };
        acc[n] = _mm512_fmadd_ps(dot, _mm512_mul_ps(d, scale), acc[n]);
        match F::OFFSET {
            Offset::None => {}
            Offset::Sum => acc[n] = _mm512_fmadd_ps(m, sum, acc[n]),
            Offset::Integer => {
                // Exact: below 2^23.
                let mins = _mm512_mul_ps(min1, lane(&terms[3], row));
                let mins = _mm512_fmadd_ps(min0, lane(&terms[2], row), mins);
                acc[n] = _mm512_fmadd_ps(mins, _mm512_mul_ps(m, scale), acc[n]);
            }
        }
    }
    acc
}

/// A lane, in all lanes.
#[inline]
#[target_feature(enable = "avx512f")]
fn lane(l: &Line, lane: usize) -> __m512 {
    _mm512_set1_ps(f32::from_bits(l.0[lane]))
}

#[inline]
#[target_feature(enable = "avx512f")]
fn line(l: &Line) -> __m512 {
    // SAFETY: 64 bytes, so aligned.
    unsafe { _mm512_load_ps((&raw const *l).cast()) }
}

#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;
