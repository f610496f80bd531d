// SPDX-License-Identifier: MIT OR Apache-2.0
//! The cache behind `KvAccounts`: the adapter that model-engine has, for tests.

use metrale_cache::{Admission as Ask, CacheOptions, KvCache};
use metrale_scheduler::{Admission, Attached, BlockCopy, KvAccounts, TableDelta};

pub struct Kv(pub KvCache);

impl Kv {
    pub fn new(blocks: u32, slots: u32) -> Kv {
        Kv(KvCache::new(CacheOptions {
            blocks,
            slots,
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
        };
        let found = self.0.admit(slot, &ask)?;
        Some(Attached {
            cached: found.cached,
            copy: found.copy.map(|c| BlockCopy {
                src: c.src,
                dst: c.dst,
            }),
        })
    }

    fn cached(&self, namespace: u64, tokens: &[u32]) -> u32 {
        self.0.cached(namespace, tokens)
    }

    fn grow(&mut self, slot: u32) -> Option<u32> {
        self.0.grow(slot)
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
}
