// SPDX-License-Identifier: MIT OR Apache-2.0
//! Qwen2 and Qwen3, dense and with experts.

use metrale_model_layers::Source;
use metrale_model_layers::weight_map::{NameRow, experts, whole};

use super::{ModelWeightLoader, common};

/// The families `qwen2`, `qwen3` and `qwen3_moe`. GGUF files keep the order of Hugging Face in each head.
pub struct Qwen3;

impl ModelWeightLoader for Qwen3 {
    fn names(&self, source: Source) -> &'static [&'static [NameRow]] {
        match source {
            Source::Hf => &[EXPERTS_HF, common::HF],
            Source::Gguf => &[EXPERTS_GGUF, common::GGUF],
        }
    }
}

pub(super) const EXPERTS_HF: &[NameRow] = &[
    whole("router", "model.layers.{}.mlp.gate.weight"),
    experts(
        "gate_exps",
        "model.layers.{}.mlp.experts.{e}.gate_proj.weight",
    ),
    experts("up_exps", "model.layers.{}.mlp.experts.{e}.up_proj.weight"),
    experts(
        "down_exps",
        "model.layers.{}.mlp.experts.{e}.down_proj.weight",
    ),
];

pub(super) const EXPERTS_GGUF: &[NameRow] = &[
    whole("router", "blk.{}.ffn_gate_inp.weight"),
    whole("gate_exps", "blk.{}.ffn_gate_exps.weight"),
    whole("up_exps", "blk.{}.ffn_up_exps.weight"),
    whole("down_exps", "blk.{}.ffn_down_exps.weight"),
];
