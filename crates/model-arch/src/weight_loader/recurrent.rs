// SPDX-License-Identifier: MIT OR Apache-2.0
//! Families with recurrent layers: Qwen3-Next, Qwen3.5, Mamba-2, Nemotron-H.

use metrale_model_layers::Source;
use metrale_model_layers::weight_map::{How, NameRow, among, experts, plus_one, row, whole};

use super::{ModelWeightLoader, common, qwen3};

/// The `qwen3_next` family: projections of the delta rule come in one tensor, head by head.
pub struct Qwen3Next;

impl ModelWeightLoader for Qwen3Next {
    fn names(&self, _: Source) -> &'static [&'static [NameRow]] {
        &[NEXT, DELTA, qwen3::EXPERTS_HF, common::HF]
    }

    fn unused(&self) -> &'static [&'static str] {
        &["mtp.*"]
    }
}

/// The `qwen3_5_text` family.
pub struct Qwen35;

impl ModelWeightLoader for Qwen35 {
    fn names(&self, _: Source) -> &'static [&'static [NameRow]] {
        &[QWEN3_5, DELTA, common::HF]
    }

    fn unused(&self) -> &'static [&'static str] {
        &["mtp.*"]
    }
}

/// The `mamba2` and `nemotron_h` families.
pub struct Mamba2;

impl ModelWeightLoader for Mamba2 {
    fn names(&self, source: Source) -> &'static [&'static [NameRow]] {
        match source {
            Source::Hf => &[MAMBA2, MIXERS],
            Source::Gguf => &[MAMBA2_GGUF, common::GGUF],
        }
    }

    fn unused(&self) -> &'static [&'static str] {
        &["mtp.*"]
    }
}

/// Gated attention, the delta rule, and norms that multiply by `1 + w`.
const DELTA: &[NameRow] = &[
    plus_one("input_norm", "model.layers.{}.input_layernorm.weight"),
    plus_one(
        "post_norm",
        "model.layers.{}.post_attention_layernorm.weight",
    ),
    plus_one("final_norm", "model.norm.weight"),
    plus_one("q_norm", "model.layers.{}.self_attn.q_norm.weight"),
    plus_one("k_norm", "model.layers.{}.self_attn.k_norm.weight"),
    row("q_proj", Q, in_head(Q_SHAPE, "head_dim", Q_HEAD, "0")),
    row(
        "q_gate",
        Q,
        in_head(Q_SHAPE, "head_dim", Q_HEAD, "head_dim"),
    ),
    row(
        "delta_conv",
        "model.layers.{}.linear_attn.conv1d.weight",
        How::Shaped(&[
            "2 * key_heads * key_dim + value_heads * value_dim",
            "1",
            "conv_width",
        ]),
    ),
    whole("delta_a_log", "model.layers.{}.linear_attn.A_log"),
    whole("delta_dt_bias", "model.layers.{}.linear_attn.dt_bias"),
    whole("delta_norm", "model.layers.{}.linear_attn.norm.weight"),
    whole("delta_out", "model.layers.{}.linear_attn.out_proj.weight"),
];

const Q: &str = "model.layers.{}.self_attn.q_proj.weight";
const Q_SHAPE: &[&str] = &["2 * heads * head_dim", "hidden"];
const Q_HEAD: &str = "2 * head_dim";

const NEXT: &[NameRow] = &[
    row(
        "delta_q",
        QKVZ,
        in_head(QKVZ_SHAPE, "key_dim", QKVZ_HEAD, "0"),
    ),
    row(
        "delta_k",
        QKVZ,
        in_head(QKVZ_SHAPE, "key_dim", QKVZ_HEAD, "key_dim"),
    ),
    row(
        "delta_v",
        QKVZ,
        in_head(QKVZ_SHAPE, VALUES, QKVZ_HEAD, "2 * key_dim"),
    ),
    row(
        "delta_z",
        QKVZ,
        in_head(
            QKVZ_SHAPE,
            VALUES,
            QKVZ_HEAD,
            "2 * key_dim + value_heads / key_heads * value_dim",
        ),
    ),
    row("delta_b", BA, in_head(BA_SHAPE, SHARE, BA_HEAD, "0")),
    row("delta_a", BA, in_head(BA_SHAPE, SHARE, BA_HEAD, SHARE)),
    whole(
        "shared_gate",
        "model.layers.{}.mlp.shared_expert.gate_proj.weight",
    ),
    whole(
        "shared_up",
        "model.layers.{}.mlp.shared_expert.up_proj.weight",
    ),
    whole(
        "shared_down",
        "model.layers.{}.mlp.shared_expert.down_proj.weight",
    ),
    whole(
        "shared_switch",
        "model.layers.{}.mlp.shared_expert_gate.weight",
    ),
];

const QKVZ: &str = "model.layers.{}.linear_attn.in_proj_qkvz.weight";
const QKVZ_SHAPE: &[&str] = &[
    "2 * (key_heads * key_dim + value_heads * value_dim)",
    "hidden",
];
/// Rows of one key head: its query, its key, the values and the gates of the value heads that it serves.
const QKVZ_HEAD: &str = "2 * (key_dim + value_heads / key_heads * value_dim)";
const VALUES: &str = "value_heads / key_heads * value_dim";
const BA: &str = "model.layers.{}.linear_attn.in_proj_ba.weight";
const BA_SHAPE: &[&str] = &["2 * value_heads", "hidden"];
const BA_HEAD: &str = "2 * (value_heads / key_heads)";
const SHARE: &str = "value_heads / key_heads";

/// `take` rows from `first` on of every `period`.
const fn in_head(
    shape: &'static [&'static str],
    take: &'static str,
    period: &'static str,
    first: &'static str,
) -> How {
    How::Blocks {
        shape,
        take,
        period,
        first,
    }
}

const QWEN3_5: &[NameRow] = &[
    among("delta_q", QKV, DELTA_QKV),
    among("delta_k", QKV, DELTA_QKV),
    among("delta_v", QKV, DELTA_QKV),
    whole("delta_z", "model.layers.{}.linear_attn.in_proj_z.weight"),
    whole("delta_b", "model.layers.{}.linear_attn.in_proj_b.weight"),
    whole("delta_a", "model.layers.{}.linear_attn.in_proj_a.weight"),
];

const QKV: &str = "model.layers.{}.linear_attn.in_proj_qkv.weight";
const DELTA_QKV: &[&str] = &["delta_q", "delta_k", "delta_v"];

const MAMBA2: &[NameRow] = &[
    whole("embed", "backbone.embeddings.weight"),
    whole("input_norm", "backbone.layers.{}.norm.weight"),
    whole("final_norm", "backbone.norm_f.weight"),
    whole("lm_head", "lm_head.weight"),
    among("ssm_z", IN, IN_PARTS),
    among("ssm_xbc", IN, IN_PARTS),
    among("ssm_dt", IN, IN_PARTS),
    among("ssm_z_bias", IN_BIAS, IN_BIASES),
    among("ssm_xbc_bias", IN_BIAS, IN_BIASES),
    among("ssm_dt_in_bias", IN_BIAS, IN_BIASES),
    row(
        "ssm_conv",
        "backbone.layers.{}.mixer.conv1d.weight",
        How::Shaped(&["ssm_inner + 2 * ssm_groups * ssm_state", "1", "conv_width"]),
    ),
    whole("ssm_conv_bias", "backbone.layers.{}.mixer.conv1d.bias"),
    whole("ssm_a_log", "backbone.layers.{}.mixer.A_log"),
    whole("ssm_dt_bias", "backbone.layers.{}.mixer.dt_bias"),
    whole("ssm_skip", "backbone.layers.{}.mixer.D"),
    whole("ssm_norm", "backbone.layers.{}.mixer.norm.weight"),
    whole("ssm_out", "backbone.layers.{}.mixer.out_proj.weight"),
    whole("ssm_out_bias", "backbone.layers.{}.mixer.out_proj.bias"),
];

const IN: &str = "backbone.layers.{}.mixer.in_proj.weight";
const IN_PARTS: &[&str] = &["ssm_z", "ssm_xbc", "ssm_dt"];
const IN_BIAS: &str = "backbone.layers.{}.mixer.in_proj.bias";
const IN_BIASES: &[&str] = &["ssm_z_bias", "ssm_xbc_bias", "ssm_dt_in_bias"];

/// GGUF: `A` in the place of its logarithm, vectors as columns, the norm by groups.
const MAMBA2_GGUF: &[NameRow] = &[
    among("ssm_z", IN_GGUF, IN_PARTS),
    among("ssm_xbc", IN_GGUF, IN_PARTS),
    among("ssm_dt", IN_GGUF, IN_PARTS),
    row(
        "ssm_conv",
        "blk.{}.ssm_conv1d.weight",
        How::Shaped(&["ssm_inner + 2 * ssm_groups * ssm_state", "conv_width"]),
    ),
    whole("ssm_conv_bias", "blk.{}.ssm_conv1d.bias"),
    row(
        "ssm_a_log",
        "blk.{}.ssm_a",
        How::LogOfNegative(&["ssm_heads", "1"]),
    ),
    whole("ssm_dt_bias", "blk.{}.ssm_dt.bias"),
    row("ssm_skip", "blk.{}.ssm_d", How::Shaped(&["ssm_heads", "1"])),
    row(
        "ssm_norm",
        "blk.{}.ssm_norm.weight",
        How::Shaped(&["ssm_groups", "ssm_inner / ssm_groups"]),
    ),
    whole("ssm_out", "blk.{}.ssm_out.weight"),
];

const IN_GGUF: &str = "blk.{}.ssm_in.weight";

/// Nemotron-H's other mixers.
const MIXERS: &[NameRow] = &[
    whole("q_proj", "backbone.layers.{}.mixer.q_proj.weight"),
    whole("k_proj", "backbone.layers.{}.mixer.k_proj.weight"),
    whole("v_proj", "backbone.layers.{}.mixer.v_proj.weight"),
    whole("o_proj", "backbone.layers.{}.mixer.o_proj.weight"),
    whole("up_proj", "backbone.layers.{}.mixer.up_proj.weight"),
    whole("down_proj", "backbone.layers.{}.mixer.down_proj.weight"),
    whole("router", "backbone.layers.{}.mixer.gate.weight"),
    whole(
        "router_bias",
        "backbone.layers.{}.mixer.gate.e_score_correction_bias",
    ),
    experts(
        "up_exps",
        "backbone.layers.{}.mixer.experts.{e}.up_proj.weight",
    ),
    experts(
        "down_exps",
        "backbone.layers.{}.mixer.experts.{e}.down_proj.weight",
    ),
    whole(
        "shared_up",
        "backbone.layers.{}.mixer.shared_experts.up_proj.weight",
    ),
    whole(
        "shared_down",
        "backbone.layers.{}.mixer.shared_experts.down_proj.weight",
    ),
];
