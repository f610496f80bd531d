// SPDX-License-Identifier: MIT OR Apache-2.0
//! Why a chat template gave no prompt.

/// A template that cannot be used, or a conversation that it does not take.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TemplateError {
    /// The checkpoint has no chat template.
    #[error(
        "the checkpoint has no chat template; use the completions endpoint, or put chat_template.jinja beside the checkpoint"
    )]
    None,
    /// The template does not parse. The checkpoint is at fault.
    #[error("chat template of {origin}{}: {what}", at(*line))]
    Syntax {
        /// The file or GGUF key that holds it.
        origin: String,
        /// Line of the template, from 1.
        line: Option<usize>,
        /// What the parser said.
        what: String,
    },
    /// The template called `raise_exception`: it does not take this conversation. The request is at fault.
    #[error("the model's chat template refuses this conversation: {0}")]
    Raised(String),
    /// The template failed on this conversation.
    #[error("the model's chat template failed{}: {what}", at(*line))]
    Failed {
        /// Line of the template, from 1.
        line: Option<usize>,
        /// What it did.
        what: String,
    },
    /// The template did more work than [`TemplateLimits`](super::TemplateLimits) allow.
    #[error("the model's chat template did not end within {fuel} steps")]
    OutOfFuel {
        /// The bound that applied, in instructions.
        fuel: u64,
    },
    /// The prompt became longer than [`TemplateLimits`](super::TemplateLimits) allow.
    #[error("the prompt would be longer than {limit} bytes")]
    TooLong {
        /// The bound that applied, in bytes.
        limit: usize,
    },
    /// The conversation uses every character of the private-use area, so none is left to mark control tokens with.
    #[error("the conversation uses all private-use characters (U+E000 to U+F8FF)")]
    NoMarker,
}

fn at(line: Option<usize>) -> String {
    line.map(|l| format!(", line {l}")).unwrap_or_default()
}
