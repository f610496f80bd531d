// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where evicted blocks go, and where they come back from: a trait over bytes that this crate never sees.

use crate::BLOCK;

/// Stands for a block that is not there.
pub const NO_BLOCK: u32 = crate::pool::NONE;

/// What a full block stands under: the root of a namespace, or the block of this number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Above {
    /// The first block of a sequence in this namespace.
    Root(u64),
    /// Behind the block of this number.
    Block(u64),
}

/// The name of a full block: what it stands under, and its tokens. Two blocks of one name hold the same KV, because the
/// number of the one above is never given to another text: no hash decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BlockName {
    /// What it stands under.
    pub above: Above,
    /// Its tokens.
    pub tokens: [u32; BLOCK],
}

/// Keeps blocks that the pool evicts. It is called between device steps or while one runs that does not write the block.
pub trait BlockSink: Send {
    /// `block` is evicted; a sink may copy it. `number` is what blocks behind it call it by; `beside` the blocks of the same
    /// tokens in the groups beside the first one, [`NO_BLOCK`] where there is none.
    fn evict(&mut self, name: &BlockName, number: u64, block: u32, beside: &[u32]);

    /// The number under which a block of this name is kept.
    fn kept(&self, name: &BlockName) -> Option<u64>;

    /// Whether what is kept under `name` has the block of a group beside the first one, counted from 0.
    fn kept_beside(&self, name: &BlockName, group: usize) -> bool;

    /// Whether bringing so many blocks back is faster than computing them.
    fn worth(&self, blocks: u32) -> bool;

    /// Fills `block`, and the blocks `beside` that are not [`NO_BLOCK`], with what is kept under `name`. False: it is gone or
    /// cannot be trusted.
    fn restore(&mut self, name: &BlockName, block: u32, beside: &[u32]) -> bool;

    /// Forgets everything: what the device held last may be wrong.
    fn reset(&mut self);
}
