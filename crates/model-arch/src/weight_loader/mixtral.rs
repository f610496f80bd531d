// SPDX-License-Identifier: MIT OR Apache-2.0
//! Mixtral.

use metrale_model_layers::Source;
use metrale_model_layers::weight_map::{NameRow, experts, whole};

use super::{ModelWeightLoader, common};

/// The `mixtral` family: w1 is the gate, w3 the way up, w2 the way down.
pub struct Mixtral;

impl ModelWeightLoader for Mixtral {
    fn names(&self, _: Source) -> &'static [&'static [NameRow]] {
        &[EXPERTS, common::HF]
    }
}

const EXPERTS: &[NameRow] = &[
    whole("router", "model.layers.{}.block_sparse_moe.gate.weight"),
    experts(
        "gate_exps",
        "model.layers.{}.block_sparse_moe.experts.{e}.w1.weight",
    ),
    experts(
        "up_exps",
        "model.layers.{}.block_sparse_moe.experts.{e}.w3.weight",
    ),
    experts(
        "down_exps",
        "model.layers.{}.block_sparse_moe.experts.{e}.w2.weight",
    ),
];
