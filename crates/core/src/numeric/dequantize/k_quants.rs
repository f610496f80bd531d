// SPDX-License-Identifier: MIT OR Apache-2.0
//! The K formats: 256 values in sub-blocks of 16 or 32, whose scales are integers under one or two f16.

use super::f16_at;

/// 84 bytes: 16 scales (low half scale, high half minimum), 64 bytes of 2-bit values, d f16, dmin f16.
/// `d * scale * q - dmin * minimum`, sub-blocks of 16.
pub(super) fn q2_k(block: &[u8; 84], out: &mut [f32; 256]) {
    let (d, dmin) = (f16_at(block, 80), f16_at(block, 82));
    for (sub, out) in out.as_chunks_mut::<16>().0.iter_mut().enumerate() {
        let scale = d * f32::from(block[sub] & 15);
        let minimum = dmin * f32::from(block[sub] >> 4);
        let (bytes, shift) = two_bits(&block[16..80], sub);
        for (out, byte) in out.iter_mut().zip(bytes) {
            *out = scale * f32::from(byte >> shift & 3) - minimum;
        }
    }
}

/// 110 bytes: 32 bytes of third bits, 64 bytes of 2-bit values, 12 bytes of 6-bit scales, d f16.
/// `d * (scale - 32) * (q - 4)`, sub-blocks of 16, the third bit being worth 4.
pub(super) fn q3_k(block: &[u8; 110], out: &mut [f32; 256]) {
    let d = f16_at(block, 108);
    let (third, packed) = (&block[..32], &block[96..108]);
    for (sub, out) in out.as_chunks_mut::<16>().0.iter_mut().enumerate() {
        let low = if sub < 8 {
            packed[sub] & 15
        } else {
            packed[sub - 8] >> 4
        };
        let high = packed[8 + sub % 4] >> (2 * (sub / 4)) & 3;
        let scale = d * f32::from((low | high << 4) as i8 - 32);
        let (bytes, shift) = two_bits(&block[32..96], sub);
        let thirds = &third[16 * (sub % 2)..];
        for ((out, byte), third) in out.iter_mut().zip(bytes).zip(thirds) {
            let q = (byte >> shift & 3) | (third >> (sub / 2) & 1) << 2;
            *out = scale * f32::from(q as i8 - 4);
        }
    }
}

/// 144 bytes: d f16, dmin f16, 12 bytes of 6-bit scales and minimums, 128 bytes of nibbles.
/// `d * scale * q - dmin * minimum`, sub-blocks of 32.
pub(super) fn q4_k(block: &[u8; 144], out: &mut [f32; 256]) {
    let (d, dmin) = (f16_at(block, 0), f16_at(block, 2));
    for (sub, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let (scale, minimum) = scale_and_minimum(&block[4..16], sub);
        let (scale, minimum) = (d * f32::from(scale), dmin * f32::from(minimum));
        let nibbles = &block[16 + 32 * (sub / 2)..];
        for (out, byte) in out.iter_mut().zip(nibbles) {
            *out = scale * f32::from(byte >> (4 * (sub % 2)) & 15) - minimum;
        }
    }
}

/// 176 bytes: as Q4_K, with 32 bytes of fifth bits (bit `sub` of byte l) before the nibbles.
pub(super) fn q5_k(block: &[u8; 176], out: &mut [f32; 256]) {
    let (d, dmin) = (f16_at(block, 0), f16_at(block, 2));
    let fifths = &block[16..48];
    for (sub, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let (scale, minimum) = scale_and_minimum(&block[4..16], sub);
        let (scale, minimum) = (d * f32::from(scale), dmin * f32::from(minimum));
        let nibbles = &block[48 + 32 * (sub / 2)..];
        for ((out, byte), fifth) in out.iter_mut().zip(nibbles).zip(fifths) {
            let q = (byte >> (4 * (sub % 2)) & 15) | (fifth >> sub & 1) << 4;
            *out = scale * f32::from(q) - minimum;
        }
    }
}

/// 210 bytes: 128 bytes of low nibbles, 64 bytes of high 2-bit parts, 16 int8 scales, d f16.
/// `d * scale * (q - 32)`, sub-blocks of 16.
pub(super) fn q6_k(block: &[u8; 210], out: &mut [f32; 256]) {
    let d = f16_at(block, 208);
    for (sub, out) in out.as_chunks_mut::<16>().0.iter_mut().enumerate() {
        let scale = d * f32::from(block[192 + sub] as i8);
        // 128 values share 64 bytes of nibbles (first the low halves, then the high) and 32 of high parts.
        let (half, quarter, side) = (sub / 8, sub / 2 % 4, 16 * (sub % 2));
        let nibbles = &block[64 * half + 32 * (quarter % 2) + side..];
        let highs = &block[128 + 32 * half + side..];
        for ((out, low), high) in out.iter_mut().zip(nibbles).zip(highs) {
            let q = (low >> (4 * (quarter / 2)) & 15) | (high >> (2 * quarter) & 3) << 4;
            *out = scale * f32::from(q as i8 - 32);
        }
    }
}

/// Where the 2-bit values of a sub-block of 16 lie in 64 bytes: 128 values share 32 bytes, by ascending bit pairs.
fn two_bits(bytes: &[u8], sub: usize) -> (&[u8], u32) {
    let start = 32 * (sub / 8) + 16 * (sub % 2);
    (&bytes[start..start + 16], 2 * (sub as u32 / 2 % 4))
}

/// Eight 6-bit scales and minimums in 12 bytes: the first four lie whole, the others in nibbles and top bits.
fn scale_and_minimum(packed: &[u8], sub: usize) -> (u8, u8) {
    if sub < 4 {
        return (packed[sub] & 63, packed[sub + 4] & 63);
    }
    let scale = packed[sub + 4] & 15 | packed[sub - 4] >> 6 << 4;
    let minimum = packed[sub + 4] >> 4 | packed[sub] >> 6 << 4;
    (scale, minimum)
}
