// SPDX-License-Identifier: MIT OR Apache-2.0
//! A conversation to the text of a prompt, by the checkpoint's own Jinja template.
//!
//! A template is a program that came with a downloaded file and runs on a stranger's messages, so neither is trusted: it
//! runs on fuel, with bounded depth and output, over plain data, with nothing of the machine in reach; and what comes from
//! the messages cannot become a control token, however the template joins it (module `guard`). Apart from that it renders
//! what Transformers' `apply_chat_template` renders, to the byte; goldens hold that.

mod clock;
mod env;
mod error;
mod face;
mod guard;
mod json;

use std::collections::BTreeMap;
use std::io;
use std::time::SystemTime;

use metrale_config::chat_template::DEFAULT_TEMPLATE;
use minijinja::{Environment, ErrorKind, Value};
use serde_json::{Map, Value as Json};

use self::env::{NAME, Raised};
use self::guard::Guard;
use crate::text_face::Piece;
use crate::tokenizer::Tokenizer;

pub use self::error::TemplateError;

/// The name under which a checkpoint offers a template for requests with tools.
const TOOL_TEMPLATE: &str = "tool_use";

/// Bounds on one rendering.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TemplateLimits {
    /// Instructions for a conversation of no length. Default 1,000,000, some tens of milliseconds; a template costs about 20
    /// for each message.
    pub fuel: u64,
    /// Instructions added for each byte of the conversation. Default 4.
    pub fuel_per_byte: u64,
    /// Bytes of a prompt for a conversation of no length. Default 1 MiB.
    pub output: usize,
    /// Bytes added for each byte of the conversation. Default 4.
    pub output_per_byte: usize,
}

impl Default for TemplateLimits {
    fn default() -> Self {
        Self {
            fuel: 1_000_000,
            fuel_per_byte: 4,
            output: 1 << 20,
            output_per_byte: 4,
        }
    }
}

/// What a template is given.
#[derive(Clone, Debug)]
pub struct RenderInput<'a> {
    /// The messages as the API's objects: `role`, `content` (a string or a list of parts), `tool_calls`, ...
    pub messages: &'a [Json],
    /// Tool definitions, if the request has any.
    pub tools: Option<&'a [Json]>,
    /// Whether the prompt ends with the opening of the assistant's turn.
    pub add_generation_prompt: bool,
    /// Further variables (`enable_thinking`, ...). They cannot replace the ones above.
    pub variables: &'a Map<String, Json>,
    /// The time that `strftime_now` gives, in UTC.
    pub now: SystemTime,
}

/// What templates and their guard must know of a vocabulary.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TemplateTokens {
    /// Spellings of control tokens, which a message must not bring into the prompt.
    pub controls: Vec<String>,
    /// Variables that hold a token's text: `bos_token`, `eos_token`, `pad_token`, `unk_token`.
    pub named: BTreeMap<String, String>,
}

impl From<&Tokenizer> for TemplateTokens {
    fn from(tokenizer: &Tokenizer) -> Self {
        let named = [
            ("bos_token", tokenizer.bos()),
            ("eos_token", tokenizer.eos()),
            ("pad_token", tokenizer.padding()),
            ("unk_token", tokenizer.unknown()),
        ];
        Self {
            controls: tokenizer.control_texts().map(str::to_owned).collect(),
            named: named
                .into_iter()
                .filter_map(|(name, id)| {
                    Some((name.to_owned(), tokenizer.token_text(id?)?.to_owned()))
                })
                .collect(),
        }
    }
}

/// In which shapes a template takes a message's content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContentShape {
    /// A string only; parts are joined by newlines first.
    Text,
    /// A list of parts only; a string becomes one text part.
    Parts,
    /// Either.
    Both,
}

/// A compiled chat template. Shared by all requests; immutable.
#[derive(Debug)]
pub struct ChatTemplate {
    default: Environment<'static>,
    tool_use: Option<Environment<'static>>,
    guard: Guard,
    named: BTreeMap<String, String>,
    source: String,
    limits: TemplateLimits,
    shape: ContentShape,
}

impl ChatTemplate {
    /// Compiles the templates of a checkpoint.
    ///
    /// # Errors
    /// [`TemplateError::None`] without a template, [`TemplateError::Syntax`] if it does not parse.
    pub fn new(
        templates: &[metrale_config::ChatTemplate],
        tokens: TemplateTokens,
        limits: TemplateLimits,
    ) -> Result<Self, TemplateError> {
        let named = |name: &str| templates.iter().find(|t| t.name == name);
        let default = named(DEFAULT_TEMPLATE).ok_or(TemplateError::None)?;
        let mut template = Self {
            default: env::compile(default)?,
            tool_use: named(TOOL_TEMPLATE).map(env::compile).transpose()?,
            guard: Guard::new(tokens.controls.iter().map(String::as_str)),
            named: tokens.named,
            source: default.text.clone(),
            limits,
            shape: ContentShape::Text,
        };
        template.shape = template.probe();
        Ok(template)
    }

    /// The source of the template that is used where no tools are given.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Which shapes of content the template takes, found by trying.
    pub fn content_shape(&self) -> ContentShape {
        self.shape
    }

    /// Renders a conversation.
    ///
    /// # Errors
    /// [`TemplateError::Raised`] if the template refuses the conversation, and the other variants if it fails on it or
    /// exceeds a limit.
    pub fn render(&self, input: &RenderInput<'_>) -> Result<Vec<Piece>, TemplateError> {
        let messages: Vec<Json> = input
            .messages
            .iter()
            .map(|m| normalize(m, self.shape))
            .collect();
        self.render_normalized(&messages, input)
    }

    fn render_normalized(
        &self,
        messages: &[Json],
        input: &RenderInput<'_>,
    ) -> Result<Vec<Piece>, TemplateError> {
        let tools = input.tools.unwrap_or_default();
        let mut strings = vec![self.source.as_str()];
        messages
            .iter()
            .chain(tools)
            .chain(input.variables.values())
            .for_each(|v| guard::strings(v, &mut strings));
        let marker = self.guard.marker(strings.iter().copied())?;
        let length: usize = strings[1..].iter().map(|s| s.len() + 16).sum();
        let value = |json: &Json| self.guard.value(json, marker);

        let mut context: Vec<(&str, Value)> = input
            .variables
            .iter()
            .map(|(k, v)| (k.as_str(), value(v)))
            .collect();
        context.extend(
            self.named
                .iter()
                .map(|(name, text)| (name.as_str(), Value::from(text.as_str()))),
        );
        context.push(("messages", messages.iter().map(value).collect()));
        // Like Transformers: without tools the variable is there and is none.
        context.push((
            "tools",
            if tools.is_empty() {
                Value::from(())
            } else {
                tools.iter().map(value).collect()
            },
        ));
        context.push(("documents", Value::from(())));
        context.push((
            "add_generation_prompt",
            Value::from(input.add_generation_prompt),
        ));

        let fuel = self
            .limits
            .fuel
            .saturating_add(self.limits.fuel_per_byte.saturating_mul(length as u64));
        let mut env = match &self.tool_use {
            Some(env) if !tools.is_empty() => env.clone(),
            _ => self.default.clone(),
        };
        env.set_fuel(Some(fuel));
        env::set_clock(&mut env, input.now);
        let limit = self
            .limits
            .output
            .saturating_add(self.limits.output_per_byte.saturating_mul(length));
        let mut out = Capped {
            bytes: Vec::new(),
            limit,
            full: false,
        };
        let rendered = env
            .get_template(NAME)
            .and_then(|t| t.render_captured_to(Value::from_pairs(context), &mut out));
        if out.full {
            return Err(TemplateError::TooLong { limit });
        }
        rendered.map_err(|e| failure(&e, fuel))?;
        // minijinja writes strings only.
        let text = String::from_utf8_lossy(&out.bytes);
        Ok(self.guard.pieces(&text, marker))
    }

    /// Finds which shapes of content come through: the words of a probe must appear, and no trace of a part's structure.
    fn probe(&self) -> ContentShape {
        let tries = |content: Json| {
            let messages = [serde_json::json!({"role": "user", "content": content})];
            let variables = Map::new();
            let input = RenderInput {
                messages: &messages,
                tools: None,
                add_generation_prompt: true,
                variables: &variables,
                now: SystemTime::UNIX_EPOCH,
            };
            let rendered = self.render_normalized(&messages, &input);
            rendered.is_ok_and(|pieces| {
                let text: String = pieces.into_iter().map(|p| p.text).collect();
                text.contains("probe of content") && !text.contains("text_of_probe")
            })
        };
        let text = tries(Json::from("probe of content"));
        let parts = tries(
            serde_json::json!([{"type": "text", "text": "probe of content", "text_of_probe": "text_of_probe"}]),
        );
        match (text, parts) {
            (true, true) => ContentShape::Both,
            (false, true) => ContentShape::Parts,
            _ => ContentShape::Text,
        }
    }
}

/// A message as templates expect it: absent fields are absent (not null), reasoning stands under its three names, content
/// has a shape that the template takes.
fn normalize(message: &Json, shape: ContentShape) -> Json {
    let Json::Object(fields) = message else {
        return message.clone();
    };
    let mut out: Map<String, Json> = fields
        .iter()
        .filter(|(_, v)| !v.is_null())
        .map(|(k, v)| (k.clone(), v.clone()))
        .collect();
    let reasoning = ["reasoning_content", "thinking", "reasoning"]
        .iter()
        .find_map(|k| out.get(*k))
        .cloned();
    if let Some(reasoning) = reasoning {
        out.entry("thinking").or_insert_with(|| reasoning.clone());
        out.insert("reasoning_content".into(), reasoning);
    }
    if let Some(content) = out.get_mut("content") {
        reshape(content, shape);
    }
    Json::Object(out)
}

fn reshape(content: &mut Json, shape: ContentShape) {
    match (shape, &*content) {
        (ContentShape::Text, Json::Array(parts)) => {
            let texts: Option<Vec<&str>> = parts
                .iter()
                .map(|p| p.get("text").and_then(Json::as_str))
                .collect();
            if let Some(texts) = texts {
                *content = Json::from(texts.join("\n"));
            }
        }
        (ContentShape::Parts, Json::String(text)) => {
            *content = serde_json::json!([{"type": "text", "text": text}]);
        }
        _ => {}
    }
}

fn failure(e: &minijinja::Error, fuel: u64) -> TemplateError {
    let mut source: Option<&(dyn std::error::Error + 'static)> = Some(e);
    while let Some(error) = source {
        if let Some(Raised(message)) = error.downcast_ref::<Raised>() {
            return TemplateError::Raised(message.clone());
        }
        if error
            .downcast_ref::<minijinja::Error>()
            .is_some_and(|e| e.kind() == ErrorKind::OutOfFuel)
        {
            return TemplateError::OutOfFuel { fuel };
        }
        source = error.source();
    }
    TemplateError::Failed {
        line: e.line(),
        what: env::what(e),
    }
}

/// Takes bytes up to a limit.
struct Capped {
    bytes: Vec<u8>,
    limit: usize,
    full: bool,
}

impl io::Write for &mut Capped {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.len() > self.limit - self.bytes.len() {
            self.full = true;
            return Err(io::Error::from(io::ErrorKind::FileTooLarge));
        }
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
