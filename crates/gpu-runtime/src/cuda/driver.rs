// SPDX-License-Identifier: MIT OR Apache-2.0
//! Calls of the CUDA driver: checked, classified, and wrapped where something must be given back.
//!
//! The driver library is loaded when it is first asked for: a machine without it runs this code up to the typed error in
//! [`super::open`].

use std::ffi::{CStr, c_void};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use cudarc::driver::sys::{self, CUresult};

use super::inject::Allocations;
use crate::error::DeviceFault;

/// Turns a result into a fault that names the call, the error and what it means.
pub(super) fn check(what: &str, result: CUresult) -> Result<(), DeviceFault> {
    if result == CUresult::CUDA_SUCCESS {
        return Ok(());
    }
    let text = format!("{what}: {}", describe(result));
    Err(if leaves_context(result) {
        DeviceFault::rejected(text)
    } else {
        DeviceFault::lost(text)
    })
}

/// Errors of a call that did nothing. Everything else (a failed kernel, a lost or ill device) poisons the context: every
/// later call returns the same error.
fn leaves_context(result: CUresult) -> bool {
    use CUresult as R;
    matches!(
        result,
        R::CUDA_ERROR_INVALID_VALUE
            | R::CUDA_ERROR_OUT_OF_MEMORY
            | R::CUDA_ERROR_NO_DEVICE
            | R::CUDA_ERROR_INVALID_DEVICE
            | R::CUDA_ERROR_INVALID_IMAGE
            | R::CUDA_ERROR_NO_BINARY_FOR_GPU
            | R::CUDA_ERROR_INVALID_PTX
            | R::CUDA_ERROR_UNSUPPORTED_PTX_VERSION
            | R::CUDA_ERROR_INVALID_SOURCE
            | R::CUDA_ERROR_INVALID_HANDLE
            | R::CUDA_ERROR_NOT_FOUND
            | R::CUDA_ERROR_NOT_READY
            | R::CUDA_ERROR_NOT_SUPPORTED
            | R::CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES
            | R::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
            | R::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
            | R::CUDA_ERROR_STREAM_CAPTURE_UNMATCHED
            | R::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT
    )
}

/// `CUDA_ERROR_X (what the driver says about it)`.
pub(super) fn describe(result: CUresult) -> String {
    let text = |get: unsafe fn(CUresult, *mut *const std::ffi::c_char) -> CUresult| {
        let mut text = std::ptr::null();
        // SAFETY: the driver stores a pointer to a static text, or null for an error that it does not know.
        unsafe {
            let known = get(result, &mut text) == CUresult::CUDA_SUCCESS && !text.is_null();
            known.then(|| CStr::from_ptr(text).to_string_lossy().into_owned())
        }
    };
    match (text(sys::cuGetErrorName), text(sys::cuGetErrorString)) {
        (Some(name), Some(meaning)) => format!("{name} ({meaning})"),
        _ => format!("error {}", result as u32),
    }
}

/// The device's primary context, held open.
#[derive(Debug)]
pub(super) struct Context {
    device: sys::CUdevice,
    handle: sys::CUcontext,
    abandoned: AtomicBool,
}

// SAFETY: a context may be made current in any thread; the driver locks it.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl Context {
    pub(super) fn new(device: sys::CUdevice) -> Result<Context, DeviceFault> {
        let mut handle = std::ptr::null_mut();
        // SAFETY: `device` comes from cuDeviceGet.
        let result = unsafe { sys::cuDevicePrimaryCtxRetain(&mut handle, device) };
        check("opening the device's context", result)?;
        Ok(Context {
            device,
            handle,
            abandoned: AtomicBool::new(false),
        })
    }

    /// Leaves it to the end of the process: giving it back would wait for a kernel that never ends.
    pub(super) fn abandon(&self) {
        self.abandoned.store(true, Ordering::Relaxed);
    }

    /// Makes it the thread's current context: each public entry does, since it may come from any thread.
    pub(super) fn enter(&self) -> Result<(), DeviceFault> {
        // SAFETY: the context is retained for as long as `self` lives.
        check("entering the device's context", unsafe {
            sys::cuCtxSetCurrent(self.handle)
        })
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        if !*self.abandoned.get_mut() {
            // SAFETY: retained once by `new`. A failure has no one left to tell.
            unsafe { sys::cuDevicePrimaryCtxRelease_v2(self.device) };
        }
    }
}

/// A stream that does not wait for the legacy default stream.
#[derive(Debug)]
pub(super) struct Stream(pub(super) sys::CUstream);

// SAFETY: streams are used under the backend's lock; the driver allows any thread.
unsafe impl Send for Stream {}

impl Stream {
    pub(super) fn new() -> Result<Stream, DeviceFault> {
        let mut stream = std::ptr::null_mut();
        let flags = sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
        // SAFETY: stores a new handle.
        check("creating a stream", unsafe {
            sys::cuStreamCreate(&mut stream, flags)
        })?;
        Ok(Stream(stream))
    }

    pub(super) fn synchronize(&self) -> Result<(), DeviceFault> {
        // SAFETY: the stream is alive.
        check("waiting for the device", unsafe {
            sys::cuStreamSynchronize(self.0)
        })
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // SAFETY: created by `new`, and nothing refers to it any more.
        unsafe { sys::cuStreamDestroy_v2(self.0) };
    }
}

/// An event, without a time unless it was asked for.
#[derive(Debug)]
pub(super) struct Event(sys::CUevent);

// SAFETY: as for streams.
unsafe impl Send for Event {}

impl Event {
    pub(super) fn new() -> Result<Event, DeviceFault> {
        Event::with(sys::CUevent_flags::CU_EVENT_DISABLE_TIMING)
    }

    /// One that knows its time.
    pub(super) fn timed() -> Result<Event, DeviceFault> {
        Event::with(sys::CUevent_flags::CU_EVENT_DEFAULT)
    }

    fn with(flags: sys::CUevent_flags) -> Result<Event, DeviceFault> {
        let mut event = std::ptr::null_mut();
        // SAFETY: stores a new handle.
        check("creating an event", unsafe {
            sys::cuEventCreate(&mut event, flags as u32)
        })?;
        Ok(Event(event))
    }

    /// Later work of `stream` waits for it; one that was never recorded holds nothing.
    pub(super) fn hold(&self, stream: &Stream) -> Result<(), DeviceFault> {
        // SAFETY: both are alive.
        check("waiting for an event", unsafe {
            sys::cuStreamWaitEvent(stream.0, self.0, 0)
        })
    }

    /// The time since another, where both know theirs and were passed.
    pub(super) fn since(&self, begin: &Event) -> Result<Duration, DeviceFault> {
        let mut milliseconds = 0.0;
        // SAFETY: stores a number; both are alive.
        check("reading the time of an event", unsafe {
            sys::cuEventElapsedTime_v2(&mut milliseconds, begin.0, self.0)
        })?;
        Ok(Duration::from_secs_f64(
            f64::from(milliseconds).max(0.0) * 1e-3,
        ))
    }

    pub(super) fn record(&self, stream: &Stream) -> Result<(), DeviceFault> {
        // SAFETY: both are alive.
        check("recording an event", unsafe {
            sys::cuEventRecord(self.0, stream.0)
        })
    }

    /// Whether the device has passed it; a fault of the work before it otherwise.
    pub(super) fn passed(&self) -> Result<bool, DeviceFault> {
        // SAFETY: the event is alive.
        match unsafe { sys::cuEventQuery(self.0) } {
            CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            result => check("running on the device", result).map(|()| true),
        }
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: created by `new`.
        unsafe { sys::cuEventDestroy_v2(self.0) };
    }
}

/// Device memory, zeroed.
#[derive(Debug)]
pub(super) struct DeviceMemory {
    pub(super) at: sys::CUdeviceptr,
    pub(super) bytes: u64,
}

impl DeviceMemory {
    pub(super) fn new(
        bytes: u64,
        stream: &Stream,
        allocations: &Allocations,
    ) -> Result<DeviceMemory, DeviceFault> {
        let mut at = 0;
        let size = usize::try_from(bytes)
            .map_err(|_| DeviceFault::rejected("more than an address can reach"))?;
        // SAFETY: stores a new address.
        check("allocating device memory", unsafe {
            sys::cuMemAlloc_v2(&mut at, allocations.size(size))
        })?;
        let memory = DeviceMemory { at, bytes };
        // SAFETY: in bounds of the allocation.
        let zeroed = unsafe { sys::cuMemsetD8Async(at, 0, size, stream.0) };
        check("zeroing device memory", zeroed)?;
        Ok(memory)
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        // SAFETY: allocated by `new`; who drops it has waited for the work that uses it.
        unsafe { sys::cuMemFree_v2(self.at) };
    }
}

/// Page-locked host memory that the device can read and write, zeroed, as 32-bit words.
#[derive(Debug)]
pub(super) struct Pinned {
    at: *mut u32,
    words: usize,
}

// SAFETY: owned memory, used under the backend's lock.
unsafe impl Send for Pinned {}

impl Pinned {
    pub(super) fn new(words: usize, allocations: &Allocations) -> Result<Pinned, DeviceFault> {
        let mut at: *mut c_void = std::ptr::null_mut();
        let size = allocations.size(words * 4);
        // SAFETY: stores a new address.
        let result = unsafe { sys::cuMemHostAlloc(&mut at, size, sys::CU_MEMHOSTALLOC_PORTABLE) };
        check("allocating page-locked memory", result)?;
        // SAFETY: fresh memory of that size.
        unsafe { std::ptr::write_bytes(at.cast::<u8>(), 0, words * 4) };
        Ok(Pinned {
            at: at.cast(),
            words,
        })
    }

    /// The words, for filling.
    pub(super) fn words_mut(&mut self) -> &mut [u32] {
        // SAFETY: owned and initialised; who calls has waited for the device to be done with it.
        unsafe { std::slice::from_raw_parts_mut(self.at, self.words) }
    }

    /// The bytes, for reading.
    pub(super) fn bytes(&self) -> &[u8] {
        // SAFETY: owned and initialised; who calls has waited for the device to be done with it.
        unsafe { std::slice::from_raw_parts(self.at.cast(), self.words * 4) }
    }

    /// The bytes, for looking at and spoiling.
    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: owned and initialised; who calls has waited for the device to be done with it.
        unsafe { std::slice::from_raw_parts_mut(self.at.cast(), self.words * 4) }
    }

    /// The address of a byte, for the driver.
    pub(super) fn byte_address(&self, byte: usize) -> u64 {
        debug_assert!(byte < self.words * 4);
        self.at as u64 + byte as u64
    }

    /// The address of a word, for the driver; host and device share addresses.
    pub(super) fn address(&self, word: usize) -> u64 {
        debug_assert!(word < self.words);
        self.at as u64 + word as u64 * 4
    }

    /// A word that the device may have written.
    pub(super) fn load(&self, word: usize) -> u32 {
        assert!(word < self.words, "word {word} of {}", self.words);
        // SAFETY: in bounds; volatile, since a kernel writes it.
        unsafe { self.at.add(word).read_volatile() }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // SAFETY: allocated by `new`; the device is done with it.
        unsafe { sys::cuMemFreeHost(self.at.cast()) };
    }
}
