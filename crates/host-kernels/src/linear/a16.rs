// SPDX-License-Identifier: MIT OR Apache-2.0
//! `linear` for quantized weights with A16 activations. The spec stands in [`super`].

use metrale_core::numeric::dequantize::{E2M1_DOUBLED, IQ4_LEVELS};
use metrale_core::numeric::half::e8m0_halved;

use super::{Work, experts, point, run_with};
use crate::formats::nonlinear::level;
use crate::formats::{
    self, Format, Iq4Nl, Iq4Xs, Mxfp4, Q2K, Q3K, Q4K, Q5_0, Q5_1, Q5K, Q6K, byte, f16_at, nibble,
    pair,
};
use crate::lanes::{F8, Lanes};
use crate::layout::GROUP;
use crate::point::HostPoint;
use crate::quantize::{A16_BLOCK, A16Block};

/// The second fma of a block.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Offset {
    /// There is none.
    None,
    /// `fma(m, sum, acc)`.
    Sum,
    /// `fma(f32(mins), m * s, acc)` with an integer of its own.
    Integer,
}

/// What the chain takes from one sub-block of 32 k of a packed block.
pub(super) trait Quantized: Format {
    /// Sub-blocks of 32 in a block.
    const SUBS: usize = Self::ELEMS / A16_BLOCK;
    /// The second fma.
    const OFFSET: Offset;
    /// The exact integer of each of the eight outputs.
    fn dot(packed: &[u8], sub: usize, x: &[i16; A16_BLOCK]) -> [i32; GROUP];
    /// `d` and `m` of each output.
    fn scales(packed: &[u8], sub: usize) -> (F8, F8);
    /// The exact integer of [`Offset::Integer`].
    fn mins(_packed: &[u8], _sub: usize, _x: &[i16; A16_BLOCK]) -> [i32; GROUP] {
        [0; GROUP]
    }
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
    const OFFSET: Offset = Offset::None;
    fn dot(packed: &[u8], _: usize, x: &[i16; A16_BLOCK]) -> [i32; GROUP] {
        dots(x, |row, k| i32::from(byte(&packed[16..], row, k) as i8))
    }
    fn scales(packed: &[u8], _: usize) -> (F8, F8) {
        (f16s(packed), F8::ZERO)
    }
}

impl Quantized for formats::Q4_0 {
    const OFFSET: Offset = Offset::Sum;
    fn dot(packed: &[u8], _: usize, x: &[i16; A16_BLOCK]) -> [i32; GROUP] {
        dots(x, |row, k| i32::from(nibble(&packed[16..], row, k)))
    }
    fn scales(packed: &[u8], _: usize) -> (F8, F8) {
        let d = f16s(packed);
        (d, d.mul(F8::splat(-8.0)))
    }
}

impl Quantized for formats::Q4_1 {
    const OFFSET: Offset = Offset::Sum;
    fn dot(packed: &[u8], _: usize, x: &[i16; A16_BLOCK]) -> [i32; GROUP] {
        dots(x, |row, k| i32::from(nibble(&packed[32..], row, k)))
    }
    fn scales(packed: &[u8], _: usize) -> (F8, F8) {
        (f16s(packed), f16s(&packed[16..]))
    }
}

impl Quantized for Q5_0 {
    const OFFSET: Offset = Offset::Sum;
    fn dot(packed: &[u8], _: usize, x: &[i16; A16_BLOCK]) -> [i32; GROUP] {
        dots(x, |row, k| i32::from(Q5_0::value(packed, row, k)))
    }
    fn scales(packed: &[u8], _: usize) -> (F8, F8) {
        let d = f16s(packed);
        (d, d.mul(F8::splat(-16.0)))
    }
}

impl Quantized for Q5_1 {
    const OFFSET: Offset = Offset::Sum;
    fn dot(packed: &[u8], _: usize, x: &[i16; A16_BLOCK]) -> [i32; GROUP] {
        dots(x, |row, k| i32::from(Q5_1::value(packed, row, k)))
    }
    fn scales(packed: &[u8], _: usize) -> (F8, F8) {
        (f16s(packed), f16s(&packed[16..]))
    }
}

impl Quantized for Iq4Nl {
    const OFFSET: Offset = Offset::None;
    fn dot(packed: &[u8], _: usize, x: &[i16; A16_BLOCK]) -> [i32; GROUP] {
        dots(x, |row, k| {
            i32::from(level(&IQ4_LEVELS, &packed[16..], row, k))
        })
    }
    fn scales(packed: &[u8], _: usize) -> (F8, F8) {
        (f16s(packed), F8::ZERO)
    }
}

impl Quantized for Iq4Xs {
    const OFFSET: Offset = Offset::None;
    fn dot(packed: &[u8], sub: usize, x: &[i16; A16_BLOCK]) -> [i32; GROUP] {
        let q = &packed[Iq4Xs::HEAD + sub * Iq4Xs::SUB + 8..];
        dots(x, |row, k| i32::from(level(&IQ4_LEVELS, q, row, k)))
    }
    fn scales(packed: &[u8], sub: usize) -> (F8, F8) {
        let mut d = f16s(packed);
        let head = &packed[Iq4Xs::HEAD + sub * Iq4Xs::SUB..];
        for row in 0..GROUP {
            d.0[row] *= f32::from(head[row] as i8);
        }
        (d, F8::ZERO)
    }
}

impl Quantized for Mxfp4 {
    const OFFSET: Offset = Offset::None;
    fn dot(packed: &[u8], _: usize, x: &[i16; A16_BLOCK]) -> [i32; GROUP] {
        dots(x, |row, k| {
            i32::from(level(&E2M1_DOUBLED, &packed[8..], row, k))
        })
    }
    fn scales(packed: &[u8], _: usize) -> (F8, F8) {
        let mut d = F8::ZERO;
        for row in 0..GROUP {
            d.0[row] = e8m0_halved(packed[row]);
        }
        (d, F8::ZERO)
    }
}

impl Quantized for Q2K {
    const OFFSET: Offset = Offset::Integer;
    fn dot(packed: &[u8], sub: usize, x: &[i16; A16_BLOCK]) -> [i32; GROUP] {
        let sub = &packed[Q2K::HEAD + sub * Q2K::SUB..];
        dots(x, |row, k| {
            i32::from(sub[k / 16 * 8 + row] & 15) * i32::from(pair(&sub[16..], row, k))
        })
    }
    fn scales(packed: &[u8], _: usize) -> (F8, F8) {
        let mut m = f16s(&packed[16..]);
        for row in 0..GROUP {
            m.0[row] = -m.0[row];
        }
        (f16s(packed), m)
    }
    fn mins(packed: &[u8], sub: usize, x: &[i16; A16_BLOCK]) -> [i32; GROUP] {
        let sub = &packed[Q2K::HEAD + sub * Q2K::SUB..];
        dots(x, |row, k| i32::from(sub[k / 16 * 8 + row] >> 4))
    }
}

impl Quantized for Q3K {
    const OFFSET: Offset = Offset::None;
    fn dot(packed: &[u8], sub: usize, x: &[i16; A16_BLOCK]) -> [i32; GROUP] {
        let sub = &packed[Q3K::HEAD + sub * Q3K::SUB..];
        dots(x, |row, k| {
            let scale = i32::from(sub[k / 16 * 8 + row] as i8);
            scale * (i32::from(Q3K::value(sub, row, k)) - 4)
        })
    }
    fn scales(packed: &[u8], _: usize) -> (F8, F8) {
        (f16s(packed), F8::ZERO)
    }
}

/// `d * sc` and `-(dmin * min)`, the two integers in the first 16 bytes of a sub-block.
#[inline(always)]
fn scale_and_minimum(packed: &[u8], head: &[u8]) -> (F8, F8) {
    let (mut d, mut m) = (f16s(packed), f16s(&packed[16..]));
    for row in 0..GROUP {
        d.0[row] *= f32::from(head[row]);
        m.0[row] = -(m.0[row] * f32::from(head[8 + row]));
    }
    (d, m)
}

impl Quantized for Q5K {
    const OFFSET: Offset = Offset::Sum;
    fn dot(packed: &[u8], sub: usize, x: &[i16; A16_BLOCK]) -> [i32; GROUP] {
        let sub = &packed[Q5K::HEAD + sub * Q5K::SUB..];
        dots(x, |row, k| i32::from(Q5K::value(sub, row, k)))
    }
    fn scales(packed: &[u8], sub: usize) -> (F8, F8) {
        scale_and_minimum(packed, &packed[Q5K::HEAD + sub * Q5K::SUB..])
    }
}

impl Quantized for Q4K {
    const OFFSET: Offset = Offset::Sum;
    fn dot(packed: &[u8], sub: usize, x: &[i16; A16_BLOCK]) -> [i32; GROUP] {
        let q = &packed[Q4K::HEAD + sub * Q4K::SUB + 16..];
        dots(x, |row, k| i32::from(nibble(q, row, k)))
    }
    fn scales(packed: &[u8], sub: usize) -> (F8, F8) {
        scale_and_minimum(packed, &packed[Q4K::HEAD + sub * Q4K::SUB..])
    }
}

impl Quantized for Q6K {
    const OFFSET: Offset = Offset::None;
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
                    let mins = F::mins(packed, sub, &x.q);
                    for i in 0..GROUP {
                        let scale = d.0[i] * x.scale;
                        acc.0[i] = (dot[i] as f32).mul_add(scale, acc.0[i]);
                        acc.0[i] = match F::OFFSET {
                            Offset::None => acc.0[i],
                            Offset::Sum => m.0[i].mul_add(x.sum, acc.0[i]),
                            Offset::Integer => (mins[i] as f32).mul_add(m.0[i] * x.scale, acc.0[i]),
                        };
                    }
                }
            }
            work.store(row, group, acc);
        }
    }
}

macro_rules! inner {
    ($format:ty, $isa:expr, $work:expr, $tiles:expr) => {{
        #[cfg(target_arch = "x86_64")]
        if $isa.has_amx() && $work.rows.len() >= super::amx::rows_from(<$format>::ELEM) {
            return super::amx::tile::<$format>($work, $tiles);
        }
        #[cfg(target_arch = "x86_64")]
        if $isa.has_avx2() {
            return super::vector::tile::<$format>($work, 0, $isa.has_avx512());
        }
        let _ = ($isa, $tiles);
        portable::<$format>($work);
    }};
}

macro_rules! a16_point {
    ($id:literal, $format:ty) => {
        point::<$format>($id, true, |t, _, scratch| {
            let (isa, k) = (t.args().isa, t.args().u32(4));
            run_with::<$format, A16Block>(t, k / A16_BLOCK, |work| {
                inner!($format, isa, work, &mut scratch.tiles)
            })
        })
    };
}

macro_rules! expert_point {
    ($id:literal, $format:ty) => {
        experts::point::<$format>($id, true, |t, _, scratch| {
            let isa = t.args().isa;
            let mut tiles = std::mem::take(&mut scratch.tiles);
            let done = experts::run::<$format, A16Block>(t, scratch, A16_BLOCK, |work| {
                inner!($format, isa, work, &mut tiles)
            });
            scratch.tiles = tiles;
            done
        })
    };
}

pub(crate) static EXPERT_POINTS: [HostPoint; 13] = [
    expert_point!("expert_linear/q8_0", formats::Q8_0),
    expert_point!("expert_linear/q4_0", formats::Q4_0),
    expert_point!("expert_linear/q4_1", formats::Q4_1),
    expert_point!("expert_linear/q5_0", Q5_0),
    expert_point!("expert_linear/q5_1", Q5_1),
    expert_point!("expert_linear/q2_k", Q2K),
    expert_point!("expert_linear/q3_k", Q3K),
    expert_point!("expert_linear/q4_k", Q4K),
    expert_point!("expert_linear/q5_k", Q5K),
    expert_point!("expert_linear/q6_k", Q6K),
    expert_point!("expert_linear/iq4_nl", Iq4Nl),
    expert_point!("expert_linear/iq4_xs", Iq4Xs),
    expert_point!("expert_linear/mxfp4", Mxfp4),
];

pub(crate) static POINTS: [HostPoint; 13] = [
    a16_point!("linear/q8_0", formats::Q8_0),
    a16_point!("linear/q4_0", formats::Q4_0),
    a16_point!("linear/q4_1", formats::Q4_1),
    a16_point!("linear/q5_0", Q5_0),
    a16_point!("linear/q5_1", Q5_1),
    a16_point!("linear/q2_k", Q2K),
    a16_point!("linear/q3_k", Q3K),
    a16_point!("linear/q4_k", Q4K),
    a16_point!("linear/q5_k", Q5K),
    a16_point!("linear/q6_k", Q6K),
    a16_point!("linear/iq4_nl", Iq4Nl),
    a16_point!("linear/iq4_xs", Iq4Xs),
    a16_point!("linear/mxfp4", Mxfp4),
];
