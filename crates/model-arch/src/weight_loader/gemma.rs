// SPDX-License-Identifier: MIT OR Apache-2.0
//! Gemma 2 and Gemma 3 (text).

use metrale_model_layers::Source;
use metrale_model_layers::weight_map::{NameRow, plus_one, whole};

use super::{ModelWeightLoader, common};

/// The families `gemma2` and `gemma3`. Norms multiply by one plus the weight; GGUF files have the sum.
pub struct Gemma;

impl ModelWeightLoader for Gemma {
    fn names(&self, source: Source) -> &'static [&'static [NameRow]] {
        match source {
            Source::Hf => &[NORMS_HF, common::HF],
            Source::Gguf => &[NORMS_GGUF, common::GGUF],
        }
    }
}

const NORMS_HF: &[NameRow] = &[
    plus_one("input_norm", "model.layers.{}.input_layernorm.weight"),
    plus_one(
        "post_attn_norm",
        "model.layers.{}.post_attention_layernorm.weight",
    ),
    plus_one(
        "post_norm",
        "model.layers.{}.pre_feedforward_layernorm.weight",
    ),
    plus_one(
        "post_ffn_norm",
        "model.layers.{}.post_feedforward_layernorm.weight",
    ),
    plus_one("q_norm", "model.layers.{}.self_attn.q_norm.weight"),
    plus_one("k_norm", "model.layers.{}.self_attn.k_norm.weight"),
    plus_one("final_norm", "model.norm.weight"),
];

pub(super) const NORMS_GGUF: &[NameRow] = &[
    whole("post_attn_norm", "blk.{}.post_attention_norm.weight"),
    whole("post_ffn_norm", "blk.{}.post_ffw_norm.weight"),
];
