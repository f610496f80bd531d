// SPDX-License-Identifier: MIT OR Apache-2.0
//! The walk over keys that every attention shares: rows of one sequence against its blocks, cut by cut.

use std::iter::StepBy;
use std::ops::Range;

use metrale_core::StepBlock;

use super::CUT;
use super::cut::{Work, widened};
use super::pools::Pools;
use super::portable::{FRESH, Running, larger, merge};
use crate::args::Out;
use crate::isa::{Isa, on_isa};
use crate::kv::KvElem;
use crate::lanes::exp;
use crate::point::TileFault;
use crate::scratch::{Scratch, grown};

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
    pub(super) fn get(self, row: usize, head: usize, dim: usize) -> &'a [f32] {
        let at = (row - self.first_row) * self.row_stride + self.first + head * self.stride;
        &self.data[at..at + dim]
    }
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
    /// Where the cuts begin that hold keys of these rows.
    pub(super) fn cuts(&self, step: &StepBlock, rows: Range<usize>) -> StepBy<Range<usize>> {
        let end = |r: usize| step.positions()[r] as usize + 1;
        let begin = |r: usize| match self.window {
            0 => 0,
            window => end(r).saturating_sub(window),
        };
        let longest = rows.clone().map(end).max().unwrap_or(0);
        let earliest = rows.map(begin).min().unwrap_or(0);
        (earliest / CUT * CUT..longest).step_by(CUT)
    }

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
        let (width, group) = (self.width, self.group);
        let states = rows.len() * group;
        scratch.running.clear();
        scratch.running.resize(2 * states, FRESH);
        let (cut, total) = scratch.running.split_at_mut(states);
        let mut work = Work {
            scores: grown(&mut scratch.scores, states * CUT),
            partial: grown(&mut scratch.more, states * width),
            states: cut,
            widened: grown(&mut scratch.f32s, widened(self.dim)),
        };
        let own = self.skip * width..(self.skip + group) * width;
        for r in rows.clone() {
            out.row(r)[own.clone()].fill(0.0);
        }
        for first in self.cuts(step, rows.clone()) {
            self.cut(pools, query, step, rows.clone(), first, &mut work)?;
            for (i, r) in rows.clone().enumerate() {
                if self.reach(step, r, first).is_empty() {
                    continue;
                }
                for g in 0..group {
                    let at = i * group + g;
                    let o = &mut out.row(r)[own.clone()][g * width..(g + 1) * width];
                    let part = &work.partial[at * width..(at + 1) * width];
                    total[at] = on_isa!(self.isa, merge, (total: Running = total[at],
                        out: &mut [f32] = o, cut: Running = work.states[at], partial: &[f32] = part
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
