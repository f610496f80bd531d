// SPDX-License-Identifier: MIT OR Apache-2.0
//! What goes into the cache and comes out of it, as plain data.

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
}

/// What [`KvCache::admit`](crate::KvCache::admit) did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attached {
    /// Tokens whose KV is stored: always fewer than were given.
    pub cached: u32,
    /// The copy to be done before the sequence's first row. It stays right if the source is evicted meanwhile, as long as
    /// copies are done in order and before rows are written.
    pub copy: Option<BlockCopy>,
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
    /// Position over [`BLOCK`](crate::BLOCK).
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
    /// Namespaces with something cached or in use.
    pub namespaces: u32,
}
