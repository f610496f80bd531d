// SPDX-License-Identifier: MIT OR Apache-2.0
//! `attention`: causal, paged, grouped queries, online softmax at fixed cuts.
//!
//! *Spec*, per row and head: keys `0..=position`, cut at absolute multiples of 256; a cut starts fresh (m = -inf, l = 0,
//! o = 0) and takes ascending steps of 16 keys (one KV block). In a step: score = `lanes8(q, k) * scale`; `m' = max(m,
//! scores)`; `c = exp(m - m')`, `p = exp(score - m')`; `l = l * c`, then `l + p` ascending; `o = o * c`, then `fma(p, v,
//! o)` ascending. Cuts merge ascending: `M' = max(M, m)`, `a = exp(M - M')`, `b = exp(m - M')`, `L = fma(l, b, L * a)`,
//! `O = fma(o, b, O * a)`. The result is `O * (1 / L)`. Keys past the position are never loaded. K and V are read as the
//! pool stores them, this step's included; everything else is f32. After Milakov and Gimelshein, "Online normalizer
//! calculation for softmax", arXiv 1805.02867.

use metrale_core::{KV_BLOCK, StepBlock, StepCounts, Unit};

use crate::args::{Args, Grid, RowShape, Tile};
use crate::decl;
use crate::isa::on_isa;
use crate::kv::{Bf16, F16, KvElem, block_of, pool, tables};
use crate::lanes::{F8, dot, exp};
use crate::point::{BadConstants, HostPoint, Need, TileFault, f32s, positive};
use crate::scratch::{Scratch, grown};

/// Keys in a cut.
const CUT: u32 = 256;
const STEP: usize = KV_BLOCK as usize;

macro_rules! point {
    ($name:ident, $elem:ty, $id:literal, $run:ident) => {
        pub(crate) static $name: HostPoint = HostPoint {
            id: $id,
            args: decl::ATTENTION,
            needs: needs::<$elem>,
            grid,
            run: $run,
        };

        fn $run(
            tile: &mut Tile<'_>,
            step: &StepBlock,
            scratch: &mut Scratch,
        ) -> Result<(), TileFault> {
            let pools = (tile.input::<$elem>(1), tile.input::<$elem>(2));
            on_isa!(
                tile.args().isa,
                run::<$elem>,
                (
                    tile: &mut Tile<'_> = tile,
                    step: &StepBlock = step,
                    scratch: &mut Scratch = scratch,
                    pools: (&[$elem], &[$elem]) = pools,
                ) -> Result<(), TileFault>
            )
        }
    };
}

point!(ATTENTION_F32, f32, "attention/f32", run_f32);
point!(ATTENTION_BF16, Bf16, "attention/bf16", run_bf16);
point!(ATTENTION_F16, F16, "attention/f16", run_f16);

fn needs<T: KvElem>(a: &Args) -> Result<Vec<Need>, BadConstants> {
    let (heads, kv, dim, per_slot) = (a.u32(5), a.u32(6), a.u32(7), a.u32(8));
    positive(&[
        ("heads", heads),
        ("kv_heads", kv),
        ("head_dim", dim),
        ("blocks_per_slot", per_slot),
    ])?;
    if !heads.is_multiple_of(kv) {
        return Err(BadConstants::new(format!(
            "{heads} heads do not share {kv} KV heads evenly"
        )));
    }
    let pool = pool(T::ELEM, kv, dim);
    let qkv = f32s(Unit::Row, (heads + 2 * kv) * dim);
    Ok(vec![
        qkv,
        pool,
        pool,
        tables(per_slot),
        f32s(Unit::Row, heads * dim),
    ])
}

fn grid(a: &Args, c: StepCounts) -> Grid {
    Grid {
        rows: c.rows,
        row_block: 1,
        cols: a.u32(6) as u32,
        col_block: 1,
    }
}

/// Running softmax of one head.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Running {
    m: f32,
    l: f32,
}

const FRESH: Running = Running {
    m: f32::NEG_INFINITY,
    l: 0.0,
};

#[inline(always)]
fn run<T: KvElem>(
    tile: &mut Tile<'_>,
    step: &StepBlock,
    scratch: &mut Scratch,
    (k_pool, v_pool): (&[T], &[T]),
) -> Result<(), TileFault> {
    let args = tile.args();
    let (heads, kv, dim, per_slot) = (args.u32(5), args.u32(6), args.u32(7), args.u32(8));
    let (scale, group) = (args.f32(9), heads / kv);
    let (qkv, tables) = (tile.input::<f32>(0), tile.input::<u32>(3));
    let shape = RowShape {
        first: 0,
        ld: heads * dim,
        base: 0,
        width: heads * dim,
        unit: group * dim,
    };
    let mut out = tile.output::<f32>(4, shape);
    let keys = grown(&mut scratch.f32s, 2 * STEP * dim);
    let (keys, values) = keys.split_at_mut(STEP * dim);
    let partial = grown(&mut scratch.more, group * dim);
    scratch.running.resize(2 * group, FRESH);
    let (cut, total) = scratch.running.split_at_mut(group);
    for r in tile.rows() {
        let head = tile.cols().start;
        let q = &qkv[r * (heads + 2 * kv) * dim + head * group * dim..][..group * dim];
        let out = out.row(r);
        let (slot, live) = (step.slots()[r], step.positions()[r] as usize + 1);
        total.fill(FRESH);
        out.fill(0.0);
        for begin in (0..live).step_by(CUT as usize) {
            cut.fill(FRESH);
            partial.fill(0.0);
            let end = live.min(begin + CUT as usize);
            for first in (begin..end).step_by(STEP) {
                let n = STEP.min(end - first);
                let block = block_of(tables, per_slot, slot, first as u32)?;
                let at = (block * kv + head) * STEP * dim;
                let fault = TileFault::Block {
                    slot,
                    block: block as u32,
                };
                widen(keys, k_pool.get(at..at + n * dim).ok_or(fault)?);
                widen(values, v_pool.get(at..at + n * dim).ok_or(fault)?);
                for g in 0..group {
                    let q = &q[g * dim..(g + 1) * dim];
                    let o = &mut partial[g * dim..(g + 1) * dim];
                    cut[g] = take_step(cut[g], o, q, &keys[..n * dim], values, n, scale);
                }
            }
            for g in 0..group {
                let o = &mut out[g * dim..(g + 1) * dim];
                total[g] = merge(total[g], o, cut[g], &partial[g * dim..(g + 1) * dim]);
            }
        }
        for g in 0..group {
            let inverse = 1.0 / total[g].l;
            for o in &mut out[g * dim..(g + 1) * dim] {
                *o *= inverse;
            }
        }
    }
    Ok(())
}

#[inline(always)]
fn widen<T: KvElem>(to: &mut [f32], from: &[T]) {
    for (t, f) in to.iter_mut().zip(from) {
        *t = f.to_f32();
    }
}

/// The larger; `b` if either is NaN, so that a NaN score reaches the output through its `p`, not through `m`.
#[inline(always)]
fn larger(a: f32, b: f32) -> f32 {
    if a > b { a } else { b }
}

#[inline(always)]
fn take_step(
    state: Running,
    o: &mut [f32],
    q: &[f32],
    keys: &[f32],
    values: &[f32],
    n: usize,
    scale: f32,
) -> Running {
    let dim = q.len();
    let mut scores = [f32::NEG_INFINITY; STEP];
    let mut m = state.m;
    for (j, key) in keys.chunks_exact(dim).enumerate() {
        scores[j] = dot(q, key) * scale;
        m = larger(scores[j], m);
    }
    let c = exp(state.m - m);
    let mut p = [0.0; STEP];
    for half in 0..STEP / 8 {
        F8::load(&scores[half * 8..])
            .sub(F8::splat(m))
            .exp()
            .store(&mut p[half * 8..]);
    }
    let mut l = state.l * c;
    for p in &p[..n] {
        l += p;
    }
    accumulate(o, &p[..n], values, c);
    Running { m, l }
}

/// `o = o * c`, then `fma(p[j], v[j], o)` ascending; four vectors at a time to fill the multiplier's latency.
#[inline(always)]
fn accumulate(o: &mut [f32], p: &[f32], values: &[f32], c: f32) {
    let dim = o.len();
    let mut d = 0;
    while d + 32 <= dim {
        let mut acc = [F8::ZERO; 4];
        for i in 0..4 {
            acc[i] = F8::load(&o[d + 8 * i..]).mul(F8::splat(c));
        }
        for (j, p) in p.iter().enumerate() {
            let v = &values[j * dim + d..j * dim + d + 32];
            for i in 0..4 {
                acc[i] = F8::splat(*p).fma(F8::load(&v[8 * i..]), acc[i]);
            }
        }
        for i in 0..4 {
            acc[i].store(&mut o[d + 8 * i..]);
        }
        d += 32;
    }
    for d in d..dim {
        let mut acc = o[d] * c;
        for (j, p) in p.iter().enumerate() {
            acc = p.mul_add(values[j * dim + d], acc);
        }
        o[d] = acc;
    }
}

#[inline(always)]
fn merge(total: Running, out: &mut [f32], cut: Running, partial: &[f32]) -> Running {
    let m = larger(cut.m, total.m);
    let (a, b) = (exp(total.m - m), exp(cut.m - m));
    for (o, p) in out.iter_mut().zip(partial) {
        *o = p.mul_add(b, *o * a);
    }
    Running {
        m,
        l: cut.l.mul_add(b, total.l * a),
    }
}
