// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where evicted blocks go, and where they come back from: a trait over bytes that this crate never sees.

use crate::BLOCK;

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
    /// `block` is evicted; a sink may copy it. `number` is what blocks behind it call it by.
    fn evict(&mut self, name: &BlockName, number: u64, block: u32);

    /// The number under which a block of this name is kept.
    fn kept(&self, name: &BlockName) -> Option<u64>;

    /// Whether bringing so many blocks back is faster than computing them.
    fn worth(&self, blocks: u32) -> bool;

    /// Fills `block` with what is kept under `name`. False: it is gone or cannot be trusted.
    fn restore(&mut self, name: &BlockName, block: u32) -> bool;

    /// Forgets everything: what the device held last may be wrong.
    fn reset(&mut self);
}
