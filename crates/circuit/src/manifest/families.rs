// SPDX-License-Identifier: MIT OR Apache-2.0
//! `circuits/FAMILIES.toml`: kernel families. The file's head explains the fields.

use std::collections::BTreeMap;

use metrale_core::Access;
use serde::{Deserialize, Deserializer};

use crate::expr::Expr;

pub(crate) type Families = BTreeMap<String, FamilyFile>;

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct FamilyFile {
    pub(crate) args: Vec<ArgSig>,
    pub(crate) specs: BTreeMap<String, String>,
    /// Buffers whose traffic the cost model leaves out.
    #[serde(default)]
    pub(crate) free: Vec<String>,
    #[serde(default)]
    pub(crate) gathered: BTreeMap<String, Expr>,
    #[serde(default)]
    pub(crate) context: Vec<String>,
    /// Columns that a launch touches of a wider buffer.
    #[serde(default)]
    pub(crate) columns: BTreeMap<String, Expr>,
    pub(crate) flops: Option<Expr>,
    pub(crate) flops_context: Option<Expr>,
}

/// One argument of a kernel family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ArgSig {
    /// A buffer.
    Buf {
        /// Its name.
        name: String,
        /// Its use.
        access: Access,
    },
    /// A constant.
    U32(String),
    /// A constant.
    F32(String),
    /// The step block.
    Step,
}

impl ArgSig {
    /// The argument's name; `step` for the step block.
    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            ArgSig::Buf { name, .. } | ArgSig::U32(name) | ArgSig::F32(name) => name,
            ArgSig::Step => "step",
        }
    }

    fn parse(text: &str) -> Option<ArgSig> {
        let mut words = text.split_whitespace();
        let arg = match (words.next()?, words.next()) {
            ("step", None) => ArgSig::Step,
            ("u32", Some(name)) => ArgSig::U32(name.to_owned()),
            ("f32", Some(name)) => ArgSig::F32(name.to_owned()),
            (name, Some("r")) => ArgSig::Buf {
                name: name.to_owned(),
                access: Access::Read,
            },
            (name, Some("w")) => ArgSig::Buf {
                name: name.to_owned(),
                access: Access::Write,
            },
            (name, Some("rw")) => ArgSig::Buf {
                name: name.to_owned(),
                access: Access::ReadWrite,
            },
            _ => return None,
        };
        words.next().is_none().then_some(arg)
    }
}

impl<'de> Deserialize<'de> for ArgSig {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<ArgSig, D::Error> {
        let text = String::deserialize(d)?;
        ArgSig::parse(&text)
            .ok_or_else(|| serde::de::Error::custom(format!("`{text}` is no argument")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_short_texts() {
        assert_eq!(
            ArgSig::parse("res rw"),
            Some(ArgSig::Buf {
                name: "res".into(),
                access: Access::ReadWrite
            })
        );
        assert_eq!(ArgSig::parse("u32 cols"), Some(ArgSig::U32("cols".into())));
        assert_eq!(ArgSig::parse("step"), Some(ArgSig::Step));
        for bad in ["", "x", "x q", "step r w", "u32"] {
            assert_eq!(ArgSig::parse(bad), None, "{bad}");
        }
    }
}
