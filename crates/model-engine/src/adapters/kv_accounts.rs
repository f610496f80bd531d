// SPDX-License-Identifier: MIT OR Apache-2.0
//! The scheduler's view of the KV cache, over the cache crate's accounts.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use metrale_cache::KvCache;
use metrale_core::KV_BLOCK;
use metrale_scheduler::{Admission, Attached, BlockCopy, KvAccounts, TableDelta};

/// [`KvAccounts`] over a [`KvCache`], with the count of blocks that the background thread has populated.
pub struct CacheAccounts {
    cache: KvCache,
    populated: Arc<AtomicU32>,
    known: u32,
}

impl CacheAccounts {
    /// Accounts that hand out the first `populated` blocks only, a count that grows from another thread.
    #[must_use]
    pub fn new(mut cache: KvCache, populated: Arc<AtomicU32>) -> CacheAccounts {
        let known = populated.load(Ordering::Acquire);
        cache.set_populated(known);
        CacheAccounts {
            cache,
            populated,
            known,
        }
    }

    /// The accounts.
    #[must_use]
    pub fn cache(&self) -> &KvCache {
        &self.cache
    }

    fn refresh(&mut self) {
        let populated = self.populated.load(Ordering::Acquire);
        if populated != self.known {
            self.cache.set_populated(populated);
            self.known = populated;
        }
    }
}

impl KvAccounts for CacheAccounts {
    fn block_tokens(&self) -> u32 {
        KV_BLOCK
    }

    fn total_blocks(&self) -> u32 {
        self.cache.total_blocks()
    }

    fn available_blocks(&self) -> u32 {
        // Blocks populated since the last refresh are free: nothing has used them yet.
        self.cache.available_blocks() + (self.populated.load(Ordering::Acquire) - self.known)
    }

    fn used_blocks(&self) -> u32 {
        self.cache.stats().used
    }

    fn admit(&mut self, slot: u32, admission: &Admission<'_>) -> Option<Attached> {
        self.refresh();
        let Admission {
            namespace,
            tokens,
            reuse,
            spare,
            restore,
        } = *admission;
        let attached = self.cache.admit(
            slot,
            &metrale_cache::Admission {
                namespace,
                tokens,
                reuse,
                spare,
                restore,
            },
        )?;
        let copy = attached.copy.map(|copy| BlockCopy {
            src: copy.src,
            dst: copy.dst,
        });
        Some(Attached {
            cached: attached.cached,
            copy,
            state: attached.state,
        })
    }

    fn cached(&self, namespace: u64, tokens: &[u32]) -> u32 {
        self.cache.cached(namespace, tokens)
    }

    fn restorable(&self, namespace: u64, tokens: &[u32]) -> u32 {
        self.cache.restorable(namespace, tokens)
    }

    fn grow(&mut self, slot: u32) -> Option<u32> {
        self.refresh();
        self.cache.grow(slot)
    }

    fn shrink(&mut self, slot: u32, blocks: u32) {
        self.cache.shrink(slot, blocks);
    }

    fn table(&self, slot: u32) -> &[u32] {
        self.cache.table(slot)
    }

    fn publish(&mut self, slot: u32, tokens: &[u32], changed: &mut Vec<TableDelta>) {
        self.cache.publish(slot, tokens, |change| {
            changed.push(TableDelta {
                slot,
                index: change.index,
                block: change.block,
            });
        });
    }

    fn release(&mut self, slot: u32, tokens: &[u32]) {
        self.cache.release(slot, tokens);
    }

    fn reset(&mut self) {
        self.cache.reset();
    }

    fn prepare(&mut self, slot: u32, first: u32, rows: u32, changed: &mut Vec<TableDelta>) -> bool {
        let slots = self.cache.slots();
        self.cache.prepare(slot, first, rows, |group, change| {
            changed.push(TableDelta {
                slot: slot + group * slots,
                index: change.index,
                block: change.block,
            });
        })
    }

    fn window_entries(&self, slot: u32, entries: &mut Vec<TableDelta>) {
        for group in 1..=self.cache.window_groups() {
            let (first, held) = self.cache.window_table(group, slot);
            let slot = slot + group * self.cache.slots();
            let held = held.iter().zip(first..);
            entries.extend(held.map(|(block, index)| TableDelta {
                slot,
                index,
                block: *block,
            }));
        }
    }

    fn snapshot_every(&self) -> Option<u32> {
        self.cache.snapshot_every()
    }

    fn reserve_snapshot(&mut self) -> Option<u32> {
        self.cache.reserve_snapshot()
    }

    fn keep_snapshot(&mut self, slot: u32, tokens: u32, place: u32) {
        self.cache.keep_snapshot(slot, tokens, place);
    }

    fn drop_snapshot(&mut self, place: u32) {
        self.cache.drop_snapshot(place);
    }
}
