// SPDX-License-Identifier: MIT OR Apache-2.0
//! The config map at work: a checkpoint's flat keys become the params of a circuit.
//!
//! Known keys are judged first (so that `rope_type = "yarn"` is refused by its name and not by one of its companions),
//! then unknown ones are refused, then defaults are filled in and the circuit's checks run.

use std::collections::{BTreeMap, BTreeSet};

use metrale_core::{FlatMap, Scalar};

use crate::expr::{Expr, ExprError, Value};
use crate::manifest::circuit::{CircuitFile, ParamDecl, ParamType};
use crate::manifest::map::KeyMap;
use crate::refusal::{Refusal, near};

/// The values of a circuit's params, by name.
pub type Params = BTreeMap<String, Value>;

/// Where a value came from.
struct Origin {
    key: String,
    value: Value,
    fallback: bool,
}

pub(crate) struct MapInput<'a> {
    pub(crate) circuit: &'a CircuitFile,
    pub(crate) map: &'a KeyMap,
    pub(crate) shared: &'a BTreeMap<String, String>,
    pub(crate) flat: &'a FlatMap,
    pub(crate) tensors: Option<&'a BTreeSet<String>>,
    pub(crate) accept: &'a [String],
}

impl MapInput<'_> {
    pub(crate) fn params(&self) -> Result<Params, Refusal> {
        let mut set: BTreeMap<String, Origin> = BTreeMap::new();
        for (key, value) in self.flat {
            self.known(key, value, &mut set)?;
        }
        for (name, o) in &set {
            in_range(&o.key, &o.value, self.decl(name)?)?;
        }
        for (key, value) in self.flat {
            self.unknown(key, value)?;
        }
        self.tensor_switches(&mut set);
        let mut params = self.defaults(&set)?;
        self.layer_params(&set, &mut params)?;
        for (name, value) in params.iter().filter(|(name, _)| !set.contains_key(*name)) {
            in_range(&self.keys_of(name)[0], value, self.decl(name)?)?;
        }
        self.checks(&params, &set)?;
        Ok(params)
    }

    fn accepted(&self, key: &str) -> bool {
        self.accept.iter().any(|a| a == key)
    }

    fn known(
        &self,
        key: &str,
        value: &Scalar,
        set: &mut BTreeMap<String, Origin>,
    ) -> Result<(), Refusal> {
        if let Some(target) = self.map.params.get(key) {
            for param in target.params() {
                let value = self.typed(key, value, param)?;
                let new = Origin {
                    key: key.to_owned(),
                    value,
                    fallback: target.is_fallback(),
                };
                merge(set, param, new)?;
            }
        } else if self.accepted(key) {
            return Ok(());
        } else if let Some(require) = self.map.require.get(key) {
            let items = match value {
                Scalar::List(items) => items.as_slice(),
                one => std::slice::from_ref(one),
            };
            let bad = items
                .iter()
                .find(|i| !require.is.iter().any(|w| same(i, w)));
            if let Some(bad) = bad {
                return Err(Refusal::WrongValue {
                    key: key.to_owned(),
                    value: show(bad),
                    allowed: require.is.iter().map(ToString::to_string).collect(),
                    why: require.why.clone(),
                });
            }
        } else if self.map.ignore.contains_key(key) {
            // A key that is ignored by its own name is not one of a refused kind.
            return Ok(());
        } else if let Some(why) = lookup(&self.map.refuse, key) {
            return Err(Refusal::Unsupported {
                key: key.to_owned(),
                value: show(value),
                why: why.clone(),
            });
        }
        Ok(())
    }

    fn unknown(&self, key: &str, value: &Scalar) -> Result<(), Refusal> {
        let known = self.map.params.contains_key(key)
            || self.map.require.contains_key(key)
            || lookup(&self.map.ignore, key).is_some()
            || lookup(self.shared, key).is_some()
            || self.accepted(key);
        if known {
            return Ok(());
        }
        let names = self
            .map
            .params
            .keys()
            .chain(self.map.require.keys())
            .chain(self.map.ignore.keys())
            .chain(self.shared.keys());
        Err(Refusal::UnknownKey {
            key: key.to_owned(),
            value: show(value),
            family: self.circuit.family.clone(),
            near: near(key, names.map(String::as_str)),
        })
    }

    /// The library checked that every map's params exist.
    fn decl(&self, param: &str) -> Result<&ParamDecl, Refusal> {
        self.circuit.param(param).ok_or_else(|| Refusal::Circuit {
            family: self.circuit.family.clone(),
            op: "params".into(),
            what: format!("there is no param `{param}`"),
        })
    }

    fn typed(&self, key: &str, value: &Scalar, param: &str) -> Result<Value, Refusal> {
        if let (Scalar::List(items), true) = (value, self.circuit.layer_params.contains_key(param))
        {
            let items = items.iter().map(|i| self.typed_one(key, i, param));
            return Ok(Value::List(items.collect::<Result<_, _>>()?));
        }
        // A list with an entry per layer says how many layers there are.
        if let (Scalar::List(items), true) = (value, self.circuit.layers == param) {
            return Ok(Value::Count(items.len() as u64));
        }
        self.typed_one(key, value, param)
    }

    fn typed_one(&self, key: &str, value: &Scalar, param: &str) -> Result<Value, Refusal> {
        let decl = self.decl(param)?;
        let typed = match decl.is {
            ParamType::Count => value.as_u64().map(Value::Count),
            ParamType::Float => value.as_f64().map(Value::Float),
            ParamType::Switch => value.as_bool().map(Value::Bool),
            ParamType::Text => value.as_str().map(|text| {
                let renamed = self.map.values.get(param).and_then(|v| v.get(text));
                Value::Text(renamed.cloned().unwrap_or_else(|| text.to_owned()))
            }),
        };
        typed.ok_or_else(|| Refusal::WrongType {
            key: key.to_owned(),
            value: show(value),
            wanted: decl.is.name(),
            doc: decl.doc.clone(),
        })
    }

    fn tensor_switches(&self, set: &mut BTreeMap<String, Origin>) {
        let Some(tensors) = self.tensors else { return };
        for (tensor, switch) in &self.map.tensors {
            let value = Value::Bool(tensors.contains(tensor) == switch.present);
            set.entry(switch.param.clone()).or_insert(Origin {
                key: tensor.clone(),
                value,
                fallback: false,
            });
        }
    }

    /// Values that were set, and defaults computed from them; a default may lean on another.
    fn defaults(&self, set: &BTreeMap<String, Origin>) -> Result<Params, Refusal> {
        let mut params: Params = set
            .iter()
            .map(|(k, o)| (k.clone(), o.value.clone()))
            .collect();
        loop {
            let before = params.len();
            for (name, decl) in &self.circuit.params {
                if params.contains_key(name) {
                    continue;
                }
                let Some(default) = self.default_of(name, decl) else {
                    return Err(self.missing(name, decl));
                };
                match default.eval(&|n| params.get(n).cloned()) {
                    Ok(value) => {
                        params.insert(name.clone(), value);
                    }
                    Err(ExprError::Unknown(_)) => {}
                    Err(e) => return Err(self.no_default(name, default, &e, &params)),
                }
            }
            if self.circuit.params.keys().all(|p| params.contains_key(p)) {
                return Ok(params);
            }
            if params.len() == before {
                // Defaults lean on each other: one that a key sets must be given.
                let set_by_a_key = |name: &str| self.keys_of(name) != [name];
                let open =
                    self.circuit.params.iter().find(|(name, _)| {
                        !params.contains_key(*name) && set_by_a_key(name.as_str())
                    });
                return Err(open.map_or_else(|| self.circular(), |(n, d)| self.missing(n, d)));
            }
        }
    }

    /// The default of a param: that of the checkpoint's source, or the circuit's.
    fn default_of<'a>(&'a self, name: &str, decl: &'a ParamDecl) -> Option<&'a Expr> {
        self.map.defaults.get(name).or(decl.default.as_ref())
    }

    fn circular(&self) -> Refusal {
        Refusal::Circuit {
            family: self.circuit.family.clone(),
            op: "params".into(),
            what: "defaults lean on each other".into(),
        }
    }

    /// Gives every layer param its list: as the checkpoint says, one value for all layers, or the default of each layer.
    fn layer_params(
        &self,
        set: &BTreeMap<String, Origin>,
        params: &mut Params,
    ) -> Result<(), Refusal> {
        let layers = match params.get(&self.circuit.layers) {
            Some(Value::Count(layers)) => *layers,
            _ => return Err(self.circular()),
        };
        for (name, origin) in set {
            if !self.circuit.layer_params.contains_key(name) {
                continue;
            }
            let list = match &origin.value {
                Value::List(items) if items.len() as u64 != layers => {
                    return Err(Refusal::Inconsistent {
                        key: origin.key.clone(),
                        values: format!(
                            "{} values, {} = {layers}",
                            items.len(),
                            self.circuit.layers
                        ),
                        why: "the list must have one value per layer".into(),
                    });
                }
                Value::List(items) => items.clone(),
                one => vec![one.clone(); layers as usize],
            };
            params.insert(name.clone(), Value::List(list));
        }
        let mut open: Vec<_> = self.circuit.layer_params.iter().collect();
        open.retain(|(name, _)| !params.contains_key(*name));
        while !open.is_empty() {
            let before = open.len();
            let mut left = Vec::new();
            for (name, decl) in open {
                let default = self.default_of(name, decl);
                let default = default.ok_or_else(|| self.missing(name, decl))?;
                let values = (0..layers).map(|layer| default.eval(&|n| in_layer(params, n, layer)));
                match values.collect::<Result<Vec<_>, _>>() {
                    Ok(list) => {
                        params.insert(name.clone(), Value::List(list));
                    }
                    Err(ExprError::Unknown(_)) => left.push((name, decl)),
                    Err(e) => return Err(self.no_default(name, default, &e, params)),
                }
            }
            if left.len() == before {
                return Err(self.circular());
            }
            open = left;
        }
        Ok(())
    }

    fn keys_of(&self, param: &str) -> Vec<String> {
        let targets = self.map.params.iter();
        let keys: Vec<_> = targets
            .filter(|(_, t)| t.params().iter().any(|p| p == param))
            .map(|(k, _)| k.clone())
            .collect();
        if keys.is_empty() {
            vec![param.to_owned()]
        } else {
            keys
        }
    }

    fn missing(&self, name: &str, decl: &ParamDecl) -> Refusal {
        Refusal::Missing {
            keys: self.keys_of(name),
            doc: decl.doc.clone(),
        }
    }

    fn no_default(&self, name: &str, default: &Expr, e: &ExprError, params: &Params) -> Refusal {
        Refusal::Inconsistent {
            key: self.keys_of(name).swap_remove(0),
            values: values_in(default, params),
            why: format!("it is not given, and its default {e}"),
        }
    }

    fn is_per_layer(&self, expr: &Expr) -> bool {
        let names = words(expr);
        names
            .iter()
            .any(|n| self.circuit.layer_params.contains_key(*n))
    }

    fn checks(&self, params: &Params, set: &BTreeMap<String, Origin>) -> Result<(), Refusal> {
        for check in self.circuit.checks.values() {
            // A check that names a layer param holds in every layer.
            let layers = match params.get(&self.circuit.layers) {
                Some(Value::Count(layers)) if self.is_per_layer(&check.that) => *layers,
                _ => 1,
            };
            let mut held = (0..layers)
                .map(|layer| check.that.truth(&|n| in_layer(params, n, layer)) == Ok(true));
            if !held.all(|held| held) {
                let key = set.get(&check.param).map(|o| o.key.clone());
                return Err(Refusal::Inconsistent {
                    key: key.unwrap_or_else(|| self.keys_of(&check.param).swap_remove(0)),
                    values: values_in(&check.that, params),
                    why: format!("{} must hold: {}", check.that.text(), check.why),
                });
            }
        }
        Ok(())
    }
}

/// A name's value in a layer.
fn in_layer(params: &Params, name: &str, layer: u64) -> Option<Value> {
    match (name, params.get(name)) {
        ("layer", _) => Some(Value::Count(layer)),
        (_, Some(Value::List(items))) => items.get(usize::try_from(layer).ok()?).cloned(),
        (_, value) => value.cloned(),
    }
}

fn merge(set: &mut BTreeMap<String, Origin>, param: &str, new: Origin) -> Result<(), Refusal> {
    match set.get(param) {
        Some(old) if new.fallback && !old.fallback => Ok(()),
        Some(old) if old.fallback == new.fallback && old.value != new.value => {
            Err(Refusal::Conflict {
                first: old.key.clone(),
                first_value: old.value.to_string(),
                second: new.key,
                second_value: new.value.to_string(),
            })
        }
        _ => {
            set.insert(param.to_owned(), new);
            Ok(())
        }
    }
}

fn in_range(key: &str, value: &Value, decl: &ParamDecl) -> Result<(), Refusal> {
    let number = match value {
        Value::Count(c) => *c as f64,
        Value::Float(f) => *f,
        Value::Text(t) => {
            return match &decl.one_of {
                Some(list) if !list.contains(t) => Err(Refusal::WrongValue {
                    key: key.to_owned(),
                    value: shorten(t),
                    allowed: list.clone(),
                    why: format!("{}: this kind is not built yet", decl.doc),
                }),
                _ => Ok(()),
            };
        }
        Value::Bool(_) => return Ok(()),
        Value::List(items) => return items.iter().try_for_each(|i| in_range(key, i, decl)),
    };
    let least = if decl.is == ParamType::Count {
        1.0
    } else {
        f64::MIN
    };
    let (min, max) = (decl.min.unwrap_or(least), decl.max.unwrap_or(f64::MAX));
    // Written so that NaN fails.
    if number >= min && number <= max {
        return Ok(());
    }
    Err(Refusal::OutOfRange {
        key: key.to_owned(),
        value: value.to_string(),
        min: min.to_string(),
        max: max.to_string(),
        doc: decl.doc.clone(),
    })
}

/// The params that an expression's text names, with their values.
fn values_in(expr: &Expr, params: &Params) -> String {
    let mut seen = BTreeSet::new();
    let words = words(expr).into_iter().filter(|w| seen.insert(*w));
    let values = words.filter_map(|w| {
        params
            .get(w)
            .map(|v| format!("{w} = {}", shorten(&v.to_string())))
    });
    values.collect::<Vec<_>>().join(", ")
}

/// The words of an expression's text, names among them.
fn words(expr: &Expr) -> Vec<&str> {
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    expr.text().split(|c: char| !is_name(c)).collect()
}

/// An entry for `key`, exact or by a trailing `*`.
fn lookup<'a>(table: &'a BTreeMap<String, String>, key: &str) -> Option<&'a String> {
    table.get(key).or_else(|| {
        let mut patterns = table.iter();
        patterns
            .find(|(p, _)| {
                p.strip_suffix('*')
                    .is_some_and(|prefix| key.starts_with(prefix))
            })
            .map(|(_, why)| why)
    })
}

/// Equal values; an integer equals the float of its value.
fn same(value: &Scalar, wanted: &Scalar) -> bool {
    match (value.as_f64(), wanted.as_f64()) {
        (Some(a), Some(b)) => a == b,
        _ => value == wanted,
    }
}

fn show(value: &Scalar) -> String {
    shorten(&value.to_string())
}

/// A value in a message: a hostile file must not fill the log.
fn shorten(text: &str) -> String {
    const MAX: usize = 80;
    match text.char_indices().nth(MAX) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_owned(),
    }
}
