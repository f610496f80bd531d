// SPDX-License-Identifier: MIT OR Apache-2.0
//! How the rows of a disk tensor become the rows of a weight: disk order to the order that the circuit's ops assume.

/// How a tensor gives rows of a weight. Rows move whole, and so in every format, but where values are named.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Transform {
    /// Row `i` is disk row `first + i`.
    Rows {
        /// Disk row of row 0.
        first: u64,
    },
    /// Of every `period` disk rows, `take` from `first` on.
    Blocks {
        /// Rows taken of a period.
        take: u64,
        /// Disk rows of a period.
        period: u64,
        /// Where the rows begin in it.
        first: u64,
    },
    /// The two halves of each head lie interleaved (pairs `(2j, 2j+1)` are rotated together), while `rope` rotates
    /// `(j, j + n/2)`: row `half * n/2 + j` of the last `n = period - skip` rows of a head is disk row `2j + half` of them.
    /// GGUF files of the `llama` architecture and DeepSeek's checkpoints are so.
    Pairs {
        /// Rows of a head.
        period: u64,
        /// Rows at its begin that do not rotate and stay.
        skip: u64,
    },
    /// Values: one is added to each, in f32. Checkpoints of norms that multiply by `1 + w`.
    PlusOne,
    /// Values: `ln(-x)` of each, in f32. GGUF files store the `-exp(A_log)` of a state space where checkpoints have `A_log`.
    LogOfNegative,
    /// Values: the tensor is a stack of `[disk_rows, disk_cols]`, transposed: value `(s, r, c)` of the weight is disk value
    /// `(s, c, first + r * step)`. Only for f32, f16 and bf16.
    Transposed {
        /// Rows of the weight in a stack.
        rows: u64,
        /// Disk rows of a stack.
        disk_rows: u64,
        /// Values of a disk row.
        disk_cols: u64,
        /// Disk column of row 0.
        first: u64,
        /// Disk columns from one row to the next.
        step: u64,
    },
    /// MXFP4 as Hugging Face stores it: blocks in the tensor (16 bytes of 32 values, neighbours in one byte), scales in
    /// another. Row `i` is disk row `first + i * step`.
    Mxfp4 {
        /// The tensor of the scales, one byte for 32 values.
        scales: String,
        /// Disk row of row 0.
        first: u64,
        /// Disk rows from one row to the next.
        step: u64,
    },
    /// e4m3 values in the tensor, their scales in another: together rows of [`metrale_core::fp8`].
    Fp8 {
        /// The tensor of the scales.
        scales: String,
        /// Its dimensions: `[rows / 128, cols / 128]` for blocks, otherwise one value, or one per disk row.
        shape: Vec<u64>,
        /// Whether a scale belongs to 128 x 128 values.
        blocks: bool,
        /// How rows move: they move whole.
        rows: Box<Transform>,
    },
}

impl Transform {
    /// The disk row that holds row `row`, where rows move whole.
    #[must_use]
    pub fn disk_row(&self, row: u64) -> u64 {
        match *self {
            Transform::Rows { first } => first + row,
            Transform::Blocks {
                take,
                period,
                first,
            } => row / take * period + first + row % take,
            Transform::Pairs { period, skip } => {
                let (head, within) = (row / period, row % period);
                let Some(turned) = within.checked_sub(skip) else {
                    return row;
                };
                let pairs = (period - skip) / 2;
                head * period + skip + 2 * (turned % pairs) + turned / pairs
            }
            Transform::Mxfp4 { first, step, .. } => first + row * step,
            Transform::Fp8 { ref rows, .. } => rows.disk_row(row),
            Transform::PlusOne | Transform::LogOfNegative | Transform::Transposed { .. } => row,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(transform: &Transform, n: u64) -> Vec<u64> {
        (0..n).map(|r| transform.disk_row(r)).collect()
    }

    #[test]
    fn halves_of_each_head_are_gathered_from_pairs() {
        let whole = Transform::Pairs { period: 4, skip: 0 };
        assert_eq!(rows(&whole, 8), [0, 2, 1, 3, 4, 6, 5, 7]);
        let tail = Transform::Pairs { period: 6, skip: 2 };
        assert_eq!(rows(&tail, 8), [0, 1, 2, 4, 3, 5, 6, 7]);
    }

    #[test]
    fn blocks_skip_what_lies_between() {
        let odd = Transform::Blocks {
            take: 1,
            period: 2,
            first: 1,
        };
        assert_eq!(rows(&odd, 3), [1, 3, 5]);
        let values = Transform::Blocks {
            take: 2,
            period: 5,
            first: 3,
        };
        assert_eq!(rows(&values, 4), [3, 4, 8, 9]);
    }
}
