// SPDX-License-Identifier: MIT OR Apache-2.0
//! `circuits/<family>/circuit.toml`: one model family's circuit.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::OneOrMany;
use crate::expr::Expr;

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct CircuitFile {
    pub(crate) family: String,
    /// The param that counts the layers.
    pub(crate) layers: String,
    /// Edges that live from one layer to the next.
    pub(crate) carry: Vec<String>,
    /// Edges that the host reads back.
    pub(crate) outputs: Vec<String>,
    pub(crate) params: BTreeMap<String, ParamDecl>,
    /// Params with a value for each layer.
    #[serde(default)]
    pub(crate) layer_params: BTreeMap<String, ParamDecl>,
    #[serde(default)]
    pub(crate) checks: BTreeMap<String, Check>,
    #[serde(default)]
    pub(crate) constants: BTreeMap<String, ConstantFile>,
    #[serde(default)]
    pub(crate) state: BTreeMap<String, StateFile>,
    pub(crate) weights: BTreeMap<String, WeightFile>,
    pub(crate) prelude: Vec<OpLine>,
    pub(crate) layer: Vec<LayerLine>,
    /// Runs of ops that a layer takes under a condition.
    #[serde(default)]
    pub(crate) blocks: BTreeMap<String, Vec<OpLine>>,
    #[serde(default)]
    pub(crate) postlude: Vec<OpLine>,
    pub(crate) sample: Vec<OpLine>,
}

impl CircuitFile {
    /// The declaration of a param of the model or of its layers.
    pub(crate) fn param(&self, name: &str) -> Option<&ParamDecl> {
        self.params
            .get(name)
            .or_else(|| self.layer_params.get(name))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum ParamType {
    Count,
    Float,
    Switch,
    Text,
}

impl ParamType {
    pub(crate) fn name(self) -> &'static str {
        match self {
            ParamType::Count => "a whole number",
            ParamType::Float => "a number",
            ParamType::Switch => "true or false",
            ParamType::Text => "text",
        }
    }
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ParamDecl {
    pub(crate) is: ParamType,
    pub(crate) doc: String,
    /// Least value; 1 for counts unless stated.
    pub(crate) min: Option<f64>,
    pub(crate) max: Option<f64>,
    pub(crate) one_of: Option<Vec<String>>,
    pub(crate) default: Option<Expr>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Check {
    pub(crate) that: Expr,
    /// The param to blame.
    pub(crate) param: String,
    pub(crate) why: String,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ConstantFile {
    /// A function of the `constants` module.
    pub(crate) make: String,
    /// A weight marked `constant` whose values divide it, if the checkpoint has it.
    pub(crate) divide_by: Option<String>,
    /// What the maker reads instead of the params of these names.
    #[serde(default)]
    pub(crate) params: BTreeMap<String, Expr>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct StateFile {
    /// Columns stored per token, or values per sequence.
    pub(crate) cols: Expr,
    /// Heads that the columns of a token consist of; 1 unless stated. Formats with scales have one for each.
    pub(crate) heads: Option<Expr>,
    #[serde(default)]
    pub(crate) per: StatePer,
    pub(crate) when: Option<Expr>,
}

/// What a state is kept for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum StatePer {
    /// Every token, in the paged pool.
    #[default]
    Token,
    /// Every sequence slot, in f32.
    Slot,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Per {
    #[default]
    Model,
    Layer,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct WeightFile {
    #[serde(default)]
    pub(crate) per: Per,
    pub(crate) shape: Vec<Expr>,
    pub(crate) when: Option<Expr>,
    /// Under `alias_when` it is another weight's tensor.
    pub(crate) alias: Option<String>,
    pub(crate) alias_when: Option<Expr>,
    /// Its values enter constants; no kernel reads it.
    #[serde(default)]
    pub(crate) constant: bool,
}

/// A line of a layer: an op, or a block of them.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub(crate) enum LayerLine {
    Block(BlockLine),
    Op(OpLine),
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct BlockLine {
    pub(crate) block: String,
    pub(crate) when: Option<Expr>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct OpLine {
    pub(crate) op: String,
    pub(crate) when: Option<Expr>,
    #[serde(default)]
    pub(crate) bind: BTreeMap<String, OneOrMany>,
    #[serde(default)]
    pub(crate) attrs: BTreeMap<String, Expr>,
}
