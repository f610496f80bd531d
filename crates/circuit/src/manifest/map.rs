// SPDX-License-Identifier: MIT OR Apache-2.0
//! `circuits/<family>/map.toml` and `circuits/ignore.toml`: what each config key means.

use std::collections::BTreeMap;

use metrale_core::Scalar;
use serde::{Deserialize, Deserializer};

use super::OneOrMany;
use crate::expr::Expr;

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct MapFile {
    pub(crate) hf: HfMap,
    pub(crate) gguf: Option<GgufMap>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct HfMap {
    pub(crate) model_types: Vec<String>,
    #[serde(default)]
    pub(crate) params: BTreeMap<String, Target>,
    #[serde(default)]
    pub(crate) values: BTreeMap<String, BTreeMap<String, String>>,
    #[serde(default)]
    pub(crate) require: BTreeMap<String, Require>,
    #[serde(default)]
    pub(crate) ignore: BTreeMap<String, String>,
    #[serde(default)]
    pub(crate) refuse: BTreeMap<String, String>,
    /// Values of keys that the file leaves out, where leaving out is not the same as null.
    #[serde(default)]
    pub(crate) absent: BTreeMap<String, i64>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct GgufMap {
    pub(crate) architectures: Vec<String>,
    /// A key that tells this family from another of the same architecture: there, and not 0.
    pub(crate) with: Option<String>,
    /// Defaults that hold for files of this source, in the place of the circuit's.
    #[serde(default)]
    pub(crate) defaults: BTreeMap<String, Expr>,
    #[serde(default)]
    pub(crate) params: BTreeMap<String, Target>,
    #[serde(default)]
    pub(crate) values: BTreeMap<String, BTreeMap<String, String>>,
    #[serde(default)]
    pub(crate) tensors: BTreeMap<String, TensorSwitch>,
    #[serde(default)]
    pub(crate) require: BTreeMap<String, Require>,
    #[serde(default)]
    pub(crate) ignore: BTreeMap<String, String>,
    #[serde(default)]
    pub(crate) refuse: BTreeMap<String, String>,
}

/// The params that a key sets.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub(crate) enum Target {
    Params(OneOrMany),
    Fallback(Fallback),
}

/// A key that counts only where no other key sets the param.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Fallback {
    pub(crate) param: String,
    pub(crate) fallback: bool,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Require {
    #[serde(deserialize_with = "scalars")]
    pub(crate) is: Vec<Scalar>,
    pub(crate) why: String,
}

fn scalars<'de, D: Deserializer<'de>>(d: D) -> Result<Vec<Scalar>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Value {
        Bool(bool),
        Int(i64),
        Float(f64),
        Text(String),
    }
    let values = Vec::<Value>::deserialize(d)?;
    Ok(values
        .into_iter()
        .map(|v| match v {
            Value::Bool(b) => Scalar::Bool(b),
            Value::Int(i) => Scalar::Int(i),
            Value::Float(f) => Scalar::Float(f),
            Value::Text(t) => Scalar::Str(t),
        })
        .collect())
}

/// A switch that follows from a tensor's presence.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct TensorSwitch {
    pub(crate) param: String,
    pub(crate) present: bool,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct IgnoreFile {
    #[serde(default)]
    pub(crate) hf: BTreeMap<String, String>,
    #[serde(default)]
    pub(crate) gguf: BTreeMap<String, String>,
}

/// One source's map of one family, in one shape for both sources.
#[derive(Clone, Debug)]
pub(crate) struct KeyMap {
    pub(crate) with: Option<String>,
    pub(crate) defaults: BTreeMap<String, Expr>,
    pub(crate) params: BTreeMap<String, Target>,
    pub(crate) values: BTreeMap<String, BTreeMap<String, String>>,
    pub(crate) tensors: BTreeMap<String, TensorSwitch>,
    pub(crate) require: BTreeMap<String, Require>,
    pub(crate) ignore: BTreeMap<String, String>,
    pub(crate) refuse: BTreeMap<String, String>,
    pub(crate) absent: BTreeMap<String, Scalar>,
}

impl From<HfMap> for KeyMap {
    fn from(m: HfMap) -> KeyMap {
        KeyMap {
            with: None,
            defaults: BTreeMap::new(),
            params: m.params,
            values: m.values,
            tensors: BTreeMap::new(),
            require: m.require,
            ignore: m.ignore,
            refuse: m.refuse,
            absent: m
                .absent
                .into_iter()
                .map(|(key, v)| (key, Scalar::Int(v)))
                .collect(),
        }
    }
}

impl From<GgufMap> for KeyMap {
    fn from(m: GgufMap) -> KeyMap {
        KeyMap {
            with: m.with,
            defaults: m.defaults,
            params: m.params,
            values: m.values,
            tensors: m.tensors,
            require: m.require,
            ignore: m.ignore,
            refuse: m.refuse,
            absent: BTreeMap::new(),
        }
    }
}

impl KeyMap {
    /// Puts each architecture's name in the place of `{arch}` in the keys.
    pub(crate) fn of_architectures(self, names: &[String]) -> KeyMap {
        KeyMap {
            with: self.with,
            defaults: self.defaults,
            params: spelled(self.params, names),
            values: self.values,
            tensors: self.tensors,
            require: spelled(self.require, names),
            ignore: spelled(self.ignore, names),
            refuse: spelled(self.refuse, names),
            absent: self.absent,
        }
    }
}

fn spelled<T: Clone>(table: BTreeMap<String, T>, names: &[String]) -> BTreeMap<String, T> {
    let mut out = BTreeMap::new();
    for (key, value) in table {
        for name in names {
            out.insert(key.replace("{arch}", name), value.clone());
        }
    }
    out
}

impl Target {
    pub(crate) fn params(&self) -> &[String] {
        match self {
            Target::Params(p) => p.as_slice(),
            Target::Fallback(f) => std::slice::from_ref(&f.param),
        }
    }

    pub(crate) fn is_fallback(&self) -> bool {
        matches!(self, Target::Fallback(f) if f.fallback)
    }
}
