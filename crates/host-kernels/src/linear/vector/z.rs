// SPDX-License-Identifier: MIT OR Apache-2.0
//! Two groups to a register of 512 bits, with AVX-512 (F, BW, DQ, VL) and VNNI.

use std::arch::x86_64::*;

use super::wide::Wide;
use crate::lanes::F8;

/// Sixteen lanes of 32 bits.
#[derive(Clone, Copy)]
pub(in crate::linear) struct Z(pub(in crate::linear) __m512i);

/// 8 bytes of each group.
#[inline(always)]
unsafe fn eight(p: [*const u8; 2], offset: usize) -> __m128i {
    // SAFETY: the caller's: 8 bytes at each.
    unsafe {
        let low = _mm_loadl_epi64(p[0].add(offset).cast());
        _mm_unpacklo_epi64(low, _mm_loadl_epi64(p[1].add(offset).cast()))
    }
}

/// 16 bytes of each group.
#[inline(always)]
unsafe fn sixteen(p: [*const u8; 2], offset: usize) -> __m256i {
    // SAFETY: the caller's: 16 bytes at each.
    unsafe {
        let low = _mm_loadu_si128(p[0].add(offset).cast());
        _mm256_set_m128i(_mm_loadu_si128(p[1].add(offset).cast()), low)
    }
}

// SAFETY, for every block below: the caller's, as the trait states it.
impl Wide for Z {
    type Ps = __m512;
    const GROUPS: usize = 2;

    #[inline(always)]
    unsafe fn zero() -> Z {
        // SAFETY: as stated at the impl.
        Z(unsafe { _mm512_setzero_si512() })
    }

    #[inline(always)]
    unsafe fn splat16(v: i16) -> Z {
        // SAFETY: as stated at the impl.
        Z(unsafe { _mm512_set1_epi16(v) })
    }

    #[inline(always)]
    unsafe fn load(p: [*const u8; 2], offset: usize) -> Z {
        // SAFETY: as stated at the impl.
        unsafe {
            let low = _mm512_castsi256_si512(_mm256_loadu_si256(p[0].add(offset).cast()));
            let high = _mm256_loadu_si256(p[1].add(offset).cast());
            Z(_mm512_inserti64x4::<1>(low, high))
        }
    }

    #[inline(always)]
    unsafe fn load_bytes(p: [*const u8; 2], offset: usize) -> Z {
        // SAFETY: as stated at the impl.
        Z(unsafe { _mm512_cvtepi8_epi16(sixteen(p, offset)) })
    }

    #[inline(always)]
    unsafe fn load_scales(p: [*const u8; 2], offset: usize) -> Z {
        // SAFETY: as stated at the impl.
        unsafe {
            let s = _mm512_cvtepi8_epi32(eight(p, offset));
            let low = _mm512_and_si512(s, _mm512_set1_epi32(0xffff));
            Z(_mm512_or_si512(low, _mm512_slli_epi32::<16>(s)))
        }
    }

    #[inline(always)]
    unsafe fn and(self, b: Z) -> Z {
        // SAFETY: as stated at the impl.
        Z(unsafe { _mm512_and_si512(self.0, b.0) })
    }

    #[inline(always)]
    unsafe fn or(self, b: Z) -> Z {
        // SAFETY: as stated at the impl.
        Z(unsafe { _mm512_or_si512(self.0, b.0) })
    }

    #[inline(always)]
    unsafe fn sub16(self, b: Z) -> Z {
        // SAFETY: as stated at the impl.
        Z(unsafe { _mm512_sub_epi16(self.0, b.0) })
    }

    #[inline(always)]
    unsafe fn mul16(self, b: Z) -> Z {
        // SAFETY: as stated at the impl.
        Z(unsafe { _mm512_mullo_epi16(self.0, b.0) })
    }

    #[inline(always)]
    unsafe fn add32(self, b: Z) -> Z {
        // SAFETY: as stated at the impl.
        Z(unsafe { _mm512_add_epi32(self.0, b.0) })
    }

    #[inline(always)]
    unsafe fn srl(self, bits: u32) -> Z {
        // SAFETY: as stated at the impl.
        Z(unsafe { _mm512_srl_epi16(self.0, _mm_cvtsi32_si128(bits as i32)) })
    }

    #[inline(always)]
    unsafe fn sll(self, bits: u32) -> Z {
        // SAFETY: as stated at the impl.
        Z(unsafe { _mm512_sll_epi16(self.0, _mm_cvtsi32_si128(bits as i32)) })
    }

    #[inline(always)]
    unsafe fn sra(self, bits: u32) -> Z {
        // SAFETY: as stated at the impl.
        Z(unsafe { _mm512_sra_epi16(self.0, _mm_cvtsi32_si128(bits as i32)) })
    }

    #[inline(always)]
    unsafe fn look_up(self, table: &[i8; 16]) -> Z {
        // SAFETY: as stated at the impl.
        unsafe {
            let table = _mm_loadu_si128(table.as_ptr().cast());
            Z(_mm512_shuffle_epi8(_mm512_broadcast_i32x4(table), self.0))
        }
    }

    #[inline(always)]
    unsafe fn dot(self, sum: Z, x: i32) -> Z {
        // SAFETY: as stated at the impl.
        Z(unsafe { _mm512_dpwssd_epi32(sum.0, self.0, _mm512_set1_epi32(x)) })
    }

    #[inline(always)]
    unsafe fn to_ps(self) -> __m512 {
        // SAFETY: as stated at the impl.
        unsafe { _mm512_cvtepi32_ps(self.0) }
    }

    #[inline(always)]
    unsafe fn splat(v: f32) -> __m512 {
        // SAFETY: as stated at the impl.
        unsafe { _mm512_set1_ps(v) }
    }

    #[inline(always)]
    unsafe fn halves(p: [*const u8; 2], offset: usize) -> __m512 {
        // SAFETY: as stated at the impl.
        unsafe { _mm512_cvtph_ps(sixteen(p, offset)) }
    }

    #[inline(always)]
    unsafe fn bytes_ps(p: [*const u8; 2], offset: usize) -> __m512 {
        // SAFETY: as stated at the impl.
        unsafe { _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(eight(p, offset))) }
    }

    #[inline(always)]
    unsafe fn signed_ps(p: [*const u8; 2], offset: usize) -> __m512 {
        // SAFETY: as stated at the impl.
        unsafe { _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(eight(p, offset))) }
    }

    #[inline(always)]
    unsafe fn e8m0_halved(p: [*const u8; 2], offset: usize) -> __m512 {
        // SAFETY: as stated at the impl.
        unsafe {
            // 2^(e - 128) as a product of two normal powers, exact: e - 128 is the sum of the two exponents.
            let e = _mm512_cvtepu8_epi32(eight(p, offset));
            let half = _mm512_srli_epi32::<1>(e);
            let power = |e| {
                _mm512_castsi512_ps(_mm512_slli_epi32::<23>(_mm512_add_epi32(
                    e,
                    _mm512_set1_epi32(63),
                )))
            };
            _mm512_mul_ps(power(half), power(_mm512_sub_epi32(e, half)))
        }
    }

    #[inline(always)]
    unsafe fn mul(a: __m512, b: __m512) -> __m512 {
        // SAFETY: as stated at the impl.
        unsafe { _mm512_mul_ps(a, b) }
    }

    #[inline(always)]
    unsafe fn fma(a: __m512, b: __m512, c: __m512) -> __m512 {
        // SAFETY: as stated at the impl.
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }

    #[inline(always)]
    unsafe fn neg(a: __m512) -> __m512 {
        // SAFETY: as stated at the impl.
        unsafe { _mm512_xor_ps(a, _mm512_set1_ps(-0.0)) }
    }

    #[inline(always)]
    unsafe fn split(a: __m512) -> [F8; 2] {
        let mut out = [F8::ZERO; 2];
        // SAFETY: as stated at the impl; sixteen values.
        unsafe { _mm512_storeu_ps(out.as_mut_ptr().cast(), a) };
        out
    }
}
