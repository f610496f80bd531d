// SPDX-License-Identifier: MIT OR Apache-2.0
//! Phi-3 and Phi-4 (text).

use metrale_model_layers::Source;
use metrale_model_layers::weight_map::{NameRow, among};

use super::{ModelWeightLoader, common};

/// The `phi3` family: q, k and v in one tensor, gate and up in another.
pub struct Phi3;

impl ModelWeightLoader for Phi3 {
    fn names(&self, _: Source) -> &'static [&'static [NameRow]] {
        &[FUSED, common::HF]
    }
}

const QKV: &str = "model.layers.{}.self_attn.qkv_proj.weight";
const GATE_UP: &str = "model.layers.{}.mlp.gate_up_proj.weight";

const FUSED: &[NameRow] = &[
    among("q_proj", QKV, &["q_proj", "k_proj", "v_proj"]),
    among("k_proj", QKV, &["q_proj", "k_proj", "v_proj"]),
    among("v_proj", QKV, &["q_proj", "k_proj", "v_proj"]),
    among("gate_proj", GATE_UP, &["gate_proj", "up_proj"]),
    among("up_proj", GATE_UP, &["gate_proj", "up_proj"]),
];
