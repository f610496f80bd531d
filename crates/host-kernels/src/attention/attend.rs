// SPDX-License-Identifier: MIT OR Apache-2.0
//! The walk over keys that every attention shares: rows of one sequence against its blocks, cut by cut.

use std::ops::Range;

use metrale_core::StepBlock;

use super::step::{self, FRESH, Keys, Running, larger, merge};
use super::{CUT, STEP};
use crate::args::Out;
use crate::isa::{Isa, on_isa};
use crate::kv::{KvElem, block_of};
use crate::lanes::exp;
use crate::point::TileFault;
use crate::scratch::{Scratch, grown};

/// Steps between asking for a block and reading it.
const AHEAD: usize = 2;

/// The constants of a tile.
#[derive(Clone, Copy)]
pub(super) struct Shape {
    /// Values of a key.
    pub(super) dim: usize,
    /// Values of a value.
    pub(super) width: usize,
    /// Query heads of the tile.
    pub(super) group: usize,
    /// Heads of the tile's output that lie before these.
    pub(super) skip: usize,
    /// Keys in reach of a row; 0 = all.
    pub(super) window: usize,
    pub(super) scale: f32,
    /// Cap of the scores; 0 = none.
    pub(super) cap: f32,
    pub(super) isa: Isa,
}

/// Where keys and values are: the pools, the tables, and which key head.
pub(super) struct Pools<'a, T: KvElem> {
    pub(super) k: &'a [T::Raw],
    /// `None`: the values are the first columns of the keys.
    pub(super) v: Option<&'a [T::Raw]>,
    pub(super) tables: &'a [u32],
    pub(super) per_slot: usize,
    /// Key heads of the pool.
    pub(super) heads: usize,
    /// The tile's.
    pub(super) head: usize,
}

/// Where the tile's queries are.
#[derive(Clone, Copy)]
pub(super) struct Query<'a> {
    pub(super) data: &'a [f32],
    /// The row that lies first in `data`.
    pub(super) first_row: usize,
    pub(super) row_stride: usize,
    /// Where the tile's first head begins in a row.
    pub(super) first: usize,
    /// From one head to the next.
    pub(super) stride: usize,
}

impl<'a> Query<'a> {
    fn get(self, row: usize, head: usize, dim: usize) -> &'a [f32] {
        let at = (row - self.first_row) * self.row_stride + self.first + head * self.stride;
        &self.data[at..at + dim]
    }
}

impl<T: KvElem> Pools<'_, T> {
    /// Widens `n` keys and values of a slot from position `first` on, the begin of a block.
    fn load(
        &self,
        s: &Shape,
        slot: u32,
        first: usize,
        n: usize,
        keys: &mut [f32],
        values: &mut [f32],
    ) -> Result<(), TileFault> {
        let block = block_of(self.tables, self.per_slot, slot, first as u32)?;
        let held = T::head_len(s.dim);
        let at = (block * self.heads + self.head) * held;
        let fault = TileFault::Block {
            slot,
            block: block as u32,
        };
        self.ask(s, slot, first + AHEAD * STEP);
        let len = n * s.dim;
        let from = self.k.get(at..at + held).ok_or(fault)?;
        T::load(s.isa, &mut keys[..len], from, s.dim);
        if let Some(v) = self.v {
            let from = v.get(at..at + held).ok_or(fault)?;
            T::load(s.isa, &mut values[..len], from, s.dim);
        }
        Ok(())
    }
}

impl<T: KvElem> Pools<'_, T> {
    /// Asks for the keys and values of the block at position `first`, if the table has it: blocks lie apart, so that the
    /// processor does not find the next one by itself.
    fn ask(&self, s: &Shape, slot: u32, first: usize) {
        let Ok(block) = block_of(self.tables, self.per_slot, slot, first as u32) else {
            return;
        };
        let len = T::head_len(s.dim);
        let at = (block * self.heads + self.head) * len;
        for pool in [Some(self.k), self.v].into_iter().flatten() {
            if let Some(next) = pool.get(at..at + len) {
                prefetch(next);
            }
        }
    }
}

/// Asks for every cache line of `data`.
#[inline(always)]
fn prefetch<T>(data: &[T]) {
    #[cfg(target_arch = "x86_64")]
    for line in (0..size_of_val(data)).step_by(64) {
        let at = data.as_ptr().cast::<i8>().wrapping_add(line);
        // SAFETY: a hint: any address is allowed.
        unsafe { std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(at) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = data;
}

/// Runs `body` on each stretch of rows of one sequence.
pub(super) fn by_sequence(
    step: &StepBlock,
    rows: Range<usize>,
    mut body: impl FnMut(Range<usize>) -> Result<(), TileFault>,
) -> Result<(), TileFault> {
    let slots = step.slots();
    let mut begin = rows.start;
    while begin < rows.end {
        let same = slots[begin..rows.end]
            .iter()
            .take_while(|s| **s == slots[begin]);
        let end = begin + same.count();
        body(begin..end)?;
        begin = end;
    }
    Ok(())
}

impl Shape {
    /// Rows of one sequence against its keys. `sinks` holds the logit of each query head's sink, or nothing.
    #[allow(clippy::too_many_arguments)] // the parts of one tile, each used
    pub(super) fn attend<T: KvElem>(
        &self,
        pools: &Pools<'_, T>,
        query: Query<'_>,
        sinks: &[f32],
        out: &mut Out<'_, f32>,
        step: &StepBlock,
        rows: Range<usize>,
        scratch: &mut Scratch,
    ) -> Result<(), TileFault> {
        let (dim, width, group, slot) =
            (self.dim, self.width, self.group, step.slots()[rows.start]);
        let states = rows.len() * group;
        // A step's vector path reads whole eights of keys, from any key of the block on.
        let (keys, values) = grown(&mut scratch.f32s, 4 * STEP * dim).split_at_mut(2 * STEP * dim);
        let partial = grown(&mut scratch.more, states * width);
        scratch.running.clear();
        scratch.running.resize(2 * states, FRESH);
        let (cut, total) = scratch.running.split_at_mut(states);
        let own = self.skip * width..(self.skip + group) * width;
        for r in rows.clone() {
            out.row(r)[own.clone()].fill(0.0);
        }
        let end = |r: usize| step.positions()[r] as usize + 1;
        let begin = |r: usize| match self.window {
            0 => 0,
            window => end(r).saturating_sub(window),
        };
        let longest = rows.clone().map(end).max().unwrap_or(0);
        let earliest = rows.clone().map(begin).min().unwrap_or(0);
        for cut_begin in (earliest / CUT * CUT..longest).step_by(CUT) {
            let cut_end = cut_begin + CUT;
            cut.fill(FRESH);
            partial.fill(0.0);
            let steps = cut_begin.max(earliest / STEP * STEP)..longest.min(cut_end);
            for first in steps.step_by(STEP) {
                let mut loaded = false;
                for (i, r) in rows.clone().enumerate() {
                    let reach = begin(r).max(first)..end(r).min(first + STEP);
                    if reach.is_empty() {
                        continue;
                    }
                    if !loaded {
                        pools.load(self, slot, first, STEP.min(longest - first), keys, values)?;
                        loaded = true;
                    }
                    let skip = (reach.start - first) * dim;
                    let keys = Keys {
                        keys: &keys[skip..],
                        values: match pools.v {
                            Some(_) => &values[skip..],
                            None => &keys[skip..],
                        },
                        stride: dim,
                        n: reach.len(),
                        scale: self.scale,
                        cap: self.cap,
                    };
                    let at = i * group..(i + 1) * group;
                    let o = &mut partial[at.start * width..at.end * width];
                    take(self.isa, &mut cut[at], o, |g| query.get(r, g, dim), keys);
                }
            }
            for (i, r) in rows.clone().enumerate() {
                if end(r) <= cut_begin || begin(r) >= cut_end {
                    continue;
                }
                for g in 0..group {
                    let at = i * group + g;
                    let o = &mut out.row(r)[own.clone()][g * width..(g + 1) * width];
                    let part = &partial[at * width..(at + 1) * width];
                    total[at] = on_isa!(self.isa, merge, (total: Running = total[at],
                        out: &mut [f32] = o, cut: Running = cut[at], partial: &[f32] = part
                    ) -> Running);
                }
            }
        }
        for (i, r) in rows.enumerate() {
            for (g, o) in out.row(r)[own.clone()].chunks_exact_mut(width).enumerate() {
                let mut sum = total[i * group + g];
                if let Some(sink) = sinks.get(g) {
                    sum = with_sink(sum, *sink, o);
                }
                let inverse = 1.0 / sum.l;
                o.iter_mut().for_each(|o| *o *= inverse);
            }
        }
        Ok(())
    }
}

/// A key without a value: it takes its share of the softmax.
fn with_sink(total: Running, sink: f32, out: &mut [f32]) -> Running {
    let m = larger(sink, total.m);
    let a = exp(total.m - m);
    out.iter_mut().for_each(|o| *o *= a);
    Running {
        m,
        l: total.l * a + exp(sink - m),
    }
}

/// Takes up to 16 keys into the state and the output of each head; `q(h)` is head `h`'s query.
fn take<'a>(
    isa: Isa,
    states: &mut [Running],
    o: &mut [f32],
    q: impl Fn(usize) -> &'a [f32],
    keys: Keys<'_>,
) {
    let width = o.len() / states.len().max(1);
    #[cfg(target_arch = "x86_64")]
    if isa.has_avx512() && super::avx512::fits(q(0).len(), width) {
        // SAFETY: `Isa` says AVX-512 only after the processor said it.
        return unsafe { super::avx512::take(states, o, q, keys) };
    }
    let heads = states.iter_mut().zip(o.chunks_exact_mut(width));
    for (h, (state, o)) in heads.enumerate() {
        *state = take_one(isa, *state, o, q(h), keys);
    }
}

fn take_one(isa: Isa, state: Running, o: &mut [f32], q: &[f32], keys: Keys<'_>) -> Running {
    #[cfg(target_arch = "x86_64")]
    if isa.has_avx2() && q.len().is_multiple_of(8) && o.len().is_multiple_of(8) {
        // SAFETY: `Isa` says AVX2 only after the processor said it, with FMA and F16C.
        return unsafe { super::avx2::take(state, o, q, keys) };
    }
    let _ = isa;
    step::take(state, o, q, keys)
}
