// SPDX-License-Identifier: MIT OR Apache-2.0
//! The paged KV cache: blocks and the radix tree of prefixes. Accounts only: the bytes lie in the device's arena.
//!
//! A *block* holds the KV of [`BLOCK`] consecutive tokens, for all layers. A block is in one of four states:
//!
//! - *free*: content without meaning; or not yet populated, and then not handed out ([`KvCache::set_populated`]).
//! - *private*: in the table of one sequence, which may write it.
//! - *shared*: full, a node of the tree, in the tables of one or more sequences; nobody writes it.
//! - *cached*: a node of the tree and in no table; it stays until its place is needed, least recently used first.
//!
//! A node of the tree *is* a block: its edge is the tokens that the block holds, its parent the block before it. So there
//! are no nodes to allocate, and the tree is as large as the pool. A child is looked for by hash among all nodes, and
//! taken only if parent and tokens are equal: the hash decides nothing.
//!
//! Copy-on-write: a sequence never writes a shared or cached block. Where a prefix matches a part of a block (the end of
//! an earlier answer, or all but the last token of a prompt), the sequence gets a private copy of it
//! ([`Attached::copy`]) and writes on behind the part that matches. A sequence whose last block is partly filled leaves
//! it in the tree as a *tail*: a leaf that others copy from and never hold.
//!
//! Eviction takes the head of one list of all cached nodes. A sequence that ends appends its nodes deepest first, and a
//! node in use keeps all nodes above it in use, so a node always stands before its parent: the head is a leaf.
//!
//! Layers that see only a window, and recurrent layers, hold less than a block per 16 tokens. They have pools of their own
//! beside this one, and their blocks and snapshots hang on the nodes of the same tree (`window.rs`, `state.rs`): a
//! sequence calls [`KvCache::prepare`] before its rows, and [`KvCache::reserve_snapshot`] before rows that end where a
//! snapshot is due.
//!
//! A [`BlockSink`] keeps what is evicted. A block is known there by its tokens and the number of the block above it, which
//! is given once and never to another text: so here too, tokens decide and no hash.
//!
//! ```
//! use metrale_cache::{Admission, Attached, CacheOptions, KvCache};
//!
//! let mut cache = KvCache::new(CacheOptions { blocks: 8, slots: 2, ..CacheOptions::default() });
//! let first: Vec<u32> = (0..40).collect();
//! let ask = |tokens| Admission { namespace: 0, tokens, reuse: true, spare: 0, restore: false };
//! assert_eq!(cache.admit(0, &ask(&first)), Some(Attached { cached: 0, copy: None, state: None }));
//! cache.release(0, &first);
//!
//! let again: Vec<u32> = (0..50).collect();
//! let attached = cache.admit(1, &ask(&again)).unwrap();
//! assert_eq!(attached.cached, 40); // Two whole blocks, and eight tokens of a copied one.
//! assert_eq!(cache.table(1)[..2], [0, 1]);
//! assert!(attached.copy.is_some());
//! ```

#![forbid(unsafe_code)]

mod audit;
mod cache;
mod hash;
mod pool;
mod sink;
mod state;
mod tree;
mod types;
mod window;

pub use audit::Broken;
pub use cache::KvCache;
pub use hash::{HashFn, mix};
pub use sink::{Above, BlockName, BlockSink, NO_BLOCK};
pub use types::{
    Admission, Attached, BlockCopy, CacheOptions, CacheStats, StateOptions, TableChange,
    WindowOptions,
};

/// Tokens in a block.
pub const BLOCK: usize = metrale_core::KV_BLOCK as usize;
