// SPDX-License-Identifier: MIT OR Apache-2.0
//! Disk formats to f32: the reference for every packed layout and kernel.
//!
//! Each value is a small integer times a scale, at most once offset: one or two f32 operations, in the order that the
//! format defines, without fusing. So the results are the same numbers as those of the `gguf` library and libggml, and a
//! test holds them against the former.

mod k_quants;
mod legacy;
mod nonlinear;

use thiserror::Error;

use super::half::{bf16_to_f32, f8e4m3_to_f32, f16_to_f32};
use crate::{Elem, fp8};

/// The values that a nibble of IQ4_NL and IQ4_XS stands for, from the ggml format.
pub const IQ4_LEVELS: [i8; 16] = [
    -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113,
];

/// Twice the values of FP4 E2M1 (OCP Microscaling Formats 1.0): 0, 0.5, 1, 1.5, 2, 3, 4, 6 and their negatives.
pub const E2M1_DOUBLED: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// Why [`dequantize`] did nothing. The blame is the caller's.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum DequantizeError {
    /// The format does not hold real weights (integers, activations).
    #[error("{elem} is no weight format, so it has no values to dequantize")]
    Format {
        /// The format asked for.
        elem: Elem,
    },
    /// The two buffers do not hold the same number of values.
    #[error("{bytes} bytes of {elem} are not {values} values")]
    Length {
        /// The format.
        elem: Elem,
        /// Bytes of the source.
        bytes: usize,
        /// Values of the destination.
        values: usize,
    },
}

/// Writes the values of `src`, whole blocks of `elem` (one row where scales stand behind a row), to `dst`.
///
/// # Errors
/// [`DequantizeError`]; `dst` is untouched then.
pub fn dequantize(elem: Elem, src: &[u8], dst: &mut [f32]) -> Result<(), DequantizeError> {
    if elem.bytes_for(dst.len() as u64) != Some(src.len() as u64) {
        return Err(DequantizeError::Length {
            elem,
            bytes: src.len(),
            values: dst.len(),
        });
    }
    match elem {
        Elem::F32 => each(src, dst, f32::from_le_bytes),
        Elem::F64 => each(src, dst, |b| f64::from_le_bytes(b) as f32),
        Elem::F16 => each(src, dst, |b| f16_to_f32(u16::from_le_bytes(b))),
        Elem::BF16 => each(src, dst, |b| bf16_to_f32(u16::from_le_bytes(b))),
        Elem::F8E4M3 => each(src, dst, |[b]| f8e4m3_to_f32(b)),
        Elem::Q4_0 => blocks(src, dst, legacy::q4_0),
        Elem::Q4_1 => blocks(src, dst, legacy::q4_1),
        Elem::Q5_0 => blocks(src, dst, legacy::q5_0),
        Elem::Q5_1 => blocks(src, dst, legacy::q5_1),
        Elem::Q8_0 => blocks(src, dst, legacy::q8_0),
        Elem::Q2K => blocks(src, dst, k_quants::q2_k),
        Elem::Q3K => blocks(src, dst, k_quants::q3_k),
        Elem::Q4K => blocks(src, dst, k_quants::q4_k),
        Elem::Q5K => blocks(src, dst, k_quants::q5_k),
        Elem::Q6K => blocks(src, dst, k_quants::q6_k),
        Elem::Iq4Nl => blocks(src, dst, nonlinear::iq4_nl),
        Elem::Iq4Xs => blocks(src, dst, nonlinear::iq4_xs),
        Elem::Mxfp4 => blocks(src, dst, nonlinear::mxfp4),
        Elem::F8Row => fp8_row(src, dst, dst.len()),
        Elem::F8Block => fp8_row(src, dst, fp8::BLOCK as usize),
        Elem::I8 | Elem::I16 | Elem::I32 | Elem::I64 | Elem::U8 | Elem::U32 | Elem::A16 => {
            return Err(DequantizeError::Format { elem });
        }
    }
    Ok(())
}

/// Plain formats: one value from `N` bytes.
fn each<const N: usize>(src: &[u8], dst: &mut [f32], value: impl Fn([u8; N]) -> f32) {
    for (bytes, out) in src.as_chunks::<N>().0.iter().zip(dst) {
        *out = value(*bytes);
    }
}

/// One row of [`crate::fp8`]: `per` values to a scale.
fn fp8_row(src: &[u8], dst: &mut [f32], per: usize) {
    let (values, scales) = src.split_at(dst.len().next_multiple_of(fp8::BLOCK as usize));
    let scales = scales.as_chunks::<4>().0.iter();
    let blocks = dst.chunks_mut(per.max(1)).zip(values.chunks(per.max(1)));
    for ((dst, values), scale) in blocks.zip(scales) {
        let scale = f32::from_le_bytes(*scale);
        for (out, value) in dst.iter_mut().zip(values) {
            *out = f8e4m3_to_f32(*value) * scale;
        }
    }
}

/// Block formats: `E` values from `N` bytes.
fn blocks<const N: usize, const E: usize>(
    src: &[u8],
    dst: &mut [f32],
    block: impl Fn(&[u8; N], &mut [f32; E]),
) {
    for (bytes, out) in src
        .as_chunks::<N>()
        .0
        .iter()
        .zip(dst.as_chunks_mut::<E>().0)
    {
        block(bytes, out);
    }
}

/// The f16 at `block[at..]`.
fn f16_at(block: &[u8], at: usize) -> f32 {
    f16_to_f32(u16::from_le_bytes([block[at], block[at + 1]]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_and_formats_are_checked() {
        let mut out = [7.0; 32];
        let short = dequantize(Elem::Q4_0, &[0; 17], &mut out);
        assert_eq!(
            short,
            Err(DequantizeError::Length {
                elem: Elem::Q4_0,
                bytes: 17,
                values: 32
            })
        );
        assert!(dequantize(Elem::Q4_0, &[0; 18], &mut out[..31]).is_err());
        let ints = dequantize(Elem::I32, &[0; 128], &mut out);
        assert_eq!(ints, Err(DequantizeError::Format { elem: Elem::I32 }));
        assert_eq!(out, [7.0; 32]);
        assert_eq!(dequantize(Elem::Q6K, &[], &mut []), Ok(()));
    }

    #[test]
    fn the_scales_of_a_row_stand_behind_its_values() {
        let mut row = [0u8; 384];
        row[..130].fill(0x38); // 1
        row[129] = 0xc0; // -2
        row[256..260].copy_from_slice(&0.5f32.to_le_bytes());
        row[260..264].copy_from_slice(&3.0f32.to_le_bytes());
        let mut out = [0.0; 130];
        dequantize(Elem::F8Block, &row, &mut out).unwrap();
        assert_eq!(
            (out[0], out[127], out[128], out[129]),
            (0.5, 0.5, 3.0, -6.0)
        );
        dequantize(Elem::F8Row, &row, &mut out).unwrap();
        assert_eq!((out[0], out[128], out[129]), (0.5, 0.5, -1.0));
    }
}
