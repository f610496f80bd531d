// SPDX-License-Identifier: MIT OR Apache-2.0
//! Faults to be injected, for drills and tests.

/// What fails, and when. Counts begin at 0 and run over the life of a backend.
///
/// [`Faulty`](crate::Faulty) puts them in front of a backend of class cpu. A [`CudaBackend`](crate::CudaBackend) makes them
/// real: an allocation asks the driver for more than there is, a submit that hangs launches a kernel that never ends, and
/// one that loses the device a kernel that traps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultPlan {
    /// The allocation that fails. Class cpu: arenas that hold anything count one each, in the order of
    /// [`ArenaKind::ALL`](metrale_core::ArenaKind::ALL); CUDA: so they do, and after them the page-locked slots of the step
    /// ring and the step block.
    pub allocation: Option<u64>,
    /// The submit that never ends, nor does any after it.
    pub hang: Option<u64>,
    /// The submit that loses the device: it and every later call that can fail does.
    pub lose: Option<u64>,
    /// CUDA: what the driver is taken to support (12080 = CUDA 12.8).
    pub driver: Option<u32>,
    /// CUDA: the compute capability that the device is taken to have.
    pub capability: Option<(u32, u32)>,
}
