// SPDX-License-Identifier: MIT OR Apache-2.0
//! Rows of e4m3 values with their scales: [`Elem::F8Row`] and [`Elem::F8Block`].
//!
//! ```text
//! 0        values, one byte each, zero up to the next multiple of 128
//! V        scales, f32 little-endian: one (f8_row), or one per 128 columns (f8_block); zero up to a multiple of 128 bytes
//! ```
//!
//! A value is `e4m3 * scale`. Activations lie so in memory, and weights on their way into a pack launch. Every row begins
//! at a multiple of 128 bytes, so that a tensor map can read values and scales alike.

use crate::Elem;

/// Columns that share a scale of [`Elem::F8Block`]; rows of a weight's block too. Row parts are padded to it in bytes.
pub const BLOCK: u64 = 128;

/// The largest e4m3 value.
pub const MAX: f32 = 448.0;

/// Scales of a row of `cols` values; `None` for other formats.
#[must_use]
pub fn scales(elem: Elem, cols: u64) -> Option<u64> {
    match elem {
        Elem::F8Row => Some(1),
        Elem::F8Block => Some(cols.div_ceil(BLOCK)),
        _ => None,
    }
}

/// Byte of a row where its scales begin.
#[must_use]
pub fn scales_at(cols: u64) -> Option<u64> {
    cols.checked_next_multiple_of(BLOCK)
}

/// Bytes of a row of `cols` values with `scales` scales; `None` if that overflows.
#[must_use]
pub fn pitch(cols: u64, scales: u64) -> Option<u64> {
    let tail = scales.checked_mul(4)?.checked_next_multiple_of(BLOCK)?;
    scales_at(cols)?.checked_add(tail)
}

/// The scale that brings a largest magnitude `m` to [`MAX`], and what values are multiplied by before they are rounded:
/// `m / 448` and its reciprocal, each rounded to f32. Where there is none (`m` zero or tiny) the second is 0; where `m` is
/// infinite or no number the scale is NaN, so that whatever is computed from the values is too.
#[must_use]
pub fn scale_for(m: f32) -> (f32, f32) {
    scale_to(m, MAX)
}

/// [`scale_for`] another largest value.
#[must_use]
pub fn scale_to(m: f32, max: f32) -> (f32, f32) {
    let scale = m / max;
    let inverse = 1.0 / scale;
    match (m.is_finite(), inverse.is_finite()) {
        (true, true) => (scale, inverse),
        (true, false) => (scale, 0.0),
        (false, _) => (f32::NAN, 0.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::numeric::half::{f8e4m3_from_f32, f8e4m3_to_f32};

    #[test]
    fn the_largest_magnitude_becomes_the_largest_value() {
        for m in [1e-30f32, 0.03, 1.0, 447.9, 3e38] {
            let (scale, inverse) = scale_for(m);
            assert_eq!(f8e4m3_to_f32(f8e4m3_from_f32(-m * inverse)), -MAX, "{m}");
            assert!((scale * MAX / m - 1.0).abs() < 1e-6);
        }
        assert_eq!(scale_for(0.0), (0.0, 0.0));
        assert_eq!(scale_for(1e-39).1, 0.0);
        for bad in [f32::NAN, f32::INFINITY] {
            assert!(scale_for(bad).0.is_nan() && scale_for(bad).1 == 0.0);
        }
    }
}
