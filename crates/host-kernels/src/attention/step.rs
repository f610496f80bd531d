// SPDX-License-Identifier: MIT OR Apache-2.0
//! The portable arithmetic of one head: a step of keys, and the merge of two cuts. The spec stands in [`super`].

use metrale_core::numeric::math::tanh;

use super::STEP;
use crate::lanes::{F8, Lanes, dot, exp};

/// Running softmax of one head: the maximum and the sum of what was seen.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Running {
    pub(super) m: f32,
    pub(super) l: f32,
}

/// Nothing seen yet.
pub(super) const FRESH: Running = Running {
    m: f32::NEG_INFINITY,
    l: 0.0,
};

/// The larger; `b` if either is NaN, so that a NaN score reaches the output through its `p`, not through `m`.
#[inline(always)]
pub(super) fn larger(a: f32, b: f32) -> f32 {
    if a > b { a } else { b }
}

/// What a step of keys needs: keys `[n, dim]` and values in f32, the factor of the scores and their cap.
#[derive(Clone, Copy)]
pub(super) struct Keys<'a> {
    pub(super) keys: &'a [f32],
    pub(super) values: &'a [f32],
    /// From one key's values to the next's.
    pub(super) stride: usize,
    /// Live keys, 1 to 16.
    pub(super) n: usize,
    pub(super) scale: f32,
    /// 0: none.
    pub(super) cap: f32,
}

/// Caps scores: `cap * tanh(score / cap)`.
pub(super) fn capped(scores: &mut [f32], cap: f32) {
    if cap > 0.0 {
        scores.iter_mut().for_each(|s| *s = cap * tanh(*s / cap));
    }
}

/// Takes up to 16 keys into `state` and `o`.
pub(super) fn take(state: Running, o: &mut [f32], q: &[f32], k: Keys<'_>) -> Running {
    let dim = q.len();
    let mut scores = [f32::NEG_INFINITY; STEP];
    for j in 0..k.n {
        scores[j] = dot::<F8>(q, &k.keys[j * dim..(j + 1) * dim]) * k.scale;
    }
    capped(&mut scores[..k.n], k.cap);
    let mut m = state.m;
    for s in &scores[..k.n] {
        m = larger(*s, m);
    }
    let c = exp(state.m - m);
    let mut p = [0.0; STEP];
    for half in 0..STEP / 8 {
        let s = F8::load(&scores[half * 8..]).sub(F8::splat(m));
        s.exp().store(&mut p[half * 8..]);
    }
    let mut l = state.l * c;
    for p in &p[..k.n] {
        l += p;
    }
    for (d, o) in o.iter_mut().enumerate() {
        let mut acc = *o * c;
        for (j, p) in p[..k.n].iter().enumerate() {
            acc = p.mul_add(k.values[j * k.stride + d], acc);
        }
        *o = acc;
    }
    Running { m, l }
}

/// Merges a cut into what came before it.
#[inline(always)]
pub(super) fn merge(total: Running, out: &mut [f32], cut: Running, partial: &[f32]) -> Running {
    let m = larger(cut.m, total.m);
    let (a, b) = (exp(total.m - m), exp(cut.m - m));
    for (o, p) in out.iter_mut().zip(partial) {
        *o = p.mul_add(b, *o * a);
    }
    let l = cut.l.mul_add(b, total.l * a);
    Running { m, l }
}
