// SPDX-License-Identifier: MIT OR Apache-2.0
//! The tile instructions in plain Rust, as Intel's manual describes them (SDM volume 2, `TDPBF16PS`): the values of even and
//! of odd k of one instruction are two f32 chains of fused steps from zero, their sum is added to the tile; subnormal
//! operands and results are zeros of their sign; ties to even.

use super::tiles::{Line, ROWS, Tiles};
use super::{Block, ZERO};

pub(super) struct Model {
    pub(super) tiles: [Block; 8],
    open: bool,
}

impl Model {
    pub(super) fn new() -> Model {
        Model {
            // What is not loaded must not matter.
            tiles: [[Line([0x7fc0_1234; 16]); ROWS]; 8],
            open: false,
        }
    }
}

fn flush(v: f32) -> f32 {
    if v.is_subnormal() {
        0f32.copysign(v)
    } else {
        v
    }
}

/// The two bf16 of a lane.
fn pair(lane: u32) -> [f32; 2] {
    [lane << 16, lane & 0xffff_0000].map(|bits| flush(f32::from_bits(bits)))
}

impl Tiles for Model {
    unsafe fn open(&mut self) {
        assert!(!self.open, "opened twice");
        self.open = true;
    }

    unsafe fn zero<const T: usize>(&mut self) {
        assert!(self.open);
        self.tiles[T] = [ZERO; ROWS];
    }

    unsafe fn load<const T: usize>(&mut self, from: *const Line) {
        assert!(self.open && from.is_aligned());
        for (r, line) in self.tiles[T].iter_mut().enumerate() {
            // SAFETY: the caller's: 16 lines there.
            *line = unsafe { *from.add(r) };
        }
    }

    unsafe fn store<const T: usize>(&mut self, to: *mut Line) {
        assert!(self.open && to.is_aligned());
        for (r, line) in self.tiles[T].iter().enumerate() {
            // SAFETY: the caller's: 16 lines there.
            unsafe { *to.add(r) = *line };
        }
    }

    unsafe fn dot<const C: usize, const A: usize, const B: usize>(&mut self) {
        assert!(self.open);
        for m in 0..ROWS {
            for n in 0..16 {
                let mut chains = [0f32; 2];
                for p in 0..16 {
                    let (a, b) = (pair(self.tiles[A][m].0[p]), pair(self.tiles[B][p].0[n]));
                    for h in 0..2 {
                        chains[h] = flush(a[h].mul_add(b[h], chains[h]));
                    }
                }
                let c = flush(f32::from_bits(self.tiles[C][m].0[n]));
                self.tiles[C][m].0[n] = flush(c + flush(chains[0] + chains[1])).to_bits();
            }
        }
    }

    unsafe fn close(&mut self) {
        assert!(self.open, "closed before it was opened");
        self.open = false;
    }
}
