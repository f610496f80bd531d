// SPDX-License-Identifier: MIT OR Apache-2.0
//! One cut: rows of one sequence against up to 256 of its keys. All scores, then the powers, then the values.
//!
//! Blocks are taken in chunks of about 4,096 values, which stay in the first-level cache while the rows go over them. Where
//! a tile has few queries, the AVX-512 path reads the pool's format itself; else a chunk is widened once for all rows. Both
//! give the same bits: widening is exact.

use std::ops::Range;

use metrale_core::StepBlock;

use super::attend::{Query, Shape};
use super::pools::{Pools, Which};
use super::portable::{self, FRESH, Factors, Running};
use super::{CUT, STEP};
use crate::isa::Isa;
use crate::kv::KvElem;
use crate::lanes::on_lanes;
use crate::point::TileFault;

/// Values of a chunk.
const CHUNK_VALUES: usize = 4096;
/// Blocks of a chunk.
const CHUNK: usize = 4;
/// Queries of a tile up to which widening does not pay.
const DIRECT: usize = 8;

/// What a cut works in and leaves: one entry per query (a row's head), rows outermost.
pub(super) struct Work<'a> {
    /// [`CUT`] per query; powers at the end.
    pub(super) scores: &'a mut [f32],
    /// Unscaled output of the cut, `width` per query.
    pub(super) partial: &'a mut [f32],
    pub(super) states: &'a mut [Running],
    /// [`CHUNK`] blocks of `dim` values a key.
    pub(super) widened: &'a mut [f32],
}

/// Values of `widened` for keys of `dim` values.
pub(super) fn widened(dim: usize) -> usize {
    CHUNK * STEP * dim
}

/// A chunk of one pool: its blocks and the scales of its keys, if the format has any.
struct Chunk<'a, R> {
    blocks: [&'a [R]; CHUNK],
    count: usize,
    scales: [f32; CHUNK * STEP],
    scaled: bool,
}

impl<R> Chunk<'_, R> {
    fn scales(&self) -> &[f32] {
        if self.scaled { &self.scales } else { &[] }
    }
}

impl Shape {
    /// Keys of a row that lie in the cut from `cut` on, relative to it.
    pub(super) fn reach(&self, step: &StepBlock, row: usize, cut: usize) -> Range<usize> {
        let end = step.positions()[row] as usize + 1;
        let begin = match self.window {
            0 => 0,
            window => end.saturating_sub(window),
        };
        begin.max(cut) - cut..end.min(cut + CUT).max(cut) - cut
    }

    /// The cut from `cut` on. Rows without a key in it keep fresh states.
    pub(super) fn cut<T: KvElem>(
        &self,
        pools: &Pools<'_, T>,
        query: Query<'_>,
        step: &StepBlock,
        rows: Range<usize>,
        cut: usize,
        work: &mut Work<'_>,
    ) -> Result<(), TileFault> {
        let (group, width, slot) = (self.group, self.width, step.slots()[rows.start]);
        let reaches = || rows.clone().map(|r| self.reach(step, r, cut)).enumerate();
        let some = || reaches().filter(|(_, keys)| !keys.is_empty());
        work.states.fill(FRESH);
        work.partial.fill(0.0);
        let begin = some().map(|(_, keys)| keys.start).min().unwrap_or(0) / STEP * STEP;
        let end = some().map(|(_, keys)| keys.end).max().unwrap_or(0);
        for (i, keys) in some() {
            for scores in work.scores[i * group * CUT..][..group * CUT].chunks_exact_mut(CUT) {
                scores[whole_steps(&keys)].fill(f32::NEG_INFINITY);
            }
        }
        let per_chunk = (CHUNK_VALUES / STEP / self.dim).clamp(1, CHUNK) * STEP;
        let chunks = || (begin / per_chunk * per_chunk..end).step_by(per_chunk);
        let within = |keys: &Range<usize>, first: usize| {
            let cut_at = |at: usize| at.clamp(first, first + per_chunk) - first;
            cut_at(keys.start)..cut_at(keys.end)
        };
        let direct = self.direct(rows.len() * group);
        for first in chunks() {
            let blocks = first.max(begin)..end.min(first + per_chunk);
            let chunk = self.chunk(pools, Which::Keys, slot, cut, first, blocks)?;
            let wide = (!direct).then(|| self.widen::<T>(&chunk, work.widened));
            let factors = Factors {
                own: chunk.scales(),
                scale: self.scale,
                cap: self.cap,
            };
            for (i, keys) in some() {
                let keys = within(&keys, first);
                if keys.is_empty() {
                    continue;
                }
                let out = &mut work.scores[i * group * CUT..(i + 1) * group * CUT];
                let out = (&mut *out, first);
                let row = rows.start + i;
                let q = |g| query.get(row, g, self.dim);
                match &wide {
                    Some(blocks) => self.scores(q, blocks, keys, factors, out),
                    None => direct::scores::<T>(self, q, &chunk.blocks, keys, factors, out),
                }
            }
        }
        for (i, keys) in some() {
            for at in i * group..(i + 1) * group {
                let scores = &mut work.scores[at * CUT..(at + 1) * CUT][whole_steps(&keys)];
                work.states[at] = softmax(self.isa, scores);
            }
        }
        for first in chunks() {
            let blocks = first.max(begin)..end.min(first + per_chunk);
            let chunk = self.chunk(pools, Which::Values, slot, cut, first, blocks)?;
            let wide = (!direct).then(|| self.widen::<T>(&chunk, work.widened));
            for (i, keys) in some() {
                let keys = within(&keys, first);
                if keys.is_empty() {
                    continue;
                }
                let at = i * group..(i + 1) * group;
                let p = &mut work.scores[at.start * CUT..at.end * CUT];
                if chunk.scaled {
                    for p in p.chunks_exact_mut(CUT) {
                        let own = &chunk.scales[keys.clone()];
                        let p = &mut p[first..][keys.clone()];
                        p.iter_mut().zip(own).for_each(|(p, own)| *p *= own);
                    }
                }
                let o = &mut work.partial[at.start * width..at.end * width];
                match &wide {
                    Some(blocks) => self.values(o, &p[first..], blocks, keys),
                    None => direct::values::<T>(self, o, &p[first..], &chunk.blocks, keys),
                }
            }
        }
        Ok(())
    }

    /// Whether the pool's format is read itself, for this many queries.
    fn direct(&self, queries: usize) -> bool {
        queries <= DIRECT && self.isa.has_avx512() && self.whole()
    }

    /// Whether AVX-512 takes these sizes whole.
    fn whole(&self) -> bool {
        self.dim.is_multiple_of(8) && self.width.is_multiple_of(16)
    }

    /// The blocks of a chunk that begins `first` keys into the cut, of those that hold the keys `held`.
    fn chunk<'a, T: KvElem>(
        &self,
        pools: &Pools<'a, T>,
        which: Which,
        slot: u32,
        cut: usize,
        first: usize,
        held: Range<usize>,
    ) -> Result<Chunk<'a, T::Raw>, TileFault> {
        let mut chunk = Chunk {
            blocks: [&[][..]; CHUNK],
            count: (held.end - first).div_ceil(STEP),
            scales: [0.0; CHUNK * STEP],
            scaled: false,
        };
        for at in held.step_by(STEP) {
            let (i, block) = ((at - first) / STEP, pools.block(which, slot, cut + at)?);
            chunk.blocks[i] = block;
            chunk.scaled = T::scales(block, self.dim, &mut chunk.scales[i * STEP..][..STEP]);
        }
        Ok(chunk)
    }

    /// The chunk in f32.
    fn widen<'a, T: KvElem>(
        &self,
        chunk: &Chunk<'_, T::Raw>,
        to: &'a mut [f32],
    ) -> [&'a [f32]; CHUNK] {
        let len = STEP * self.dim;
        for (to, block) in to.chunks_exact_mut(len).zip(&chunk.blocks[..chunk.count]) {
            if !block.is_empty() {
                T::widen(self.isa, to, block);
            }
        }
        let mut parts = to.chunks_exact(len);
        std::array::from_fn(|_| parts.next().unwrap_or(&[]))
    }

    /// Scores of a row's queries for the `keys` of a chunk; to `out`, the row's scores and where the chunk begins in them.
    fn scores<'q>(
        &self,
        q: impl Fn(usize) -> &'q [f32],
        blocks: &[&[f32]; CHUNK],
        keys: Range<usize>,
        factors: Factors<'_>,
        (out, first): (&mut [f32], usize),
    ) {
        #[cfg(target_arch = "x86_64")]
        if self.isa.has_avx512() && self.whole() {
            return direct::scores::<f32>(self, q, blocks, keys, factors, (out, first));
        }
        for (g, out) in out.chunks_exact_mut(CUT).enumerate() {
            let out = &mut out[first..];
            #[cfg(target_arch = "x86_64")]
            if self.isa.has_avx2() && self.dim.is_multiple_of(8) {
                // SAFETY: `Isa` says AVX2 only after the processor said it, with FMA and F16C.
                unsafe { super::avx2::scores(q(g), blocks, keys.clone(), factors, out) };
                continue;
            }
            portable::scores(q(g), blocks, keys.clone(), factors, out);
        }
    }

    /// Adds the values of the `keys` of a chunk, which has its own powers at every [`CUT`] of `p`, to the output of each head.
    fn values(&self, o: &mut [f32], p: &[f32], blocks: &[&[f32]; CHUNK], keys: Range<usize>) {
        #[cfg(target_arch = "x86_64")]
        if self.isa.has_avx512() && self.whole() {
            return direct::values::<f32>(self, o, p, blocks, keys);
        }
        for (g, o) in o.chunks_exact_mut(self.width).enumerate() {
            let p = &p[g * CUT..];
            #[cfg(target_arch = "x86_64")]
            if self.isa.has_avx2() && self.width.is_multiple_of(8) {
                // SAFETY: `Isa` says AVX2 only after the processor said it, with FMA and F16C.
                unsafe { super::avx2::values(o, p, blocks, self.dim, keys.clone()) };
                continue;
            }
            portable::values(o, p, blocks, self.dim, keys.clone());
        }
    }
}

/// The AVX-512 path, where [`Shape::direct`] or its parts found that it may be taken.
#[cfg(target_arch = "x86_64")]
mod direct {
    use super::super::avx512;
    use super::*;

    pub(super) fn scores<'q, T: KvElem>(
        s: &Shape,
        q: impl Fn(usize) -> &'q [f32],
        blocks: &[&[T::Raw]; CHUNK],
        keys: Range<usize>,
        factors: Factors<'_>,
        out: (&mut [f32], usize),
    ) {
        assert!(s.isa.has_avx512());
        // SAFETY: `Isa` says AVX-512 only after the processor said it.
        unsafe { avx512::scores::<T>(q, s.group, blocks, keys, factors, out) }
    }

    pub(super) fn values<T: KvElem>(
        s: &Shape,
        o: &mut [f32],
        p: &[f32],
        blocks: &[&[T::Raw]; CHUNK],
        keys: Range<usize>,
    ) {
        assert!(s.isa.has_avx512());
        // SAFETY: `Isa` says AVX-512 only after the processor said it.
        unsafe { avx512::values::<T>(o, s.width, p, blocks, s.dim, keys) }
    }
}

/// Other processors have no such path, and [`Shape::direct`] is false.
#[cfg(not(target_arch = "x86_64"))]
mod direct {
    use super::*;

    pub(super) fn scores<'q, T: KvElem>(
        _: &Shape,
        _: impl Fn(usize) -> &'q [f32],
        _: &[&[T::Raw]; CHUNK],
        _: Range<usize>,
        _: Factors<'_>,
        _: (&mut [f32], usize),
    ) {
    }

    pub(super) fn values<T: KvElem>(
        _: &Shape,
        _: &mut [f32],
        _: &[f32],
        _: &[&[T::Raw]; CHUNK],
        _: Range<usize>,
    ) {
    }
}

/// The steps of 16 that hold `keys`.
fn whole_steps(keys: &Range<usize>) -> Range<usize> {
    keys.start / STEP * STEP..keys.end.next_multiple_of(STEP)
}

fn softmax(isa: Isa, scores: &mut [f32]) -> Running {
    #[cfg(target_arch = "x86_64")]
    if isa.has_avx512() {
        // SAFETY: `Isa` says AVX-512 only after the processor said it.
        return unsafe { super::avx512::softmax(scores) };
    }
    use portable::softmax;
    on_lanes!(isa, softmax, (scores: &mut [f32] = scores) -> Running)
}
