// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where the pages of a host tier lie, and how blocks get there.
//!
//! A device that copies by itself gives page-locked pages, and copies go on while it computes. Else pages are ordinary memory,
//! written and read while the engine waits. Either way a page has a checksum, taken once it is whole and compared before it is
//! used, and both ways are measured: the copy and the checksum.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use metrale_core::SpanId;
use metrale_gpu_runtime::{DeviceFault, Loc, OutOfMemory, PagesId, Transfer};
use metrale_storage::{ArenaError, Page, Rate, Slot, Slots, SwapStore, checksum};

use crate::model::Reserved;

/// A KV group as the store sees it.
pub(super) struct Group {
    /// Streams with the bytes of a block in each.
    streams: Vec<(SpanId, usize)>,
    /// Bytes of a block.
    pub(super) bytes: usize,
    /// Keys that its layers see; `None`: all.
    pub(super) window: Option<u32>,
}

/// Pages as large as a block of the first group that has bytes.
pub(super) struct PageStore {
    device: Arc<Reserved>,
    groups: Vec<Group>,
    memory: Memory,
    away: Rate,
    back: Rate,
}

enum Memory {
    Plain(SwapStore),
    Locked(Locked),
}

/// A page that is taken.
#[derive(Clone, Copy, Debug)]
pub(super) enum TierPage {
    Plain(Page),
    Locked(Slot),
}

/// The memory for spilled KV cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum TierError {
    /// Memory of the host.
    #[error(transparent)]
    Host(#[from] ArenaError),
    /// Memory of the device that pages pass through.
    #[error(transparent)]
    Device(#[from] OutOfMemory),
}

/// A page did not come back.
#[derive(Debug, thiserror::Error)]
pub(super) enum NotBack {
    /// It does not hold what was put into it.
    #[error(
        "a page of {0} bytes in host memory does not have the checksum that it was stored with"
    )]
    Corrupt(usize),
    /// The device refused.
    #[error(transparent)]
    Device(#[from] DeviceFault),
}

impl PageStore {
    /// At most `bytes` bytes of pages for the KV of `device`.
    ///
    /// # Errors
    /// [`TierError`].
    pub(super) fn new(device: Arc<Reserved>, bytes: u64) -> Result<PageStore, TierError> {
        let groups = device.plan.kv_groups.iter().map(|group| {
            let streams = group.streams.iter();
            Group {
                streams: streams.map(|(s, bytes)| (*s, *bytes as usize)).collect(),
                bytes: group.block_bytes() as usize,
                window: group.window,
            }
        });
        let groups: Vec<Group> = groups.collect();
        // Where every layer has a window, a block of the first group has no bytes.
        let page = groups.iter().map(|g| g.bytes).find(|b| *b > 0).unwrap_or(0);
        let count = u32::try_from(bytes / (page as u64).max(1)).unwrap_or(u32::MAX);
        // The device copies whole blocks: those of one group.
        let locked = match &device.plan.kv_groups[..] {
            [group] => device.backend.pages(device.arenas, &group.streams, count)?,
            _ => None,
        };
        let memory = match locked {
            Some(id) => Memory::Locked(Locked::new(id, count, page)),
            None => Memory::Plain(SwapStore::new(count, page)?),
        };
        Ok(PageStore {
            device,
            groups,
            memory,
            away: Rate::default(),
            back: Rate::default(),
        })
    }

    /// Pages that are taken.
    pub(super) fn used(&self) -> u32 {
        match &self.memory {
            Memory::Plain(store) => store.used(),
            Memory::Locked(locked) => locked.slots.used(),
        }
    }

    /// Pages in all.
    pub(super) fn pages(&self) -> u32 {
        match &self.memory {
            Memory::Plain(store) => store.pages(),
            Memory::Locked(locked) => locked.slots.slots(),
        }
    }

    /// The KV groups.
    pub(super) fn groups(&self) -> &[Group] {
        &self.groups
    }

    /// Pages that a block of a group takes.
    pub(super) fn pages_of_block(&self, group: usize) -> usize {
        self.groups[group].bytes.div_ceil(self.page_bytes().max(1))
    }

    /// Bytes of a page.
    fn page_bytes(&self) -> usize {
        match &self.memory {
            Memory::Plain(store) => store.page_bytes(),
            Memory::Locked(locked) => locked.slots.slot_bytes(),
        }
    }

    /// How fast pages come back. Until one has, the way out is the measure.
    pub(super) fn way(&mut self) -> Rate {
        self.settle();
        match self.back.seconds(1) {
            Some(_) => self.back,
            None => self.away,
        }
    }

    /// Copies part `part` of a block away, or starts to. `None`: all pages are taken.
    pub(super) fn away(
        &mut self,
        group: usize,
        block: u32,
        part: usize,
    ) -> Option<Result<TierPage, DeviceFault>> {
        self.settle();
        let device = &self.device;
        match &mut self.memory {
            Memory::Plain(store) => {
                let start = Instant::now();
                let group = &self.groups[group];
                let page = store.try_put(|bytes| {
                    each(group, block, part, bytes.len(), |at, range| {
                        device.backend.read(device.arenas, at, &mut bytes[range])
                    })
                })?;
                if page.is_ok() {
                    self.away
                        .measure(store.page_bytes() as u64, start.elapsed());
                }
                Some(page.map(TierPage::Plain))
            }
            Memory::Locked(locked) => Some(locked.away(device, block)?.map(TierPage::Locked)),
        }
    }

    /// Copies a page into part `part` of a block, or starts to: what is submitted later finds it there.
    ///
    /// # Errors
    /// [`NotBack`]; the page is still to be given back.
    pub(super) fn back(
        &mut self,
        page: TierPage,
        group: usize,
        block: u32,
        part: usize,
    ) -> Result<(), NotBack> {
        self.settle();
        let device = &self.device;
        match (&mut self.memory, page) {
            (Memory::Plain(store), TierPage::Plain(page)) => {
                let start = Instant::now();
                let bytes = store.get(page).map_err(|e| NotBack::Corrupt(e.bytes))?;
                each(
                    &self.groups[group],
                    block,
                    part,
                    bytes.len(),
                    |at, range| device.backend.write(device.arenas, at, &bytes[range]),
                )?;
                self.back
                    .measure(store.page_bytes() as u64, start.elapsed());
                Ok(())
            }
            (Memory::Locked(locked), TierPage::Locked(slot)) => {
                while locked.going(slot) {
                    locked.sealed(device, &mut self.away, true);
                }
                locked.back(device, slot, block)
            }
            // Pages are of their memory's kind.
            _ => Err(NotBack::Corrupt(0)),
        }
    }

    /// Gives a page back.
    pub(super) fn drop_page(&mut self, page: TierPage) {
        match (&mut self.memory, page) {
            (Memory::Plain(store), TierPage::Plain(page)) => store.drop_page(page),
            (Memory::Locked(locked), TierPage::Locked(slot)) => locked.drop_page(slot),
            _ => debug_assert!(false, "a page of another memory"),
        }
    }

    /// Flips a bit of a page, for tests.
    pub(super) fn spoil(&mut self, page: TierPage) {
        match (&mut self.memory, page) {
            (Memory::Plain(store), TierPage::Plain(page)) => store.raw(page)[0] ^= 1,
            (Memory::Locked(locked), TierPage::Locked(slot)) => {
                while locked.going(slot) {
                    locked.sealed(&self.device, &mut self.away, true);
                }
                let _ = locked.look(&self.device, slot, &mut |bytes| bytes[0] ^= 1);
            }
            _ => debug_assert!(false, "a page of another memory"),
        }
    }

    /// Takes note of copies that have ended.
    fn settle(&mut self) {
        if let Memory::Locked(locked) = &mut self.memory {
            while locked.sealed(&self.device, &mut self.away, false) {}
            locked.come(&self.device, &mut self.back);
        }
    }
}

/// Page-locked pages of the device.
struct Locked {
    id: PagesId,
    slots: Slots,
    /// By slot.
    states: Vec<State>,
    /// Copies to pages, in order; whose page was given back meanwhile has another state.
    going: VecDeque<(Slot, Transfer)>,
    /// Copies from pages, with the time that their checksums took.
    coming: VecDeque<(Transfer, Duration)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Nothing that could be used.
    Void,
    Going(Transfer),
    /// Whole, with its checksum.
    Whole(u64),
}

impl Locked {
    fn new(id: PagesId, count: u32, page: usize) -> Locked {
        Locked {
            id,
            slots: Slots::new(count, page),
            states: Vec::new(),
            going: VecDeque::new(),
            coming: VecDeque::new(),
        }
    }

    fn state(&mut self, slot: Slot) -> &mut State {
        let at = slot.index() as usize;
        if self.states.len() <= at {
            self.states.resize(at + 1, State::Void);
        }
        &mut self.states[at]
    }

    fn going(&mut self, slot: Slot) -> bool {
        matches!(self.state(slot), State::Going(_))
    }

    fn look(
        &self,
        device: &Reserved,
        slot: Slot,
        look: &mut dyn FnMut(&mut [u8]),
    ) -> Result<(), DeviceFault> {
        device.backend.page(self.id, slot.index(), look)
    }

    fn sum(&self, device: &Reserved, slot: Slot) -> Result<u64, DeviceFault> {
        let mut sum = 0;
        self.look(device, slot, &mut |bytes| sum = checksum(bytes))?;
        Ok(sum)
    }

    fn away(&mut self, device: &Reserved, block: u32) -> Option<Result<Slot, DeviceFault>> {
        let slot = self.slots.take()?;
        let started = device
            .backend
            .page_out(self.id, slot.index(), u64::from(block));
        Some(match started {
            Ok(transfer) => {
                *self.state(slot) = State::Going(transfer);
                self.going.push_back((slot, transfer));
                Ok(slot)
            }
            Err(fault) => {
                self.slots.give_back(slot);
                Err(fault)
            }
        })
    }

    /// Takes the checksum of the page whose copy was started first, if that has ended or is to be waited for. False if there
    /// is none.
    fn sealed(&mut self, device: &Reserved, away: &mut Rate, wait: bool) -> bool {
        let Some((slot, transfer)) = self.going.front().copied() else {
            return false;
        };
        let took = match device.backend.transferred(transfer, wait) {
            Ok(None) => return false,
            Ok(Some(took)) => Ok(took),
            Err(fault) => Err(fault),
        };
        self.going.pop_front();
        if *self.state(slot) != State::Going(transfer) {
            return true;
        }
        let start = Instant::now();
        let sum = took.and_then(|took| Ok((took, self.sum(device, slot)?)));
        *self.state(slot) = match sum {
            Ok((took, sum)) => {
                away.measure(self.slots.slot_bytes() as u64, took + start.elapsed());
                State::Whole(sum)
            }
            Err(fault) => {
                tracing::warn!(%fault, "a KV block could not be copied to host memory");
                State::Void
            }
        };
        true
    }

    fn back(&mut self, device: &Reserved, slot: Slot, block: u32) -> Result<(), NotBack> {
        let start = Instant::now();
        let sum = self.sum(device, slot)?;
        if *self.state(slot) != State::Whole(sum) {
            return Err(NotBack::Corrupt(self.slots.slot_bytes()));
        }
        let checked = start.elapsed();
        let transfer = device
            .backend
            .page_in(self.id, slot.index(), u64::from(block))?;
        self.coming.push_back((transfer, checked));
        Ok(())
    }

    /// Measures the copies from pages that have ended.
    fn come(&mut self, device: &Reserved, back: &mut Rate) {
        while let Some((transfer, checked)) = self.coming.front().copied() {
            match device.backend.transferred(transfer, false) {
                Ok(None) => return,
                Ok(Some(took)) => back.measure(self.slots.slot_bytes() as u64, took + checked),
                // The step that needs the block meets it too, and tells.
                Err(_) => {}
            }
            self.coming.pop_front();
        }
    }

    fn drop_page(&mut self, slot: Slot) {
        *self.state(slot) = State::Void;
        self.slots.give_back(slot);
    }
}

/// Calls `copy` with the place of each stream's share of part `part` of `block`, and the range of a page's bytes that belongs to
/// it: the streams' blocks lie one after another, cut into pages.
fn each(
    group: &Group,
    block: u32,
    part: usize,
    page: usize,
    mut copy: impl FnMut(Loc, Range<usize>) -> Result<(), DeviceFault>,
) -> Result<(), DeviceFault> {
    let (begin, end) = (part * page, (part + 1) * page);
    let mut first = 0;
    for (span, bytes) in &group.streams {
        let share = first.max(begin)..(first + bytes).min(end);
        if !share.is_empty() {
            let at = Loc {
                span: *span,
                offset: u64::from(block) * *bytes as u64 + (share.start - first) as u64,
            };
            copy(at, share.start - begin..share.end - begin)?;
        }
        first += bytes;
    }
    Ok(())
}
