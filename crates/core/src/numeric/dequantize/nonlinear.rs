// SPDX-License-Identifier: MIT OR Apache-2.0
//! Formats whose nibbles index a table of values.

use super::f16_at;

/// The levels of IQ4, from the ggml format.
const IQ4: [i8; 16] = [
    -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113,
];

/// Twice the values of FP4 E2M1 (OCP Microscaling Formats 1.0): 0, 0.5, 1, 1.5, 2, 3, 4, 6 and their negatives.
const E2M1_DOUBLED: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// 18 bytes: d f16, 16 bytes of nibbles: `d * level`.
pub(super) fn iq4_nl(block: &[u8; 18], out: &mut [f32; 32]) {
    table(f16_at(block, 0), &IQ4, &block[2..], out);
}

/// 136 bytes: d f16, high scale bits u16, low scale nibbles in 4 bytes, 128 bytes of nibbles.
/// `d * (scale - 32) * level`, sub-blocks of 32.
pub(super) fn iq4_xs(block: &[u8; 136], out: &mut [f32; 256]) {
    let d = f16_at(block, 0);
    let highs = u16::from_le_bytes([block[2], block[3]]);
    for (sub, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let low = block[4 + sub / 2] >> (4 * (sub % 2)) & 15;
        let high = (highs >> (2 * sub) & 3) as u8;
        let scale = d * f32::from((low | high << 4) as i8 - 32);
        table(scale, &IQ4, &block[8 + 16 * sub..][..16], out);
    }
}

/// 17 bytes: an E8M0 scale (2^(e - 127)), 16 bytes of E2M1 nibbles. The table is doubled, so the scale is halved.
pub(super) fn mxfp4(block: &[u8; 17], out: &mut [f32; 32]) {
    table(half_e8m0(block[0]), &E2M1_DOUBLED, &block[1..], out);
}

/// Byte j: value j in the low half, value j + 16 in the high half.
fn table(scale: f32, levels: &[i8; 16], nibbles: &[u8], out: &mut [f32; 32]) {
    for (j, byte) in nibbles.iter().enumerate().take(16) {
        out[j] = scale * f32::from(levels[usize::from(byte & 15)]);
        out[j + 16] = scale * f32::from(levels[usize::from(byte >> 4)]);
    }
}

/// 2^(e - 128); the two smallest are subnormal.
fn half_e8m0(e: u8) -> f32 {
    match e {
        0 | 1 => f32::from_bits(0x0020_0000 << e),
        _ => f32::from_bits((u32::from(e) - 1) << 23),
    }
}
