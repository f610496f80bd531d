// SPDX-License-Identifier: MIT OR Apache-2.0
//! Elementary functions whose bits depend on their argument alone: not on the platform's libm, the instruction set or
//! the vector width. A vector path repeats [`exp`] operation by operation and gets the same bits.

/// Below this argument [`exp`] is exactly 0 (the result would be under the smallest normal number).
pub const EXP_MIN: f32 = -87.336_54;
/// Above this argument [`exp`] is infinite.
pub const EXP_MAX: f32 = 88.722_83;
/// log2(e), rounded.
pub const LOG2_E: f32 = std::f32::consts::LOG2_E;
/// ln(2) cut to 11 bits, so that `n * LN2_HI` is exact for |n| <= 128.
pub const LN2_HI: f32 = 0.693_359_4;
/// ln(2) - [`LN2_HI`].
pub const LN2_LO: f32 = -2.121_944_4e-4;
/// Taylor coefficients of exp(r), |r| <= ln(2)/2, from the highest power: relative error below 2e-7 with f32 rounding.
pub const EXP_POLY: [f32; 7] = [
    1.0 / 720.0,
    1.0 / 120.0,
    1.0 / 24.0,
    1.0 / 6.0,
    0.5,
    1.0,
    1.0,
];

/// e^x in f32 by one fixed order: `n = round_even(x * LOG2_E)`, two fused steps for the remainder, a fused Horner chain
/// over [`EXP_POLY`], then two multiplications by powers of two (`n >> 1` and `n - (n >> 1)`). 0 below [`EXP_MIN`],
/// infinite above [`EXP_MAX`], NaN for NaN.
#[must_use]
pub fn exp(x: f32) -> f32 {
    if x.is_nan() {
        return x;
    }
    if x < EXP_MIN {
        return 0.0;
    }
    if x > EXP_MAX {
        return f32::INFINITY;
    }
    let n = (x * LOG2_E).round_ties_even();
    let r = (-n).mul_add(LN2_HI, x);
    let r = (-n).mul_add(LN2_LO, r);
    let mut p = EXP_POLY[0];
    for c in &EXP_POLY[1..] {
        p = p.mul_add(r, *c);
    }
    let n = n as i32;
    let half = n >> 1;
    p * power_of_two(half) * power_of_two(n - half)
}

/// 2^n for -126 <= n <= 127.
fn power_of_two(n: i32) -> f32 {
    f32::from_bits(((n + 127) as u32) << 23)
}

/// Hyperbolic tangent in f32 by one fixed order. Up to 1 in magnitude, the seventh convergent of Lambert's continued fraction:
/// `x * p / q` with `p = ((s + 378) * s + 17325) * s + 135135`, `q = ((28 * s + 3150) * s + 62370) * s + 135135`, `s = x * x`;
/// beyond, `1 - 2 / (exp(2 |x|) + 1)` with the sign of `x`. Relative error below 4e-7; NaN for NaN.
#[must_use]
#[inline]
pub fn tanh(x: f32) -> f32 {
    let a = x.abs();
    if a <= 1.0 {
        let s = x * x;
        let p = ((s + 378.0) * s + 17_325.0) * s + 135_135.0;
        let q = ((28.0 * s + 3_150.0) * s + 62_370.0) * s + 135_135.0;
        return x * p / q;
    }
    if x.is_nan() {
        return x;
    }
    (1.0 - 2.0 / (exp(2.0 * a) + 1.0)).copysign(x)
}

/// Natural logarithm, computed in f64 by a portable implementation and rounded once.
#[must_use]
pub fn ln(x: f32) -> f32 {
    libm::log(f64::from(x)) as f32
}

/// Sine and cosine of an f32 angle, computed in f64 by a portable implementation and rounded once.
#[must_use]
pub fn sin_cos(angle: f32) -> (f32, f32) {
    let (s, c) = libm::sincos(f64::from(angle));
    (s as f32, c as f32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tanh_is_near_and_odd() {
        let mut x = -12.0f32;
        while x < 12.0 {
            let want = f64::from(x).tanh();
            let got = f64::from(tanh(x));
            assert!((got - want).abs() <= 4e-7 * want.abs(), "{x}: {got} {want}");
            assert_eq!(tanh(-x), -tanh(x));
            x += 0.001_3;
        }
        assert_eq!((tanh(0.0), tanh(f32::INFINITY)), (0.0, 1.0));
        assert_eq!(tanh(f32::NEG_INFINITY), -1.0);
        assert!(tanh(f32::NAN).is_nan());
    }

    #[test]
    fn exp_is_within_a_few_ulp_of_the_double() {
        let mut worst = 0.0f64;
        let mut x = -87.0f32;
        while x < 88.7 {
            let want = f64::from(x).exp();
            worst = worst.max(((f64::from(exp(x)) - want) / want).abs());
            x += 0.003_7;
        }
        // Three roundings of the remainder and of the last steps: 2^-22.
        assert!(worst < 2.4e-7, "{worst}");
    }

    #[test]
    fn exp_at_the_edges() {
        assert_eq!(exp(0.0), 1.0);
        assert_eq!(exp(f32::NEG_INFINITY), 0.0);
        assert_eq!(exp(-88.0), 0.0);
        assert_eq!(exp(89.0), f32::INFINITY);
        assert!(exp(f32::NAN).is_nan());
        assert!(exp(88.7).is_finite());
    }
}
