// SPDX-License-Identifier: MIT OR Apache-2.0
//! The pool's formats: what one head of one block holds ([`metrale_core::kv`] draws it), how a token is stored there and
//! how tokens are read.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;

use metrale_core::numeric::half::{f8e4m3_from_f32, f8e4m3_to_f32};
use metrale_core::{Elem, KV_BLOCK, kv};

use crate::args::Plain;
use crate::isa::{Isa, on_isa};
use crate::lanes::{bf16_to_f32, f16_to_f32};

/// Tokens of a block.
const TOKENS: usize = KV_BLOCK as usize;

/// A format that the pool may hold.
pub(crate) trait KvElem: 'static {
    /// What its spans are read as.
    type Raw: Plain;
    const ELEM: Elem;
    /// Elements of one head of a block, keys or values.
    fn head_len(dim: usize) -> usize;
    /// Stores a token's values of one head.
    fn store(isa: Isa, head: &mut [Self::Raw], offset: usize, x: &[f32]);
    /// Widens the values of one head, without their scales.
    fn widen(isa: Isa, to: &mut [f32], head: &[Self::Raw]);
    /// The scales of one head's tokens, if the format has any.
    fn scales(head: &[Self::Raw], dim: usize, to: &mut [f32]) -> bool;
    /// [`KvElem::widen`] of sixteen values.
    ///
    /// # Safety
    /// AVX-512 (F, BW, DQ, VL) is enabled where this is inlined; sixteen values at `from`.
    #[cfg(target_arch = "x86_64")]
    unsafe fn sixteen(from: *const Self::Raw) -> __m512;
    /// [`KvElem::widen`] of eight values at each of two places.
    ///
    /// # Safety
    /// As of [`KvElem::sixteen`].
    #[cfg(target_arch = "x86_64")]
    unsafe fn two_eights(low: *const Self::Raw, high: *const Self::Raw) -> __m512;
}

/// A type whose values stand alone.
pub(crate) trait KvValue: Plain {
    const ELEM: Elem;
    fn to_f32(self) -> f32;
    fn from_f32(v: f32) -> Self;
    /// Widens equally many values.
    fn widen_all(isa: Isa, to: &mut [f32], from: &[Self]);
    /// [`KvElem::sixteen`].
    ///
    /// # Safety
    /// As there.
    #[cfg(target_arch = "x86_64")]
    unsafe fn wide16(from: *const Self) -> __m512;
    /// [`KvElem::two_eights`].
    ///
    /// # Safety
    /// As there.
    #[cfg(target_arch = "x86_64")]
    unsafe fn wide8_8(low: *const Self, high: *const Self) -> __m512;
}

impl<T: KvValue> KvElem for T {
    type Raw = T;
    const ELEM: Elem = T::ELEM;

    fn head_len(dim: usize) -> usize {
        TOKENS * dim
    }

    fn store(_: Isa, head: &mut [T], offset: usize, x: &[f32]) {
        let to = &mut head[offset * x.len()..][..x.len()];
        for (t, x) in to.iter_mut().zip(x) {
            *t = T::from_f32(*x);
        }
    }

    fn widen(isa: Isa, to: &mut [f32], head: &[T]) {
        T::widen_all(isa, to, head);
    }

    fn scales(_: &[T], _: usize, _: &mut [f32]) -> bool {
        false
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn sixteen(from: *const T) -> __m512 {
        // SAFETY: the caller's.
        unsafe { T::wide16(from) }
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn two_eights(low: *const T, high: *const T) -> __m512 {
        // SAFETY: the caller's.
        unsafe { T::wide8_8(low, high) }
    }
}

#[inline(always)]
fn widen<T: KvValue>(to: &mut [f32], from: &[T]) {
    for (t, f) in to.iter_mut().zip(from) {
        *t = f.to_f32();
    }
}

impl KvValue for f32 {
    const ELEM: Elem = Elem::F32;
    #[inline(always)]
    fn to_f32(self) -> f32 {
        self
    }
    #[inline(always)]
    fn from_f32(v: f32) -> f32 {
        v
    }
    fn widen_all(isa: Isa, to: &mut [f32], from: &[f32]) {
        on_isa!(isa, widen::<f32>, (to: &mut [f32] = to, from: &[f32] = from));
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn wide16(from: *const f32) -> __m512 {
        // SAFETY: the caller's.
        unsafe { _mm512_loadu_ps(from) }
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn wide8_8(low: *const f32, high: *const f32) -> __m512 {
        // SAFETY: the caller's.
        unsafe {
            _mm512_insertf32x8::<1>(
                _mm512_castps256_ps512(_mm256_loadu_ps(low)),
                _mm256_loadu_ps(high),
            )
        }
    }
}

/// bfloat16 by its bits.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(crate) struct Bf16(u16);
// SAFETY: a transparent u16.
unsafe impl Plain for Bf16 {}

impl KvValue for Bf16 {
    const ELEM: Elem = Elem::BF16;
    #[inline(always)]
    fn to_f32(self) -> f32 {
        bf16_to_f32(self.0)
    }
    #[inline(always)]
    fn from_f32(v: f32) -> Bf16 {
        Bf16(half::bf16::from_f32(v).to_bits())
    }
    fn widen_all(isa: Isa, to: &mut [f32], from: &[Bf16]) {
        on_isa!(isa, widen::<Bf16>, (to: &mut [f32] = to, from: &[Bf16] = from));
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn wide16(from: *const Bf16) -> __m512 {
        // SAFETY: the caller's.
        unsafe { wide::bf16(_mm256_loadu_si256(from.cast())) }
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn wide8_8(low: *const Bf16, high: *const Bf16) -> __m512 {
        // SAFETY: the caller's.
        unsafe { wide::bf16(wide::beside(low.cast(), high.cast())) }
    }
}

/// IEEE half by its bits.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(crate) struct F16(u16);
// SAFETY: a transparent u16.
unsafe impl Plain for F16 {}

impl KvValue for F16 {
    const ELEM: Elem = Elem::F16;
    #[inline(always)]
    fn to_f32(self) -> f32 {
        f16_to_f32(self.0)
    }
    #[inline(always)]
    fn from_f32(v: f32) -> F16 {
        F16(half::f16::from_f32(v).to_bits())
    }
    fn widen_all(isa: Isa, to: &mut [f32], from: &[F16]) {
        #[cfg(target_arch = "x86_64")]
        if isa.has_avx2() {
            // SAFETY: `Isa` says AVX2 only after the processor said it, with F16C.
            return unsafe { widen_f16c(to, from) };
        }
        let _ = isa;
        widen(to, from);
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn wide16(from: *const F16) -> __m512 {
        // SAFETY: the caller's.
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(from.cast())) }
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn wide8_8(low: *const F16, high: *const F16) -> __m512 {
        // SAFETY: the caller's.
        unsafe { _mm512_cvtph_ps(wide::beside(low.cast(), high.cast())) }
    }
}

/// [`widen`] by F16C: exact, so the same bits.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c")]
fn widen_f16c(to: &mut [f32], from: &[F16]) {
    let whole = to.len().min(from.len()) / 8 * 8;
    for i in (0..whole).step_by(8) {
        // SAFETY: eight values from `i` on, in both; `F16` is a transparent u16.
        unsafe {
            let halves = _mm_loadu_si128(from.as_ptr().add(i).cast());
            _mm256_storeu_ps(to.as_mut_ptr().add(i), _mm256_cvtph_ps(halves));
        }
    }
    widen(&mut to[whole..], &from[whole..]);
}

/// int8 with a scale per token and head.
#[derive(Clone, Copy)]
pub(crate) struct Int8;

/// e4m3 with a scale per token and head.
#[derive(Clone, Copy)]
pub(crate) struct E4m3;

/// What the two scaled formats differ in.
pub(crate) trait Scaled: 'static {
    const ELEM: Elem;
    fn to_f32(q: u8) -> f32;
    fn from_f32(x: f32) -> u8;
    /// [`Scaled::to_f32`] of sixteen values.
    ///
    /// # Safety
    /// AVX-512 (F, BW, DQ, VL) is enabled where this is inlined.
    #[cfg(target_arch = "x86_64")]
    unsafe fn wide(q: __m128i) -> __m512;
}

impl Scaled for Int8 {
    const ELEM: Elem = Elem::I8;
    #[inline(always)]
    fn to_f32(q: u8) -> f32 {
        f32::from(q as i8)
    }
    #[inline(always)]
    fn from_f32(x: f32) -> u8 {
        kv::i8_from_f32(x) as u8
    }
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn wide(q: __m128i) -> __m512 {
        // SAFETY: the caller's.
        unsafe { _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(q)) }
    }
}

impl Scaled for E4m3 {
    const ELEM: Elem = Elem::F8E4M3;
    #[inline(always)]
    fn to_f32(q: u8) -> f32 {
        f8e4m3_to_f32(q)
    }
    #[inline(always)]
    fn from_f32(x: f32) -> u8 {
        f8e4m3_from_f32(x)
    }
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn wide(q: __m128i) -> __m512 {
        // SAFETY: the caller's.
        unsafe { wide::e4m3(q) }
    }
}

macro_rules! scaled_format {
    ($format:ty) => {
        impl KvElem for $format {
            type Raw = u8;
            const ELEM: Elem = <$format as Scaled>::ELEM;

            fn head_len(dim: usize) -> usize {
                TOKENS * (dim + 4)
            }

            fn store(isa: Isa, head: &mut [u8], offset: usize, x: &[f32]) {
                on_isa!(isa, store::<$format>, (head: &mut [u8] = head, offset: usize = offset, x: &[f32] = x));
            }

            fn widen(isa: Isa, to: &mut [f32], head: &[u8]) {
                on_isa!(isa, widen_scaled::<$format>, (to: &mut [f32] = to, head: &[u8] = head));
            }

            fn scales(head: &[u8], dim: usize, to: &mut [f32]) -> bool {
                let scales = head[TOKENS * dim..].as_chunks::<4>().0;
                for (to, scale) in to.iter_mut().zip(scales) {
                    *to = f32::from_le_bytes(*scale);
                }
                true
            }

            #[cfg(target_arch = "x86_64")]
            #[inline(always)]
            unsafe fn sixteen(from: *const u8) -> __m512 {
                // SAFETY: the caller's.
                unsafe { <$format as Scaled>::wide(_mm_loadu_si128(from.cast())) }
            }

            #[cfg(target_arch = "x86_64")]
            #[inline(always)]
            unsafe fn two_eights(low: *const u8, high: *const u8) -> __m512 {
                // SAFETY: the caller's.
                unsafe {
                    let both = _mm_loadl_epi64(low.cast());
                    let both = _mm_unpacklo_epi64(both, _mm_loadl_epi64(high.cast()));
                    <$format as Scaled>::wide(both)
                }
            }
        }
    };
}
scaled_format!(Int8);
scaled_format!(E4m3);

#[inline(always)]
fn store<S: Scaled>(head: &mut [u8], offset: usize, x: &[f32]) {
    let dim = x.len();
    let (values, scales) = head.split_at_mut(TOKENS * dim);
    let (scale, inverse) = kv::scale(S::ELEM, crate::fp8::largest(x));
    scales[4 * offset..4 * offset + 4].copy_from_slice(&scale.to_le_bytes());
    let to = &mut values[offset * dim..][..dim];
    if inverse == 0.0 {
        to.fill(0);
        return;
    }
    for (to, x) in to.iter_mut().zip(x) {
        *to = S::from_f32(*x * inverse);
    }
}

#[inline(always)]
fn widen_scaled<S: Scaled>(to: &mut [f32], head: &[u8]) {
    for (to, q) in to.iter_mut().zip(head) {
        *to = S::to_f32(*q);
    }
}

/// Sixteen values at once. Inlined where AVX-512 is enabled.
#[cfg(target_arch = "x86_64")]
mod wide {
    use super::*;

    /// Sixteen bytes of each place.
    ///
    /// # Safety
    /// AVX2 is enabled where this is inlined; sixteen bytes at each.
    #[inline(always)]
    pub(super) unsafe fn beside(low: *const __m128i, high: *const __m128i) -> __m256i {
        // SAFETY: the caller's.
        unsafe {
            let low = _mm256_castsi128_si256(_mm_loadu_si128(low));
            _mm256_inserti128_si256::<1>(low, _mm_loadu_si128(high))
        }
    }

    /// # Safety
    /// AVX-512 is enabled where this is inlined.
    #[inline(always)]
    pub(super) unsafe fn bf16(bits: __m256i) -> __m512 {
        // SAFETY: the caller's.
        unsafe { _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(bits))) }
    }

    /// The steps of [`f8e4m3_to_f32`].
    ///
    /// # Safety
    /// AVX-512 is enabled where this is inlined.
    #[inline(always)]
    pub(super) unsafe fn e4m3(bits: __m128i) -> __m512 {
        // SAFETY: the caller's.
        unsafe {
            let bits = _mm512_cvtepu8_epi32(bits);
            let magnitude = _mm512_and_si512(bits, _mm512_set1_epi32(0x7f));
            let nan = _mm512_cmpeq_epi32_mask(magnitude, _mm512_set1_epi32(0x7f));
            let scaled = _mm512_castsi512_ps(_mm512_slli_epi32::<20>(magnitude));
            let rebias = _mm512_castsi512_ps(_mm512_set1_epi32((127 + 120) << 23));
            let value = _mm512_castps_si512(_mm512_mul_ps(scaled, rebias));
            let value = _mm512_mask_mov_epi32(value, nan, _mm512_set1_epi32(0x7fc0_0000));
            let sign = _mm512_slli_epi32::<24>(_mm512_sub_epi32(bits, magnitude));
            _mm512_castsi512_ps(_mm512_or_si512(value, sign))
        }
    }
}
