// SPDX-License-Identifier: MIT OR Apache-2.0
//! The first ggml formats: 32 values, an f16 scale `d`, perhaps an f16 minimum `m`.
//!
//! Nibbles: byte j holds value j in its low half and value j + 16 in its high half. The fifth bits of Q5 are a u32.

use super::f16_at;

/// d f16, 16 bytes of nibbles: `d * (q - 8)`.
pub(super) fn q4_0(block: &[u8; 18], out: &mut [f32; 32]) {
    let d = f16_at(block, 0);
    for (j, byte) in block[2..].iter().enumerate() {
        out[j] = d * f32::from((byte & 15) as i8 - 8);
        out[j + 16] = d * f32::from((byte >> 4) as i8 - 8);
    }
}

/// d f16, m f16, 16 bytes of nibbles: `d * q + m`.
pub(super) fn q4_1(block: &[u8; 20], out: &mut [f32; 32]) {
    let (d, m) = (f16_at(block, 0), f16_at(block, 2));
    for (j, byte) in block[4..].iter().enumerate() {
        out[j] = d * f32::from(byte & 15) + m;
        out[j + 16] = d * f32::from(byte >> 4) + m;
    }
}

/// d f16, fifth bits u32, 16 bytes of nibbles: `d * (q - 16)`.
pub(super) fn q5_0(block: &[u8; 22], out: &mut [f32; 32]) {
    let d = f16_at(block, 0);
    let fifth = u32::from_le_bytes([block[2], block[3], block[4], block[5]]);
    for (j, byte) in block[6..].iter().enumerate() {
        out[j] = d * f32::from(five(byte & 15, fifth, j) as i8 - 16);
        out[j + 16] = d * f32::from(five(byte >> 4, fifth, j + 16) as i8 - 16);
    }
}

/// d f16, m f16, fifth bits u32, 16 bytes of nibbles: `d * q + m`.
pub(super) fn q5_1(block: &[u8; 24], out: &mut [f32; 32]) {
    let (d, m) = (f16_at(block, 0), f16_at(block, 2));
    let fifth = u32::from_le_bytes([block[4], block[5], block[6], block[7]]);
    for (j, byte) in block[8..].iter().enumerate() {
        out[j] = d * f32::from(five(byte & 15, fifth, j)) + m;
        out[j + 16] = d * f32::from(five(byte >> 4, fifth, j + 16)) + m;
    }
}

/// d f16, 32 int8: `d * q`.
pub(super) fn q8_0(block: &[u8; 34], out: &mut [f32; 32]) {
    let d = f16_at(block, 0);
    for (out, byte) in out.iter_mut().zip(&block[2..]) {
        *out = d * f32::from(*byte as i8);
    }
}

fn five(low: u8, fifth: u32, j: usize) -> u8 {
    low | ((fifth >> j & 1) as u8) << 4
}
