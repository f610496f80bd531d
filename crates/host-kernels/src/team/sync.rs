// SPDX-License-Identifier: MIT OR Apache-2.0
//! The words, cells and locks that the team is made of: the standard library's, or loom's where the protocol is model-checked
//! (`--cfg loom`). Loom takes sequentially consistent accesses for acquire-release ones, so the protocol has its order from
//! fences.

#[cfg(not(loom))]
pub(super) use std::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicBool, AtomicU32, AtomicU64, fence},
};

#[cfg(loom)]
pub(super) use loom::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicBool, AtomicU32, AtomicU64, fence},
};

/// A value that the protocol alone keeps from being read and written at once. Loom checks that it does.
pub(super) struct Guarded<T>(
    #[cfg(not(loom))] std::cell::UnsafeCell<T>,
    #[cfg(loom)] loom::cell::UnsafeCell<T>,
);

impl<T> Guarded<T> {
    pub(super) fn new(value: T) -> Guarded<T> {
        #[cfg(not(loom))]
        return Guarded(std::cell::UnsafeCell::new(value));
        #[cfg(loom)]
        return Guarded(loom::cell::UnsafeCell::new(value));
    }

    /// Reads the value.
    ///
    /// # Safety
    /// Nobody writes it before `read` returns.
    pub(super) unsafe fn with<R>(&self, read: impl FnOnce(&T) -> R) -> R {
        // SAFETY: the caller's.
        #[cfg(not(loom))]
        return read(unsafe { &*self.0.get() });
        // SAFETY: the caller's.
        #[cfg(loom)]
        return self.0.with(|value| read(unsafe { &*value }));
    }

    /// Changes the value.
    ///
    /// # Safety
    /// Nobody else reads or writes it before `change` returns.
    pub(super) unsafe fn with_mut<R>(&self, change: impl FnOnce(&mut T) -> R) -> R {
        // SAFETY: the caller's.
        #[cfg(not(loom))]
        return change(unsafe { &mut *self.0.get() });
        // SAFETY: the caller's.
        #[cfg(loom)]
        return self.0.with_mut(|value| change(unsafe { &mut *value }));
    }
}
