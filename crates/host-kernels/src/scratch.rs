// SPDX-License-Identifier: MIT OR Apache-2.0
//! Working memory of one thread of the team: grows on first use, then stays.

/// Buffers that a tile may use for intermediate values. Contents are unspecified between tiles.
#[derive(Debug, Default)]
pub struct Scratch {
    pub(crate) f32s: Vec<f32>,
    pub(crate) more: Vec<f32>,
    /// Scores of queries.
    pub(crate) scores: Vec<f32>,
    pub(crate) running: Vec<crate::attention::Running>,
    pub(crate) pairs: Vec<(f32, u32)>,
    /// Pairs of a tile by expert.
    pub(crate) keys: Vec<u64>,
    /// Pairs of one expert.
    pub(crate) index: Vec<u32>,
    /// Queries that are put together from two places.
    pub(crate) queries: Vec<f32>,
    /// Planes of activations and weights, and sums.
    pub(crate) tiles: crate::linear::TileBuffers,
}

/// The first `len` values of `buffer`, grown if needed.
pub(crate) fn grown(buffer: &mut Vec<f32>, len: usize) -> &mut [f32] {
    if buffer.len() < len {
        buffer.resize(len, 0.0);
    }
    &mut buffer[..len]
}
