// SPDX-License-Identifier: MIT OR Apache-2.0
//! Well-known checkpoints, written down from public facts: they instantiate, with the published number of parameters.

use crate::common::{flat, hf};

struct Known {
    name: &'static str,
    parameters: u64,
    config: &'static str,
}

const KNOWN: &[Known] = &[
    Known {
        name: "Llama 2 7B",
        parameters: 6_738_415_616,
        config: r#"
model_type = "llama"
hidden_act = "silu"
hidden_size = 4096
intermediate_size = 11008
max_position_embeddings = 4096
num_attention_heads = 32
num_hidden_layers = 32
num_key_value_heads = 32
pretraining_tp = 1
rms_norm_eps = 0.00001
tie_word_embeddings = false
torch_dtype = "float16"
vocab_size = 32000
"#,
    },
    Known {
        name: "TinyLlama 1.1B Chat",
        parameters: 1_100_048_384,
        config: r#"
model_type = "llama"
attention_bias = false
hidden_act = "silu"
hidden_size = 2048
intermediate_size = 5632
max_position_embeddings = 2048
num_attention_heads = 32
num_hidden_layers = 22
num_key_value_heads = 4
rms_norm_eps = 0.00001
rope_theta = 10000.0
tie_word_embeddings = false
vocab_size = 32000
"#,
    },
    Known {
        name: "Llama 3.2 1B",
        parameters: 1_235_814_400,
        config: r#"
model_type = "llama"
attention_bias = false
head_dim = 64
hidden_act = "silu"
hidden_size = 2048
intermediate_size = 8192
max_position_embeddings = 131072
mlp_bias = false
num_attention_heads = 32
num_hidden_layers = 16
num_key_value_heads = 8
rms_norm_eps = 0.00001
rope_scaling.factor = 32.0
rope_scaling.high_freq_factor = 4.0
rope_scaling.low_freq_factor = 1.0
rope_scaling.original_max_position_embeddings = 8192
rope_scaling.rope_type = "llama3"
rope_theta = 500000.0
tie_word_embeddings = true
vocab_size = 128256
"#,
    },
    Known {
        name: "SmolLM2 135M Instruct",
        parameters: 134_515_008,
        config: r#"
model_type = "llama"
attention_bias = false
hidden_act = "silu"
hidden_size = 576
initializer_range = 0.041666666666666664
intermediate_size = 1536
is_llama_config = true
max_position_embeddings = 8192
mlp_bias = false
num_attention_heads = 9
num_hidden_layers = 30
num_key_value_heads = 3
pretraining_tp = 1
rms_norm_eps = 0.00001
rope_interleaved = false
rope_theta = 100000
tie_word_embeddings = true
transformers.js_config.kv_cache_dtype.fp16 = "float16"
vocab_size = 49152
"#,
    },
    Known {
        name: "Qwen3 8B",
        parameters: 8_190_735_360,
        config: r#"
model_type = "qwen3"
attention_bias = false
head_dim = 128
hidden_act = "silu"
hidden_size = 4096
intermediate_size = 12288
max_position_embeddings = 40960
max_window_layers = 36
num_attention_heads = 32
num_hidden_layers = 36
num_key_value_heads = 8
rms_norm_eps = 0.000001
rope_theta = 1000000
tie_word_embeddings = false
use_sliding_window = false
vocab_size = 151936
"#,
    },
];

#[test]
fn parameters_are_the_published_ones() {
    for known in KNOWN {
        let instance = hf(&flat(known.config)).unwrap_or_else(|e| panic!("{}: {e}", known.name));
        assert_eq!(instance.weight_elems(), known.parameters, "{}", known.name);
    }
}
