// SPDX-License-Identifier: MIT OR Apache-2.0
//! How keys and values lie in the paged pool, for each format that a pool may hold.
//!
//! A pool is `[blocks, heads, ..]`: what one head of one block holds lies together.
//!
//! ```text
//! f32, bf16, f16   [16 tokens][head_dim] values
//! i8, f8_e4m3      [16 tokens][head_dim] bytes, then [16 tokens] scales, f32 little-endian
//! ```
//!
//! A value of the two scaled formats is `q * scale`; its scale is that of its token and head, made from their largest
//! magnitude when the token is written ([`scale`]). Dynamic scales alone: a static one per layer, as some checkpoints bring,
//! saves 4 bytes of `head_dim + 4`, and a token that the calibration did not foresee is clipped.

use crate::numeric::half::{f8e4m3_from_f32, f8e4m3_to_f32};
use crate::{Elem, KV_BLOCK, fp8};

/// Every format of a pool.
pub const FORMATS: [Elem; 5] = [Elem::F32, Elem::BF16, Elem::F16, Elem::I8, Elem::F8E4M3];

/// Bytes of a scale.
const SCALE: u64 = 4;

/// Whether values have a scale per token and head.
#[must_use]
pub fn has_scales(elem: Elem) -> bool {
    matches!(elem, Elem::I8 | Elem::F8E4M3)
}

/// Elements of a pool's span per block: `heads * 16 * head_dim` values; in a scaled format, whose elements are bytes, with
/// the scales' bytes. `None` if that overflows.
#[must_use]
pub fn block_elems(elem: Elem, heads: u64, head_dim: u64) -> Option<u64> {
    let token = match has_scales(elem) {
        true => head_dim.checked_add(SCALE)?,
        false => head_dim,
    };
    token.checked_mul(heads)?.checked_mul(u64::from(KV_BLOCK))
}

/// Bytes of one token of one head, in one of keys and values. `None` if that overflows.
#[must_use]
pub fn token_bytes(elem: Elem, head_dim: u64) -> Option<u64> {
    Some(elem.bytes_for(block_elems(elem, 1, head_dim)?)? / u64::from(KV_BLOCK))
}

/// The scale of a token and head whose largest magnitude is `m` (NaN above all), and what values are multiplied by before
/// they are rounded: `m / 127` or `m / 448`, and the reciprocal; edges as in [`fp8::scale_to`]. Formats without scales: 1.
#[must_use]
pub fn scale(elem: Elem, m: f32) -> (f32, f32) {
    match elem {
        Elem::I8 => fp8::scale_to(m, 127.0),
        Elem::F8E4M3 => fp8::scale_to(m, fp8::MAX),
        _ => (1.0, 1.0),
    }
}

/// `x`, already multiplied, as an int8: ties to even, saturating at ±127; NaN becomes 0.
#[inline(always)]
#[must_use]
pub fn i8_from_f32(x: f32) -> i8 {
    // A cast of NaN gives 0.
    x.round_ties_even().clamp(-127.0, 127.0) as i8
}

/// What reading gives back for values written together: the reference that kernels and tests are held to.
#[must_use]
pub fn round_trip(elem: Elem, x: &[f32]) -> Vec<f32> {
    let largest = x.iter().map(|x| x.to_bits() & 0x7fff_ffff).max();
    let (scale, inverse) = scale(elem, f32::from_bits(largest.unwrap_or(0)));
    let one = |x: &f32| match elem {
        Elem::I8 => f32::from(i8_from_f32(x * inverse)) * scale,
        Elem::F8E4M3 if inverse == 0.0 => 0.0 * scale,
        Elem::F8E4M3 => f8e4m3_to_f32(f8e4m3_from_f32(x * inverse)) * scale,
        Elem::BF16 => half::bf16::from_f32(*x).to_f32(),
        Elem::F16 => half::f16::from_f32(*x).to_f32(),
        _ => *x,
    };
    x.iter().map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scaled_token_has_a_byte_a_value_and_four_of_its_scale() {
        assert_eq!(block_elems(Elem::F16, 3, 64), Some(3 * 16 * 64));
        assert_eq!(block_elems(Elem::I8, 3, 64), Some(3 * 16 * 68));
        let bytes = [(Elem::F32, 256), (Elem::F16, 128), (Elem::I8, 68)];
        for (elem, want) in bytes {
            assert_eq!(token_bytes(elem, 64), Some(want), "{elem}");
        }
        assert_eq!(block_elems(Elem::F8E4M3, 2, u64::MAX - 3), None);
        assert_eq!(block_elems(Elem::F32, 1 << 40, 1 << 40), None);
    }

    #[test]
    fn int8_rounds_ties_to_even_and_keeps_the_largest() {
        let given = [2.5f32, -1.5, 0.5, -127.4, 127.0, 200.0, f32::NAN];
        assert_eq!(given.map(i8_from_f32), [2, -2, 0, -127, 127, 127, 0]);
        assert_eq!(
            round_trip(Elem::I8, &[127.0, 2.5, -3.4]),
            [127.0, 2.0, -3.0]
        );
        for m in [1e-30f32, 0.03, 1.0, 3e38] {
            let (_, inverse) = scale(Elem::I8, m);
            assert_eq!(i8_from_f32(-m * inverse), -127, "{m}");
        }
    }

    #[test]
    fn zeros_stay_and_what_is_no_number_is_not_hidden() {
        for elem in [Elem::I8, Elem::F8E4M3] {
            assert_eq!(round_trip(elem, &[0.0, -0.0, 1e-42]), [0.0; 3], "{elem}");
            for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                let got = round_trip(elem, &[1.0, bad, 2.0]);
                assert!(got.iter().all(|v| v.is_nan()), "{elem} {bad}");
            }
        }
    }
}
