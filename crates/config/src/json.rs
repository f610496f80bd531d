// SPDX-License-Identifier: MIT OR Apache-2.0
//! JSON from a checkpoint: bounded in size and depth, duplicate keys refused.
//!
//! `serde_json` does the parsing. Two things are added. A key that occurs twice in one object is an error, since
//! readers disagree on which one counts. And Python's `json` writes `Infinity`, `-Infinity` and `NaN` bare, which no
//! JSON parser takes: they are rewritten to `{"__float__": "Infinity"}`, the form in which Transformers 5 itself writes
//! them, before parsing.

use std::borrow::Cow;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};
use thiserror::Error;

/// The key under which a number that JSON cannot hold is written.
pub(crate) const FLOAT_KEY: &str = "__float__";

/// Bounds on one JSON document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JsonLimits {
    /// Bytes of the document. Default 64 MiB (the largest tokenizer files are about 35 MB).
    pub bytes: usize,
    /// Nesting of arrays and objects. Default 64; configurations in use stay under 8. At most 120,
    /// where serde_json's own bound on recursion takes over.
    pub depth: u32,
}

impl Default for JsonLimits {
    fn default() -> Self {
        Self {
            bytes: 64 << 20,
            depth: 64,
        }
    }
}

/// A JSON document that cannot be used.
#[derive(Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum JsonError {
    /// Longer than [`JsonLimits::bytes`].
    #[error("the JSON document has {bytes} bytes, above the limit {limit}")]
    TooLarge {
        /// Its length.
        bytes: usize,
        /// The limit.
        limit: usize,
    },
    /// Malformed, nested too deep, out of range, or with a key twice.
    #[error("line {line}, column {column}: {why}")]
    Syntax {
        /// Line, from 1.
        line: usize,
        /// Column in bytes, from 1.
        column: usize,
        /// What is wrong there.
        why: String,
    },
}

/// Parses one JSON document within `limits`.
///
/// # Errors
/// [`JsonError`]: too large, malformed, too deep, a number beyond f64, or a duplicate key.
pub fn parse(bytes: &[u8], limits: &JsonLimits) -> Result<Value, JsonError> {
    if bytes.len() > limits.bytes {
        return Err(JsonError::TooLarge {
            bytes: bytes.len(),
            limit: limits.bytes,
        });
    }
    let text = rewrite_bare_floats(bytes);
    let mut de = serde_json::Deserializer::from_slice(&text);
    let value = Strict {
        depth: limits.depth,
    }
    .deserialize(&mut de)
    .map_err(syntax)?;
    de.end().map_err(syntax)?;
    Ok(value)
}

fn syntax(e: serde_json::Error) -> JsonError {
    let full = e.to_string();
    let place = format!(" at line {} column {}", e.line(), e.column());
    let why = full.strip_suffix(&place).unwrap_or(&full).to_owned();
    JsonError::Syntax {
        line: e.line(),
        column: e.column(),
        why,
    }
}

/// A value in which no object has a key twice and nothing nests deeper than `depth`.
struct Strict {
    depth: u32,
}

impl Strict {
    fn inner<E: serde::de::Error>(&self) -> Result<Strict, E> {
        match self.depth.checked_sub(1) {
            Some(depth) => Ok(Strict { depth }),
            None => Err(E::custom("nested deeper than the limit")),
        }
    }
}

impl<'de> DeserializeSeed<'de> for Strict {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, de: D) -> Result<Value, D::Error> {
        de.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Strict {
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

    fn visit_i64<E>(self, v: i64) -> Result<Value, E> {
        Ok(v.into())
    }

    fn visit_u64<E>(self, v: u64) -> Result<Value, E> {
        Ok(v.into())
    }

    fn visit_f64<E: serde::de::Error>(self, v: f64) -> Result<Value, E> {
        let number = Number::from_f64(v).ok_or_else(|| E::custom("number out of range"))?;
        Ok(Value::Number(number))
    }

    fn visit_str<E>(self, v: &str) -> Result<Value, E> {
        Ok(Value::String(v.to_owned()))
    }

    fn visit_string<E>(self, v: String) -> Result<Value, E> {
        Ok(Value::String(v))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Value, A::Error> {
        let mut out = Vec::new();
        while let Some(v) = seq.next_element_seed(self.inner()?)? {
            out.push(v);
        }
        Ok(Value::Array(out))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let mut out = Map::new();
        while let Some(key) = access.next_key::<String>()? {
            if out.contains_key(&key) {
                return Err(A::Error::custom(format_args!("key {key:?} occurs twice")));
            }
            let value = access.next_value_seed(self.inner()?)?;
            out.insert(key, value);
        }
        Ok(Value::Object(out))
    }
}

/// Replaces bare `Infinity`, `-Infinity` and `NaN` outside strings; borrows when there are none.
fn rewrite_bare_floats(bytes: &[u8]) -> Cow<'_, [u8]> {
    let mut out = Vec::new();
    let (mut copied, mut at, mut in_string) = (0, 0, false);
    while let Some(&byte) = bytes.get(at) {
        match byte {
            b'\\' if in_string => at += 1,
            b'"' => in_string = !in_string,
            b'-' | b'I' | b'N' if !in_string => {
                let word = ["-Infinity", "Infinity", "NaN"]
                    .into_iter()
                    .find(|word| bytes[at..].starts_with(word.as_bytes()));
                if let Some(word) = word {
                    out.extend_from_slice(&bytes[copied..at]);
                    out.extend_from_slice(format!("{{\"{FLOAT_KEY}\":\"{word}\"}}").as_bytes());
                    at += word.len();
                    copied = at;
                    continue;
                }
            }
            _ => {}
        }
        at += 1;
    }
    if copied == 0 {
        return Cow::Borrowed(bytes);
    }
    out.extend_from_slice(&bytes[copied..]);
    Cow::Owned(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ok(text: &str) -> Value {
        parse(text.as_bytes(), &JsonLimits::default()).unwrap()
    }

    fn why(text: &str) -> String {
        match parse(text.as_bytes(), &JsonLimits::default()).unwrap_err() {
            JsonError::Syntax { why, .. } => why,
            e => panic!("{e}"),
        }
    }

    #[test]
    fn values_are_what_serde_json_reads() {
        let text = r#"{"a":[1,-2,2.5,1e3,true,null,"x\"é"],"b":{"c":18446744073709551615}}"#;
        let want: Value = serde_json::from_str(text).unwrap();
        assert_eq!(ok(text), want);
    }

    #[test]
    fn a_key_twice_is_refused_with_its_place() {
        let e = parse(
            b"{\"a\":1,\n\"b\":{\"x\":1,\"x\":2}}",
            &JsonLimits::default(),
        );
        match e.unwrap_err() {
            JsonError::Syntax { line, why, .. } => {
                assert_eq!(line, 2);
                assert!(why.contains("\"x\" occurs twice"), "{why}");
            }
            e => panic!("{e}"),
        }
    }

    #[test]
    fn survival_09_nesting_is_bounded() {
        let deep = "[".repeat(100_000);
        assert!(why(&deep).contains("deeper than the limit"));
        let within = "[".repeat(64) + &"]".repeat(64);
        ok(&within);
        let over = "[".repeat(65) + &"]".repeat(65);
        assert!(why(&over).contains("deeper"));
    }

    #[test]
    fn survival_09_numbers_out_of_range() {
        assert!(why("[1e400]").contains("out of range"));
        assert_eq!(ok("-0"), serde_json::from_str::<Value>("-0").unwrap());
    }

    #[test]
    fn pythons_bare_floats_become_objects() {
        let v = ok(r#"{"limit": [0.0, Infinity], "s": "NaN, -Infinity \" NaN", "m": -Infinity}"#);
        assert_eq!(v["limit"][1][FLOAT_KEY], "Infinity");
        assert_eq!(v["m"][FLOAT_KEY], "-Infinity");
        assert_eq!(v["s"], "NaN, -Infinity \" NaN");
        assert!(parse(b"[Infinit]", &JsonLimits::default()).is_err());
    }

    #[test]
    fn a_document_above_the_limit_is_not_parsed() {
        let limits = JsonLimits { bytes: 4, depth: 8 };
        let e = parse(b"[1,2]", &limits).unwrap_err();
        assert_eq!(e, JsonError::TooLarge { bytes: 5, limit: 4 });
    }

    #[test]
    fn trailing_bytes_are_refused() {
        assert!(why("{} x").contains("trailing"));
        assert!(parse(b"", &JsonLimits::default()).is_err());
    }
}
