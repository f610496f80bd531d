// SPDX-License-Identifier: MIT OR Apache-2.0
//! OLMo 2.

use metrale_model_layers::Source;
use metrale_model_layers::weight_map::{NameRow, whole};

use super::{ModelWeightLoader, common, gemma};

/// The `olmo2` family: both norms of a layer stand behind its halves.
pub struct Olmo2;

impl ModelWeightLoader for Olmo2 {
    fn names(&self, source: Source) -> &'static [&'static [NameRow]] {
        match source {
            Source::Hf => &[NORMS, common::HF],
            Source::Gguf => &[gemma::NORMS_GGUF, common::GGUF],
        }
    }
}

const NORMS: &[NameRow] = &[
    whole(
        "post_attn_norm",
        "model.layers.{}.post_attention_layernorm.weight",
    ),
    whole(
        "post_ffn_norm",
        "model.layers.{}.post_feedforward_layernorm.weight",
    ),
];
