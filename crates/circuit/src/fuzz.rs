// SPDX-License-Identifier: MIT OR Apache-2.0
//! The crate's fuzz entry: any flat map, all the way through.

use std::collections::BTreeMap;

use metrale_core::{Elem, FlatMap, StepLimits};

use crate::instance::Source;
use crate::library::{CircuitLibrary, ConfigInput};
use crate::plan::{PlanRequest, Workload};

impl CircuitLibrary {
    /// Takes an arbitrary configuration through instance, plan and text, or to a refusal; true if what came out
    /// has words. For fuzzing and property tests: the point is that it returns, whatever the map.
    pub fn try_config(&self, flat: &FlatMap, source: Source) -> bool {
        let input = ConfigInput {
            flat,
            source,
            nulls: None,
            tensors: None,
            accept: &[],
        };
        let instance = match self.instantiate(&input) {
            Ok(instance) => instance,
            Err(refusal) => return !refusal.to_string().is_empty(),
        };
        let formats = instance.uniform_formats(Elem::BF16);
        let limits = StepLimits {
            rows: 4,
            logits_rows: 2,
            slots: 2,
            blocks_per_slot: 4,
            tables: 1,
            history: 8,
            bias: 8,
            mask_words: 0,
        };
        let values = instance.weights().iter().filter(|w| w.constant);
        let values: BTreeMap<_, _> = values
            .map(|w| (w.key.clone(), vec![1.0; w.elems() as usize]))
            .collect();
        let request = PlanRequest {
            class: "cpu",
            device: None,
            formats: &formats,
            stored: &BTreeMap::new(),
            values: &values,
            kv: &Elem::F32.into(),
            limits,
            kv_blocks: 8,
            windows: &[],
            snapshots: 0,
            checkpoint: "",
            fuse: true,
        };
        match self.plan(&instance, &request) {
            Ok(plan) => {
                let text = instance.show() + &plan.show(&Workload::decode(8)) + &plan.memory_text();
                !text.is_empty()
            }
            Err(error) => !error.to_string().is_empty(),
        }
    }
}
