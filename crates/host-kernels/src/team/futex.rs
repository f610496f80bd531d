// SPDX-License-Identifier: MIT OR Apache-2.0
//! Parking on a word. Linux: `futex(2)`. Elsewhere: a sleep of 100 microseconds at a time, right but slow to wake. Under loom: a
//! lock and a condition variable that do what the system does.

use std::sync::atomic::Ordering;
use std::time::Duration;

use super::sync::AtomicU32;

/// A word to park on. Who wants to wake others changes it first.
#[derive(Default)]
pub(super) struct Parking {
    word: AtomicU32,
    #[cfg(loom)]
    lock: loom::sync::Mutex<()>,
    #[cfg(loom)]
    parked: loom::sync::Condvar,
}

impl Parking {
    pub(super) fn load(&self) -> u32 {
        self.word.load(Ordering::Acquire)
    }

    /// Changes the word.
    pub(super) fn bump(&self) {
        self.word.fetch_add(1, Ordering::AcqRel);
    }

    /// Parks while the word is `expected`, at most `timeout`. May return early.
    #[cfg(all(target_os = "linux", not(loom)))]
    pub(super) fn wait(&self, expected: u32, timeout: Option<Duration>) {
        let spec = timeout.map(|t| libc::timespec {
            tv_sec: t.as_secs().min(1 << 30) as libc::time_t,
            tv_nsec: t.subsec_nanos().into(),
        });
        let spec = spec.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
        // SAFETY: the word and the time are valid for the call. Every return value means "look again".
        unsafe {
            let op = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
            libc::syscall(libc::SYS_futex, self.word.as_ptr(), op, expected, spec);
        }
    }

    /// Wakes at most `n` threads parked on the word.
    #[cfg(all(target_os = "linux", not(loom)))]
    pub(super) fn wake(&self, n: u32) {
        // SAFETY: the word is valid for the call.
        unsafe {
            let op = libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG;
            let n = n.min(i32::MAX as u32);
            libc::syscall(libc::SYS_futex, self.word.as_ptr(), op, n);
        }
    }

    #[cfg(all(not(target_os = "linux"), not(loom)))]
    pub(super) fn wait(&self, expected: u32, timeout: Option<Duration>) {
        let nap = Duration::from_micros(100);
        if self.load() == expected {
            std::thread::sleep(timeout.map_or(nap, |t| t.min(nap)));
        }
    }

    #[cfg(all(not(target_os = "linux"), not(loom)))]
    pub(super) fn wake(&self, _: u32) {}

    /// The system compares and parks in one, against whoever wakes; no timeout here.
    #[cfg(loom)]
    pub(super) fn wait(&self, expected: u32, _timeout: Option<Duration>) {
        let Ok(guard) = self.lock.lock() else { return };
        if self.load() == expected {
            drop(self.parked.wait(guard));
        }
    }

    #[cfg(loom)]
    pub(super) fn wake(&self, n: u32) {
        let _guard = self.lock.lock();
        match n {
            u32::MAX => self.parked.notify_all(),
            n => (0..n).for_each(|_| self.parked.notify_one()),
        }
    }
}

/// The cores that the process may use, ascending; empty where the system does not say (Linux says).
#[cfg(target_os = "linux")]
pub(super) fn allowed() -> Vec<usize> {
    // SAFETY: the set is a plain bit array, zero is a value of it, and the system writes no more than its size.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        if libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &raw mut set) != 0 {
            return Vec::new();
        }
        let all = 0..libc::CPU_SETSIZE as usize;
        all.filter(|core| libc::CPU_ISSET(*core, &set)).collect()
    }
}

#[cfg(not(target_os = "linux"))]
pub(super) fn allowed() -> Vec<usize> {
    Vec::new()
}

/// Pins the calling thread to a core. A core that the system does not have or allow leaves the thread where it is.
#[cfg(target_os = "linux")]
pub(super) fn pin(core: usize) {
    // SAFETY: the set is a plain bit array, zero is a value of it; `CPU_SET` ignores cores past its size.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        if core < libc::CPU_SETSIZE as usize {
            libc::CPU_SET(core, &mut set);
            libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set);
        }
    }
}

#[cfg(not(target_os = "linux"))]
pub(super) fn pin(_: usize) {}
