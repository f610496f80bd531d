// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory of the host backend: one mapping per arena, raw, zeroed, page-aligned.

use std::ptr::NonNull;

use metrale_core::{ArenaKind, MemoryPlan, SpanId};
use metrale_host_kernels::args::RawBuf;

use crate::backend::DeviceInfo;
use crate::error::OutOfMemory;

/// The arenas of one plan. Spans are turned into slices by `metrale_host_kernels::args` alone.
#[derive(Debug)]
pub(super) struct Arenas {
    pub(super) plan: MemoryPlan,
    maps: Vec<(ArenaKind, Mapping)>,
}

impl Arenas {
    /// Maps every arena of the plan, on a machine of `limit` bytes of which `taken` are reserved already.
    pub(super) fn reserve(
        plan: &MemoryPlan,
        device: &DeviceInfo,
        taken: u64,
    ) -> Result<Arenas, OutOfMemory> {
        let mut maps = Vec::new();
        let mut available = device.memory.saturating_sub(taken);
        for arena in ArenaKind::ALL {
            let needed = plan.arena_bytes(arena);
            let refused = |why: &str| OutOfMemory {
                device: device.name.clone(),
                arena,
                needed,
                available,
                why: why.into(),
            };
            if needed > available {
                return Err(refused("more than the memory of the machine"));
            }
            if needed > 0 {
                let bytes = usize::try_from(needed)
                    .map_err(|_| refused("more than an address can reach"))?;
                let map =
                    Mapping::new(bytes).ok_or_else(|| refused("the system refused to map it"))?;
                maps.push((arena, map));
            }
            available -= needed;
        }
        Ok(Arenas {
            plan: plan.clone(),
            maps,
        })
    }

    /// Bytes of one arena.
    pub(super) fn bytes(&self, kind: ArenaKind) -> u64 {
        self.maps
            .iter()
            .filter(|(k, _)| *k == kind)
            .map(|(_, map)| map.bytes as u64)
            .sum()
    }

    /// The memory of a span for a launch; `None` if the plan does not hold it, or holds it unaligned.
    pub(super) fn buf(&self, span: SpanId) -> Option<RawBuf> {
        let (at, bytes) = self.place(span)?;
        if !(at.as_ptr() as usize).is_multiple_of(align_of::<Aligned>()) {
            return None;
        }
        // SAFETY: inside a mapping, which is initialised (zeroed), and aligned. Launches keep an `Arc` of the arenas for
        // as long as they can run.
        Some(unsafe { RawBuf::new(at.as_ptr(), bytes) })
    }

    /// Where a span lies; its mapping is checked to hold it.
    fn place(&self, span: SpanId) -> Option<(NonNull<u8>, usize)> {
        let span = self.plan.spans.get(span.0 as usize)?;
        if span.bytes == 0 {
            return Some((NonNull::<Aligned>::dangling().cast(), 0));
        }
        let (_, map) = self.maps.iter().find(|(kind, _)| *kind == span.arena)?;
        let (offset, bytes) = (span.offset as usize, span.bytes as usize);
        if offset.checked_add(bytes)? > map.bytes {
            return None;
        }
        // SAFETY: in bounds of the mapping.
        Some((unsafe { map.at.add(offset) }, bytes))
    }

    /// Copies out of a span. `None` if the range leaves it.
    ///
    /// # Safety
    /// Nothing may write the range meanwhile.
    pub(super) unsafe fn read(&self, span: SpanId, offset: u64, out: &mut [u8]) -> Option<()> {
        let from = self.range(span, offset, out.len())?;
        // SAFETY: in bounds and initialised; nobody writes (contract); `out` is no arena memory, of which no slice exists.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), out.as_mut_ptr(), out.len()) };
        Some(())
    }

    /// Copies into a span. `None` if the range leaves it.
    ///
    /// # Safety
    /// Nothing may use the range meanwhile.
    pub(super) unsafe fn write(&self, span: SpanId, offset: u64, bytes: &[u8]) -> Option<()> {
        let to = self.range(span, offset, bytes.len())?;
        // SAFETY: as in `read`, the other way.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to.as_ptr(), bytes.len()) };
        Some(())
    }

    /// The first byte of a range of a span that lies inside it.
    pub(super) fn range(&self, span: SpanId, offset: u64, len: usize) -> Option<NonNull<u8>> {
        let (at, bytes) = self.place(span)?;
        let offset = usize::try_from(offset).ok()?;
        if offset.checked_add(len)? > bytes {
            return None;
        }
        // SAFETY: in bounds of the span.
        Some(unsafe { at.add(offset) })
    }
}

#[repr(align(64))]
struct Aligned;

/// Zeroed pages.
#[derive(Debug)]
struct Mapping {
    at: NonNull<u8>,
    bytes: usize,
}

// SAFETY: an owned range of memory; access is the business of whoever dereferences.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

#[cfg(unix)]
impl Mapping {
    /// Anonymous pages: zeroed by the system when first touched, on huge pages where it has them.
    fn new(bytes: usize) -> Option<Mapping> {
        // SAFETY: a new private anonymous mapping; no existing memory is touched.
        unsafe {
            let at = libc::mmap(
                std::ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            );
            if at == libc::MAP_FAILED {
                return None;
            }
            #[cfg(target_os = "linux")]
            libc::madvise(at, bytes, libc::MADV_HUGEPAGE);
            Some(Mapping {
                at: NonNull::new(at.cast())?,
                bytes,
            })
        }
    }
}

#[cfg(unix)]
impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped by `new` with this size, and nothing refers to it any more.
        unsafe { libc::munmap(self.at.as_ptr().cast(), self.bytes) };
    }
}

#[cfg(not(unix))]
impl Mapping {
    fn layout(bytes: usize) -> Option<std::alloc::Layout> {
        std::alloc::Layout::from_size_align(bytes, 4096).ok()
    }

    fn new(bytes: usize) -> Option<Mapping> {
        // SAFETY: the size is not zero.
        let at = unsafe { std::alloc::alloc_zeroed(Mapping::layout(bytes)?) };
        Some(Mapping {
            at: NonNull::new(at)?,
            bytes,
        })
    }
}

#[cfg(not(unix))]
impl Drop for Mapping {
    fn drop(&mut self) {
        if let Some(layout) = Mapping::layout(self.bytes) {
            // SAFETY: allocated by `new` with this layout.
            unsafe { std::alloc::dealloc(self.at.as_ptr(), layout) };
        }
    }
}
