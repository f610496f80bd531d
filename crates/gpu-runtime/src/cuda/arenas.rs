// SPDX-License-Identifier: MIT OR Apache-2.0
//! The memory of one plan on the device, and the way of step blocks into it.

use cudarc::driver::sys;
use metrale_core::{
    ArenaKind, FAULT_ADDRESS_WORD, MemoryPlan, SpanId, StepBlock, StepLayout, StepLimits,
};

use super::driver::{DeviceMemory, Pinned, Stream, check};
use super::fault::RECORD_WORDS;
use super::mirror::Mirror;
use super::open::free_memory;
use crate::backend::Loc;
use crate::error::{DeviceFault, OutOfMemory};

/// Steps that may be on their way at once. Two are being worked on (a step's two programs); the others let the host run
/// ahead.
const RING: usize = 8;

/// The arenas of a plan, and its step ring.
#[derive(Debug)]
pub(super) struct Arenas {
    pub(super) plan: MemoryPlan,
    pub(super) limits: StepLimits,
    memory: Vec<(ArenaKind, DeviceMemory)>,
    pub(super) ring: StepRing,
    mirror: Mirror,
}

impl Arenas {
    pub(super) fn reserve(
        plan: &MemoryPlan,
        limits: &StepLimits,
        stream: &Stream,
        device: &str,
    ) -> Result<Arenas, OutOfMemory> {
        let mut memory = Vec::new();
        let refused = |arena, needed, why: DeviceFault| OutOfMemory {
            device: device.to_owned(),
            arena,
            needed,
            available: free_memory().unwrap_or(0),
            why: why.what,
        };
        for arena in ArenaKind::ALL {
            let needed = plan.arena_bytes(arena);
            if needed > 0 {
                let taken =
                    DeviceMemory::new(needed, stream).map_err(|e| refused(arena, needed, e))?;
                memory.push((arena, taken));
            }
        }
        let words = StepLayout::new(*limits).words();
        let ring = StepRing::new(words, stream)
            .map_err(|e| refused(ArenaKind::State, words as u64 * 4, e))?;
        stream
            .synchronize()
            .map_err(|e| refused(ArenaKind::State, 0, e))?;
        let mirror = Mirror::new(plan).map_err(|e| refused(ArenaKind::Outputs, 0, e))?;
        Ok(Arenas {
            plan: plan.clone(),
            limits: *limits,
            memory,
            ring,
            mirror,
        })
    }

    /// Says that the device writes, or the host: what was read before is no longer so.
    pub(super) fn touched(&mut self) {
        self.mirror.forget();
    }

    /// Reads a range of a span; waits for the stream.
    pub(super) fn read(
        &mut self,
        src: Loc,
        out: &mut [u8],
        stream: &Stream,
    ) -> Result<(), DeviceFault> {
        let from = self.range(src, out.len() as u64)?;
        let mut mirror = std::mem::take(&mut self.mirror);
        let found = mirror.read(src.span, src.offset, out, stream, |span| self.address(span));
        self.mirror = mirror;
        if found? {
            return Ok(());
        }
        // SAFETY: the range lies inside its span, and `out` outlives the wait below.
        let copied = unsafe {
            sys::cuMemcpyDtoHAsync_v2(out.as_mut_ptr().cast(), from, out.len(), stream.0)
        };
        check("reading device memory", copied)?;
        stream.synchronize()
    }

    /// Bytes of one arena.
    pub(super) fn bytes(&self, kind: ArenaKind) -> u64 {
        self.memory
            .iter()
            .filter(|(k, _)| *k == kind)
            .map(|(_, m)| m.bytes)
            .sum()
    }

    /// Device address of a span; `None` if the plan does not hold it. An empty span has an address that no one may use.
    pub(super) fn address(&self, span: SpanId) -> Option<u64> {
        let span = self.plan.spans.get(span.0 as usize)?;
        let memory = self
            .memory
            .iter()
            .find(|(kind, _)| *kind == span.arena)
            .map(|(_, m)| m);
        match memory {
            Some(memory) => (span.offset.checked_add(span.bytes)? <= memory.bytes)
                .then(|| memory.at + span.offset),
            None => (span.bytes == 0).then_some(0),
        }
    }

    /// Device address of a range inside a span.
    pub(super) fn range(&self, at: Loc, bytes: u64) -> Result<u64, DeviceFault> {
        let Some(address) = self.address(at.span) else {
            return Err(DeviceFault::rejected(format!(
                "the plan has no span {}",
                at.span.0
            )));
        };
        let span = self.plan.span(at.span);
        match at.offset.checked_add(bytes) {
            Some(end) if end <= span.bytes => Ok(address + at.offset),
            _ => Err(DeviceFault::rejected(format!(
                "bytes {}..{} lie outside {}, which has {}",
                at.offset,
                at.offset.saturating_add(bytes),
                span.name,
                span.bytes
            ))),
        }
    }
}

/// Page-locked copies of step blocks, and the one place on the device that programs read theirs from.
///
/// The copy goes in stream order before the program that needs it, so that it cannot overtake the program before. Only
/// live entries travel: a decode step of one row is some 200 bytes, whatever the limits.
#[derive(Debug)]
pub(super) struct StepRing {
    device: DeviceMemory,
    words: usize,
    slots: Vec<Slot>,
    next: usize,
}

#[derive(Debug)]
struct Slot {
    /// A step block, then the fault record.
    host: Pinned,
    /// The fence of its last use.
    fence: u64,
}

impl StepRing {
    fn new(words: usize, stream: &Stream) -> Result<StepRing, DeviceFault> {
        let slots = (0..RING)
            .map(|_| {
                Ok(Slot {
                    host: Pinned::new(words + RECORD_WORDS)?,
                    fence: 0,
                })
            })
            .collect::<Result<_, DeviceFault>>()?;
        let device = DeviceMemory::new(words as u64 * 4, stream)?;
        Ok(StepRing {
            device,
            words,
            slots,
            next: 0,
        })
    }

    /// Where programs read the step block.
    pub(super) fn device_address(&self) -> u64 {
        self.device.at
    }

    /// The fence that must be passed before [`StepRing::fill`].
    pub(super) fn busy_until(&self) -> u64 {
        self.slots[self.next].fence
    }

    /// Writes a step block into the next slot. Returns the slot, its host address and the bytes to copy.
    pub(super) fn fill(&mut self, step: &StepBlock) -> (usize, u64, usize) {
        let index = self.next;
        self.next = (self.next + 1) % self.slots.len();
        let record = self.words;
        let host = &mut self.slots[index].host;
        let address = host.address(record);
        let words = host.words_mut();
        words[record..].fill(0);
        let live = step.pack_live(words);
        words[FAULT_ADDRESS_WORD] = address as u32;
        words[FAULT_ADDRESS_WORD + 1] = (address >> 32) as u32;
        (index, host.address(0), live * 4)
    }

    /// Notes that a slot is in use until `fence`.
    pub(super) fn sent(&mut self, slot: usize, fence: u64) {
        self.slots[slot].fence = fence;
    }

    /// The fault record of a slot.
    pub(super) fn record(&self, slot: usize) -> Option<[u32; RECORD_WORDS]> {
        let host = &self.slots.get(slot)?.host;
        Some(std::array::from_fn(|i| host.load(self.words + i)))
    }
}
