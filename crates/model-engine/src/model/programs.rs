// SPDX-License-Identifier: MIT OR Apache-2.0
//! Programs per row bucket: recorded once, chosen by row count.

use metrale_gpu_runtime::{DeviceFault, GpuBackend, Launch, Program};

/// One phase's programs, ascending by bucket.
#[derive(Debug)]
pub(super) struct Programs(Vec<(u32, Program)>);

impl Programs {
    /// Records `launches` for each bucket up to `limit` rows.
    pub(super) fn record(
        backend: &dyn GpuBackend,
        launches: &[Launch],
        limit: u32,
    ) -> Result<Programs, DeviceFault> {
        let recorded: Result<Vec<_>, _> = buckets(limit)
            .into_iter()
            .map(|rows| Ok((rows, backend.record(launches, rows)?)))
            .collect();
        Ok(Programs(recorded?))
    }

    /// The program of the smallest bucket that holds `rows`.
    pub(super) fn for_rows(&self, rows: u32) -> Option<Program> {
        self.0
            .iter()
            .find(|(bucket, _)| *bucket >= rows)
            .map(|(_, program)| *program)
    }
}

/// Powers of two below `limit`, and `limit`: a step runs at most twice the rows it has, and the count of programs grows
/// with the logarithm of the limit.
fn buckets(limit: u32) -> Vec<u32> {
    let mut buckets: Vec<u32> = (0..32)
        .map(|shift| 1u32 << shift)
        .take_while(|rows| *rows < limit)
        .collect();
    buckets.push(limit);
    buckets
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_end_at_the_limit() {
        assert_eq!(buckets(1), [1]);
        assert_eq!(buckets(8), [1, 2, 4, 8]);
        assert_eq!(buckets(9), [1, 2, 4, 8, 9]);
    }
}
