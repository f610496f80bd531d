// SPDX-License-Identifier: MIT OR Apache-2.0
//! The AVX-512 path of `linear` for f32, bf16 and f16 weights: the chains of [`super::plain`], sixteen outputs (two groups) to
//! a vector. A last group without a neighbour goes through [`super::avx2_plain`].
//!
//! `vdpbf16ps` is left aside: it adds pairs of products and flushes subnormals, which is another spec (docs/adr/0013).

use std::arch::x86_64::*;

use super::Work;
use super::avx2_plain::{self, Load};
use super::plain::SEGMENT;
use crate::formats;
use crate::lanes::F8;

/// How far ahead of the arithmetic weights are asked for, in each group.
const AHEAD: usize = 1024;

/// Reads the weights of sixteen outputs at one k.
pub(super) trait Load2: Load {
    /// # Safety
    /// AVX-512, in a function that enables it; `F::PACKED` bytes at each.
    unsafe fn load2_ps(low: *const u8, high: *const u8) -> __m512;
}

/// 16 bytes of each group.
#[inline(always)]
unsafe fn halves(low: *const u8, high: *const u8) -> __m256i {
    // SAFETY: the caller's.
    unsafe { _mm256_set_m128i(_mm_loadu_si128(high.cast()), _mm_loadu_si128(low.cast())) }
}

impl Load2 for formats::F32 {
    #[inline(always)]
    unsafe fn load2_ps(low: *const u8, high: *const u8) -> __m512 {
        // SAFETY: the caller's.
        unsafe {
            let low = _mm512_castps256_ps512(_mm256_loadu_ps(low.cast()));
            _mm512_insertf32x8::<1>(low, _mm256_loadu_ps(high.cast()))
        }
    }
}

impl Load2 for formats::BF16 {
    #[inline(always)]
    unsafe fn load2_ps(low: *const u8, high: *const u8) -> __m512 {
        // SAFETY: the caller's.
        unsafe {
            let wide = _mm512_cvtepu16_epi32(halves(low, high));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide))
        }
    }
}

impl Load2 for formats::F16 {
    #[inline(always)]
    unsafe fn load2_ps(low: *const u8, high: *const u8) -> __m512 {
        // SAFETY: the caller's.
        unsafe { _mm512_cvtph_ps(halves(low, high)) }
    }
}

/// All rows of a tile against all its groups.
pub(super) fn tile<F: Load2>(work: &mut Work<'_, f32>) {
    let rows = work.rows.clone();
    let mut row = rows.start;
    while row < rows.end {
        // SAFETY: only called when `Isa` says AVX-512.
        row += unsafe {
            match rows.end - row {
                1 => across::<F, 8, 1>(work, row),
                2 | 3 => across::<F, 4, 2>(work, row),
                4..8 => across::<F, 2, 4>(work, row),
                _ => across::<F, 2, 8>(work, row),
            }
        };
    }
    if !work.groups.is_multiple_of(2) {
        avx2_plain::groups::<F>(work, work.groups - 1);
    }
}

/// `R` rows against all pairs of groups, `P` at a time. Gives `R`.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl")]
fn across<F: Load2, const P: usize, const R: usize>(work: &mut Work<'_, f32>, row: usize) -> usize {
    let mut group = 0;
    while group + 2 * P <= work.groups {
        block::<F, P, R>(work, row, group);
        group += 2 * P;
    }
    while group + 2 <= work.groups {
        block::<F, 1, R>(work, row, group);
        group += 2;
    }
    R
}

#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl")]
fn block<F: Load2, const P: usize, const R: usize>(
    work: &mut Work<'_, f32>,
    row: usize,
    group: usize,
) {
    let k = work.ld;
    let mut total = [[_mm512_setzero_ps(); P]; R];
    {
        let w: [[&[u8]; 2]; P] =
            std::array::from_fn(|p| [work.w(group + 2 * p), work.w(group + 2 * p + 1)]);
        let x: [&[f32]; R] = std::array::from_fn(|r| work.x(row + r));
        assert!(w.iter().flatten().all(|w| w.len() == k * F::PACKED));
        assert!(x.iter().all(|x| x.len() == k));
        let (w, x) = (w.map(|w| w.map(<[u8]>::as_ptr)), x.map(<[f32]>::as_ptr));
        let mut begin = 0;
        while begin < k {
            let end = k.min(begin + SEGMENT);
            let mut acc = [[_mm512_setzero_ps(); P]; R];
            let mut i = begin;
            while i < end {
                for w in w.iter().flatten() {
                    _mm_prefetch::<_MM_HINT_T0>(w.wrapping_add(i * F::PACKED + AHEAD).cast());
                }
                let line = end.min(i + 64 / F::PACKED);
                while i < line {
                    // SAFETY: `i < k`, and the lengths were asserted above.
                    unsafe {
                        let weights = w.map(|[low, high]| {
                            F::load2_ps(low.add(i * F::PACKED), high.add(i * F::PACKED))
                        });
                        for r in 0..R {
                            let x = _mm512_set1_ps(*x[r].add(i));
                            for p in 0..P {
                                acc[r][p] = _mm512_fmadd_ps(weights[p], x, acc[r][p]);
                            }
                        }
                    }
                    i += 1;
                }
            }
            for r in 0..R {
                for p in 0..P {
                    total[r][p] = _mm512_add_ps(total[r][p], acc[r][p]);
                }
            }
            begin = end;
        }
    }
    store(work, row, group, total);
}

/// Stores `R` rows of `P` pairs of groups.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl")]
pub(super) fn store<const P: usize, const R: usize>(
    work: &mut Work<'_, f32>,
    row: usize,
    group: usize,
    total: [[__m512; P]; R],
) {
    for (r, total) in total.into_iter().enumerate() {
        for (p, total) in total.into_iter().enumerate() {
            let mut out = [F8::ZERO; 2];
            // SAFETY: sixteen values.
            unsafe { _mm512_storeu_ps(out.as_mut_ptr().cast(), total) };
            for (g, out) in out.into_iter().enumerate() {
                work.store(row + r, group + 2 * p + g, out);
            }
        }
    }
}
