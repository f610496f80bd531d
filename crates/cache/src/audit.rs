// SPDX-License-Identifier: MIT OR Apache-2.0
//! Checks of the cache's own invariants, for tests and for whoever hunts a leak.

use crate::cache::KvCache;

/// An invariant that does not hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Broken(pub String);

impl KvCache {
    /// Walks everything: each populated block is free, cached or in use, exactly one of them; counts of holders are
    /// those of the tables; a node in use hangs on nodes in use; a cached node stands in the eviction list before its
    /// parent; only nodes are shared. Time: in proportion to the pool.
    ///
    /// # Errors
    /// [`Broken`], the first thing that does not hold.
    pub fn audit(&self) -> Result<(), Broken> {
        let blocks = self.pool.len() as usize;
        let mut holders = vec![0u32; blocks];
        for (slot, sequence) in self.sequences.iter().enumerate() {
            holds(sequence.open || sequence.table.is_empty(), || {
                format!("closed slot {slot} has blocks")
            })?;
            for (index, block) in sequence.table.iter().enumerate() {
                holders[*block as usize] += 1;
                let node = self.tree.contains(*block);
                holds(node == (index < sequence.published), || {
                    format!("slot {slot}, index {index}: in the tree {node}")
                })?;
            }
        }
        let mut seen = vec![false; blocks];
        let mut listed = 0;
        for block in self.pool.iter_listed() {
            let b = block as usize;
            holds(!seen[b] && self.tree.contains(block), || {
                format!("listed block {block} is no node, or stands twice")
            })?;
            let early = self.tree.children(block).any(|c| !seen[c as usize]);
            holds(!early, || format!("block {block} is listed before a child"))?;
            seen[b] = true;
            listed += 1;
        }
        holds(listed == self.pool.listed(), || "count of cached".into())?;
        for block in self.pool.iter_freed() {
            let b = block as usize;
            holds(!seen[b] && !self.tree.contains(block), || {
                format!("free block {block} is a node, or stands twice")
            })?;
            seen[b] = true;
        }
        for block in 0..self.pool.len() {
            let b = block as usize;
            holds(self.pool.refs(block) == holders[b], || {
                format!(
                    "block {block} counts {} holders, has {}",
                    self.pool.refs(block),
                    holders[b]
                )
            })?;
            holds(holders[b] < 2 || self.tree.contains(block), || {
                format!("block {block} is shared and no node")
            })?;
            let taken = block < self.pool.fresh();
            holds(taken == (seen[b] || holders[b] > 0), || {
                format!("block {block} is lost, or in two places")
            })?;
            if let Some(parent) = self.tree.contains(block).then(|| self.tree.parent(block)) {
                let above = parent.map_or(u32::MAX, |p| holders[p as usize]);
                holds(holders[b] == 0 || above > 0, || {
                    format!("block {block} is in use, its parent is not")
                })?;
            }
        }
        Ok(())
    }
}

fn holds(it: bool, what: impl FnOnce() -> String) -> Result<(), Broken> {
    if it { Ok(()) } else { Err(Broken(what())) }
}
