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
//! 3. A forced token is taken, masked or not, and nothing below happens.
//! 4. `y = x`; each bias entry adds; each history entry: tokens of prompt or output take the repetition penalty (`y / r` if
//!    positive, else `y * r`; Keskar et al., arXiv 1909.05858), tokens of the output then `(y - presence) - frequency *
//!    count`. Where the row has a mask, a token whose bit is not set becomes minus infinity.
//! 5. `Y = max y`. A NaN or plus infinity in `y`: status 1. `Y` minus infinity (every token banned or masked): status 2. Temperature
//!    0: the token of `Y`, the lowest id of equals.
//! 6. `w = exp((y - Y) / temperature)`. The *order* is by descending `y`, then ascending id; every filter keeps a prefix
//!    of it. Top-k keeps k. `S` is the sum of the kept `w` (in order in f64 after top-k, else sum8 by id). Top-p keeps while the
//!    sum before the candidate is below `top_p * S`; min-p keeps while `w >= min_p`. If they dropped anything, `S` is summed
//!    again in order.
//! 7. One draw `u`: the first candidate in order whose running sum exceeds `u * S`.
//!
//! The order is made lazily, in bands of falling `w`: a draw seldom looks past the first.

mod draw;
mod sums;

use metrale_core::numeric::math;
use metrale_core::{Elem, HistoryEntry, SampleRow, StepBlock, Unit};

use crate::args::{Grid, RowShape, Tile};
use crate::decl;
use crate::isa::{Isa, on_isa};
use crate::lanes::on_lanes;
use crate::point::{HostPoint, Need, TileFault, f32s, positive};
use crate::scratch::{Scratch, grown};
use draw::draw;
use sums::{largest, sum_exp, weights};

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
        let changes = Changes {
            history,
            bias,
            mask: row.mask.map(|mask| step.mask(mask)),
        };
        let answer = sample_row(isa, x, &row, &changes, top, scratch);
        token.row(r)[0] = answer.token;
        logprob.row(r)[0] = answer.logprob;
        status.row(r)[0] = answer.status;
    }
    Ok(())
}

/// What step 4 does to a row: words of the step block.
struct Changes<'a> {
    history: &'a [u32],
    bias: &'a [u32],
    mask: Option<&'a [u32]>,
}

impl Changes<'_> {
    fn none(&self) -> bool {
        self.history.is_empty() && self.bias.is_empty() && self.mask.is_none()
    }
}

fn sample_row(
    isa: Isa,
    x: &[f32],
    row: &SampleRow,
    changes: &Changes<'_>,
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
    if row.temperature == 0.0 && changes.none() {
        return found(first_at(x, max));
    }
    let y = grown(&mut scratch.f32s, x.len());
    y.copy_from_slice(x);
    adjust(y, row, changes);
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

fn first_at(x: &[f32], value: f32) -> u32 {
    x.iter().position(|v| *v == value).unwrap_or(0) as u32
}

fn adjust(y: &mut [f32], row: &SampleRow, changes: &Changes<'_>) {
    for pair in changes.bias.chunks_exact(2) {
        if let Some(y) = y.get_mut(pair[0] as usize) {
            *y += f32::from_bits(pair[1]);
        }
    }
    for pair in changes.history.chunks_exact(2) {
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
    if let Some(mask) = changes.mask {
        forbid(y, mask);
    }
}

/// Makes minus infinity of what the mask does not allow.
fn forbid(y: &mut [f32], mask: &[u32]) {
    let words = mask.iter().copied().chain(std::iter::repeat(0));
    for (values, word) in y.chunks_mut(32).zip(words) {
        match word {
            u32::MAX => {}
            0 => values.fill(f32::NEG_INFINITY),
            _ => {
                for (bit, value) in values.iter_mut().enumerate() {
                    if word >> bit & 1 == 0 {
                        *value = f32::NEG_INFINITY;
                    }
                }
            }
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
