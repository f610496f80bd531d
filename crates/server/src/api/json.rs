// SPDX-License-Identifier: MIT OR Apache-2.0
//! JSON from outside: depth and number of values bounded, duplicate keys refused, numbers finite.
//!
//! serde_json already refuses invalid UTF-8, lone surrogates, NaN and numbers beyond f64; it would keep the last of two
//! equal keys, which two readers of one request may see differently.

use std::cell::{Cell, RefCell};
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

use super::error::ApiError;

/// Reads one JSON value from `bytes`, nested at most `depth` levels (below serde_json's own 128), of at most `values`
/// values at all levels.
///
/// # Errors
/// [`ApiError::InvalidJson`] with line and column, [`ApiError::DuplicateKey`], [`ApiError::TooDeep`],
/// [`ApiError::TooManyValues`].
pub fn parse(bytes: &[u8], depth: usize, values: usize) -> Result<Value, ApiError> {
    let fault = RefCell::new(None);
    let values_left = Cell::new(values);
    let mut json = serde_json::Deserializer::from_slice(bytes);
    let seed = Bounded {
        left: depth,
        depth,
        values_left: &values_left,
        values,
        fault: &fault,
    };
    let value = seed
        .deserialize(&mut json)
        .and_then(|value| json.end().map(|()| value));
    value.map_err(|e| {
        fault
            .take()
            .unwrap_or_else(|| ApiError::InvalidJson(e.to_string()))
    })
}

/// Builds a value with `left` levels to go; `fault` keeps the typed reason of a refusal of ours.
#[derive(Clone, Copy)]
struct Bounded<'f> {
    left: usize,
    depth: usize,
    values_left: &'f Cell<usize>,
    values: usize,
    fault: &'f RefCell<Option<ApiError>>,
}

impl Bounded<'_> {
    fn deeper<E: serde::de::Error>(self) -> Result<Self, E> {
        if self.left == 0 {
            return Err(self.refuse(ApiError::TooDeep(self.depth)));
        }
        Ok(Bounded {
            left: self.left - 1,
            ..self
        })
    }

    fn refuse<E: serde::de::Error>(self, why: ApiError) -> E {
        let text = why.to_string();
        self.fault.replace(Some(why));
        E::custom(text)
    }
}

impl<'de> DeserializeSeed<'de> for Bounded<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<Value, D::Error> {
        match self.values_left.get().checked_sub(1) {
            Some(left) => self.values_left.set(left),
            None => return Err(self.refuse(ApiError::TooManyValues(self.values))),
        }
        json.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Bounded<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, v: bool) -> Result<Value, E> {
        Ok(Value::Bool(v))
    }

    fn visit_u64<E>(self, v: u64) -> Result<Value, E> {
        Ok(Value::Number(v.into()))
    }

    fn visit_i64<E>(self, v: i64) -> Result<Value, E> {
        Ok(Value::Number(v.into()))
    }

    fn visit_f64<E: serde::de::Error>(self, v: f64) -> Result<Value, E> {
        Number::from_f64(v)
            .map(Value::Number)
            .ok_or_else(|| E::custom("a number is not finite"))
    }

    fn visit_str<E>(self, v: &str) -> Result<Value, E> {
        Ok(Value::String(v.to_owned()))
    }

    fn visit_string<E>(self, v: String) -> Result<Value, E> {
        Ok(Value::String(v))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Value, A::Error> {
        let inner = self.deeper()?;
        let mut items = Vec::new();
        while let Some(item) = seq.next_element_seed(inner)? {
            items.push(item);
        }
        Ok(Value::Array(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let inner = self.deeper()?;
        let mut object = Map::new();
        while let Some(key) = map.next_key::<String>()? {
            if object.contains_key(&key) {
                return Err(self.refuse(ApiError::DuplicateKey(key)));
            }
            let value = map.next_value_seed(inner)?;
            object.insert(key, value);
        }
        Ok(Value::Object(object))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(text: &[u8]) -> &'static str {
        parse(text, 16, 100).expect_err("refused").code()
    }

    #[test]
    fn ordinary_json_is_read_as_serde_json_reads_it() {
        let text =
            br#"{"a": [1, -2, 0.5, true, null, "x\u00e9\n"], "b": {"a": 18446744073709551615}}"#;
        let plain: Value = serde_json::from_slice(text).expect("valid");
        assert_eq!(parse(text, 16, 100).expect("valid"), plain);
    }

    #[test]
    fn a_duplicate_key_is_refused_at_any_level() {
        assert_eq!(code(br#"{"a": 1, "a": 1}"#), "duplicate_key");
        assert_eq!(
            code(br#"{"x": [{"a": 1, "b": 2, "a": 3}]}"#),
            "duplicate_key"
        );
        // Equal only after unescaping.
        assert_eq!(code(br#"{"a": 1, "\u0061": 1}"#), "duplicate_key");
    }

    #[test]
    fn depth_is_counted_exactly() {
        let nest = |n: usize| ["[".repeat(n), "]".repeat(n)].concat();
        assert!(parse(nest(16).as_bytes(), 16, 100).is_ok());
        assert_eq!(code(nest(17).as_bytes()), "nested_too_deep");
        assert_eq!(code("[".repeat(100_000).as_bytes()), "nested_too_deep");
    }

    #[test]
    fn values_are_counted_at_all_levels() {
        let text = br#"[1, [2, 3], {"a": 4}]"#;
        assert!(parse(text, 16, 7).is_ok());
        let e = parse(text, 16, 6).expect_err("refused");
        assert_eq!(e.code(), "too_many_values");
    }

    #[test]
    fn what_is_not_json_is_refused() {
        for text in [
            &b"NaN"[..],
            b"{\"a\": Infinity}",
            b"1e400",
            b"-1e400",
            b"\"\xff\"",
            b"\"\\ud800\"",
            b"{} x",
            b"",
            b"[1,]",
            b"\"a\0b\"",
        ] {
            assert_eq!(code(text), "invalid_json", "{}", text.escape_ascii());
        }
        assert_eq!(parse(b"-0", 16, 100).expect("valid").as_f64(), Some(-0.0));
    }
}
