// SPDX-License-Identifier: MIT OR Apache-2.0
//! `router`, `expert_glu` and `expert_sum`: what stands around the experts' matrices ([`crate::linear`]).
//!
//! *Spec* of `router`: scores are the softmax (`exp(logit - max)` over their ascending sum), the logit, or `1 / (1 +
//! exp(-logit))`. Choice is by score + bias, descending, ties to the lower id, within the best groups (the sum of a group's
//! best two; ties to the lower group). Weights are the scores without bias; of score 1, the softmax over the chosen in the
//! order of choice; `renorm` divides by their ascending sum (+ 1e-20 for sigmoid); then times `scale`. *Spec* of
//! `expert_glu`: `swiglu`'s, or of gpt-oss, `g = min(g, limit)`, `u = max(min(u, limit), -limit)`, `(u + 1) * (g / (1 +
//! exp(-(alpha * g))))`. *Spec* of `expert_sum`: one chain per column, ascending slots, `acc = fma(weight, d, acc)`.
//! [`crate::lanes::exp`] throughout; every sum has one order, and no row looks at another.

use metrale_core::{ArgDecl, Elem, StepBlock, Unit};

use crate::args::{Args, RowShape, Tile};
use crate::decl::{STEP, f, r, u, w};
use crate::elementwise::swiglu;
use crate::isa::on_isa;
use crate::lanes::{exp, on_lanes};
use crate::point::{BadConstants, HostPoint, Need, TileFault, f32s, positive};
use crate::scratch::Scratch;
use crate::tiling;

const ROUTER_ARGS: &[ArgDecl] = &[
    r("logits"),
    r("bias"),
    w("ids"),
    w("weights"),
    u("experts"),
    u("top_k"),
    u("score"),
    u("renorm"),
    u("groups"),
    u("top_groups"),
    u("has_bias"),
    f("scale"),
    STEP,
];
const GLU_ARGS: &[ArgDecl] = &[
    r("gu"),
    w("h"),
    u("slots"),
    u("ffn"),
    u("act"),
    f("alpha"),
    f("limit"),
    STEP,
];
const SUM_ARGS: &[ArgDecl] = &[r("d"), r("weights"), w("y"), u("slots"), u("cols"), STEP];

/// Softmax over all experts.
const SOFTMAX: usize = 0;
/// Softmax over the chosen ones.
const CHOSEN: usize = 1;
/// Sigmoid.
const SIGMOID: usize = 2;
/// The logit itself.
const PLAIN: usize = 3;

pub(crate) static ROUTER: HostPoint = HostPoint {
    id: "router/f32",
    args: ROUTER_ARGS,
    needs: router_needs,
    grid: |a, c| tiling::rows(c.rows, 16 * a.u32(4)),
    run: router,
};

fn router_needs(a: &Args) -> Result<Vec<Need>, BadConstants> {
    let (experts, top_k, score) = (a.u32(4), a.u32(5), a.u32(6));
    let (groups, top_groups) = (a.u32(8), a.u32(9));
    positive(&[
        ("top_k", top_k),
        ("groups", groups),
        ("top_groups", top_groups),
    ])?;
    if !experts.is_multiple_of(groups)
        || top_groups > groups
        || top_k > experts / groups * top_groups
        || score > PLAIN
    {
        return Err(BadConstants::new(format!(
            "{top_k} of {experts} experts in {top_groups} of {groups} groups by score {score} cannot be chosen"
        )));
    }
    let bias = if a.u32(10) == 0 { 0 } else { experts };
    let ids = Need::Values {
        elem: Elem::U32,
        unit: Unit::Row,
        elems: top_k as u64,
    };
    Ok(vec![
        f32s(Unit::Row, experts),
        f32s(Unit::One, bias),
        ids,
        f32s(Unit::Row, top_k),
    ])
}

fn router(tile: &mut Tile<'_>, _: &StepBlock, scratch: &mut Scratch) -> Result<(), TileFault> {
    let a = tile.args();
    let (experts, top_k, score) = (a.u32(4), a.u32(5), a.u32(6));
    let (renorm, groups, top_groups) = (a.u32(7) != 0, a.u32(8), a.u32(9));
    let (has_bias, scale) = (a.u32(10) != 0, a.f32(11));
    let (logits, bias) = (tile.input::<f32>(0), tile.input::<f32>(1));
    let mut ids = tile.output::<u32>(2, RowShape::whole(top_k));
    let mut weights = tile.output::<f32>(3, RowShape::whole(top_k));
    for r in tile.rows() {
        let logits = &logits[r * experts..(r + 1) * experts];
        let scores = crate::scratch::grown(&mut scratch.f32s, experts);
        scores_of(score, logits, scores);
        let ranked = &mut scratch.pairs;
        ranked.clear();
        ranked.extend(scores.iter().enumerate().map(|(e, s)| {
            let bias = if has_bias { bias[e] } else { 0.0 };
            (*s + bias, e as u32)
        }));
        if top_groups < groups {
            keep_groups(ranked, groups, top_groups);
        }
        ranked.sort_unstable_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        let (ids, weights) = (ids.row(r), weights.row(r));
        for ((id, weight), (_, e)) in ids.iter_mut().zip(&mut *weights).zip(&*ranked) {
            (*id, *weight) = (*e, scores[*e as usize]);
        }
        finish(score, renorm, scale, weights);
    }
    Ok(())
}

fn scores_of(score: usize, logits: &[f32], scores: &mut [f32]) {
    match score {
        SOFTMAX => softmax(logits, scores),
        SIGMOID => {
            for (s, l) in scores.iter_mut().zip(logits) {
                *s = 1.0 / (1.0 + exp(0.0 - l));
            }
        }
        _ => scores.copy_from_slice(logits),
    }
}

fn softmax(logits: &[f32], out: &mut [f32]) {
    let max = logits
        .iter()
        .fold(f32::NEG_INFINITY, |m, l| if *l > m { *l } else { m });
    let mut sum = 0.0;
    for (o, l) in out.iter_mut().zip(logits) {
        *o = exp(l - max);
        sum += *o;
    }
    out.iter_mut().for_each(|o| *o /= sum);
}

/// Drops the experts of all but the best groups.
fn keep_groups(ranked: &mut Vec<(f32, u32)>, groups: usize, top: usize) {
    let size = ranked.len() / groups;
    let mut best: Vec<(f32, usize)> = ranked
        .chunks_exact(size)
        .enumerate()
        .map(|(g, group)| {
            let (mut first, mut second) = (f32::NEG_INFINITY, f32::NEG_INFINITY);
            for (s, _) in group {
                if *s > first {
                    (first, second) = (*s, first);
                } else if *s > second {
                    second = *s;
                }
            }
            (if size > 1 { first + second } else { first }, g)
        })
        .collect();
    best.sort_unstable_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
    let kept = &best[..top];
    ranked.retain(|(_, e)| kept.iter().any(|(_, g)| *g == *e as usize / size));
}

fn finish(score: usize, renorm: bool, scale: f32, weights: &mut [f32]) {
    if score == CHOSEN {
        let max = weights.first().copied().unwrap_or(0.0);
        weights.iter_mut().for_each(|w| *w = exp(*w - max));
    }
    if renorm || score == CHOSEN {
        let mut sum = 0.0;
        weights.iter().for_each(|w| sum += *w);
        if score == SIGMOID {
            sum += 1e-20;
        }
        weights.iter_mut().for_each(|w| *w /= sum);
    }
    weights.iter_mut().for_each(|w| *w *= scale);
}

pub(crate) static GLU: HostPoint = HostPoint {
    id: "expert_glu/f32",
    args: GLU_ARGS,
    needs: |a| {
        let (slots, ffn, act) = (a.u32(2), a.u32(3), a.u32(4));
        positive(&[("slots", slots), ("ffn", ffn)])?;
        if act > 1 {
            return Err(BadConstants::new(format!("there is no activation {act}")));
        }
        Ok(vec![
            f32s(Unit::Row, slots * 2 * ffn),
            f32s(Unit::Row, slots * ffn),
        ])
    },
    grid: |a, c| tiling::rows(c.rows * a.u32(2) as u32, 2 * a.u32(3)),
    run: |tile, _, _| {
        let args = tile.args();
        let (ffn, act, alpha, limit) = (args.u32(3), args.u32(4), args.f32(5), args.f32(6));
        let gu = tile.input::<f32>(0);
        let mut h = tile.output::<f32>(1, RowShape::whole(ffn));
        for r in tile.rows() {
            let (gate, up) = gu[r * 2 * ffn..(r + 1) * 2 * ffn].split_at(ffn);
            let out = h.row(r);
            if act == 0 {
                on_lanes!(args.isa, swiglu,
                    (out: &mut [f32] = out, gate: &[f32] = gate, up: &[f32] = up));
            } else {
                on_isa!(args.isa, clamped, (out: &mut [f32] = out, gate: &[f32] = gate,
                    up: &[f32] = up, alpha: f32 = alpha, limit: f32 = limit));
            }
        }
        Ok(())
    },
};

#[inline(always)]
fn clamped(out: &mut [f32], gate: &[f32], up: &[f32], alpha: f32, limit: f32) {
    for ((h, g), u) in out.iter_mut().zip(gate).zip(up) {
        let g = if *g > limit { limit } else { *g };
        let u = if *u > limit { limit } else { *u };
        let u = if u < -limit { -limit } else { u };
        *h = (u + 1.0) * (g / (1.0 + exp(0.0 - alpha * g)));
    }
}

/// Columns of an `expert_sum` tile.
const SLICE: u32 = 1024;

pub(crate) static SUM: HostPoint = HostPoint {
    id: "expert_sum/f32",
    args: SUM_ARGS,
    needs: |a| {
        let (slots, cols) = (a.u32(3), a.u32(4));
        positive(&[("slots", slots), ("cols", cols)])?;
        Ok(vec![
            f32s(Unit::Row, slots * cols),
            f32s(Unit::Row, slots),
            f32s(Unit::Row, cols),
        ])
    },
    grid: |a, c| crate::args::Grid {
        rows: c.rows,
        row_block: 1,
        cols: (a.u32(4) as u32).div_ceil(SLICE),
        col_block: 1,
    },
    run: |tile, _, _| {
        let args = tile.args();
        let (slots, cols) = (args.u32(3), args.u32(4));
        let (d, weights) = (tile.input::<f32>(0), tile.input::<f32>(1));
        let shape = RowShape {
            first: 0,
            ld: cols,
            base: 0,
            width: cols,
            unit: SLICE as usize,
        };
        let mut y = tile.output::<f32>(2, shape);
        let begin = tile.cols().start * SLICE as usize;
        for r in tile.rows() {
            let out = y.row(r);
            out.fill(0.0);
            for slot in 0..slots {
                let weight = weights[r * slots + slot];
                let from = &d[(r * slots + slot) * cols + begin..][..out.len()];
                on_isa!(args.isa, accumulate,
                    (acc: &mut [f32] = &mut *out, d: &[f32] = from, weight: f32 = weight));
            }
        }
        Ok(())
    },
};

#[inline(always)]
fn accumulate(acc: &mut [f32], d: &[f32], weight: f32) {
    for (acc, d) in acc.iter_mut().zip(d) {
        *acc = weight.mul_add(*d, *acc);
    }
}
