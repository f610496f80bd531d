// SPDX-License-Identifier: MIT OR Apache-2.0
//! Parking on a word. Linux: `futex(2)`. Elsewhere: a sleep of 100 microseconds at a time, right but slow to wake.

use std::sync::atomic::AtomicU32;
use std::time::Duration;

/// Parks while the word is `expected`, at most `timeout`. May return early.
#[cfg(target_os = "linux")]
pub(super) fn wait(word: &AtomicU32, expected: u32, timeout: Option<Duration>) {
    let spec = timeout.map(|t| libc::timespec {
        tv_sec: t.as_secs().min(1 << 30) as libc::time_t,
        tv_nsec: t.subsec_nanos().into(),
    });
    let spec = spec.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: the word and the time are valid for the call. Every return value means "look again".
    unsafe {
        let op = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
        libc::syscall(libc::SYS_futex, word.as_ptr(), op, expected, spec);
    }
}

/// Wakes at most `n` threads parked on the word.
#[cfg(target_os = "linux")]
pub(super) fn wake(word: &AtomicU32, n: u32) {
    // SAFETY: the word is valid for the call.
    unsafe {
        let op = libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG;
        libc::syscall(libc::SYS_futex, word.as_ptr(), op, n.min(i32::MAX as u32));
    }
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
pub(super) fn wait(word: &AtomicU32, expected: u32, timeout: Option<Duration>) {
    let nap = Duration::from_micros(100);
    if word.load(std::sync::atomic::Ordering::SeqCst) == expected {
        std::thread::sleep(timeout.map_or(nap, |t| t.min(nap)));
    }
}

#[cfg(not(target_os = "linux"))]
pub(super) fn wake(_: &AtomicU32, _: u32) {}

#[cfg(not(target_os = "linux"))]
pub(super) fn pin(_: usize) {}
