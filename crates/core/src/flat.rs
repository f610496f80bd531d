// SPDX-License-Identifier: MIT OR Apache-2.0
//! The flat map: a checkpoint's configuration with nesting spelled in the key (`rope_scaling.factor`).
//!
//! `config` writes it from `config.json` or from GGUF metadata; the circuit's config map reads it. Order is by key, so that
//! whatever is derived from a map (errors, digests) does not depend on the order of the file.

use std::collections::BTreeMap;
use std::fmt;

/// Keys in ascending order, nesting joined by dots.
pub type FlatMap = BTreeMap<String, Scalar>;

/// One configuration value.
#[derive(Clone, Debug, PartialEq)]
pub enum Scalar {
    /// `true` or `false`.
    Bool(bool),
    /// Any integer of the source; GGUF's u64 above `i64::MAX` does not occur in architecture keys and is refused earlier.
    Int(i64),
    /// A finite float. An integer in the source stays [`Scalar::Int`].
    Float(f64),
    /// Text.
    Str(String),
    /// A list of scalars (layer types, per-layer head counts). Lists of objects are flattened by index instead.
    List(Vec<Scalar>),
}

impl Scalar {
    /// The value as an unsigned count, if it is one. Floats with an integral value count, as JSON writers emit `4.0`.
    #[must_use]
    pub fn as_u64(&self) -> Option<u64> {
        match self {
            Scalar::Int(i) => u64::try_from(*i).ok(),
            // 2^53: every integral float below is exact.
            Scalar::Float(f) if *f >= 0.0 && f.fract() == 0.0 && *f < 9_007_199_254_740_992.0 => {
                Some(*f as u64)
            }
            _ => None,
        }
    }

    /// The value as a number.
    #[must_use]
    pub fn as_f64(&self) -> Option<f64> {
        match self {
            Scalar::Int(i) => Some(*i as f64),
            Scalar::Float(f) => Some(*f),
            _ => None,
        }
    }

    /// The value as a switch.
    #[must_use]
    pub fn as_bool(&self) -> Option<bool> {
        match self {
            Scalar::Bool(b) => Some(*b),
            _ => None,
        }
    }

    /// The value as text.
    #[must_use]
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Scalar::Str(s) => Some(s),
            _ => None,
        }
    }

    /// The name of the value's type, for error messages.
    #[must_use]
    pub fn type_name(&self) -> &'static str {
        match self {
            Scalar::Bool(_) => "bool",
            Scalar::Int(_) => "integer",
            Scalar::Float(_) => "float",
            Scalar::Str(_) => "string",
            Scalar::List(_) => "list",
        }
    }
}

impl fmt::Display for Scalar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Scalar::Bool(b) => write!(f, "{b}"),
            Scalar::Int(i) => write!(f, "{i}"),
            Scalar::Float(x) => write!(f, "{x}"),
            Scalar::Str(s) => write!(f, "{s:?}"),
            Scalar::List(items) => {
                f.write_str("[")?;
                for (i, item) in items.iter().enumerate() {
                    if i > 0 {
                        f.write_str(", ")?;
                    }
                    write!(f, "{item}")?;
                }
                f.write_str("]")
            }
        }
    }
}
