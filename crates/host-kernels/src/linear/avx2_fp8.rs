// SPDX-License-Identifier: MIT OR Apache-2.0
//! The AVX2 path of `linear` for e4m3 weights: the chains of [`super::fp8`], eight outputs to a vector, eight in flight.

use std::arch::x86_64::*;

use super::Work;
use super::fp8::SCALED;
use crate::formats::fp8::{COLUMNS, HEAD, PACKED};
use crate::lanes::F8;
use crate::layout::GROUP;

/// How far ahead of the arithmetic weights are asked for, in each group.
const AHEAD: usize = 1024;

/// All rows of a tile against its groups from `first` on.
pub(super) fn tile(work: &mut Work<'_, f32>, first: usize) {
    let rows = work.rows.clone();
    let mut row = rows.start;
    while row < rows.end {
        // SAFETY: only called when `Isa` says AVX2, which implies FMA and F16C.
        row += unsafe {
            match rows.end - row {
                1 => across::<4, 1>(work, row, first),
                2 | 3 => across::<4, 2>(work, row, first),
                _ => across::<2, 4>(work, row, first),
            }
        };
    }
}

/// `R` rows against the groups from `group` on, `G` at a time. Gives `R`.
#[target_feature(enable = "avx2,fma,f16c")]
fn across<const G: usize, const R: usize>(
    work: &mut Work<'_, f32>,
    row: usize,
    mut group: usize,
) -> usize {
    while group + G <= work.groups {
        groups::<G, R>(work, row, group);
        group += G;
    }
    while group < work.groups {
        groups::<1, R>(work, row, group);
        group += 1;
    }
    R
}

#[target_feature(enable = "avx2,fma,f16c")]
fn groups<const G: usize, const R: usize>(work: &mut Work<'_, f32>, row: usize, group: usize) {
    let k = work.ld;
    let mut total = [[_mm256_setzero_ps(); G]; R];
    {
        let w: [&[u8]; G] = std::array::from_fn(|g| work.w(group + g));
        let x: [&[f32]; R] = std::array::from_fn(|r| work.x(row + r));
        let bytes = k.div_ceil(COLUMNS) * PACKED;
        assert!(w.iter().all(|w| w.len() == bytes) && x.iter().all(|x| x.len() == k));
        let x = x.map(<[f32]>::as_ptr);
        for (block, begin) in (0..k).step_by(COLUMNS).enumerate() {
            let columns = COLUMNS.min(k - begin);
            let w = w.map(|w| w[block * PACKED..].as_ptr());
            // SAFETY: a block of each group, and `columns` activations from `begin` on (asserted above).
            let acc = unsafe { chains::<G, R>(w, x.map(|x| x.add(begin)), columns) };
            for g in 0..G {
                // SAFETY: the eight scales at the block's begin.
                let scale = unsafe { _mm256_loadu_ps(w[g].cast()) };
                let scale = _mm256_mul_ps(_mm256_set1_ps(SCALED), scale);
                for r in 0..R {
                    total[r][g] = _mm256_fmadd_ps(acc[r][g], scale, total[r][g]);
                }
            }
        }
    }
    for (r, total) in total.into_iter().enumerate() {
        for (g, total) in total.into_iter().enumerate() {
            let mut out = F8::ZERO;
            // SAFETY: eight values.
            unsafe { _mm256_storeu_ps(out.0.as_mut_ptr(), total) };
            work.store(row + r, group + g, out);
        }
    }
}

/// The chains of one block.
///
/// # Safety
/// `PACKED` bytes at each `w`, `columns` <= 128 values at each `x`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn chains<const G: usize, const R: usize>(
    w: [*const u8; G],
    x: [*const f32; R],
    columns: usize,
) -> [[__m256; G]; R] {
    let mut acc = [[_mm256_setzero_ps(); G]; R];
    let mut i = 0;
    while i + 4 <= columns {
        for g in 0..G {
            // SAFETY: values 8 i.. of the block; prefetches touch nothing.
            let four = unsafe {
                let at = w[g].add(HEAD + i * GROUP);
                _mm_prefetch::<_MM_HINT_T0>(at.wrapping_add(AHEAD).cast());
                four(_mm256_loadu_si256(at.cast()))
            };
            for r in 0..R {
                for j in 0..4 {
                    // SAFETY: `i + j < columns`.
                    let x = unsafe { _mm256_set1_ps(*x[r].add(i + j)) };
                    acc[r][g] = _mm256_fmadd_ps(four[j], x, acc[r][g]);
                }
            }
        }
        i += 4;
    }
    while i < columns {
        for g in 0..G {
            // SAFETY: eight values of the block.
            let bytes = unsafe { _mm_loadl_epi64(w[g].add(HEAD + i * GROUP).cast()) };
            let w = four(_mm256_castsi128_si256(bytes))[0];
            for r in 0..R {
                // SAFETY: `i < columns`.
                let x = unsafe { _mm256_set1_ps(*x[r].add(i)) };
                acc[r][g] = _mm256_fmadd_ps(w, x, acc[r][g]);
            }
        }
        i += 1;
    }
    acc
}

/// A 256th of four times eight e4m3 values: the byte in the upper half of a word, shifted right with its sign, is an f16
/// once the second of the two sign bits is gone.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn four(bytes: __m256i) -> [__m256; 4] {
    let zero = _mm256_setzero_si256();
    let mask = _mm256_set1_epi16(0xbfff_u16 as i16);
    let halves = |words| _mm256_and_si256(_mm256_srai_epi16::<1>(words), mask);
    let even = halves(_mm256_unpacklo_epi8(zero, bytes));
    let odd = halves(_mm256_unpackhi_epi8(zero, bytes));
    [
        _mm256_cvtph_ps(_mm256_castsi256_si128(even)),
        _mm256_cvtph_ps(_mm256_castsi256_si128(odd)),
        _mm256_cvtph_ps(_mm256_extracti128_si256::<1>(even)),
        _mm256_cvtph_ps(_mm256_extracti128_si256::<1>(odd)),
    ]
}
