// SPDX-License-Identifier: MIT OR Apache-2.0
//! Formats whose nibbles index a table of levels.

use metrale_core::Elem;
use metrale_core::numeric::dequantize::{E2M1_DOUBLED, IQ4_LEVELS};
use metrale_core::numeric::half::e8m0_halved;

use super::{Format, f16_at, halves, nibble, put, put_nibbles};

/// The level that value `k` of 32 interleaved nibbles stands for.
#[inline(always)]
pub(crate) fn level(levels: &[i8; 16], packed: &[u8], row: usize, k: usize) -> i8 {
    levels[usize::from(nibble(packed, row, k))]
}

pub(crate) struct Iq4Nl;
impl Format for Iq4Nl {
    const ELEM: Elem = Elem::Iq4Nl;
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
            *out = d * f32::from(level(&IQ4_LEVELS, &packed[16..], row, k));
        }
    }
}

pub(crate) struct Iq4Xs;
impl Iq4Xs {
    /// Bytes of a sub-block of 32.
    pub(crate) const SUB: usize = 136;
    /// Where sub-blocks begin.
    pub(crate) const HEAD: usize = 16;
}
impl Format for Iq4Xs {
    const ELEM: Elem = Elem::Iq4Xs;
    const ELEMS: usize = 256;
    const DISK: usize = 136;
    const PACKED: usize = 1104;
    fn pack(disk: &[u8], row: usize, packed: &mut [u8]) {
        put::<2>(packed, row, disk);
        let highs = u16::from_le_bytes([disk[2], disk[3]]);
        let subs = packed[Iq4Xs::HEAD..].chunks_exact_mut(Iq4Xs::SUB);
        for (s, sub) in subs.enumerate() {
            let low = disk[4 + s / 2] >> (s % 2 * 4) & 15;
            let high = (highs >> (2 * s) & 3) as u8;
            sub[row] = (low | high << 4).wrapping_sub(32);
            put_nibbles(&mut sub[8..], row, &halves(&disk[8 + 16 * s..]));
        }
    }
    fn unpack(packed: &[u8], row: usize, out: &mut [f32]) {
        let d = f16_at(packed, row);
        let subs = packed[Iq4Xs::HEAD..].chunks_exact(Iq4Xs::SUB);
        for (sub, out) in subs.zip(out.chunks_exact_mut(32)) {
            let scale = d * f32::from(sub[row] as i8);
            for (k, out) in out.iter_mut().enumerate() {
                *out = scale * f32::from(level(&IQ4_LEVELS, &sub[8..], row, k));
            }
        }
    }
}

pub(crate) struct Mxfp4;
impl Format for Mxfp4 {
    const ELEM: Elem = Elem::Mxfp4;
    const ELEMS: usize = 32;
    const DISK: usize = 17;
    const PACKED: usize = 136;
    fn pack(disk: &[u8], row: usize, packed: &mut [u8]) {
        packed[row] = disk[0];
        put_nibbles(&mut packed[8..], row, &halves(&disk[1..17]));
    }
    fn unpack(packed: &[u8], row: usize, out: &mut [f32]) {
        let d = e8m0_halved(packed[row]);
        for (k, out) in out[..32].iter_mut().enumerate() {
            *out = d * f32::from(level(&E2M1_DOUBLED, &packed[8..], row, k));
        }
    }
}
