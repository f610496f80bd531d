// SPDX-License-Identifier: MIT OR Apache-2.0
//! KV in host memory: where evicted prefixes and preempted sequences go, and where they come back from.
//!
//! The cache offers evicted blocks ([`BlockSink`]), the planner preempted sequences ([`SpillRouter`]); both are pages of one
//! store, one page a block, all layers. Sequences push prefixes out, never the other way round. A page is brought back only
//! where that was measured to be faster than computing its tokens, and only if its checksum holds; else the tokens are
//! computed, with the same bits.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use metrale_cache::{BlockName, BlockSink};
use metrale_core::{KV_BLOCK, SpanId};
use metrale_gpu_runtime::{DeviceFault, Loc};
use metrale_scheduler::SpillRouter;
use metrale_storage::{ArenaError, Page, Rate, Residency, SwapStore};

use crate::model::Reserved;

/// What a tier moved since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TierStats {
    /// Blocks copied to host memory.
    pub spilled: u64,
    /// Blocks brought back.
    pub restored: u64,
    /// Pages in use.
    pub pages: u32,
    /// Pages whose checksum did not hold.
    pub corrupt: u64,
}

/// How long rows take to compute; the model router measures it.
#[derive(Clone, Default)]
pub struct StepPace(Arc<Mutex<Rate>>);

impl StepPace {
    /// `rows` rows ran since `start`.
    pub fn measure(&self, rows: u32, start: Instant) {
        let mut rate = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        rate.measure(u64::from(rows), start.elapsed());
    }

    fn get(&self) -> Rate {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The tier; clones share it.
#[derive(Clone)]
pub struct HostTier(Arc<Mutex<Tier>>);

struct Tier {
    device: Arc<Reserved>,
    /// KV spans with the bytes of a block in each.
    spans: Vec<(SpanId, usize)>,
    store: SwapStore,
    prefixes: Residency<BlockName, (u64, Page)>,
    sequences: HashMap<u64, Vec<Page>>,
    away: Rate,
    back: Rate,
    compute: StepPace,
    stats: TierStats,
}

impl HostTier {
    /// A tier of at most `bytes` bytes for the KV of `device`.
    ///
    /// # Errors
    /// [`ArenaError`] if the system does not give the memory.
    pub fn new(
        device: Arc<Reserved>,
        bytes: u64,
        compute: StepPace,
    ) -> Result<HostTier, ArenaError> {
        let plan = &device.plan;
        let streams = plan.kv_groups[0].streams.iter();
        let spans: Vec<(SpanId, usize)> = streams
            .map(|(span, bytes)| (*span, *bytes as usize))
            .collect();
        let page: usize = spans.iter().map(|s| s.1).sum();
        let pages = bytes / (page as u64).max(1);
        let store = SwapStore::new(u32::try_from(pages).unwrap_or(u32::MAX), page)?;
        Ok(HostTier(Arc::new(Mutex::new(Tier {
            device,
            spans,
            store,
            prefixes: Residency::default(),
            sequences: HashMap::new(),
            away: Rate::default(),
            back: Rate::default(),
            compute,
            stats: TierStats::default(),
        }))))
    }

    /// What it moved.
    #[must_use]
    pub fn stats(&self) -> TierStats {
        let tier = self.tier();
        TierStats {
            pages: tier.store.used(),
            ..tier.stats
        }
    }

    /// Flips a bit of every page: for tests of what happens then.
    pub fn spoil(&self) {
        let mut tier = self.tier();
        let Tier {
            store,
            prefixes,
            sequences,
            ..
        } = &mut *tier;
        while let Some((_, (_, page))) = prefixes.pop_oldest() {
            store.drop_page(page);
        }
        for page in sequences.values().flatten() {
            store.raw(*page)[0] ^= 1;
        }
    }

    /// A panic under the lock leaves pages taken at worst.
    fn tier(&self) -> MutexGuard<'_, Tier> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Tier {
    /// Copies a block away, pushing out the prefix used longest ago if it must.
    fn away(&mut self, block: u32) -> Option<Page> {
        if self.store.used() == self.store.pages() {
            let (_, (_, page)) = self.prefixes.pop_oldest()?;
            self.store.drop_page(page);
        }
        let start = Instant::now();
        let (device, spans) = (&self.device, &self.spans);
        let page = self.store.try_put(|bytes| {
            each(spans, block, bytes.len(), |at, range| {
                device.backend.read(device.arenas, at, &mut bytes[range])
            })
        })?;
        match page {
            Ok(page) => {
                self.away
                    .measure(self.store.page_bytes() as u64, start.elapsed());
                self.stats.spilled += 1;
                Some(page)
            }
            Err(fault) => {
                tracing::warn!(%fault, "a KV block could not be copied to host memory");
                None
            }
        }
    }

    /// Copies a page into a block. False if it cannot be trusted or the device refused.
    fn back(&mut self, page: Page, block: u32) -> bool {
        let start = Instant::now();
        let bytes = match self.store.get(page) {
            Ok(bytes) => bytes,
            Err(corrupt) => {
                tracing::error!(%corrupt, "its tokens are computed again");
                self.stats.corrupt += 1;
                return false;
            }
        };
        let device = &self.device;
        let done = each(&self.spans, block, bytes.len(), |at, range| {
            device.backend.write(device.arenas, at, &bytes[range])
        });
        if let Err(fault) = done {
            tracing::warn!(%fault, "a KV block could not be copied back from host memory");
            return false;
        }
        self.back
            .measure(self.store.page_bytes() as u64, start.elapsed());
        self.stats.restored += 1;
        true
    }

    /// Whether bringing blocks back beats computing them. Until something came back, the way out is the measure.
    fn worth(&self, blocks: u32) -> bool {
        let bytes = u64::from(blocks) * self.store.page_bytes() as u64;
        let way = match self.back.seconds(1) {
            Some(_) => self.back,
            None => self.away,
        };
        way.beats(bytes, &self.compute.get(), u64::from(blocks * KV_BLOCK))
    }
}

/// Calls `copy` with the place of each span's part of `block`, and the range of a page's bytes that belongs to it.
fn each(
    spans: &[(SpanId, usize)],
    block: u32,
    page: usize,
    mut copy: impl FnMut(Loc, std::ops::Range<usize>) -> Result<(), DeviceFault>,
) -> Result<(), DeviceFault> {
    let mut first = 0;
    for (span, bytes) in spans {
        let at = Loc {
            span: *span,
            offset: u64::from(block) * *bytes as u64,
        };
        copy(at, first..first + bytes)?;
        first += bytes;
    }
    debug_assert_eq!(first, page);
    Ok(())
}

impl BlockSink for HostTier {
    fn evict(&mut self, name: &BlockName, number: u64, block: u32) {
        let mut tier = self.tier();
        if tier.prefixes.get(name).is_some() {
            tier.prefixes.touch(name);
        } else if let Some(page) = tier.away(block) {
            tier.prefixes.insert(*name, (number, page));
        }
    }

    fn kept(&self, name: &BlockName) -> Option<u64> {
        self.tier().prefixes.get(name).map(|kept| kept.0)
    }

    fn worth(&self, blocks: u32) -> bool {
        self.tier().worth(blocks)
    }

    fn restore(&mut self, name: &BlockName, block: u32) -> bool {
        let mut tier = self.tier();
        let Some((_, page)) = tier.prefixes.get(name).copied() else {
            return false;
        };
        let came = tier.back(page, block);
        if came {
            tier.prefixes.touch(name);
        } else {
            tier.prefixes.remove(name);
            tier.store.drop_page(page);
        }
        came
    }

    fn reset(&mut self) {
        let mut tier = self.tier();
        while let Some((_, (_, page))) = tier.prefixes.pop_oldest() {
            tier.store.drop_page(page);
        }
    }
}

/// Preempted sequences, where there is a tier.
#[derive(Clone, Default)]
pub struct HostSpill(pub Option<HostTier>);

impl SpillRouter for HostSpill {
    fn spill(&mut self, key: u64, blocks: &[u32]) -> bool {
        let Some(tier) = &self.0 else {
            return false;
        };
        let mut tier = tier.tier();
        let mut pages = Vec::with_capacity(blocks.len());
        for block in blocks {
            match tier.away(*block) {
                Some(page) => pages.push(page),
                None => break,
            }
        }
        let whole = pages.len() == blocks.len();
        if whole {
            tier.sequences.insert(key, pages);
        } else {
            pages.into_iter().for_each(|p| tier.store.drop_page(p));
        }
        whole
    }

    fn restore(&mut self, key: u64, first: u32, blocks: &[u32]) -> bool {
        let Some(tier) = &self.0 else {
            return false;
        };
        let mut tier = tier.tier();
        if !tier.worth(blocks.len() as u32) {
            return false;
        }
        let Some(pages) = tier.sequences.remove(&key) else {
            return false;
        };
        let kept = pages.iter().skip(first as usize).zip(blocks);
        let came = kept.fold(true, |came, (page, block)| came && tier.back(*page, *block));
        pages.into_iter().for_each(|p| tier.store.drop_page(p));
        came
    }

    fn discard(&mut self, key: u64) {
        if let Some(tier) = &self.0 {
            let mut tier = tier.tier();
            let pages = tier.sequences.remove(&key);
            for page in pages.into_iter().flatten() {
                tier.store.drop_page(page);
            }
        }
    }
}
