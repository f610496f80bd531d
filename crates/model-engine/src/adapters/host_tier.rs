// SPDX-License-Identifier: MIT OR Apache-2.0
//! KV in host memory: where evicted prefixes and preempted sequences go, and where they come back from.
//!
//! The cache offers evicted blocks ([`BlockSink`]), the planner preempted sequences ([`SpillRouter`]); both are pages of one
//! store: one page is a block of the first KV group, and a block of another takes as many as it fills. Sequences push prefixes
//! out, never the other way round. A page is brought back only where that was measured to be faster than computing its tokens,
//! and only if its checksum holds; else the tokens are computed, with the same bits.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use metrale_cache::{BlockName, BlockSink, NO_BLOCK};
use metrale_core::KV_BLOCK;
use metrale_scheduler::{SpillRouter, TableDelta};
use metrale_storage::{Rate, Residency};

use super::pages::{NotBack, PageStore, TierError, TierPage};
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

/// The pages of one block of a group.
type Pages = Vec<TierPage>;

/// A prefix block that was evicted.
struct Kept {
    number: u64,
    pages: Pages,
    /// Of the groups beside the first one.
    beside: Vec<Option<Pages>>,
}

impl Kept {
    fn all(self) -> impl Iterator<Item = TierPage> {
        let beside = self.beside.into_iter().flatten().flatten();
        self.pages.into_iter().chain(beside)
    }
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
    store: PageStore,
    prefixes: Residency<BlockName, Kept>,
    /// By request: its blocks by group and index.
    sequences: HashMap<u64, HashMap<(u32, u32), Pages>>,
    compute: StepPace,
    /// Pages are brought back whatever it costs.
    always: bool,
    stats: TierStats,
}

impl HostTier {
    /// A tier of at most `bytes` bytes for the KV of `device`.
    ///
    /// # Errors
    /// [`TierError`] if the system or the device does not give the memory.
    pub fn new(
        device: Arc<Reserved>,
        bytes: u64,
        compute: StepPace,
    ) -> Result<HostTier, TierError> {
        Ok(HostTier(Arc::new(Mutex::new(Tier {
            store: PageStore::new(Arc::clone(&device), bytes)?,
            device,
            prefixes: Residency::default(),
            sequences: HashMap::new(),
            compute,
            always: false,
            stats: TierStats::default(),
        }))))
    }

    /// Brings pages back even where computing them is faster: for tests of what comes back.
    pub fn restore_always(&self) {
        self.tier().always = true;
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
        while let Some((_, kept)) = prefixes.pop_oldest() {
            kept.all().for_each(|page| store.drop_page(page));
        }
        for page in sequences.values().flat_map(HashMap::values).flatten() {
            store.spoil(*page);
        }
    }

    /// A panic under the lock leaves pages taken at worst.
    fn tier(&self) -> MutexGuard<'_, Tier> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Tier {
    /// Copies a block of a group away, pushing out the prefixes used longest ago if it must.
    fn away(&mut self, group: usize, block: u32) -> Option<Pages> {
        let wanted = self.store.pages_of_block(group);
        let mut pages = Pages::with_capacity(wanted);
        for part in 0..wanted {
            match self.page_away(group, block, part) {
                Some(page) => pages.push(page),
                None => {
                    self.drop_pages(pages);
                    return None;
                }
            }
        }
        self.stats.spilled += u64::from(group == 0);
        Some(pages)
    }

    fn page_away(&mut self, group: usize, block: u32, part: usize) -> Option<TierPage> {
        while self.store.used() == self.store.pages() {
            let (_, kept) = self.prefixes.pop_oldest()?;
            self.drop_pages(kept.all());
        }
        match self.store.away(group, block, part)? {
            Ok(page) => Some(page),
            Err(fault) => {
                tracing::warn!(%fault, "a KV block could not be copied to host memory");
                None
            }
        }
    }

    /// Copies pages into a block of a group. False if they cannot be trusted or the device refused.
    fn back(&mut self, pages: &[TierPage], group: usize, block: u32) -> bool {
        for (part, page) in pages.iter().enumerate() {
            match self.store.back(*page, group, block, part) {
                Ok(()) => {}
                Err(corrupt @ NotBack::Corrupt(_)) => {
                    tracing::error!(%corrupt, "its tokens are computed again");
                    self.stats.corrupt += 1;
                    return false;
                }
                Err(NotBack::Device(fault)) => {
                    tracing::warn!(%fault, "a KV block could not be copied back from host memory");
                    return false;
                }
            }
        }
        self.stats.restored += u64::from(group == 0);
        true
    }

    /// Group and index of a table entry.
    fn place(&self, entry: &TableDelta) -> (u32, u32) {
        (entry.slot / self.device.plan.limits.slots, entry.index)
    }

    fn drop_pages(&mut self, pages: impl IntoIterator<Item = TierPage>) {
        pages
            .into_iter()
            .for_each(|page| self.store.drop_page(page));
    }

    /// Whether bringing blocks back beats computing them.
    fn worth(&mut self, blocks: u32) -> bool {
        let bytes = self.store.groups().iter().map(|group| {
            let held = group
                .window
                .map_or(blocks, |w| blocks.min(w.div_ceil(KV_BLOCK) + 1));
            u64::from(held) * group.bytes as u64
        });
        let bytes = bytes.sum();
        let (way, compute) = (self.store.way(), self.compute.get());
        self.always || way.beats(bytes, &compute, u64::from(blocks * KV_BLOCK))
    }
}

impl BlockSink for HostTier {
    fn evict(&mut self, name: &BlockName, number: u64, block: u32, beside: &[u32]) {
        let mut tier = self.tier();
        let mut kept = match tier.prefixes.remove(name) {
            Some(kept) => kept,
            None => match tier.away(0, block) {
                Some(pages) => Kept {
                    number,
                    pages,
                    beside: beside.iter().map(|_| None).collect(),
                },
                None => return,
            },
        };
        for (group, (block, kept)) in beside.iter().zip(&mut kept.beside).enumerate() {
            if kept.is_none() && *block != NO_BLOCK {
                *kept = tier.away(group + 1, *block);
            }
        }
        // Blocks without bytes take no page, and are not kept for ever all the same.
        while tier.prefixes.len() >= tier.store.pages() as usize {
            let Some((_, oldest)) = tier.prefixes.pop_oldest() else {
                break;
            };
            tier.drop_pages(oldest.all());
        }
        tier.prefixes.insert(*name, kept);
    }

    fn kept(&self, name: &BlockName) -> Option<u64> {
        self.tier().prefixes.get(name).map(|kept| kept.number)
    }

    fn kept_beside(&self, name: &BlockName, group: usize) -> bool {
        let tier = self.tier();
        let kept = tier.prefixes.get(name).and_then(|k| k.beside.get(group));
        kept.is_some_and(Option::is_some)
    }

    fn worth(&self, blocks: u32) -> bool {
        self.tier().worth(blocks)
    }

    fn restore(&mut self, name: &BlockName, block: u32, beside: &[u32]) -> bool {
        let mut tier = self.tier();
        let Some(kept) = tier.prefixes.remove(name) else {
            return false;
        };
        let mut came = tier.back(&kept.pages, 0, block);
        for (group, block) in beside.iter().enumerate().filter(|(_, b)| **b != NO_BLOCK) {
            let pages = kept.beside.get(group).and_then(Option::as_ref);
            came = came && pages.is_some_and(|pages| tier.back(pages, group + 1, *block));
        }
        match came {
            true => drop(tier.prefixes.insert(*name, kept)),
            false => tier.drop_pages(kept.all()),
        }
        came
    }

    fn reset(&mut self) {
        let mut tier = self.tier();
        while let Some((_, kept)) = tier.prefixes.pop_oldest() {
            tier.drop_pages(kept.all());
        }
    }
}

/// Preempted sequences, where there is a tier.
#[derive(Clone, Default)]
pub struct HostSpill(pub Option<HostTier>);

impl SpillRouter for HostSpill {
    fn spill(&mut self, key: u64, entries: &[TableDelta]) -> bool {
        let Some(tier) = &self.0 else {
            return false;
        };
        let mut tier = tier.tier();
        let mut kept = HashMap::with_capacity(entries.len());
        for entry in entries {
            let place = tier.place(entry);
            match tier.away(place.0 as usize, entry.block) {
                Some(pages) => kept.insert(place, pages),
                None => {
                    tier.drop_pages(kept.into_values().flatten());
                    return false;
                }
            };
        }
        tier.sequences.insert(key, kept);
        true
    }

    fn restore(&mut self, key: u64, entries: &[TableDelta]) -> bool {
        let Some(tier) = &self.0 else {
            return false;
        };
        let mut tier = tier.tier();
        let blocks = entries.iter().filter(|e| tier.place(e).0 == 0).count();
        if !tier.worth(blocks as u32) {
            return false;
        }
        let Some(kept) = tier.sequences.remove(&key) else {
            return false;
        };
        let came = entries.iter().all(|entry| {
            let place = tier.place(entry);
            let pages = kept.get(&place);
            pages.is_some_and(|pages| tier.back(pages, place.0 as usize, entry.block))
        });
        tier.drop_pages(kept.into_values().flatten());
        came
    }

    fn discard(&mut self, key: u64) {
        if let Some(tier) = &self.0 {
            let mut tier = tier.tier();
            let kept = tier.sequences.remove(&key).unwrap_or_default();
            tier.drop_pages(kept.into_values().flatten());
        }
    }
}
