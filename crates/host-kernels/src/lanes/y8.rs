// SPDX-License-Identifier: MIT OR Apache-2.0
//! Eight f32 in an AVX register.
//!
//! `Y8` is named only inside functions that enable AVX2, FMA and F16C (`on_lanes!` and the attention step), which run only
//! after the processor was asked. Its methods are inlined there.

use std::arch::x86_64::*;

use metrale_core::numeric::math;

use super::Lanes;

/// Eight f32.
#[derive(Clone, Copy)]
pub(crate) struct Y8(pub(crate) __m256);

// SAFETY, for every block below: AVX2 and FMA are enabled where this is inlined (see the module's documentation).
impl Lanes for Y8 {
    #[inline(always)]
    fn splat(v: f32) -> Y8 {
        // SAFETY: as stated at the impl.
        Y8(unsafe { _mm256_set1_ps(v) })
    }

    #[inline(always)]
    fn load(x: &[f32]) -> Y8 {
        let x = &x[..8];
        // SAFETY: as stated at the impl; eight values.
        Y8(unsafe { _mm256_loadu_ps(x.as_ptr()) })
    }

    #[inline(always)]
    fn store(self, x: &mut [f32]) {
        let x = &mut x[..8];
        // SAFETY: as stated at the impl; eight values.
        unsafe { _mm256_storeu_ps(x.as_mut_ptr(), self.0) }
    }

    #[inline(always)]
    fn add(self, b: Y8) -> Y8 {
        // SAFETY: as stated at the impl.
        Y8(unsafe { _mm256_add_ps(self.0, b.0) })
    }

    #[inline(always)]
    fn sub(self, b: Y8) -> Y8 {
        // SAFETY: as stated at the impl.
        Y8(unsafe { _mm256_sub_ps(self.0, b.0) })
    }

    #[inline(always)]
    fn mul(self, b: Y8) -> Y8 {
        // SAFETY: as stated at the impl.
        Y8(unsafe { _mm256_mul_ps(self.0, b.0) })
    }

    #[inline(always)]
    fn div(self, b: Y8) -> Y8 {
        // SAFETY: as stated at the impl.
        Y8(unsafe { _mm256_div_ps(self.0, b.0) })
    }

    #[inline(always)]
    fn larger(self, b: Y8) -> Y8 {
        // SAFETY: as stated at the impl.
        Y8(unsafe { _mm256_max_ps(self.0, b.0) })
    }

    #[inline(always)]
    fn fma(self, b: Y8, c: Y8) -> Y8 {
        // SAFETY: as stated at the impl.
        Y8(unsafe { _mm256_fmadd_ps(self.0, b.0, c.0) })
    }

    #[inline(always)]
    fn sum(self) -> f32 {
        // SAFETY: as stated at the impl.
        unsafe {
            let t = _mm_add_ps(
                _mm256_castps256_ps128(self.0),
                _mm256_extractf128_ps::<1>(self.0),
            );
            let t = _mm_add_ps(t, _mm_movehl_ps(t, t));
            _mm_cvtss_f32(_mm_add_ss(t, _mm_shuffle_ps::<1>(t, t)))
        }
    }

    /// The operations of [`super::exp`] in its order. `min(a, b)` gives `b` if either is NaN, so that a NaN stays.
    #[inline(always)]
    fn exp(self) -> Y8 {
        // SAFETY: as stated at the impl.
        unsafe {
            let x = self.0;
            let (least, most) = (_mm256_set1_ps(math::EXP_MIN), _mm256_set1_ps(math::EXP_MAX));
            let c = _mm256_max_ps(least, _mm256_min_ps(most, x));
            let n = _mm256_mul_ps(c, _mm256_set1_ps(math::LOG2_E));
            let n = _mm256_round_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(n);
            let r = _mm256_fnmadd_ps(n, _mm256_set1_ps(math::LN2_HI), c);
            let r = _mm256_fnmadd_ps(n, _mm256_set1_ps(math::LN2_LO), r);
            let mut p = _mm256_set1_ps(math::EXP_POLY[0]);
            for k in 1..7 {
                p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(math::EXP_POLY[k]));
            }
            let n = _mm256_cvtps_epi32(n);
            let half = _mm256_srai_epi32::<1>(n);
            let y = _mm256_mul_ps(p, power_of_two(half));
            let y = _mm256_mul_ps(y, power_of_two(_mm256_sub_epi32(n, half)));
            let under = _mm256_cmp_ps::<_CMP_LT_OQ>(x, least);
            let y = _mm256_andnot_ps(under, y);
            let over = _mm256_cmp_ps::<_CMP_GT_OQ>(x, most);
            let y = _mm256_blendv_ps(y, _mm256_set1_ps(f32::INFINITY), over);
            Y8(_mm256_blendv_ps(y, x, _mm256_cmp_ps::<_CMP_UNORD_Q>(x, x)))
        }
    }

    #[inline(always)]
    fn add_wide(self, sums: &mut [f64; 8]) {
        // SAFETY: as stated at the impl; four sums each.
        unsafe {
            let low = _mm256_cvtps_pd(_mm256_castps256_ps128(self.0));
            let high = _mm256_cvtps_pd(_mm256_extractf128_ps::<1>(self.0));
            let at = sums.as_mut_ptr();
            _mm256_storeu_pd(at, _mm256_add_pd(_mm256_loadu_pd(at), low));
            _mm256_storeu_pd(at.add(4), _mm256_add_pd(_mm256_loadu_pd(at.add(4)), high));
        }
    }
}

/// 2^n for -126 <= n <= 127.
#[inline(always)]
unsafe fn power_of_two(n: __m256i) -> __m256 {
    // SAFETY: AVX2, the caller's.
    unsafe {
        let biased = _mm256_add_epi32(n, _mm256_set1_epi32(127));
        _mm256_castsi256_ps(_mm256_slli_epi32::<23>(biased))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isa::Isa;
    use crate::lanes::{F8, on_lanes};

    #[inline(always)]
    fn exp_all<L: Lanes>(x: &mut [f32]) {
        for x in x.chunks_exact_mut(8) {
            L::load(x).exp().store(x);
        }
    }

    #[inline(always)]
    fn sum<L: Lanes>(x: &[f32]) -> f32 {
        L::load(x).sum()
    }

    #[test]
    fn the_bits_of_the_portable_lanes() {
        let Some(isa) = Isa::avx2() else { return };
        let mut x: Vec<f32> = (0..80_000).map(|i| i as f32 * 0.002_3 - 92.0).collect();
        x.extend([0.0, -0.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN]);
        x.extend([
            math::EXP_MAX,
            math::EXP_MIN,
            f32::from_bits(math::EXP_MIN.to_bits() + 1),
        ]);
        let (mut got, mut want) = (x.clone(), x.clone());
        on_lanes!(isa, exp_all, (x: &mut [f32] = &mut got));
        on_lanes!(Isa::PORTABLE, exp_all, (x: &mut [f32] = &mut want));
        for ((x, g), w) in x.iter().zip(&got).zip(&want) {
            assert!(g.to_bits() == w.to_bits(), "exp({x}): {g} {w}");
        }
        for x in x[..80_000].windows(8).step_by(97) {
            let got = on_lanes!(isa, sum, (x: &[f32] = x) -> f32);
            assert_eq!(got.to_bits(), F8::load(x).sum().to_bits());
        }
    }
}
