// SPDX-License-Identifier: MIT OR Apache-2.0
//! The portable arithmetic of one head: scores, softmax and values of a cut, and the merge of two cuts. The spec stands in
//! [`super`].

use std::ops::Range;

use metrale_core::numeric::math::tanh;

use super::STEP;
use crate::lanes::{F8, Lanes, dot};

/// Softmax of one head over what was seen: the maximum and the sum.
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

/// What scores are made with.
#[derive(Clone, Copy)]
pub(super) struct Factors<'a> {
    /// The keys' own, or nothing.
    pub(super) own: &'a [f32],
    pub(super) scale: f32,
    /// Cap of the scores; 0 = none.
    pub(super) cap: f32,
}

impl Factors<'_> {
    /// Caps scores: `cap * tanh(score / cap)`.
    pub(super) fn cap(&self, scores: &mut [f32]) {
        let cap = self.cap;
        if cap > 0.0 {
            scores.iter_mut().for_each(|s| *s = cap * tanh(*s / cap));
        }
    }
}

/// Scores of the `keys` of a chunk, whose blocks have `dim` values a key.
pub(super) fn scores(
    q: &[f32],
    blocks: &[&[f32]],
    keys: Range<usize>,
    factors: Factors<'_>,
    out: &mut [f32],
) {
    let dim = q.len();
    for j in keys.clone() {
        let key = &blocks[j / STEP][j % STEP * dim..][..dim];
        let mut score = dot::<F8>(q, key);
        if !factors.own.is_empty() {
            score *= factors.own[j];
        }
        out[j] = score * factors.scale;
    }
    factors.cap(&mut out[keys]);
}

/// Scores to powers. A multiple of 16 of them; what is no key holds -inf and becomes 0.
#[inline(always)]
pub(super) fn softmax<L: Lanes>(scores: &mut [f32]) -> Running {
    let mut top = L::splat(f32::NEG_INFINITY);
    for s in scores.chunks_exact(8) {
        top = L::load(s).larger(top);
    }
    let mut tops = [0.0; 8];
    top.store(&mut tops);
    let m = tops
        .into_iter()
        .fold(f32::NEG_INFINITY, |m, t| larger(t, m));
    let (mut low, mut high) = (L::splat(0.0), L::splat(0.0));
    let largest = L::splat(m);
    for both in scores.chunks_exact_mut(16) {
        let (a, b) = both.split_at_mut(8);
        let (p, q) = (L::load(a).sub(largest).exp(), L::load(b).sub(largest).exp());
        p.store(a);
        q.store(b);
        (low, high) = (low.add(p), high.add(q));
    }
    Running {
        m,
        l: low.add(high).sum(),
    }
}

/// Adds the values of the `keys` of a chunk to `o`, each with its power; a value begins every `stride`.
pub(super) fn values(
    o: &mut [f32],
    p: &[f32],
    blocks: &[&[f32]],
    stride: usize,
    keys: Range<usize>,
) {
    for j in keys {
        let value = &blocks[j / STEP][j % STEP * stride..][..o.len()];
        for (o, v) in o.iter_mut().zip(value) {
            *o = p[j].mul_add(*v, *o);
        }
    }
}

/// Merges a cut into what came before it.
#[inline(always)]
pub(super) fn merge(total: Running, out: &mut [f32], cut: Running, partial: &[f32]) -> Running {
    use crate::lanes::exp;
    let m = larger(cut.m, total.m);
    let (a, b) = (exp(total.m - m), exp(cut.m - m));
    for (o, p) in out.iter_mut().zip(partial) {
        *o = p.mul_add(b, *o * a);
    }
    let l = cut.l.mul_add(b, total.l * a);
    Running { m, l }
}
