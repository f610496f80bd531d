// SPDX-License-Identifier: MIT OR Apache-2.0
//! The AVX2 path of `linear` for quantized weights: the bits of the portable path, eight outputs at a time.
//!
//! Integers: a vector holds one pair (two consecutive k) of eight outputs as 16-bit integers; `pmaddwd` with the pair of
//! the activations, broadcast, gives one exact 32-bit sum per output, and a block is 16 of them. Weights are widened to
//! 16 bits a quarter of a block at a time, once for all rows of the call. q6_k's go in multiplied by their sub-scales (at
//! most 4,096), so that the sum is the block's integer as it stands. [`super`] shows that no order overflows.

use std::arch::x86_64::*;

use super::Work;
use super::a16::Quantized;
use crate::formats::{self, Format, Q4K, Q5_0, Q6K};
use crate::lanes::F8;
use crate::layout::GROUP;
use crate::quantize::{A16_BLOCK, A16Block};

/// How far ahead of the arithmetic weights are asked for.
const AHEAD: usize = 2048;

/// What the AVX2 path takes from a sub-block of 32 k. All functions are for use inside a function that enables AVX2, FMA
/// and F16C, into which they are inlined.
pub(super) trait Avx2: Quantized {
    /// Values `8 * quarter..8 * quarter + 8` of eight outputs: vector `n` holds k `2n` and `2n + 1` of them, as 16-bit
    /// integers side by side in the output's lane.
    ///
    /// # Safety
    /// AVX2. `packed` points to a packed block of the format.
    unsafe fn widen(packed: *const u8, sub: usize, quarter: usize) -> [__m256i; 4];

    /// `d` and `m` of eight outputs.
    ///
    /// # Safety
    /// As [`Avx2::widen`], and F16C.
    unsafe fn scales_ps(packed: *const u8, sub: usize) -> (__m256, __m256);
}

/// All rows of a tile against all its groups.
pub(super) fn tile<F: Avx2>(work: &mut Work<'_, A16Block>) {
    let rows = work.rows.clone();
    for group in 0..work.groups {
        let mut row = rows.start;
        while row + 4 <= rows.end {
            // SAFETY: only called when `Isa` says AVX2, which implies FMA and F16C.
            unsafe { block::<F, 4>(work, row, group) };
            row += 4;
        }
        if row + 2 <= rows.end {
            // SAFETY: as above.
            unsafe { block::<F, 2>(work, row, group) };
            row += 2;
        }
        if row < rows.end {
            // SAFETY: as above.
            unsafe { block::<F, 1>(work, row, group) };
        }
    }
}

/// One group by `R` rows.
#[target_feature(enable = "avx2,fma,f16c")]
fn block<F: Avx2, const R: usize>(work: &mut Work<'_, A16Block>, row: usize, group: usize) {
    let mut acc = [_mm256_setzero_ps(); R];
    {
        let x: [&[A16Block]; R] = std::array::from_fn(|r| work.x(row + r));
        let packed = work.w(group).chunks_exact(F::PACKED);
        assert!(x.iter().all(|x| x.len() == packed.len() * F::SUBS));
        let mut at = 0;
        for packed in packed {
            prefetch::<F>(packed);
            for sub in 0..F::SUBS {
                // SAFETY: `at` is below the length of each `x`, asserted above.
                let x = x.map(|x| unsafe { x.get_unchecked(at) });
                // SAFETY: a whole packed block, and 32 values each.
                let (dots, (d, m)) = unsafe {
                    let packed = packed.as_ptr();
                    (
                        dots::<F, R>(packed, sub, x.map(|x| x.q.as_ptr())),
                        F::scales_ps(packed, sub),
                    )
                };
                for r in 0..R {
                    let scale = _mm256_mul_ps(d, _mm256_set1_ps(x[r].scale));
                    acc[r] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dots[r]), scale, acc[r]);
                    if F::OFFSET {
                        acc[r] = _mm256_fmadd_ps(m, _mm256_set1_ps(x[r].sum), acc[r]);
                    }
                }
                at += 1;
            }
        }
    }
    for (r, acc) in acc.into_iter().enumerate() {
        let mut out = F8::ZERO;
        // SAFETY: eight values.
        unsafe { _mm256_storeu_ps(out.0.as_mut_ptr(), acc) };
        work.store(row + r, group, out);
    }
}

/// Asks for the block [`AHEAD`] bytes further on, of this group or the next.
#[inline(always)]
fn prefetch<F: Avx2>(packed: &[u8]) {
    let mut line = 0;
    while line < F::PACKED {
        let at = packed.as_ptr().wrapping_add(AHEAD + line).cast();
        // SAFETY: a hint: any address is allowed.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(at) };
        line += 64;
    }
}

/// The exact integers of eight outputs, for `R` rows.
#[inline(always)]
unsafe fn dots<F: Avx2, const R: usize>(
    packed: *const u8,
    sub: usize,
    x: [*const i16; R],
) -> [__m256i; R] {
    // SAFETY: the caller's: AVX2, a packed block, and 32 values each.
    unsafe {
        let mut out = [_mm256_setzero_si256(); R];
        for quarter in 0..4 {
            let w = F::widen(packed, sub, quarter);
            for n in 0..4 {
                for r in 0..R {
                    let products = _mm256_madd_epi16(w[n], pair(x[r], 4 * quarter + n));
                    out[r] = _mm256_add_epi32(out[r], products);
                }
            }
        }
        out
    }
}

/// A pair of the activations for all eight outputs.
#[inline(always)]
unsafe fn pair(x: *const i16, p: usize) -> __m256i {
    // SAFETY: the caller's: AVX2, and 32 values at `x`.
    unsafe { _mm256_set1_epi32(x.add(2 * p).cast::<i32>().read_unaligned()) }
}

#[inline(always)]
unsafe fn load(packed: *const u8, offset: usize) -> __m256i {
    // SAFETY: the caller's: AVX2, and 32 bytes there.
    unsafe { _mm256_loadu_si256(packed.add(offset).cast()) }
}

/// Eight halves.
#[inline(always)]
unsafe fn halves(packed: *const u8, offset: usize) -> __m256 {
    // SAFETY: the caller's: F16C, and 16 bytes there.
    unsafe { _mm256_cvtph_ps(_mm_loadu_si128(packed.add(offset).cast())) }
}

/// Eight bytes as integers, without sign.
#[inline(always)]
unsafe fn bytes(packed: *const u8, offset: usize) -> __m256i {
    // SAFETY: the caller's: AVX2, and 8 bytes there.
    unsafe { _mm256_cvtepu8_epi32(_mm_loadl_epi64(packed.add(offset).cast())) }
}

/// The four pairs of a quarter of nibbles.
#[inline(always)]
unsafe fn nibbles(packed: *const u8, offset: usize, quarter: usize) -> [__m256i; 4] {
    // SAFETY: the caller's: AVX2, and 128 bytes there.
    unsafe {
        let (all, mask) = (load(packed, offset + 32 * quarter), _mm256_set1_epi16(15));
        [
            _mm256_and_si256(all, mask),
            _mm256_and_si256(_mm256_srli_epi16::<4>(all), mask),
            _mm256_and_si256(_mm256_srli_epi16::<8>(all), mask),
            _mm256_srli_epi16::<12>(all),
        ]
    }
}

impl Avx2 for formats::Q4_0 {
    #[inline(always)]
    unsafe fn widen(p: *const u8, _: usize, quarter: usize) -> [__m256i; 4] {
        // SAFETY: the caller's.
        unsafe { nibbles(p, 16, quarter) }
    }
    #[inline(always)]
    unsafe fn scales_ps(p: *const u8, _: usize) -> (__m256, __m256) {
        // SAFETY: the caller's.
        unsafe {
            let d = halves(p, 0);
            (d, _mm256_mul_ps(d, _mm256_set1_ps(-8.0)))
        }
    }
}

impl Avx2 for formats::Q4_1 {
    #[inline(always)]
    unsafe fn widen(p: *const u8, _: usize, quarter: usize) -> [__m256i; 4] {
        // SAFETY: the caller's.
        unsafe { nibbles(p, 32, quarter) }
    }
    #[inline(always)]
    unsafe fn scales_ps(p: *const u8, _: usize) -> (__m256, __m256) {
        // SAFETY: the caller's.
        unsafe { (halves(p, 0), halves(p, 16)) }
    }
}

impl Avx2 for Q4K {
    #[inline(always)]
    unsafe fn widen(p: *const u8, sub: usize, quarter: usize) -> [__m256i; 4] {
        // SAFETY: the caller's.
        unsafe { nibbles(p, Q4K::HEAD + sub * Q4K::SUB + 16, quarter) }
    }
    #[inline(always)]
    unsafe fn scales_ps(p: *const u8, sub: usize) -> (__m256, __m256) {
        // SAFETY: the caller's.
        unsafe {
            let at = Q4K::HEAD + sub * Q4K::SUB;
            let d = _mm256_mul_ps(halves(p, 0), _mm256_cvtepi32_ps(bytes(p, at)));
            let m = _mm256_mul_ps(halves(p, 16), _mm256_cvtepi32_ps(bytes(p, at + 8)));
            (d, _mm256_xor_ps(m, _mm256_set1_ps(-0.0)))
        }
    }
}

impl Avx2 for Q5_0 {
    #[inline(always)]
    unsafe fn widen(p: *const u8, _: usize, quarter: usize) -> [__m256i; 4] {
        // SAFETY: the caller's. Bit `4 * quarter + n` of a word is the fifth of pair `n`; it goes to bit 4.
        unsafe {
            let (high, bit) = (load(p, 16), _mm256_set1_epi16(16));
            let first = match quarter {
                0 => _mm256_slli_epi16::<4>(high),
                1 => high,
                2 => _mm256_srli_epi16::<4>(high),
                _ => _mm256_srli_epi16::<8>(high),
            };
            let [a, b, c, d] = nibbles(p, 48, quarter);
            let with = |low, high| _mm256_or_si256(low, _mm256_and_si256(high, bit));
            [
                with(a, first),
                with(b, _mm256_srli_epi16::<1>(first)),
                with(c, _mm256_srli_epi16::<2>(first)),
                with(d, _mm256_srli_epi16::<3>(first)),
            ]
        }
    }
    #[inline(always)]
    unsafe fn scales_ps(p: *const u8, _: usize) -> (__m256, __m256) {
        // SAFETY: the caller's.
        unsafe {
            let d = halves(p, 0);
            (d, _mm256_mul_ps(d, _mm256_set1_ps(-16.0)))
        }
    }
}

impl Avx2 for formats::Q8_0 {
    #[inline(always)]
    unsafe fn widen(p: *const u8, _: usize, quarter: usize) -> [__m256i; 4] {
        // SAFETY: the caller's.
        unsafe {
            let mut out = [_mm256_setzero_si256(); 4];
            for n in 0..4 {
                let bytes = p.add(16 + 64 * quarter + 16 * n).cast();
                out[n] = _mm256_cvtepi8_epi16(_mm_loadu_si128(bytes));
            }
            out
        }
    }
    #[inline(always)]
    unsafe fn scales_ps(p: *const u8, _: usize) -> (__m256, __m256) {
        // SAFETY: the caller's.
        unsafe { (halves(p, 0), _mm256_setzero_ps()) }
    }
}

impl Avx2 for Q6K {
    #[inline(always)]
    unsafe fn widen(p: *const u8, sub: usize, quarter: usize) -> [__m256i; 4] {
        // SAFETY: the caller's. Bits 2f and 2f + 1 of a word are the high ones of pair `f` of the half, which is pair
        // `f % 4` of its quarter; they go to bits 4 and 5.
        unsafe {
            let p = p.add(Q6K::HEAD + sub * Q6K::SUB);
            let high = load(p, 16 + quarter / 2 * 32);
            let first = match quarter % 2 {
                0 => _mm256_slli_epi16::<4>(high),
                _ => _mm256_srli_epi16::<4>(high),
            };
            let scales = sub_scales(p, quarter / 2 * 8);
            let (bits, bias) = (_mm256_set1_epi16(0x30), _mm256_set1_epi16(32));
            let [a, b, c, d] = nibbles(p, 80, quarter);
            let with = |low, high| {
                let value = _mm256_or_si256(low, _mm256_and_si256(high, bits));
                _mm256_mullo_epi16(_mm256_sub_epi16(value, bias), scales)
            };
            [
                with(a, first),
                with(b, _mm256_srli_epi16::<2>(first)),
                with(c, _mm256_srli_epi16::<4>(first)),
                with(d, _mm256_srli_epi16::<6>(first)),
            ]
        }
    }
    #[inline(always)]
    unsafe fn scales_ps(p: *const u8, _: usize) -> (__m256, __m256) {
        // SAFETY: the caller's.
        unsafe { (halves(p, 0), _mm256_setzero_ps()) }
    }
}

/// Eight signed byte scales, each in both 16-bit halves of its output's lane.
#[inline(always)]
unsafe fn sub_scales(p: *const u8, offset: usize) -> __m256i {
    // SAFETY: the caller's: AVX2, and 8 bytes there.
    unsafe {
        let s = _mm256_cvtepi8_epi32(_mm_loadl_epi64(p.add(offset).cast()));
        let low = _mm256_and_si256(s, _mm256_set1_epi32(0xffff));
        _mm256_or_si256(low, _mm256_slli_epi32::<16>(s))
    }
}

const _: () = assert!(GROUP == 8 && A16_BLOCK == 32);
const _: () = assert!(<formats::Q4_1 as Format>::PACKED == 160);
