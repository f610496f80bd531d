// SPDX-License-Identifier: MIT OR Apache-2.0
//! From what a request says to the tokens of its prompt.

use std::sync::Arc;

use super::app::App;
use super::blocking::on_text;
use crate::api::error::{ApiError, Room};
use crate::engine_face::ServedModel;
use crate::text_face::{ChatInput, ChatMessage, EncodeError, Specials, TemplateError, TextModel};

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
    let (text, room) = (Arc::clone(&served.text), served.card.room());
    let bytes = messages.iter().filter_map(|m| m.content.as_ref());
    let bytes = bytes.map(String::len).sum::<usize>() + messages.len();
    on_text(app, bytes, move || {
        let input = ChatInput {
            messages: &messages,
            tools: &[],
            add_generation_prompt,
        };
        let pieces = template.render(&input).map_err(from_template)?;
        check_tokens(&*text, pieces.iter().map(|p| p.text.as_str()), room)?;
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
    let (text, room) = (Arc::clone(&served.text), served.card.room());
    if !text.reads_text() {
        return Err(ApiError::Unsupported {
            path: "prompt".to_owned(),
            why: "this model has no tokenizer; give the prompt as a list of token ids".to_owned(),
        });
    }
    on_text(app, prompt.len(), move || {
        check_tokens(&*text, [prompt.as_str()].into_iter(), room)?;
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
    let room = served.card.room();
    let most = room
        .tokens
        .saturating_mul(served.text.longest_token() as u64 * 4);
    if bytes as u64 > most {
        return Err(ApiError::PromptBytes { bytes, room });
    }
    Ok(())
}

/// Bytes of text that are tokenized at once, however many tokens come of it.
pub(crate) const WHOLE: usize = 256 << 10;
/// Bytes of the stretches that a longer text is looked at in.
const STRETCH: usize = 64 << 10;

/// Refuses a long text that holds far more tokens than the context before it is tokenized whole. Measured: where tokens are
/// short, the tokenizer takes 350 bytes of memory for each byte of text, 10 GB for a body at its limit.
fn check_tokens<'a>(
    text: &dyn TextModel,
    parts: impl Iterator<Item = &'a str> + Clone,
    room: Room,
) -> Result<(), ApiError> {
    let bytes = parts.clone().map(str::len).sum();
    // A cut adds a token or two to a stretch, never as many again.
    let most = usize::try_from(room.tokens)
        .unwrap_or(usize::MAX)
        .saturating_mul(2);
    let count = |stretch: &str| text.encode(stretch, Specials::Parse).map(|ids| ids.len());
    if bytes > WHOLE && exceeds(parts, most, count).map_err(from_tokenizer)? {
        return Err(ApiError::PromptBytes { bytes, room });
    }
    Ok(())
}

/// Whether the joined parts, counted stretch by stretch, have more than `most` tokens. Looks no further than it must.
fn exceeds<'a, E>(
    parts: impl Iterator<Item = &'a str>,
    most: usize,
    count: impl Fn(&str) -> Result<usize, E>,
) -> Result<bool, E> {
    let (mut stretch, mut tokens) = (String::new(), 0);
    for mut part in parts {
        while stretch.len() + part.len() >= STRETCH {
            let (head, tail) = part.split_at(part.floor_char_boundary(STRETCH - stretch.len()));
            stretch.push_str(head);
            part = tail;
            tokens += count(&stretch)?;
            stretch.clear();
            if tokens > most {
                return Ok(true);
            }
        }
        stretch.push_str(part);
    }
    Ok(tokens + count(&stretch)? > most)
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

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::convert::Infallible;

    use super::*;

    /// One token a character; gives the answer and the stretches looked at.
    fn seen(parts: &[&str], most: usize) -> (bool, Vec<String>) {
        let looked = RefCell::new(Vec::new());
        let over = exceeds(parts.iter().copied(), most, |stretch| {
            looked.borrow_mut().push(stretch.to_owned());
            Ok::<_, Infallible>(stretch.chars().count())
        });
        (over.unwrap_or_default(), looked.into_inner())
    }

    #[test]
    fn a_text_is_counted_whole_in_stretches_that_split_no_character() {
        // Three bytes each: no stretch ends where its bytes would.
        let text = "\u{20ac}".repeat(50_000);
        let parts = [text.as_str(), "ab", "", "c", text.as_str()];
        let characters = 100_003;
        let (over, looked) = seen(&parts, characters);
        assert!(!over);
        assert_eq!(looked.concat(), parts.concat());
        assert!(looked.iter().all(|s| s.len() <= STRETCH));
        assert!(seen(&parts, characters - 1).0);
    }

    #[test]
    fn counting_ends_where_the_answer_is_known() {
        let text = "a".repeat(100 * STRETCH);
        let (over, looked) = seen(&[&text], STRETCH + 1);
        assert!(over);
        assert_eq!(looked.len(), 2);
    }
}
