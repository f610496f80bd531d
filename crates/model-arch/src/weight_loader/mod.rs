// SPDX-License-Identifier: MIT OR Apache-2.0
//! One loader per model family: two name tables, and nothing else.
//!
//! Shapes, counts and which weights exist at all (biases, an untied head) come from the circuit instance. A family whose
//! checkpoints need more than a rename states it as [`How`](metrale_model_layers::weight_map::How) in its row. Tables stand
//! in order: the first row for a weight counts, so that a family states only where it differs from the common names.

mod common;
mod deepseek_v3;
mod gemma;
mod gpt_oss;
mod llama;
mod mixtral;
mod olmo2;
mod phi3;
mod qwen3;
mod recurrent;

pub use deepseek_v3::DeepseekV3;
pub use gemma::Gemma;
pub use gpt_oss::GptOss;
pub use llama::Llama;
pub use mixtral::Mixtral;
pub use olmo2::Olmo2;
pub use phi3::Phi3;
pub use qwen3::Qwen3;
pub use recurrent::{Mamba2, Qwen3Next, Qwen35};

use metrale_model_layers::Source;
use metrale_model_layers::weight_map::NameRow;

/// The name tables of a family.
pub trait ModelWeightLoader: Send + Sync {
    /// The tables for checkpoints of this source, those that go first first.
    fn names(&self, source: Source) -> &'static [&'static [NameRow]];

    /// Tensors that a checkpoint may have and this engine leaves unused: `*` stands for any text, `{}` for the number of
    /// layers (the layer behind the last).
    fn unused(&self) -> &'static [&'static str] {
        &[]
    }
}
