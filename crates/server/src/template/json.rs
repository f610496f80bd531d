// SPDX-License-Identifier: MIT OR Apache-2.0
//! `tojson` as Transformers defines it for chat templates: Python's `json.dumps(value, ensure_ascii=False, ...)`.
//!
//! Models were trained on its spacing (`", "` and `": "`) and its numbers, so a tool schema must come out to the byte.

use minijinja::value::{Kwargs, Rest, ValueKind};
use minijinja::{Error, ErrorKind, State, Value};

/// Nesting of a value that is written; deeper ones are refused.
const DEPTH: usize = 200;

struct Style {
    ascii: bool,
    indent: Option<String>,
    item: String,
    key: String,
    sort: bool,
}

/// The filter. Arguments: `ensure_ascii`, `indent`, `separators`, `sort_keys`, by name or in this order.
pub(super) fn tojson(
    state: &State,
    value: &Value,
    args: Rest<Value>,
    kwargs: Kwargs,
) -> Result<String, Error> {
    let by_position = |i: usize| args.get(i).cloned();
    let ascii = kwargs
        .get::<Option<Value>>("ensure_ascii")?
        .or(by_position(0));
    let indent = kwargs
        .get::<Option<Value>>("indent")?
        .or(by_position(1))
        .filter(|v| !v.is_none());
    let separators = kwargs
        .get::<Option<Value>>("separators")?
        .or(by_position(2))
        .filter(|v| !v.is_none());
    let sort = kwargs.get::<Option<Value>>("sort_keys")?.or(by_position(3));
    kwargs.assert_all_used()?;
    let indent = match indent {
        None => None,
        Some(v) => Some(match (v.as_str(), v.as_i64()) {
            (Some(s), _) => s.to_owned(),
            (_, Some(n)) => " ".repeat(usize::try_from(n.clamp(0, 64)).unwrap_or(0)),
            _ => return Err(invalid("tojson: `indent` is neither a number nor a string")),
        }),
    };
    let (item, key) = match separators {
        None if indent.is_some() => (",".to_owned(), ": ".to_owned()),
        None => (", ".to_owned(), ": ".to_owned()),
        Some(pair) => {
            let text = |i| {
                pair.get_item_by_index(i)
                    .ok()
                    .and_then(|v| v.as_str().map(str::to_owned))
            };
            text(0)
                .zip(text(1))
                .ok_or_else(|| invalid("tojson: `separators` is not a pair of strings"))?
        }
    };
    let is_true = |v: Option<Value>| v.is_some_and(|v| v.is_true());
    let style = Style {
        ascii: is_true(ascii),
        indent,
        item,
        key,
        sort: is_true(sort),
    };
    let mut out = String::new();
    write(&mut out, value, &style, 0)?;
    state.consume_fuel(out.len() as u64 / 8)?;
    Ok(out)
}

fn invalid(what: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidOperation, what.into())
}

fn write(out: &mut String, value: &Value, style: &Style, depth: usize) -> Result<(), Error> {
    if depth > DEPTH {
        return Err(invalid(format!(
            "tojson: a value nested deeper than {DEPTH}"
        )));
    }
    match value.kind() {
        ValueKind::None => out.push_str("null"),
        ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
        ValueKind::Number => number(out, value),
        ValueKind::String => string(out, value.as_str().unwrap_or_default(), style.ascii),
        ValueKind::Seq | ValueKind::Iterable => {
            let items = value.try_iter()?;
            container(out, '[', ']', items, style, depth, |out, item| {
                write(out, &item, style, depth + 1)
            })?;
        }
        ValueKind::Map => {
            let mut keys: Vec<Value> = value.try_iter()?.collect();
            if style.sort {
                keys.sort();
            }
            container(out, '{', '}', keys.into_iter(), style, depth, |out, key| {
                match key.kind() {
                    ValueKind::String => string(out, key.as_str().unwrap_or_default(), style.ascii),
                    ValueKind::None | ValueKind::Bool | ValueKind::Number => {
                        let mut text = String::new();
                        write(&mut text, &key, style, depth + 1)?;
                        string(out, &text, style.ascii);
                    }
                    kind => return Err(invalid(format!("tojson: a {kind} is not a key"))),
                }
                out.push_str(&style.key);
                write(out, &value.get_item(&key)?, style, depth + 1)
            })?;
        }
        kind => {
            return Err(invalid(format!(
                "tojson: a value of kind {kind} is not JSON"
            )));
        }
    }
    Ok(())
}

fn container(
    out: &mut String,
    open: char,
    close: char,
    items: impl Iterator<Item = Value>,
    style: &Style,
    depth: usize,
    mut item: impl FnMut(&mut String, Value) -> Result<(), Error>,
) -> Result<(), Error> {
    let newline = |out: &mut String, depth: usize| {
        if let Some(indent) = &style.indent {
            out.push('\n');
            (0..depth).for_each(|_| out.push_str(indent));
        }
    };
    out.push(open);
    let mut any = false;
    for value in items {
        if any {
            out.push_str(&style.item);
        }
        any = true;
        newline(out, depth + 1);
        item(out, value)?;
    }
    if any {
        newline(out, depth);
    }
    out.push(close);
    Ok(())
}

fn string(out: &mut String, s: &str, ascii: bool) {
    out.push('"');
    for c in s.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            c if (c as u32) < 0x20 || (ascii && !c.is_ascii()) => {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    out.push_str(&format!("\\u{unit:04x}"));
                }
            }
            c => out.push(c),
        }
    }
    out.push('"');
}

fn number(out: &mut String, value: &Value) {
    match f64::try_from(value.clone()) {
        Ok(f) if !value.is_integer() => out.push_str(&float(f)),
        _ => out.push_str(&value.to_string()),
    }
}

/// Python's `repr(float)`: the shortest digits that read back, in exponent form outside 1e-4 to 1e16.
fn float(f: f64) -> String {
    if f.is_nan() {
        return "NaN".into();
    }
    if f.is_infinite() {
        return if f > 0.0 {
            "Infinity".into()
        } else {
            "-Infinity".into()
        };
    }
    let scientific = format!("{f:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if f != 0.0 && !(-4..16).contains(&exponent) {
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{digits}e{sign}{:02}", exponent.abs());
    }
    let plain = f.to_string();
    if plain.contains('.') {
        plain
    } else {
        format!("{plain}.0")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Values from Python's repr.
    #[test]
    fn floats_are_those_of_python() {
        for (f, text) in [
            (1.0, "1.0"),
            (-0.0, "-0.0"),
            (0.1, "0.1"),
            (1e16, "1e+16"),
            (123_456_789_012_345_680.0, "1.2345678901234568e+17"),
            (9_999_999_999_999_998.0, "9999999999999998.0"),
            (1e-5, "1e-05"),
            (0.0001, "0.0001"),
            (1.5e300, "1.5e+300"),
            (f64::INFINITY, "Infinity"),
        ] {
            assert_eq!(float(f), text);
        }
    }
}
