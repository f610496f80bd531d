// SPDX-License-Identifier: MIT OR Apache-2.0
//! The memory of one plan on the device, and the way of step blocks into it.

use cudarc::driver::sys;
use metrale_core::{
    ArenaKind, FAULT_ADDRESS_WORD, LateId, MemoryPlan, SpanId, StepBlock, StepLayout, StepLimits,
};

use super::driver::{DeviceMemory, Pinned, Stream, check};
use super::fault::RECORD_WORDS;
use super::inject::Allocations;
use super::open::free_memory;
use super::outputs::Outputs;
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
    pub(super) outputs: Outputs,
}

impl Arenas {
    pub(super) fn reserve(
        plan: &MemoryPlan,
        limits: &StepLimits,
        stream: &Stream,
        device: &str,
        allocations: &Allocations,
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
                let taken = DeviceMemory::new(needed, stream, allocations)
                    .map_err(|e| refused(arena, needed, e))?;
                memory.push((arena, taken));
            }
        }
        let words = StepLayout::new(*limits).words();
        let outputs = Outputs::new(plan);
        let ring = StepRing::new(words, outputs.words(), stream, allocations)
            .map_err(|e| refused(ArenaKind::State, words as u64 * 4, e))?;
        stream
            .synchronize()
            .map_err(|e| refused(ArenaKind::State, 0, e))?;
        Ok(Arenas {
            plan: plan.clone(),
            limits: *limits,
            memory,
            ring,
            outputs,
        })
    }

    /// Reads a range of a span; waits for the stream.
    pub(super) fn read(
        &self,
        src: Loc,
        out: &mut [u8],
        stream: &Stream,
    ) -> Result<(), DeviceFault> {
        let from = self.range(src, out.len() as u64)?;
        // SAFETY: the range lies inside its span, and `out` outlives the wait below.
        let copied = unsafe {
            sys::cuMemcpyDtoHAsync_v2(out.as_mut_ptr().cast(), from, out.len(), stream.0)
        };
        check("reading device memory", copied)?;
        stream.synchronize()
    }

    /// Reads a small output from the copy that stands behind a program; false if there is none.
    pub(super) fn read_copy(&self, fence: u64, src: Loc, out: &mut [u8]) -> bool {
        let at = self.outputs.find(src.span, src.offset, out.len() as u64);
        let copy = at.and_then(|at| self.ring.outputs(fence)?.get(at..at + out.len()));
        copy.map(|bytes| out.copy_from_slice(bytes)).is_some()
    }

    /// Copies the small outputs into a slot of the ring, in stream order.
    pub(super) fn fetch(&self, slot: usize, stream: &Stream) -> Result<(), DeviceFault> {
        let Some((first, bytes)) = self.outputs.copied else {
            return Ok(());
        };
        let Some(from) = self.address(first) else {
            return Ok(());
        };
        let to = self.ring.outputs_address(slot) as *mut std::ffi::c_void;
        // SAFETY: the spans lie side by side, as `outputs` has found; the slot holds as many bytes, and is not used again
        // before its fence is passed.
        check("fetching the outputs", unsafe {
            sys::cuMemcpyDtoHAsync_v2(to, from, bytes as usize, stream.0)
        })
    }

    /// Puts late ids into the step block on the device, in stream order: one copy a run of neighbours.
    pub(super) fn take_late(
        &self,
        ids: usize,
        late: &[LateId],
        stream: &Stream,
    ) -> Result<(), DeviceFault> {
        let follows = |a: &LateId, b: &LateId| {
            b.span == a.span && b.row == a.row + 1 && b.index == a.index + 1
        };
        for run in late.chunk_by(follows) {
            let (first, words) = (run[0], run.len() as u64);
            let src = Loc {
                span: first.span,
                offset: u64::from(first.index) * 4,
            };
            let from = self.range(src, words * 4)?;
            let to = self.ring.device_address() + (ids as u64 + u64::from(first.row)) * 4;
            // SAFETY: the source lies inside its span; rows are rows of the step, whose ids lie inside the block.
            check("taking ids of the step before", unsafe {
                sys::cuMemcpyDtoDAsync_v2(to, from, words as usize * 4, stream.0)
            })?;
        }
        Ok(())
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
    /// A step block, then the fault record, then the small outputs.
    host: Pinned,
    /// The fence of its last use.
    fence: u64,
}

impl StepRing {
    fn new(
        words: usize,
        outputs: usize,
        stream: &Stream,
        allocations: &Allocations,
    ) -> Result<StepRing, DeviceFault> {
        let slots = (0..RING)
            .map(|_| {
                Ok(Slot {
                    host: Pinned::new(words + RECORD_WORDS + outputs, allocations)?,
                    fence: 0,
                })
            })
            .collect::<Result<_, DeviceFault>>()?;
        let device = DeviceMemory::new(words as u64 * 4, stream, allocations)?;
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

    /// Writes a step block into the next slot, with its masks for what `samples`. Returns the slot, its host address and the
    /// bytes to copy.
    pub(super) fn fill(&mut self, step: &StepBlock, samples: bool) -> (usize, u64, usize) {
        let index = self.next;
        self.next = (self.next + 1) % self.slots.len();
        let record = self.words;
        let host = &mut self.slots[index].host;
        let address = host.address(record);
        let words = host.words_mut();
        words[record..record + RECORD_WORDS].fill(0);
        let live = match samples {
            true => step.pack_live(words),
            false => step.pack_unmasked(words),
        };
        words[FAULT_ADDRESS_WORD] = address as u32;
        words[FAULT_ADDRESS_WORD + 1] = (address >> 32) as u32;
        (index, host.address(0), live * 4)
    }

    /// Notes that a slot is in use until `fence`.
    pub(super) fn sent(&mut self, slot: usize, fence: u64) {
        self.slots[slot].fence = fence;
    }

    /// Where the small outputs of a slot's program go.
    fn outputs_address(&self, slot: usize) -> u64 {
        self.slots[slot].host.address(self.words + RECORD_WORDS)
    }

    /// The small outputs behind a fence that has been passed; `None` if its slot is in use again.
    fn outputs(&self, fence: u64) -> Option<&[u8]> {
        let slot = self.slots.iter().find(|s| s.fence == fence)?;
        slot.host.bytes().get((self.words + RECORD_WORDS) * 4..)
    }

    /// The fault record of a slot.
    pub(super) fn record(&self, slot: usize) -> Option<[u32; RECORD_WORDS]> {
        let host = &self.slots.get(slot)?.host;
        Some(std::array::from_fn(|i| host.load(self.words + i)))
    }
}
