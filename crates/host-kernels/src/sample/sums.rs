// SPDX-License-Identifier: MIT OR Apache-2.0
//! Passes over a whole row: the maximum, the sums, the weights.

use crate::isa::Isa;
use crate::lanes::{Lanes, on_lanes};

/// The largest value that is no NaN, and whether all are finite.
#[inline(always)]
pub(super) fn largest(x: &[f32]) -> (f32, bool) {
    let mut max = [f32::NEG_INFINITY; 8];
    // x * 0 is 0 for finite values and NaN for the others.
    let mut bad = [0.0f32; 8];
    let mut chunks = x.chunks_exact(8);
    for chunk in &mut chunks {
        for i in 0..8 {
            bad[i] += chunk[i] * 0.0;
            max[i] = if chunk[i] > max[i] { chunk[i] } else { max[i] };
        }
    }
    for v in chunks.remainder() {
        bad[0] += v * 0.0;
        max[0] = if *v > max[0] { *v } else { max[0] };
    }
    let finite = !bad.iter().any(|b| b.is_nan());
    let max = max
        .iter()
        .fold(f32::NEG_INFINITY, |a, b| if *b > a { *b } else { a });
    (max, finite)
}

/// Sum8 of `exp(x - max)`.
pub(super) fn sum_exp(isa: Isa, x: &[f32], max: f32) -> f64 {
    on_lanes!(isa, sum_exp_body, (x: &[f32] = x, max: f32 = max) -> f64)
}

#[inline(always)]
fn sum_exp_body<L: Lanes>(x: &[f32], max: f32) -> f64 {
    let mut sums = [0.0f64; 8];
    let max = L::splat(max);
    let mut chunks = x.chunks_exact(8);
    for chunk in &mut chunks {
        L::load(chunk).sub(max).exp().add_wide(&mut sums);
    }
    // A lane past the end adds exp(-inf) = 0: exact.
    let mut rest = [f32::NEG_INFINITY; 8];
    rest[..chunks.remainder().len()].copy_from_slice(chunks.remainder());
    L::load(&rest).sub(max).exp().add_wide(&mut sums);
    fold8(sums)
}

#[inline(always)]
pub(super) fn sum8(w: &[f32]) -> f64 {
    let mut lanes = [0.0f64; 8];
    for chunk in w.chunks(8) {
        for (lane, w) in lanes.iter_mut().zip(chunk) {
            *lane += f64::from(*w);
        }
    }
    fold8(lanes)
}

#[inline(always)]
fn fold8(l: [f64; 8]) -> f64 {
    ((l[0] + l[4]) + (l[2] + l[6])) + ((l[1] + l[5]) + (l[3] + l[7]))
}

#[inline(always)]
pub(super) fn weights<L: Lanes>(w: &mut [f32], y: &[f32], best: f32, temperature: f32) {
    let whole = y.len() / 8 * 8;
    let (best8, t8) = (L::splat(best), L::splat(temperature));
    let mut i = 0;
    while i < whole {
        L::load(&y[i..]).sub(best8).div(t8).exp().store(&mut w[i..]);
        i += 8;
    }
    for i in whole..y.len() {
        w[i] = crate::lanes::exp((y[i] - best) / temperature);
    }
}
