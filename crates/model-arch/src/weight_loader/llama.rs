// SPDX-License-Identifier: MIT OR Apache-2.0
//! Llama 2 and 3, SmolLM2 and whatever else publishes under `model_type = "llama"`; Mistral and Granite share its names.

use metrale_model_layers::Source;
use metrale_model_layers::weight_map::{NameRow, interleaved};

use super::{ModelWeightLoader, common};

/// The `llama` family.
pub struct Llama;

impl ModelWeightLoader for Llama {
    fn names(&self, source: Source) -> &'static [&'static [NameRow]] {
        match source {
            Source::Hf => &[common::HF],
            Source::Gguf => &[GGUF, common::GGUF],
        }
    }
}

/// GGUF files of this architecture interleave the halves of each head.
pub(super) const GGUF: &[NameRow] = &[
    interleaved("q_proj", "blk.{}.attn_q.weight"),
    interleaved("k_proj", "blk.{}.attn_k.weight"),
    interleaved("q_bias", "blk.{}.attn_q.bias"),
    interleaved("k_bias", "blk.{}.attn_k.bias"),
];
