// SPDX-License-Identifier: MIT OR Apache-2.0
//! `linear` for quantized weights with A16 activations. The spec stands in [`super`].

use super::{Work, point, run_with};
use crate::formats::{self, Format, Q4K, Q5_0, Q6K, byte, f16_at, nibble};
use crate::lanes::{F8, Lanes};
use crate::layout::GROUP;
use crate::point::HostPoint;
use crate::quantize::{A16_BLOCK, A16Block};

/// What the chain takes from one sub-block of 32 k of a packed block.
pub(super) trait Quantized: Format {
    /// Sub-blocks of 32 in a block.
    const SUBS: usize = Self::ELEMS / A16_BLOCK;
    /// Whether the second fma exists.
    const OFFSET: bool;
    /// The exact integer of each of the eight outputs.
    fn dot(packed: &[u8], sub: usize, x: &[i16; A16_BLOCK]) -> [i32; GROUP];
    /// `d` and `m` of each output.
    fn scales(packed: &[u8], sub: usize) -> (F8, F8);
}

/// Integer dot product of each output, given its values as integers.
#[inline(always)]
fn dots(x: &[i16; A16_BLOCK], value: impl Fn(usize, usize) -> i32) -> [i32; GROUP] {
    let mut out = [0; GROUP];
    for (row, out) in out.iter_mut().enumerate() {
        for (k, x) in x.iter().enumerate() {
            *out += value(row, k) * i32::from(*x);
        }
    }
    out
}

/// An f16 of each output.
#[inline(always)]
fn f16s(packed: &[u8]) -> F8 {
    let mut out = [0.0; 8];
    for (row, out) in out.iter_mut().enumerate() {
        *out = f16_at(packed, row);
    }
    F8(out)
}

impl Quantized for formats::Q8_0 {
    const OFFSET: bool = false;
    fn dot(packed: &[u8], _: usize, x: &[i16; A16_BLOCK]) -> [i32; GROUP] {
        dots(x, |row, k| i32::from(byte(&packed[16..], row, k) as i8))
    }
    fn scales(packed: &[u8], _: usize) -> (F8, F8) {
        (f16s(packed), F8::ZERO)
    }
}

impl Quantized for formats::Q4_0 {
    const OFFSET: bool = true;
    fn dot(packed: &[u8], _: usize, x: &[i16; A16_BLOCK]) -> [i32; GROUP] {
        dots(x, |row, k| i32::from(nibble(&packed[16..], row, k)))
    }
    fn scales(packed: &[u8], _: usize) -> (F8, F8) {
        let d = f16s(packed);
        (d, d.mul(F8::splat(-8.0)))
    }
}

impl Quantized for formats::Q4_1 {
    const OFFSET: bool = true;
    fn dot(packed: &[u8], _: usize, x: &[i16; A16_BLOCK]) -> [i32; GROUP] {
        dots(x, |row, k| i32::from(nibble(&packed[32..], row, k)))
    }
    fn scales(packed: &[u8], _: usize) -> (F8, F8) {
        (f16s(packed), f16s(&packed[16..]))
    }
}

impl Quantized for Q5_0 {
    const OFFSET: bool = true;
    fn dot(packed: &[u8], _: usize, x: &[i16; A16_BLOCK]) -> [i32; GROUP] {
        dots(x, |row, k| i32::from(Q5_0::value(packed, row, k)))
    }
    fn scales(packed: &[u8], _: usize) -> (F8, F8) {
        let d = f16s(packed);
        (d, d.mul(F8::splat(-16.0)))
    }
}

impl Quantized for Q4K {
    const OFFSET: bool = true;
    fn dot(packed: &[u8], sub: usize, x: &[i16; A16_BLOCK]) -> [i32; GROUP] {
        let q = &packed[Q4K::HEAD + sub * Q4K::SUB + 16..];
        dots(x, |row, k| i32::from(nibble(q, row, k)))
    }
    fn scales(packed: &[u8], sub: usize) -> (F8, F8) {
        let (mut d, mut m) = (f16s(packed), f16s(&packed[16..]));
        let head = &packed[Q4K::HEAD + sub * Q4K::SUB..];
        for row in 0..GROUP {
            d.0[row] *= f32::from(head[row]);
            m.0[row] = -(m.0[row] * f32::from(head[8 + row]));
        }
        (d, m)
    }
}

impl Quantized for Q6K {
    const OFFSET: bool = false;
    fn dot(packed: &[u8], sub: usize, x: &[i16; A16_BLOCK]) -> [i32; GROUP] {
        let sub = &packed[Q6K::HEAD + sub * Q6K::SUB..];
        dots(x, |row, k| {
            let scale = i32::from(sub[k / 16 * 8 + row] as i8);
            scale * (i32::from(Q6K::value(sub, row, k)) - 32)
        })
    }
    fn scales(packed: &[u8], _: usize) -> (F8, F8) {
        (f16s(packed), F8::ZERO)
    }
}

/// The portable path: output by output as the spec says it.
fn portable<F: Quantized>(work: &mut Work<'_, A16Block>) {
    for row in work.rows.clone() {
        for group in 0..work.groups {
            let mut acc = F8::ZERO;
            let blocks = work.w(group).chunks_exact(F::PACKED);
            for (packed, x) in blocks.zip(work.x(row).chunks_exact(F::SUBS)) {
                for (sub, x) in x.iter().enumerate() {
                    let dot = F::dot(packed, sub, &x.q);
                    let (d, m) = F::scales(packed, sub);
                    for i in 0..GROUP {
                        let scale = d.0[i] * x.scale;
                        acc.0[i] = (dot[i] as f32).mul_add(scale, acc.0[i]);
                        if F::OFFSET {
                            acc.0[i] = m.0[i].mul_add(x.sum, acc.0[i]);
                        }
                    }
                }
            }
            work.store(row, group, acc);
        }
    }
}

macro_rules! a16_point {
    ($id:literal, $format:ty) => {
        point::<$format>($id, true, |t, _, _| {
            let (isa, k) = (t.args().isa, t.args().u32(4));
            run_with::<$format, A16Block>(t, k / A16_BLOCK, |work| {
                #[cfg(target_arch = "x86_64")]
                if isa.has_avx2() {
                    return super::avx2::tile::<$format>(work);
                }
                let _ = isa;
                portable::<$format>(work);
            })
        })
    };
}

pub(crate) static POINTS: [HostPoint; 6] = [
    a16_point!("linear/q8_0", formats::Q8_0),
    a16_point!("linear/q4_0", formats::Q4_0),
    a16_point!("linear/q4_1", formats::Q4_1),
    a16_point!("linear/q5_0", formats::Q5_0),
    a16_point!("linear/q4_k", Q4K),
    a16_point!("linear/q6_k", Q6K),
];
