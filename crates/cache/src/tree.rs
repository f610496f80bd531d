// SPDX-License-Identifier: MIT OR Apache-2.0
//! The radix tree of prefixes. A node is named by its block.
//!
//! A full node that has siblings is found by a hash table, except the one that its parent names as its first child: that is
//! looked at before. So a chain without branches, which most of a prompt is, is never hashed; a place of the table costs a miss
//! of the processor's caches each time.

use std::collections::HashMap;

use crate::BLOCK;
use crate::hash::HashFn;
use crate::pool::NONE;

/// Parents are blocks, or roots: one per namespace, marked by this bit.
const ROOT: u32 = 1 << 31;
/// Most children that are looked through for a part of a block: bounds the time, costs a hit now and then.
const SCAN: usize = 64;

#[derive(Clone, Copy)]
struct Node {
    parent: u32,
    first_child: u32,
    next: u32,
    prev: u32,
    /// Of a placed node.
    hash: u32,
    /// Whether it stands in the hash table.
    placed: bool,
    /// Tokens on its edge: [`BLOCK`], or fewer for a tail. 0: not in the tree.
    len: u8,
}

const ABSENT: Node = Node {
    parent: NONE,
    first_child: NONE,
    next: NONE,
    prev: NONE,
    hash: 0,
    placed: false,
    len: 0,
};

/// A place of the hash table. The hash stands beside the block, so that a probe need not look at other nodes.
#[derive(Clone, Copy)]
struct Place {
    hash: u32,
    /// [`NONE`]: empty.
    block: u32,
}

const EMPTY: Place = Place {
    hash: 0,
    block: NONE,
};

struct Root {
    namespace: u64,
    first_child: u32,
}

/// The tree. It knows nothing of who holds a block.
pub(crate) struct Tree {
    nodes: Vec<Node>,
    tokens: Vec<[u32; BLOCK]>,
    /// Open addressing with linear probing over all full nodes that are not first children.
    table: Vec<Place>,
    roots: Vec<Root>,
    free_roots: Vec<u32>,
    by_namespace: HashMap<u64, u32>,
    hash: HashFn,
    key: u64,
}

impl Tree {
    pub(crate) fn new(blocks: u32, hash: HashFn, key: u64) -> Tree {
        let places = (blocks as usize * 2).next_power_of_two();
        Tree {
            nodes: vec![ABSENT; blocks as usize],
            tokens: vec![[0; BLOCK]; blocks as usize],
            table: vec![EMPTY; places],
            roots: Vec::new(),
            free_roots: Vec::new(),
            by_namespace: HashMap::new(),
            hash,
            key,
        }
    }

    pub(crate) fn contains(&self, block: u32) -> bool {
        self.nodes[block as usize].len > 0
    }

    pub(crate) fn is_leaf(&self, block: u32) -> bool {
        self.nodes[block as usize].first_child == NONE
    }

    /// The parent of a node; `None` if it hangs on a root.
    pub(crate) fn parent(&self, block: u32) -> Option<u32> {
        let parent = self.nodes[block as usize].parent;
        (parent & ROOT == 0).then_some(parent)
    }

    /// The namespace of a node that hangs on a root.
    pub(crate) fn namespace(&self, block: u32) -> u64 {
        let root = self.nodes[block as usize].parent & !ROOT;
        self.roots[root as usize].namespace
    }

    /// Tokens on a node's edge.
    pub(crate) fn edge(&self, block: u32) -> &[u32] {
        &self.tokens[block as usize][..self.nodes[block as usize].len as usize]
    }

    /// The parent of first blocks in `namespace`; [`NONE`] if nothing is cached there.
    pub(crate) fn root(&self, namespace: u64) -> u32 {
        self.by_namespace.get(&namespace).copied().unwrap_or(NONE)
    }

    /// As [`Tree::root`], made if need be. It lives until its last child is removed.
    pub(crate) fn root_or_new(&mut self, namespace: u64) -> u32 {
        if let Some(root) = self.by_namespace.get(&namespace) {
            return *root;
        }
        let new = Root {
            namespace,
            first_child: NONE,
        };
        let index = match self.free_roots.pop() {
            Some(index) => {
                self.roots[index as usize] = new;
                index
            }
            None => {
                self.roots.push(new);
                self.roots.len() as u32 - 1
            }
        };
        self.by_namespace.insert(namespace, ROOT | index);
        ROOT | index
    }

    /// The full child of `parent` with these tokens.
    pub(crate) fn child(&self, parent: u32, tokens: &[u32; BLOCK]) -> Option<u32> {
        let is_it = |block: u32| {
            let node = &self.nodes[block as usize];
            node.len as usize == BLOCK
                && node.parent == parent
                && self.tokens[block as usize] == *tokens
        };
        let first = self.first_child(parent);
        if first == NONE {
            return None;
        }
        if is_it(first) {
            return Some(first);
        }
        if self.nodes[first as usize].next == NONE {
            return None;
        }
        let hash = (self.hash)(self.key, parent, tokens);
        let mut at = self.home(hash);
        loop {
            let place = self.table[at];
            if place.block == NONE {
                return None;
            }
            if place.hash == hash && is_it(place.block) {
                return Some(place.block);
            }
            at = self.after(at);
        }
    }

    /// Of the children of `parent`, the one that shares most of its first tokens with `tokens`, and how many those are.
    pub(crate) fn nearest_child(&self, parent: u32, tokens: &[u32]) -> Option<(u32, usize)> {
        let mut best: Option<(u32, usize)> = None;
        for child in self.children(parent).take(SCAN) {
            let common = common(self.edge(child), tokens);
            if common > best.map_or(0, |b| b.1) {
                best = Some((child, common));
            }
        }
        best
    }

    /// A tail under `parent` that says no more than `tokens`.
    pub(crate) fn lesser_tail(&self, parent: u32, tokens: &[u32]) -> Option<u32> {
        self.children(parent)
            .take(SCAN)
            .find(|c| self.edge(*c).len() < BLOCK && tokens.starts_with(self.edge(*c)))
    }

    /// Makes `block` a full child of `parent`; [`Tree::child`] said that there is no equal one.
    pub(crate) fn insert_full(&mut self, parent: u32, block: u32, tokens: &[u32; BLOCK]) {
        self.link(parent, block, tokens);
    }

    /// Puts a full node into the hash table, unless it stands there.
    fn place(&mut self, block: u32) {
        let node = self.nodes[block as usize];
        if node.placed || (node.len as usize) < BLOCK {
            return;
        }
        let hash = (self.hash)(self.key, node.parent, &self.tokens[block as usize]);
        let mut at = self.home(hash);
        while self.table[at].block != NONE {
            at = self.after(at);
        }
        self.table[at] = Place { hash, block };
        let node = &mut self.nodes[block as usize];
        (node.hash, node.placed) = (hash, true);
    }

    /// Makes `block` a tail under `parent`.
    pub(crate) fn insert_tail(&mut self, parent: u32, block: u32, tokens: &[u32]) {
        debug_assert!((1..BLOCK).contains(&tokens.len()));
        self.link(parent, block, tokens);
    }

    /// Makes `block` the first child of `parent`; the one that was it gets a place.
    fn link(&mut self, parent: u32, block: u32, tokens: &[u32]) {
        debug_assert!(!self.contains(block));
        self.tokens[block as usize][..tokens.len()].copy_from_slice(tokens);
        let first = self.first_child(parent);
        self.nodes[block as usize] = Node {
            parent,
            next: first,
            len: tokens.len() as u8,
            ..ABSENT
        };
        if first != NONE {
            self.nodes[first as usize].prev = block;
            self.place(first);
        }
        self.set_first_child(parent, block);
    }

    /// Takes a leaf out.
    pub(crate) fn remove(&mut self, block: u32) {
        debug_assert!(self.contains(block) && self.is_leaf(block));
        let Node {
            parent,
            next,
            prev,
            placed,
            ..
        } = self.nodes[block as usize];
        if placed {
            self.unplace(block);
        }
        if next != NONE {
            self.nodes[next as usize].prev = prev;
        }
        match prev {
            NONE => self.set_first_child(parent, next),
            prev => self.nodes[prev as usize].next = next,
        }
        self.nodes[block as usize] = ABSENT;
        if parent & ROOT != 0 && self.first_child(parent) == NONE {
            let index = parent & !ROOT;
            self.by_namespace
                .remove(&self.roots[index as usize].namespace);
            self.free_roots.push(index);
        }
    }

    /// Forgets everything.
    pub(crate) fn reset(&mut self) {
        self.nodes.fill(ABSENT);
        self.table.fill(EMPTY);
        self.roots.clear();
        self.free_roots.clear();
        self.by_namespace.clear();
    }

    /// Namespaces that hold something.
    pub(crate) fn namespaces(&self) -> usize {
        self.by_namespace.len()
    }

    pub(crate) fn children(&self, parent: u32) -> impl Iterator<Item = u32> + '_ {
        let step = |b: u32| (b != NONE).then_some(b);
        std::iter::successors(step(self.first_child(parent)), move |b| {
            step(self.nodes[*b as usize].next)
        })
    }

    fn first_child(&self, parent: u32) -> u32 {
        if parent == NONE {
            NONE
        } else if parent & ROOT != 0 {
            self.roots[(parent & !ROOT) as usize].first_child
        } else {
            self.nodes[parent as usize].first_child
        }
    }

    fn set_first_child(&mut self, parent: u32, child: u32) {
        if parent & ROOT != 0 {
            self.roots[(parent & !ROOT) as usize].first_child = child;
        } else {
            self.nodes[parent as usize].first_child = child;
        }
    }

    fn home(&self, hash: u32) -> usize {
        hash as usize & (self.table.len() - 1)
    }

    /// The place behind `at`. The table's length is a power of two.
    fn after(&self, at: usize) -> usize {
        (at + 1) & (self.table.len() - 1)
    }

    /// Takes a placed node out of the hash table, and moves those behind it up (Knuth, TAOCP 6.4, algorithm R).
    fn unplace(&mut self, block: u32) {
        let mask = self.table.len() - 1;
        let mut hole = self.home(self.nodes[block as usize].hash);
        while self.table[hole].block != block {
            hole = self.after(hole);
        }
        let mut at = self.after(hole);
        while self.table[at].block != NONE {
            let home = self.home(self.table[at].hash);
            // It may move into the hole if that lies on its way from home.
            if at.wrapping_sub(home) & mask >= at.wrapping_sub(hole) & mask {
                self.table[hole] = self.table[at];
                hole = at;
            }
            at = self.after(at);
        }
        self.table[hole] = EMPTY;
    }
}

/// How many first tokens are equal.
fn common(a: &[u32], b: &[u32]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}
