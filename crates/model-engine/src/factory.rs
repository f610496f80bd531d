// SPDX-License-Identifier: MIT OR Apache-2.0
//! The single place where a family becomes a loader.

use metrale_model_arch::weight_loader::{Llama, ModelWeightLoader, Qwen3};

/// The weight loader of a circuit family, or `None` if no loader has been written for it.
///
/// The circuit library has already mapped `model_type` and `general.architecture` to the family.
#[must_use]
pub fn loader_for_family(family: &str) -> Option<&'static dyn ModelWeightLoader> {
    match family {
        "llama" => Some(&Llama),
        "qwen3" => Some(&Qwen3),
        _ => None,
    }
}
