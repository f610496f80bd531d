// SPDX-License-Identifier: MIT OR Apache-2.0
//! A measured rate.

use std::time::Duration;

/// Seconds per unit (bytes moved, rows computed), as a running average that follows the machine.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Rate(Option<f64>);

/// Weight of the newest measurement.
const NEWEST: f64 = 0.25;

impl Rate {
    /// `units` took `took`.
    pub fn measure(&mut self, units: u64, took: Duration) {
        if units == 0 {
            return;
        }
        let new = took.as_secs_f64() / units as f64;
        self.0 = Some(self.0.map_or(new, |old| old + NEWEST * (new - old)));
    }

    /// Seconds that `units` take. `None`: nothing was measured.
    #[must_use]
    pub fn seconds(&self, units: u64) -> Option<f64> {
        self.0.map(|each| each * units as f64)
    }

    /// Whether `units` at this rate take less time than `others` at the other. What was never measured is tried.
    #[must_use]
    pub fn beats(&self, units: u64, other: &Rate, others: u64) -> bool {
        match (self.seconds(units), other.seconds(others)) {
            (Some(a), Some(b)) => a < b,
            _ => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_faster_is_known_once_both_were_measured() {
        let (mut copy, mut compute) = (Rate::default(), Rate::default());
        assert!(copy.beats(1000, &compute, 16));
        copy.measure(1000, Duration::from_millis(2));
        assert!(copy.beats(1000, &compute, 16), "the other is unknown");
        compute.measure(16, Duration::from_millis(1));
        assert!(!copy.beats(1000, &compute, 16));
        assert!(copy.beats(499, &compute, 16));
        for _ in 0..40 {
            copy.measure(1000, Duration::from_micros(10));
        }
        assert!(copy.beats(1000, &compute, 16), "it follows the machine");
    }
}
