// SPDX-License-Identifier: MIT OR Apache-2.0
//! `quantize` and its fusions: f32 activations to A16, int16 by 32 per row.
//!
//! *Spec*, per 32 values: `m` = the largest magnitude; scale `d = m / 16383`; `q = round_ties_even(x * (1 / d))`, three
//! roundings of f32 in all; sum = `d * f32(sum of q)`, the integer sum exact. `q` lies in -16383..=16383 by itself: the
//! roundings before the last move `x / d` by less than 2^-21 of itself. If `m` is 0 or so small that `1 / d` is infinite,
//! all `q` are 0. If a value is NaN or infinite, all `q` are 0, the scale is NaN or infinite and the sum is NaN: whatever
//! is computed from the block is NaN, and the row is found out at its logits. The fusions are the two steps one after the
//! other: the same bits.
//!
//! Why 15 bits: 8 are too few for answers (docs/adr/0008), and a 16th would not leave room for q6_k's exact integer
//! (`linear`).

use metrale_core::{Elem, StepBlock, Unit};

use crate::args::{RowShape, Tile};
use crate::elementwise::swiglu;
use crate::isa::Isa;
use crate::lanes::on_lanes;
use crate::norm::{add_rmsnorm, rmsnorm};
use crate::point::{BadConstants, HostPoint, Need, TileFault, f32s, positive, row_unit, unit_rows};
use crate::scratch::{Scratch, grown};
use crate::{decl, tiling};

/// Values in a block.
pub const A16_BLOCK: usize = 32;

/// Steps from 0 to the largest magnitude of a block.
const STEPS: f32 = 16383.0;

/// 32 activations: [`Elem::A16`] in memory.
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(C)]
pub struct A16Block {
    /// Value of one step.
    pub scale: f32,
    /// `scale` times the sum of `q`.
    pub sum: f32,
    /// The steps, -16383..=16383.
    pub q: [i16; A16_BLOCK],
}

/// Quantizes one row; `x` is 32 times as long as `y`.
#[inline(always)]
pub(crate) fn quantize(y: &mut [A16Block], x: &[f32]) {
    for (block, x) in y.iter_mut().zip(x.chunks_exact(A16_BLOCK)) {
        // Magnitudes as integers order like the numbers, with NaN above infinity: no NaN is lost.
        let mut top = [0u32; 8];
        for c in 0..4 {
            for i in 0..8 {
                top[i] = top[i].max(x[c * 8 + i].to_bits() & 0x7fff_ffff);
            }
        }
        let m = f32::from_bits(top.iter().fold(0, |a, b| a.max(*b)));
        let scale = m / STEPS;
        let inverse = 1.0 / scale;
        let mut sum = 0i32;
        if m.is_finite() && inverse.is_finite() {
            for i in 0..A16_BLOCK {
                let q = (x[i] * inverse).round_ties_even() as i32;
                block.q[i] = q as i16;
                sum += q;
            }
        } else {
            block.q = [0; A16_BLOCK];
        }
        block.scale = scale;
        block.sum = scale * sum as f32;
    }
}

/// [`quantize`] with the vectors of the instruction set.
pub(crate) fn quantize_row(isa: Isa, y: &mut [A16Block], x: &[f32]) {
    #[cfg(target_arch = "x86_64")]
    if isa.has_avx2() {
        // SAFETY: `Isa` says AVX2 only after the processor said it.
        return unsafe { quantize_avx2(y, x) };
    }
    let _ = isa;
    quantize(y, x);
}

/// [`quantize`] with AVX2: the same three roundings, the conversion to integers being the third.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c")]
fn quantize_avx2(y: &mut [A16Block], x: &[f32]) {
    use std::arch::x86_64::*;
    let magnitude = _mm256_set1_epi32(0x7fff_ffff);
    for (block, x) in y.iter_mut().zip(x.as_chunks::<A16_BLOCK>().0) {
        let mut v = [_mm256_setzero_ps(); 4];
        let mut top = _mm256_setzero_si256();
        for (i, v) in v.iter_mut().enumerate() {
            // SAFETY: eight of 32 values.
            *v = unsafe { _mm256_loadu_ps(x.as_ptr().add(8 * i)) };
            let bits = _mm256_and_si256(_mm256_castps_si256(*v), magnitude);
            top = _mm256_max_epu32(top, bits);
        }
        let t = _mm_max_epu32(
            _mm256_castsi256_si128(top),
            _mm256_extracti128_si256::<1>(top),
        );
        let t = _mm_max_epu32(t, _mm_shuffle_epi32::<0b01_00_11_10>(t));
        let t = _mm_max_epu32(t, _mm_shuffle_epi32::<0b10_11_00_01>(t));
        let m = f32::from_bits(_mm_cvtsi128_si32(t) as u32);
        let scale = m / STEPS;
        let inverse = 1.0 / scale;
        let mut sum = 0;
        if m.is_finite() && inverse.is_finite() {
            let inverse = _mm256_set1_ps(inverse);
            // Rounds ties to even, as the control register says unless someone changed it; in -16383..=16383.
            let q = v.map(|v| _mm256_cvtps_epi32(_mm256_mul_ps(v, inverse)));
            for half in 0..2 {
                let packed = _mm256_packs_epi32(q[2 * half], q[2 * half + 1]);
                let packed = _mm256_permute4x64_epi64::<0b11_01_10_00>(packed);
                // SAFETY: 16 of 32 steps.
                unsafe { _mm256_storeu_si256(block.q.as_mut_ptr().add(16 * half).cast(), packed) };
            }
            let s = _mm256_add_epi32(_mm256_add_epi32(q[0], q[1]), _mm256_add_epi32(q[2], q[3]));
            let s = _mm_add_epi32(_mm256_castsi256_si128(s), _mm256_extracti128_si256::<1>(s));
            let s = _mm_add_epi32(s, _mm_shuffle_epi32::<0b01_00_11_10>(s));
            let s = _mm_add_epi32(s, _mm_shuffle_epi32::<0b10_11_00_01>(s));
            sum = _mm_cvtsi128_si32(s);
        } else {
            block.q = [0; A16_BLOCK];
        }
        block.scale = scale;
        block.sum = scale * sum as f32;
    }
}

/// Checks that whole blocks fill a row.
fn blocks(name: &str, cols: usize) -> Result<(), BadConstants> {
    positive(&[(name, cols)])?;
    if cols.is_multiple_of(A16_BLOCK) {
        Ok(())
    } else {
        Err(BadConstants::new(format!(
            "{name} is {cols}, no multiple of the 32 values of an A16 block"
        )))
    }
}

/// `cols` A16 values per `unit`.
pub(crate) fn a16s(unit: Unit, cols: usize) -> Need {
    Need::Values {
        elem: Elem::A16,
        unit,
        elems: cols as u64,
    }
}

pub(crate) static QUANTIZE: HostPoint = HostPoint {
    id: "quantize/a16",
    args: decl::QUANTIZE,
    needs: |a| {
        let (cols, unit) = (a.u32(2), row_unit(a.u32(3))?);
        blocks("cols", cols)?;
        Ok(vec![f32s(unit, cols), a16s(unit, cols)])
    },
    grid: |a, c| tiling::rows(unit_rows(a.u32(3), c), a.u32(2)),
    run: |tile, _, _| {
        let args = tile.args();
        let cols = args.u32(2);
        let x = tile.input::<f32>(0);
        let mut y = tile.output::<A16Block>(1, RowShape::whole(cols / A16_BLOCK));
        for r in tile.rows() {
            let from = &x[r * cols..(r + 1) * cols];
            quantize_row(args.isa, y.row(r), from);
        }
        Ok(())
    },
};

pub(crate) static RMSNORM_QUANTIZE: HostPoint = HostPoint {
    id: "rmsnorm_quantize/a16",
    args: decl::RMSNORM,
    needs: |a| {
        let (cols, unit) = (a.u32(3), row_unit(a.u32(5))?);
        blocks("cols", cols)?;
        Ok(vec![
            f32s(unit, cols),
            f32s(Unit::One, cols),
            a16s(unit, cols),
        ])
    },
    grid: |a, c| tiling::rows(unit_rows(a.u32(5), c), a.u32(3)),
    run: |tile, _, scratch| {
        let args = tile.args();
        let (cols, eps) = (args.u32(3), args.f32(4));
        let (x, w) = (tile.input::<f32>(0), tile.input::<f32>(1));
        let mut y = tile.output::<A16Block>(2, RowShape::whole(cols / A16_BLOCK));
        let between = grown(&mut scratch.f32s, cols);
        for r in tile.rows() {
            let from = &x[r * cols..(r + 1) * cols];
            on_lanes!(args.isa, rmsnorm, (y: &mut [f32] = between, x: &[f32] = from,
                w: &[f32] = &w[..cols], eps: f32 = eps));
            quantize_row(args.isa, y.row(r), between);
        }
        Ok(())
    },
};

pub(crate) static ADD_RMSNORM_QUANTIZE: HostPoint = HostPoint {
    id: "add_rmsnorm_quantize/a16",
    args: decl::ADD_RMSNORM,
    needs: |a| {
        let cols = a.u32(4);
        blocks("cols", cols)?;
        let row = f32s(Unit::Row, cols);
        Ok(vec![row, row, f32s(Unit::One, cols), a16s(Unit::Row, cols)])
    },
    grid: |a, c| tiling::rows(c.rows, a.u32(4)),
    run: add_rmsnorm_quantize,
};

fn add_rmsnorm_quantize(
    tile: &mut Tile<'_>,
    _: &StepBlock,
    scratch: &mut Scratch,
) -> Result<(), TileFault> {
    let args = tile.args();
    let (cols, eps) = (args.u32(4), args.f32(5));
    let (delta, w) = (tile.input::<f32>(1), tile.input::<f32>(2));
    let mut res = tile.output::<f32>(0, RowShape::whole(cols));
    let mut y = tile.output::<A16Block>(3, RowShape::whole(cols / A16_BLOCK));
    let between = grown(&mut scratch.f32s, cols);
    for r in tile.rows() {
        let delta = &delta[r * cols..(r + 1) * cols];
        on_lanes!(args.isa, add_rmsnorm, (res: &mut [f32] = res.row(r), delta: &[f32] = delta,
            y: &mut [f32] = between, w: &[f32] = &w[..cols], eps: f32 = eps));
        quantize_row(args.isa, y.row(r), between);
    }
    Ok(())
}

pub(crate) static SWIGLU_QUANTIZE: HostPoint = HostPoint {
    id: "swiglu_quantize/a16",
    args: decl::SWIGLU_QUANTIZE,
    needs: |a| {
        let ffn = a.u32(2);
        blocks("ffn", ffn)?;
        Ok(vec![f32s(Unit::Row, 2 * ffn), a16s(Unit::Row, ffn)])
    },
    grid: |a, c| crate::args::Grid {
        rows: c.rows,
        row_block: 1,
        cols: (a.u32(2) as u32).div_ceil(SLICE),
        col_block: 1,
    },
    run: swiglu_quantize,
};

/// Columns of a `swiglu_quantize` tile: whole A16 blocks.
const SLICE: u32 = 1024;

fn swiglu_quantize(
    tile: &mut Tile<'_>,
    _: &StepBlock,
    scratch: &mut Scratch,
) -> Result<(), TileFault> {
    let args = tile.args();
    let ffn = args.u32(2);
    let gu = tile.input::<f32>(0);
    let width = ffn / A16_BLOCK;
    let unit = SLICE as usize / A16_BLOCK;
    let shape = RowShape {
        first: 0,
        ld: width,
        base: 0,
        width,
        unit,
    };
    let mut y = tile.output::<A16Block>(1, shape);
    let begin = tile.cols().start * SLICE as usize;
    for r in tile.rows() {
        let out = y.row(r);
        let between = grown(&mut scratch.f32s, out.len() * A16_BLOCK);
        let gate = &gu[r * 2 * ffn + begin..][..between.len()];
        let up = &gu[r * 2 * ffn + ffn + begin..][..between.len()];
        on_lanes!(args.isa, swiglu,
            (out: &mut [f32] = between, gate: &[f32] = gate, up: &[f32] = up));
        quantize_row(args.isa, out, between);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(x: &[f32; 32]) -> A16Block {
        let mut y = [A16Block {
            scale: 0.0,
            sum: 0.0,
            q: [1; 32],
        }];
        quantize(&mut y, x);
        y[0]
    }

    #[test]
    fn ties_go_to_even_and_the_sum_is_of_the_steps() {
        let mut x = [0.0; 32];
        x[0] = 16383.0;
        x[1] = 2.5;
        x[2] = -3.5;
        let y = one(&x);
        assert_eq!((y.scale, y.q[0], y.q[1], y.q[2]), (1.0, 16383, 2, -4));
        assert_eq!(y.sum, 16381.0);
    }

    #[test]
    fn the_largest_magnitude_is_the_last_step_whatever_it_is() {
        // Every exponent whose block is not all zero, mantissas of all kinds; near the lower end scales are subnormal.
        for exponent in 13..255u32 {
            for mantissa in [0, 1, 0x1fff, 0x3f_ffff, 0x55_5555, 0x7f_ffff] {
                let m = f32::from_bits(exponent << 23 | mantissa);
                let mut x = [-m; 32];
                x[5] = m;
                let y = one(&x);
                assert_eq!((y.q[5], y.q[6]), (16383, -16383), "{m:e}");
            }
        }
    }

    #[test]
    fn the_vector_path_has_the_same_bits() {
        let Some(isa) = Isa::avx2() else { return };
        let mut state = 1u32;
        let mut x = Vec::new();
        for i in 0..4096 {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let scale = [1.0, 1e-3, 1e30, 1e-38, 1e-41][i / 32 % 5];
            x.push((state >> 8) as f32 / 8388608.0 * scale - scale);
        }
        for (i, bad) in [
            f32::NAN,
            -f32::NAN,
            f32::INFINITY,
            f32::NEG_INFINITY,
            2.5e38,
        ]
        .into_iter()
        .enumerate()
        {
            x[i * 64 + 7] = bad;
        }
        x[640..672].fill(-0.0);
        let none = A16Block {
            scale: 7.0,
            sum: 7.0,
            q: [7; 32],
        };
        let (mut got, mut want) = ([none; 128], [none; 128]);
        quantize_row(isa, &mut got, &x);
        quantize(&mut want, &x);
        for (i, (g, w)) in got.iter().zip(&want).enumerate() {
            let bits = |b: &A16Block| (b.scale.to_bits(), b.sum.to_bits(), b.q);
            let nan = g.sum.is_nan() && w.sum.is_nan() && g.q == w.q;
            assert!(bits(g) == bits(w) || nan, "block {i}: {g:?} {w:?}");
        }
    }

    #[test]
    fn zeros_and_tiny_values_are_zero_and_bad_values_stay_visible() {
        assert_eq!(
            one(&[0.0; 32]),
            A16Block {
                scale: 0.0,
                sum: 0.0,
                q: [0; 32]
            }
        );
        assert_eq!(one(&[1e-39; 32]).q, [0; 32]);
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut x = [1.0; 32];
            x[7] = bad;
            let y = one(&x);
            assert!(y.sum.is_nan() && !y.scale.is_finite() && y.q == [0; 32]);
        }
    }
}
