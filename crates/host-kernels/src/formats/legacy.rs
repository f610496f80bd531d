// SPDX-License-Identifier: MIT OR Apache-2.0
//! Blocks of 32 values with an f16 scale, perhaps an f16 minimum.

use metrale_core::Elem;

use super::{Format, bit, byte, f16_at, halves, nibble, put, put_bits, put_nibbles};

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
        nibble(&packed[48..], row, k) | bit(&packed[16..], row, k) << 4
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
        put_bits(&mut packed[16..], row, high);
        put_nibbles(&mut packed[48..], row, &halves(&disk[6..22]));
    }
    fn unpack(packed: &[u8], row: usize, out: &mut [f32]) {
        let d = f16_at(packed, row);
        for (k, out) in out[..32].iter_mut().enumerate() {
            *out = d * (f32::from(Q5_0::value(packed, row, k)) - 16.0);
        }
    }
}

pub(crate) struct Q5_1;
impl Q5_1 {
    /// The 5-bit value `k` of a row, 0..=31.
    #[inline(always)]
    pub(crate) fn value(packed: &[u8], row: usize, k: usize) -> u8 {
        nibble(&packed[64..], row, k) | bit(&packed[32..], row, k) << 4
    }
}
impl Format for Q5_1 {
    const ELEM: Elem = Elem::Q5_1;
    const ELEMS: usize = 32;
    const DISK: usize = 24;
    const PACKED: usize = 192;
    fn pack(disk: &[u8], row: usize, packed: &mut [u8]) {
        put::<2>(packed, row, disk);
        put::<2>(&mut packed[16..], row, &disk[2..]);
        let high = u32::from_le_bytes([disk[4], disk[5], disk[6], disk[7]]);
        put_bits(&mut packed[32..], row, high);
        put_nibbles(&mut packed[64..], row, &halves(&disk[8..24]));
    }
    fn unpack(packed: &[u8], row: usize, out: &mut [f32]) {
        let (d, m) = (f16_at(packed, row), f16_at(&packed[16..], row));
        for (k, out) in out[..32].iter_mut().enumerate() {
            *out = d * f32::from(Q5_1::value(packed, row, k)) + m;
        }
    }
}
