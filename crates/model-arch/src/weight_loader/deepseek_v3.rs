// SPDX-License-Identifier: MIT OR Apache-2.0
//! DeepSeek-V3: rotating columns interleaved, keys and values of all heads in one projection.

use metrale_model_layers::Source;
use metrale_model_layers::weight_map::{How, NameRow, experts, row, whole};

use super::{ModelWeightLoader, common};

/// The `deepseek_v3` family.
pub struct DeepseekV3;

impl ModelWeightLoader for DeepseekV3 {
    fn names(&self, _: Source) -> &'static [&'static [NameRow]] {
        &[OWN, common::HF]
    }

    /// The layers that predict further tokens stand behind the last one.
    fn unused(&self) -> &'static [&'static str] {
        &["model.layers.{}.*"]
    }
}

const KV_B: &str = "model.layers.{}.self_attn.kv_b_proj.weight";

const OWN: &[NameRow] = &[
    row(
        "q_proj",
        "model.layers.{}.self_attn.q_proj.weight",
        How::Pairs("nope + rot", "nope"),
    ),
    whole("q_a", "model.layers.{}.self_attn.q_a_proj.weight"),
    whole("q_a_norm", "model.layers.{}.self_attn.q_a_layernorm.weight"),
    row(
        "q_b",
        "model.layers.{}.self_attn.q_b_proj.weight",
        How::Pairs("nope + rot", "nope"),
    ),
    row(
        "kv_a",
        "model.layers.{}.self_attn.kv_a_proj_with_mqa.weight",
        How::Pairs("rank + rot", "rank"),
    ),
    whole(
        "kv_a_norm",
        "model.layers.{}.self_attn.kv_a_layernorm.weight",
    ),
    row(
        "k_b",
        KV_B,
        How::Transposed {
            shape: &["heads * (nope + v_dim)", "rank"],
            disk_rows: "nope + v_dim",
            first: 0,
            step: 1,
        },
    ),
    row(
        "v_b",
        KV_B,
        How::Blocks {
            shape: &["heads * (nope + v_dim)", "rank"],
            take: "v_dim",
            period: "nope + v_dim",
            first: "nope",
        },
    ),
    whole("router", "model.layers.{}.mlp.gate.weight"),
    whole(
        "router_bias",
        "model.layers.{}.mlp.gate.e_score_correction_bias",
    ),
    experts(
        "gate_exps",
        "model.layers.{}.mlp.experts.{e}.gate_proj.weight",
    ),
    experts("up_exps", "model.layers.{}.mlp.experts.{e}.up_proj.weight"),
    experts(
        "down_exps",
        "model.layers.{}.mlp.experts.{e}.down_proj.weight",
    ),
    whole(
        "shared_gate",
        "model.layers.{}.mlp.shared_experts.gate_proj.weight",
    ),
    whole(
        "shared_up",
        "model.layers.{}.mlp.shared_experts.up_proj.weight",
    ),
    whole(
        "shared_down",
        "model.layers.{}.mlp.shared_experts.down_proj.weight",
    ),
];
