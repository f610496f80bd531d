// SPDX-License-Identifier: MIT OR Apache-2.0
//! gpt-oss: experts stacked, gate and up interleaved; MXFP4 blocks, or bf16 matrices transposed.

use metrale_model_layers::Source;
use metrale_model_layers::weight_map::{How, NameRow, row, whole};

use super::{ModelWeightLoader, common, qwen3};

/// The `gpt_oss` family.
pub struct GptOss;

impl ModelWeightLoader for GptOss {
    fn names(&self, source: Source) -> &'static [&'static [NameRow]] {
        match source {
            Source::Hf => &[OWN, common::HF],
            Source::Gguf => &[GGUF, qwen3::EXPERTS_GGUF, common::GGUF],
        }
    }
}

const BLOCKS: &str = "model.layers.{}.mlp.experts.gate_up_proj_blocks";
const PLAIN: &str = "model.layers.{}.mlp.experts.gate_up_proj";
const UP: &[&str] = &["experts", "hidden", "2 * moe_ffn"];
const BIAS: &str = "model.layers.{}.mlp.experts.gate_up_proj_bias";

const OWN: &[NameRow] = &[
    whole("sinks", "model.layers.{}.self_attn.sinks"),
    whole("router", "model.layers.{}.mlp.router.weight"),
    whole("router_bias", "model.layers.{}.mlp.router.bias"),
    row("gate_exps_bias", BIAS, one_in_two("0")),
    row("up_exps_bias", BIAS, one_in_two("1")),
    row(
        "down_exps_bias",
        "model.layers.{}.mlp.experts.down_proj_bias",
        How::Blocks {
            shape: &["experts", "hidden"],
            take: "hidden",
            period: "hidden",
            first: "0",
        },
    ),
    blocks("gate_exps", BLOCKS, &["experts", "2 * moe_ffn"], 0, 2),
    blocks("up_exps", BLOCKS, &["experts", "2 * moe_ffn"], 1, 2),
    blocks(
        "down_exps",
        "model.layers.{}.mlp.experts.down_proj_blocks",
        &["experts", "hidden"],
        0,
        1,
    ),
    transposed("gate_exps", PLAIN, UP, "hidden", 0, 2),
    transposed("up_exps", PLAIN, UP, "hidden", 1, 2),
    transposed(
        "down_exps",
        "model.layers.{}.mlp.experts.down_proj",
        &["experts", "moe_ffn", "hidden"],
        "moe_ffn",
        0,
        1,
    ),
];

/// GGUF: gate and up apart, biases `[experts, rows]`.
const GGUF: &[NameRow] = &[
    whole("sinks", "blk.{}.attn_sinks.weight"),
    whole("post_norm", "blk.{}.post_attention_norm.weight"),
    whole("router_bias", "blk.{}.ffn_gate_inp.bias"),
    row(
        "gate_exps_bias",
        "blk.{}.ffn_gate_exps.bias",
        How::Shaped(&["experts", "moe_ffn"]),
    ),
    row(
        "up_exps_bias",
        "blk.{}.ffn_up_exps.bias",
        How::Shaped(&["experts", "moe_ffn"]),
    ),
    row(
        "down_exps_bias",
        "blk.{}.ffn_down_exps.bias",
        How::Shaped(&["experts", "hidden"]),
    ),
];

const fn one_in_two(first: &'static str) -> How {
    How::Blocks {
        shape: &["experts", "2 * moe_ffn"],
        take: "1",
        period: "2",
        first,
    }
}

const fn blocks(
    weight: &'static str,
    tensor: &'static str,
    shape: &'static [&'static str],
    first: u64,
    step: u64,
) -> NameRow {
    NameRow {
        when: Some(("mxfp4", true)),
        ..row(weight, tensor, How::Mxfp4 { shape, first, step })
    }
}

const fn transposed(
    weight: &'static str,
    tensor: &'static str,
    shape: &'static [&'static str],
    disk_rows: &'static str,
    first: u64,
    step: u64,
) -> NameRow {
    NameRow {
        when: Some(("mxfp4", false)),
        ..row(
            weight,
            tensor,
            How::Transposed {
                shape,
                disk_rows,
                first,
                step,
            },
        )
    }
}
