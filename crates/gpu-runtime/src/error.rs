// SPDX-License-Identifier: MIT OR Apache-2.0
//! Errors of the device seam. Each says whose fault it is: the plan's, the build's, the machine's.

use metrale_core::{ArenaKind, PointId};

/// An arena could not be taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{device} has no room for the {} arena: it needs {needed} bytes and {available} are available ({why}); a smaller \
     context, fewer sequences or a narrower KV type would fit",
    arena.name()
)]
pub struct OutOfMemory {
    /// The device.
    pub device: String,
    /// The arena that failed.
    pub arena: ArenaKind,
    /// Bytes that it needs.
    pub needed: u64,
    /// Bytes that were available, as far as known.
    pub available: u64,
    /// The allocator's reason.
    pub why: String,
}

/// A point that this backend does not have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("class {class} has no kernel {point} in this build: {remedy}")]
pub struct Unresolved {
    /// The point.
    pub point: PointId,
    /// The hardware class asked.
    pub class: String,
    /// What would help.
    pub remedy: String,
}

/// A launch that does not fit its declaration: an error of the plan, found before anything runs.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BindError {
    /// No points were given, or points of several families.
    #[error("a launch needs points of exactly one family, got {0}")]
    Points(String),
    /// Another count of arguments.
    #[error("{point} takes {wanted} arguments, got {got}")]
    Count {
        /// The point.
        point: PointId,
        /// Declared.
        wanted: usize,
        /// Given.
        got: usize,
    },
    /// An argument of another kind, access, format or size.
    #[error("{point}, argument {index} ({name}): wants {wanted}, got {got}")]
    Argument {
        /// The point.
        point: PointId,
        /// Position in the list.
        index: usize,
        /// Declared name.
        name: String,
        /// What the declaration wants.
        wanted: String,
        /// What was given.
        got: String,
    },
    /// Constants that the point cannot work with.
    #[error("{point}: {what}")]
    Constants {
        /// The point.
        point: PointId,
        /// What is wrong, with the values.
        what: String,
    },
    /// Arenas that are not reserved.
    #[error("the arenas were released, or belong to another backend")]
    Arenas,
}

/// The device, or a call to it, failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what}")]
pub struct DeviceFault {
    /// What failed, where and why.
    pub what: String,
    /// Whether the device context is lost: every later call fails too.
    pub sticky: bool,
}

impl DeviceFault {
    /// A fault after which the device is fit for more work.
    #[must_use]
    pub fn rejected(what: impl Into<String>) -> DeviceFault {
        DeviceFault {
            what: what.into(),
            sticky: false,
        }
    }

    /// A fault that loses the device context.
    #[must_use]
    pub fn lost(what: impl Into<String>) -> DeviceFault {
        DeviceFault {
            what: what.into(),
            sticky: true,
        }
    }
}
