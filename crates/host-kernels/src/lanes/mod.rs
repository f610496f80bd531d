// SPDX-License-Identifier: MIT OR Apache-2.0
//! Eight f32 lanes in plain Rust, and the reductions built on them.
//!
//! *Reduction spec `lanes8`*: element `i` goes to lane `i mod 8`, each lane is one ascending chain, and the lanes fold in
//! one tree: `((l0+l4)+(l2+l6)) + ((l1+l5)+(l3+l7))`. Everything is `#[inline(always)]`, so that the body of a vector
//! path becomes vector code; written lane by lane, the portable path has the same bits.

//!
//! A body is written once, over [`Lanes`]; [`F8`] is its portable path and `Y8` the AVX2 one, operation by operation the
//! same. [`on_lanes`] picks.

#[cfg(target_arch = "x86_64")]
mod y8;

use metrale_core::numeric::math;

#[cfg(target_arch = "x86_64")]
pub(crate) use y8::Y8;

/// Eight f32. Every operation rounds each lane as the scalar one does.
pub(crate) trait Lanes: Copy {
    fn splat(v: f32) -> Self;
    /// The first eight of `x`.
    fn load(x: &[f32]) -> Self;
    /// To the first eight of `x`.
    fn store(self, x: &mut [f32]);
    fn add(self, b: Self) -> Self;
    fn sub(self, b: Self) -> Self;
    fn mul(self, b: Self) -> Self;
    fn div(self, b: Self) -> Self;
    /// The larger of each lane; `b` if they are equal or either is NaN.
    fn larger(self, b: Self) -> Self;
    /// `self * b + c`, rounded once.
    fn fma(self, b: Self, c: Self) -> Self;
    /// The tree of `lanes8`.
    fn sum(self) -> f32;
    /// [`math::exp`] of each lane.
    fn exp(self) -> Self;
    /// Adds each lane, in f64, to the sum of its own.
    fn add_wide(self, sums: &mut [f64; 8]);
}

/// `on_lanes!(isa, body, (name: Type = value, ...) -> Type)` runs `body::<L: Lanes>` with the lanes of the instruction
/// set. The body and what it calls must be `#[inline(always)]`.
macro_rules! on_lanes {
    ($isa:expr, $body:ident, ($($arg:ident : $ty:ty = $value:expr),* $(,)?) $(-> $ret:ty)?) => {{
        #[cfg(target_arch = "x86_64")]
        {
            #[target_feature(enable = "avx2,fma,f16c")]
            fn vector($($arg: $ty),*) $(-> $ret)? {
                $body::<$crate::lanes::Y8>($($arg),*)
            }
            if $isa.has_avx2() {
                // SAFETY: `Isa` says AVX2 only after the processor said it, with FMA and F16C.
                unsafe { vector($($value),*) }
            } else {
                $body::<$crate::lanes::F8>($($value),*)
            }
        }
        #[cfg(not(target_arch = "x86_64"))]
        {
            let _ = $isa;
            $body::<$crate::lanes::F8>($($value),*)
        }
    }};
}
pub(crate) use on_lanes;

/// Eight f32 in plain Rust.
#[derive(Clone, Copy)]
#[repr(C, align(32))]
pub(crate) struct F8(pub(crate) [f32; 8]);

impl F8 {
    pub(crate) const ZERO: F8 = F8([0.0; 8]);

    #[inline(always)]
    fn zip(self, b: F8, f: impl Fn(f32, f32) -> f32) -> F8 {
        let mut out = self.0;
        for i in 0..8 {
            out[i] = f(self.0[i], b.0[i]);
        }
        F8(out)
    }
}

impl Lanes for F8 {
    #[inline(always)]
    fn splat(v: f32) -> F8 {
        F8([v; 8])
    }

    #[inline(always)]
    fn load(x: &[f32]) -> F8 {
        let mut out = [0.0; 8];
        out.copy_from_slice(&x[..8]);
        F8(out)
    }

    #[inline(always)]
    fn store(self, x: &mut [f32]) {
        x[..8].copy_from_slice(&self.0);
    }

    #[inline(always)]
    fn add(self, b: F8) -> F8 {
        self.zip(b, |a, b| a + b)
    }

    #[inline(always)]
    fn sub(self, b: F8) -> F8 {
        self.zip(b, |a, b| a - b)
    }

    #[inline(always)]
    fn mul(self, b: F8) -> F8 {
        self.zip(b, |a, b| a * b)
    }

    #[inline(always)]
    fn div(self, b: F8) -> F8 {
        self.zip(b, |a, b| a / b)
    }

    #[inline(always)]
    fn larger(self, b: F8) -> F8 {
        self.zip(b, |a, b| if a > b { a } else { b })
    }

    #[inline(always)]
    fn fma(self, b: F8, c: F8) -> F8 {
        let mut out = [0.0; 8];
        for i in 0..8 {
            out[i] = self.0[i].mul_add(b.0[i], c.0[i]);
        }
        F8(out)
    }

    #[inline(always)]
    fn sum(self) -> f32 {
        let l = self.0;
        ((l[0] + l[4]) + (l[2] + l[6])) + ((l[1] + l[5]) + (l[3] + l[7]))
    }

    #[inline(always)]
    fn exp(self) -> F8 {
        F8(self.0.map(exp))
    }

    #[inline(always)]
    fn add_wide(self, sums: &mut [f64; 8]) {
        for (sum, v) in sums.iter_mut().zip(self.0) {
            *sum += f64::from(v);
        }
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

/// The dot product of two equally long slices, by `lanes8`.
#[inline(always)]
pub(crate) fn dot<L: Lanes>(a: &[f32], b: &[f32]) -> f32 {
    let whole = a.len() / 8 * 8;
    let mut acc = L::splat(0.0);
    let mut i = 0;
    while i < whole {
        acc = L::load(&a[i..]).fma(L::load(&b[i..]), acc);
        i += 8;
    }
    if whole == a.len() {
        return acc.sum();
    }
    let mut lanes = [0.0; 8];
    acc.store(&mut lanes);
    for j in whole..a.len() {
        lanes[j - whole] = a[j].mul_add(b[j], lanes[j - whole]);
    }
    F8(lanes).sum()
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
        assert_eq!(dot::<F8>(&a, &b), 156.0);
    }
}
