// SPDX-License-Identifier: MIT OR Apache-2.0
//! One group to a register of 256 bits, with AVX2, FMA and F16C.

use std::arch::x86_64::*;

use super::wide::Wide;
use crate::lanes::F8;

/// Eight lanes of 32 bits.
#[derive(Clone, Copy)]
pub(super) struct Y(__m256i);

/// 8 bytes.
#[inline(always)]
unsafe fn eight(p: [*const u8; 2], offset: usize) -> __m128i {
    // SAFETY: the caller's: 8 bytes there.
    unsafe { _mm_loadl_epi64(p[0].add(offset).cast()) }
}

/// 16 bytes.
#[inline(always)]
unsafe fn sixteen(p: [*const u8; 2], offset: usize) -> __m128i {
    // SAFETY: the caller's: 16 bytes there.
    unsafe { _mm_loadu_si128(p[0].add(offset).cast()) }
}

// SAFETY, for every block below: the caller's, as the trait states it.
impl Wide for Y {
    type Ps = __m256;
    const GROUPS: usize = 1;

    #[inline(always)]
    unsafe fn zero() -> Y {
        // SAFETY: as stated at the impl.
        Y(unsafe { _mm256_setzero_si256() })
    }

    #[inline(always)]
    unsafe fn splat16(v: i16) -> Y {
        // SAFETY: as stated at the impl.
        Y(unsafe { _mm256_set1_epi16(v) })
    }

    #[inline(always)]
    unsafe fn load(p: [*const u8; 2], offset: usize) -> Y {
        // SAFETY: as stated at the impl.
        Y(unsafe { _mm256_loadu_si256(p[0].add(offset).cast()) })
    }

    #[inline(always)]
    unsafe fn load_bytes(p: [*const u8; 2], offset: usize) -> Y {
        // SAFETY: as stated at the impl.
        Y(unsafe { _mm256_cvtepi8_epi16(sixteen(p, offset)) })
    }

    #[inline(always)]
    unsafe fn load_scales(p: [*const u8; 2], offset: usize) -> Y {
        // SAFETY: as stated at the impl.
        unsafe {
            let s = _mm256_cvtepi8_epi32(eight(p, offset));
            let low = _mm256_and_si256(s, _mm256_set1_epi32(0xffff));
            Y(_mm256_or_si256(low, _mm256_slli_epi32::<16>(s)))
        }
    }

    #[inline(always)]
    unsafe fn and(self, b: Y) -> Y {
        // SAFETY: as stated at the impl.
        Y(unsafe { _mm256_and_si256(self.0, b.0) })
    }

    #[inline(always)]
    unsafe fn or(self, b: Y) -> Y {
        // SAFETY: as stated at the impl.
        Y(unsafe { _mm256_or_si256(self.0, b.0) })
    }

    #[inline(always)]
    unsafe fn sub16(self, b: Y) -> Y {
        // SAFETY: as stated at the impl.
        Y(unsafe { _mm256_sub_epi16(self.0, b.0) })
    }

    #[inline(always)]
    unsafe fn mul16(self, b: Y) -> Y {
        // SAFETY: as stated at the impl.
        Y(unsafe { _mm256_mullo_epi16(self.0, b.0) })
    }

    #[inline(always)]
    unsafe fn add32(self, b: Y) -> Y {
        // SAFETY: as stated at the impl.
        Y(unsafe { _mm256_add_epi32(self.0, b.0) })
    }

    #[inline(always)]
    unsafe fn srl(self, bits: u32) -> Y {
        // SAFETY: as stated at the impl.
        Y(unsafe { _mm256_srl_epi16(self.0, _mm_cvtsi32_si128(bits as i32)) })
    }

    #[inline(always)]
    unsafe fn sll(self, bits: u32) -> Y {
        // SAFETY: as stated at the impl.
        Y(unsafe { _mm256_sll_epi16(self.0, _mm_cvtsi32_si128(bits as i32)) })
    }

    #[inline(always)]
    unsafe fn sra(self, bits: u32) -> Y {
        // SAFETY: as stated at the impl.
        Y(unsafe { _mm256_sra_epi16(self.0, _mm_cvtsi32_si128(bits as i32)) })
    }

    #[inline(always)]
    unsafe fn look_up(self, table: &[i8; 16]) -> Y {
        // SAFETY: as stated at the impl.
        unsafe {
            let table = _mm_loadu_si128(table.as_ptr().cast());
            Y(_mm256_shuffle_epi8(
                _mm256_broadcastsi128_si256(table),
                self.0,
            ))
        }
    }

    #[inline(always)]
    unsafe fn dot(self, sum: Y, x: i32) -> Y {
        // SAFETY: as stated at the impl.
        Y(unsafe { _mm256_add_epi32(sum.0, _mm256_madd_epi16(self.0, _mm256_set1_epi32(x))) })
    }

    #[inline(always)]
    unsafe fn to_ps(self) -> __m256 {
        // SAFETY: as stated at the impl.
        unsafe { _mm256_cvtepi32_ps(self.0) }
    }

    #[inline(always)]
    unsafe fn splat(v: f32) -> __m256 {
        // SAFETY: as stated at the impl.
        unsafe { _mm256_set1_ps(v) }
    }

    #[inline(always)]
    unsafe fn halves(p: [*const u8; 2], offset: usize) -> __m256 {
        // SAFETY: as stated at the impl.
        unsafe { _mm256_cvtph_ps(sixteen(p, offset)) }
    }

    #[inline(always)]
    unsafe fn bytes_ps(p: [*const u8; 2], offset: usize) -> __m256 {
        // SAFETY: as stated at the impl.
        unsafe { _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(eight(p, offset))) }
    }

    #[inline(always)]
    unsafe fn signed_ps(p: [*const u8; 2], offset: usize) -> __m256 {
        // SAFETY: as stated at the impl.
        unsafe { _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(eight(p, offset))) }
    }

    #[inline(always)]
    unsafe fn e8m0_halved(p: [*const u8; 2], offset: usize) -> __m256 {
        // SAFETY: as stated at the impl.
        unsafe {
            // 2^(e - 128) as a product of two normal powers, exact: e - 128 is the sum of the two exponents.
            let e = _mm256_cvtepu8_epi32(eight(p, offset));
            let half = _mm256_srli_epi32::<1>(e);
            let power = |e| {
                _mm256_castsi256_ps(_mm256_slli_epi32::<23>(_mm256_add_epi32(
                    e,
                    _mm256_set1_epi32(63),
                )))
            };
            _mm256_mul_ps(power(half), power(_mm256_sub_epi32(e, half)))
        }
    }

    #[inline(always)]
    unsafe fn mul(a: __m256, b: __m256) -> __m256 {
        // SAFETY: as stated at the impl.
        unsafe { _mm256_mul_ps(a, b) }
    }

    #[inline(always)]
    unsafe fn fma(a: __m256, b: __m256, c: __m256) -> __m256 {
        // SAFETY: as stated at the impl.
        unsafe { _mm256_fmadd_ps(a, b, c) }
    }

    #[inline(always)]
    unsafe fn neg(a: __m256) -> __m256 {
        // SAFETY: as stated at the impl.
        unsafe { _mm256_xor_ps(a, _mm256_set1_ps(-0.0)) }
    }

    #[inline(always)]
    unsafe fn split(a: __m256) -> [F8; 2] {
        let mut out = [F8::ZERO; 2];
        // SAFETY: as stated at the impl; sixteen values.
        unsafe { _mm256_storeu_ps(out.as_mut_ptr().cast(), a) };
        out
    }
}
