// SPDX-License-Identifier: MIT OR Apache-2.0
//! How far a fault reaches: the answer to "who else has to fail with this one".

/// The reach of a fault, from the narrowest to the widest. A wider scope includes every narrower one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FaultScope {
    /// One logits row (a NaN in it): its sequence fails, the step's other rows stand.
    Row,
    /// One request, all of its choices.
    Request,
    /// Everything that took part in the step.
    Step,
    /// The device context: all in flight fail, and no step can run before the device is opened again.
    Device,
}

impl std::fmt::Display for FaultScope {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            FaultScope::Row => "row",
            FaultScope::Request => "request",
            FaultScope::Step => "step",
            FaultScope::Device => "device",
        })
    }
}
