// SPDX-License-Identifier: MIT OR Apache-2.0
//! The one place where arena spans become slices.
//!
//! A launch is cut into tiles by a [`Grid`]: a tile owns a range of rows and a range of column units. Reading is open:
//! [`Tile::input`] gives a whole span that the launch declares as read. Writing is not: [`Tile::output`] gives only the
//! tile's own rows and columns, computed here from the tile's number, so that two tiles can never hold the same bytes.
//! That rests on three facts: no two buffer arguments of a launch overlap unless both are read ([`Args::new`] checks it),
//! a tile number runs once per launch, and nothing else touches the spans while a launch runs (both are the contract of
//! [`crate::point::HostLaunch::run`]).

mod tile;

use metrale_core::{Access, ArgDecl};

use crate::isa::Isa;
pub use tile::{Grid, Tile};
pub(crate) use tile::{Out, RowShape};

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

#[cfg(test)]
mod tests {
    use super::*;

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
