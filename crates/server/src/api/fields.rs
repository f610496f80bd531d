// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reads typed fields out of a JSON object, and says exactly where and what is wrong.
//!
//! `null` counts as absent, as with OpenAI. An object is opened once, against the list of names it may hold; a name
//! that is not there is refused before anything is read.

use std::ops::RangeInclusive;

use serde_json::{Map, Value};

use super::error::ApiError;
use super::near::near;
use super::table::{self, Endpoint, Rule};

/// An object whose keys have been checked.
#[derive(Clone, Copy)]
pub struct Fields<'v> {
    map: &'v Map<String, Value>,
    /// Path of the object with its dot, e.g. `messages[0].`; empty at the root.
    prefix: &'v str,
}

impl<'v> Fields<'v> {
    /// Opens the body of a request: every field must stand in the published table.
    ///
    /// # Errors
    /// [`ApiError::WrongType`] if it is no object, [`ApiError::Unknown`], [`ApiError::Unsupported`].
    pub fn body(value: &'v Value, endpoint: Endpoint) -> Result<Fields<'v>, ApiError> {
        let map = object(value, "the request body")?;
        for (name, value) in map.iter().filter(|(_, v)| !v.is_null()) {
            match table::of(endpoint).find(|f| f.name == name).map(|f| f.rule) {
                Some(Rule::Honoured(_) | Rule::Inert(_)) => {}
                Some(Rule::Only(only, _))
                    if serde_json::from_str::<Value>(only).is_ok_and(|o| o == *value) => {}
                Some(Rule::Only(only, why)) => {
                    return Err(ApiError::Unsupported {
                        path: name.clone(),
                        why: format!("{why} (only {only} is accepted)"),
                    });
                }
                Some(Rule::Refused(why)) => {
                    return Err(ApiError::Unsupported {
                        path: name.clone(),
                        why: why.to_owned(),
                    });
                }
                None => {
                    let known = table::of(endpoint)
                        .filter(|f| matches!(f.rule, Rule::Honoured(_)))
                        .map(|f| f.name);
                    return Err(unknown("", name, known));
                }
            }
        }
        Ok(Fields { map, prefix: "" })
    }

    /// Opens an inner object that may hold `known` names. `path` names it, `prefix` is the path and a dot.
    ///
    /// # Errors
    /// [`ApiError::WrongType`] if it is no object, [`ApiError::Unknown`].
    pub fn inner(
        value: &'v Value,
        prefix: &'v str,
        known: &[&str],
    ) -> Result<Fields<'v>, ApiError> {
        let map = object(value, prefix.trim_end_matches('.'))?;
        for name in map.keys() {
            if !known.contains(&name.as_str()) {
                return Err(unknown(prefix, name, known.iter().copied()));
            }
        }
        Ok(Fields { map, prefix })
    }

    /// A field that is there and not null.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&'v Value> {
        self.map.get(name).filter(|v| !v.is_null())
    }

    /// Path of a field from the root.
    #[must_use]
    pub fn path(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }

    fn typed<T>(
        &self,
        name: &str,
        expected: &str,
        read: impl FnOnce(&'v Value) -> Option<T>,
    ) -> Result<Option<T>, ApiError> {
        self.get(name)
            .map(|v| read(v).ok_or_else(|| wrong(self.path(name), expected, v)))
            .transpose()
    }

    /// A field that must be there; `why` says what it should hold.
    ///
    /// # Errors
    /// [`ApiError::Missing`].
    pub fn required(&self, name: &str, why: &str) -> Result<&'v Value, ApiError> {
        self.get(name).ok_or_else(|| ApiError::Missing {
            path: self.path(name),
            why: why.to_owned(),
        })
    }

    /// A boolean.
    ///
    /// # Errors
    /// [`ApiError::WrongType`].
    pub fn boolean(&self, name: &str) -> Result<Option<bool>, ApiError> {
        self.typed(name, "true or false", Value::as_bool)
    }

    /// A string.
    ///
    /// # Errors
    /// [`ApiError::WrongType`].
    pub fn string(&self, name: &str) -> Result<Option<&'v str>, ApiError> {
        self.typed(name, "a string", Value::as_str)
    }

    /// An integer in `range`, however large it is written.
    ///
    /// # Errors
    /// [`ApiError::WrongType`], [`ApiError::InvalidValue`].
    pub fn integer(&self, name: &str, range: RangeInclusive<i64>) -> Result<Option<i64>, ApiError> {
        let Some(value) = self.typed(name, "an integer", |v| v.is_number().then_some(v))? else {
            return Ok(None);
        };
        let inside = |i: &i64| range.contains(i);
        match value.as_i64().filter(inside) {
            Some(i) => Ok(Some(i)),
            None if value.is_f64() => Err(wrong(self.path(name), "an integer", value)),
            None => Err(ApiError::invalid(
                self.path(name),
                format!(
                    "must be an integer from {} to {}, and is {value}",
                    range.start(),
                    range.end()
                ),
            )),
        }
    }

    /// A number.
    ///
    /// # Errors
    /// [`ApiError::WrongType`].
    pub fn number(&self, name: &str) -> Result<Option<f64>, ApiError> {
        self.typed(name, "a number", Value::as_f64)
    }

    /// A list.
    ///
    /// # Errors
    /// [`ApiError::WrongType`].
    pub fn array(&self, name: &str) -> Result<Option<&'v Vec<Value>>, ApiError> {
        self.typed(name, "a list", Value::as_array)
    }
}

fn object<'v>(value: &'v Value, path: &str) -> Result<&'v Map<String, Value>, ApiError> {
    value
        .as_object()
        .ok_or_else(|| wrong(path.to_owned(), "an object", value))
}

fn unknown<'k>(prefix: &str, name: &str, known: impl Iterator<Item = &'k str>) -> ApiError {
    // A name of megabytes is not worth repeating.
    let shown: String = name.chars().take(64).collect();
    ApiError::Unknown {
        path: format!("{prefix}{shown}"),
        near: near(name, known).map(str::to_owned),
    }
}

/// The error for a value of a wrong type.
pub fn wrong(path: String, expected: &str, got: &Value) -> ApiError {
    let got = match got {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(n) if n.is_f64() => "a fractional number",
        Value::Number(_) => "an integer",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    };
    ApiError::WrongType {
        path,
        expected: expected.to_owned(),
        got: got.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn refused(value: &Value) -> (String, &'static str) {
        let e = Fields::body(value, Endpoint::Chat).err().expect("refused");
        (e.to_string(), e.code())
    }

    #[test]
    fn every_name_is_honoured_inert_or_refused() {
        assert_eq!(
            refused(&json!({"temprature": 1})),
            (
                "`temprature` is not a field of this request; did you mean `temperature`?".into(),
                "unknown_parameter"
            )
        );
        assert_eq!(refused(&json!({"tools": []})).1, "unsupported_parameter");
        assert_eq!(
            refused(&json!({"response_format": {"type": "json_object"}})).1,
            "unsupported_parameter"
        );
        assert_eq!(refused(&json!([])).1, "invalid_type");
        let fine = json!({"user": {"any": 1}, "response_format": {"type": "text"}, "tools": null});
        assert!(Fields::body(&fine, Endpoint::Chat).is_ok());
    }

    #[test]
    fn integers_are_exact_and_bounded() {
        let value = json!({"a": 18446744073709551615_u64, "b": 2.0, "c": "2", "d": -3, "e": 1e300});
        let fields = Fields {
            map: value.as_object().expect("object"),
            prefix: "x.",
        };
        let code = |name| fields.integer(name, -2..=5).expect_err("refused").code();
        assert_eq!(code("a"), "invalid_value");
        assert_eq!(code("b"), "invalid_type");
        assert_eq!(code("c"), "invalid_type");
        assert_eq!(code("d"), "invalid_value");
        assert_eq!(code("e"), "invalid_type");
        assert_eq!(fields.integer("d", -5..=5).expect("valid"), Some(-3));
        assert_eq!(fields.integer("absent", 0..=1).expect("valid"), None);
        assert_eq!(
            fields.integer("a", 0..=1).expect_err("refused").param(),
            Some("x.a")
        );
    }
}
