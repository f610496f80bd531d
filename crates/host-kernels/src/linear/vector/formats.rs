// SPDX-License-Identifier: MIT OR Apache-2.0
//! Each format's weights as 16-bit pairs, over any [`Wide`].

use metrale_core::numeric::dequantize::{E2M1_DOUBLED, IQ4_LEVELS};

use super::super::a16::Quantized;
use super::wide::Wide;
use crate::formats::{Iq4Nl, Iq4Xs, Mxfp4, Q2K, Q3K, Q4_0, Q4_1, Q4K, Q5_0, Q5_1, Q5K, Q6K, Q8_0};

/// What the vector paths take from a sub-block of 32 k.
///
/// # Safety
/// All functions are inlined into one that enables the features of `V`; `p` points to packed blocks of the format, one for
/// each group.
pub(in crate::linear) trait Widen: Quantized {
    /// Values `8 * quarter..8 * quarter + 8` of each output: vector `n` holds k `2n` and `2n + 1` of them, as 16-bit
    /// integers side by side in the output's lane.
    unsafe fn widen<V: Wide>(p: [*const u8; 2], sub: usize, quarter: usize) -> [V; 4];

    /// `d` and `m` of each output.
    unsafe fn scales_ps<V: Wide>(p: [*const u8; 2], sub: usize) -> (V::Ps, V::Ps);

    /// The integers of `Offset::Integer`; `x` gives a pair of the activations.
    #[inline(always)]
    unsafe fn wide_mins<V: Wide>(_: [*const u8; 2], _: usize, _: impl Fn(usize) -> i32) -> V {
        // SAFETY: the caller's.
        unsafe { V::zero() }
    }
}

/// The four pairs of a quarter of nibbles.
#[inline(always)]
unsafe fn nibbles<V: Wide>(p: [*const u8; 2], offset: usize, quarter: usize) -> [V; 4] {
    // SAFETY: the caller's: 128 bytes there.
    unsafe {
        let (all, mask) = (V::load(p, offset + 32 * quarter), V::splat16(15));
        [
            all.and(mask),
            all.srl(4).and(mask),
            all.srl(8).and(mask),
            all.srl(12),
        ]
    }
}

/// The four pairs of a quarter of nibbles, each nibble replaced by its level.
#[inline(always)]
unsafe fn levels<V: Wide>(
    levels: &[i8; 16],
    p: [*const u8; 2],
    offset: usize,
    quarter: usize,
) -> [V; 4] {
    // SAFETY: the caller's: 128 bytes there.
    unsafe {
        let (all, mask) = (V::load(p, offset + 32 * quarter), V::splat16(0x0f0f));
        // Bytes of the first: the levels of pairs 0 and 2; of the second: 1 and 3.
        let even = all.and(mask).look_up(levels);
        let odd = all.srl(4).and(mask).look_up(levels);
        [
            even.sll(8).sra(8),
            odd.sll(8).sra(8),
            even.sra(8),
            odd.sra(8),
        ]
    }
}

/// Four pairs with the high bits of `quarter` of 32 single bits, each at bit `TO`.
#[inline(always)]
unsafe fn with_bits<V: Wide, const TO: u32>(
    low: [V; 4],
    p: [*const u8; 2],
    offset: usize,
    quarter: usize,
) -> [V; 4] {
    // SAFETY: the caller's: 32 bytes there. Bit `4 * quarter + n` of a word belongs to pair `n`.
    unsafe {
        let (high, bit) = (V::load(p, offset), V::splat16(1 << TO));
        let mut out = low;
        for (n, out) in out.iter_mut().enumerate() {
            let from = 4 * quarter as u32 + n as u32;
            let moved = if from < TO {
                high.sll(TO - from)
            } else {
                high.srl(from - TO)
            };
            *out = out.or(moved.and(bit));
        }
        out
    }
}

/// The four pairs of a quarter of 2-bit values, each at bits `TO` and `TO + 1`.
#[inline(always)]
unsafe fn pairs<V: Wide, const TO: u32>(
    p: [*const u8; 2],
    offset: usize,
    quarter: usize,
) -> [V; 4] {
    // SAFETY: the caller's: 64 bytes there. Bits 2f and 2f + 1 of a word of vector `quarter / 2` belong to pair `f` of that
    // half, which is pair `f % 4` of its quarter.
    unsafe {
        let all = V::load(p, offset + quarter / 2 * 32);
        let mask = V::splat16(3 << TO);
        let mut out = [all; 4];
        for (n, out) in out.iter_mut().enumerate() {
            let from = 8 * (quarter % 2) as u32 + 2 * n as u32;
            let moved = if from < TO {
                all.sll(TO - from)
            } else {
                all.srl(from - TO)
            };
            *out = moved.and(mask);
        }
        out
    }
}

/// `d * sc` and `-(dmin * min)`, the integers in the first 16 bytes of a sub-block.
#[inline(always)]
unsafe fn scale_and_minimum<V: Wide>(p: [*const u8; 2], head: usize) -> (V::Ps, V::Ps) {
    // SAFETY: the caller's.
    unsafe {
        let d = V::mul(V::halves(p, 0), V::bytes_ps(p, head));
        let m = V::mul(V::halves(p, 16), V::bytes_ps(p, head + 8));
        (d, V::neg(m))
    }
}

impl Widen for Q8_0 {
    #[inline(always)]
    unsafe fn widen<V: Wide>(p: [*const u8; 2], _: usize, quarter: usize) -> [V; 4] {
        // SAFETY: the caller's.
        unsafe {
            let mut out = [V::zero(); 4];
            for (n, out) in out.iter_mut().enumerate() {
                *out = V::load_bytes(p, 16 + 64 * quarter + 16 * n);
            }
            out
        }
    }
    #[inline(always)]
    unsafe fn scales_ps<V: Wide>(p: [*const u8; 2], _: usize) -> (V::Ps, V::Ps) {
        // SAFETY: the caller's.
        unsafe { (V::halves(p, 0), V::splat(0.0)) }
    }
}

impl Widen for Q4_0 {
    #[inline(always)]
    unsafe fn widen<V: Wide>(p: [*const u8; 2], _: usize, quarter: usize) -> [V; 4] {
        // SAFETY: the caller's.
        unsafe { nibbles(p, 16, quarter) }
    }
    #[inline(always)]
    unsafe fn scales_ps<V: Wide>(p: [*const u8; 2], _: usize) -> (V::Ps, V::Ps) {
        // SAFETY: the caller's.
        unsafe {
            let d = V::halves(p, 0);
            (d, V::mul(d, V::splat(-8.0)))
        }
    }
}

impl Widen for Q4_1 {
    #[inline(always)]
    unsafe fn widen<V: Wide>(p: [*const u8; 2], _: usize, quarter: usize) -> [V; 4] {
        // SAFETY: the caller's.
        unsafe { nibbles(p, 32, quarter) }
    }
    #[inline(always)]
    unsafe fn scales_ps<V: Wide>(p: [*const u8; 2], _: usize) -> (V::Ps, V::Ps) {
        // SAFETY: the caller's.
        unsafe { (V::halves(p, 0), V::halves(p, 16)) }
    }
}

impl Widen for Q5_0 {
    #[inline(always)]
    unsafe fn widen<V: Wide>(p: [*const u8; 2], _: usize, quarter: usize) -> [V; 4] {
        // SAFETY: the caller's.
        unsafe { with_bits::<V, 4>(nibbles(p, 48, quarter), p, 16, quarter) }
    }
    #[inline(always)]
    unsafe fn scales_ps<V: Wide>(p: [*const u8; 2], _: usize) -> (V::Ps, V::Ps) {
        // SAFETY: the caller's.
        unsafe {
            let d = V::halves(p, 0);
            (d, V::mul(d, V::splat(-16.0)))
        }
    }
}

impl Widen for Q5_1 {
    #[inline(always)]
    unsafe fn widen<V: Wide>(p: [*const u8; 2], _: usize, quarter: usize) -> [V; 4] {
        // SAFETY: the caller's.
        unsafe { with_bits::<V, 4>(nibbles(p, 64, quarter), p, 32, quarter) }
    }
    #[inline(always)]
    unsafe fn scales_ps<V: Wide>(p: [*const u8; 2], _: usize) -> (V::Ps, V::Ps) {
        // SAFETY: the caller's.
        unsafe { (V::halves(p, 0), V::halves(p, 16)) }
    }
}

impl Widen for Iq4Nl {
    #[inline(always)]
    unsafe fn widen<V: Wide>(p: [*const u8; 2], _: usize, quarter: usize) -> [V; 4] {
        // SAFETY: the caller's.
        unsafe { levels(&IQ4_LEVELS, p, 16, quarter) }
    }
    #[inline(always)]
    unsafe fn scales_ps<V: Wide>(p: [*const u8; 2], _: usize) -> (V::Ps, V::Ps) {
        // SAFETY: the caller's.
        unsafe { (V::halves(p, 0), V::splat(0.0)) }
    }
}

impl Widen for Mxfp4 {
    #[inline(always)]
    unsafe fn widen<V: Wide>(p: [*const u8; 2], _: usize, quarter: usize) -> [V; 4] {
        // SAFETY: the caller's.
        unsafe { levels(&E2M1_DOUBLED, p, 8, quarter) }
    }
    #[inline(always)]
    unsafe fn scales_ps<V: Wide>(p: [*const u8; 2], _: usize) -> (V::Ps, V::Ps) {
        // SAFETY: the caller's.
        unsafe { (V::e8m0_halved(p, 0), V::splat(0.0)) }
    }
}

impl Widen for Iq4Xs {
    #[inline(always)]
    unsafe fn widen<V: Wide>(p: [*const u8; 2], sub: usize, quarter: usize) -> [V; 4] {
        // SAFETY: the caller's.
        unsafe { levels(&IQ4_LEVELS, p, Iq4Xs::HEAD + sub * Iq4Xs::SUB + 8, quarter) }
    }
    #[inline(always)]
    unsafe fn scales_ps<V: Wide>(p: [*const u8; 2], sub: usize) -> (V::Ps, V::Ps) {
        // SAFETY: the caller's.
        unsafe {
            let scale = V::signed_ps(p, Iq4Xs::HEAD + sub * Iq4Xs::SUB);
            (V::mul(V::halves(p, 0), scale), V::splat(0.0))
        }
    }
}

impl Widen for Q2K {
    #[inline(always)]
    unsafe fn widen<V: Wide>(p: [*const u8; 2], sub: usize, quarter: usize) -> [V; 4] {
        // SAFETY: the caller's.
        unsafe {
            let at = Q2K::HEAD + sub * Q2K::SUB;
            let scales = V::load_scales(p, at + quarter / 2 * 8).and(V::splat16(15));
            pairs::<V, 0>(p, at + 16, quarter).map(|q| q.mul16(scales))
        }
    }
    #[inline(always)]
    unsafe fn scales_ps<V: Wide>(p: [*const u8; 2], _: usize) -> (V::Ps, V::Ps) {
        // SAFETY: the caller's.
        unsafe { (V::halves(p, 0), V::neg(V::halves(p, 16))) }
    }
    #[inline(always)]
    unsafe fn wide_mins<V: Wide>(p: [*const u8; 2], sub: usize, x: impl Fn(usize) -> i32) -> V {
        // SAFETY: the caller's. Half `h` of a sub-block is 8 pairs, all with one minimum.
        unsafe {
            let at = Q2K::HEAD + sub * Q2K::SUB;
            let mut sum = V::zero();
            for h in 0..2 {
                let mins = V::load_scales(p, at + h * 8).srl(4).and(V::splat16(15));
                for n in 0..8 {
                    sum = mins.dot(sum, x(8 * h + n));
                }
            }
            sum
        }
    }
}

impl Widen for Q3K {
    #[inline(always)]
    unsafe fn widen<V: Wide>(p: [*const u8; 2], sub: usize, quarter: usize) -> [V; 4] {
        // SAFETY: the caller's.
        unsafe {
            let at = Q3K::HEAD + sub * Q3K::SUB;
            let (scales, bias) = (V::load_scales(p, at + quarter / 2 * 8), V::splat16(4));
            with_bits::<V, 2>(pairs::<V, 0>(p, at + 48, quarter), p, at + 16, quarter)
                .map(|q| q.sub16(bias).mul16(scales))
        }
    }
    #[inline(always)]
    unsafe fn scales_ps<V: Wide>(p: [*const u8; 2], _: usize) -> (V::Ps, V::Ps) {
        // SAFETY: the caller's.
        unsafe { (V::halves(p, 0), V::splat(0.0)) }
    }
}

impl Widen for Q4K {
    #[inline(always)]
    unsafe fn widen<V: Wide>(p: [*const u8; 2], sub: usize, quarter: usize) -> [V; 4] {
        // SAFETY: the caller's.
        unsafe { nibbles(p, Q4K::HEAD + sub * Q4K::SUB + 16, quarter) }
    }
    #[inline(always)]
    unsafe fn scales_ps<V: Wide>(p: [*const u8; 2], sub: usize) -> (V::Ps, V::Ps) {
        // SAFETY: the caller's.
        unsafe { scale_and_minimum::<V>(p, Q4K::HEAD + sub * Q4K::SUB) }
    }
}

impl Widen for Q5K {
    #[inline(always)]
    unsafe fn widen<V: Wide>(p: [*const u8; 2], sub: usize, quarter: usize) -> [V; 4] {
        // SAFETY: the caller's.
        unsafe {
            let at = Q5K::HEAD + sub * Q5K::SUB;
            with_bits::<V, 4>(nibbles(p, at + 48, quarter), p, at + 16, quarter)
        }
    }
    #[inline(always)]
    unsafe fn scales_ps<V: Wide>(p: [*const u8; 2], sub: usize) -> (V::Ps, V::Ps) {
        // SAFETY: the caller's.
        unsafe { scale_and_minimum::<V>(p, Q5K::HEAD + sub * Q5K::SUB) }
    }
}

impl Widen for Q6K {
    #[inline(always)]
    unsafe fn widen<V: Wide>(p: [*const u8; 2], sub: usize, quarter: usize) -> [V; 4] {
        // SAFETY: the caller's.
        unsafe {
            let at = Q6K::HEAD + sub * Q6K::SUB;
            let (scales, bias) = (V::load_scales(p, at + quarter / 2 * 8), V::splat16(32));
            let (low, high) = (
                nibbles::<V>(p, at + 80, quarter),
                pairs::<V, 4>(p, at + 16, quarter),
            );
            let mut out = low;
            for (out, high) in out.iter_mut().zip(high) {
                *out = out.or(high).sub16(bias).mul16(scales);
            }
            out
        }
    }
    #[inline(always)]
    unsafe fn scales_ps<V: Wide>(p: [*const u8; 2], _: usize) -> (V::Ps, V::Ps) {
        // SAFETY: the caller's.
        unsafe { (V::halves(p, 0), V::splat(0.0)) }
    }
}
