// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where a Hugging Face checkpoint keeps its chat templates.

use serde_json::{Map, Value};

use crate::model::ConfigError;

/// The name of a checkpoint's unnamed template.
pub const DEFAULT_TEMPLATE: &str = "default";

/// One chat template: Jinja source as the checkpoint gives it, not yet compiled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChatTemplate {
    /// `default`, or the name under which the checkpoint offers another (`tool_use`, `rag`).
    pub name: String,
    /// The file or GGUF key it came from, for messages.
    pub origin: String,
    /// Jinja source.
    pub text: String,
}

/// Adds `text` under `name`, in place of an earlier one: later sources win.
pub(crate) fn put(list: &mut Vec<ChatTemplate>, name: &str, origin: &str, text: &str) {
    let new = ChatTemplate {
        name: name.to_owned(),
        origin: origin.to_owned(),
        text: text.to_owned(),
    };
    match list.iter_mut().find(|t| t.name == name) {
        Some(old) => *old = new,
        None => list.push(new),
    }
}

/// Adds what `chat_template` of a JSON file holds: one template, or a list of `{name, template}`.
///
/// # Errors
/// [`ConfigError::Key`] if the key holds something else.
pub(crate) fn put_from_json(
    list: &mut Vec<ChatTemplate>,
    file: &str,
    object: &Map<String, Value>,
) -> Result<(), ConfigError> {
    const KEY: &str = "chat_template";
    let bad = || {
        let why = "must be a string or a list of {\"name\": string, \"template\": string}";
        ConfigError::key(file, KEY, why.to_owned())
    };
    match object.get(KEY) {
        None | Some(Value::Null) => {}
        Some(Value::String(text)) => put(list, DEFAULT_TEMPLATE, file, text),
        Some(Value::Array(items)) => {
            for item in items {
                let name = item.get("name").and_then(Value::as_str).ok_or_else(bad)?;
                let text = item
                    .get("template")
                    .and_then(Value::as_str)
                    .ok_or_else(bad)?;
                put(list, name, file, text);
            }
        }
        Some(_) => return Err(bad()),
    }
    Ok(())
}
