// SPDX-License-Identifier: MIT OR Apache-2.0
//! The AVX-512 path of `linear` for e4m3 weights: the chains of [`super::fp8`], sixteen outputs (two groups) to a vector. A
//! last group without a neighbour goes through [`super::avx2_fp8`].

use std::arch::x86_64::*;

use super::avx512_plain::store;
use super::fp8::SCALED;
use super::{Work, avx2_fp8};
use crate::formats::fp8::{COLUMNS, HEAD, PACKED};
use crate::layout::GROUP;

/// How far ahead of the arithmetic weights are asked for, in each group.
const AHEAD: usize = 1024;

/// All rows of a tile against all its groups.
pub(super) fn tile(work: &mut Work<'_, f32>) {
    let rows = work.rows.clone();
    let mut row = rows.start;
    while row < rows.end {
        // SAFETY: only called when `Isa` says AVX-512.
        row += unsafe {
            match rows.end - row {
                1 => across::<4, 1>(work, row),
                2 | 3 => across::<4, 2>(work, row),
                4..8 => across::<2, 4>(work, row),
                _ => across::<2, 8>(work, row),
            }
        };
    }
    if !work.groups.is_multiple_of(2) {
        avx2_fp8::tile(work, work.groups - 1);
    }
}

/// `R` rows against all pairs of groups, `P` at a time. Gives `R`.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl")]
fn across<const P: usize, const R: usize>(work: &mut Work<'_, f32>, row: usize) -> usize {
    let mut group = 0;
    while group + 2 * P <= work.groups {
        block::<P, R>(work, row, group);
        group += 2 * P;
    }
    while group + 2 <= work.groups {
        block::<1, R>(work, row, group);
        group += 2;
    }
    R
}

#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl")]
fn block<const P: usize, const R: usize>(work: &mut Work<'_, f32>, row: usize, group: usize) {
    let k = work.ld;
    let mut total = [[_mm512_setzero_ps(); P]; R];
    {
        let w: [[&[u8]; 2]; P] =
            std::array::from_fn(|p| [work.w(group + 2 * p), work.w(group + 2 * p + 1)]);
        let x: [&[f32]; R] = std::array::from_fn(|r| work.x(row + r));
        let bytes = k.div_ceil(COLUMNS) * PACKED;
        assert!(w.iter().flatten().all(|w| w.len() == bytes) && x.iter().all(|x| x.len() == k));
        let (w, x) = (w.map(|w| w.map(<[u8]>::as_ptr)), x.map(<[f32]>::as_ptr));
        for (block, begin) in (0..k).step_by(COLUMNS).enumerate() {
            let columns = COLUMNS.min(k - begin);
            // SAFETY: a block of each group, and `columns` activations from `begin` on (asserted above).
            unsafe {
                let w = w.map(|w| w.map(|w| w.add(block * PACKED)));
                let acc = chains::<P, R>(w, x.map(|x| x.add(begin)), columns);
                for p in 0..P {
                    // The eight scales at the begin of each block.
                    let low = _mm512_castps256_ps512(_mm256_loadu_ps(w[p][0].cast()));
                    let scale = _mm512_insertf32x8::<1>(low, _mm256_loadu_ps(w[p][1].cast()));
                    let scale = _mm512_mul_ps(_mm512_set1_ps(SCALED), scale);
                    for r in 0..R {
                        total[r][p] = _mm512_fmadd_ps(acc[r][p], scale, total[r][p]);
                    }
                }
            }
        }
    }
    store(work, row, group, total);
}

/// The chains of one block.
///
/// # Safety
/// `PACKED` bytes at each `w`, `columns` <= 128 values at each `x`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl")]
unsafe fn chains<const P: usize, const R: usize>(
    w: [[*const u8; 2]; P],
    x: [*const f32; R],
    columns: usize,
) -> [[__m512; P]; R] {
    let mut acc = [[_mm512_setzero_ps(); P]; R];
    let weights = |p: usize, i: usize| {
        // SAFETY: values 8 i.. of the block, which is filled up to 128 columns; prefetches touch nothing.
        unsafe {
            let [low, high] = w[p].map(|w| w.add(HEAD + i * GROUP));
            for at in [low, high] {
                _mm_prefetch::<_MM_HINT_T0>(at.wrapping_add(AHEAD).cast());
            }
            let low = _mm512_castsi256_si512(_mm256_loadu_si256(low.cast()));
            four(_mm512_inserti64x4::<1>(
                low,
                _mm256_loadu_si256(high.cast()),
            ))
        }
    };
    let whole = columns / 4 * 4;
    for i in (0..whole).step_by(4) {
        for p in 0..P {
            let four = weights(p, i);
            for r in 0..R {
                for j in 0..4 {
                    // SAFETY: `i + j < columns`.
                    let x = unsafe { _mm512_set1_ps(*x[r].add(i + j)) };
                    acc[r][p] = _mm512_fmadd_ps(four[j], x, acc[r][p]);
                }
            }
        }
    }
    if whole < columns {
        for p in 0..P {
            let four = weights(p, whole);
            for r in 0..R {
                for (j, four) in four.into_iter().enumerate().take(columns - whole) {
                    // SAFETY: `whole + j < columns`.
                    let x = unsafe { _mm512_set1_ps(*x[r].add(whole + j)) };
                    acc[r][p] = _mm512_fmadd_ps(four, x, acc[r][p]);
                }
            }
        }
    }
    acc
}

/// A 256th of four times sixteen e4m3 values, four times eight of each group: the byte in the upper half of a word, shifted
/// right with its sign, is an f16 once the second of the two sign bits is gone.
#[inline]
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl")]
fn four(bytes: __m512i) -> [__m512; 4] {
    let zero = _mm512_setzero_si512();
    let mask = _mm512_set1_epi16(0xbfff_u16 as i16);
    let halves = |words| _mm512_and_si512(_mm512_srai_epi16::<1>(words), mask);
    // Two columns of one group, the same of the other, then the next two.
    let bytes = _mm512_shuffle_i64x2::<0b11_01_10_00>(bytes, bytes);
    let even = halves(_mm512_unpacklo_epi8(zero, bytes));
    let odd = halves(_mm512_unpackhi_epi8(zero, bytes));
    [
        _mm512_cvtph_ps(_mm512_castsi512_si256(even)),
        _mm512_cvtph_ps(_mm512_castsi512_si256(odd)),
        _mm512_cvtph_ps(_mm512_extracti64x4_epi64::<1>(even)),
        _mm512_cvtph_ps(_mm512_extracti64x4_epi64::<1>(odd)),
    ]
}
