// SPDX-License-Identifier: MIT OR Apache-2.0
//! Recurrent state: one live place for each sequence, and snapshots that prefixes are resumed from.
//!
//! The state of a recurrent layer is a value at one position, not a thing per token. A sequence writes the live place of
//! its slot; a *snapshot* is a copy of it as it was behind the last token of a node of the prefix tree, taken at multiples
//! of [`StateOptions::every`] tokens. A prefix can be used as far as its last node with a snapshot.
//!
//! A place is reserved before the step whose rows end at the border (the device copies behind them, in order), and kept when
//! the step is done; what was reserved and not kept is dropped. Places are numbered as the device lays them out: the live
//! ones first, by slot, then the snapshots.

use crate::pool::{NONE, Pool};
use crate::types::StateOptions;

pub(crate) struct States {
    pub(crate) every: u32,
    slots: u32,
    pub(crate) pool: Pool,
    of_node: Vec<u32>,
    pub(crate) node_of: Vec<u32>,
}

impl States {
    pub(crate) fn new(options: &StateOptions, nodes: u32, slots: u32) -> States {
        States {
            every: options.every,
            slots,
            pool: Pool::new(options.snapshots),
            of_node: vec![NONE; nodes as usize],
            node_of: vec![NONE; options.snapshots as usize],
        }
    }

    pub(crate) fn has(&self, node: u32) -> bool {
        self.of_node[node as usize] != NONE
    }

    /// The place of a node's snapshot, used just now.
    pub(crate) fn restore(&mut self, node: u32) -> u32 {
        let snapshot = self.of_node[node as usize];
        self.pool.unlist(snapshot);
        self.pool.list(snapshot);
        self.slots + snapshot
    }

    /// A place that holds nothing of worth, evicting the snapshot used longest ago if it must.
    pub(crate) fn reserve(&mut self) -> Option<u32> {
        let snapshot = match self.pool.take() {
            Some(snapshot) => snapshot,
            None => {
                let oldest = self.pool.oldest()?;
                self.forget(self.node_of[oldest as usize]);
                self.pool.take()?
            }
        };
        Some(self.slots + snapshot)
    }

    /// The reserved `place` holds the state behind `node`.
    pub(crate) fn keep(&mut self, place: u32, node: u32) {
        if self.has(node) {
            return self.drop_reserved(place);
        }
        let snapshot = place - self.slots;
        self.of_node[node as usize] = snapshot;
        self.node_of[snapshot as usize] = node;
        self.pool.drop_hold(snapshot);
        self.pool.list(snapshot);
    }

    /// Gives a reserved place back.
    pub(crate) fn drop_reserved(&mut self, place: u32) {
        let snapshot = place - self.slots;
        self.pool.drop_hold(snapshot);
        self.pool.give_back(snapshot);
    }

    /// `node` left the tree.
    pub(crate) fn forget(&mut self, node: u32) {
        let snapshot = std::mem::replace(&mut self.of_node[node as usize], NONE);
        if snapshot != NONE {
            self.node_of[snapshot as usize] = NONE;
            self.pool.unlist(snapshot);
            self.pool.give_back(snapshot);
        }
    }

    pub(crate) fn reset(&mut self) {
        self.pool.reset();
        self.of_node.fill(NONE);
        self.node_of.fill(NONE);
    }
}
