// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a launch moves and computes, and the time the device's peaks allow for it.

use crate::manifest::devices::Device;

/// Traffic and arithmetic of a launch. A row is a row of the step, or a logits row in the sample phase.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// Bytes moved whatever the number of rows (weights).
    pub fixed_bytes: u64,
    /// Bytes per row (activations).
    pub bytes_per_row: u64,
    /// Operations per row; a multiply-add counts two.
    pub flops_per_row: u64,
    /// Bytes per sequence and token of context (keys and values).
    pub bytes_per_context: u64,
    /// Operations per row and token of context.
    pub flops_per_context: u64,
    /// Tokens of context that a row reaches, where its attention has a window; those before cost nothing.
    pub window: Option<u64>,
}

/// A step, as the roofline sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Workload {
    /// Rows.
    pub rows: u64,
    /// Rows whose logits are wanted.
    pub logits_rows: u64,
    /// Sequences.
    pub sequences: u64,
    /// Tokens of context of each.
    pub context: u64,
}

impl Workload {
    /// One token of one sequence.
    #[must_use]
    pub fn decode(context: u64) -> Workload {
        Workload {
            rows: 1,
            logits_rows: 1,
            sequences: 1,
            context,
        }
    }
}

impl Cost {
    /// Bytes moved for `rows` rows of `w`.
    #[must_use]
    pub fn bytes(&self, rows: u64, w: &Workload) -> u64 {
        let context = self
            .bytes_per_context
            .saturating_mul(w.sequences.saturating_mul(self.reached(w)));
        self.fixed_bytes
            .saturating_add(self.bytes_per_row.saturating_mul(rows))
            .saturating_add(context)
    }

    /// Operations for `rows` rows of `w`.
    #[must_use]
    pub fn flops(&self, rows: u64, w: &Workload) -> u64 {
        let each = self
            .flops_per_row
            .saturating_add(self.flops_per_context.saturating_mul(self.reached(w)));
        each.saturating_mul(rows)
    }

    /// Tokens of each sequence's context that count.
    fn reached(&self, w: &Workload) -> u64 {
        self.window
            .map_or(w.context, |window| w.context.min(window))
    }

    /// Seconds that the device's peaks allow: the larger of moving and computing.
    #[must_use]
    pub fn seconds(&self, rows: u64, w: &Workload, device: &Device, peak: &str) -> f64 {
        let moving = self.bytes(rows, w) as f64 / device.bandwidth;
        let flops = device.flops.get(peak).or_else(|| device.flops.get("f32"));
        moving.max(flops.map_or(0.0, |peak| self.flops(rows, w) as f64 / peak))
    }
}
