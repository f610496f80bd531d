// SPDX-License-Identifier: MIT OR Apache-2.0
//! Blocks of 256 values, whose sub-blocks of 16 or 32 have integer scales under one or two f16.

use metrale_core::Elem;

use super::{Format, bit, f16_at, nibble, pair, put, put_bits, put_nibbles, put_pairs};

pub(crate) struct Q2K;
impl Q2K {
    /// Bytes of a sub-block of 32.
    pub(crate) const SUB: usize = 80;
    /// Where sub-blocks begin.
    pub(crate) const HEAD: usize = 32;
}
impl Format for Q2K {
    const ELEM: Elem = Elem::Q2K;
    const ELEMS: usize = 256;
    const DISK: usize = 84;
    const PACKED: usize = 672;
    fn pack(disk: &[u8], row: usize, packed: &mut [u8]) {
        put::<2>(packed, row, &disk[80..]);
        put::<2>(&mut packed[16..], row, &disk[82..]);
        for (s, sub) in packed[Q2K::HEAD..].chunks_exact_mut(Q2K::SUB).enumerate() {
            sub[row] = disk[2 * s];
            sub[8 + row] = disk[2 * s + 1];
            put_pairs(&mut sub[16..], row, |k| two_bits(&disk[16..80], s, k));
        }
    }
    fn unpack(packed: &[u8], row: usize, out: &mut [f32]) {
        let (d, dmin) = (f16_at(packed, row), f16_at(&packed[16..], row));
        let subs = packed[Q2K::HEAD..].chunks_exact(Q2K::SUB);
        for (sub, out) in subs.zip(out.chunks_exact_mut(32)) {
            for (k, out) in out.iter_mut().enumerate() {
                let both = sub[k / 16 * 8 + row];
                let (scale, min) = (d * f32::from(both & 15), dmin * f32::from(both >> 4));
                *out = scale * f32::from(pair(&sub[16..], row, k)) - min;
            }
        }
    }
}

pub(crate) struct Q3K;
impl Q3K {
    /// Bytes of a sub-block of 32.
    pub(crate) const SUB: usize = 112;
    /// Where sub-blocks begin.
    pub(crate) const HEAD: usize = 16;

    /// The 3-bit value `k` of a row of a sub-block, 0..=7.
    #[inline(always)]
    pub(crate) fn value(sub: &[u8], row: usize, k: usize) -> u8 {
        pair(&sub[48..], row, k) | bit(&sub[16..], row, k) << 2
    }
}
impl Format for Q3K {
    const ELEM: Elem = Elem::Q3K;
    const ELEMS: usize = 256;
    const DISK: usize = 110;
    const PACKED: usize = 912;
    fn pack(disk: &[u8], row: usize, packed: &mut [u8]) {
        let (thirds, q, scales) = (&disk[..32], &disk[32..96], &disk[96..108]);
        put::<2>(packed, row, &disk[108..]);
        for (s, sub) in packed[Q3K::HEAD..].chunks_exact_mut(Q3K::SUB).enumerate() {
            for h in 0..2 {
                // Scale `i` of 16: the low nibbles of eight bytes, then the high ones; its upper bits in the last four.
                let i = 2 * s + h;
                let low = scales[i % 8] >> (i / 8 * 4) & 15;
                let high = scales[8 + i % 4] >> (i / 4 * 2) & 3;
                sub[8 * h + row] = (low | high << 4).wrapping_sub(32);
            }
            let third = (0..32).fold(0, |b, k| b | u32::from(thirds[k] >> s & 1) << k);
            put_bits(&mut sub[16..], row, third);
            put_pairs(&mut sub[48..], row, |k| two_bits(q, s, k));
        }
    }
    fn unpack(packed: &[u8], row: usize, out: &mut [f32]) {
        let d = f16_at(packed, row);
        let subs = packed[Q3K::HEAD..].chunks_exact(Q3K::SUB);
        for (sub, out) in subs.zip(out.chunks_exact_mut(32)) {
            for (k, out) in out.iter_mut().enumerate() {
                let scale = d * f32::from(sub[k / 16 * 8 + row] as i8);
                *out = scale * (f32::from(Q3K::value(sub, row, k)) - 4.0);
            }
        }
    }
}

/// Value `k` of sub-block `s` of 32 among the 64 bytes of 2-bit values: 128 values share 32 bytes, by ascending bit pairs.
fn two_bits(q: &[u8], s: usize, k: usize) -> u8 {
    q[s / 4 * 32 + k] >> (s % 4 * 2) & 3
}

pub(crate) struct Q4K;
impl Q4K {
    /// Bytes of a sub-block of 32.
    pub(crate) const SUB: usize = 144;
    /// Where sub-blocks begin.
    pub(crate) const HEAD: usize = 32;
}
impl Format for Q4K {
    const ELEM: Elem = Elem::Q4K;
    const ELEMS: usize = 256;
    const DISK: usize = 144;
    const PACKED: usize = 1184;
    fn pack(disk: &[u8], row: usize, packed: &mut [u8]) {
        put::<2>(packed, row, disk);
        put::<2>(&mut packed[16..], row, &disk[2..]);
        let (scales, q) = (&disk[4..16], &disk[16..144]);
        for (s, sub) in packed[Q4K::HEAD..].chunks_exact_mut(Q4K::SUB).enumerate() {
            let (scale, min) = scale_and_minimum(scales, s);
            sub[row] = scale;
            sub[8 + row] = min;
            put_nibbles(&mut sub[16..], row, &shared_nibbles(q, s));
        }
    }
    fn unpack(packed: &[u8], row: usize, out: &mut [f32]) {
        let (d, dmin) = (f16_at(packed, row), f16_at(&packed[16..], row));
        let subs = packed[Q4K::HEAD..].chunks_exact(Q4K::SUB);
        for (sub, out) in subs.zip(out.chunks_exact_mut(32)) {
            let (scale, min) = (d * f32::from(sub[row]), dmin * f32::from(sub[8 + row]));
            for (k, out) in out.iter_mut().enumerate() {
                *out = scale * f32::from(nibble(&sub[16..], row, k)) - min;
            }
        }
    }
}

pub(crate) struct Q5K;
impl Q5K {
    /// Bytes of a sub-block of 32.
    pub(crate) const SUB: usize = 176;
    /// Where sub-blocks begin.
    pub(crate) const HEAD: usize = 32;

    /// The 5-bit value `k` of a row of a sub-block, 0..=31.
    #[inline(always)]
    pub(crate) fn value(sub: &[u8], row: usize, k: usize) -> u8 {
        nibble(&sub[48..], row, k) | bit(&sub[16..], row, k) << 4
    }
}
impl Format for Q5K {
    const ELEM: Elem = Elem::Q5K;
    const ELEMS: usize = 256;
    const DISK: usize = 176;
    const PACKED: usize = 1440;
    fn pack(disk: &[u8], row: usize, packed: &mut [u8]) {
        put::<2>(packed, row, disk);
        put::<2>(&mut packed[16..], row, &disk[2..]);
        let (scales, fifths, q) = (&disk[4..16], &disk[16..48], &disk[48..176]);
        for (s, sub) in packed[Q5K::HEAD..].chunks_exact_mut(Q5K::SUB).enumerate() {
            let (scale, min) = scale_and_minimum(scales, s);
            sub[row] = scale;
            sub[8 + row] = min;
            let fifth = (0..32).fold(0, |b, k| b | u32::from(fifths[k] >> s & 1) << k);
            put_bits(&mut sub[16..], row, fifth);
            put_nibbles(&mut sub[48..], row, &shared_nibbles(q, s));
        }
    }
    fn unpack(packed: &[u8], row: usize, out: &mut [f32]) {
        let (d, dmin) = (f16_at(packed, row), f16_at(&packed[16..], row));
        let subs = packed[Q5K::HEAD..].chunks_exact(Q5K::SUB);
        for (sub, out) in subs.zip(out.chunks_exact_mut(32)) {
            let (scale, min) = (d * f32::from(sub[row]), dmin * f32::from(sub[8 + row]));
            for (k, out) in out.iter_mut().enumerate() {
                *out = scale * f32::from(Q5K::value(sub, row, k)) - min;
            }
        }
    }
}

/// The nibbles of sub-block `s` of 32: two share 32 bytes, the even one the low halves, the odd one the high.
fn shared_nibbles(q: &[u8], s: usize) -> [u8; 32] {
    let mut out = [0; 32];
    for (out, q) in out.iter_mut().zip(&q[s / 2 * 32..]) {
        *out = q >> (s % 2 * 4) & 15;
    }
    out
}

/// The 6-bit scale and minimum of sub-block `s` among the 12 bytes of a K-quant's scales.
fn scale_and_minimum(b: &[u8], s: usize) -> (u8, u8) {
    if s < 4 {
        (b[s] & 63, b[s + 4] & 63)
    } else {
        (
            (b[s + 4] & 15) | (b[s - 4] >> 6) << 4,
            (b[s + 4] >> 4) | (b[s] >> 6) << 4,
        )
    }
}

pub(crate) struct Q6K;
impl Q6K {
    /// Bytes of a sub-block of 32.
    pub(crate) const SUB: usize = 208;
    /// Where sub-blocks begin.
    pub(crate) const HEAD: usize = 16;

    /// The 6-bit value `k` of a row of a sub-block, 0..=63.
    #[inline(always)]
    pub(crate) fn value(sub: &[u8], row: usize, k: usize) -> u8 {
        nibble(&sub[80..], row, k) | pair(&sub[16..], row, k) << 4
    }
}
impl Format for Q6K {
    const ELEM: Elem = Elem::Q6K;
    const ELEMS: usize = 256;
    const DISK: usize = 210;
    const PACKED: usize = 1680;
    fn pack(disk: &[u8], row: usize, packed: &mut [u8]) {
        let (low, high, scales) = (&disk[..128], &disk[128..192], &disk[192..208]);
        put::<2>(packed, row, &disk[208..210]);
        for (s, sub) in packed[Q6K::HEAD..].chunks_exact_mut(Q6K::SUB).enumerate() {
            sub[row] = scales[2 * s];
            sub[8 + row] = scales[2 * s + 1];
            // 128 values share 64 low bytes and 32 high bytes; sub-block `c` of the four takes its nibble and bit pair.
            let (half, c) = (s / 4, s % 4);
            let mut nibbles = [0; 32];
            for (out, low) in nibbles.iter_mut().zip(&low[half * 64 + c % 2 * 32..]) {
                *out = low >> (c / 2 * 4) & 15;
            }
            put_nibbles(&mut sub[80..], row, &nibbles);
            put_pairs(&mut sub[16..], row, |k| high[half * 32 + k] >> (2 * c) & 3);
        }
    }
    fn unpack(packed: &[u8], row: usize, out: &mut [f32]) {
        let d = f16_at(packed, row);
        let subs = packed[Q6K::HEAD..].chunks_exact(Q6K::SUB);
        for (sub, out) in subs.zip(out.chunks_exact_mut(32)) {
            for (k, out) in out.iter_mut().enumerate() {
                let scale = d * f32::from(sub[k / 16 * 8 + row] as i8);
                *out = scale * (f32::from(Q6K::value(sub, row, k)) - 32.0);
            }
        }
    }
}
