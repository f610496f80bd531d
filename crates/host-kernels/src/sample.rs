// SPDX-License-Identifier: MIT OR Apache-2.0
//! `sample`: from raw logits to a token, its log-probability and the most likely alternatives, one row per tile.
//!
//! *Spec* (`exp`, `ln` of [`metrale_core::numeric::math`]; *sum8* = eight f64 lanes by `id mod 8`, folded like `lanes8`):
//!
//! The contract is the host reference of the sampling crate, to the bit; this is the same arithmetic without the sort.
//!
//! 1. A NaN or an infinity among the raw logits `x`: status 1, token 0, log-probability NaN, no alternatives.
//! 2. `M = max x`, `Z = sum8(exp(x - M))`, log-probability of a token: `(x - M) - ln(f32(Z))`. Alternatives are the largest
//!    raw logits, equal ones by ascending id; unused entries are (`u32::MAX`, 0).
//! 3. A forced token is taken, and nothing below happens.
//! 4. `y = x`; each bias entry adds; each history entry: tokens of prompt or output take the repetition penalty (`y / r` if
//!    positive, else `y * r`; Keskar et al., arXiv 1909.05858), tokens of the output then `(y - presence) - frequency *
//!    count`.
//! 5. `Y = max y`. A NaN or plus infinity in `y`: status 1. `Y` minus infinity (every token banned): status 2. Temperature
//!    0: the token of `Y`, the lowest id of equals.
//! 6. `w = exp((y - Y) / temperature)`. The *order* is by descending `y`, then ascending id; every filter keeps a prefix
//!    of it. Top-k keeps k. `S` is the sum of the kept `w` (in order in f64 after top-k, else sum8 by id). Top-p keeps while the
//!    sum before the candidate is below `top_p * S`; min-p keeps while `w >= min_p`. If they dropped anything, `S` is summed
//!    again in order.
//! 7. One draw `u`: the first candidate in order whose running sum exceeds `u * S`.
//!
//! The order is made lazily, in bands of falling `w`: a draw seldom looks past the first.

use std::cmp::Ordering;

use metrale_core::numeric::math;
use metrale_core::rng::uniform;
use metrale_core::{Elem, HistoryEntry, SampleRow, StepBlock, Unit};

use crate::args::{Grid, RowShape, Tile};
use crate::decl;
use crate::isa::{Isa, on_isa};
use crate::lanes::{Lanes, on_lanes};
use crate::point::{HostPoint, Need, TileFault, f32s, positive};
use crate::scratch::{Scratch, grown};

/// Words of a row of alternatives.
const TOP_WORDS: usize = 2 * SampleRow::MAX_TOP as usize;
/// An unused alternative.
const NO_TOKEN: u32 = u32::MAX;

pub(crate) static SAMPLE: HostPoint = HostPoint {
    id: "sample/f32",
    args: decl::SAMPLE,
    needs: |a| {
        let vocab = a.u32(5);
        positive(&[("vocab", vocab)])?;
        let unit = Unit::LogitsRow;
        let u32s = |elems: usize| Need::Values {
            elem: Elem::U32,
            unit,
            elems: elems as u64,
        };
        Ok(vec![
            f32s(unit, vocab),
            u32s(1),
            f32s(unit, 1),
            u32s(TOP_WORDS),
            u32s(1),
        ])
    },
    grid: |_, c| Grid::rows(c.logits_rows, 1),
    run: sample,
};

/// What a row gives.
struct Answer {
    token: u32,
    logprob: f32,
    status: u32,
}

/// No token can be taken.
fn failed(status: u32) -> Answer {
    Answer {
        token: 0,
        logprob: f32::NAN,
        status,
    }
}

const NOT_FINITE: u32 = 1;
const EMPTY: u32 = 2;

fn sample(tile: &mut Tile<'_>, step: &StepBlock, scratch: &mut Scratch) -> Result<(), TileFault> {
    let (isa, vocab) = (tile.args().isa, tile.args().u32(5));
    let mut logits = tile.output::<f32>(0, RowShape::whole(vocab));
    let mut token = tile.output::<u32>(1, RowShape::whole(1));
    let mut logprob = tile.output::<f32>(2, RowShape::whole(1));
    let mut top = tile.output::<u32>(3, RowShape::whole(TOP_WORDS));
    let mut status = tile.output::<u32>(4, RowShape::whole(1));
    for r in tile.rows() {
        let (row, history, bias) = step.sampling(r as u32);
        let top = top.row(r);
        for pair in top.chunks_exact_mut(2) {
            pair.copy_from_slice(&[NO_TOKEN, 0]);
        }
        let x: &[f32] = logits.row(r);
        let answer = sample_row(isa, x, &row, history, bias, top, scratch);
        token.row(r)[0] = answer.token;
        logprob.row(r)[0] = answer.logprob;
        status.row(r)[0] = answer.status;
    }
    Ok(())
}

fn sample_row(
    isa: Isa,
    x: &[f32],
    row: &SampleRow,
    history: &[u32],
    bias: &[u32],
    top: &mut [u32],
    scratch: &mut Scratch,
) -> Answer {
    let (max, finite) = on_isa!(isa, largest, (x: &[f32] = x) -> (f32, bool));
    if !finite {
        return failed(NOT_FINITE);
    }
    let lse = math::ln(sum_exp(isa, x, max) as f32);
    let logprob = |token: u32| x.get(token as usize).map_or(f32::NAN, |l| (l - max) - lse);
    alternatives(
        x,
        row.top.min(SampleRow::MAX_TOP) as usize,
        top,
        &mut scratch.pairs,
        logprob,
    );
    let found = |token| Answer {
        token,
        logprob: logprob(token),
        status: 0,
    };
    if let Some(token) = row.forced {
        return found(token);
    }
    if row.temperature == 0.0 && history.is_empty() && bias.is_empty() {
        return found(first_at(x, max));
    }
    let y = grown(&mut scratch.f32s, x.len());
    y.copy_from_slice(x);
    adjust(y, row, history, bias);
    // Minus infinity bans a token and is no fault; the rest of what is not finite is.
    let (best, finite) = on_isa!(isa, largest, (x: &[f32] = y) -> (f32, bool));
    if !finite && y.iter().any(|v| v.is_nan() || *v == f32::INFINITY) {
        return failed(NOT_FINITE);
    }
    if best == f32::NEG_INFINITY {
        return failed(EMPTY);
    }
    if row.temperature == 0.0 {
        return found(first_at(y, best));
    }
    let w = grown(&mut scratch.more, x.len());
    on_lanes!(isa, weights,
        (w: &mut [f32] = w, y: &[f32] = y, best: f32 = best, t: f32 = row.temperature));
    draw(isa, (y, best), w, row, &mut scratch.pairs).map_or_else(|| failed(NOT_FINITE), found)
}

/// The largest value that is no NaN, and whether all are finite.
#[inline(always)]
fn largest(x: &[f32]) -> (f32, bool) {
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
fn sum_exp(isa: Isa, x: &[f32], max: f32) -> f64 {
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
fn sum8(w: &[f32]) -> f64 {
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
fn weights<L: Lanes>(w: &mut [f32], y: &[f32], best: f32, temperature: f32) {
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

fn first_at(x: &[f32], value: f32) -> u32 {
    x.iter().position(|v| *v == value).unwrap_or(0) as u32
}

fn adjust(y: &mut [f32], row: &SampleRow, history: &[u32], bias: &[u32]) {
    for pair in bias.chunks_exact(2) {
        if let Some(y) = y.get_mut(pair[0] as usize) {
            *y += f32::from_bits(pair[1]);
        }
    }
    for pair in history.chunks_exact(2) {
        let entry = HistoryEntry::from_words([pair[0], pair[1]]);
        let Some(y) = y.get_mut(entry.token as usize) else {
            continue;
        };
        if entry.in_prompt || entry.output_count > 0 {
            *y = if *y > 0.0 {
                *y / row.repetition
            } else {
                *y * row.repetition
            };
        }
        if entry.output_count > 0 {
            *y = (*y - row.presence) - row.frequency * entry.output_count as f32;
        }
    }
}

/// The `n` largest raw logits into `top` as (id, log-probability bits).
fn alternatives(
    x: &[f32],
    n: usize,
    top: &mut [u32],
    best: &mut Vec<(f32, u32)>,
    logprob: impl Fn(u32) -> f32,
) {
    if n == 0 {
        return;
    }
    best.clear();
    for (id, l) in x.iter().enumerate() {
        // Equal logits: the lower id came first and stays.
        if best.len() == n && *l <= best[n - 1].0 {
            continue;
        }
        let at = best.partition_point(|b| b.0 >= *l);
        best.truncate(n - 1);
        best.insert(at, (*l, id as u32));
    }
    for (pair, (_, id)) in top.chunks_exact_mut(2).zip(best.iter()) {
        pair.copy_from_slice(&[*id, logprob(*id).to_bits()]);
    }
}

/// Steps 6 and 7; `None` if the temperature made every weight NaN.
fn draw(
    isa: Isa,
    (y, best): (&[f32], f32),
    w: &[f32],
    row: &SampleRow,
    order: &mut Vec<(f32, u32)>,
) -> Option<u32> {
    let mut candidates = Ordered::new(y, w, best, row.temperature, order);
    let limit = if row.top_k == 0 {
        y.len()
    } else {
        (row.top_k as usize).min(y.len())
    };
    let mut total = if limit < y.len() {
        candidates.sum(limit)
    } else {
        on_isa!(isa, sum8, (w: &[f32] = w) -> f64)
    };
    let mut kept = limit;
    if row.top_p < 1.0 || row.min_p > 0.0 {
        let nucleus = f64::from(row.top_p) * total;
        let (mut sum, mut i) = (0.0, 0);
        while i < limit
            && let Some(w) = candidates.weight(i)
            && (i == 0 || row.top_p >= 1.0 || sum < nucleus)
            && w >= row.min_p
        {
            sum += f64::from(w);
            i += 1;
        }
        if i < limit {
            kept = i.max(1);
            total = candidates.sum(kept);
        }
    }
    let target = f64::from(uniform(row.seed, row.choice, row.position, 0)) * total;
    let (mut sum, mut last) = (0.0, 0);
    for i in 0..kept {
        let Some(w) = candidates.weight(i) else { break };
        sum += f64::from(w);
        if sum > target {
            return candidates.token(i);
        }
        if w == 0.0 {
            // The sum grows no more.
            break;
        }
        last = i;
    }
    candidates.token(last)
}

/// Candidates in order, sorted band by band as they are asked for.
struct Ordered<'a> {
    y: &'a [f32],
    w: &'a [f32],
    sorted: &'a mut Vec<(f32, u32)>,
    best: f32,
    temperature: f32,
    /// Width of the next band, in temperatures.
    width: f32,
    /// Every candidate with `y` at or above it is in `sorted`.
    floor: f32,
    complete: bool,
}

impl<'a> Ordered<'a> {
    fn new(
        y: &'a [f32],
        w: &'a [f32],
        best: f32,
        temperature: f32,
        sorted: &'a mut Vec<(f32, u32)>,
    ) -> Ordered<'a> {
        sorted.clear();
        let (floor, width) = (f32::INFINITY, 4.0);
        Ordered {
            y,
            w,
            sorted,
            best,
            temperature,
            width,
            floor,
            complete: false,
        }
    }

    /// The weight of candidate `i`; `None` past the last.
    fn weight(&mut self, i: usize) -> Option<f32> {
        while i >= self.sorted.len() && !self.complete {
            self.grow();
        }
        self.sorted.get(i).map(|(_, id)| self.w[*id as usize])
    }

    /// Sum of the first `n` weights, in order.
    fn sum(&mut self, n: usize) -> f64 {
        let mut sum = 0.0;
        for i in 0..n {
            match self.weight(i) {
                Some(w) => sum += f64::from(w),
                None => break,
            }
        }
        sum
    }

    fn token(&mut self, i: usize) -> Option<u32> {
        self.weight(i)?;
        Some(self.sorted[i].1)
    }

    /// The next band: 4, 8, 16 and 32 temperatures below the best, then all the rest.
    fn grow(&mut self) {
        let upper = self.floor;
        self.complete = self.width > 32.0;
        self.floor = if self.complete {
            f32::NEG_INFINITY
        } else {
            self.best - self.width * self.temperature
        };
        self.width *= 2.0;
        let begin = self.sorted.len();
        for (id, y) in self.y.iter().enumerate() {
            if *y >= self.floor && (*y < upper || upper == f32::INFINITY) {
                self.sorted.push((*y, id as u32));
            }
        }
        self.sorted[begin..].sort_unstable_by(|a, b| before(*a, *b));
    }
}

/// Whether `a` stands before `b` in the order; no value is NaN.
fn before(a: (f32, u32), b: (f32, u32)) -> Ordering {
    b.0.partial_cmp(&a.0)
        .unwrap_or(Ordering::Equal)
        .then(a.1.cmp(&b.1))
}
