// SPDX-License-Identifier: MIT OR Apache-2.0
//! Eight f32 lanes in plain Rust, and the reductions built on them.
//!
//! *Reduction spec `lanes8`*: element `i` goes to lane `i mod 8`, each lane is one ascending chain, and the lanes fold in
//! one tree: `((l0+l4)+(l2+l6)) + ((l1+l5)+(l3+l7))`. Everything is `#[inline(always)]`, so that the body of a vector
//! path becomes vector code; written lane by lane, the portable path has the same bits.

use metrale_core::numeric::math;

/// Eight f32.
#[derive(Clone, Copy)]
#[repr(C, align(32))]
pub(crate) struct F8(pub(crate) [f32; 8]);

impl F8 {
    pub(crate) const ZERO: F8 = F8([0.0; 8]);

    #[inline(always)]
    pub(crate) fn splat(v: f32) -> F8 {
        F8([v; 8])
    }

    /// The first eight of `x`.
    #[inline(always)]
    pub(crate) fn load(x: &[f32]) -> F8 {
        let mut out = [0.0; 8];
        out.copy_from_slice(&x[..8]);
        F8(out)
    }

    #[inline(always)]
    pub(crate) fn store(self, x: &mut [f32]) {
        x[..8].copy_from_slice(&self.0);
    }

    #[inline(always)]
    pub(crate) fn add(self, b: F8) -> F8 {
        let mut out = self.0;
        for i in 0..8 {
            out[i] += b.0[i];
        }
        F8(out)
    }

    #[inline(always)]
    pub(crate) fn sub(self, b: F8) -> F8 {
        let mut out = self.0;
        for i in 0..8 {
            out[i] -= b.0[i];
        }
        F8(out)
    }

    #[inline(always)]
    pub(crate) fn mul(self, b: F8) -> F8 {
        let mut out = self.0;
        for i in 0..8 {
            out[i] *= b.0[i];
        }
        F8(out)
    }

    #[inline(always)]
    pub(crate) fn div(self, b: F8) -> F8 {
        let mut out = self.0;
        for i in 0..8 {
            out[i] /= b.0[i];
        }
        F8(out)
    }

    /// `self * b + c`, rounded once.
    #[inline(always)]
    pub(crate) fn fma(self, b: F8, c: F8) -> F8 {
        let mut out = [0.0; 8];
        for i in 0..8 {
            out[i] = self.0[i].mul_add(b.0[i], c.0[i]);
        }
        F8(out)
    }

    /// The tree of `lanes8`.
    #[inline(always)]
    pub(crate) fn sum(self) -> f32 {
        let l = self.0;
        ((l[0] + l[4]) + (l[2] + l[6])) + ((l[1] + l[5]) + (l[3] + l[7]))
    }

    /// [`math::exp`] of each lane, the same operations without branches.
    #[inline(always)]
    pub(crate) fn exp(self) -> F8 {
        let mut out = [0.0; 8];
        for i in 0..8 {
            out[i] = exp(self.0[i]);
        }
        F8(out)
    }
}

/// [`math::exp`] without branches: every step is computed and the edges are selected at the end.
#[inline(always)]
pub(crate) fn exp(x: f32) -> f32 {
    // The clamp keeps the integer steps in range; clamped lanes are replaced below.
    let c = if x > math::EXP_MAX { math::EXP_MAX } else { x };
    let c = if c < math::EXP_MIN { math::EXP_MIN } else { c };
    let n = (c * math::LOG2_E).round_ties_even();
    let r = (-n).mul_add(math::LN2_HI, c);
    let r = (-n).mul_add(math::LN2_LO, r);
    let mut p = math::EXP_POLY[0];
    for k in 1..7 {
        p = p.mul_add(r, math::EXP_POLY[k]);
    }
    // `as` saturates; NaN becomes 0 and is replaced below.
    let n = n as i32;
    let half = n >> 1;
    let y = p * power_of_two(half) * power_of_two(n - half);
    let y = if x < math::EXP_MIN { 0.0 } else { y };
    let y = if x > math::EXP_MAX { f32::INFINITY } else { y };
    if x.is_nan() { x } else { y }
}

#[inline(always)]
fn power_of_two(n: i32) -> f32 {
    f32::from_bits(((n + 127) as u32) << 23)
}

/// Sum of `f(i, lane value)` products by `lanes8`: the dot product of two equally long slices.
#[inline(always)]
pub(crate) fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut acc = F8::ZERO;
    let whole = a.len() / 8 * 8;
    let mut i = 0;
    while i < whole {
        acc = F8::load(&a[i..]).fma(F8::load(&b[i..]), acc);
        i += 8;
    }
    for j in whole..a.len() {
        acc.0[j - whole] = a[j].mul_add(b[j], acc.0[j - whole]);
    }
    acc.sum()
}

/// IEEE half to f32, exact, in integer steps that vectorise.
#[inline(always)]
pub(crate) fn f16_to_f32(h: u16) -> f32 {
    let sign = u32::from(h & 0x8000) << 16;
    // Exponent and fraction moved into place, then scaled by 2^112: exact for normal and subnormal halves.
    let scaled = f32::from_bits(u32::from(h & 0x7fff) << 13) * f32::from_bits((112 + 127) << 23);
    let special = if scaled >= 65536.0 { 0x7f80_0000 } else { 0 };
    f32::from_bits(scaled.to_bits() | special | sign)
}

/// bfloat16 to f32, exact.
#[inline(always)]
pub(crate) fn bf16_to_f32(b: u16) -> f32 {
    f32::from_bits(u32::from(b) << 16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_has_the_bits_of_core() {
        let mut x = -90.0f32;
        while x < 90.0 {
            assert_eq!(exp(x).to_bits(), math::exp(x).to_bits(), "{x}");
            x += 0.001_7;
        }
        for x in [
            0.0,
            -0.0,
            f32::INFINITY,
            f32::NEG_INFINITY,
            math::EXP_MAX,
            math::EXP_MIN,
        ] {
            assert_eq!(exp(x).to_bits(), math::exp(x).to_bits(), "{x}");
        }
        assert!(exp(f32::NAN).is_nan());
    }

    #[test]
    fn halves_convert_exactly() {
        for h in 0..=u16::MAX {
            let want = half::f16::from_bits(h).to_f32();
            let got = f16_to_f32(h);
            assert!(
                got.to_bits() == want.to_bits() || (got.is_nan() && want.is_nan()),
                "{h:x}"
            );
            let want = half::bf16::from_bits(h).to_f32();
            let got = bf16_to_f32(h);
            assert!(
                got.to_bits() == want.to_bits() || (got.is_nan() && want.is_nan()),
                "{h:x}"
            );
        }
    }

    #[test]
    fn dot_takes_the_tail_into_its_lanes() {
        let a: Vec<f32> = (0..13).map(|i| i as f32).collect();
        let b = vec![2.0; 13];
        assert_eq!(dot(&a, &b), 156.0);
    }
}
