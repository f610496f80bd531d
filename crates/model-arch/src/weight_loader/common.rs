// SPDX-License-Identifier: MIT OR Apache-2.0
//! The names that most families share. Rows of weights that an instance does not have count for nothing.

use metrale_model_layers::weight_map::{NameRow, whole};

/// Hugging Face: Llama's names, with the norms of query and key heads.
pub(super) const HF: &[NameRow] = &[
    whole("embed", "model.embed_tokens.weight"),
    whole("input_norm", "model.layers.{}.input_layernorm.weight"),
    whole("q_proj", "model.layers.{}.self_attn.q_proj.weight"),
    whole("k_proj", "model.layers.{}.self_attn.k_proj.weight"),
    whole("v_proj", "model.layers.{}.self_attn.v_proj.weight"),
    whole("o_proj", "model.layers.{}.self_attn.o_proj.weight"),
    whole("q_bias", "model.layers.{}.self_attn.q_proj.bias"),
    whole("k_bias", "model.layers.{}.self_attn.k_proj.bias"),
    whole("v_bias", "model.layers.{}.self_attn.v_proj.bias"),
    whole("o_bias", "model.layers.{}.self_attn.o_proj.bias"),
    whole("q_norm", "model.layers.{}.self_attn.q_norm.weight"),
    whole("k_norm", "model.layers.{}.self_attn.k_norm.weight"),
    whole(
        "post_norm",
        "model.layers.{}.post_attention_layernorm.weight",
    ),
    whole("gate_proj", "model.layers.{}.mlp.gate_proj.weight"),
    whole("up_proj", "model.layers.{}.mlp.up_proj.weight"),
    whole("down_proj", "model.layers.{}.mlp.down_proj.weight"),
    whole("gate_bias", "model.layers.{}.mlp.gate_proj.bias"),
    whole("up_bias", "model.layers.{}.mlp.up_proj.bias"),
    whole("down_bias", "model.layers.{}.mlp.down_proj.bias"),
    whole("final_norm", "model.norm.weight"),
    whole("lm_head", "lm_head.weight"),
];

/// GGUF, the halves of each head in the order of Hugging Face.
pub(super) const GGUF: &[NameRow] = &[
    whole("embed", "token_embd.weight"),
    whole("input_norm", "blk.{}.attn_norm.weight"),
    whole("q_proj", "blk.{}.attn_q.weight"),
    whole("k_proj", "blk.{}.attn_k.weight"),
    whole("v_proj", "blk.{}.attn_v.weight"),
    whole("o_proj", "blk.{}.attn_output.weight"),
    whole("q_bias", "blk.{}.attn_q.bias"),
    whole("k_bias", "blk.{}.attn_k.bias"),
    whole("v_bias", "blk.{}.attn_v.bias"),
    whole("o_bias", "blk.{}.attn_output.bias"),
    whole("q_norm", "blk.{}.attn_q_norm.weight"),
    whole("k_norm", "blk.{}.attn_k_norm.weight"),
    whole("post_norm", "blk.{}.ffn_norm.weight"),
    whole("gate_proj", "blk.{}.ffn_gate.weight"),
    whole("up_proj", "blk.{}.ffn_up.weight"),
    whole("down_proj", "blk.{}.ffn_down.weight"),
    whole("gate_bias", "blk.{}.ffn_gate.bias"),
    whole("up_bias", "blk.{}.ffn_up.bias"),
    whole("down_bias", "blk.{}.ffn_down.bias"),
    whole("rope_freqs", "rope_freqs.weight"),
    whole("final_norm", "output_norm.weight"),
    whole("lm_head", "output.weight"),
];
