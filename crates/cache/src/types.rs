// SPDX-License-Identifier: MIT OR Apache-2.0
//! What goes into the cache and comes out of it, as plain data.

use crate::BLOCK;
use crate::hash::{HashFn, mix};

/// What a [`KvCache`](crate::KvCache) is made for.
#[derive(Clone, Debug)]
pub struct CacheOptions {
    /// Blocks of the pool, below 2^31. Default 256. Each costs the KV of 16 tokens on the device and about 120 bytes
    /// here.
    pub blocks: u32,
    /// Sequences that can be open at once. Default 32.
    pub slots: u32,
    /// Blocks of a table that room is made for at the start. Default 256; a longer one is moved to larger room as it grows.
    pub blocks_per_slot: u32,
    /// Whether a part of a block may be reused by copying it. Default true; it costs a block copy at admission, and saves
    /// up to 15 rows.
    pub partial: bool,
    /// Key of the hash. Default 0; a server exposed to strangers takes a random one, so that nobody can aim at collisions.
    pub hash_key: u64,
    /// The hash. Default [`mix`]; tests force collisions.
    pub hash: HashFn,
    /// Groups of sliding-window layers, at most [`WindowOptions::MOST`]; their tables follow those of the first group: row
    /// `slot + group * slots`, groups counted from 1. Default none. With any, hits end at block borders.
    pub windows: Vec<WindowOptions>,
    /// Recurrent layers. Default none. With them, hits end at snapshots.
    pub states: Option<StateOptions>,
}

/// A group of layers that see only the last keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowOptions {
    /// Keys that a row sees, its own included; at least 1.
    pub tokens: u32,
    /// Blocks of the group's pool, at least [`WindowOptions::least`]; more of them keep the windows of prefixes.
    pub blocks: u32,
}

impl WindowOptions {
    /// Most groups.
    pub const MOST: usize = 4;

    /// Blocks that suffice for `slots` sequences and steps of `rows` rows, whatever they do.
    #[must_use]
    pub fn least(tokens: u32, slots: u32, rows: u32) -> u32 {
        let block = BLOCK as u32;
        slots * (tokens.div_ceil(block) + 2) + rows.div_ceil(block)
    }
}

/// Recurrent layers: a live place for each slot, numbered by it, then the snapshots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateOptions {
    /// Places for snapshots; 0 = prefixes are computed anew.
    pub snapshots: u32,
    /// Tokens between two snapshots of a sequence, a multiple of [`BLOCK`]. Fewer find longer prefixes and cut prefill into
    /// smaller chunks.
    pub every: u32,
}

impl Default for CacheOptions {
    fn default() -> Self {
        CacheOptions {
            blocks: 256,
            slots: 32,
            blocks_per_slot: 256,
            partial: true,
            hash_key: 0,
            hash: mix,
            windows: Vec::new(),
            states: None,
        }
    }
}

/// What [`KvCache::admit`](crate::KvCache::admit) is asked for.
#[derive(Clone, Copy, Debug)]
pub struct Admission<'a> {
    /// Where prefixes are looked for and published.
    pub namespace: u64,
    /// All tokens known, from position 0.
    pub tokens: &'a [u32],
    /// Whether a cached prefix may be used.
    pub reuse: bool,
    /// Blocks that must stay available afterwards.
    pub spare: u32,
    /// Whether the sink may write blocks: no step is in flight.
    pub restore: bool,
}

/// What [`KvCache::admit`](crate::KvCache::admit) did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attached {
    /// Tokens whose KV is stored: always fewer than were given.
    pub cached: u32,
    /// The copy to be done before the sequence's first row. It stays right if the source is evicted meanwhile, as long as
    /// copies are done in order and before rows are written.
    pub copy: Option<BlockCopy>,
    /// Where the recurrent state behind the cached tokens lies: to be copied to the live place of the slot before its first
    /// row. `None`: no state, or the sequence starts from nothing (position 0).
    pub state: Option<u32>,
}

/// Block `src` is to be copied over block `dst`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockCopy {
    /// From.
    pub src: u32,
    /// To.
    pub dst: u32,
}

/// Entry `index` of a sequence's table became `block`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableChange {
    /// Position over [`BLOCK`].
    pub index: u32,
    /// The block.
    pub block: u32,
}

/// Where the blocks are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheStats {
    /// Blocks of the pool.
    pub total: u32,
    /// Populated ones.
    pub populated: u32,
    /// Free ones.
    pub free: u32,
    /// Cached ones that no sequence uses.
    pub cached: u32,
    /// Ones in use by sequences.
    pub used: u32,
    /// Blocks evicted since the start.
    pub evicted: u64,
    /// Blocks that came back from the sink since the start.
    pub restored: u64,
    /// Namespaces with something cached or in use.
    pub namespaces: u32,
}
