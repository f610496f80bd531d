// SPDX-License-Identifier: MIT OR Apache-2.0
//! The single place where a family becomes a loader.

use metrale_model_arch::weight_loader::{
    DeepseekV3, Gemma, GptOss, Llama, Mixtral, ModelWeightLoader, Phi3, Qwen3,
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
        "gpt_oss" => Some(&GptOss),
        "deepseek_v3" => Some(&DeepseekV3),
        _ => None,
    }
}
