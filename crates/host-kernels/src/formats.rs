// SPDX-License-Identifier: MIT OR Apache-2.0
//! The weight formats: from a disk block to its place in a packed group, and back to f32 for a gather.
//!
//! Disk blocks are those of the GGUF specification. *Spec* of the values that a gather gives (`embed`): `d * q` (q8_0),
//! `d * (q - 8)` (q4_0), `d * q + m` with two roundings (q4_1), `d * (q - 16)` (q5_0), `(d * sc) * q - dmin * min` with
//! each product exact or rounded once and one rounding of the difference (q4_k), `(d * sc) * (q - 32)` (q6_k).

use metrale_core::Elem;

use crate::lanes::{bf16_to_f32, f16_to_f32};
use crate::layout::GROUP;

/// A format with a packed layout ([`crate::layout`]).
pub(crate) trait Format: Send + Sync + 'static {
    /// The format.
    const ELEM: Elem;
    /// Values of K in a block.
    const ELEMS: usize;
    /// Bytes of a disk block of one row.
    const DISK: usize;
    /// Bytes of a packed block of eight rows.
    const PACKED: usize;
    /// Puts one row's disk block into row `row` of a packed block.
    fn pack(disk: &[u8], row: usize, packed: &mut [u8]);
    /// The values of row `row` of a packed block.
    fn unpack(packed: &[u8], row: usize, out: &mut [f32]);
}

/// Copies `N` bytes of `row` in an array of eight.
#[inline(always)]
fn put<const N: usize>(packed: &mut [u8], row: usize, value: &[u8]) {
    packed[row * N..(row + 1) * N].copy_from_slice(&value[..N]);
}

/// The f16 of `row` in an array of eight.
#[inline(always)]
pub(crate) fn f16_at(packed: &[u8], row: usize) -> f32 {
    f16_to_f32(u16::from_le_bytes([packed[2 * row], packed[2 * row + 1]]))
}

/// Value `k` of the 32 bytes of one row, interleaved pair by pair.
#[inline(always)]
pub(crate) fn byte(packed: &[u8], row: usize, k: usize) -> u8 {
    packed[k / 2 * 16 + row * 2 + k % 2]
}

/// Interleaves 32 4-bit values of one row, each in a byte of its own.
#[inline(always)]
fn put_nibbles(packed: &mut [u8], row: usize, values: &[u8; 32]) {
    for (v, eight) in values.chunks_exact(8).enumerate() {
        let [a, b, c, d, e, f, g, h] = *eight else {
            continue; // chunks of exactly eight
        };
        let word = [a | c << 4, e | g << 4, b | d << 4, f | h << 4];
        packed[v * 32 + row * 4..][..4].copy_from_slice(&word);
    }
}

/// Value `k` of 32 interleaved nibbles.
#[inline(always)]
pub(crate) fn nibble(packed: &[u8], row: usize, k: usize) -> u8 {
    packed[k / 8 * 32 + row * 4 + k % 2 * 2 + k % 8 / 4] >> (k / 2 % 2 * 4) & 15
}

/// The nibbles of 16 disk bytes: values 0..16 are the low ones.
#[inline(always)]
fn halves(bytes: &[u8]) -> [u8; 32] {
    let mut out = [0; 32];
    for (k, byte) in bytes[..16].iter().enumerate() {
        out[k] = byte & 15;
        out[k + 16] = byte >> 4;
    }
    out
}

macro_rules! plain {
    ($name:ident, $elem:expr, $bytes:literal, $read:expr) => {
        pub(crate) struct $name;
        impl Format for $name {
            const ELEM: Elem = $elem;
            const ELEMS: usize = 1;
            const DISK: usize = $bytes;
            const PACKED: usize = $bytes * GROUP;
            #[inline(always)]
            fn pack(disk: &[u8], row: usize, packed: &mut [u8]) {
                put::<$bytes>(packed, row, disk);
            }
            #[inline(always)]
            fn unpack(packed: &[u8], row: usize, out: &mut [f32]) {
                let mut value = [0; $bytes];
                value.copy_from_slice(&packed[row * $bytes..][..$bytes]);
                out[0] = $read(value);
            }
        }
    };
}

#[inline(always)]
fn bf16(bytes: [u8; 2]) -> f32 {
    bf16_to_f32(u16::from_le_bytes(bytes))
}

#[inline(always)]
fn f16(bytes: [u8; 2]) -> f32 {
    f16_to_f32(u16::from_le_bytes(bytes))
}

plain!(F32, Elem::F32, 4, f32::from_le_bytes);
plain!(BF16, Elem::BF16, 2, bf16);
plain!(F16, Elem::F16, 2, f16);

pub(crate) struct Q8_0;
impl Format for Q8_0 {
    const ELEM: Elem = Elem::Q8_0;
    const ELEMS: usize = 32;
    const DISK: usize = 34;
    const PACKED: usize = 272;
    fn pack(disk: &[u8], row: usize, packed: &mut [u8]) {
        put::<2>(packed, row, disk);
        for (p, pair) in disk[2..34].chunks_exact(2).enumerate() {
            packed[16 + p * 16 + row * 2..][..2].copy_from_slice(pair);
        }
    }
    fn unpack(packed: &[u8], row: usize, out: &mut [f32]) {
        let d = f16_at(packed, row);
        for (k, out) in out[..32].iter_mut().enumerate() {
            *out = d * f32::from(byte(&packed[16..], row, k) as i8);
        }
    }
}

pub(crate) struct Q4_0;
impl Format for Q4_0 {
    const ELEM: Elem = Elem::Q4_0;
    const ELEMS: usize = 32;
    const DISK: usize = 18;
    const PACKED: usize = 144;
    fn pack(disk: &[u8], row: usize, packed: &mut [u8]) {
        put::<2>(packed, row, disk);
        put_nibbles(&mut packed[16..], row, &halves(&disk[2..18]));
    }
    fn unpack(packed: &[u8], row: usize, out: &mut [f32]) {
        let d = f16_at(packed, row);
        for (k, out) in out[..32].iter_mut().enumerate() {
            *out = d * (f32::from(nibble(&packed[16..], row, k)) - 8.0);
        }
    }
}

pub(crate) struct Q4_1;
impl Format for Q4_1 {
    const ELEM: Elem = Elem::Q4_1;
    const ELEMS: usize = 32;
    const DISK: usize = 20;
    const PACKED: usize = 160;
    fn pack(disk: &[u8], row: usize, packed: &mut [u8]) {
        put::<2>(packed, row, disk);
        put::<2>(&mut packed[16..], row, &disk[2..]);
        put_nibbles(&mut packed[32..], row, &halves(&disk[4..20]));
    }
    fn unpack(packed: &[u8], row: usize, out: &mut [f32]) {
        let (d, m) = (f16_at(packed, row), f16_at(&packed[16..], row));
        for (k, out) in out[..32].iter_mut().enumerate() {
            *out = d * f32::from(nibble(&packed[32..], row, k)) + m;
        }
    }
}

pub(crate) struct Q5_0;
impl Q5_0 {
    /// The 5-bit value `k` of a row, 0..=31.
    #[inline(always)]
    pub(crate) fn value(packed: &[u8], row: usize, k: usize) -> u8 {
        let high = packed[16 + row * 4 + k % 2 * 2 + k / 16] >> (k / 2 % 8) & 1;
        nibble(&packed[48..], row, k) | high << 4
    }
}
impl Format for Q5_0 {
    const ELEM: Elem = Elem::Q5_0;
    const ELEMS: usize = 32;
    const DISK: usize = 22;
    const PACKED: usize = 176;
    fn pack(disk: &[u8], row: usize, packed: &mut [u8]) {
        put::<2>(packed, row, disk);
        let high = u32::from_le_bytes([disk[2], disk[3], disk[4], disk[5]]);
        for h in 0..2 {
            let bits = even_bits(high >> h).to_le_bytes();
            packed[16 + row * 4 + h * 2..][..2].copy_from_slice(&bits);
        }
        put_nibbles(&mut packed[48..], row, &halves(&disk[6..22]));
    }
    fn unpack(packed: &[u8], row: usize, out: &mut [f32]) {
        let d = f16_at(packed, row);
        for (k, out) in out[..32].iter_mut().enumerate() {
            *out = d * (f32::from(Q5_0::value(packed, row, k)) - 16.0);
        }
    }
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
            let (scale, min) = q4k_scale(scales, s);
            sub[row] = scale;
            sub[8 + row] = min;
            // Two sub-blocks share 32 bytes on disk: the even one the low nibbles, the odd one the high.
            let shift = s % 2 * 4;
            let mut nibbles = [0; 32];
            for (out, q) in nibbles.iter_mut().zip(&q[s / 2 * 32..]) {
                *out = q >> shift & 15;
            }
            put_nibbles(&mut sub[16..], row, &nibbles);
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

/// The even bits of a word, together.
fn even_bits(word: u32) -> u16 {
    let mut bits = word & 0x5555_5555;
    for (shift, mask) in [
        (1, 0x3333_3333),
        (2, 0x0f0f_0f0f),
        (4, 0x00ff_00ff),
        (8, 0xffff),
    ] {
        bits = (bits | bits >> shift) & mask;
    }
    bits as u16
}

/// The 6-bit scale and minimum of sub-block `s` among the 12 bytes of a K-quant's scales.
fn q4k_scale(b: &[u8], s: usize) -> (u8, u8) {
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
        let high = sub[16 + k / 16 * 32 + row * 4 + k % 2 * 2 + k / 8 % 2] >> (k / 2 % 4 * 2) & 3;
        nibble(&sub[80..], row, k) | high << 4
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
            let pair = |k: usize| high[half * 32 + k] >> (2 * c) & 3;
            for (i, eight) in (0..32).step_by(8).enumerate() {
                for h in 0..2 {
                    let byte = (0..4).fold(0, |b, f| b | pair(eight + 2 * f + h) << (2 * f));
                    sub[16 + i / 2 * 32 + row * 4 + h * 2 + i % 2] = byte;
                }
            }
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
