// SPDX-License-Identifier: MIT OR Apache-2.0
//! Why a checkpoint's tokenizer was refused.

/// A tokenizer that cannot be built, or text that cannot be tokenized. Except for [`TokenizerError::Encode`], the checkpoint
/// is at fault, and the message says which of its keys.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TokenizerError {
    /// The checkpoint lacks a key that its kind of tokenizer cannot do without.
    #[error("the checkpoint has no `{key}`; use one that holds its tokenizer")]
    Missing {
        /// The GGUF key or the file's field.
        key: &'static str,
    },
    /// `tokenizer.ggml.model` names an algorithm that this build does not have.
    #[error("`tokenizer.ggml.model` is `{model}`; known are: {known}")]
    UnknownModel {
        /// The name in the file.
        model: String,
        /// The names this build takes.
        known: String,
    },
    /// `tokenizer.ggml.pre` names a pre-tokenizer that this build does not have: another one would give other ids.
    #[error(
        "`tokenizer.ggml.pre` is `{pre}`, an unknown pre-tokenizer; known are: {known}. Use the model's safetensors checkpoint, whose tokenizer.json says it whole"
    )]
    UnknownPre {
        /// The name in the file.
        pre: String,
        /// The names this build takes.
        known: String,
    },
    /// A list or number contradicts the rest of the tokenizer.
    #[error("`{key}`: {what}")]
    Invalid {
        /// The GGUF key or the file's field.
        key: &'static str,
        /// What is wrong, with the values.
        what: String,
    },
    /// `tokenizer.json` could not be read by the `tokenizers` library.
    #[error("tokenizer.json: {0}")]
    Json(String),
    /// A file of the tokenizer cannot be read.
    #[error(transparent)]
    File(#[from] metrale_model_weights::WeightsError),
    /// The text could not be tokenized (no unknown token, say, for a character outside the vocabulary).
    #[error("the text cannot be tokenized: {0}")]
    Encode(String),
    /// A token id outside the vocabulary, given by a request.
    #[error("token id {id} is outside the vocabulary of {size} tokens")]
    UnknownId {
        /// The id.
        id: u32,
        /// Tokens in the vocabulary.
        size: usize,
    },
}

impl TokenizerError {
    pub(super) fn invalid(key: &'static str, what: impl Into<String>) -> Self {
        Self::Invalid {
            key,
            what: what.into(),
        }
    }
}
