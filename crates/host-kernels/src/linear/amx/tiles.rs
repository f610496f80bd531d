// SPDX-License-Identifier: MIT OR Apache-2.0
//! The few tile instructions that the driver uses, over a trait: a processor with AMX runs them, and a model in the tests
//! runs the same driver where there is none.

use std::arch::asm;

/// 64 bytes, a row of a tile; also 16 lanes of f32.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(crate) struct Line(pub(crate) [u32; 16]);

/// Rows of a tile.
pub(super) const ROWS: usize = 16;

/// Eight tiles of 16 lines. `T`, `C`, `A` and `B` are tiles, 0 to 7.
///
/// # Safety
/// The implementation's instructions are there. `open` comes before all others and `close` last, on one thread. Addresses
/// are those of 16 lines, one behind the other.
pub(super) trait Tiles {
    /// All tiles of full size.
    unsafe fn open(&mut self);
    /// Zeroes a tile.
    unsafe fn zero<const T: usize>(&mut self);
    /// Reads a tile.
    unsafe fn load<const T: usize>(&mut self, from: *const Line);
    /// Writes a tile.
    unsafe fn store<const T: usize>(&mut self, to: *mut Line);
    /// `C += A x B`: `A` is 16 rows of 32 bf16, `B` 16 columns of 32, pair by pair (lane `n` of line `p` holds values `2p`
    /// and `2p + 1` of column `n`), `C` 16 rows of 16 f32.
    unsafe fn dot<const C: usize, const A: usize, const B: usize>(&mut self);
    /// Frees the tiles: the system need no longer save them.
    unsafe fn close(&mut self);
}

/// The processor's. The compiler does not use tiles, so that no instruction tells it of them.
pub(super) struct Hardware;

/// What `ldtilecfg` reads: palette 1, then from byte 16 on the bytes of a row of each tile, from 48 on its rows.
#[repr(C, align(64))]
struct Shape([u8; 64]);

static FULL: Shape = {
    let mut shape = [0; 64];
    shape[0] = 1;
    let mut tile = 0;
    while tile < 8 {
        shape[16 + 2 * tile] = 64;
        shape[48 + tile] = ROWS as u8;
        tile += 1;
    }
    Shape(shape)
};

impl Tiles for Hardware {
    #[inline(always)]
    unsafe fn open(&mut self) {
        // SAFETY: the caller's; 64 bytes are read.
        unsafe {
            asm!("ldtilecfg [{p}]", p = in(reg) &raw const FULL,
                options(nostack, readonly, preserves_flags));
        }
    }

    #[inline(always)]
    unsafe fn zero<const T: usize>(&mut self) {
        // SAFETY: the caller's; no memory is touched.
        unsafe { asm!("tilezero tmm{t}", t = const T, options(nostack, nomem, preserves_flags)) }
    }

    #[inline(always)]
    unsafe fn load<const T: usize>(&mut self, from: *const Line) {
        // SAFETY: the caller's: 16 lines there.
        unsafe {
            asm!("tileloadd tmm{t}, [{p} + {s}*1]", t = const T, p = in(reg) from,
                s = in(reg) size_of::<Line>(), options(nostack, readonly, preserves_flags));
        }
    }

    #[inline(always)]
    unsafe fn store<const T: usize>(&mut self, to: *mut Line) {
        // SAFETY: the caller's: 16 lines there.
        unsafe {
            asm!("tilestored [{p} + {s}*1], tmm{t}", t = const T, p = in(reg) to,
                s = in(reg) size_of::<Line>(), options(nostack, preserves_flags));
        }
    }

    #[inline(always)]
    unsafe fn dot<const C: usize, const A: usize, const B: usize>(&mut self) {
        // SAFETY: the caller's; no memory is touched.
        unsafe {
            asm!("tdpbf16ps tmm{c}, tmm{a}, tmm{b}", c = const C, a = const A, b = const B,
                options(nostack, nomem, preserves_flags));
        }
    }

    #[inline(always)]
    unsafe fn close(&mut self) {
        // SAFETY: the caller's; no memory is touched.
        unsafe { asm!("tilerelease", options(nostack, nomem, preserves_flags)) }
    }
}
