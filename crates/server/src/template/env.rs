// SPDX-License-Identifier: MIT OR Apache-2.0
//! The environment that templates run in: what Transformers gives them, and no more.
//!
//! `trim_blocks` and `lstrip_blocks` on, loop controls, `tojson`, `raise_exception`, `strftime_now`, `dict`, the methods of
//! Python's strings, lists and dicts. There is no loader and no other template, so `include` and `import` find nothing;
//! there are no attributes beyond the data (`x.__class__` is undefined). Work is bounded by fuel and a recursion limit.

use std::time::SystemTime;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, ValueKind, from_args};
use minijinja::{Environment, Error, ErrorKind, State, Value};

use super::{TemplateError, clock, json};

/// Name of the one template of an environment.
pub(super) const NAME: &str = "chat_template";

/// Nested calls, loops and conditions. A template with four nested macros uses about 50.
const RECURSION: usize = 200;

/// Why `raise_exception` was called, carried as the source of a minijinja error.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct Raised(pub(super) String);

/// Compiles a template into an environment of its own.
pub(super) fn compile(
    template: &metrale_config::ChatTemplate,
) -> Result<Environment<'static>, TemplateError> {
    let syntax_error = |line, what| TemplateError::Syntax {
        origin: template.origin.clone(),
        line,
        what,
    };
    let syntax = SyntaxConfig::builder()
        .trim_blocks(true)
        .lstrip_blocks(true)
        .build()
        .map_err(|e| syntax_error(None, e.to_string()))?;
    let mut env = Environment::new();
    env.set_syntax(syntax);
    env.set_recursion_limit(RECURSION);
    env.set_debug(false);
    env.set_unknown_method_callback(methods);
    env.add_filter("tojson", json::tojson);
    env.add_function("raise_exception", raise_exception);
    env.add_function("dict", dict);
    env.add_template_owned(NAME, without_generation_tags(&template.text))
        .map_err(|e| syntax_error(e.line(), what(&e)))?;
    Ok(env)
}

/// Gives the environment its clock.
pub(super) fn set_clock(env: &mut Environment<'_>, now: SystemTime) {
    env.add_function("strftime_now", move |format: String| {
        clock::strftime(now, &format).map_err(|e| {
            Error::new(
                ErrorKind::InvalidOperation,
                format!("strftime_now: {e} is not supported"),
            )
        })
    });
}

/// The message of an error, without the place, which is told apart.
pub(super) fn what(e: &Error) -> String {
    match e.detail() {
        Some(detail) => format!("{}: {detail}", e.kind()),
        None => e.kind().to_string(),
    }
}

fn raise_exception(message: String) -> Result<Value, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, "raise_exception").with_source(Raised(message)))
}

fn dict(base: Option<Value>, kwargs: Kwargs) -> Result<Value, Error> {
    let mut pairs = Vec::new();
    if let Some(base) = base {
        for key in base.try_iter()? {
            let value = base.get_item(&key)?;
            pairs.push((key, value));
        }
    }
    for key in kwargs.args() {
        pairs.push((Value::from(key), kwargs.get::<Value>(key)?));
    }
    Ok(Value::from_pairs(pairs))
}

/// `{% generation %}` marks the assistant's text for training and is nothing at inference: it becomes a block that is always
/// taken, so that its whitespace control keeps its meaning.
fn without_generation_tags(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(open) = rest.find("{%") {
        let body = &rest[open + 2..];
        let Some(close) = body.find("%}") else { break };
        let tag = &body[..close];
        let signs: &[char] = &['-', '+'];
        let word = tag.trim_matches(signs).trim();
        let replacement = match word {
            "generation" => "if true",
            "endgeneration" => "endif",
            _ => word,
        };
        out.push_str(&rest[..open + 2]);
        if replacement == word {
            out.push_str(tag);
        } else {
            out.push_str(&tag.replacen(word, replacement, 1));
        }
        out.push_str("%}");
        rest = &body[close + 2..];
    }
    out.push_str(rest);
    out
}

/// Python methods: first those that minijinja's own collection lacks.
fn methods(state: &mut State, value: &Value, method: &str, args: &[Value]) -> Result<Value, Error> {
    match (value.kind(), value.as_str()) {
        (ValueKind::String, Some(s)) => {
            if let Some(result) = string_method(s, method, args) {
                return result;
            }
        }
        (ValueKind::Seq, _) if method == "index" => {
            let (wanted,): (Value,) = from_args(args)?;
            return value
                .try_iter()?
                .position(|v| v == wanted)
                .map(Value::from)
                .ok_or_else(|| {
                    Error::new(
                        ErrorKind::InvalidOperation,
                        format!("{wanted} is not in the list"),
                    )
                });
        }
        (ValueKind::Seq | ValueKind::Map, _) if MUTATORS.contains(&method) => {
            let what = format!("`{method}` would change a value, which templates may not");
            return Err(Error::new(ErrorKind::InvalidOperation, what));
        }
        _ => {}
    }
    minijinja_contrib::pycompat::unknown_method_callback(state, value, method, args)
}

/// Methods that Transformers' immutable sandbox refuses too.
const MUTATORS: [&str; 11] = [
    "append",
    "extend",
    "insert",
    "remove",
    "pop",
    "sort",
    "reverse",
    "clear",
    "update",
    "setdefault",
    "popitem",
];

fn string_method(s: &str, method: &str, args: &[Value]) -> Option<Result<Value, Error>> {
    let two = || from_args::<(String,)>(args).map(|(a,)| a);
    let triple =
        |a: &str, b: &str, c: &str| [a, b, c].into_iter().map(Value::from).collect::<Value>();
    Some(match method {
        "removeprefix" => two().map(|p| Value::from(s.strip_prefix(p.as_str()).unwrap_or(s))),
        "removesuffix" => two().map(|p| Value::from(s.strip_suffix(p.as_str()).unwrap_or(s))),
        "partition" => two().map(|p| match s.split_once(p.as_str()) {
            Some((a, b)) if !p.is_empty() => triple(a, &p, b),
            _ => triple(s, "", ""),
        }),
        "rpartition" => two().map(|p| match s.rsplit_once(p.as_str()) {
            Some((a, b)) if !p.is_empty() => triple(a, &p, b),
            _ => triple("", "", s),
        }),
        "rsplit" => rsplit(s, args),
        "index" => two().and_then(|p| match s.find(p.as_str()) {
            Some(at) => Ok(Value::from(s[..at].chars().count())),
            None => Err(Error::new(
                ErrorKind::InvalidOperation,
                "substring not found",
            )),
        }),
        _ => return None,
    })
}

fn rsplit(s: &str, args: &[Value]) -> Result<Value, Error> {
    let (separator, most): (Option<String>, Option<i64>) = from_args(args)?;
    let most = most
        .and_then(|n| usize::try_from(n).ok())
        .unwrap_or(usize::MAX - 1);
    let mut parts: Vec<&str> = match separator.as_deref() {
        Some("") => return Err(Error::new(ErrorKind::InvalidOperation, "empty separator")),
        Some(separator) => s.rsplitn(most + 1, separator).collect(),
        None => {
            let mut parts = Vec::new();
            let mut rest = s.trim();
            while !rest.is_empty() {
                let cut = if parts.len() < most {
                    rest.rfind(char::is_whitespace)
                } else {
                    None
                };
                let start = cut.map_or(0, |at| {
                    at + rest[at..].chars().next().map_or(1, char::len_utf8)
                });
                parts.push(&rest[start..]);
                rest = rest[..start].trim_end();
            }
            parts
        }
    };
    parts.reverse();
    Ok(parts.into_iter().map(Value::from).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn render(source: &str) -> Result<String, Error> {
        let template = metrale_config::ChatTemplate {
            name: "default".into(),
            origin: "test".into(),
            text: source.into(),
        };
        compile(&template).unwrap().get_template(NAME)?.render(())
    }

    #[test]
    fn generation_tags_are_blocks_of_their_own() {
        assert_eq!(
            render("a\n{%- generation %}\nb {%- endgeneration -%} \nc").unwrap(),
            "ab c".replace(' ', "")
        );
        assert_eq!(
            without_generation_tags("{{ generation }}{% x"),
            "{{ generation }}{% x"
        );
    }

    // Values from Python.
    #[test]
    fn string_methods_are_those_of_python() {
        for (expression, text) in [
            ("'a,b,c'.rsplit(',', 1)", "['a,b', 'c']"),
            ("' a  b c '.rsplit()", "['a', 'b', 'c']"),
            ("' a  b c '.rsplit(none, 1)", "['a  b', 'c']"),
            ("'a=b=c'.partition('=')", "('a', '=', 'b=c')"),
            ("'a=b=c'.rpartition('=')", "('a=b', '=', 'c')"),
            ("'abc'.removeprefix('ab')", "c"),
            ("'abc'.removesuffix('ab')", "abc"),
            ("'éab'.index('b')", "2"),
            ("[4, 5].index(5)", "1"),
            ("'xxaxx'.strip('x')", "a"),
            ("'a\\nb'.splitlines()", "['a', 'b']"),
        ] {
            let text = if text.starts_with('(') {
                text.replace(['(', ')'], "|")
            } else {
                text.to_owned()
            };
            let got = render(&format!("{{{{ {expression} }}}}"))
                .unwrap_or_else(|e| panic!("{expression}: {e}"));
            let got = if text.starts_with('|') {
                got.replace(['[', ']'], "|")
            } else {
                got
            };
            assert_eq!(got, text, "{expression}");
        }
    }

    #[test]
    fn values_cannot_be_changed_in_place() {
        let e = render("{% set l = [1] %}{{ l.append(2) }}")
            .unwrap_err()
            .to_string();
        assert!(e.contains("`append`"), "{e}");
    }
}
