// SPDX-License-Identifier: MIT OR Apache-2.0
//! Formats whose nibbles index a table of values.

use super::{E2M1_DOUBLED, IQ4_LEVELS, f16_at};
use crate::numeric::half::e8m0_halved;

/// 18 bytes: d f16, 16 bytes of nibbles: `d * level`.
pub(super) fn iq4_nl(block: &[u8; 18], out: &mut [f32; 32]) {
    table(f16_at(block, 0), &IQ4_LEVELS, &block[2..], out);
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
        table(scale, &IQ4_LEVELS, &block[8 + 16 * sub..][..16], out);
    }
}

/// 17 bytes: an E8M0 scale (2^(e - 127)), 16 bytes of E2M1 nibbles. The table is doubled, so the scale is halved.
pub(super) fn mxfp4(block: &[u8; 17], out: &mut [f32; 32]) {
    table(e8m0_halved(block[0]), &E2M1_DOUBLED, &block[1..], out);
}

/// Byte j: value j in the low half, value j + 16 in the high half.
fn table(scale: f32, levels: &[i8; 16], nibbles: &[u8], out: &mut [f32; 32]) {
    for (j, byte) in nibbles.iter().enumerate().take(16) {
        out[j] = scale * f32::from(levels[usize::from(byte & 15)]);
        out[j + 16] = scale * f32::from(levels[usize::from(byte >> 4)]);
    }
}
