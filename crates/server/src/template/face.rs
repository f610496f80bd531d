// SPDX-License-Identifier: MIT OR Apache-2.0
//! The template as the HTTP side sees it.

use std::time::SystemTime;

use serde_json::{Map, Value as Json};

use super::{ChatTemplate, RenderInput, TemplateError};
use crate::text_face::{self, ChatInput, ChatMessage, Piece};

impl text_face::ChatTemplate for ChatTemplate {
    fn render(&self, input: &ChatInput<'_>) -> Result<Vec<Piece>, text_face::TemplateError> {
        let messages: Vec<Json> = input.messages.iter().map(message).collect();
        let rendered = self.render(&RenderInput {
            messages: &messages,
            tools: Some(input.tools),
            add_generation_prompt: input.add_generation_prompt,
            variables: &Map::new(),
            now: SystemTime::now(),
        });
        rendered.map_err(|e| match e {
            TemplateError::Raised(message) => text_face::TemplateError::Refused(message),
            TemplateError::OutOfFuel { fuel } => {
                text_face::TemplateError::Limit(format!("{fuel} steps"))
            }
            TemplateError::TooLong { limit } => {
                text_face::TemplateError::Limit(format!("{limit} bytes"))
            }
            other => text_face::TemplateError::Failed(other.to_string()),
        })
    }
}

/// A message as templates know it: arguments of tool calls are an object there, where OpenAI writes JSON in a string.
fn message(message: &ChatMessage) -> Json {
    let mut out = Map::new();
    out.insert("role".into(), Json::from(message.role.as_str()));
    let texts = [
        ("content", &message.content),
        ("name", &message.name),
        ("tool_call_id", &message.tool_call_id),
    ];
    for (key, text) in texts {
        if let Some(text) = text {
            out.insert(key.into(), Json::from(text.as_str()));
        }
    }
    if !message.tool_calls.is_empty() {
        let mut calls = message.tool_calls.clone();
        for arguments in calls
            .iter_mut()
            .filter_map(|c| c.pointer_mut("/function/arguments"))
        {
            let parsed = arguments
                .as_str()
                .and_then(|text| serde_json::from_str(text).ok());
            if let Some(object @ Json::Object(_)) = parsed {
                *arguments = object;
            }
        }
        out.insert("tool_calls".into(), Json::from(calls));
    }
    Json::Object(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_parsed_and_absent_fields_stay_absent() {
        let call = serde_json::json!({"type": "function", "function": {"name": "f", "arguments": "{\"b\": 1, \"a\": 2}"}});
        let broken = serde_json::json!({"function": {"arguments": "{"}});
        let m = message(&ChatMessage {
            role: "assistant".into(),
            tool_calls: vec![call, broken],
            ..ChatMessage::default()
        });
        assert_eq!(
            m.to_string(),
            r#"{"role":"assistant","tool_calls":[{"type":"function","function":{"name":"f","arguments":{"b":1,"a":2}}},{"function":{"arguments":"{"}}]}"#
        );
    }
}
