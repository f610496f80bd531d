// SPDX-License-Identifier: MIT OR Apache-2.0
//! `circuits/OPS.toml`: op signatures. The file's head explains the fields.

use std::collections::BTreeMap;

use metrale_core::Elem;
use serde::Deserialize;

use crate::expr::Expr;

pub(crate) type Ops = BTreeMap<String, OpSig>;

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct OpSig {
    pub(crate) doc: String,
    #[serde(default)]
    pub(crate) edges: Vec<EdgeSig>,
    #[serde(default)]
    pub(crate) weights: Vec<WeightSig>,
    #[serde(default)]
    pub(crate) state: Vec<StateSig>,
    #[serde(default)]
    pub(crate) consts: Vec<String>,
    #[serde(default)]
    pub(crate) attrs: Vec<AttrSig>,
    pub(crate) needs: Option<String>,
    pub(crate) converts: Option<Converts>,
}

/// How an op uses an operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Use {
    /// Only read.
    In,
    /// Made by the op.
    Out,
    /// Rewritten in place.
    InOut,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct EdgeSig {
    pub(crate) name: String,
    #[serde(rename = "use")]
    pub(crate) used: Use,
    pub(crate) cols: Option<Expr>,
    /// `rows`, `logits_rows` or an input edge; required for an output.
    pub(crate) rows: Option<String>,
    #[serde(default = "super::f32_elem", deserialize_with = "super::elem")]
    pub(crate) elem: Elem,
    #[serde(default)]
    pub(crate) optional: bool,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct WeightSig {
    pub(crate) name: String,
    pub(crate) rank: usize,
    pub(crate) cols: Option<Expr>,
    #[serde(default)]
    pub(crate) many: bool,
    #[serde(default)]
    pub(crate) optional: bool,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct StateSig {
    pub(crate) name: String,
    #[serde(rename = "use")]
    pub(crate) used: Use,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum AttrType {
    U32,
    F32,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct AttrSig {
    pub(crate) name: String,
    pub(crate) is: AttrType,
    pub(crate) value: Option<Expr>,
    pub(crate) default: Option<f64>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Converts {
    #[serde(deserialize_with = "super::elem")]
    pub(crate) from: Elem,
    #[serde(deserialize_with = "super::elem")]
    pub(crate) to: Elem,
}
