// SPDX-License-Identifier: MIT OR Apache-2.0
//! Scores and values with AVX2, for sizes that are multiples of 8: the bits of [`super::portable`].

use std::arch::x86_64::*;
use std::ops::Range;

use super::STEP;
use super::portable::Factors;

/// Scores of the `keys` of a chunk; those of other keys of its blocks may be overwritten by -inf.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn scores(
    q: &[f32],
    blocks: &[&[f32]],
    keys: Range<usize>,
    factors: Factors<'_>,
    out: &mut [f32],
) {
    let dim = q.len();
    assert!(dim.is_multiple_of(8));
    for begin in (keys.start / 8 * 8..keys.end).step_by(8) {
        let block = &blocks[begin / STEP][begin % STEP * dim..][..8 * dim];
        let out = &mut out[begin..begin + 8];
        // SAFETY: eight keys in `block`, eight scores in `out`, eight factors.
        unsafe {
            let mut scores = dots8(q, block.as_ptr());
            if !factors.own.is_empty() {
                scores = _mm256_mul_ps(scores, _mm256_loadu_ps(factors.own[begin..][..8].as_ptr()));
            }
            let scaled = _mm256_mul_ps(scores, _mm256_set1_ps(factors.scale));
            _mm256_storeu_ps(out.as_mut_ptr(), scaled);
        }
        let live = keys.start.max(begin) - begin..keys.end.min(begin + 8) - begin;
        out[..live.start].fill(f32::NEG_INFINITY);
        out[live.end..].fill(f32::NEG_INFINITY);
        factors.cap(&mut out[live]);
    }
}

/// Adds the values of the `keys` of a chunk to `o`.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn values(
    o: &mut [f32],
    p: &[f32],
    blocks: &[&[f32]],
    stride: usize,
    keys: Range<usize>,
) {
    assert!(o.len().is_multiple_of(8) && p.len() >= keys.end);
    let mut d = 0;
    while d + 64 <= o.len() {
        accumulate::<8>(&mut o[d..d + 64], p, blocks, (stride, d), keys.clone());
        d += 64;
    }
    while d < o.len() {
        accumulate::<1>(&mut o[d..d + 8], p, blocks, (stride, d), keys.clone());
        d += 8;
    }
}

/// The dot products of `q` with eight keys, each by `lanes8`.
///
/// # Safety
/// `keys` points to eight times `q.len()` values.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn dots8(q: &[f32], keys: *const f32) -> __m256 {
    let dim = q.len();
    let mut acc = [_mm256_setzero_ps(); 8];
    let mut d = 0;
    while d < dim {
        // SAFETY: `d + 8 <= dim`, a multiple of 8; key `j < 8`.
        unsafe {
            let q = _mm256_loadu_ps(q.as_ptr().add(d));
            for j in 0..8 {
                let key = _mm256_loadu_ps(keys.add(j * dim + d));
                acc[j] = _mm256_fmadd_ps(q, key, acc[j]);
            }
        }
        d += 8;
    }
    // The tree of `lanes8`, eight at a time. First l(i) + l(i + 4): keys j and j + 4 share a vector.
    let halves = |a: __m256, b: __m256| {
        let low = _mm256_permute2f128_ps::<0x20>(a, b);
        _mm256_add_ps(low, _mm256_permute2f128_ps::<0x31>(a, b))
    };
    let t: [__m256; 4] = [
        halves(acc[0], acc[4]),
        halves(acc[1], acc[5]),
        halves(acc[2], acc[6]),
        halves(acc[3], acc[7]),
    ];
    // Then t(i) + t(i + 2), two keys to a half; then the last two.
    let pairs = |a: __m256, b: __m256| {
        let low = _mm256_shuffle_ps::<0x44>(a, b);
        _mm256_add_ps(low, _mm256_shuffle_ps::<0xee>(a, b))
    };
    _mm256_hadd_ps(pairs(t[0], t[1]), pairs(t[2], t[3]))
}

/// `fma(p[j], v[j], o)` ascending, for `N` vectors from column `d` on.
#[target_feature(enable = "avx2,fma,f16c")]
fn accumulate<const N: usize>(
    o: &mut [f32],
    p: &[f32],
    blocks: &[&[f32]],
    (stride, d): (usize, usize),
    keys: Range<usize>,
) {
    assert!(o.len() == 8 * N);
    let mut acc = [_mm256_setzero_ps(); N];
    for i in 0..N {
        // SAFETY: `8 * N` values at `o`.
        acc[i] = unsafe { _mm256_loadu_ps(o.as_ptr().add(8 * i)) };
    }
    for j in keys {
        let v = &blocks[j / STEP][j % STEP * stride + d..][..8 * N];
        let p = _mm256_set1_ps(p[j]);
        for i in 0..N {
            // SAFETY: `8 * N` values at `v`.
            let v = unsafe { _mm256_loadu_ps(v.as_ptr().add(8 * i)) };
            acc[i] = _mm256_fmadd_ps(p, v, acc[i]);
        }
    }
    for i in 0..N {
        // SAFETY: as above.
        unsafe { _mm256_storeu_ps(o.as_mut_ptr().add(8 * i), acc[i]) };
    }
}
