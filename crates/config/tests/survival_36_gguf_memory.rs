// SPDX-License-Identifier: MIT OR Apache-2.0
//! SURVIVAL 36: what a GGUF header declares is not what is allocated for it.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

mod common {
    pub mod gguf;
}

use common::gguf::Gguf;
use metrale_config::gguf::{GgufHeader, GgufLimits};

/// The largest single allocation since it was last set to zero.
static LARGEST: AtomicUsize = AtomicUsize::new(0);

struct Watching;

// SAFETY: every call goes to the system's allocator unchanged; only a counter is kept beside it.
unsafe impl GlobalAlloc for Watching {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LARGEST.fetch_max(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's promise about `layout` is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: `ptr` came from `System` with this `layout`.
        unsafe { System.dealloc(ptr, layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        LARGEST.fetch_max(new_size, Ordering::Relaxed);
        // SAFETY: `ptr` came from `System` with this `layout`; the size is passed on.
        unsafe { System.realloc(ptr, layout, new_size) }
    }
}

#[global_allocator]
static ALLOCATOR: Watching = Watching;

// One test only: another thread's allocations would count too.
#[test]
fn survival_36_gguf_never_allocates_by_a_declared_count() {
    let limits = GgufLimits::default();
    // Each within the limits, in a file that claims to be endless and has a few bytes.
    let mut headers = vec![
        Gguf {
            metadata_count: limits.metadata_entries,
            ..Gguf::new()
        },
        Gguf {
            tensor_count: limits.tensors,
            ..Gguf::new()
        },
        Gguf::new().entry("k", 8, &limits.string_bytes.to_le_bytes()),
    ];
    for ty in [0, 7, 8, 9, 12] {
        headers.push(Gguf::new().array("k", ty, limits.array_elements, &[]));
    }
    for header in headers {
        let bytes = header.bytes();
        LARGEST.store(0, Ordering::Relaxed);
        let result = GgufHeader::from_bytes(&bytes, u64::MAX, &limits);
        assert!(result.is_err());
        let largest = LARGEST.load(Ordering::Relaxed);
        assert!(largest <= 256 << 10, "{largest} bytes at once: {result:?}");
    }
}
