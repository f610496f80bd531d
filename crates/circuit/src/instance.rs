// SPDX-License-Identifier: MIT OR Apache-2.0
//! A circuit instance: one model's mathematics, unrolled over its layers.
//!
//! Ops stand in execution order. An edge is a value of the step, `[rows, cols]`; an op that works in place rewrites its
//! edge. Formats of weights and of the KV pool are no part of an instance: a plan adds them.

use std::fmt;

use metrale_core::{Elem, Unit};

use crate::config_map::Params;
use crate::expr::Value;
pub use crate::manifest::ops::Use;

/// The kind of file the configuration came from; it selects the config map.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Source {
    /// `config.json` of Hugging Face Transformers.
    Hf,
    /// GGUF metadata.
    Gguf,
}

impl Source {
    /// The key that names the family.
    #[must_use]
    pub fn family_key(self) -> &'static str {
        match self {
            Source::Hf => "model_type",
            Source::Gguf => "general.architecture",
        }
    }
}

/// Name of a weight: the circuit's own, with the layer it belongs to.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WeightKey {
    /// The circuit's name (`q_proj`).
    pub name: String,
    /// Its layer, from 0; `None` for weights of the whole model.
    pub layer: Option<u32>,
}

impl fmt::Display for WeightKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.layer {
            Some(layer) => write!(f, "L{layer}.{}", self.name),
            None => f.write_str(&self.name),
        }
    }
}

/// A weight that the instance needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WeightDecl {
    /// Its name.
    pub key: WeightKey,
    /// `[rows, cols]` of a matrix, `[n]` of a vector, `[experts, rows, cols]` of a stack of matrices, in values.
    pub shape: Vec<u64>,
    /// The weight whose tensor it is (a tied head): nothing of its own is read.
    pub alias_of: Option<WeightKey>,
    /// Its values go to [`crate::PlanRequest::values`] and enter a constant; it is not packed.
    pub constant: bool,
}

impl WeightDecl {
    /// Number of values.
    #[must_use]
    pub fn elems(&self) -> u64 {
        self.shape.iter().product()
    }

    /// Values per row; 1 for vectors.
    #[must_use]
    pub fn cols(&self) -> u64 {
        match self.shape[..] {
            [_] | [] => 1,
            [.., cols] => cols,
        }
    }

    /// Rows, those of all stacked matrices together. A vector has one value per row.
    #[must_use]
    pub fn rows(&self) -> u64 {
        match self.shape[..] {
            [rows] | [rows, _] => rows,
            _ => self.shape.iter().rev().skip(1).product(),
        }
    }

    /// Rows of one matrix: what an op's output has columns.
    #[must_use]
    pub fn outputs(&self) -> u64 {
        match self.shape[..] {
            [_, rows, _] => rows,
            _ => self.rows(),
        }
    }
}

/// Index into [`Instance::edges`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EdgeId(pub u32);

/// Index into [`Instance::ops`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OpId(pub u32);

/// A value of the step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Edge {
    /// Its name (`L3.qkv`): also the name of its span.
    pub name: String,
    /// Format of its values.
    pub elem: Elem,
    /// [`Unit::Row`] or [`Unit::LogitsRow`].
    pub rows: Unit,
    /// Values per row.
    pub cols: u64,
}

/// What outlives a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// The block tables.
    Tables,
    /// A KV stream of a layer, stored in the layer's KV format.
    Kv {
        /// `k` or `v`, as the circuit calls it.
        stream: String,
        /// The layer.
        layer: u32,
        /// Values per token.
        cols: u64,
        /// Heads that they are of: a whole part of `cols` each.
        heads: u64,
    },
    /// A recurrent state of a layer: one row of f32 per sequence slot. A sequence's first row (position 0) starts from
    /// zeros, whatever the slot held: the kernels see to that, nobody clears it.
    Slot {
        /// As the circuit calls it (`conv`).
        name: String,
        /// The layer.
        layer: u32,
        /// Values per slot.
        elems: u64,
    },
}

impl State {
    /// The name of its span.
    #[must_use]
    pub fn name(&self) -> String {
        match self {
            State::Tables => "tables".to_owned(),
            State::Kv { stream, layer, .. } => format!("L{layer}.{stream}"),
            State::Slot { name, layer, .. } => format!("L{layer}.{name}"),
        }
    }
}

/// A constant that the plan computes from the params.
#[derive(Clone, Debug, PartialEq)]
pub struct ConstantDecl {
    /// Its name.
    pub name: String,
    /// The maker, see `constants`.
    pub make: String,
    /// A weight whose values divide it.
    pub divide_by: Option<WeightKey>,
    /// What the maker reads instead of the instance's params of these names.
    pub params: Params,
}

/// The half of a step that an op belongs to; each is a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Phase {
    /// All rows, up to the last layer.
    Forward,
    /// The rows whose logits are wanted: head and sampler.
    Sample,
}

impl Phase {
    /// The name in printed plans.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Phase::Forward => "forward",
            Phase::Sample => "sample",
        }
    }
}

/// An edge bound to an operand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operand {
    /// The operand's name in the op's signature.
    pub name: String,
    /// How the op uses it.
    pub used: Use,
    /// The edge.
    pub edge: EdgeId,
}

/// The value of an attribute.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Attr {
    /// A count.
    U32(u32),
    /// A number, rounded once from f64.
    F32(f32),
}

impl fmt::Display for Attr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Attr::U32(v) => write!(f, "{v}"),
            Attr::F32(v) => write!(f, "{v:?}"),
        }
    }
}

/// One operation.
#[derive(Clone, Debug, PartialEq)]
pub struct Op {
    /// The operation's kind (`linear`).
    pub op: String,
    /// A unique name (`L3.linear.qkv`).
    pub name: String,
    /// Its half of the step.
    pub phase: Phase,
    /// Its layer.
    pub layer: Option<u32>,
    /// Bound edges, in the order of the signature; an unbound optional one is absent.
    pub edges: Vec<Operand>,
    /// Weights by operand: indices into [`Instance::weights`].
    pub weights: Vec<(String, Vec<u32>)>,
    /// State by operand: indices into [`Instance::states`].
    pub states: Vec<(String, u32)>,
    /// Constants by operand: indices into [`Instance::constants`].
    pub consts: Vec<(String, u32)>,
    /// Attributes by name.
    pub attrs: Vec<(String, Attr)>,
}

impl Op {
    /// The edge bound to an operand.
    #[must_use]
    pub fn edge(&self, operand: &str) -> Option<EdgeId> {
        self.edges
            .iter()
            .find(|o| o.name == operand)
            .map(|o| o.edge)
    }

    /// The weights bound to an operand.
    #[must_use]
    pub fn weights(&self, operand: &str) -> &[u32] {
        self.weights
            .iter()
            .find(|(n, _)| n == operand)
            .map_or(&[], |(_, w)| w)
    }

    /// An attribute.
    #[must_use]
    pub fn attr(&self, name: &str) -> Option<Attr> {
        self.attrs.iter().find(|(n, _)| n == name).map(|(_, a)| *a)
    }
}

/// One model's mathematics. Made by [`crate::CircuitLibrary::instantiate`].
#[derive(Clone, Debug, PartialEq)]
pub struct Instance {
    pub(crate) family: String,
    pub(crate) source: Source,
    pub(crate) params: Params,
    pub(crate) layers: u32,
    pub(crate) ops: Vec<Op>,
    pub(crate) edges: Vec<Edge>,
    pub(crate) weights: Vec<WeightDecl>,
    pub(crate) states: Vec<State>,
    pub(crate) constants: Vec<ConstantDecl>,
    /// Edges that the host reads back, by the circuit's name.
    pub(crate) outputs: Vec<(String, EdgeId)>,
    pub(crate) accepted: Vec<String>,
}

impl Instance {
    /// The model family.
    #[must_use]
    pub fn family(&self) -> &str {
        &self.family
    }

    /// Where the configuration came from.
    #[must_use]
    pub fn source(&self) -> Source {
        self.source
    }

    /// Every param, by name.
    #[must_use]
    pub fn params(&self) -> &Params {
        &self.params
    }

    /// A param that is a count (`head_dim`).
    #[must_use]
    pub fn count(&self, name: &str) -> Option<u64> {
        match self.params.get(name)? {
            Value::Count(c) => Some(*c),
            _ => None,
        }
    }

    /// Decoder layers.
    #[must_use]
    pub fn layers(&self) -> u32 {
        self.layers
    }

    /// Rows of the embedding; token ids are below it.
    #[must_use]
    pub fn vocab(&self) -> u64 {
        self.count("vocab").unwrap_or(0)
    }

    /// The longest sequence the model was trained for, in tokens.
    #[must_use]
    pub fn context(&self) -> u64 {
        self.count("context").unwrap_or(0)
    }

    /// All operations, in execution order.
    #[must_use]
    pub fn ops(&self) -> &[Op] {
        &self.ops
    }

    /// All edges.
    #[must_use]
    pub fn edges(&self) -> &[Edge] {
        &self.edges
    }

    /// All weights that a checkpoint must have.
    #[must_use]
    pub fn weights(&self) -> &[WeightDecl] {
        &self.weights
    }

    /// State that outlives steps.
    #[must_use]
    pub fn states(&self) -> &[State] {
        &self.states
    }

    /// Constants computed from the params.
    #[must_use]
    pub fn constants(&self) -> &[ConstantDecl] {
        &self.constants
    }

    /// Number of weight values, tied ones once.
    #[must_use]
    pub fn weight_elems(&self) -> u64 {
        self.weights
            .iter()
            .filter(|w| w.alias_of.is_none())
            .map(WeightDecl::elems)
            .sum()
    }

    /// Keys that were accepted by the user against the map's advice.
    #[must_use]
    pub fn accepted(&self) -> &[String] {
        &self.accepted
    }

    /// The values of the params in a layer: a param with a value per layer is that of `layer`.
    #[must_use]
    pub fn param(&self, name: &str, layer: Option<u32>) -> Option<Value> {
        match (self.params.get(name)?, layer) {
            (Value::List(items), Some(layer)) => items.get(layer as usize).cloned(),
            (value, _) => Some(value.clone()),
        }
    }

    /// Bytes of all recurrent states of one sequence.
    #[must_use]
    pub fn slot_bytes(&self) -> u64 {
        let elems = self.states.iter().map(|s| match s {
            State::Slot { elems, .. } => *elems,
            State::Tables | State::Kv { .. } => 0,
        });
        elems.map(|e| e.saturating_mul(4)).sum()
    }
}
