// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tiles: which rows and columns are whose, and the slices that follow from it.

use std::marker::PhantomData;
use std::ops::Range;

use metrale_core::Access;

use super::{Args, Plain};
use crate::point::TileFault;

/// How a launch is cut: `rows` in blocks of `row_block`, `cols` units in blocks of `col_block`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grid {
    /// Rows of the launch.
    pub rows: u32,
    /// Rows of a tile.
    pub row_block: u32,
    /// Column units of the launch.
    pub cols: u32,
    /// Column units of a tile.
    pub col_block: u32,
}

impl Grid {
    /// Tiles of whole rows.
    #[must_use]
    pub fn rows(rows: u32, row_block: u32) -> Grid {
        Grid {
            rows,
            row_block: row_block.max(1),
            cols: 1,
            col_block: 1,
        }
    }

    /// How many tiles.
    #[must_use]
    pub fn tiles(self) -> u32 {
        self.rows.div_ceil(self.row_block) * self.cols.div_ceil(self.col_block)
    }

    /// Rows and column units of a tile. Tiles that share columns are neighbours: they use the same weights.
    fn tile(self, index: u32) -> (Range<usize>, Range<usize>) {
        let per_col = self.rows.div_ceil(self.row_block);
        let (c, r) = (index / per_col, index % per_col);
        let range = |i: u32, block: u32, end: u32| {
            let begin = i as usize * block as usize;
            begin..(begin + block as usize).min(end as usize)
        };
        (
            range(r, self.row_block, self.rows),
            range(c, self.col_block, self.cols),
        )
    }
}

/// One tile of a running launch.
pub struct Tile<'a> {
    args: &'a Args,
    rows: Range<usize>,
    cols: Range<usize>,
    /// Whether the tile holds every row of the launch.
    every_row: bool,
    /// Written arguments already handed out, by position.
    taken: u32,
}

impl<'a> Tile<'a> {
    /// Tile `index` of `grid`.
    ///
    /// # Safety
    /// While the value or a slice from it lives, no other tile with this index of this launch may exist, every other
    /// tile of this launch must come from an equal `grid`, and nothing else may touch the launch's spans.
    pub(crate) unsafe fn new(args: &'a Args, grid: Grid, index: u32) -> Tile<'a> {
        assert!(index < grid.tiles());
        let (rows, cols) = grid.tile(index);
        Tile {
            args,
            rows,
            cols,
            every_row: grid.rows <= grid.row_block,
            taken: 0,
        }
    }

    /// The tile's rows.
    pub(crate) fn rows(&self) -> Range<usize> {
        self.rows.clone()
    }

    /// The tile's column units.
    pub(crate) fn cols(&self) -> Range<usize> {
        self.cols.clone()
    }

    /// The launch's arguments.
    pub(crate) fn args(&self) -> &'a Args {
        self.args
    }

    /// A whole read span.
    pub(crate) fn input<T: Plain>(&self, at: usize) -> &'a [T] {
        assert!(
            self.args.access[at] == Access::Read,
            "argument {at} is written"
        );
        let (ptr, len) = self.args.values::<T>(at);
        // SAFETY: the span is live and initialised (`RawBuf::new`), `T` is plain, and nobody writes it: not this launch
        // (read, and it overlaps no written argument), nor anything else (contract of `Tile::new`).
        unsafe { std::slice::from_raw_parts(ptr, len) }
    }

    /// Values that a span holds.
    pub(crate) fn span_len<T: Plain>(&self, at: usize) -> usize {
        self.args.values::<T>(at).1
    }

    /// The tile's part of a written span of rows of `ld` values: of row `r`, the values `base + unit * c` for the tile's
    /// column units `c`, cut at `base + width`. Each argument can be taken once per tile.
    pub(crate) fn output<T: Plain>(&mut self, at: usize, shape: RowShape) -> Out<'a, T> {
        assert!(
            self.args.access[at] != Access::Read,
            "argument {at} is read only"
        );
        assert!(
            shape.base + shape.width <= shape.ld,
            "columns of one row reach into the next"
        );
        assert!(self.taken & 1 << at == 0, "argument {at} was taken before");
        self.taken |= 1 << at;
        let (ptr, len) = self.args.values::<T>(at);
        let col = |c: usize| shape.base + (c * shape.unit).min(shape.width);
        Out {
            ptr,
            len,
            rows: self.rows.clone(),
            first: shape.first,
            ld: shape.ld,
            cols: col(self.cols.start)..col(self.cols.end),
            life: PhantomData,
        }
    }

    /// The tile's heads (its column units) of a KV span `[blocks, heads, head_len]`: any block, own heads only. The launch
    /// must be cut by heads alone.
    pub(crate) fn kv_output<T: Plain>(
        &mut self,
        at: usize,
        heads: usize,
        head_len: usize,
    ) -> KvOut<'a, T> {
        assert!(
            self.args.access[at] != Access::Read,
            "argument {at} is read only"
        );
        assert!(self.taken & 1 << at == 0, "argument {at} was taken before");
        assert!(
            self.cols.end <= heads && self.rows == (0..1),
            "not cut by heads"
        );
        self.taken |= 1 << at;
        let (ptr, len) = self.args.values::<T>(at);
        KvOut {
            ptr,
            len,
            own: self.cols.clone(),
            heads,
            head_len,
            life: PhantomData,
        }
    }
}

impl<'a> Tile<'a> {
    /// The tile's units (its column units) of a state span `[slots, units, unit]`: any slot, own units only. The launch
    /// must be cut by units alone.
    pub(crate) fn slot_output<T: Plain>(
        &mut self,
        at: usize,
        units: usize,
        unit: usize,
    ) -> SlotOut<'a, T> {
        assert!(
            self.args.access[at] != Access::Read,
            "argument {at} is read only"
        );
        assert!(self.taken & 1 << at == 0, "argument {at} was taken before");
        assert!(
            self.cols.end <= units && self.every_row,
            "not cut by units alone"
        );
        self.taken |= 1 << at;
        let (ptr, len) = self.args.values::<T>(at);
        SlotOut {
            ptr,
            slots: len / (units * unit),
            own: self.cols.start * unit..self.cols.end * unit,
            per_slot: units * unit,
            life: PhantomData,
        }
    }
}

/// Where the columns of a written row lie.
#[derive(Clone, Copy)]
pub(crate) struct RowShape {
    /// Row of the span that is the launch's row 0.
    pub(crate) first: usize,
    /// Values from one row to the next.
    pub(crate) ld: usize,
    /// First column of the launch.
    pub(crate) base: usize,
    /// Columns of the launch.
    pub(crate) width: usize,
    /// Columns per column unit.
    pub(crate) unit: usize,
}

impl RowShape {
    /// Whole rows of `cols` values.
    pub(crate) fn whole(cols: usize) -> RowShape {
        RowShape {
            first: 0,
            ld: cols,
            base: 0,
            width: cols,
            unit: cols,
        }
    }

    /// Rows of `units` column units of `unit` values.
    pub(crate) fn units(units: usize, unit: usize) -> RowShape {
        RowShape {
            first: 0,
            ld: units * unit,
            base: 0,
            width: units * unit,
            unit,
        }
    }
}

/// A tile's units of a written state span.
pub(crate) struct SlotOut<'a, T> {
    ptr: *mut T,
    slots: usize,
    own: Range<usize>,
    per_slot: usize,
    life: PhantomData<&'a mut [T]>,
}

impl<T: Plain> SlotOut<'_, T> {
    /// The tile's values of `slot`.
    #[inline]
    pub(crate) fn slot(&mut self, slot: u32) -> Result<&mut [T], TileFault> {
        let slots = self.slots;
        if slot as usize >= slots {
            return Err(TileFault::Slot { slot, slots });
        }
        let begin = slot as usize * self.per_slot + self.own.start;
        // SAFETY: in bounds, since `slot` is below the whole slots of the span; live, plain and initialised; the units are
        // this tile's alone (the launch is cut by units alone); the argument was taken once and `self` is borrowed mutably.
        Ok(unsafe { std::slice::from_raw_parts_mut(self.ptr.add(begin), self.own.len()) })
    }
}

/// A tile's part of a written span.
pub(crate) struct Out<'a, T> {
    ptr: *mut T,
    len: usize,
    rows: Range<usize>,
    first: usize,
    ld: usize,
    cols: Range<usize>,
    life: PhantomData<&'a mut [T]>,
}

impl<T: Plain> Out<'_, T> {
    /// The tile's columns of row `r`, one of its rows.
    #[inline]
    pub(crate) fn row(&mut self, r: usize) -> &mut [T] {
        assert!(self.rows.contains(&r), "row {r} is another tile's");
        let begin = (self.first + r) * self.ld + self.cols.start;
        let len = self.cols.len();
        assert!(begin + len <= self.len, "row {r} lies outside its span");
        // SAFETY: in bounds; live, plain and initialised; rows and columns are this tile's alone (they follow from its
        // index by `Grid::tile`, and `base + width <= ld`); the argument was taken once and `self` is borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.ptr.add(begin), len) }
    }
}

/// A tile's heads of a written KV span.
pub(crate) struct KvOut<'a, T> {
    ptr: *mut T,
    len: usize,
    own: Range<usize>,
    heads: usize,
    head_len: usize,
    life: PhantomData<&'a mut [T]>,
}

impl<T: Plain> KvOut<'_, T> {
    /// What a block holds of one of the tile's heads; `None` if `block` lies outside the pool.
    #[inline]
    pub(crate) fn head(&mut self, block: usize, head: usize) -> Option<&mut [T]> {
        assert!(self.own.contains(&head), "head {head} is another tile's");
        let begin = (block * self.heads + head) * self.head_len;
        if begin + self.head_len > self.len {
            return None;
        }
        // SAFETY: in bounds; live, plain and initialised; the index decomposes uniquely into (block, head) and the head is
        // this tile's alone; the argument was taken once and `self` is borrowed mutably.
        Some(unsafe { std::slice::from_raw_parts_mut(self.ptr.add(begin), self.head_len) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiles_cover_the_grid_once() {
        let grid = Grid {
            rows: 7,
            row_block: 3,
            cols: 10,
            col_block: 4,
        };
        assert_eq!(grid.tiles(), 9);
        let mut seen = [[0; 10]; 7];
        for t in 0..grid.tiles() {
            let (rows, cols) = grid.tile(t);
            for row in &mut seen[rows] {
                for cell in &mut row[cols.clone()] {
                    *cell += 1;
                }
            }
        }
        assert!(seen.iter().flatten().all(|n| *n == 1));
        assert_eq!(Grid::rows(0, 4).tiles(), 0);
    }
}
