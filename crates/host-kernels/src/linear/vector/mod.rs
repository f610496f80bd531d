// SPDX-License-Identifier: MIT OR Apache-2.0
//! The vector paths of `linear` for quantized weights: the bits of the portable path, eight outputs to a vector with AVX2,
//! sixteen (two groups) with AVX-512 and VNNI.
//!
//! Integers: a vector holds one pair (two consecutive k) of its outputs as 16-bit integers; `pmaddwd` (or `vpdpwssd`, which
//! adds as well) with the pair of the activations, broadcast, gives one exact 32-bit sum per output, and a block is 16 of
//! them. Weights are widened to 16 bits a quarter of a block at a time, once for all rows of the call. Those of formats
//! with two sub-scales go in multiplied by them (at most 4,096), so that the sum is the block's integer as it stands.
//! [`super`] shows that no order overflows, so sums may be split over several accumulators.
//!
//! A format is written once, over [`Wide`] ([`formats`]).

mod formats;
mod wide;
mod y;
mod z;

use super::Work;
use super::a16::Offset;
use crate::quantize::A16Block;

pub(super) use formats::Widen;
pub(super) use wide::Wide;
use y::Y;
pub(super) use z::Z;

/// How far ahead of the arithmetic weights are asked for, in each group.
const AHEAD: usize = 2048;

/// All rows of a tile against its groups from `group` on. The caller holds an `Isa` that says AVX2, and with `avx512` one
/// that says AVX-512.
pub(super) fn tile<F: Widen>(work: &mut Work<'_, A16Block>, mut group: usize, avx512: bool) {
    if avx512 {
        while group + 2 <= work.groups {
            // SAFETY: only called when `Isa` says AVX-512.
            unsafe { groups512::<F>(work, group) };
            group += 2;
        }
    }
    while group < work.groups {
        // SAFETY: only called when `Isa` says AVX2, which implies FMA and F16C.
        unsafe { groups256::<F>(work, group) };
        group += 1;
    }
}

#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
fn groups512<F: Widen>(work: &mut Work<'_, A16Block>, group: usize) {
    let mut row = work.rows.start;
    while row < work.rows.end {
        // SAFETY: the features are enabled here, where the calls are inlined.
        row += unsafe {
            match work.rows.end - row {
                1 => block::<F, Z, 1, 4>(work, row, group),
                2 | 3 => block::<F, Z, 2, 2>(work, row, group),
                4..8 => block::<F, Z, 4, 1>(work, row, group),
                _ => block::<F, Z, 8, 1>(work, row, group),
            }
        };
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
fn groups256<F: Widen>(work: &mut Work<'_, A16Block>, group: usize) {
    let mut row = work.rows.start;
    while row < work.rows.end {
        // SAFETY: as above.
        row += unsafe {
            match work.rows.end - row {
                1 => block::<F, Y, 1, 1>(work, row, group),
                2 | 3 => block::<F, Y, 2, 1>(work, row, group),
                _ => block::<F, Y, 4, 1>(work, row, group),
            }
        };
    }
}

/// `V::GROUPS` groups by `R` rows, each integer in `P` partial sums. Gives `R`.
///
/// # Safety
/// Inlined into a function that enables the features of `V`.
#[inline(always)]
unsafe fn block<F: Widen, V: Wide, const R: usize, const P: usize>(
    work: &mut Work<'_, A16Block>,
    row: usize,
    group: usize,
) -> usize {
    // SAFETY: the caller's features.
    let mut acc = unsafe { [V::splat(0.0); R] };
    {
        let x: [&[A16Block]; R] = std::array::from_fn(|r| work.x(row + r));
        let first = work.w(group);
        let blocks = first.len() / F::PACKED;
        assert!(x.iter().all(|x| x.len() == blocks * F::SUBS));
        let mut packed = [first.as_ptr(), work.w(group + V::GROUPS - 1).as_ptr()];
        let mut at = 0;
        for i in 0..blocks {
            prefetch::<F, V>(packed, i, blocks);
            for sub in 0..F::SUBS {
                // SAFETY: `at` is below the length of each `x`, asserted above.
                let x = x.map(|x| unsafe { x.get_unchecked(at) });
                // SAFETY: whole packed blocks of `V::GROUPS` groups; the caller's features.
                acc = unsafe { step::<F, V, R, P>(packed, sub, x, acc) };
                at += 1;
            }
            packed = packed.map(|p| p.wrapping_add(F::PACKED));
        }
    }
    for (r, acc) in acc.into_iter().enumerate() {
        // SAFETY: the caller's features.
        let out = unsafe { V::split(acc) };
        for (g, out) in out.into_iter().enumerate().take(V::GROUPS) {
            work.store(row + r, group + g, out);
        }
    }
    R
}

/// One link of the chains: a sub-block of 32 k.
///
/// # Safety
/// As [`block`]; `packed` points to packed blocks of `V::GROUPS` groups.
#[inline(always)]
unsafe fn step<F: Widen, V: Wide, const R: usize, const P: usize>(
    packed: [*const u8; 2],
    sub: usize,
    x: [&A16Block; R],
    acc: [V::Ps; R],
) -> [V::Ps; R] {
    // SAFETY: the caller's.
    unsafe {
        let mut out = acc;
        let mut sums = [[V::zero(); P]; R];
        for quarter in 0..4 {
            let w = F::widen::<V>(packed, sub, quarter);
            for n in 0..4 {
                for r in 0..R {
                    sums[r][n % P] = w[n].dot(sums[r][n % P], pair(x[r], 4 * quarter + n));
                }
            }
        }
        let (d, m) = F::scales_ps::<V>(packed, sub);
        for r in 0..R {
            let sum = sums[r].into_iter().reduce(|a, b| a.add32(b));
            let dot = sum.unwrap_or(V::zero()).to_ps();
            out[r] = V::fma(dot, V::mul(d, V::splat(x[r].scale)), out[r]);
            match F::OFFSET {
                Offset::None => {}
                Offset::Sum => out[r] = V::fma(m, V::splat(x[r].sum), out[r]),
                Offset::Integer => {
                    let mins = F::wide_mins::<V>(packed, sub, |p| pair(x[r], p)).to_ps();
                    out[r] = V::fma(mins, V::mul(m, V::splat(x[r].scale)), out[r]);
                }
            }
        }
        out
    }
}

/// Pair `p` of a block of activations, as the 32 bits that they are in memory.
#[inline(always)]
fn pair(x: &A16Block, p: usize) -> i32 {
    // SAFETY: 32 values, 16 pairs; `p` is below 16 at every call.
    unsafe { x.q.as_ptr().add(2 * p).cast::<i32>().read_unaligned() }
}

/// Asks for what is read [`AHEAD`] bytes later: of these groups or, past their end, of the next ones.
#[inline(always)]
fn prefetch<F: Widen, V: Wide>(packed: [*const u8; 2], i: usize, blocks: usize) {
    // The next groups of the call lie `V::GROUPS` groups further on.
    let past = (i * F::PACKED + AHEAD) / (blocks * F::PACKED);
    let skip = past * (V::GROUPS - 1) * blocks * F::PACKED;
    for p in packed.into_iter().take(V::GROUPS) {
        let mut line = 0;
        while line < F::PACKED {
            let at = p.wrapping_add(AHEAD + skip + line).cast();
            // SAFETY: a hint: any address is allowed.
            unsafe { std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(at) };
            line += 64;
        }
    }
}
