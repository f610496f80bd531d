// SPDX-License-Identifier: MIT OR Apache-2.0
//! Nested JSON and GGUF metadata to the flat map.
//!
//! Keys are kept as the file spells them; what they mean is the circuit's business. An object's keys are joined to its
//! own by a dot, `null` is left out (in these files it means "not set"), a list of scalars stays one list, and a list
//! that holds an object or a null is flattened by index (`layers.0.kind`).

use metrale_core::{FlatMap, Scalar};
use serde_json::Value;
use thiserror::Error;

use crate::gguf::{GgufArray, GgufHeader, GgufValue};
use crate::json::FLOAT_KEY;

/// Bytes of a flat key at most; keys in use stay under 100. Nesting repeats a prefix for every value under it, so without
/// a bound a document of a few megabytes could ask for terabytes.
const MAX_KEY: usize = 1024;
/// Entries of a flat map at most. The largest in use (class names of image models) have under 50,000.
const MAX_ENTRIES: usize = 1 << 18;
/// Elements of a GGUF array at most, outside of the tokenizer; those in use have one per layer.
const MAX_ARRAY: usize = 1 << 16;

/// Configuration that has no flat form.
#[derive(Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum FlattenError {
    /// The document is not an object.
    #[error("a configuration is a JSON object, this is a {found}")]
    NotAnObject {
        /// What it is instead.
        found: &'static str,
    },
    /// Two places of the document have one flat key, e.g. `{"a.b": 1, "a": {"b": 2}}`.
    #[error("key `{key}` is given in two places once nesting is written with dots")]
    Ambiguous {
        /// The flat key.
        key: String,
    },
    /// More than a configuration can be: a key, an array or the whole map is too long.
    #[error("{what} has {found}, above the limit {limit}; this is no configuration of a model")]
    TooLarge {
        /// The key, shortened, or the map.
        what: String,
        /// Its length.
        found: usize,
        /// The limit.
        limit: usize,
    },
    /// An integer outside of i64.
    #[error("key `{key}`: {value} does not fit a signed 64-bit integer")]
    Range {
        /// The flat key.
        key: String,
        /// The value.
        value: u64,
    },
}

/// Flattens a JSON object.
///
/// Numbers that JSON cannot hold, however spelled (`Infinity`, `{"__float__": "Infinity"}`), become the text
/// `"Infinity"`, `"-Infinity"` or `"NaN"`: the map's floats are finite.
///
/// # Errors
/// [`FlattenError`].
pub fn flatten_json(document: &Value) -> Result<FlatMap, FlattenError> {
    let Value::Object(object) = document else {
        return Err(FlattenError::NotAnObject {
            found: json_type(document),
        });
    };
    let mut map = FlatMap::new();
    for (key, value) in object {
        insert_json(&mut map, key.clone(), value)?;
    }
    Ok(map)
}

/// Flattens the metadata of a GGUF header, without the `tokenizer.*` keys.
///
/// # Errors
/// [`FlattenError::Range`] for a u64 above `i64::MAX`.
pub fn flatten_gguf(header: &GgufHeader) -> Result<FlatMap, FlattenError> {
    let mut map = FlatMap::new();
    for (key, value) in header.metadata() {
        if !key.starts_with("tokenizer.") {
            map.insert(key.clone(), gguf_scalar(key, value)?);
        }
    }
    Ok(map)
}

fn insert_json(map: &mut FlatMap, key: String, value: &Value) -> Result<(), FlattenError> {
    if key.len() > MAX_KEY {
        let start: String = key.chars().take(40).collect();
        let what = format!("key `{start}...`");
        return Err(FlattenError::TooLarge {
            what,
            found: key.len(),
            limit: MAX_KEY,
        });
    }
    let scalar = match (scalar(value), value) {
        (Some(scalar), _) => scalar,
        (None, Value::Object(object)) => {
            for (name, inner) in object {
                insert_json(map, format!("{key}.{name}"), inner)?;
            }
            return Ok(());
        }
        (None, Value::Array(items)) => {
            for (index, inner) in items.iter().enumerate() {
                insert_json(map, format!("{key}.{index}"), inner)?;
            }
            return Ok(());
        }
        (None, _) => return Ok(()),
    };
    if map.insert(key.clone(), scalar).is_some() {
        return Err(FlattenError::Ambiguous { key });
    }
    if map.len() > MAX_ENTRIES {
        let what = "the configuration".to_owned();
        return Err(FlattenError::TooLarge {
            what,
            found: map.len(),
            limit: MAX_ENTRIES,
        });
    }
    Ok(())
}

/// The value as one scalar; `None` for null, objects, and lists that hold either.
fn scalar(value: &Value) -> Option<Scalar> {
    Some(match value {
        Value::Null => return None,
        Value::Bool(b) => Scalar::Bool(*b),
        Value::Number(n) => match n.as_i64() {
            Some(i) => Scalar::Int(i),
            None => Scalar::Float(n.as_f64()?),
        },
        Value::String(s) => Scalar::Str(s.clone()),
        Value::Array(items) => Scalar::List(items.iter().map(scalar).collect::<Option<_>>()?),
        Value::Object(object) if object.len() == 1 => {
            Scalar::Str(object.get(FLOAT_KEY)?.as_str()?.to_owned())
        }
        Value::Object(_) => return None,
    })
}

fn json_type(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "list",
        Value::Object(_) => "object",
    }
}

fn gguf_scalar(key: &str, value: &GgufValue) -> Result<Scalar, FlattenError> {
    Ok(match value {
        GgufValue::Bool(b) => Scalar::Bool(*b),
        GgufValue::Str(s) => Scalar::Str(s.clone()),
        GgufValue::F32(f) => float(f64::from(*f)),
        GgufValue::F64(f) => float(*f),
        GgufValue::Array(items) => Scalar::List(gguf_list(key, items)?),
        integer => match (integer.as_i64(), integer.as_u64()) {
            (Some(i), _) => Scalar::Int(i),
            (None, value) => {
                let value = value.unwrap_or_default();
                return Err(FlattenError::Range {
                    key: key.to_owned(),
                    value,
                });
            }
        },
    })
}

fn gguf_list(key: &str, items: &GgufArray) -> Result<Vec<Scalar>, FlattenError> {
    if items.len() > MAX_ARRAY {
        let what = format!("the array at key `{key}`");
        return Err(FlattenError::TooLarge {
            what,
            found: items.len(),
            limit: MAX_ARRAY,
        });
    }
    items.iter().map(|item| gguf_scalar(key, &item)).collect()
}

/// f32 values are widened exactly; those that are not finite become text, as in JSON.
fn float(f: f64) -> Scalar {
    if f.is_finite() {
        return Scalar::Float(f);
    }
    Scalar::Str(
        match (f.is_nan(), f > 0.0) {
            (true, _) => "NaN",
            (_, true) => "Infinity",
            (_, false) => "-Infinity",
        }
        .to_owned(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json::{JsonLimits, parse};

    fn flat(text: &str) -> Result<FlatMap, FlattenError> {
        flatten_json(&parse(text.as_bytes(), &JsonLimits::default()).unwrap())
    }

    #[test]
    fn nesting_becomes_dots_and_null_goes() {
        let map = flat(
            r#"{"hidden_size": 64, "rope_parameters": {"rope_type": "yarn", "factor": 4.0},
                "sliding_window": null, "tie": false, "layer_types": ["full", "sliding"]}"#,
        )
        .unwrap();
        let list = Scalar::List(vec![
            Scalar::Str("full".into()),
            Scalar::Str("sliding".into()),
        ]);
        let want: FlatMap = [
            ("hidden_size", Scalar::Int(64)),
            ("layer_types", list),
            ("rope_parameters.factor", Scalar::Float(4.0)),
            ("rope_parameters.rope_type", Scalar::Str("yarn".into())),
            ("tie", Scalar::Bool(false)),
        ]
        .into_iter()
        .map(|(k, v)| (k.to_owned(), v))
        .collect();
        assert_eq!(map, want);
    }

    #[test]
    fn lists_of_objects_are_flattened_by_index() {
        let map = flat(r#"{"g": [{"a": 1}, null, {"b": [2]}], "n": [[1, 2], []]}"#).unwrap();
        assert_eq!(map["g.0.a"], Scalar::Int(1));
        assert_eq!(map["g.2.b"], Scalar::List(vec![Scalar::Int(2)]));
        let inner = Scalar::List(vec![Scalar::Int(1), Scalar::Int(2)]);
        assert_eq!(map["n"], Scalar::List(vec![inner, Scalar::List(vec![])]));
        assert_eq!(map.len(), 3);
    }

    #[test]
    fn infinity_is_text_in_every_spelling() {
        let map = flat(r#"{"a": [0.0, Infinity], "b": {"__float__": "-Infinity"}}"#).unwrap();
        let inf = Scalar::Str("Infinity".into());
        assert_eq!(map["a"], Scalar::List(vec![Scalar::Float(0.0), inf]));
        assert_eq!(map["b"], Scalar::Str("-Infinity".into()));
    }

    #[test]
    fn large_integers_become_floats() {
        let map = flat(r#"{"m": 1000000000000000019884624838656}"#).unwrap();
        assert_eq!(map["m"], Scalar::Float(1e30));
    }

    #[test]
    fn a_prefix_is_not_repeated_without_bound() {
        let long = "k".repeat(1 << 20);
        let e = flat(&format!(r#"{{"{long}": {{"a": 1}}}}"#)).unwrap_err();
        assert!(
            matches!(e, FlattenError::TooLarge { limit: MAX_KEY, .. }),
            "{e}"
        );
        assert!(e.to_string().len() < 200);
        let many: Vec<String> = (0..=MAX_ENTRIES).map(|i| format!("\"{i}\":0")).collect();
        let e = flat(&format!("{{{}}}", many.join(","))).unwrap_err();
        assert!(
            matches!(
                e,
                FlattenError::TooLarge {
                    limit: MAX_ENTRIES,
                    ..
                }
            ),
            "{e}"
        );
    }

    #[test]
    fn a_flat_key_given_twice_is_refused() {
        let e = flat(r#"{"a.b": 1, "a": {"b": 2}}"#).unwrap_err();
        assert_eq!(e, FlattenError::Ambiguous { key: "a.b".into() });
        assert_eq!(
            flat("[1]").unwrap_err(),
            FlattenError::NotAnObject { found: "list" }
        );
    }
}
