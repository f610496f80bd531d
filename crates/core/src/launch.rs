// SPDX-License-Identifier: MIT OR Apache-2.0
//! Launch data: which kernel runs, on which arguments.
//!
//! A *kernel family* has one argument list, declared once in `kernels/circuits/FAMILIES.toml` as [`ArgDecl`]s. A *point*
//! of it is named by a [`PointId`]. A plan group pairs points (by row range) with one list of [`Arg`]s. An argument names
//! a span by id and never carries an offset, so that a backend may lay arenas out as it likes.

use std::fmt;
use std::sync::Arc;

use crate::memory::SpanId;

/// `family/point`, e.g. `linear/q4_1`. The instruction set is no part of it: a backend picks it, the bits are equal.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PointId(Arc<str>);

impl PointId {
    /// A point of a family. Neither part may be empty or hold a slash.
    ///
    /// # Panics
    /// On a malformed part: ids are written by manifests, which are checked when they are read.
    #[must_use]
    pub fn new(family: &str, point: &str) -> PointId {
        assert!(
            !family.is_empty()
                && !point.is_empty()
                && !family.contains('/')
                && !point.contains('/'),
            "malformed point id {family:?}/{point:?}"
        );
        PointId(format!("{family}/{point}").into())
    }

    /// Parses `family/point`.
    #[must_use]
    pub fn parse(text: &str) -> Option<PointId> {
        let (family, point) = text.split_once('/')?;
        if family.is_empty() || point.is_empty() || point.contains('/') {
            return None;
        }
        Some(PointId(text.into()))
    }

    /// The kernel family.
    #[must_use]
    pub fn family(&self) -> &str {
        self.0.split_once('/').map_or("", |(f, _)| f)
    }

    /// The point within the family.
    #[must_use]
    pub fn point(&self) -> &str {
        self.0.split_once('/').map_or("", |(_, p)| p)
    }

    /// The whole id.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for PointId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What a kernel does with a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Access {
    /// Only read.
    Read,
    /// Every element that the launch is responsible for is written; none is read.
    Write,
    /// Read and written: declared in-place.
    ReadWrite,
}

/// The declaration of one argument of a kernel family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArgDecl {
    /// A span.
    Buf {
        /// The argument's name in the family's list.
        name: &'static str,
        /// How it is used.
        access: Access,
    },
    /// A constant of the launch.
    U32(&'static str),
    /// A constant of the launch.
    F32(&'static str),
    /// The step block.
    Step,
}

impl ArgDecl {
    /// The argument's name; `step` for the step block.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            ArgDecl::Buf { name, .. } | ArgDecl::U32(name) | ArgDecl::F32(name) => name,
            ArgDecl::Step => "step",
        }
    }

    /// What kind of value it takes, in words.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            ArgDecl::Buf { .. } => "a span",
            ArgDecl::U32(_) => "a u32",
            ArgDecl::F32(_) => "an f32",
            ArgDecl::Step => "the step block",
        }
    }
}

/// The value of one argument, fixed when a launch is bound.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Arg {
    /// A span of the memory plan.
    Buf {
        /// Which span.
        span: SpanId,
        /// How the launch uses it; must equal the declaration.
        access: Access,
    },
    /// A constant.
    U32(u32),
    /// A constant.
    F32(f32),
    /// The step block of the submit.
    Step,
}

impl Arg {
    /// What kind of value it is, in words.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Arg::Buf { .. } => "a span",
            Arg::U32(_) => "a u32",
            Arg::F32(_) => "an f32",
            Arg::Step => "the step block",
        }
    }
}

/// Row counts `min..=max` for which a point is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RowRange {
    /// Smallest row count.
    pub min: u32,
    /// Largest row count.
    pub max: u32,
}

impl RowRange {
    /// Every row count.
    pub const ALL: RowRange = RowRange {
        min: 0,
        max: u32::MAX,
    };

    /// Whether `rows` lies in the range.
    #[must_use]
    pub fn contains(self, rows: u32) -> bool {
        self.min <= rows && rows <= self.max
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn point_ids_split_at_their_one_slash() {
        let id = PointId::parse("linear/q4_1").unwrap();
        assert_eq!((id.family(), id.point()), ("linear", "q4_1"));
        assert_eq!(id, PointId::new("linear", "q4_1"));
        for bad in ["linear", "/q", "linear/", "a/b/c"] {
            assert_eq!(PointId::parse(bad), None, "{bad}");
        }
    }
}
