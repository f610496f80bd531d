// SPDX-License-Identifier: MIT OR Apache-2.0
//! The published table of request fields: each is honoured, refused by name, or unable to change an answer.
//!
//! This is the only list. A request is checked against it before a field is read, a test holds the readers to it, and
//! /serve-config and the docs show it. A field that stands nowhere here is refused as unknown.

use serde_json::{Value, json};

/// A path that takes a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// POST /v1/chat/completions
    Chat,
    /// POST /v1/completions
    Completions,
    /// POST /tokenize
    Tokenize,
    /// POST /detokenize
    Detokenize,
}

/// What happens to a field.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Rule {
    /// It is read and acts.
    Honoured(&'static str),
    /// It cannot change an answer; any value is accepted.
    Inert(&'static str),
    /// Only this value (as JSON), which asks for nothing; any other is refused, and why.
    Only(&'static str, &'static str),
    /// Refused, and why.
    Refused(&'static str),
}

/// A field of a request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Field {
    /// Its name.
    pub name: &'static str,
    /// Where it is a field.
    pub endpoints: &'static [Endpoint],
    /// What happens to it.
    pub rule: Rule,
}

use Endpoint::{Chat, Completions, Detokenize, Tokenize};
use Rule::{Honoured, Inert, Only, Refused};

const BOTH: &[Endpoint] = &[Chat, Completions];
const CHAT: &[Endpoint] = &[Chat];
const TEXT: &[Endpoint] = &[Completions];

const fn field(name: &'static str, endpoints: &'static [Endpoint], rule: Rule) -> Field {
    Field {
        name,
        endpoints,
        rule,
    }
}

const TOOLS: &str = "tool calls are not offered yet";
const SCHEMA: &str = "constrained output is not offered yet";
const TEMPLATE: &str = "the template is the checkpoint's; templates from requests are not rendered";
const MEDIA: &str = "this server takes and gives text only";

/// Every field of every endpoint.
pub const FIELDS: &[Field] = &[
    field(
        "model",
        &[Chat, Completions, Tokenize, Detokenize],
        Honoured("name of the served model; may be left out"),
    ),
    field("messages", CHAT, Honoured("the chat; text content only")),
    field(
        "messages",
        &[Tokenize],
        Honoured("a chat to be rendered and tokenized, instead of prompt"),
    ),
    field(
        "prompt",
        TEXT,
        Honoured("a text, token ids, or a list of either (one answer each)"),
    ),
    field(
        "prompt",
        &[Tokenize],
        Honoured("the text, instead of messages"),
    ),
    field("tokens", &[Detokenize], Honoured("token ids")),
    field("stream", BOTH, Honoured("answer as server-sent events")),
    field(
        "stream_options",
        BOTH,
        Honoured("include_usage: a last event with the token counts"),
    ),
    field("n", BOTH, Honoured("answers per prompt")),
    field(
        "seed",
        BOTH,
        Honoured("of the counter generator; fresh and reported when left out"),
    ),
    field("temperature", BOTH, Honoured("0 to 10000; 0 = greedy")),
    field("top_p", BOTH, Honoured("above 0, to 1; 1 = off")),
    field("top_k", BOTH, Honoured("candidates kept; 0 or -1 = off")),
    field(
        "min_p",
        BOTH,
        Honoured("0 to 1, relative to the best; 0 = off"),
    ),
    field(
        "repetition_penalty",
        BOTH,
        Honoured("0.01 to 100; over prompt and answer; 1 = off"),
    ),
    field(
        "presence_penalty",
        BOTH,
        Honoured("-2 to 2; over the answer; 0 = off"),
    ),
    field(
        "frequency_penalty",
        BOTH,
        Honoured("-2 to 2; over the answer; 0 = off"),
    ),
    field(
        "logit_bias",
        BOTH,
        Honoured("token id to a number in -100 to 100, added to its logit"),
    ),
    field(
        "allowed_token_ids",
        BOTH,
        Honoured(
            "token ids, each once: no other token is drawn, no end token either unless it is among them",
        ),
    ),
    field(
        "bad_words",
        BOTH,
        Honoured(
            "a list of texts, white space before each left out: its tokens, as it stands alone or behind a space, are never drawn one after the other. Tokens are kept out, not letters: others may still spell a text",
        ),
    ),
    field("max_tokens", BOTH, Honoured("most tokens to generate")),
    field("max_completion_tokens", CHAT, Honoured("as max_tokens")),
    field(
        "priority",
        BOTH,
        Honoured("lower is served first, with `--policy priority`; without it only 0"),
    ),
    field(
        "deadline_ms",
        BOTH,
        Honoured(
            "1 to 86400000: not done in so many milliseconds from its arrival, the request fails",
        ),
    ),
    field(
        "cache_salt",
        BOTH,
        Honoured("a text; no cached prefix is shared with requests of another salt"),
    ),
    field(
        "min_tokens",
        BOTH,
        Honoured("no stop token before this many tokens"),
    ),
    field(
        "stop",
        BOTH,
        Honoured("a text or a list of texts that end the answer, left out of it"),
    ),
    field(
        "stop_token_ids",
        BOTH,
        Honoured("token ids that end the answer, left out of it"),
    ),
    field(
        "ignore_eos",
        BOTH,
        Honoured("go on past the model's own end tokens"),
    ),
    field(
        "include_stop_str_in_output",
        BOTH,
        Honoured("keep the stop text in the answer"),
    ),
    field(
        "skip_special_tokens",
        BOTH,
        Honoured("false: control tokens appear in the answer by name"),
    ),
    field(
        "logprobs",
        CHAT,
        Honoured("true: logprobs of the answer's tokens"),
    ),
    field(
        "top_logprobs",
        CHAT,
        Honoured("alternatives at each token, to 20; needs logprobs"),
    ),
    field(
        "logprobs",
        TEXT,
        Honoured("alternatives at each token, 0 to 20; with echo, for the prompt too"),
    ),
    field("echo", TEXT, Honoured("the prompt before the answer")),
    field(
        "add_special_tokens",
        &[Completions, Tokenize],
        Honoured("false: nothing is put before the prompt (the model's BOS, where it has one)"),
    ),
    field(
        "add_generation_prompt",
        &[Chat, Tokenize],
        Honoured("false: the rendered chat does not open an assistant message"),
    ),
    field(
        "return_token_strs",
        &[Tokenize],
        Honoured("true: token_strs beside the ids"),
    ),
    // Fields that cannot change an answer.
    field("user", BOTH, Inert("names the end user")),
    field("metadata", BOTH, Inert("labels of a stored answer")),
    field("store", BOTH, Inert("nothing is ever stored")),
    field("safety_identifier", BOTH, Inert("names the end user")),
    field(
        "prompt_cache_key",
        BOTH,
        Inert("a hint for placing requests"),
    ),
    field("prompt_cache_retention", BOTH, Inert("a hint for caching")),
    field("service_tier", BOTH, Inert("there is one tier")),
    // Fields whose default asks for nothing.
    field("response_format", BOTH, Only(r#"{"type":"text"}"#, SCHEMA)),
    field("tool_choice", CHAT, Only(r#""none""#, TOOLS)),
    field("modalities", CHAT, Only(r#"["text"]"#, MEDIA)),
    field(
        "echo",
        CHAT,
        Only(
            "false",
            "a chat answer holds the answer alone; use /v1/completions",
        ),
    ),
    field(
        "continue_final_message",
        &[Chat, Tokenize],
        Only("false", "not offered yet"),
    ),
    field(
        "add_special_tokens",
        CHAT,
        Only(
            "false",
            "the chat template writes the special tokens itself",
        ),
    ),
    field(
        "spaces_between_special_tokens",
        BOTH,
        Only("true", "tokens are joined as the tokenizer defines"),
    ),
    field(
        "use_beam_search",
        BOTH,
        Only("false", "beam search is not offered"),
    ),
    field(
        "return_token_ids",
        BOTH,
        Only("false", "ask for logprobs, or use /tokenize"),
    ),
    field(
        "return_tokens_as_token_ids",
        BOTH,
        Only("false", "tokens are given as text and bytes"),
    ),
    // Refused by name.
    field("tools", CHAT, Refused(TOOLS)),
    field("functions", CHAT, Refused(TOOLS)),
    field("function_call", CHAT, Refused(TOOLS)),
    field("parallel_tool_calls", CHAT, Refused(TOOLS)),
    field("audio", CHAT, Refused(MEDIA)),
    field(
        "prediction",
        CHAT,
        Refused("predicted outputs are not offered"),
    ),
    field("reasoning_effort", CHAT, Refused("not offered yet")),
    field(
        "verbosity",
        CHAT,
        Refused("not offered: ask for it in the messages"),
    ),
    field(
        "web_search_options",
        CHAT,
        Refused("this server fetches nothing"),
    ),
    field("chat_template", &[Chat, Tokenize], Refused(TEMPLATE)),
    field("chat_template_kwargs", &[Chat, Tokenize], Refused(TEMPLATE)),
    field("documents", CHAT, Refused(TEMPLATE)),
    field(
        "best_of",
        TEXT,
        Refused("answers are not ranked here; ask for n and choose"),
    ),
    field(
        "suffix",
        TEXT,
        Refused("this server completes at the end only"),
    ),
    field(
        "prompt_logprobs",
        BOTH,
        Refused("use /v1/completions with echo and logprobs"),
    ),
    field(
        "truncate_prompt_tokens",
        BOTH,
        Refused("prompts are never cut; shorten it yourself"),
    ),
    field("length_penalty", BOTH, Refused("it belongs to beam search")),
    field("structured_outputs", BOTH, Refused(SCHEMA)),
    field("guided_json", BOTH, Refused(SCHEMA)),
    field("guided_regex", BOTH, Refused(SCHEMA)),
    field("guided_choice", BOTH, Refused(SCHEMA)),
    field("guided_grammar", BOTH, Refused(SCHEMA)),
];

/// The fields of one endpoint.
pub fn of(endpoint: Endpoint) -> impl Iterator<Item = &'static Field> {
    FIELDS
        .iter()
        .filter(move |f| f.endpoints.contains(&endpoint))
}

/// The table of one endpoint as /serve-config shows it.
#[must_use]
pub fn describe(endpoint: Endpoint) -> Value {
    let group = |pick: fn(Rule) -> Option<String>| -> Value {
        of(endpoint)
            .filter_map(|f| pick(f.rule).map(|text| (f.name.to_owned(), Value::from(text))))
            .collect::<serde_json::Map<_, _>>()
            .into()
    };
    json!({
        "honoured": group(|r| match r {
            Honoured(what) => Some(what.to_owned()),
            Only(value, why) => Some(format!("only {value}: {why}")),
            _ => None,
        }),
        "cannot_change_an_answer": group(|r| match r {
            Inert(why) => Some(why.to_owned()),
            _ => None,
        }),
        "refused": group(|r| match r {
            Refused(why) => Some(why.to_owned()),
            _ => None,
        }),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use metrale_sampling::SamplingFields;

    #[test]
    fn no_field_stands_twice_for_one_endpoint() {
        for endpoint in [Chat, Completions, Tokenize, Detokenize] {
            let mut names: Vec<_> = of(endpoint).map(|f| f.name).collect();
            let all = names.len();
            names.sort_unstable();
            names.dedup();
            assert_eq!(names.len(), all, "{endpoint:?}");
        }
    }

    #[test]
    fn only_values_are_json() {
        for f in FIELDS {
            if let Only(value, _) = f.rule {
                assert!(serde_json::from_str::<Value>(value).is_ok(), "{}", f.name);
            }
        }
    }

    /// The page says the ranges that hold.
    #[test]
    fn sampling_fields_state_their_ranges() {
        for range in [
            SamplingFields::TEMPERATURE,
            SamplingFields::TOP_P,
            SamplingFields::MIN_P,
            SamplingFields::REPETITION_PENALTY,
            SamplingFields::PRESENCE_PENALTY,
            SamplingFields::FREQUENCY_PENALTY,
        ] {
            let field = FIELDS.iter().find(|f| f.name == range.field).unwrap();
            let between = if range.above { "above " } else { "" };
            let comma = if range.above { "," } else { "" };
            let stated = format!("{between}{}{comma} to {}", range.least, range.most);
            assert!(
                matches!(field.rule, Honoured(text) if text.starts_with(&stated)),
                "{stated}: {field:?}"
            );
        }
    }
}
