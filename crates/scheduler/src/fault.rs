// SPDX-License-Identifier: MIT OR Apache-2.0
//! Faults and how far they reach.

/// The reach of a fault, from the narrowest to the widest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Scope {
    /// One logits row: its request fails, the step's other rows stand.
    Row,
    /// One request.
    Request,
    /// Every request that runs; those that wait go on. What the KV cache held before the step stands.
    Step,
    /// Every request that runs, and the content of the KV cache. Those that wait go on if the device router can recover.
    Device,
}

/// What kind of fault, for whoever maps it to a status.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FaultKind {
    /// The logits of a row hold a NaN or an infinity.
    NonFinite,
    /// What the request itself bans or allows leaves no token to draw.
    NoToken,
    /// The request's own deadline passed.
    Deadline,
    /// The engine was told to stop before the request was done.
    Shutdown,
    /// The request's own constraint gave an error or panicked.
    Constraint,
    /// The device, or whoever drives it, failed.
    Device,
    /// A panic or a broken invariant of our own.
    Internal,
}

/// A fault as a request or the driver is told of it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what}")]
pub struct Fault {
    /// How far it reaches.
    pub scope: Scope,
    /// Its kind.
    pub kind: FaultKind,
    /// What happened, where and why, for a person.
    pub what: String,
}

impl Fault {
    /// A fault of these parts.
    pub fn new(scope: Scope, kind: FaultKind, what: impl Into<String>) -> Fault {
        Fault {
            scope,
            kind,
            what: what.into(),
        }
    }
}

/// What a panic said.
pub(crate) fn message_of(panic: &(dyn std::any::Any + Send)) -> &str {
    panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("(no message)")
}
