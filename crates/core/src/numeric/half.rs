// SPDX-License-Identifier: MIT OR Apache-2.0
//! 16-bit and 8-bit floats to and from f32. Every conversion to f32 is exact; every one from f32 rounds to nearest even.

use half::{bf16, f16};

/// IEEE binary16 bits to f32, branch-free so that loops over it vectorise. A NaN comes out quiet, as F16C gives it.
#[must_use]
pub fn f16_to_f32(bits: u16) -> f32 {
    /// 2^112: the difference of the exponent biases. The product is exact, subnormals included.
    const REBIAS: f32 = f32::from_bits((127 + 112) << 23);
    let magnitude = u32::from(bits & 0x7fff) << 13;
    let finite = (f32::from_bits(magnitude) * REBIAS).to_bits();
    let quiet = if magnitude & 0x007f_e000 != 0 {
        0x0040_0000
    } else {
        0
    };
    let special = magnitude | 0x7f80_0000 | quiet;
    let value = if magnitude < 0x0f80_0000 {
        finite
    } else {
        special
    };
    f32::from_bits(value | u32::from(bits & 0x8000) << 16)
}

/// f32 to IEEE binary16 bits.
#[must_use]
pub fn f16_from_f32(value: f32) -> u16 {
    f16::from_f32(value).to_bits()
}

/// bfloat16 bits to f32.
#[must_use]
pub fn bf16_to_f32(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

/// f32 to bfloat16 bits.
#[must_use]
pub fn bf16_from_f32(value: f32) -> u16 {
    bf16::from_f32(value).to_bits()
}

/// FP8 E4M3 bits (OCP "FN": no infinity, NaN at 0x7f and 0xff, largest 448) to f32. Source: OCP 8-bit Floating Point
/// Specification, revision 1.0.
#[must_use]
pub fn f8e4m3_to_f32(bits: u8) -> f32 {
    /// 2^120: bias 127 against 7.
    const REBIAS: f32 = f32::from_bits((127 + 120) << 23);
    let sign = u32::from(bits & 0x80) << 24;
    if bits & 0x7f == 0x7f {
        return f32::from_bits(sign | 0x7fc0_0000);
    }
    let magnitude = f32::from_bits(u32::from(bits & 0x7f) << 20) * REBIAS;
    f32::from_bits(magnitude.to_bits() | sign)
}

/// f32 to FP8 E4M3 bits: nearest even, magnitudes past 448 (infinities too) become 448. A NaN stays one.
#[must_use]
pub fn f8e4m3_from_f32(value: f32) -> u8 {
    /// 2^-6, the smallest normal number.
    const NORMAL: f32 = 0.015_625;
    let sign = (value.to_bits() >> 24) as u8 & 0x80;
    if value.is_nan() {
        return sign | 0x7f;
    }
    let m = value.abs().min(448.0);
    let bits = m.to_bits();
    // Twenty bits of the fraction go; exponents differ by 120.
    let normal = ((bits + 0x7_ffff + (bits >> 20 & 1)) >> 20).wrapping_sub(120 << 3);
    let subnormal = (m * 512.0).round_ties_even() as u32;
    sign | if m < NORMAL { subnormal } else { normal } as u8
}

/// Half of an E8M0 scale, 2^(e - 128); the two smallest are subnormal. It goes with [`super::dequantize::E2M1_DOUBLED`].
/// The format's NaN, 255, is taken as the power 2^127, as ggml takes it.
#[must_use]
pub fn e8m0_halved(e: u8) -> f32 {
    match e {
        0 | 1 => f32::from_bits(0x0020_0000 << e),
        _ => f32::from_bits((u32::from(e) - 1) << 23),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_f16_agrees_with_the_half_crate() {
        for bits in 0..=u16::MAX {
            let want = f16::from_bits(bits).to_f32_const();
            assert_eq!(f16_to_f32(bits).to_bits(), want.to_bits(), "{bits:#06x}");
            if !want.is_nan() {
                assert_eq!(f16_from_f32(want), bits);
            }
        }
    }

    #[test]
    fn every_bf16_survives_the_round_trip() {
        for bits in 0..=u16::MAX {
            let value = bf16_to_f32(bits);
            assert!(
                value.is_nan() || bf16_from_f32(value) == bits,
                "{bits:#06x}"
            );
        }
    }

    #[test]
    fn rounding_is_to_nearest_even() {
        assert_eq!(bf16_from_f32(1.0 + 1.0 / 256.0), 0x3f80); // a tie, down to even
        assert_eq!(bf16_from_f32(1.0 + 3.0 / 256.0), 0x3f82); // a tie, up to even
        assert_eq!(f16_from_f32(1.0 + 1.0 / 2048.0), 0x3c00);
        assert_eq!(f16_from_f32(1.0 + 3.0 / 2048.0), 0x3c02);
        assert_eq!(f16_from_f32(65520.0), 0x7c00); // a tie between the largest and the next: infinity
    }

    #[test]
    fn f8e4m3_of_the_specification() {
        for (bits, want) in [
            (0x7e, 448.0),
            (0x38, 1.0),
            (0x08, 0.015_625),
            (0x01, 0.001_953_125),
        ] {
            assert_eq!(f8e4m3_to_f32(bits), want, "{bits:#04x}");
            assert_eq!(f8e4m3_to_f32(bits | 0x80), -want);
        }
        assert!(f8e4m3_to_f32(0x7f).is_nan() && f8e4m3_to_f32(0xff).is_nan());
        assert_eq!(f8e4m3_to_f32(0x80).to_bits(), (-0.0f32).to_bits());
    }

    #[test]
    fn f8e4m3_rounds_to_the_nearest_even_and_saturates() {
        for bits in 0..=0x7eu8 {
            let (low, high) = (f8e4m3_to_f32(bits), f8e4m3_to_f32(bits + 1));
            assert_eq!(f8e4m3_from_f32(low), bits);
            assert_eq!(f8e4m3_from_f32(-low), bits | 0x80);
            if bits == 0x7e {
                continue;
            }
            let middle = (low + high) / 2.0;
            let even = bits + bits % 2;
            assert_eq!(f8e4m3_from_f32(middle), even, "{middle}");
            let next = |step: i32| f32::from_bits(middle.to_bits().wrapping_add_signed(step));
            assert_eq!(f8e4m3_from_f32(next(-1)), bits);
            assert_eq!(f8e4m3_from_f32(next(1)), bits + 1);
        }
        for large in [448.1, 464.0, 1e9, f32::INFINITY] {
            assert_eq!(f8e4m3_from_f32(large), 0x7e);
        }
        assert_eq!(f8e4m3_from_f32(-f32::NAN) & 0x7f, 0x7f);
    }
}
