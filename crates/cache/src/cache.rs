// SPDX-License-Identifier: MIT OR Apache-2.0
//! The cache: sequences over the pool and the tree. See the crate's essay for the rules.

use crate::BLOCK;
use crate::pool::{NONE, Pool};
use crate::sink::{Above, BlockName, BlockSink};
use crate::state::States;
use crate::tree::Tree;
use crate::types::{
    Admission, Attached, BlockCopy, CacheOptions, CacheStats, TableChange, WindowOptions,
};
use crate::window::Window;

/// Accounts of the paged KV pool and its prefix tree.
pub struct KvCache {
    pub(crate) pool: Pool,
    pub(crate) tree: Tree,
    pub(crate) sequences: Vec<Sequence>,
    pub(crate) windows: Vec<Window>,
    pub(crate) states: Option<States>,
    pub(crate) sink: Option<Sink>,
    partial: bool,
    evicted: u64,
    restored: u64,
}

/// The sink, and the numbers of the blocks that are nodes.
pub(crate) struct Sink {
    to: Box<dyn BlockSink>,
    numbers: Vec<u64>,
    next: u64,
}

/// An open sequence, or a closed slot.
#[derive(Default)]
pub(crate) struct Sequence {
    pub(crate) open: bool,
    pub(crate) namespace: u64,
    pub(crate) table: Vec<u32>,
    /// Blocks found cached at admission.
    attached: usize,
    /// First blocks of the table that are nodes of the tree.
    pub(crate) published: usize,
}

/// A prefix found in the tree.
struct Match {
    /// Whole blocks.
    whole: usize,
    /// Of these, cached ones (that nobody uses yet).
    idle: u32,
    /// The node that a part of the next block can be copied from, and how many tokens of it fit.
    part: Option<(u32, usize)>,
}

impl Match {
    fn tokens(&self) -> u32 {
        (self.whole * BLOCK + self.part.map_or(0, |p| p.1)) as u32
    }
}

impl KvCache {
    /// An empty cache, all blocks populated.
    ///
    /// # Panics
    /// If there are 2^31 blocks or more, more groups than [`WindowOptions::MOST`], an empty window, or snapshots that are
    /// not whole blocks apart.
    #[must_use]
    pub fn new(options: CacheOptions) -> KvCache {
        assert!(options.blocks < 1 << 31, "at most 2^31 - 1 blocks");
        let windows = &options.windows;
        assert!(windows.len() <= WindowOptions::MOST, "too many groups");
        assert!(windows.iter().all(|w| w.tokens > 0), "an empty window");
        let apart = options.states.map_or(BLOCK as u32, |s| s.every);
        assert!(
            apart > 0 && apart.is_multiple_of(BLOCK as u32),
            "snapshots lie whole blocks apart"
        );
        let (blocks, slots) = (options.blocks, options.slots);
        KvCache {
            pool: Pool::new(options.blocks),
            tree: Tree::new(options.blocks, options.hash, options.hash_key),
            sequences: (0..options.slots)
                .map(|_| Sequence {
                    table: Vec::with_capacity(options.blocks_per_slot as usize),
                    ..Sequence::default()
                })
                .collect(),
            windows: windows
                .iter()
                .map(|w| Window::new(w, blocks, slots, options.blocks_per_slot))
                .collect(),
            states: options.states.map(|s| States::new(&s, blocks, slots)),
            partial: options.partial && windows.is_empty() && options.states.is_none(),
            sink: None,
            evicted: 0,
            restored: 0,
        }
    }

    /// Blocks of the pool, populated or not.
    #[must_use]
    pub fn total_blocks(&self) -> u32 {
        self.pool.len()
    }

    /// The same, with a sink for what is evicted.
    ///
    /// # Panics
    /// If there is recurrent state: blocks are then not all of a prefix.
    #[must_use]
    pub fn with_sink(self, sink: Box<dyn BlockSink>) -> KvCache {
        assert!(self.states.is_none(), "a sink keeps blocks and no state");
        let sink = Sink {
            to: sink,
            numbers: vec![0; self.pool.len() as usize],
            next: 0,
        };
        KvCache {
            sink: Some(sink),
            ..self
        }
    }

    /// Sequences that can be open at once.
    #[must_use]
    pub fn slots(&self) -> u32 {
        self.sequences.len() as u32
    }

    /// Says that the first `blocks` blocks can be used: the pool is populated in order while the server runs already.
    /// Never goes below what is in use.
    pub fn set_populated(&mut self, blocks: u32) {
        self.pool.set_populated(blocks);
    }

    /// Blocks that could be handed out now: free and populated, or cached and in use by nobody.
    #[must_use]
    pub fn available_blocks(&self) -> u32 {
        self.pool.free() + self.pool.listed()
    }

    /// Where the blocks are.
    #[must_use]
    pub fn stats(&self) -> CacheStats {
        let (free, cached) = (self.pool.free(), self.pool.listed());
        CacheStats {
            total: self.pool.len(),
            populated: self.pool.populated(),
            free,
            cached,
            used: self.pool.populated() - free - cached,
            evicted: self.evicted,
            restored: self.restored,
            namespaces: self.tree.namespaces() as u32,
        }
    }

    /// How many of `tokens` an admission in `namespace` would find cached.
    #[must_use]
    pub fn cached(&self, namespace: u64, tokens: &[u32]) -> u32 {
        self.find(namespace, tokens, |_| {}).tokens()
    }

    /// Opens `slot`: attaches the longest cached prefix of `tokens`, never all of them, and takes blocks for the rest.
    /// `None`, and nothing changed, if fewer than `admission.spare` blocks would stay available.
    ///
    /// # Panics
    /// If the slot is open already, or `tokens` is empty.
    pub fn admit(&mut self, slot: u32, admission: &Admission<'_>) -> Option<Attached> {
        let Admission {
            namespace,
            tokens,
            reuse,
            spare,
            restore,
        } = *admission;
        assert!(!tokens.is_empty(), "a sequence has at least one token");
        let mut sequence = std::mem::take(&mut self.sequences[slot as usize]);
        assert!(!sequence.open, "slot {slot} is open");
        sequence.table.clear();
        let found = if reuse {
            self.find(namespace, tokens, |block| sequence.table.push(block))
        } else {
            Match {
                whole: 0,
                idle: 0,
                part: None,
            }
        };
        sequence.table.truncate(found.whole);
        let new = tokens.len().div_ceil(BLOCK) - found.whole;
        let available = self.available_blocks() - found.idle;
        if (new as u64) + u64::from(spare) > u64::from(available) {
            sequence.table.clear();
            self.sequences[slot as usize] = sequence;
            return None;
        }
        for block in &sequence.table {
            self.pool.hold(*block);
        }
        if let Some((src, _)) = found.part
            && self.pool.is_listed(src)
        {
            // Used just now; the nodes above it are in use, so it still stands before its parent.
            self.pool.unlist(src);
            self.pool.list(src);
        }
        for window in &mut self.windows {
            window.attach(slot, &sequence.table);
        }
        let state = match (&mut self.states, sequence.table.last()) {
            (Some(states), Some(last)) => Some(states.restore(*last)),
            _ => None,
        };
        for _ in 0..new {
            sequence.table.extend(self.take());
        }
        debug_assert_eq!(sequence.table.len(), found.whole + new);
        sequence.namespace = namespace;
        sequence.published = found.whole;
        let restored = match restore && reuse {
            true => self.restore(slot, &mut sequence, tokens),
            false => Some(0),
        };
        let Some(restored) = restored else {
            // Its windows went on, and what they were for did not come whole.
            sequence.open = true;
            sequence.attached = sequence.published;
            self.sequences[slot as usize] = sequence;
            self.release(slot, &[]);
            let plain = Admission {
                restore: false,
                ..*admission
            };
            return self.admit(slot, &plain);
        };
        let cached = match restored {
            0 => found.tokens(),
            _ => (sequence.published * BLOCK) as u32,
        };
        let copy = found
            .part
            .filter(|_| restored == 0)
            .map(|(src, _)| BlockCopy {
                src,
                dst: sequence.table[found.whole],
            })
            .filter(|c| c.src != c.dst); // The source itself was evicted to make room: all is in place.
        sequence.open = true;
        sequence.attached = found.whole + restored;
        self.sequences[slot as usize] = sequence;
        Some(Attached {
            cached,
            copy,
            state,
        })
    }

    /// Appends a block to the table of `slot`, evicting a cached one if it must. `None` if none is left.
    pub fn grow(&mut self, slot: u32) -> Option<u32> {
        let block = self.take()?;
        self.sequences[slot as usize].table.push(block);
        Some(block)
    }

    /// Takes the blocks behind the first `blocks` from `slot`; none of them is published.
    pub fn shrink(&mut self, slot: u32, blocks: u32) {
        let sequence = &mut self.sequences[slot as usize];
        debug_assert!(sequence.published <= blocks as usize);
        while sequence.table.len() > blocks as usize {
            if let Some(block) = sequence.table.pop() {
                self.pool.drop_hold(block);
                self.pool.give_back(block);
            }
        }
        for window in &mut self.windows {
            window.shrink(slot, blocks as usize);
        }
    }

    /// The block table of `slot`; empty if it is closed.
    #[must_use]
    pub fn table(&self, slot: u32) -> &[u32] {
        &self.sequences[slot as usize].table
    }

    /// Before rows `first..first + rows` of `slot` run: takes their blocks in the groups beside the first one, and gives
    /// back what no row from `first` on reads. `changed` is told the group, counted from 1, and its new entries. False if a
    /// group's pool is smaller than [`WindowOptions::least`]: the rows must not run.
    pub fn prepare(
        &mut self,
        slot: u32,
        first: u32,
        rows: u32,
        mut changed: impl FnMut(u32, TableChange),
    ) -> bool {
        let groups = self.windows.iter_mut().zip(1..);
        groups.fold(true, |whole, (window, group)| {
            window.prepare(slot, first, rows, |c| changed(group, c)) && whole
        })
    }

    /// The table of `slot` in a group beside the first one, counted from 1: its first entry that is held, and those from it
    /// on.
    #[must_use]
    pub fn window_table(&self, group: u32, slot: u32) -> (u32, &[u32]) {
        let table = &self.windows[group as usize - 1].tables[slot as usize];
        (table.first as u32, table.held())
    }

    /// Groups of sliding-window layers.
    #[must_use]
    pub fn window_groups(&self) -> u32 {
        self.windows.len() as u32
    }

    /// Tokens between two snapshots of recurrent state; `None`: there is none.
    #[must_use]
    pub fn snapshot_every(&self) -> Option<u32> {
        self.states.as_ref().map(|s| s.every)
    }

    /// A place to copy a live state to. It must be given to [`KvCache::keep_snapshot`] or [`KvCache::drop_snapshot`]. `None`:
    /// there is no place, and the state is not saved.
    pub fn reserve_snapshot(&mut self) -> Option<u32> {
        self.states.as_mut()?.reserve()
    }

    /// The reserved `place` holds the state of `slot` behind `tokens` (from position 0), a multiple of
    /// [`KvCache::snapshot_every`], all published.
    pub fn keep_snapshot(&mut self, slot: u32, tokens: u32, place: u32) {
        let sequence = &self.sequences[slot as usize];
        let index = (tokens as usize / BLOCK).checked_sub(1);
        let node = index
            .filter(|i| *i < sequence.published)
            .map(|i| sequence.table[i]);
        let Some(states) = &mut self.states else {
            return;
        };
        match node {
            Some(node) => states.keep(place, node),
            None => states.drop_reserved(place),
        }
    }

    /// Gives a reserved place back.
    pub fn drop_snapshot(&mut self, place: u32) {
        if let Some(states) = &mut self.states {
            states.drop_reserved(place);
        }
    }

    /// Says that the KV of `tokens` (from position 0) is stored: full blocks enter the tree. Where an equal one stands
    /// there already, the sequence changes over to it, gives its own back, and `changed` is told.
    pub fn publish(&mut self, slot: u32, tokens: &[u32], mut changed: impl FnMut(TableChange)) {
        let mut sequence = std::mem::take(&mut self.sequences[slot as usize]);
        let full = tokens.len() / BLOCK;
        while sequence.published < full {
            let index = sequence.published;
            let edge = block_of(tokens, index);
            let parent = self.parent_of(&sequence, index);
            let own = sequence.table[index];
            match self.tree.child(parent, edge) {
                Some(other) => {
                    self.pool.hold(other);
                    self.pool.drop_hold(own);
                    self.pool.give_back(own);
                    sequence.table[index] = other;
                    changed(TableChange {
                        index: index as u32,
                        block: other,
                    });
                }
                None => {
                    let lesser = self.tree.lesser_tail(parent, edge);
                    self.tree.insert_full(parent, own, edge);
                    self.number(&sequence, index, edge);
                    self.drop_tail(lesser);
                }
            }
            let node = sequence.table[index];
            for window in &mut self.windows {
                window.publish(slot, index, node);
            }
            sequence.published += 1;
        }
        self.sequences[slot as usize] = sequence;
    }

    /// Closes `slot`. The KV of `tokens` (from position 0) is stored and stays as a prefix, the partly filled last block
    /// included. An empty slice says that it cannot be trusted: then what the sequence itself published goes too, unless
    /// another uses it.
    pub fn release(&mut self, slot: u32, tokens: &[u32]) {
        let trusted = !tokens.is_empty();
        if trusted {
            self.publish(slot, tokens, |_| {});
        }
        let mut sequence = std::mem::take(&mut self.sequences[slot as usize]);
        if trusted && self.partial {
            self.leave_tail(&sequence, tokens);
        }
        for (index, block) in sequence.table.iter().copied().enumerate().rev() {
            if self.pool.drop_hold(block) > 0 {
                continue;
            }
            if !self.tree.contains(block) {
                self.pool.give_back(block);
            } else if !trusted && index >= sequence.attached && self.tree.is_leaf(block) {
                self.forget(block);
                self.pool.give_back(block);
            } else {
                self.pool.list(block);
            }
        }
        for window in &mut self.windows {
            window.release(slot);
        }
        sequence.open = false;
        sequence.table.clear();
        self.sequences[slot as usize] = sequence;
    }

    /// Closes every slot and forgets every prefix: the pool's content is lost.
    pub fn reset(&mut self) {
        self.pool.reset();
        self.tree.reset();
        if let Some(sink) = &mut self.sink {
            sink.to.reset();
        }
        for window in &mut self.windows {
            window.reset();
        }
        if let Some(states) = &mut self.states {
            states.reset();
        }
        for sequence in &mut self.sequences {
            sequence.open = false;
            sequence.table.clear();
        }
    }

    /// The longest cached prefix that leaves one token over and can be resumed from; `whole` is given its blocks in order,
    /// and perhaps some that come after it.
    fn find(&self, namespace: u64, tokens: &[u32], mut whole: impl FnMut(u32)) -> Match {
        let most = tokens.len().saturating_sub(1);
        let mut found = Match {
            whole: 0,
            idle: 0,
            part: None,
        };
        let mut parent = self.tree.root(namespace);
        if parent == NONE {
            return found;
        }
        let (mut blocks, mut idle) = (0, 0);
        // Companions in a row up to here, by group.
        let mut row = [0; WindowOptions::MOST];
        while (blocks + 1) * BLOCK <= most {
            let Some(child) = self.tree.child(parent, block_of(tokens, blocks)) else {
                break;
            };
            whole(child);
            idle += u32::from(self.pool.is_listed(child));
            blocks += 1;
            parent = child;
            if self.resumes(child, blocks, &mut row) {
                (found.whole, found.idle) = (blocks, idle);
            }
        }
        if self.partial {
            let rest = &tokens[found.whole * BLOCK..most];
            found.part = self.tree.nearest_child(parent, rest);
        }
        found
    }

    /// Blocks that an admission which may restore would bring back from the sink.
    #[must_use]
    pub fn restorable(&self, namespace: u64, tokens: &[u32]) -> u32 {
        let Some(sink) = &self.sink else {
            return 0;
        };
        let mut path = Vec::new();
        let found = self.find(namespace, tokens, |block| path.push(block));
        path.truncate(found.whole);
        let count = self.count(sink, namespace, &path, tokens);
        if count > 0 && sink.to.worth(count) {
            count
        } else {
            0
        }
    }

    /// Blocks that are kept in a row behind `path`, leaving one token over: up to where a sequence can go on, that is where
    /// each window before it is held, or kept too.
    fn count(&self, sink: &Sink, namespace: u64, path: &[u32], tokens: &[u32]) -> u32 {
        let (mut above, parent) = match path.last() {
            Some(last) => (Above::Block(sink.numbers[*last as usize]), *last),
            None => (Above::Root(namespace), self.tree.root(namespace)),
        };
        let (first, most) = (path.len(), tokens.len().saturating_sub(1) / BLOCK);
        if first >= most {
            return 0;
        }
        // A child that stands there without its windows is in the way of the one that would come.
        if parent != NONE && self.tree.child(parent, block_of(tokens, first)).is_some() {
            return 0;
        }
        let mut row = [0; WindowOptions::MOST];
        for (window, row) in self.windows.iter().zip(&mut row) {
            let held = path.iter().rev().take_while(|node| window.has(**node));
            *row = held.count();
        }
        let mut count = 0;
        for index in first..most {
            let tokens = *block_of(tokens, index);
            let name = BlockName { above, tokens };
            let Some(number) = sink.to.kept(&name) else {
                break;
            };
            above = Above::Block(number);
            let mut whole = true;
            for (group, (window, row)) in self.windows.iter().zip(&mut row).enumerate() {
                let has = sink.to.kept_beside(&name, group);
                *row = if has { *row + 1 } else { 0 };
                whole &= *row >= window.needs(index + 1);
            }
            if whole {
                count = index + 1 - first;
            }
        }
        count as u32
    }

    /// Fills blocks of an admission from the sink, as long as it keeps the next one and that is worth it. How many; `None` if
    /// the sequence cannot go on from there.
    fn restore(&mut self, slot: u32, sequence: &mut Sequence, tokens: &[u32]) -> Option<usize> {
        let Some(sink) = &self.sink else {
            return Some(0);
        };
        let first = sequence.published;
        let mut above = sink.above(sequence, first);
        let path = &sequence.table[..first];
        let count = self.count(sink, sequence.namespace, path, tokens);
        if count == 0 || !sink.to.worth(count) {
            return Some(0);
        }
        let end = first + count as usize;
        for window in &mut self.windows {
            if !window.prepare(slot, (end * BLOCK) as u32, 0, |_| {}) {
                return None;
            }
        }
        for index in first..end {
            let edge = block_of(tokens, index);
            let name = BlockName {
                above,
                tokens: *edge,
            };
            let block = sequence.table[index];
            let Some(sink) = &mut self.sink else { break };
            // Taking blocks for this very sequence may have pushed it out.
            let Some(number) = sink.to.kept(&name) else {
                break;
            };
            let mut beside = [NONE; WindowOptions::MOST];
            for (window, beside) in self.windows.iter().zip(&mut beside) {
                *beside = window.block(slot, index);
            }
            let beside = &beside[..self.windows.len()];
            if !sink.to.restore(&name, block, beside) {
                break;
            }
            sink.numbers[block as usize] = number;
            above = Above::Block(number);
            let parent = self.parent_of(sequence, index);
            // The search ended where the tree had no such child.
            if self.tree.child(parent, edge).is_none() {
                self.tree.insert_full(parent, block, edge);
                sequence.published += 1;
                self.restored += 1;
                for window in &mut self.windows {
                    window.publish(slot, index, block);
                }
            }
        }
        let whole = self.windows.is_empty() || sequence.published == end;
        whole.then_some(sequence.published - first)
    }

    /// Gives the new node at `index` its number: the one under which it is kept, or a new one.
    fn number(&mut self, sequence: &Sequence, index: usize, edge: &[u32; BLOCK]) {
        let Some(sink) = &mut self.sink else {
            return;
        };
        let name = BlockName {
            above: sink.above(sequence, index),
            tokens: *edge,
        };
        let number = sink.to.kept(&name).unwrap_or_else(|| {
            sink.next += 1;
            sink.next
        });
        sink.numbers[sequence.table[index] as usize] = number;
    }

    /// Offers a node that is about to be evicted to the sink.
    fn keep(&mut self, block: u32) {
        let Some(sink) = &mut self.sink else {
            return;
        };
        let Ok(tokens) = <[u32; BLOCK]>::try_from(self.tree.edge(block)) else {
            return; // A tail.
        };
        let above = match self.tree.parent(block) {
            Some(parent) => Above::Block(sink.numbers[parent as usize]),
            None => Above::Root(self.tree.namespace(block)),
        };
        let name = BlockName { above, tokens };
        let mut beside = [NONE; WindowOptions::MOST];
        for (window, beside) in self.windows.iter().zip(&mut beside) {
            *beside = window.beside(block);
        }
        let beside = &beside[..self.windows.len()];
        sink.to
            .evict(&name, sink.numbers[block as usize], block, beside);
    }

    /// Whether a sequence can go on behind `node`, block number `blocks` of a path: windows and state are there.
    fn resumes(&self, node: u32, blocks: usize, row: &mut [usize; WindowOptions::MOST]) -> bool {
        let mut all = self.states.as_ref().is_none_or(|s| s.has(node));
        for (window, row) in self.windows.iter().zip(row) {
            *row = if window.has(node) { *row + 1 } else { 0 };
            all &= *row >= window.needs(blocks);
        }
        all
    }

    /// A free block, or the oldest cached one.
    fn take(&mut self) -> Option<u32> {
        if let Some(block) = self.pool.take() {
            return Some(block);
        }
        let oldest = self.pool.oldest()?;
        self.keep(oldest);
        self.evict(oldest);
        self.evicted += 1;
        self.pool.take()
    }

    fn evict(&mut self, block: u32) {
        self.pool.unlist(block);
        self.forget(block);
        self.pool.give_back(block);
    }

    /// Takes a leaf out of the tree, and what hangs on it beside this pool.
    fn forget(&mut self, block: u32) {
        self.tree.remove(block);
        for window in &mut self.windows {
            window.forget(block);
        }
        if let Some(states) = &mut self.states {
            states.forget(block);
        }
    }

    /// The tree parent of the block at `index`; the blocks before it are nodes.
    fn parent_of(&mut self, sequence: &Sequence, index: usize) -> u32 {
        match index.checked_sub(1) {
            Some(before) => sequence.table[before],
            None => self.tree.root_or_new(sequence.namespace),
        }
    }

    /// Puts the partly filled last block into the tree, unless something there says as much already.
    fn leave_tail(&mut self, sequence: &Sequence, tokens: &[u32]) {
        let full = tokens.len() / BLOCK;
        let tail = &tokens[full * BLOCK..];
        let Some(block) = sequence.table.get(full).filter(|_| !tail.is_empty()) else {
            return;
        };
        let parent = self.parent_of(sequence, full);
        if let Some((_, common)) = self.tree.nearest_child(parent, tail)
            && common == tail.len()
        {
            return;
        }
        let lesser = self.tree.lesser_tail(parent, tail);
        self.tree.insert_tail(parent, *block, tail);
        self.drop_tail(lesser);
    }

    /// Drops a tail that a new child of its parent made superfluous.
    fn drop_tail(&mut self, tail: Option<u32>) {
        if let Some(tail) = tail.filter(|t| self.pool.is_listed(*t)) {
            self.evict(tail);
        }
    }
}

impl Sink {
    /// What block `index` of a sequence stands under.
    fn above(&self, sequence: &Sequence, index: usize) -> Above {
        match index.checked_sub(1) {
            Some(before) => Above::Block(self.numbers[sequence.table[before] as usize]),
            None => Above::Root(sequence.namespace),
        }
    }
}

/// Block `index` of `tokens`, which has that many whole ones.
fn block_of(tokens: &[u32], index: usize) -> &[u32; BLOCK] {
    let at = index * BLOCK;
    match tokens[at..at + BLOCK].try_into() {
        Ok(block) => block,
        // The slice above has the length of the array.
        Err(_) => unreachable!(),
    }
}
