// SPDX-License-Identifier: MIT OR Apache-2.0
//! One loader per model family: two name tables, and nothing else.
//!
//! Shapes, counts and which weights exist at all (biases, an untied head) come from the circuit instance. A family whose
//! checkpoints need more than a rename states it as a [`Transform`](metrale_model_layers::weight_map::Transform) in its
//! row.

mod llama;
mod qwen3;

pub use llama::Llama;
pub use qwen3::Qwen3;

use metrale_model_layers::Source;
use metrale_model_layers::weight_map::NameRow;

/// The name tables of a family.
pub trait ModelWeightLoader: Send + Sync {
    /// The rows for checkpoints of this source.
    fn names(&self, source: Source) -> &'static [NameRow];
}
