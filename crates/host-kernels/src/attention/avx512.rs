// SPDX-License-Identifier: MIT OR Apache-2.0
//! Scores, powers and values with AVX-512, from the pool's own format or from widened keys: the bits of
//! [`super::portable`], head by head.
//!
//! Up to [`HEADS`] query heads go together, so that each key is loaded and widened once for all of them and their chains
//! overlap. A register of keys holds two side by side, eight lanes each: `lanes8` as it is.

use std::arch::x86_64::*;
use std::ops::Range;

use metrale_core::numeric::math;

use super::portable::{Factors, Running, larger};
use super::{CUT, STEP};
use crate::kv::KvElem;

/// Heads that share a load.
const HEADS: usize = 4;

/// Scores of `group` queries for the `keys` of a chunk; to `out`, [`CUT`] scores per head and where the chunk begins in
/// them. Scores of other keys of the same blocks become -inf.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl")]
pub(super) fn scores<'q, T: KvElem>(
    q: impl Fn(usize) -> &'q [f32],
    group: usize,
    blocks: &[&[T::Raw]],
    keys: Range<usize>,
    f: Factors<'_>,
    (out, first): (&mut [f32], usize),
) {
    for (some, out) in out.chunks_mut(HEADS * CUT).enumerate() {
        let at = some * HEADS;
        let (keys, out) = (keys.clone(), &mut out[first..]);
        match group - at {
            1 => scores_of::<T, 1>([q(at)], blocks, keys, f, out),
            2 => scores_of::<T, 2>([q(at), q(at + 1)], blocks, keys, f, out),
            3 => scores_of::<T, 3>([q(at), q(at + 1), q(at + 2)], blocks, keys, f, out),
            _ => {
                let q = [q(at), q(at + 1), q(at + 2), q(at + 3)];
                scores_of::<T, 4>(q, blocks, keys, f, out)
            }
        }
    }
}

#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl")]
fn scores_of<T: KvElem, const H: usize>(
    q: [&[f32]; H],
    blocks: &[&[T::Raw]],
    keys: Range<usize>,
    f: Factors<'_>,
    out: &mut [f32],
) {
    let dim = q[0].len();
    assert!(dim.is_multiple_of(8) && q.iter().all(|q| q.len() == dim));
    for begin in (keys.start / STEP * STEP..keys.end).step_by(STEP) {
        let block = &blocks[begin / STEP][..STEP * dim];
        // SAFETY: sixteen keys.
        let (low, high) = unsafe {
            let keys = block.as_ptr();
            (
                dots8::<T, H>(q, keys, dim),
                dots8::<T, H>(q, keys.add(8 * dim), dim),
            )
        };
        let live = keys.start.max(begin) - begin..keys.end.min(begin + STEP) - begin;
        let mask = (((1u32 << live.end) - 1) >> live.start << live.start) as u16;
        for h in 0..H {
            let mut scores = _mm512_insertf32x8::<1>(_mm512_castps256_ps512(low[h]), high[h]);
            if !f.own.is_empty() {
                let own = &f.own[begin..begin + STEP];
                // SAFETY: sixteen factors.
                scores = _mm512_mul_ps(scores, unsafe { _mm512_loadu_ps(own.as_ptr()) });
            }
            let scores = _mm512_mul_ps(scores, _mm512_set1_ps(f.scale));
            let scores = _mm512_mask_mov_ps(_mm512_set1_ps(f32::NEG_INFINITY), mask, scores);
            let out = &mut out[h * CUT + begin..][..STEP];
            // SAFETY: sixteen scores.
            unsafe { _mm512_storeu_ps(out.as_mut_ptr(), scores) };
            f.cap(&mut out[live.clone()]);
        }
    }
}

/// The dot products of each query with eight keys, each by `lanes8`.
///
/// # Safety
/// `keys` points to eight times `dim` values; each query has `dim`.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl")]
unsafe fn dots8<T: KvElem, const H: usize>(
    q: [&[f32]; H],
    keys: *const T::Raw,
    dim: usize,
) -> [__m256; H] {
    // Vector `t` holds keys `t` and `t + 4`.
    let mut acc = [[_mm512_setzero_ps(); 4]; H];
    let mut d = 0;
    while d < dim {
        // SAFETY: `d + 8 <= dim`, a multiple of 8; keys below 8.
        unsafe {
            let q = q.map(|q| _mm512_broadcast_f32x8(_mm256_loadu_ps(q.as_ptr().add(d))));
            for t in 0..4 {
                let both = T::two_eights(keys.add(t * dim + d), keys.add((t + 4) * dim + d));
                for h in 0..H {
                    acc[h][t] = _mm512_fmadd_ps(q[h], both, acc[h][t]);
                }
            }
        }
        d += 8;
    }
    acc.map(|a| fold8(a))
}

/// The tree of `lanes8` of eight sums, two to a vector as [`dots8`] has them.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl")]
fn fold8(acc: [__m512; 4]) -> __m256 {
    // l(i) + l(i + 4): a quarter for each key, in the order of its vectors' halves.
    let halves = |a: __m512, b: __m512| {
        let low = _mm512_shuffle_f32x4::<0b10_00_10_00>(a, b);
        _mm512_add_ps(low, _mm512_shuffle_f32x4::<0b11_01_11_01>(a, b))
    };
    let (x, y) = (halves(acc[0], acc[1]), halves(acc[2], acc[3]));
    // t(i) + t(i + 2), the keys of `x` and `y` side by side; then the last two, in even lanes.
    let low = _mm512_shuffle_ps::<0x44>(x, y);
    let pairs = _mm512_add_ps(low, _mm512_shuffle_ps::<0xee>(x, y));
    let sums = _mm512_add_ps(pairs, _mm512_permute_ps::<0b10_11_00_01>(pairs));
    // Quarters are keys (0, 2), (4, 6), (1, 3), (5, 7).
    let order = _mm512_setr_epi32(0, 8, 2, 10, 4, 12, 6, 14, 0, 0, 0, 0, 0, 0, 0, 0);
    _mm512_castps512_ps256(_mm512_permutexvar_ps(order, sums))
}

/// Scores to powers, a multiple of 16 of them. A maximum has no order; which zero it gives where both are there changes
/// nothing after it.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl")]
pub(super) fn softmax(scores: &mut [f32]) -> Running {
    let (steps, rest) = scores.as_chunks_mut::<16>();
    assert!(rest.is_empty());
    let mut top = _mm512_set1_ps(f32::NEG_INFINITY);
    for s in steps.iter() {
        // SAFETY: sixteen scores. The second operand is the result if either is NaN.
        top = _mm512_max_ps(unsafe { _mm512_loadu_ps(s.as_ptr()) }, top);
    }
    let m = larger(_mm512_reduce_max_ps(top), f32::NEG_INFINITY);
    let (largest, mut sums) = (_mm512_set1_ps(m), _mm512_setzero_ps());
    for s in steps {
        // SAFETY: sixteen scores.
        let p = exp16(_mm512_sub_ps(
            unsafe { _mm512_loadu_ps(s.as_ptr()) },
            largest,
        ));
        // SAFETY: as above.
        unsafe { _mm512_storeu_ps(s.as_mut_ptr(), p) };
        sums = _mm512_add_ps(sums, p);
    }
    // Lanes i + 8, then the tree of `lanes8`.
    let t = _mm256_add_ps(
        _mm512_castps512_ps256(sums),
        _mm512_extractf32x8_ps::<1>(sums),
    );
    let t = _mm_add_ps(_mm256_castps256_ps128(t), _mm256_extractf128_ps::<1>(t));
    let t = _mm_add_ps(t, _mm_movehl_ps(t, t));
    let l = _mm_cvtss_f32(_mm_add_ss(t, _mm_shuffle_ps::<1>(t, t)));
    Running { m, l }
}

/// Adds the values of the `keys` of a chunk to `width` outputs of each head in `o`; powers lie [`CUT`] apart.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl")]
pub(super) fn values<T: KvElem>(
    o: &mut [f32],
    width: usize,
    p: &[f32],
    blocks: &[&[T::Raw]],
    stride: usize,
    keys: Range<usize>,
) {
    for (some, o) in o.chunks_mut(HEADS * width).enumerate() {
        let (p, keys) = (&p[some * HEADS * CUT..], keys.clone());
        match o.len() / width {
            1 => values_of::<T, 1>(o, width, p, blocks, stride, keys),
            2 => values_of::<T, 2>(o, width, p, blocks, stride, keys),
            3 => values_of::<T, 3>(o, width, p, blocks, stride, keys),
            _ => values_of::<T, 4>(o, width, p, blocks, stride, keys),
        }
    }
}

#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl")]
fn values_of<T: KvElem, const H: usize>(
    o: &mut [f32],
    width: usize,
    p: &[f32],
    blocks: &[&[T::Raw]],
    stride: usize,
    keys: Range<usize>,
) {
    assert!(width.is_multiple_of(16) && width <= stride && o.len() == H * width);
    assert!(p.len() >= (H - 1) * CUT + keys.end);
    let mut d = 0;
    while d + 64 <= width {
        accumulate::<T, H, 4>(o, width, p, blocks, (stride, d), keys.clone());
        d += 64;
    }
    while d < width {
        accumulate::<T, H, 1>(o, width, p, blocks, (stride, d), keys.clone());
        d += 16;
    }
}

/// `fma(p[j], v[j], o)` ascending, for `N` vectors of each head from column `d` on.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl")]
fn accumulate<T: KvElem, const H: usize, const N: usize>(
    o: &mut [f32],
    width: usize,
    p: &[f32],
    blocks: &[&[T::Raw]],
    (stride, d): (usize, usize),
    keys: Range<usize>,
) {
    let mut acc = [[_mm512_setzero_ps(); N]; H];
    for h in 0..H {
        let o = &o[h * width + d..][..16 * N];
        for i in 0..N {
            // SAFETY: `16 * N` values.
            acc[h][i] = unsafe { _mm512_loadu_ps(o.as_ptr().add(16 * i)) };
        }
    }
    let mut begin = keys.start;
    while begin < keys.end {
        let end = keys.end.min((begin / STEP + 1) * STEP);
        let block = &blocks[begin / STEP][..STEP * stride];
        for j in begin..end {
            // SAFETY: value `j % STEP` of the block has `stride` values, `d + 16 * N` of them at least; `p` has a power for
            // each key and head, which `values_of` asserted.
            unsafe {
                let v = block.as_ptr().add(j % STEP * stride + d);
                let p = std::array::from_fn::<_, H, _>(|h| {
                    _mm512_set1_ps(*p.get_unchecked(h * CUT + j))
                });
                for i in 0..N {
                    let v = T::sixteen(v.add(16 * i));
                    for h in 0..H {
                        acc[h][i] = _mm512_fmadd_ps(p[h], v, acc[h][i]);
                    }
                }
            }
        }
        begin = end;
    }
    for h in 0..H {
        let o = &mut o[h * width + d..][..16 * N];
        for i in 0..N {
            // SAFETY: as above.
            unsafe { _mm512_storeu_ps(o.as_mut_ptr().add(16 * i), acc[h][i]) };
        }
    }
}

/// The exponential of each lane, by the operations of [`crate::lanes::exp`] in its order. `min(a, b)` gives `b` if either is
/// NaN, so that a NaN stays.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl")]
fn exp16(x: __m512) -> __m512 {
    let (least, most) = (_mm512_set1_ps(math::EXP_MIN), _mm512_set1_ps(math::EXP_MAX));
    let c = _mm512_max_ps(least, _mm512_min_ps(most, x));
    let n = _mm512_mul_ps(c, _mm512_set1_ps(math::LOG2_E));
    let n = _mm512_roundscale_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(n);
    let r = _mm512_fnmadd_ps(n, _mm512_set1_ps(math::LN2_HI), c);
    let r = _mm512_fnmadd_ps(n, _mm512_set1_ps(math::LN2_LO), r);
    let mut p = _mm512_set1_ps(math::EXP_POLY[0]);
    for k in 1..7 {
        p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(math::EXP_POLY[k]));
    }
    let n = _mm512_cvtps_epi32(n);
    let half = _mm512_srai_epi32::<1>(n);
    let power = |n| {
        let biased = _mm512_add_epi32(n, _mm512_set1_epi32(127));
        _mm512_castsi512_ps(_mm512_slli_epi32::<23>(biased))
    };
    let y = _mm512_mul_ps(
        _mm512_mul_ps(p, power(half)),
        power(_mm512_sub_epi32(n, half)),
    );
    let y = _mm512_maskz_mov_ps(_mm512_cmp_ps_mask::<_CMP_NLT_UQ>(x, least), y);
    let over = _mm512_cmp_ps_mask::<_CMP_GT_OQ>(x, most);
    let y = _mm512_mask_mov_ps(y, over, _mm512_set1_ps(f32::INFINITY));
    _mm512_mask_mov_ps(y, _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(x, x), x)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isa::Isa;
    use crate::lanes::exp;

    #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl")]
    fn all(x: &mut [f32]) {
        for x in x.chunks_exact_mut(16) {
            // SAFETY: 16 values.
            unsafe { _mm512_storeu_ps(x.as_mut_ptr(), exp16(_mm512_loadu_ps(x.as_ptr()))) };
        }
    }

    #[test]
    fn exp_has_the_bits_of_the_portable_one() {
        if Isa::avx512().is_none() {
            return;
        }
        let mut x: Vec<f32> = (0..80_000).map(|i| i as f32 * 0.002_3 - 92.0).collect();
        x.extend([0.0, -0.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN]);
        x.extend([math::EXP_MAX, math::EXP_MIN]);
        for edge in [math::EXP_MAX, math::EXP_MIN] {
            x.extend([-1i32, 1].map(|d| f32::from_bits(edge.to_bits().wrapping_add_signed(d))));
        }
        x.resize(x.len().next_multiple_of(16), 1.0);
        let mut got = x.clone();
        // SAFETY: the processor was asked.
        unsafe { all(&mut got) };
        for (x, got) in x.iter().zip(&got) {
            assert_eq!(got.to_bits(), exp(*x).to_bits(), "exp({x})");
        }
    }
}
