// SPDX-License-Identifier: MIT OR Apache-2.0
//! The AVX2 path of `linear` for quantized weights: the bits of the portable path, eight outputs at a time.
//!
//! Integers: a vector holds one quad (four consecutive k) of eight outputs; `maddubs` with the quad of the activations,
//! broadcast, gives two 16-bit sums per output. They cannot overflow, which is what makes the result exact:
//!
//! | weights | largest pair | pairs added before widening | largest sum |
//! |---|---|---|---|
//! | 0..=15 | 2 x 15 x 127 | 8 | 30,480 |
//! | 0..=31 (q5_0) | 2 x 31 x 127 | 4 | 31,496 |
//! | -32..=31 (q6_k) | 2 x 32 x 127 | 4 | 32,512 |
//! | -128..=127 (q8_0) | 2 x 128 x 127 | 1 | 32,512 |
//!
//! Signed weights go in as magnitudes, their sign moved to the activation (which is never -128).

use std::arch::x86_64::*;

use super::Work;
use super::a8::Quantized;
use crate::formats::{self, Format, Q4K, Q5_0, Q6K};
use crate::lanes::F8;
use crate::layout::GROUP;
use crate::quantize::{A8_BLOCK, A8Block};

/// How far ahead of the arithmetic weights are asked for.
const AHEAD: usize = 2048;

/// What the AVX2 path takes from a sub-block of 32 k. All functions are for use inside a function that enables AVX2, FMA
/// and F16C, into which they are inlined.
pub(super) trait Avx2: Quantized {
    /// The exact integers of eight outputs, for `R` rows.
    ///
    /// # Safety
    /// AVX2. `packed` points to a packed block of the format, `x` to 32 values each.
    unsafe fn dots<const R: usize>(
        packed: *const u8,
        sub: usize,
        x: [*const i8; R],
    ) -> [__m256i; R];

    /// `d` and `m` of eight outputs.
    ///
    /// # Safety
    /// As [`Avx2::dots`].
    unsafe fn scales_ps(packed: *const u8, sub: usize) -> (__m256, __m256);
}

/// All rows of a tile against all its groups.
pub(super) fn tile<F: Avx2>(work: &mut Work<'_, A8Block>) {
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
fn block<F: Avx2, const R: usize>(work: &mut Work<'_, A8Block>, row: usize, group: usize) {
    let mut acc = [_mm256_setzero_ps(); R];
    {
        let x: [&[A8Block]; R] = std::array::from_fn(|r| work.x(row + r));
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
                        F::dots::<R>(packed, sub, x.map(|x| x.q.as_ptr())),
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

/// A quad of the activations for all eight outputs.
#[inline(always)]
unsafe fn quad(x: *const i8, v: usize) -> __m256i {
    // SAFETY: the caller's: AVX2, and 32 values at `x`.
    unsafe { _mm256_set1_epi32(x.add(4 * v).cast::<i32>().read_unaligned()) }
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

/// 16-bit pair sums to 32 bits.
#[inline(always)]
unsafe fn widen(pairs: __m256i) -> __m256i {
    // SAFETY: the caller's: AVX2.
    unsafe { _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)) }
}

/// Low and high nibbles: quads `v` and `v + 4`.
#[inline(always)]
unsafe fn nibbles(packed: *const u8, offset: usize) -> (__m256i, __m256i) {
    // SAFETY: the caller's: AVX2, and 32 bytes there.
    unsafe {
        let (both, mask) = (load(packed, offset), _mm256_set1_epi8(15));
        (
            _mm256_and_si256(both, mask),
            _mm256_and_si256(_mm256_srli_epi16::<4>(both), mask),
        )
    }
}

/// Sums of 4-bit weights at `offset`.
#[inline(always)]
unsafe fn dots4<const R: usize>(
    packed: *const u8,
    offset: usize,
    x: [*const i8; R],
) -> [__m256i; R] {
    // SAFETY: the caller's: AVX2, 128 bytes of nibbles, and 32 values each.
    unsafe {
        let mut pairs = [_mm256_setzero_si256(); R];
        for v in 0..4 {
            let (low, high) = nibbles(packed, offset + 32 * v);
            for r in 0..R {
                let low = _mm256_maddubs_epi16(low, quad(x[r], v));
                let high = _mm256_maddubs_epi16(high, quad(x[r], v + 4));
                pairs[r] = _mm256_add_epi16(pairs[r], _mm256_add_epi16(low, high));
            }
        }
        let mut out = pairs;
        for r in 0..R {
            out[r] = widen(pairs[r]);
        }
        out
    }
}

impl Avx2 for formats::Q4_0 {
    #[inline(always)]
    unsafe fn dots<const R: usize>(p: *const u8, _: usize, x: [*const i8; R]) -> [__m256i; R] {
        // SAFETY: the caller's.
        unsafe { dots4(p, 16, x) }
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
    unsafe fn dots<const R: usize>(p: *const u8, _: usize, x: [*const i8; R]) -> [__m256i; R] {
        // SAFETY: the caller's.
        unsafe { dots4(p, 32, x) }
    }
    #[inline(always)]
    unsafe fn scales_ps(p: *const u8, _: usize) -> (__m256, __m256) {
        // SAFETY: the caller's.
        unsafe { (halves(p, 0), halves(p, 16)) }
    }
}

impl Avx2 for Q4K {
    #[inline(always)]
    unsafe fn dots<const R: usize>(p: *const u8, sub: usize, x: [*const i8; R]) -> [__m256i; R] {
        // SAFETY: the caller's.
        unsafe { dots4(p, Q4K::HEAD + sub * Q4K::SUB + 16, x) }
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
    unsafe fn dots<const R: usize>(p: *const u8, _: usize, x: [*const i8; R]) -> [__m256i; R] {
        // SAFETY: the caller's. Bit `v` of a high byte belongs to quad `v`; it goes to bit 4.
        unsafe {
            let bit = _mm256_set1_epi8(16);
            let mut high = load(p, 16);
            // After four shifts right by one, bit 4 of `later` is what bit 4 + v of `high` was.
            let mut later = high;
            high = _mm256_slli_epi16::<4>(high);
            let mut first = [_mm256_setzero_si256(); R];
            let mut second = first;
            for v in 0..4 {
                let (a, b) = nibbles(p, 48 + 32 * v);
                let a = _mm256_or_si256(a, _mm256_and_si256(high, bit));
                let b = _mm256_or_si256(b, _mm256_and_si256(later, bit));
                for r in 0..R {
                    let a = _mm256_maddubs_epi16(a, quad(x[r], v));
                    let b = _mm256_maddubs_epi16(b, quad(x[r], v + 4));
                    first[r] = _mm256_add_epi16(first[r], a);
                    second[r] = _mm256_add_epi16(second[r], b);
                }
                high = _mm256_srli_epi16::<1>(high);
                later = _mm256_srli_epi16::<1>(later);
            }
            let mut out = first;
            for r in 0..R {
                out[r] = _mm256_add_epi32(widen(first[r]), widen(second[r]));
            }
            out
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
    unsafe fn dots<const R: usize>(p: *const u8, _: usize, x: [*const i8; R]) -> [__m256i; R] {
        // SAFETY: the caller's.
        unsafe {
            let mut out = [_mm256_setzero_si256(); R];
            for v in 0..8 {
                let w = load(p, 16 + 32 * v);
                let magnitude = _mm256_abs_epi8(w);
                for r in 0..R {
                    let x = _mm256_sign_epi8(quad(x[r], v), w);
                    let pairs = _mm256_maddubs_epi16(magnitude, x);
                    out[r] = _mm256_add_epi32(out[r], widen(pairs));
                }
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
    unsafe fn dots<const R: usize>(p: *const u8, sub: usize, x: [*const i8; R]) -> [__m256i; R] {
        // SAFETY: the caller's. Bits `2v..2v+2` of a high byte belong to quad `v` of its half; they go to bits 4 and 5.
        unsafe {
            let p = p.add(Q6K::HEAD + sub * Q6K::SUB);
            let (bits, bias) = (_mm256_set1_epi8(0x30), _mm256_set1_epi8(32));
            let (mut high_a, mut high_b) = (load(p, 16), load(p, 48));
            let mut first = [_mm256_setzero_si256(); R];
            let mut second = first;
            for v in 0..4 {
                let (a, b) = nibbles(p, 80 + 32 * v);
                let place = |h: __m256i| match v {
                    0 => _mm256_slli_epi16::<4>(h),
                    1 => _mm256_slli_epi16::<2>(h),
                    2 => h,
                    _ => _mm256_srli_epi16::<2>(h),
                };
                let a = _mm256_or_si256(a, _mm256_and_si256(place(high_a), bits));
                let b = _mm256_or_si256(b, _mm256_and_si256(place(high_b), bits));
                let (a, b) = (_mm256_sub_epi8(a, bias), _mm256_sub_epi8(b, bias));
                let (size_a, size_b) = (_mm256_abs_epi8(a), _mm256_abs_epi8(b));
                for r in 0..R {
                    let xa = _mm256_sign_epi8(quad(x[r], v), a);
                    let xb = _mm256_sign_epi8(quad(x[r], v + 4), b);
                    first[r] = _mm256_add_epi16(first[r], _mm256_maddubs_epi16(size_a, xa));
                    second[r] = _mm256_add_epi16(second[r], _mm256_maddubs_epi16(size_b, xb));
                }
            }
            (high_a, high_b) = (sub_scales(p, 0), sub_scales(p, 8));
            let mut out = first;
            for r in 0..R {
                let a = _mm256_madd_epi16(first[r], high_a);
                out[r] = _mm256_add_epi32(a, _mm256_madd_epi16(second[r], high_b));
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

const _: () = assert!(GROUP == 8 && A8_BLOCK == 32);
const _: () = assert!(<formats::Q4_1 as Format>::PACKED == 160);
