// SPDX-License-Identifier: MIT OR Apache-2.0
//! Phi-3 and Phi-4 (text).

use metrale_model_layers::Source;
use metrale_model_layers::weight_map::{NameRow, among};

use super::{ModelWeightLoader, common};

/// The `phi3` family: q, k and v in one tensor, gate and up in another.
pub struct Phi3;

impl ModelWeightLoader for Phi3 {
    fn names(&self, source: Source) -> &'static [&'static [NameRow]] {
        match source {
            Source::Hf => &[FUSED_HF, common::HF],
            Source::Gguf => &[FUSED_GGUF, common::GGUF],
        }
    }
}

const FUSED_HF: &[NameRow] = &fused(
    "model.layers.{}.self_attn.qkv_proj.weight",
    "model.layers.{}.mlp.gate_up_proj.weight",
);
const FUSED_GGUF: &[NameRow] = &fused("blk.{}.attn_qkv.weight", "blk.{}.ffn_up.weight");

const fn fused(qkv: &'static str, gate_up: &'static str) -> [NameRow; 5] {
    [
        among("q_proj", qkv, &["q_proj", "k_proj", "v_proj"]),
        among("k_proj", qkv, &["q_proj", "k_proj", "v_proj"]),
        among("v_proj", qkv, &["q_proj", "k_proj", "v_proj"]),
        among("gate_proj", gate_up, &["gate_proj", "up_proj"]),
        among("up_proj", gate_up, &["gate_proj", "up_proj"]),
    ]
}
