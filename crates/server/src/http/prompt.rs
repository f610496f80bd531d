// SPDX-License-Identifier: MIT OR Apache-2.0
//! From what a request says to the tokens of its prompt.

use std::sync::Arc;

use super::app::App;
use super::blocking::on_text;
use crate::api::error::ApiError;
use crate::engine_face::ServedModel;
use crate::text_face::{ChatInput, ChatMessage, EncodeError, Specials, TemplateError};

/// The tokens of a rendered chat.
pub(super) async fn chat(
    app: &App,
    served: &Arc<ServedModel>,
    messages: Vec<ChatMessage>,
    add_generation_prompt: bool,
) -> Result<Vec<u32>, ApiError> {
    let template = served
        .template
        .clone()
        .ok_or_else(|| ApiError::Unsupported {
            path: "messages".to_owned(),
            why: "this checkpoint has no chat template; use /v1/completions".to_owned(),
        })?;
    let text = Arc::clone(&served.text);
    let bytes = messages.iter().filter_map(|m| m.content.as_ref());
    let bytes = bytes.map(String::len).sum::<usize>() + messages.len();
    on_text(app, bytes, move || {
        let input = ChatInput {
            messages: &messages,
            tools: &[],
            add_generation_prompt,
        };
        let pieces = template.render(&input).map_err(from_template)?;
        text.encode_pieces(&pieces).map_err(from_tokenizer)
    })
    .await
}

/// The tokens of a plain text, with the model's prefix where it is wanted, and how many those are.
pub(super) async fn plain(
    app: &App,
    served: &Arc<ServedModel>,
    prompt: String,
    add_special_tokens: bool,
) -> Result<(Vec<u32>, usize), ApiError> {
    let text = Arc::clone(&served.text);
    on_text(app, prompt.len(), move || {
        let mut ids = match add_special_tokens {
            true => text.prompt_prefix().to_vec(),
            false => Vec::new(),
        };
        let prefix = ids.len();
        let encoded = text.encode(&prompt, Specials::Parse);
        ids.extend(encoded.map_err(from_tokenizer)?);
        Ok((ids, prefix))
    })
    .await
}

/// Refuses text that cannot fit, before the work of tokenizing it. Normalization may shorten a text, but not fourfold.
pub(super) fn check_bytes(served: &ServedModel, bytes: usize) -> Result<(), ApiError> {
    let limit = u64::from(served.card.max_model_len);
    let most = limit.saturating_mul(served.text.longest_token() as u64 * 4);
    if bytes as u64 > most {
        return Err(ApiError::PromptBytes { bytes, limit });
    }
    Ok(())
}

fn from_template(e: TemplateError) -> ApiError {
    match e {
        TemplateError::Refused(_) | TemplateError::Limit(_) => ApiError::Template(e.to_string()),
        TemplateError::Failed(_) => ApiError::Checkpoint(e.to_string()),
    }
}

fn from_tokenizer(e: EncodeError) -> ApiError {
    ApiError::Checkpoint(e.to_string())
}
