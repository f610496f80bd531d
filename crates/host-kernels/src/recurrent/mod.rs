// SPDX-License-Identifier: MIT OR Apache-2.0
//! What recurrent layers are made of: `conv1d`, `gated_delta`, `ssm_scan`, and the norms and gates around them.
//!
//! State is a row of f32 per sequence slot. A launch is cut by channels or heads alone; a tile walks the step's rows in
//! order, so that a sequence's rows meet its state ascending, in whatever chunks they come. A row at position 0 starts
//! from zeros: nobody clears a slot. Everything is the recurrent form, at every row count, so that a position's bits do not
//! depend on the step that computes it.

mod conv;
mod delta;
mod gated;
mod scan;

pub(crate) use conv::CONV1D;
pub(crate) use delta::GATED_DELTA;
pub(crate) use gated::{GATED_NORM, RELU2, SIGMOID_GATE};
pub(crate) use scan::SSM_SCAN;

use metrale_core::numeric::math;
use metrale_core::{Elem, StepCounts, Unit};

use crate::args::Grid;
use crate::point::Need;

/// A state span of `elems` values per slot.
fn state(elems: usize) -> Need {
    Need::Values {
        elem: Elem::F32,
        unit: Unit::Slot,
        elems: elems as u64,
    }
}

/// Tiles that hold all rows of the step, cut by `units` (heads, channels) in blocks of `block`.
fn by_units(counts: StepCounts, units: usize, block: usize) -> Grid {
    Grid {
        rows: counts.rows,
        row_block: counts.rows.max(1),
        cols: units as u32,
        col_block: block as u32,
    }
}

/// `ln(1 + e^x)`; `x` above 20, where the difference is below half a unit in the last place. `ln(1 + u)` is
/// `u * ln(w) / (w - 1)` with `w = 1 + u`, which keeps the digits of a small `u` (Goldberg, "What Every Computer
/// Scientist Should Know About Floating-Point Arithmetic", theorem 4).
fn softplus(x: f32) -> f32 {
    if x > 20.0 {
        return x;
    }
    let u = math::exp(x);
    let w = 1.0 + u;
    if w == 1.0 {
        return u;
    }
    math::ln(w) * u / (w - 1.0)
}

/// `1 / (1 + e^-x)`.
#[inline(always)]
fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + math::exp(0.0 - x))
}

#[cfg(test)]
mod tests {
    use super::softplus;

    #[test]
    fn softplus_keeps_its_digits() {
        for x in [-80.0f32, -20.0, -5.0, -1.0, 0.0, 0.5, 3.0, 19.0, 25.0] {
            let want = f64::from(x).exp().ln_1p();
            let error = (f64::from(softplus(x)) - want).abs() / want;
            // exp is within 2.4e-7; ln, product and quotient round once each.
            assert!(error < 5e-7, "{x}: {error}");
        }
    }
}
