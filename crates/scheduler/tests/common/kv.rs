// SPDX-License-Identifier: MIT OR Apache-2.0
//! The cache behind `KvAccounts`: the adapter that model-engine has, for tests.

use metrale_cache::{Admission as Ask, CacheOptions, KvCache, StateOptions, WindowOptions};
use metrale_scheduler::{Admission, Attached, BlockCopy, KvAccounts, TableDelta};

/// Keys that the layers of the hybrid's second group see.
pub const WINDOW: u32 = 20;

pub struct Kv(pub KvCache);

impl Kv {
    pub fn new(blocks: u32, slots: u32) -> Kv {
        Kv(KvCache::new(CacheOptions {
            blocks,
            slots,
            ..CacheOptions::default()
        }))
    }

    /// With a group of layers that see [`WINDOW`] keys, and recurrent ones.
    pub fn hybrid(blocks: u32, slots: u32, rows: u32, snapshots: u32) -> Kv {
        Kv(KvCache::new(CacheOptions {
            blocks,
            slots,
            windows: vec![WindowOptions {
                tokens: WINDOW,
                blocks: WindowOptions::least(WINDOW, slots, rows) + snapshots,
            }],
            states: Some(StateOptions {
                snapshots,
                every: 32,
            }),
            ..CacheOptions::default()
        }))
    }
}

impl KvAccounts for Kv {
    fn block_tokens(&self) -> u32 {
        super::BLOCK
    }

    fn total_blocks(&self) -> u32 {
        self.0.total_blocks()
    }

    fn available_blocks(&self) -> u32 {
        self.0.available_blocks()
    }

    fn used_blocks(&self) -> u32 {
        self.0.stats().used
    }

    fn admit(&mut self, slot: u32, a: &Admission<'_>) -> Option<Attached> {
        let ask = Ask {
            namespace: a.namespace,
            tokens: a.tokens,
            reuse: a.reuse,
            spare: a.spare,
            restore: a.restore,
        };
        let found = self.0.admit(slot, &ask)?;
        Some(Attached {
            cached: found.cached,
            copy: found.copy.map(|c| BlockCopy {
                src: c.src,
                dst: c.dst,
            }),
            state: found.state,
        })
    }

    fn cached(&self, namespace: u64, tokens: &[u32]) -> u32 {
        self.0.cached(namespace, tokens)
    }

    fn restorable(&self, namespace: u64, tokens: &[u32]) -> u32 {
        self.0.restorable(namespace, tokens)
    }

    fn grow(&mut self, slot: u32) -> Option<u32> {
        self.0.grow(slot)
    }

    fn shrink(&mut self, slot: u32, blocks: u32) {
        self.0.shrink(slot, blocks);
    }

    fn table(&self, slot: u32) -> &[u32] {
        self.0.table(slot)
    }

    fn publish(&mut self, slot: u32, tokens: &[u32], changed: &mut Vec<TableDelta>) {
        self.0.publish(slot, tokens, |t| {
            changed.push(TableDelta {
                slot,
                index: t.index,
                block: t.block,
            });
        });
    }

    fn release(&mut self, slot: u32, tokens: &[u32]) {
        self.0.release(slot, tokens);
    }

    fn reset(&mut self) {
        self.0.reset();
    }

    fn prepare(&mut self, slot: u32, first: u32, rows: u32, changed: &mut Vec<TableDelta>) -> bool {
        let slots = self.0.slots();
        self.0.prepare(slot, first, rows, |group, change| {
            changed.push(TableDelta {
                slot: slot + group * slots,
                index: change.index,
                block: change.block,
            });
        })
    }

    fn window_entries(&self, slot: u32, entries: &mut Vec<TableDelta>) {
        for group in 1..=self.0.window_groups() {
            let (first, held) = self.0.window_table(group, slot);
            let slot = slot + group * self.0.slots();
            let held = held.iter().zip(first..);
            entries.extend(held.map(|(block, index)| TableDelta {
                slot,
                index,
                block: *block,
            }));
        }
    }

    fn snapshot_every(&self) -> Option<u32> {
        self.0.snapshot_every()
    }

    fn reserve_snapshot(&mut self) -> Option<u32> {
        self.0.reserve_snapshot()
    }

    fn keep_snapshot(&mut self, slot: u32, tokens: u32, place: u32) {
        self.0.keep_snapshot(slot, tokens, place);
    }

    fn drop_snapshot(&mut self, place: u32) {
        self.0.drop_snapshot(place);
    }
}
