// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where keys and values are: blocks of one head of the pools, by the tables.

use super::{CUT, STEP};
use crate::kv::{KvElem, block_of};
use crate::point::TileFault;

/// Blocks between asking for one and reading it.
const AHEAD: usize = 4;

/// The pools, the tables, and which key head.
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
    /// Values of a key.
    pub(super) dim: usize,
}

/// Which pool.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Which {
    Keys,
    Values,
}

impl<'a, T: KvElem> Pools<'a, T> {
    fn pool(&self, which: Which) -> &'a [T::Raw] {
        match which {
            Which::Keys => self.k,
            Which::Values => self.v.unwrap_or(self.k),
        }
    }

    /// What the head holds in the block of a slot that begins at position `first`; asks for those that come after it.
    pub(super) fn block(
        &self,
        which: Which,
        slot: u32,
        first: usize,
    ) -> Result<&'a [T::Raw], TileFault> {
        let block = block_of(self.tables, self.per_slot, slot, first as u32)?;
        self.ask(which, slot, first);
        let held = T::head_len(self.dim);
        let at = (block * self.heads + self.head) * held;
        let fault = TileFault::Block {
            slot,
            block: block as u32,
        };
        self.pool(which).get(at..at + held).ok_or(fault)
    }

    /// Asks for the block that is read [`AHEAD`] after this one, if the table has it: a cut's keys, then its values, then
    /// the next cut's. Blocks lie apart, so that the processor does not find the next one by itself.
    fn ask(&self, which: Which, slot: u32, first: usize) {
        let (cut, at) = (first / CUT * CUT, first % CUT + AHEAD * STEP);
        let (which, first) = match (at < CUT, which) {
            (true, _) => (which, cut + at),
            (false, Which::Keys) => (Which::Values, cut + at - CUT),
            (false, Which::Values) => (Which::Keys, cut + at),
        };
        let Ok(block) = block_of(self.tables, self.per_slot, slot, first as u32) else {
            return;
        };
        let held = T::head_len(self.dim);
        let at = (block * self.heads + self.head) * held;
        if let Some(next) = self.pool(which).get(at..at + held) {
            prefetch(next);
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
