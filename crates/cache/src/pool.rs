// SPDX-License-Identifier: MIT OR Apache-2.0
//! Blocks: who holds them, which are free, and the list of those that may be evicted.

/// No block.
pub(crate) const NONE: u32 = u32::MAX;

/// Counts of one block, and its place in the eviction list.
#[derive(Clone, Copy)]
struct Block {
    /// Tables that hold it.
    refs: u32,
    prev: u32,
    next: u32,
    listed: bool,
}

/// The pool. Blocks from `populated` on are not handed out.
pub(crate) struct Pool {
    blocks: Vec<Block>,
    /// Freed ones, the last freed on top.
    free: Vec<u32>,
    /// Populated ones from here on were never handed out.
    fresh: u32,
    populated: u32,
    head: u32,
    tail: u32,
    listed: u32,
}

impl Pool {
    pub(crate) fn new(blocks: u32) -> Pool {
        let block = Block {
            refs: 0,
            prev: NONE,
            next: NONE,
            listed: false,
        };
        Pool {
            blocks: vec![block; blocks as usize],
            free: Vec::with_capacity(blocks as usize),
            fresh: 0,
            populated: blocks,
            head: NONE,
            tail: NONE,
            listed: 0,
        }
    }

    pub(crate) fn len(&self) -> u32 {
        self.blocks.len() as u32
    }

    /// Never below what was handed out already.
    pub(crate) fn set_populated(&mut self, populated: u32) {
        self.populated = populated.min(self.len()).max(self.fresh);
    }

    pub(crate) fn populated(&self) -> u32 {
        self.populated
    }

    pub(crate) fn free(&self) -> u32 {
        self.free.len() as u32 + (self.populated - self.fresh)
    }

    /// Blocks in the eviction list.
    pub(crate) fn listed(&self) -> u32 {
        self.listed
    }

    pub(crate) fn refs(&self, block: u32) -> u32 {
        self.blocks[block as usize].refs
    }

    pub(crate) fn is_listed(&self, block: u32) -> bool {
        self.blocks[block as usize].listed
    }

    /// A free block, held once.
    pub(crate) fn take(&mut self) -> Option<u32> {
        let block = match self.free.pop() {
            Some(block) => block,
            None if self.fresh < self.populated => {
                self.fresh += 1;
                self.fresh - 1
            }
            None => return None,
        };
        self.blocks[block as usize].refs = 1;
        Some(block)
    }

    /// Puts a block that nobody holds back.
    pub(crate) fn give_back(&mut self, block: u32) {
        debug_assert!(self.refs(block) == 0 && !self.is_listed(block));
        self.free.push(block);
    }

    /// One more holder. A listed block leaves the list.
    pub(crate) fn hold(&mut self, block: u32) {
        if self.is_listed(block) {
            self.unlist(block);
        }
        self.blocks[block as usize].refs += 1;
    }

    /// One holder less; returns how many remain.
    pub(crate) fn drop_hold(&mut self, block: u32) -> u32 {
        let refs = &mut self.blocks[block as usize].refs;
        *refs -= 1;
        *refs
    }

    /// Appends a block that nobody holds to the eviction list.
    pub(crate) fn list(&mut self, block: u32) {
        debug_assert!(self.refs(block) == 0 && !self.is_listed(block));
        let tail = self.tail;
        let b = &mut self.blocks[block as usize];
        (b.prev, b.next, b.listed) = (tail, NONE, true);
        match tail {
            NONE => self.head = block,
            tail => self.blocks[tail as usize].next = block,
        }
        self.tail = block;
        self.listed += 1;
    }

    pub(crate) fn unlist(&mut self, block: u32) {
        let Block { prev, next, .. } = self.blocks[block as usize];
        match prev {
            NONE => self.head = next,
            prev => self.blocks[prev as usize].next = next,
        }
        match next {
            NONE => self.tail = prev,
            next => self.blocks[next as usize].prev = prev,
        }
        let b = &mut self.blocks[block as usize];
        (b.prev, b.next, b.listed) = (NONE, NONE, false);
        self.listed -= 1;
    }

    /// The block to evict next.
    pub(crate) fn oldest(&self) -> Option<u32> {
        (self.head != NONE).then_some(self.head)
    }

    /// The eviction list, oldest first.
    pub(crate) fn iter_listed(&self) -> impl Iterator<Item = u32> + '_ {
        let step = |b: u32| (b != NONE).then_some(b);
        std::iter::successors(step(self.head), move |b| {
            step(self.blocks[*b as usize].next)
        })
    }

    /// Free blocks that were in use before.
    pub(crate) fn iter_freed(&self) -> impl Iterator<Item = u32> + '_ {
        self.free.iter().copied()
    }

    /// Blocks that were handed out at least once lie below this.
    pub(crate) fn fresh(&self) -> u32 {
        self.fresh
    }

    /// Everything free again; what is populated stays so.
    pub(crate) fn reset(&mut self) {
        let populated = self.populated;
        *self = Pool::new(self.len());
        self.populated = populated;
    }
}
