// SPDX-License-Identifier: MIT OR Apache-2.0
//! Row transforms: disk order to the order that the circuit's operations assume.

/// How the rows of a disk tensor become the rows of a weight. Rows move whole, so a transform works on every format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transform {
    /// Row i is row i.
    Whole,
    /// GGUF files of the `llama` architecture store the query and key projections with the two halves of each head
    /// interleaved (pairs `(2j, 2j+1)` are rotated together); the circuit's `rope` rotates `(j, j + head_dim/2)`.
    /// Row `half * head_dim/2 + j` of a head is disk row `2j + half` of it.
    SplitInterleavedPairs,
}

impl Transform {
    /// The disk row that holds row `row` of the weight; `head_dim` is in rows.
    #[must_use]
    pub fn disk_row(self, row: u64, head_dim: u64) -> u64 {
        match self {
            Transform::Whole => row,
            Transform::SplitInterleavedPairs => {
                let (head, within) = (row / head_dim, row % head_dim);
                let (half, pair) = (within / (head_dim / 2), within % (head_dim / 2));
                head * head_dim + 2 * pair + half
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_of_each_head_are_gathered_from_pairs() {
        let rows: Vec<u64> = (0..8)
            .map(|r| Transform::SplitInterleavedPairs.disk_row(r, 4))
            .collect();
        assert_eq!(rows, [0, 2, 1, 3, 4, 6, 5, 7]);
    }
}
