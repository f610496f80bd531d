// SPDX-License-Identifier: MIT OR Apache-2.0
//! Checks of the cache's own invariants, for tests and for whoever hunts a leak.

use crate::cache::KvCache;
use crate::pool::{NONE, Pool};

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
        for window in &self.windows {
            let held = window.tables.iter().flat_map(|t| t.held().iter().copied());
            self.audit_beside(&window.pool, &window.node_of, held)?;
        }
        if let Some(states) = &self.states {
            // What is reserved is held by the step that fills it.
            let reserved = (0..states.pool.len()).filter(|s| states.pool.refs(*s) > 0);
            self.audit_beside(&states.pool, &states.node_of, reserved)?;
        }
        Ok(())
    }

    /// A pool beside the first one: each place is free, listed (and then hangs on a node) or held, and counts are right.
    fn audit_beside(
        &self,
        pool: &Pool,
        node_of: &[u32],
        held: impl Iterator<Item = u32>,
    ) -> Result<(), Broken> {
        let mut holders = vec![0; pool.len() as usize];
        held.for_each(|place| holders[place as usize] += 1);
        let mut seen = vec![false; pool.len() as usize];
        for place in pool.iter_listed().chain(pool.iter_freed()) {
            let twice = std::mem::replace(&mut seen[place as usize], true);
            holds(!twice, || format!("place {place} stands twice"))?;
        }
        for place in 0..pool.len() {
            let (p, node) = (place as usize, node_of[place as usize]);
            holds(pool.refs(place) == holders[p], || {
                format!("place {place} counts {} holders", pool.refs(place))
            })?;
            let listed = pool.is_listed(place);
            holds(
                (place < pool.fresh()) == (seen[p] || holders[p] > 0),
                || format!("place {place} is lost, or in two states"),
            )?;
            holds(!listed || node != NONE, || {
                format!("place {place} is listed without a node")
            })?;
            holds(node == NONE || self.tree.contains(node), || {
                format!("place {place} hangs on {node}, which is no node")
            })?;
            holds(node == NONE || listed || holders[p] > 0, || {
                format!("place {place} hangs on a node and is free")
            })?;
        }
        Ok(())
    }
}

fn holds(it: bool, what: impl FnOnce() -> String) -> Result<(), Broken> {
    if it { Ok(()) } else { Err(Broken(what())) }
}
