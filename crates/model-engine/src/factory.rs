// SPDX-License-Identifier: MIT OR Apache-2.0
//! The single place where a family becomes a loader.

use metrale_model_arch::weight_loader::{
    DeepseekV3, Gemma, GptOss, Llama, Mamba2, Mixtral, ModelWeightLoader, Olmo2, Phi3, Qwen3,
    Qwen3Next, Qwen35,
};

/// The weight loader of a circuit family, or `None` if no loader has been written for it.
///
/// The circuit library has already mapped `model_type` and `general.architecture` to the family.
#[must_use]
pub fn loader_for_family(family: &str) -> Option<&'static dyn ModelWeightLoader> {
    match family {
        "llama" | "mistral" | "granite" => Some(&Llama),
        "qwen2" | "qwen3" | "qwen3_moe" => Some(&Qwen3),
        "phi3" => Some(&Phi3),
        "gemma2" | "gemma3" => Some(&Gemma),
        "mixtral" => Some(&Mixtral),
        "olmo2" => Some(&Olmo2),
        "gpt_oss" => Some(&GptOss),
        "deepseek_v3" => Some(&DeepseekV3),
        "qwen3_next" => Some(&Qwen3Next),
        "qwen3_5_text" => Some(&Qwen35),
        "mamba2" | "nemotron_h" => Some(&Mamba2),
        _ => None,
    }
}
