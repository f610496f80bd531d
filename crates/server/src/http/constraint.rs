// SPDX-License-Identifier: MIT OR Apache-2.0
//! From what a request says of its tokens to a constraint.

use std::sync::Arc;

use metrale_scheduler::TokenConstraint;

use super::app::App;
use super::blocking::on_text;
use crate::api::error::ApiError;
use crate::api::sampling::Generation;
use crate::constraint::{NoneLeft, constraint, spellings};
use crate::engine_face::ServedModel;

/// What `allowed_token_ids` and `bad_words` come to; `None` where the request has neither.
pub(super) async fn of(
    app: &App,
    served: &Arc<ServedModel>,
    generation: &Generation,
) -> Result<Option<Box<dyn TokenConstraint>>, ApiError> {
    let text = Arc::clone(&served.text);
    let vocab = text.vocab_size();
    let allowed = generation.allowed_token_ids.clone();
    let words = generation.bad_words.clone();
    if words.is_empty() {
        return constraint(vocab, allowed.as_deref(), Vec::new()).map_err(none_left);
    }
    if !text.reads_text() {
        return Err(ApiError::Unsupported {
            path: "bad_words".to_owned(),
            why: "this model has no tokenizer; see allowed_token_ids and logit_bias".to_owned(),
        });
    }
    on_text(app, words.iter().map(String::len).sum(), move || {
        let bad = spellings(&*text, &words).map_err(|e| ApiError::Checkpoint(e.to_string()))?;
        constraint(vocab, allowed.as_deref(), bad).map_err(none_left)
    })
    .await
}

fn none_left(_: NoneLeft) -> ApiError {
    ApiError::invalid("bad_words", "leaves no token that could be drawn")
}
