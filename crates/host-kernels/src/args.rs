// SPDX-License-Identifier: MIT OR Apache-2.0
//! The one place where arena spans become slices.
//!
//! A launch is cut into tiles by a [`Grid`]: a tile owns a range of rows and a range of column units. Reading is open:
//! [`Tile::input`] gives a whole span that the launch declares as read. Writing is not: [`Tile::output`] gives only the
//! tile's own rows and columns, computed here from the tile's number, so that two tiles can never hold the same bytes.
//! That rests on three facts: no two buffer arguments of a launch overlap unless both are read ([`Args::new`] checks it),
//! a tile number runs once per launch, and nothing else touches the spans while a launch runs (both are the contract of
//! [`crate::point::HostLaunch::run`]).

use std::marker::PhantomData;
use std::ops::Range;

use metrale_core::{Access, ArgDecl};

use crate::isa::Isa;

/// A span in memory.
#[derive(Clone, Copy, Debug)]
pub struct RawBuf {
    ptr: *mut u8,
    bytes: usize,
}

// SAFETY: it is an address; who turns it into a slice answers for the access.
unsafe impl Send for RawBuf {}
// SAFETY: as above.
unsafe impl Sync for RawBuf {}

impl RawBuf {
    /// The `bytes` bytes from `ptr` on.
    ///
    /// # Safety
    /// The memory must be initialised, aligned to 64 bytes, and valid for reads and writes for as long as a launch that
    /// was bound to it can run.
    #[must_use]
    pub unsafe fn new(ptr: *mut u8, bytes: usize) -> RawBuf {
        RawBuf { ptr, bytes }
    }

    /// Its size in bytes.
    #[must_use]
    pub fn bytes(self) -> usize {
        self.bytes
    }

    fn overlaps(self, other: RawBuf) -> bool {
        let (a, b) = (self.ptr as usize, other.ptr as usize);
        self.bytes > 0 && other.bytes > 0 && a < b + other.bytes && b < a + self.bytes
    }
}

/// The resolved value of an argument.
#[derive(Clone, Copy, Debug)]
pub enum Value {
    /// A span.
    Buf(RawBuf),
    /// A constant.
    U32(u32),
    /// A constant.
    F32(f32),
    /// The step block.
    Step,
}

/// Types whose values may be read from any bytes and written as bytes.
///
/// # Safety
/// Every bit pattern is a value, there is no padding, and the alignment is at most 64.
pub(crate) unsafe trait Plain: Copy + Send + Sync + 'static {}
// SAFETY: plain numbers.
unsafe impl Plain for u8 {}
// SAFETY: as above.
unsafe impl Plain for u16 {}
// SAFETY: as above.
unsafe impl Plain for u32 {}
// SAFETY: as above.
unsafe impl Plain for f32 {}
// SAFETY: two f32 and 32 i16, `repr(C)`, no padding.
unsafe impl Plain for crate::quantize::A16Block {}

/// Two arguments of a launch overlap and one of them is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Alias {
    /// Position of the first argument.
    pub a: usize,
    /// Position of the second argument.
    pub b: usize,
}

/// The arguments of a launch, by position in its family's list.
#[derive(Clone, Debug)]
pub struct Args {
    values: Box<[Value]>,
    access: Box<[Access]>,
    /// The instruction set.
    pub isa: Isa,
}

impl Args {
    /// Checks that written buffers overlap no other buffer. Kinds and sizes are the caller's to check, before.
    ///
    /// # Errors
    /// [`Alias`], the first pair found.
    pub fn new(decls: &[ArgDecl], values: Vec<Value>, isa: Isa) -> Result<Args, Alias> {
        let access: Box<[Access]> = decls
            .iter()
            .map(|d| match d {
                ArgDecl::Buf { access, .. } => *access,
                _ => Access::Read,
            })
            .collect();
        for (a, va) in values.iter().enumerate() {
            for (b, vb) in values.iter().enumerate().skip(a + 1) {
                if let (Value::Buf(x), Value::Buf(y)) = (va, vb)
                    && (access[a] != Access::Read || access[b] != Access::Read)
                    && x.overlaps(*y)
                {
                    return Err(Alias { a, b });
                }
            }
        }
        Ok(Args {
            values: values.into(),
            access,
            isa,
        })
    }

    /// A U32 constant.
    #[must_use]
    #[allow(clippy::panic)] // kinds are checked when a launch is bound
    pub fn u32(&self, at: usize) -> usize {
        match self.values[at] {
            Value::U32(v) => v as usize,
            other => panic!("argument {at} is {other:?}, not a U32"),
        }
    }

    /// An F32 constant.
    #[must_use]
    #[allow(clippy::panic)] // kinds are checked when a launch is bound
    pub fn f32(&self, at: usize) -> f32 {
        match self.values[at] {
            Value::F32(v) => v,
            other => panic!("argument {at} is {other:?}, not an F32"),
        }
    }

    #[allow(clippy::panic)] // kinds are checked when a launch is bound
    fn buf(&self, at: usize) -> RawBuf {
        match self.values[at] {
            Value::Buf(b) => b,
            other => panic!("argument {at} is {other:?}, not a buffer"),
        }
    }

    fn values<T: Plain>(&self, at: usize) -> (*mut T, usize) {
        let buf = self.buf(at);
        (buf.ptr.cast(), buf.bytes / size_of::<T>())
    }
}

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

    /// The tile's heads (its column units) of a KV span `[blocks, heads, 16, head_dim]`: any block, own heads only. The
    /// launch must be cut by heads alone.
    pub(crate) fn kv_output<T: Plain>(
        &mut self,
        at: usize,
        heads: usize,
        head_dim: usize,
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
            head_dim,
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
    head_dim: usize,
    life: PhantomData<&'a mut [T]>,
}

impl<T: Plain> KvOut<'_, T> {
    /// The values of one token of one of the tile's heads; `None` if `block` lies outside the pool.
    #[inline]
    pub(crate) fn token(&mut self, block: usize, head: usize, offset: usize) -> Option<&mut [T]> {
        const TOKENS: usize = metrale_core::KV_BLOCK as usize;
        assert!(
            self.own.contains(&head) && offset < TOKENS,
            "head {head} is another tile's"
        );
        let begin = ((block * self.heads + head) * TOKENS + offset) * self.head_dim;
        if begin + self.head_dim > self.len {
            return None;
        }
        // SAFETY: in bounds; live, plain and initialised; the index decomposes uniquely into (block, head, offset) and
        // the head is this tile's alone; the argument was taken once and `self` is borrowed mutably.
        Some(unsafe { std::slice::from_raw_parts_mut(self.ptr.add(begin), self.head_dim) })
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

    #[test]
    fn a_written_buffer_that_overlaps_is_found() {
        let mut memory = [0u64; 16];
        let base = memory.as_mut_ptr().cast::<u8>();
        // SAFETY: the array outlives the values, which are never turned into slices.
        let buf = |offset: usize, bytes| unsafe { RawBuf::new(base.add(offset), bytes) };
        let decls = [
            ArgDecl::Buf {
                name: "x",
                access: Access::Read,
            },
            ArgDecl::Buf {
                name: "y",
                access: Access::Write,
            },
        ];
        let args =
            |a, b| Args::new(&decls, vec![Value::Buf(a), Value::Buf(b)], Isa::PORTABLE).map(|_| ());
        assert_eq!(args(buf(0, 64), buf(64, 64)), Ok(()));
        assert_eq!(args(buf(0, 65), buf(64, 64)), Err(Alias { a: 0, b: 1 }));
    }
}
