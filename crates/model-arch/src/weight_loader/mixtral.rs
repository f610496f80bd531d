// SPDX-License-Identifier: MIT OR Apache-2.0
//! Mixtral.

use metrale_model_layers::Source;
use metrale_model_layers::weight_map::{NameRow, experts, whole};

use super::{ModelWeightLoader, common, llama, qwen3};

/// The `mixtral` family: w1 is the gate, w3 the way up, w2 the way down.
pub struct Mixtral;

impl ModelWeightLoader for Mixtral {
    fn names(&self, source: Source) -> &'static [&'static [NameRow]] {
        match source {
            Source::Hf => &[EXPERTS, common::HF],
            Source::Gguf => &[qwen3::EXPERTS_GGUF, llama::GGUF, common::GGUF],
        }
    }
}

const EXPERTS: &[NameRow] = &[
    whole("router", "model.layers.{}.block_sparse_moe.gate.weight"),
    experts(
        "gate_exps",
        "model.layers.{}.block_sparse_moe.experts.{e}.w1.weight",
    ),
    experts(
        "up_exps",
        "model.layers.{}.block_sparse_moe.experts.{e}.w3.weight",
    ),
    experts(
        "down_exps",
        "model.layers.{}.block_sparse_moe.experts.{e}.w2.weight",
    ),
];
