// SPDX-License-Identifier: MIT OR Apache-2.0
//! What an open device holds, under one lock: modules, launches, programs, arenas and the fences of what was submitted.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use cudarc::driver::sys;
use metrale_core::{StepBlock, StepLayout};
use metrale_kernels::Target;

use super::arenas::Arenas;
use super::bind::{Bound, Resolved};
use super::driver::{Stream, check};
use super::fences::{Fences, Record};
use super::inject::{Allocations, Submits};
use super::launch::{allow_cluster, allow_shared};
use super::pages::{Pages, Transfers};
use super::program::Recorded;
use super::stamps::Stamps;
use crate::backend::{Fence, Progress};
use crate::error::DeviceFault;

#[derive(Debug)]
pub(super) struct State {
    /// The fault that lost the context.
    pub(super) lost: Option<DeviceFault>,
    pub(super) next: u32,
    pub(super) fences: Fences,
    pub(super) programs: HashMap<u32, Recorded>,
    pub(super) launches: HashMap<u32, Bound>,
    pub(super) arenas: HashMap<u32, Arenas>,
    pub(super) pages: HashMap<u32, Pages>,
    /// There once there are pages.
    pub(super) transfers: Option<Transfers>,
    pub(super) functions: Vec<Option<Resolved>>,
    pub(super) images: Vec<Option<Module>>,
    /// Bytes of shared memory that a block may ask for, its static part included.
    pub(super) shared_limit: u32,
    /// Multiprocessors.
    pub(super) processors: u32,
    /// What is waited for takes no longer, or the device hangs.
    pub(super) patience: Duration,
    /// Whether it hangs: then nothing is given back before the process ends, since that would wait.
    pub(super) hangs: bool,
    pub(super) allocations: Allocations,
    pub(super) submits: Submits,
    pub(super) stamps: Option<Stamps>,
    pub(super) stream: Stream,
}

/// A loaded image.
#[derive(Debug)]
pub(super) struct Module(sys::CUmodule);

// SAFETY: a module handle is valid in every thread.
unsafe impl Send for Module {}

impl Drop for Module {
    fn drop(&mut self) {
        // SAFETY: loaded once; functions of it are gone with the state.
        unsafe { sys::cuModuleUnload(self.0) };
    }
}

/// A step is waited for by looking at its fence: this long without giving up the processor ...
const SPIN: Duration = Duration::from_micros(50);
/// ... and then in naps of this length.
const NAP: Duration = Duration::from_micros(20);

impl State {
    pub(super) fn id(&mut self) -> u32 {
        self.next += 1;
        self.next
    }

    pub(super) fn retire(&mut self) -> Result<(), DeviceFault> {
        let arenas = &self.arenas;
        self.fences
            .retire(|(id, slot)| arenas.get(&id)?.ring.record(slot))
    }

    /// Waits until a fence is passed: for places where the caller cannot go on otherwise.
    pub(super) fn finish(&mut self, fence: u64) -> Result<(), DeviceFault> {
        let mut pause = Pause::new();
        loop {
            self.retire()?;
            if self.fences.passed(fence) {
                return Ok(());
            }
            self.patient(&mut pause)?;
        }
    }

    /// One look later, unless that is too late.
    pub(super) fn patient(&mut self, pause: &mut Pause) -> Result<(), DeviceFault> {
        if pause.since.elapsed() > self.patience {
            self.hangs = true;
            return Err(DeviceFault::lost(format!(
                "the device has not ended its work within {:?}: a kernel hangs; only a new process gets the device back",
                self.patience
            )));
        }
        pause.once(NAP);
        Ok(())
    }

    /// Waits until the streams are empty.
    pub(super) fn settle_all(&mut self) -> Result<(), DeviceFault> {
        if let Some(transfers) = &self.transfers {
            transfers.join(&self.stream)?;
        }
        self.settle()
    }

    /// Waits until the compute stream is empty.
    pub(super) fn settle(&mut self) -> Result<(), DeviceFault> {
        let fence = self.fences.push(&self.stream, None)?;
        self.finish(fence)
    }

    /// The function of a point by its name: what is launched beside plans.
    pub(super) fn instrument(
        &mut self,
        target: &'static Target,
        id: &str,
    ) -> Result<Resolved, DeviceFault> {
        let index = target.points.binary_search_by(|p| p.id.cmp(id));
        let index = index.map_err(|_| {
            DeviceFault::rejected(format!("class {} has no kernel {id}", target.id.hw))
        })?;
        self.function(target, index)
    }

    /// Gives back programs, launches and memory, of one reservation or all. If the device hangs they are left as they are.
    pub(super) fn give_back(&mut self, of: impl Fn(u32) -> bool) {
        let programs = self.programs.extract_if(|_, p| of(p.arenas));
        let programs: Vec<_> = programs.collect();
        self.launches.retain(|_, l| !of(l.arenas));
        let pages: Vec<_> = self.pages.extract_if(|_, p| of(p.arenas)).collect();
        let arenas: Vec<_> = self.arenas.extract_if(|id, _| of(*id)).collect();
        if self.hangs {
            std::mem::forget((programs, pages, arenas));
        }
    }

    /// Loads the image of a point if need be, and finds its entry.
    pub(super) fn function(
        &mut self,
        target: &'static Target,
        index: usize,
    ) -> Result<Resolved, DeviceFault> {
        if let Some(resolved) = self.functions[index] {
            return Ok(resolved);
        }
        let point = &target.points[index];
        let image = &target.images[point.image];
        if self.images[point.image].is_none() {
            let mut module = std::ptr::null_mut();
            // SAFETY: a whole image, as the compiler wrote it.
            let loaded = unsafe { sys::cuModuleLoadData(&mut module, image.bytes.as_ptr().cast()) };
            check(&format!("loading the kernels of {}", image.file), loaded)?;
            self.images[point.image] = Some(Module(module));
        }
        let Some(Module(module)) = &self.images[point.image] else {
            return Err(DeviceFault::rejected("an image vanished"));
        };
        let entry = std::ffi::CString::new(point.entry).map_err(|_| {
            DeviceFault::rejected(format!("{}: a zero byte in its entry", point.id))
        })?;
        let mut function = std::ptr::null_mut();
        // SAFETY: the module is loaded, the name is terminated. The function is loaded at once, not at its first launch:
        // that would be inside a capture.
        unsafe {
            let found = sys::cuModuleGetFunction(&mut function, *module, entry.as_ptr());
            check(&format!("finding {} in {}", point.entry, image.file), found)?;
            check(
                &format!("loading {}", point.entry),
                sys::cuFuncLoad(function),
            )?;
        }
        // A size that depends on the launch is not known yet: as much as there is.
        if !point.shared.is(0) {
            allow_shared(point, function, self.shared_limit)?;
        }
        // Some devices take larger clusters than all do; which size a launch has is not known yet.
        if point.cluster.iter().any(|f| !f.is(1)) {
            allow_cluster(point, function)?;
        }
        let resolved = Resolved { point, function };
        self.functions[index] = Some(resolved);
        Ok(resolved)
    }

    /// Copies a step block to the device in stream order, with its late ids if `rows` are to be run, and with its masks for what
    /// `samples`. Returns the fault
    /// record's place.
    pub(super) fn send(
        &mut self,
        arenas: u32,
        step: &StepBlock,
        rows: bool,
        samples: bool,
    ) -> Result<Record, DeviceFault> {
        let Some(memory) = self.arenas.get(&arenas) else {
            return Err(unknown("arenas", arenas.into()));
        };
        let wanted = StepLayout::new(memory.limits);
        if step.layout().words() > wanted.words() {
            return Err(DeviceFault::rejected(format!(
                "the step block has {} words, and the arenas were reserved for {}",
                step.layout().words(),
                wanted.words()
            )));
        }
        let busy = memory.ring.busy_until();
        self.finish(busy)?;
        let Some(memory) = self.arenas.get_mut(&arenas) else {
            return Err(unknown("arenas", arenas.into()));
        };
        let (slot, host, bytes) = memory.ring.fill(step, samples);
        let device = memory.ring.device_address();
        // SAFETY: the slot is page-locked and stays until its fence is passed; the device block is as long as any.
        let copied = unsafe {
            sys::cuMemcpyHtoDAsync_v2(
                device,
                host as *const std::ffi::c_void,
                bytes,
                self.stream.0,
            )
        };
        check("sending a step block", copied)?;
        if rows && !step.late().is_empty() {
            // The ids are the first field, behind the header, whichever entries are sent.
            memory.take_late(StepBlock::IDS_WORD, step.late(), &self.stream)?;
        }
        Ok((arenas, slot))
    }

    /// The fence behind a step that was sent and whose work was started.
    pub(super) fn sent(&mut self, record: Record) -> Result<u64, DeviceFault> {
        let fence = self.fences.push(&self.stream, Some(record))?;
        if let Some(memory) = self.arenas.get_mut(&record.0) {
            memory.ring.sent(record.1, fence);
        }
        Ok(fence)
    }

    pub(super) fn progress(&mut self, fence: Fence) -> Result<Progress, DeviceFault> {
        if !self.fences.knows(fence.0) {
            return Err(unknown("fence", fence.0));
        }
        self.retire()?;
        if !self.fences.passed(fence.0) {
            return Ok(Progress::Running);
        }
        match self.fences.fault(fence.0) {
            Some(fault) => Err(fault.clone()),
            None => Ok(Progress::Done),
        }
    }
}

/// Looks again and again, first without rest, then in naps.
pub(super) struct Pause {
    pub(super) since: Instant,
}

impl Pause {
    pub(super) fn new() -> Pause {
        Pause {
            since: Instant::now(),
        }
    }

    pub(super) fn once(&mut self, at_most: Duration) {
        if self.since.elapsed() < SPIN {
            std::hint::spin_loop();
        } else {
            std::thread::sleep(NAP.min(at_most));
        }
    }
}

pub(super) fn unknown(what: &str, id: u64) -> DeviceFault {
    DeviceFault::rejected(format!("{what} {id} does not exist on this device"))
}

/// One stream: a fence that exists is over by then.
pub(super) fn known(state: &State, after: &[Fence]) -> Result<(), DeviceFault> {
    match after.iter().find(|f| !state.fences.knows(f.0)) {
        Some(fence) => Err(unknown("fence", fence.0)),
        None => Ok(()),
    }
}
