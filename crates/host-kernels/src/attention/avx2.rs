// SPDX-License-Identifier: MIT OR Apache-2.0
//! A step of keys with AVX2, for keys and values whose sizes are multiples of 8: the bits of [`super::step::take`].

use std::arch::x86_64::*;

use super::STEP;
use super::step::{Keys, Running, capped, larger};
use crate::lanes::{Lanes, Y8, exp};

/// Takes up to 16 keys into `state` and `o`.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn take(state: Running, o: &mut [f32], q: &[f32], k: Keys<'_>) -> Running {
    let (dim, width) = (q.len(), o.len());
    let rows = k.n.next_multiple_of(8);
    // Keys past the live ones may be read, since the buffers hold more than 16; what they give is thrown away below.
    assert!(dim.is_multiple_of(8) && width.is_multiple_of(8) && (1..=STEP).contains(&k.n));
    assert!(k.keys.len() >= rows * dim && k.values.len() >= (k.n - 1) * k.stride + width);
    let mut scores = [f32::NEG_INFINITY; STEP];
    for begin in (0..rows).step_by(8) {
        // SAFETY: eight keys from `begin` on lie in `keys`, asserted above; eight scores from `begin` on.
        unsafe {
            let dots = dots8(q, k.keys.as_ptr().add(begin * dim));
            let scaled = _mm256_mul_ps(dots, _mm256_set1_ps(k.scale));
            _mm256_storeu_ps(scores.as_mut_ptr().add(begin), scaled);
        }
    }
    scores[k.n..].fill(f32::NEG_INFINITY);
    capped(&mut scores[..k.n], k.cap);
    let mut m = state.m;
    for s in &scores[..k.n] {
        m = larger(*s, m);
    }
    let c = exp(state.m - m);
    let mut p = [0.0; STEP];
    for half in 0..STEP / 8 {
        let s = Y8::load(&scores[half * 8..]).sub(Y8::splat(m));
        s.exp().store(&mut p[half * 8..]);
    }
    let mut l = state.l * c;
    for p in &p[..k.n] {
        l += p;
    }
    let mut d = 0;
    while d + 64 <= width {
        // SAFETY: 64 values from `d` on, in `o` and in each of the `n` values.
        unsafe {
            accumulate::<8>(
                o.as_mut_ptr().add(d),
                &p[..k.n],
                &k.values[d..],
                k.stride,
                c,
            )
        };
        d += 64;
    }
    while d < width {
        // SAFETY: 8 values from `d` on: `width` is a multiple of 8.
        unsafe {
            accumulate::<1>(
                o.as_mut_ptr().add(d),
                &p[..k.n],
                &k.values[d..],
                k.stride,
                c,
            )
        };
        d += 8;
    }
    Running { m, l }
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

/// `o = o * c`, then `fma(p[j], v[j], o)` ascending, for `N` vectors.
///
/// # Safety
/// `8 * N` values at `o`; `v` holds `p.len()` rows of `8 * N` values, `dim` apart.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn accumulate<const N: usize>(o: *mut f32, p: &[f32], v: &[f32], dim: usize, c: f32) {
    assert!(v.len() >= (p.len() - 1) * dim + 8 * N);
    let c = _mm256_set1_ps(c);
    let mut acc = [_mm256_setzero_ps(); N];
    for i in 0..N {
        // SAFETY: the caller's.
        acc[i] = unsafe { _mm256_mul_ps(_mm256_loadu_ps(o.add(8 * i)), c) };
    }
    for (j, p) in p.iter().enumerate() {
        let p = _mm256_set1_ps(*p);
        for i in 0..N {
            // SAFETY: row `j` of `v`, asserted above.
            let v = unsafe { _mm256_loadu_ps(v.as_ptr().add(j * dim + 8 * i)) };
            acc[i] = _mm256_fmadd_ps(p, v, acc[i]);
        }
    }
    for i in 0..N {
        // SAFETY: the caller's.
        unsafe { _mm256_storeu_ps(o.add(8 * i), acc[i]) };
    }
}
