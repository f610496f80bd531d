// SPDX-License-Identifier: MIT OR Apache-2.0
//! The typed configuration of a checkpoint: everything that is not architecture.

use std::collections::BTreeSet;

use metrale_core::{Elem, FlatMap};
use thiserror::Error;

use crate::chat_template::ChatTemplate;
use crate::flatten::FlattenError;
use crate::generation::GenerationDefaults;
use crate::gguf::GgufError;
use crate::json::JsonError;

/// A checkpoint's configuration, read by [`from_hf`](crate::hf::from_hf) or
/// [`from_gguf`](crate::gguf_config::from_gguf).
///
/// Architecture (layers, heads, rope) stays in `flat`, under the file's own keys, for the circuit's config map alone.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelConfig {
    /// `model_type` of config.json or `general.architecture` of a GGUF, as spelled there.
    pub architecture: String,
    /// First entry of `architectures` (Hugging Face only), e.g. `LlamaForCausalLM`.
    pub class: Option<String>,
    /// Whose key and tensor names the checkpoint uses.
    pub source: ConfigSource,
    /// `general.name` of a GGUF; a Hugging Face configuration does not know its name.
    pub name: Option<String>,
    /// Every configuration key except the tokenizer's, nesting written with dots.
    pub flat: FlatMap,
    /// Keys of the first level that config.json gives as `null`, which says "not set" and is not the same as leaving the key out
    /// where its family's default is something else.
    pub nulls: BTreeSet<String>,
    /// Tokens that the model was trained for, if the file says.
    pub context_length: Option<u64>,
    /// Token that begins a sequence.
    pub bos: Option<u32>,
    /// Tokens that end a turn or a sequence, without repetition; generation stops at any of them.
    pub eos: Vec<u32>,
    /// Padding token. Never used in serving; kept for tools.
    pub pad: Option<u32>,
    /// Element type the weights were saved in, if config.json says (a GGUF says it per tensor).
    pub dtype: Option<Elem>,
    /// Sampling defaults.
    pub generation: GenerationDefaults,
    /// Chat templates; the unnamed one is called `default`.
    pub chat_templates: Vec<ChatTemplate>,
}

impl ModelConfig {
    /// The chat template called `name` (`default` for the unnamed one).
    pub fn chat_template(&self, name: &str) -> Option<&ChatTemplate> {
        self.chat_templates.iter().find(|t| t.name == name)
    }
}

/// The naming scheme of a checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ConfigSource {
    /// config.json and safetensors.
    Hf,
    /// A GGUF header.
    Gguf,
}

/// A configuration that cannot be used. The blame is the checkpoint's.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// A JSON file of the checkpoint does not parse.
    #[error("{file}: {source}")]
    Json {
        /// The file's name.
        file: String,
        /// Why.
        source: JsonError,
    },
    /// A configuration without a flat form.
    #[error("{file}: {source}")]
    Flatten {
        /// The file's name.
        file: String,
        /// Why.
        source: FlattenError,
    },
    /// A key that is missing, of the wrong type or outside its range.
    #[error("{file}: key `{key}` {why}")]
    Key {
        /// The file's name.
        file: String,
        /// The key, nesting written with dots.
        key: String,
        /// What is wrong and what was expected.
        why: String,
    },
    /// A chat template that is not UTF-8.
    #[error("{file}: the chat template is not UTF-8")]
    TemplateUtf8 {
        /// The file's name.
        file: String,
    },
    /// A GGUF header that does not read.
    #[error(transparent)]
    Gguf(#[from] GgufError),
}

impl ConfigError {
    pub(crate) fn key(file: &str, key: &str, why: String) -> Self {
        Self::Key {
            file: file.to_owned(),
            key: key.to_owned(),
            why,
        }
    }
}
