// SPDX-License-Identifier: MIT OR Apache-2.0
//! Each format's weights as tiles of bf16: what [`Widen`] gives as 16-bit integers, in one or two planes, converted.

use std::arch::x86_64::*;

use super::super::vector::{Wide, Widen, Z};
use super::tiles::Line;
use crate::formats::{Iq4Nl, Iq4Xs, Mxfp4, Q2K, Q3K, Q4_0, Q4_1, Q4K, Q5_0, Q5_1, Q5K, Q6K, Q8_0};

/// What the tiles need to know of a format.
///
/// # Safety
/// As [`Widen`].
pub(in crate::linear) trait Planar: Widen {
    /// Whether every integer, and every partial sum of it, is below 2^24, so that one tile of f32 holds it exactly. Else the
    /// upper and the lower plane of the activations have a tile each.
    const ONE_SUM: bool;
    /// Whether [`Widen`] gives 0..=31.
    const SMALL: bool;
    /// Planes of the weights: two where they have more than eight bits.
    const PLANES: usize = 1;
    /// The minimums of [`super::super::a16::Offset::Integer`], those of k below 16 and the others.
    #[inline(always)]
    unsafe fn mins_ps(_: [*const u8; 2], _: usize) -> [__m512; 2] {
        // SAFETY: the caller's.
        unsafe { [_mm512_setzero_ps(); 2] }
    }
}

macro_rules! planar {
    ($one:literal, $small:literal: $($format:ty),*) => {
        $(impl Planar for $format {
            const ONE_SUM: bool = $one;
            const SMALL: bool = $small;
        })*
    };
}

planar!(true, true: Q4_0, Q4_1, Q4K, Q5_0, Q5_1, Q5K);
planar!(true, false: Mxfp4);
planar!(false, false: Q8_0, Iq4Nl, Iq4Xs, Q3K);

impl Planar for Q2K {
    const ONE_SUM: bool = false;
    const SMALL: bool = false;
    #[inline(always)]
    unsafe fn mins_ps(p: [*const u8; 2], sub: usize) -> [__m512; 2] {
        // SAFETY: the caller's: two times eight bytes of each group.
        unsafe {
            let at = Q2K::HEAD + sub * Q2K::SUB;
            let (low, high) = (Z::load_scales(p, at), Z::load_scales(p, at + 8));
            // The same in both halves of a lane: the lower one's.
            let ps = |v: Z| _mm512_cvtepi32_ps(_mm512_and_si512(v.srl(4).0, _mm512_set1_epi32(15)));
            [ps(low), ps(high)]
        }
    }
}

/// Up to 4,096 with its sub-scale: a multiple of 64 up to 4,096, and 0..=63.
impl Planar for Q6K {
    const ONE_SUM: bool = false;
    const SMALL: bool = false;
    const PLANES: usize = 2;
}

/// Puts a sub-block of 32 k of two groups into a tile, or into one for each plane, one behind the other.
///
/// # Safety
/// AVX-512, in a function that enables it; `p` as for [`Widen`]; `16 * PLANES` lines at `to`.
#[inline(always)]
pub(super) unsafe fn unpack<F: Planar>(p: [*const u8; 2], sub: usize, to: *mut Line) {
    // SAFETY: the caller's.
    unsafe {
        for quarter in 0..4 {
            for (n, w) in F::widen::<Z>(p, sub, quarter).into_iter().enumerate() {
                let line = to.add(4 * quarter + n);
                if F::SMALL {
                    let table = _mm512_loadu_si512(SMALL.as_ptr().cast());
                    store(line, _mm512_permutexvar_epi16(w.0, table));
                } else if F::PLANES == 1 {
                    store(line, to_bf16(w.0));
                } else {
                    let low = _mm512_set1_epi16(63);
                    store(line, to_bf16(_mm512_andnot_si512(low, w.0)));
                    store(line.add(16), to_bf16(_mm512_and_si512(low, w.0)));
                }
            }
        }
    }
}

#[inline(always)]
unsafe fn store(to: *mut Line, v: __m512i) {
    // SAFETY: the caller's: a line there.
    unsafe { _mm512_store_si512(to.cast(), v) }
}

/// Each 16-bit integer as a bf16, exact if it has eight significant bits.
///
/// # Safety
/// AVX-512, in a function that enables it.
#[inline(always)]
pub(super) unsafe fn to_bf16(v: __m512i) -> __m512i {
    // SAFETY: the caller's.
    unsafe {
        // As f32, the lower half of each word is zero.
        let even = _mm512_srai_epi32::<16>(_mm512_slli_epi32::<16>(v));
        let even = _mm512_castps_si512(_mm512_cvtepi32_ps(even));
        let odd = _mm512_castps_si512(_mm512_cvtepi32_ps(_mm512_srai_epi32::<16>(v)));
        _mm512_or_si512(odd, _mm512_srli_epi32::<16>(even))
    }
}

/// 0 to 31 as bf16.
static SMALL: [u16; 32] = {
    let mut table = [0; 32];
    let mut i = 0;
    while i < 32 {
        table[i] = ((i as f32).to_bits() >> 16) as u16;
        i += 1;
    }
    table
};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isa::Isa;

    #[target_feature(enable = "avx512f,avx512bw")]
    fn convert(v: &[i16; 32]) -> [u16; 32] {
        let mut out = [0; 32];
        // SAFETY: 32 values each.
        unsafe {
            let v = to_bf16(_mm512_loadu_si512(v.as_ptr().cast()));
            _mm512_storeu_si512(out.as_mut_ptr().cast(), v);
        }
        out
    }

    #[test]
    fn integers_of_eight_bits_are_exact_in_bf16() {
        if Isa::avx512().is_none() {
            eprintln!("skipped: no AVX-512");
            return;
        }
        for from in (-256..=256).step_by(32) {
            for scale in [1, 64] {
                let v =
                    std::array::from_fn(|i| ((from + i as i32).clamp(-256, 256) * scale) as i16);
                // SAFETY: asked above.
                let got = unsafe { convert(&v) };
                for (v, got) in v.iter().zip(got) {
                    assert_eq!(f32::from_bits(u32::from(got) << 16), f32::from(*v));
                }
            }
        }
        assert_eq!((SMALL[0], SMALL[1], SMALL[31]), (0, 0x3f80, 0x41f8));
    }
}
