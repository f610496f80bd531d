// SPDX-License-Identifier: MIT OR Apache-2.0
//! How big tiles are. Bits never depend on it: a tile that takes a few microseconds hides the cost of taking it (about
//! 0.1 us), and several tiles per thread even out.

use crate::args::Grid;

/// Values of a row-wise tile: about 4 us of element-wise work.
const ROW_TILE_VALUES: usize = 16 * 1024;

/// Tiles of whole rows of `cols` values.
pub(crate) fn rows(rows: u32, cols: usize) -> Grid {
    Grid::rows(rows, (ROW_TILE_VALUES / cols.max(1)).clamp(1, 64) as u32)
}
