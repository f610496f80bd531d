// SPDX-License-Identifier: MIT OR Apache-2.0
//! The packed layout of weights, private to class cpu.
//!
//! Rows (outputs) are taken eight at a time as a *group*; within a group, K runs in *blocks* (the disk format's own: 1
//! value for plain types, 32 or 256 for quantized ones), and a block holds the eight rows interleaved, so that one vector
//! register holds one step of K for eight outputs. Rows past `n` in the last group are zero. No bit of the checkpoint is
//! lost: scales stay in f16, K-quants keep their sub-scales.
//!
//! ```text
//! f32, f16, bf16   per k: 8 values
//! q8_0   272 B     d f16 x8, q 16 x 16 B
//! q4_0   144 B     d f16 x8, q 4 x 32 B
//! q4_1   160 B     d f16 x8, m f16 x8, q 4 x 32 B
//! q5_0   176 B     d f16 x8, high bits 32 B, q 4 x 32 B
//! q5_1   192 B     d f16 x8, m f16 x8, high bits 32 B, q 4 x 32 B
//! iq4_nl 144 B     d f16 x8, q 4 x 32 B
//! mxfp4  136 B     e u8 x8, q 4 x 32 B
//! q2_k   672 B     d f16 x8, dmin f16 x8, then 8 times: scale and min u8 x8 (k 0..16; low half the scale), the same (k
//!                  16..32), q 2 x 32 B
//! q3_k   912 B     d f16 x8, then 8 times: scale i8 x8 (k 0..16), scale i8 x8 (k 16..32), high bits 32 B, q 2 x 32 B
//! q4_k  1184 B     d f16 x8, dmin f16 x8, then 8 times: scale u8 x8, min u8 x8, q 4 x 32 B
//! q5_k  1440 B     d f16 x8, dmin f16 x8, then 8 times: scale u8 x8, min u8 x8, high bits 32 B, q 4 x 32 B
//! q6_k  1680 B     d f16 x8, then 8 times: scale i8 x8 (k 0..16), scale i8 x8 (k 16..32), high bits 2 x 32 B, q 4 x 32 B
//! iq4_xs 1104 B    d f16 x8, then 8 times: scale i8 x8, q 4 x 32 B
//! f8_row, f8_block 1056 B   scale f32 x8, then per k: 8 values (k padded to 128; a row's scale stands in each of its blocks)
//! ```
//!
//! A *pair* is two consecutive k: what one 16-bit multiply-add takes from a row. Of 32 k there are 16 pairs. q8_0 stores
//! them in order, byte `2 * row + h` for value `h` of the pair. Elsewhere a vector of 32 B is 16 little-endian words of 16
//! bits, word `2 * row + h` for value `h` of several pairs of that row: 4-bit vector `v` holds pair `4v + n` in bits
//! `4n..4n+4`; a vector of single high bits holds pair `p` in bit `p`; vector `u` of 2-bit values (q2_k, q3_k, and the high
//! bits of q6_k) holds pair `8u + f` in bits `2f..2f+2`.

use metrale_core::Elem;

/// Rows in a group.
pub const GROUP: usize = 8;

/// K and bytes of one block of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupBlock {
    /// Values of K.
    pub elems: usize,
    /// Bytes for eight rows.
    pub bytes: usize,
}

/// The block of a format; `None` if class cpu has no packed layout for it.
#[must_use]
pub fn group_block(format: Elem) -> Option<GroupBlock> {
    let (elems, bytes) = match format {
        Elem::F32 => (1, 32),
        Elem::F16 | Elem::BF16 => (1, 16),
        Elem::Q8_0 => (32, 272),
        Elem::Q4_0 => (32, 144),
        Elem::Q4_1 => (32, 160),
        Elem::Q5_0 => (32, 176),
        Elem::Q5_1 => (32, 192),
        Elem::Iq4Nl => (32, 144),
        Elem::Mxfp4 => (32, 136),
        Elem::Q2K => (256, 672),
        Elem::Q3K => (256, 912),
        Elem::Q4K => (256, 1184),
        Elem::Q5K => (256, 1440),
        Elem::Q6K => (256, 1680),
        Elem::Iq4Xs => (256, 1104),
        Elem::F8Row | Elem::F8Block => (128, 1056),
        _ => return None,
    };
    Some(GroupBlock { elems, bytes })
}

/// Bytes of a packed tensor of `n` rows and `k` columns: `ceil(n / 8) * (k / elems) * bytes`. `None` for a format without
/// a layout, for `k` that is no whole number of blocks (fp8 fills its last one up), and for sizes that overflow.
#[must_use]
pub fn packed_bytes(format: Elem, n: u64, k: u64) -> Option<u64> {
    let block = group_block(format)?;
    let fills_up = matches!(format, Elem::F8Row | Elem::F8Block);
    if !fills_up && !k.is_multiple_of(block.elems as u64) {
        return None;
    }
    k.div_ceil(block.elems as u64)
        .checked_mul(block.bytes as u64)?
        .checked_mul(n.div_ceil(GROUP as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        assert_eq!(packed_bytes(Elem::Q4_1, 576, 576), Some(72 * 18 * 160));
        assert_eq!(packed_bytes(Elem::BF16, 9, 5), Some(2 * 5 * 16));
        assert_eq!(packed_bytes(Elem::Q6K, 8, 256), Some(1680));
        assert_eq!(packed_bytes(Elem::Q6K, 8, 128), None);
        assert_eq!(packed_bytes(Elem::A16, 8, 32), None);
        assert_eq!(packed_bytes(Elem::F8Row, 9, 129), Some(2 * 2 * 1056));
        assert_eq!(packed_bytes(Elem::F32, u64::MAX, 1 << 60), None);
    }
}
