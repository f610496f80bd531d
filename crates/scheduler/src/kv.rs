// SPDX-License-Identifier: MIT OR Apache-2.0
//! The scheduler's view of the KV cache: accounts of blocks, no bytes.

use crate::plan::{BlockCopy, TableDelta};

/// Accounts of the paged KV pool. A sequence is named by its slot, from [`KvAccounts::admit`] to
/// [`KvAccounts::release`]. `tokens` always counts from position 0 of the sequence.
pub trait KvAccounts {
    /// Tokens in a block.
    fn block_tokens(&self) -> u32;

    /// Blocks of the pool, populated or not.
    fn total_blocks(&self) -> u32;

    /// Blocks that [`KvAccounts::admit`] and [`KvAccounts::grow`] could hand out now: free ones, and cached ones that no
    /// sequence uses.
    fn available_blocks(&self) -> u32;

    /// Blocks that sequences hold.
    fn used_blocks(&self) -> u32;

    /// Opens `slot`: attaches the longest cached prefix of `tokens` (never all of them: the last one is computed again)
    /// and takes blocks for the rest. `None`, and nothing changed, if fewer than `admission.spare` blocks would remain.
    fn admit(&mut self, slot: u32, admission: &Admission<'_>) -> Option<Attached>;

    /// How many of `tokens` an admission in `namespace` would find cached. Changes nothing.
    fn cached(&self, namespace: u64, tokens: &[u32]) -> u32;

    /// Blocks that an admission which may restore would bring back from below the pool.
    fn restorable(&self, _namespace: u64, _tokens: &[u32]) -> u32 {
        0
    }

    /// Appends a block to the table of `slot`; evicts a cached one if it must. `None` if none is left.
    fn grow(&mut self, slot: u32) -> Option<u32>;

    /// Takes the blocks behind the first `blocks` from `slot`, none of them published: what was stored there does not count.
    fn shrink(&mut self, slot: u32, blocks: u32);

    /// The block table of `slot`, by position over block size.
    fn table(&self, slot: u32) -> &[u32];

    /// Says that the KV of `tokens` is stored: full blocks enter the prefix cache. Where the cache holds an equal block
    /// already, the sequence changes over to that one (its bits are equal, by the numerics contract), and the table entry
    /// that changed is pushed to `changed`.
    fn publish(&mut self, slot: u32, tokens: &[u32], changed: &mut Vec<TableDelta>);

    /// Closes `slot`. The KV of `tokens` is stored and may be kept as prefix, the last partly filled block included; give
    /// an empty slice if it cannot be trusted.
    fn release(&mut self, slot: u32, tokens: &[u32]);

    /// Closes every slot and forgets every prefix: the pool's content is lost.
    fn reset(&mut self);

    /// Before rows `first..first + rows` of `slot` run: takes their blocks in the groups beside the first one (layers that
    /// see a window of keys), gives back what no row from `first` on reads, and pushes new table entries to `changed`. False:
    /// the rows must not run.
    fn prepare(
        &mut self,
        _slot: u32,
        _first: u32,
        _rows: u32,
        _changed: &mut Vec<TableDelta>,
    ) -> bool {
        true
    }

    /// The tables of `slot` in the groups beside the first one, as of its admission.
    fn window_entries(&self, _slot: u32, _entries: &mut Vec<TableDelta>) {}

    /// Tokens between snapshots of recurrent state. The rows of a segment never cross a multiple of it. `None`: there is no
    /// such state.
    fn snapshot_every(&self) -> Option<u32> {
        None
    }

    /// A place that a live state can be copied to; given back by one of the next two. `None`: it is not saved.
    fn reserve_snapshot(&mut self) -> Option<u32> {
        None
    }

    /// The reserved `place` holds the state of `slot` behind `tokens` (from position 0), all published.
    fn keep_snapshot(&mut self, _slot: u32, _tokens: u32, _place: u32) {}

    /// Gives a reserved place back.
    fn drop_snapshot(&mut self, _place: u32) {}
}

/// What [`KvAccounts::admit`] is asked for.
#[derive(Clone, Copy, Debug)]
pub struct Admission<'a> {
    /// Where prefixes are looked for and published.
    pub namespace: u64,
    /// All tokens known: the prompt, and what was generated before a preemption.
    pub tokens: &'a [u32],
    /// Whether a cached prefix may be used.
    pub reuse: bool,
    /// Blocks that must stay available afterwards.
    pub spare: u32,
    /// Whether blocks may be brought back from below the pool: no step is in flight.
    pub restore: bool,
}

/// What [`KvAccounts::admit`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attached {
    /// Tokens whose KV is stored.
    pub cached: u32,
    /// The copy that makes a partly matching block the sequence's own, before its first row runs.
    pub copy: Option<BlockCopy>,
    /// Where the recurrent state behind the cached tokens lies; `None`: no state, or it starts from nothing.
    pub state: Option<u32>,
}
