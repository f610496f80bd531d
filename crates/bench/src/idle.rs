// SPDX-License-Identifier: MIT OR Apache-2.0
//! The share of time in which the device ran no kernel, from the stamps of its programs.

use crate::target::Stamp;

/// Programs below this are no measurement.
const LEAST: usize = 16;

/// Time between programs over all time, in the longest stretch of programs of steps in which exactly `sequences` sequences
/// decode, each with one row and one logits row. `None` if there is no such stretch of some length.
pub(crate) fn share(stamps: &[Stamp], sequences: u32) -> Option<f64> {
    let all = |s: &Stamp| s.rows == sequences && s.logits_rows == sequences;
    let stretches = stamps.split(|s| !all(s));
    let longest = stretches.max_by_key(|s| s.len())?;
    let (first, last) = (longest.first()?, longest.last()?);
    if longest.len() < LEAST {
        return None;
    }
    let gaps = longest
        .windows(2)
        .map(|w| w[1].begin.saturating_sub(w[0].end));
    let whole = last.end.saturating_sub(first.begin).max(1);
    Some(gaps.sum::<u64>() as f64 / whole as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Programs of 90 with 10 between them.
    fn programs(count: u64, rows: u32, from: u64) -> Vec<Stamp> {
        let at = |i| from + 100 * i;
        (0..count)
            .map(|i| Stamp {
                begin: at(i),
                end: at(i) + 90,
                rows,
                logits_rows: rows,
            })
            .collect()
    }

    #[test]
    fn only_the_stretch_in_which_all_decode_counts() {
        let mut stamps = programs(40, 512, 0);
        stamps.extend(programs(20, 4, 1_000_000));
        stamps.extend(programs(30, 3, 2_000_000));
        // 19 gaps of 10 in 19 * 100 + 90.
        assert_eq!(share(&stamps, 4), Some(190.0 / 1990.0));
        assert_eq!(share(&stamps, 5), None);
        assert_eq!(share(&programs(LEAST as u64 - 1, 4, 0), 4), None);
        assert_eq!(share(&[], 4), None);
    }

    #[test]
    fn a_step_of_prompts_between_ends_the_stretch() {
        let mut stamps = programs(16, 2, 0);
        stamps.push(Stamp {
            begin: 5_000,
            end: 9_000,
            rows: 64,
            logits_rows: 2,
        });
        stamps.extend(programs(17, 2, 20_000));
        assert_eq!(share(&stamps, 2), Some(160.0 / 1690.0));
    }
}
