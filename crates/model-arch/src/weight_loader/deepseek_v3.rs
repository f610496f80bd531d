// SPDX-License-Identifier: MIT OR Apache-2.0
//! DeepSeek-V3: rotating columns interleaved, keys and values of all heads in one projection.

use metrale_model_layers::Source;
use metrale_model_layers::weight_map::{How, NameRow, experts, row, whole};

use super::{ModelWeightLoader, common, qwen3};

/// The `deepseek_v3` family.
pub struct DeepseekV3;

impl ModelWeightLoader for DeepseekV3 {
    fn names(&self, source: Source) -> &'static [&'static [NameRow]] {
        match source {
            Source::Hf => &[OWN, common::HF],
            Source::Gguf => &[GGUF, qwen3::EXPERTS_GGUF, common::GGUF],
        }
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

/// GGUF: keys and values of all heads apart, keys transposed.
const GGUF: &[NameRow] = &[
    row(
        "q_proj",
        "blk.{}.attn_q.weight",
        How::Pairs("nope + rot", "nope"),
    ),
    whole("q_a", "blk.{}.attn_q_a.weight"),
    whole("q_a_norm", "blk.{}.attn_q_a_norm.weight"),
    row(
        "q_b",
        "blk.{}.attn_q_b.weight",
        How::Pairs("nope + rot", "nope"),
    ),
    row(
        "kv_a",
        "blk.{}.attn_kv_a_mqa.weight",
        How::Pairs("rank + rot", "rank"),
    ),
    whole("kv_a_norm", "blk.{}.attn_kv_a_norm.weight"),
    whole("k_b", "blk.{}.attn_k_b.weight"),
    whole("v_b", "blk.{}.attn_v_b.weight"),
    whole("router_bias", "blk.{}.exp_probs_b.bias"),
    whole("shared_gate", "blk.{}.ffn_gate_shexp.weight"),
    whole("shared_up", "blk.{}.ffn_up_shexp.weight"),
    whole("shared_down", "blk.{}.ffn_down_shexp.weight"),
];
