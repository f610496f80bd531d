// SPDX-License-Identifier: MIT OR Apache-2.0
//! The generic layer: a run of plan groups.
//!
//! Every family is served by it. A layer type of its own is written only when binding itself differs (state that is set
//! up at bind, say), never because the mathematics does: that is the circuit's.

use std::ops::Range;

use metrale_circuit::{Phase, Plan};
use metrale_gpu_runtime::Launch;

use crate::layer::{BindFailure, Binder, TransformerLayer};

/// Consecutive groups of a plan that share phase and layer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanLayer {
    layer: Option<u32>,
    groups: Range<usize>,
}

impl TransformerLayer for PlanLayer {
    fn name(&self) -> String {
        match self.layer {
            Some(layer) => format!("layer {layer}"),
            None => format!("groups {}..{}", self.groups.start, self.groups.end),
        }
    }

    fn bind(&self, binder: &mut Binder<'_>) -> Result<Vec<Launch>, BindFailure> {
        self.groups
            .clone()
            .map(|index| binder.group(index))
            .collect()
    }
}

/// The layers of one phase of `plan`, in order.
#[must_use]
pub fn layers(plan: &Plan, phase: Phase) -> Vec<Box<dyn TransformerLayer>> {
    let mut found: Vec<PlanLayer> = Vec::new();
    for (index, group) in plan.groups.iter().enumerate() {
        if group.phase != phase {
            continue;
        }
        match found.last_mut() {
            Some(last) if last.layer == group.layer && last.groups.end == index => {
                last.groups.end = index + 1
            }
            _ => found.push(PlanLayer {
                layer: group.layer,
                groups: index..index + 1,
            }),
        }
    }
    found
        .into_iter()
        .map(|layer| Box::new(layer) as Box<dyn TransformerLayer>)
        .collect()
}
