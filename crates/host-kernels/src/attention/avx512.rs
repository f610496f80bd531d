// SPDX-License-Identifier: MIT OR Apache-2.0
//! A step of keys for all query heads of a key head with AVX-512: the bits of [`super::step::take`], head by head.
//!
//! What a step costs one head is mostly waiting: for the maximum, for an exponential, for a sum of 16 terms in order. Here
//! the heads of a group go through each stage together, so that their chains overlap and each key is loaded once for up to
//! [`HEADS`] of them. A register of scores holds two keys side by side, eight lanes each: `lanes8` as it is.

use std::arch::x86_64::*;

use metrale_core::numeric::math;

use super::STEP;
use super::step::{Keys, Running, capped, larger};

/// Heads that share a load.
const HEADS: usize = 4;

/// Takes up to 16 keys into each head's state and its `width` values of `o`; `q(h)` is head `h`'s query.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512dq,avx512vl")]
pub(super) fn take<'a>(
    states: &mut [Running],
    o: &mut [f32],
    q: impl Fn(usize) -> &'a [f32],
    k: Keys<'_>,
) {
    let width = o.len() / states.len().max(1);
    let mut begin = 0;
    for (states, o) in states.chunks_mut(HEADS).zip(o.chunks_mut(HEADS * width)) {
        match states.len() {
            1 => heads::<1>(states, o, [q(begin)], k),
            2 => heads::<2>(states, o, [q(begin), q(begin + 1)], k),
            3 => heads::<3>(states, o, [q(begin), q(begin + 1), q(begin + 2)], k),
            _ => heads::<4>(
                states,
                o,
                [q(begin), q(begin + 1), q(begin + 2), q(begin + 3)],
                k,
            ),
        }
        begin += HEADS;
    }
}

/// Whether [`take`] can be used: whole vectors of queries and of values.
pub(super) fn fits(dim: usize, width: usize) -> bool {
    dim.is_multiple_of(8) && width.is_multiple_of(16)
}

#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512dq,avx512vl")]
fn heads<const H: usize>(states: &mut [Running], o: &mut [f32], q: [&[f32]; H], k: Keys<'_>) {
    let (dim, width) = (q[0].len(), o.len() / H);
    let rows = k.n.next_multiple_of(8);
    // Keys past the live ones may be read, since the buffers hold at least 16; what they give is thrown away below.
    assert!(fits(dim, width) && (1..=STEP).contains(&k.n) && states.len() == H);
    assert!(q.iter().all(|q| q.len() == dim) && o.len() == H * width);
    assert!(k.keys.len() >= rows * dim && k.values.len() >= (k.n - 1) * k.stride + width);
    // SAFETY: eight keys lie in `keys`, and eight more where there are more than eight rows, asserted above.
    let (low, high) = unsafe {
        let keys = k.keys.as_ptr();
        let low = dots8(q, keys, dim);
        match rows {
            16 => (low, dots8(q, keys.add(8 * dim), dim)),
            _ => (low, [_mm256_setzero_ps(); H]),
        }
    };
    let live = ((1u32 << k.n) - 1) as u16;
    let (mut m, mut c, mut p, mut l) = ([0.0; H], [0.0; STEP], [[0.0; STEP]; H], [0.0; H]);
    for h in 0..H {
        let both = _mm512_insertf32x8::<1>(_mm512_castps256_ps512(low[h]), high[h]);
        let mut scores = _mm512_mul_ps(both, _mm512_set1_ps(k.scale));
        if k.cap > 0.0 {
            scores = with_cap(scores, k.n, k.cap);
        }
        let scores = _mm512_mask_mov_ps(_mm512_set1_ps(f32::NEG_INFINITY), live, scores);
        m[h] = largest(scores, states[h].m);
        c[h] = states[h].m - m[h];
        let powers = exp16(_mm512_sub_ps(scores, _mm512_set1_ps(m[h])));
        // SAFETY: 16 values.
        unsafe { _mm512_storeu_ps(p[h].as_mut_ptr(), powers) };
    }
    // SAFETY: 16 values.
    unsafe { _mm512_storeu_ps(c.as_mut_ptr(), exp16(_mm512_loadu_ps(c.as_ptr()))) };
    for h in 0..H {
        l[h] = states[h].l * c[h];
    }
    for j in 0..k.n {
        for h in 0..H {
            l[h] += p[h][j];
        }
    }
    for h in 0..H {
        states[h] = Running { m: m[h], l: l[h] };
    }
    let mut d = 0;
    while d + 64 <= width {
        // SAFETY: 64 values from `d` on of each head's `width`, and of each of the `n` values.
        unsafe { accumulate::<H, 4>(o.as_mut_ptr().add(d), width, &p, &k, d, c) };
        d += 64;
    }
    while d < width {
        // SAFETY: 16 values from `d` on: `width` is a multiple of 16.
        unsafe { accumulate::<H, 1>(o.as_mut_ptr().add(d), width, &p, &k, d, c) };
        d += 16;
    }
}

/// The first `n` scores capped, as the portable path does it.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512dq,avx512vl")]
fn with_cap(scores: __m512, n: usize, cap: f32) -> __m512 {
    let mut all = [0.0; STEP];
    // SAFETY: 16 values, both ways.
    unsafe {
        _mm512_storeu_ps(all.as_mut_ptr(), scores);
        capped(&mut all[..n], cap);
        _mm512_loadu_ps(all.as_ptr())
    }
}

/// The largest of `m` and the scores that are numbers. The portable path compares one after the other, and a maximum has no
/// order; which zero it gives where both are there changes nothing after it.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512dq,avx512vl")]
fn largest(scores: __m512, m: f32) -> f32 {
    let numbers = _mm512_cmp_ps_mask::<_CMP_ORD_Q>(scores, scores);
    let scores = _mm512_mask_mov_ps(_mm512_set1_ps(m), numbers, scores);
    larger(_mm512_reduce_max_ps(scores), m)
}

/// The exponential of each lane, by the operations of [`crate::lanes::exp`] in its order. `min(a, b)` gives `b` if either is
/// NaN, so that a NaN stays.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512dq,avx512vl")]
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

/// The dot products of each query with eight keys, each by `lanes8`.
///
/// # Safety
/// `keys` points to eight times `dim` values; each query has `dim`.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512dq,avx512vl")]
unsafe fn dots8<const H: usize>(q: [&[f32]; H], keys: *const f32, dim: usize) -> [__m256; H] {
    // Vector `t` holds keys `t` and `t + 4`.
    let mut acc = [[_mm512_setzero_ps(); 4]; H];
    let mut d = 0;
    while d < dim {
        // SAFETY: `d + 8 <= dim`, a multiple of 8; keys below 8.
        unsafe {
            let q = q.map(|q| _mm512_broadcast_f32x8(_mm256_loadu_ps(q.as_ptr().add(d))));
            for t in 0..4 {
                let low = _mm512_castps256_ps512(_mm256_loadu_ps(keys.add(t * dim + d)));
                let high = _mm256_loadu_ps(keys.add((t + 4) * dim + d));
                let both = _mm512_insertf32x8::<1>(low, high);
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
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512dq,avx512vl")]
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

/// `o = o * c`, then `fma(p[j], v[j], o)` ascending, for `N` vectors of each head.
///
/// # Safety
/// `16 * N` values at `o`, and at every `width` after it for each head; each live value has `16 * N` from `d` on.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512dq,avx512vl")]
unsafe fn accumulate<const H: usize, const N: usize>(
    o: *mut f32,
    width: usize,
    p: &[[f32; STEP]; H],
    k: &Keys<'_>,
    d: usize,
    c: [f32; STEP],
) {
    assert!(k.values.len() >= (k.n - 1) * k.stride + d + 16 * N);
    let mut acc = [[_mm512_setzero_ps(); N]; H];
    for h in 0..H {
        for i in 0..N {
            // SAFETY: the caller's.
            let was = unsafe { _mm512_loadu_ps(o.add(h * width + 16 * i)) };
            acc[h][i] = _mm512_mul_ps(was, _mm512_set1_ps(c[h]));
        }
    }
    for j in 0..k.n {
        for i in 0..N {
            // SAFETY: value `j`, asserted above.
            let v = unsafe { _mm512_loadu_ps(k.values.as_ptr().add(j * k.stride + d + 16 * i)) };
            for h in 0..H {
                acc[h][i] = _mm512_fmadd_ps(_mm512_set1_ps(p[h][j]), v, acc[h][i]);
            }
        }
    }
    for h in 0..H {
        for i in 0..N {
            // SAFETY: the caller's.
            unsafe { _mm512_storeu_ps(o.add(h * width + 16 * i), acc[h][i]) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isa::Isa;
    use crate::lanes::exp;

    #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512dq,avx512vl")]
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
