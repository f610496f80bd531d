// SPDX-License-Identifier: MIT OR Apache-2.0
//! Faults made real: the driver itself refuses an allocation, the device itself traps or runs for ever.

use std::sync::atomic::{AtomicU64, Ordering};

use metrale_kernels::Target;

use super::driver::Pinned;
use super::launch::launch_one;
use super::state::State;
use crate::error::DeviceFault;
use crate::faults::FaultPlan;

/// More than any device or machine has.
const TOO_MUCH: usize = 1 << 60;

/// Counts allocations, and makes one of them too large.
#[derive(Debug, Default)]
pub(super) struct Allocations {
    fails: Option<u64>,
    count: AtomicU64,
}

impl Allocations {
    pub(super) fn new(plan: &FaultPlan) -> Allocations {
        Allocations {
            fails: plan.allocation,
            count: AtomicU64::new(0),
        }
    }

    /// The bytes to ask for where `wanted` are needed.
    pub(super) fn size(&self, wanted: usize) -> usize {
        let n = self.count.fetch_add(1, Ordering::Relaxed);
        if self.fails == Some(n) {
            TOO_MUCH
        } else {
            wanted
        }
    }
}

/// Counts submits, and puts a kernel before one of them.
#[derive(Debug, Default)]
pub(super) struct Submits {
    plan: FaultPlan,
    count: u64,
    /// What the kernel that never ends looks at.
    flag: Option<Pinned>,
}

impl Submits {
    pub(super) fn new(plan: &FaultPlan) -> Submits {
        Submits {
            plan: *plan,
            ..Submits::default()
        }
    }
}

impl State {
    /// Counts a submit; launches the fault that the plan has for it before anything of the submit's own.
    pub(super) fn inject(&mut self, target: &'static Target) -> Result<(), DeviceFault> {
        let n = self.submits.count;
        self.submits.count += 1;
        let plan = self.submits.plan;
        let (id, words) = if plan.lose == Some(n) {
            ("trap/now", None)
        } else if plan.hang == Some(n) {
            let flag = Pinned::new(1, &self.allocations)?;
            let address = flag.address(0);
            self.submits.flag = Some(flag);
            ("spin/flag", Some(address))
        } else {
            return Ok(());
        };
        let resolved = self.instrument(target, id)?;
        launch_one(&resolved, words.as_slice(), &self.stream)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_allocation_of_the_plan_asks_for_too_much() {
        let plan = FaultPlan {
            allocation: Some(2),
            ..FaultPlan::default()
        };
        let allocations = Allocations::new(&plan);
        let sizes: Vec<usize> = (0..4).map(|_| allocations.size(8)).collect();
        assert_eq!(sizes, [8, 8, TOO_MUCH, 8]);
        let none = Allocations::new(&FaultPlan::default());
        assert!((0..9).all(|_| none.size(8) == 8));
    }
}
