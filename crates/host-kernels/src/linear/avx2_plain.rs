// SPDX-License-Identifier: MIT OR Apache-2.0
//! The AVX2 path of `linear` for f32, bf16 and f16 weights: the chains of [`super::plain`], eight outputs to a vector.
//! Eight chains are in flight whatever the rows, which is what two multipliers of four cycles need.

use std::arch::x86_64::*;

use super::Work;
use super::plain::SEGMENT;
use crate::formats::{self, Format};
use crate::lanes::F8;

/// How far ahead of the arithmetic weights are asked for, in each group.
const AHEAD: usize = 1024;

/// Reads the weights of eight outputs at one k.
pub(super) trait Load: Format {
    /// # Safety
    /// AVX2 and F16C, in a function that enables them; `F::PACKED` bytes at `w`.
    unsafe fn load_ps(w: *const u8) -> __m256;
}

impl Load for formats::F32 {
    #[inline(always)]
    unsafe fn load_ps(w: *const u8) -> __m256 {
        // SAFETY: the caller's.
        unsafe { _mm256_loadu_ps(w.cast()) }
    }
}

impl Load for formats::BF16 {
    #[inline(always)]
    unsafe fn load_ps(w: *const u8) -> __m256 {
        // SAFETY: the caller's.
        unsafe {
            let wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(w.cast()));
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(wide))
        }
    }
}

impl Load for formats::F16 {
    #[inline(always)]
    unsafe fn load_ps(w: *const u8) -> __m256 {
        // SAFETY: the caller's.
        unsafe { _mm256_cvtph_ps(_mm_loadu_si128(w.cast())) }
    }
}

/// All rows of a tile against all its groups.
pub(super) fn tile<F: Load>(work: &mut Work<'_, f32>) {
    groups::<F>(work, 0);
}

/// All rows of a tile against its groups from `first` on. The caller's `Isa` says AVX2.
pub(super) fn groups<F: Load>(work: &mut Work<'_, f32>, first: usize) {
    let rows = work.rows.clone();
    let mut row = rows.start;
    while row < rows.end {
        // SAFETY: only called when `Isa` says AVX2, which implies FMA and F16C.
        row += unsafe {
            match rows.end - row {
                1 => across::<F, 8, 1>(work, row, first),
                2 | 3 => across::<F, 4, 2>(work, row, first),
                _ => across::<F, 2, 4>(work, row, first),
            }
        };
    }
}

/// `R` rows against the groups from `first` on, `G` at a time. Gives `R`.
#[target_feature(enable = "avx2,fma,f16c")]
fn across<F: Load, const G: usize, const R: usize>(
    work: &mut Work<'_, f32>,
    row: usize,
    first: usize,
) -> usize {
    let mut group = first;
    while group + G <= work.groups {
        block::<F, G, R>(work, row, group);
        group += G;
    }
    while group < work.groups {
        block::<F, 1, R>(work, row, group);
        group += 1;
    }
    R
}

#[target_feature(enable = "avx2,fma,f16c")]
fn block<F: Load, const G: usize, const R: usize>(
    work: &mut Work<'_, f32>,
    row: usize,
    group: usize,
) {
    let k = work.ld;
    let mut total = [[_mm256_setzero_ps(); G]; R];
    {
        let w: [&[u8]; G] = std::array::from_fn(|g| work.w(group + g));
        let x: [&[f32]; R] = std::array::from_fn(|r| work.x(row + r));
        assert!(w.iter().all(|w| w.len() == k * F::PACKED) && x.iter().all(|x| x.len() == k));
        let (w, x) = (w.map(<[u8]>::as_ptr), x.map(<[f32]>::as_ptr));
        let mut begin = 0;
        while begin < k {
            let end = k.min(begin + SEGMENT);
            let mut acc = [[_mm256_setzero_ps(); G]; R];
            let mut i = begin;
            while i < end {
                for w in w {
                    _mm_prefetch::<_MM_HINT_T0>(w.wrapping_add(i * F::PACKED + AHEAD).cast());
                }
                let line = end.min(i + 64 / F::PACKED);
                while i < line {
                    // SAFETY: `i < k`, and the lengths were asserted above.
                    unsafe {
                        let weights = w.map(|w| F::load_ps(w.add(i * F::PACKED)));
                        for r in 0..R {
                            let x = _mm256_set1_ps(*x[r].add(i));
                            for g in 0..G {
                                acc[r][g] = _mm256_fmadd_ps(weights[g], x, acc[r][g]);
                            }
                        }
                    }
                    i += 1;
                }
            }
            for r in 0..R {
                for g in 0..G {
                    total[r][g] = _mm256_add_ps(total[r][g], acc[r][g]);
                }
            }
            begin = end;
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
