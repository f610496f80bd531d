// SPDX-License-Identifier: MIT OR Apache-2.0
//! The scheduler: planner, step plans, effects, router traits, the effect trace and the one driver loop.
//!
//! The idea: the planner is a pure function of its state and the time it is told. It decides which tokens of which
//! sequences run in the next step ([`StepPlan`]), and turns what the device answers ([`StepOutcome`]) into events of
//! requests ([`Event`]). Everything outside is reached through a trait: the device ([`DeviceRouter`]), the clock
//! ([`ClockRouter`]), host memory for what is evicted ([`SpillRouter`]), the KV cache ([`KvAccounts`]) and the receiver
//! of events ([`EventSink`]). The [`Driver`] is the one loop that joins them; it runs on a thread of its own, or is
//! stepped by hand.
//!
//! Invariants, as absences: no model type, no device type, no clock, no environment, no randomness; this crate depends
//! on no other member of the workspace. How a token is drawn is not known here either: `S`, the sampling parameters of a
//! request, is carried from the request to the row that draws and never looked into.
//!
//! A step mixes rows of any kind: a sequence has tokens that are known (prompt and generated) and a count of those whose
//! KV is stored. Its next rows are the known ones not yet stored; the row of the last known token also draws the next
//! one. Prefill, a chunk of it, decode and recompute after preemption are that one rule. Behind the last known token a
//! sequence may run tokens that were guessed ([`DraftRouter`]): each row draws as if its own token were right, and of the
//! tokens drawn those count whose rows held what was drawn before them. An answer has the same tokens as without. A request
//! may bring a [`TokenConstraint`]: its rows then draw among the tokens that it allows.

#![forbid(unsafe_code)]

mod constraint;
mod driver;
mod effect;
mod event;
mod fault;
mod handle;
mod kv;
mod limits;
mod outcome;
mod plan;
mod planner;
mod policy;
mod request;
mod router;
mod trace;

pub use constraint::{ConstraintError, FixedMask, Text, TokenConstraint, TokenMask};
pub use driver::{Driver, Turn};
pub use effect::Effect;
pub use event::{Delivery, Event, EventSink, FinishReason, Usage};
pub use fault::{Fault, FaultKind, Scope};
pub use handle::{Handle, Health, Stats};
pub use kv::{Admission, Attached, KvAccounts};
pub use limits::{LimitsError, PlannerLimits};
pub use outcome::{RowOutcome, RowStatus, StepOutcome};
pub use plan::{
    BlockCopy, HistoryEntry, LateId, LogitRow, Segment, StateRestore, StepPlan, TableDelta,
};
pub use planner::Planner;
pub use policy::Policy;
pub use request::{Refusal, Request, RequestId};
pub use router::{
    ClockRouter, DeviceRouter, DraftRouter, Lookahead, NoDrafts, NoSpill, Progress, Router,
    Routers, SpillRouter,
};
pub use trace::{Difference, Entry, Replay, Trace, TraceHandle, Traced};
