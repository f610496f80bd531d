// SPDX-License-Identifier: MIT OR Apache-2.0
//! Blocks of layers that see only a window of keys (hybrid groups).
//!
//! A group of sliding-window layers has a pool and block tables of its own: a sequence holds the blocks of its window and
//! gives back what has left it, while the layers that see everything go on holding all. A node of the prefix tree may have
//! a *companion* in each group: the block that holds the same tokens' KV of those layers. A prefix of `m` blocks can be used
//! if every node in the last window before its end has its companion; companions are evicted by themselves, least recently
//! used first.
//!
//! The pool is never the reason to wait: [`WindowOptions::least`] blocks are enough for every sequence at once, because a
//! sequence holds its window and the rows of one step, and a step has a limit of rows.

use crate::BLOCK;
use crate::pool::{NONE, Pool};
use crate::types::{TableChange, WindowOptions};

pub(crate) struct Window {
    tokens: usize,
    pub(crate) pool: Pool,
    /// Companion of a node of the tree, by the node's block.
    of_node: Vec<u32>,
    /// The node whose companion a block is.
    pub(crate) node_of: Vec<u32>,
    pub(crate) tables: Vec<Table>,
}

/// The group's block table of one sequence: entries from `first` on are held, those before are [`NONE`].
#[derive(Default)]
pub(crate) struct Table {
    pub(crate) first: usize,
    pub(crate) blocks: Vec<u32>,
}

impl Table {
    pub(crate) fn held(&self) -> &[u32] {
        &self.blocks[self.first..]
    }
}

impl Window {
    pub(crate) fn new(options: &WindowOptions, nodes: u32, slots: u32, room: u32) -> Window {
        Window {
            tokens: options.tokens as usize,
            pool: Pool::new(options.blocks),
            of_node: vec![NONE; nodes as usize],
            node_of: vec![NONE; options.blocks as usize],
            tables: (0..slots)
                .map(|_| Table {
                    first: 0,
                    blocks: Vec::with_capacity(room as usize),
                })
                .collect(),
        }
    }

    /// First block that a row at `position` reads.
    fn first_read(&self, position: usize) -> usize {
        (position + 1).saturating_sub(self.tokens) / BLOCK
    }

    /// Companions that must stand in a row for a prefix of `blocks` blocks to be used.
    pub(crate) fn needs(&self, blocks: usize) -> usize {
        blocks - self.first_read(blocks * BLOCK).min(blocks)
    }

    pub(crate) fn has(&self, node: u32) -> bool {
        self.of_node[node as usize] != NONE
    }

    /// Opens `slot` behind the prefix of these nodes.
    pub(crate) fn attach(&mut self, slot: u32, path: &[u32]) {
        let first = path.len() - self.needs(path.len());
        let table = &mut self.tables[slot as usize];
        table.first = first;
        table.blocks.clear();
        table.blocks.resize(first, NONE);
        for node in &path[first..] {
            let block = self.of_node[*node as usize];
            self.pool.hold(block);
            table.blocks.push(block);
        }
    }

    /// The companion of `node`; [`NONE`] if it has none.
    pub(crate) fn beside(&self, node: u32) -> u32 {
        self.of_node[node as usize]
    }

    /// The block at `index` of `slot`, or [`NONE`].
    pub(crate) fn block(&self, slot: u32, index: usize) -> u32 {
        let table = &self.tables[slot as usize];
        table.blocks.get(index).copied().unwrap_or(NONE)
    }

    /// Gives back what no row from `first` on reads, and takes blocks up to the last of `rows` rows. False, with part of the
    /// blocks taken, if the pool is smaller than [`WindowOptions::least`].
    pub(crate) fn prepare(
        &mut self,
        slot: u32,
        first: u32,
        rows: u32,
        mut changed: impl FnMut(TableChange),
    ) -> bool {
        let keep = self.first_read(first as usize);
        let mut table = std::mem::take(&mut self.tables[slot as usize]);
        while table.first < keep.min(table.blocks.len()) {
            self.let_go(table.blocks[table.first]);
            table.blocks[table.first] = NONE;
            table.first += 1;
        }
        // Tokens that no row of this sequence computes: they come back from below the pool.
        if table.blocks.len() < keep {
            table.blocks.resize(keep, NONE);
            table.first = keep;
        }
        let end = (first + rows).div_ceil(BLOCK as u32) as usize;
        let mut whole = true;
        while table.blocks.len() < end {
            let Some(block) = self.take() else {
                whole = false;
                break;
            };
            changed(TableChange {
                index: table.blocks.len() as u32,
                block,
            });
            table.blocks.push(block);
        }
        self.tables[slot as usize] = table;
        whole
    }

    /// Gives back the blocks of `slot` behind the first `blocks`.
    pub(crate) fn shrink(&mut self, slot: u32, blocks: usize) {
        while self.tables[slot as usize].blocks.len() > blocks {
            let table = &mut self.tables[slot as usize];
            if let Some(block) = table.blocks.pop().filter(|b| *b != NONE) {
                self.let_go(block);
            }
        }
    }

    /// The block at `index` of `slot` entered the tree as `node` (or a node of equal tokens stood there).
    pub(crate) fn publish(&mut self, slot: u32, index: usize, node: u32) {
        let block = self.block(slot, index);
        if block != NONE && self.node_of[block as usize] == NONE && !self.has(node) {
            self.of_node[node as usize] = block;
            self.node_of[block as usize] = node;
        }
    }

    /// Closes `slot`. The deepest block is listed first, so that a window is eaten from its end.
    pub(crate) fn release(&mut self, slot: u32) {
        let mut table = std::mem::take(&mut self.tables[slot as usize]);
        for block in table.held().iter().rev() {
            self.let_go(*block);
        }
        table.blocks.clear();
        table.first = 0;
        self.tables[slot as usize] = table;
    }

    /// `node` left the tree.
    pub(crate) fn forget(&mut self, node: u32) {
        let block = std::mem::replace(&mut self.of_node[node as usize], NONE);
        if block == NONE {
            return;
        }
        self.node_of[block as usize] = NONE;
        if self.pool.is_listed(block) {
            self.pool.unlist(block);
            self.pool.give_back(block);
        }
    }

    pub(crate) fn reset(&mut self) {
        self.pool.reset();
        self.of_node.fill(NONE);
        self.node_of.fill(NONE);
        for table in &mut self.tables {
            table.first = 0;
            table.blocks.clear();
        }
    }

    fn let_go(&mut self, block: u32) {
        if self.pool.drop_hold(block) > 0 {
            return;
        }
        if self.node_of[block as usize] == NONE {
            self.pool.give_back(block);
        } else {
            self.pool.list(block);
        }
    }

    fn take(&mut self) -> Option<u32> {
        if let Some(block) = self.pool.take() {
            return Some(block);
        }
        let oldest = self.pool.oldest()?;
        self.forget(self.node_of[oldest as usize]);
        self.pool.take()
    }
}
