// SPDX-License-Identifier: MIT OR Apache-2.0
//! Checkpoints that do not fit their family are refused before weights move, by the name of the key or the tensor.

mod support;

use std::fs;

use metrale_model_engine::Prepared;
use metrale_model_weights::Checkpoint;
use support::{Result, TempCopy, fixture, library};

/// Prepares a fixture whose configuration says `to` instead of `from`.
fn changed(name: &str, from: &str, to: &str) -> Result<Prepared> {
    let copy = TempCopy::of(&fixture(name))?;
    let path = copy.path().join("config.json");
    let text = fs::read_to_string(&path)?;
    assert!(text.contains(from), "{name} does not say {from}:\n{text}");
    fs::write(&path, text.replace(from, to))?;
    let checkpoint = Checkpoint::open(copy.path())?;
    Ok(Prepared::new(&library()?, checkpoint, &[])?)
}

/// The layers of fixture `nemotron-h`.
const PATTERN: &str = r#""layers_block_type": [
    "linear_attention",
    "moe",
    "full_attention",
    "mlp"
  ]"#;

#[test]
fn what_is_refused_and_by_which_words() {
    let cases = [
        // A kind of RoPE that nobody has built.
        (
            "qwen2",
            "\"rope_type\": \"default\"",
            "\"rope_type\": \"dynamic\"",
            "`rope_parameters.rope_type` = dynamic",
        ),
        (
            "phi3",
            "\"rope_type\": \"default\"",
            "\"rope_type\": \"longrope\"",
            "longrope",
        ),
        (
            "olmo2",
            "\"rope_type\": \"default\"",
            "\"rope_type\": \"yarn\"",
            "`rope_parameters.rope_type` = yarn",
        ),
        (
            "gemma3",
            "\"rope_type\": \"default\"",
            "\"rope_type\": \"yarn\"",
            "yarn",
        ),
        (
            "deepseek-v3",
            "\"rope_type\": \"yarn\"",
            "\"rope_type\": \"longrope\"",
            "longrope",
        ),
        // Counts that the tensors contradict: an expert too many, too few, a router of another height.
        (
            "qwen3-moe",
            "\"num_local_experts\": 8",
            "\"num_local_experts\": 9",
            "mlp.experts.8.gate_proj.weight` [32, 64] is missing",
        ),
        (
            "mixtral",
            "\"num_local_experts\": 8",
            "\"num_local_experts\": 7",
            "block_sparse_moe.gate.weight` has shape [8, 64], the config asks for [7, 64]",
        ),
        (
            "gpt-oss",
            "\"num_local_experts\": 8",
            "\"num_local_experts\": 4",
            "mlp.experts.down_proj` has shape [8, 32, 64]",
        ),
        (
            "deepseek-v3",
            "\"n_routed_experts\": 8",
            "\"n_routed_experts\": 16",
            "mlp.experts.8.down_proj.weight",
        ),
        (
            "deepseek-v3",
            "\"num_experts_per_tok\": 2",
            "\"num_experts_per_tok\": 7",
            "`n_group`",
        ),
        (
            "mixtral",
            "\"num_experts_per_tok\": 2",
            "\"num_experts_per_tok\": 9",
            "`num_experts_per_tok`",
        ),
        // A width said twice, or by Transformers' default.
        ("mamba2", "\"expand\": 2", "\"expand\": 4", "`expand`"),
        (
            "mamba2",
            "\"expand\": 2,\n  \"head_dim\": 32",
            "\"head_dim\": 16",
            "`expand`",
        ),
        // Parts of fused tensors.
        (
            "phi3",
            "\"num_key_value_heads\": 2",
            "\"num_key_value_heads\": 1",
            "qkv_proj.weight` has shape [128, 64], the config asks for [96, 64]",
        ),
        // Lists by layer.
        (
            "gemma2",
            "\"num_hidden_layers\": 2",
            "\"num_hidden_layers\": 3",
            "2 values, layers = 3",
        ),
        (
            "gemma3",
            "\"sliding_attention\",",
            "\"chunked_attention\",",
            "`layer_types` = chunked_attention",
        ),
        (
            "nemotron-h",
            PATTERN,
            "\"hybrid_override_pattern\": \"MEQ-\"",
            "`layers_block_type` = Q",
        ),
        (
            "nemotron-h",
            "\"layers_block_type\": [",
            "\"hybrid_override_pattern\": \"ME*-M\", \"layers_block_type\": [",
            "`hybrid_override_pattern` (pattern = ME*-M, layers = 4)",
        ),
        // Heads: tied where none is stored, untied where one is needed.
        (
            "gemma2",
            "\"tie_word_embeddings\": true",
            "\"tie_word_embeddings\": false",
            "`lm_head.weight` [320, 64] is missing",
        ),
        // A norm over all heads of the keys has their width.
        (
            "olmo2",
            "\"num_key_value_heads\": 2",
            "\"num_key_value_heads\": 4",
            "k_norm.weight` has shape [32], the config asks for [64]",
        ),
        // Keys that would change the mathematics.
        (
            "qwen2",
            "\"use_sliding_window\": false",
            "\"use_sliding_window\": true",
            "`use_sliding_window`",
        ),
        (
            "qwen3-moe",
            "\"decoder_sparse_step\": 1",
            "\"decoder_sparse_step\": 2",
            "`decoder_sparse_step`",
        ),
        (
            "qwen3-moe",
            "\"mlp_only_layers\": []",
            "\"mlp_only_layers\": [0]",
            "`mlp_only_layers`",
        ),
        (
            "deepseek-v3",
            "\"rope_interleave\": true",
            "\"rope_interleave\": false",
            "`rope_interleave`",
        ),
        (
            "gpt-oss-mxfp4",
            "\"quant_method\": \"mxfp4\"",
            "\"quant_method\": \"gptq\"",
            "gptq",
        ),
        (
            "granite",
            "\"logits_scaling\"",
            "\"logit_scaling\"",
            "did you mean `logits_scaling`?",
        ),
        (
            "gemma2",
            "\"hidden_activation\": \"gelu_pytorch_tanh\"",
            "\"hidden_activation\": \"relu\"",
            "`hidden_activation` = \"relu\"",
        ),
    ];
    for (name, from, to, words) in cases {
        match changed(name, from, to) {
            Ok(_) => panic!("{name}: {to} was taken"),
            Err(e) => {
                let text = e.to_string();
                assert!(text.contains(words), "{name}: `{words}` is not in: {text}");
            }
        }
    }
}

/// DeepSeek's checkpoints carry layers behind the last that predict further tokens: the one is left unused, more are not
/// known.
#[test]
fn a_layer_behind_the_last_is_left_unused() {
    let layers = |n: u32| {
        let to = format!("\"num_hidden_layers\": {n}");
        changed("deepseek-v3", "\"num_hidden_layers\": 3", &to)
    };
    assert!(layers(2).is_ok());
    let refused = layers(1).err().unwrap().to_string();
    assert!(refused.contains("`model.layers.2."), "{refused}");
}
