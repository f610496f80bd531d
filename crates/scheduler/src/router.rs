// SPDX-License-Identifier: MIT OR Apache-2.0
//! The ways out of the scheduler. Only implementations of these touch the outside.

use std::time::Duration;

use crate::effect::Effect;
use crate::fault::Fault;
use crate::outcome::StepOutcome;
use crate::plan::{StepPlan, TableDelta};
use crate::request::RequestId;

/// Runs steps. model-engine implements it over a backend; tests over a script.
pub trait DeviceRouter {
    /// Sampling parameters of a request: the `S` of its rows.
    type Sampling: Clone;

    /// Starts a step. All of `plan` that is needed later is copied before this returns.
    ///
    /// # Errors
    /// A fault of scope `Step` or `Device`: nothing of the step counts.
    fn submit(&mut self, plan: &StepPlan<Self::Sampling>) -> Result<(), Fault>;

    /// Waits at most `timeout` for the step submitted last, and fills `outcome` when it is done.
    ///
    /// # Errors
    /// A fault of scope `Step` or `Device`: nothing of the step counts. A step that never ends is the router's to detect.
    fn wait(&mut self, timeout: Duration, outcome: &mut StepOutcome) -> Result<Progress, Fault>;

    /// How far ahead of its outcomes this router takes steps; always the same.
    fn lookahead(&self) -> Lookahead {
        Lookahead::None
    }

    /// Makes the device fit for the next step after `fault`, with no step in flight, and with an empty KV pool after one of scope `Device`.
    ///
    /// # Errors
    /// A fault: the device is lost, and the driver fails everything and takes no more.
    fn recover(&mut self, fault: &Fault) -> Result<(), Fault>;
}

/// How far ahead steps are planned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Lookahead {
    /// A step is planned when the one before it is applied.
    #[default]
    None,
    /// Step n+1 is planned while n runs, and submitted when n is applied: the ids of its rows are known by then.
    Late,
    /// Step n+1 is submitted while n runs, so two are in flight: a late row takes its id where n left it
    /// ([`StepPlan::late`]). Outcomes come in order.
    Slot,
}

/// State of the step in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// The outcome is filled.
    Done,
    /// The timeout passed first.
    Running,
}

/// Tells the time. The planner is told it and never asks.
pub trait ClockRouter {
    /// Time since a fixed moment of the router's choosing; never goes back.
    fn now(&mut self) -> Duration;
}

/// Keeps the KV of preempted sequences in host memory. The first implementation is [`NoSpill`]: preemption recomputes.
pub trait SpillRouter {
    /// Offers the blocks of a sequence that is about to be preempted: its entries in the tables of the first group, in order
    /// of position, then those of the groups beside it. `true`: kept, and [`SpillRouter::restore`] will bring them back.
    fn spill(&mut self, key: u64, entries: &[TableDelta]) -> bool;

    /// Fills the blocks of `entries` with what [`SpillRouter::spill`] kept under `key` for the same group and index (the slot
    /// may be another), before the next step runs, and forgets `key`. `false`: it is not worth it or gone, and the sequence
    /// is recomputed.
    fn restore(&mut self, key: u64, entries: &[TableDelta]) -> bool;

    /// Forgets `key`.
    fn discard(&mut self, key: u64);
}

/// Keeps nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoSpill;

impl SpillRouter for NoSpill {
    fn spill(&mut self, _key: u64, _entries: &[TableDelta]) -> bool {
        false
    }

    fn restore(&mut self, _key: u64, _entries: &[TableDelta]) -> bool {
        false
    }

    fn discard(&mut self, _key: u64) {}
}

/// Guesses how texts go on. The first implementation is [`NoDrafts`].
pub trait DraftRouter {
    /// Appends at most `most` tokens that may follow `text`, all known tokens of `request`, to `drafts`. A wrong one costs a
    /// row of the next step and changes no answer.
    fn draft(&mut self, request: RequestId, text: &[u32], most: u32, drafts: &mut Vec<u32>);
}

/// Guesses nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoDrafts;

impl DraftRouter for NoDrafts {
    fn draft(&mut self, _request: RequestId, _text: &[u32], _most: u32, _drafts: &mut Vec<u32>) {}
}

/// Everything outside that one driver needs, as one value; decorators wrap it.
pub trait Router: DeviceRouter + ClockRouter + SpillRouter + DraftRouter {
    /// Sees each effect of the planner in order, before it reaches a sink.
    fn observe(&mut self, _effect: &Effect) {}
}

/// A device, a clock, a spill router and a draft router side by side.
#[derive(Clone, Debug)]
pub struct Routers<D, C, P = NoSpill, G = NoDrafts> {
    /// Runs steps.
    pub device: D,
    /// Tells the time.
    pub clock: C,
    /// Keeps what is preempted.
    pub spill: P,
    /// Guesses.
    pub drafts: G,
}

impl<D: DeviceRouter, C, P, G> DeviceRouter for Routers<D, C, P, G> {
    type Sampling = D::Sampling;

    fn submit(&mut self, plan: &StepPlan<D::Sampling>) -> Result<(), Fault> {
        self.device.submit(plan)
    }

    fn wait(&mut self, timeout: Duration, outcome: &mut StepOutcome) -> Result<Progress, Fault> {
        self.device.wait(timeout, outcome)
    }

    fn lookahead(&self) -> Lookahead {
        self.device.lookahead()
    }

    fn recover(&mut self, fault: &Fault) -> Result<(), Fault> {
        self.device.recover(fault)
    }
}

impl<D, C: ClockRouter, P, G> ClockRouter for Routers<D, C, P, G> {
    fn now(&mut self) -> Duration {
        self.clock.now()
    }
}

impl<D, C, P: SpillRouter, G> SpillRouter for Routers<D, C, P, G> {
    fn spill(&mut self, key: u64, entries: &[TableDelta]) -> bool {
        self.spill.spill(key, entries)
    }

    fn restore(&mut self, key: u64, entries: &[TableDelta]) -> bool {
        self.spill.restore(key, entries)
    }

    fn discard(&mut self, key: u64) {
        self.spill.discard(key);
    }
}

impl<D, C, P, G: DraftRouter> DraftRouter for Routers<D, C, P, G> {
    fn draft(&mut self, request: RequestId, text: &[u32], most: u32, drafts: &mut Vec<u32>) {
        self.drafts.draft(request, text, most, drafts);
    }
}

impl<D, C, P, G> Router for Routers<D, C, P, G>
where
    D: DeviceRouter,
    C: ClockRouter,
    P: SpillRouter,
    G: DraftRouter,
{
}
