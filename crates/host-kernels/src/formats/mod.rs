// SPDX-License-Identifier: MIT OR Apache-2.0
//! The weight formats: from a disk block to its place in a packed group, and back to f32 for a gather.
//!
//! Disk blocks are those of the GGUF specification. *Spec* of the values that a gather gives (`embed`), each product exact
//! or rounded once, each sum rounded once:
//!
//! | formats | value |
//! |---|---|
//! | q8_0 | `d * q` |
//! | q4_0, q5_0 | `d * (q - 8)`, `d * (q - 16)` |
//! | q4_1, q5_1 | `d * q + m` |
//! | q2_k, q4_k, q5_k | `(d * sc) * q - dmin * min` |
//! | q3_k, q6_k | `(d * sc) * (q - 4)`, `(d * sc) * (q - 32)` |
//! | iq4_nl, iq4_xs | `d * level(q)`, `(d * sc) * level(q)` |
//! | f8_row, f8_block | `q * s` |
//! | mxfp4 | `2^(e - 128) * level(q)`, levels doubled |

pub(crate) mod fp8;
mod k_quants;
mod legacy;
pub(crate) mod nonlinear;
mod plain;

use metrale_core::Elem;

use crate::lanes::f16_to_f32;

pub(crate) use fp8::{F8Block, F8Row};
pub(crate) use k_quants::{Q2K, Q3K, Q4K, Q5K, Q6K};
pub(crate) use legacy::{Q4_0, Q4_1, Q5_0, Q5_1, Q8_0};
pub(crate) use nonlinear::{Iq4Nl, Iq4Xs, Mxfp4};
pub(crate) use plain::{BF16, F16, F32};

/// A format with a packed layout ([`crate::layout`]).
pub(crate) trait Format: Send + Sync + 'static {
    /// The format.
    const ELEM: Elem;
    /// Values of K in a block.
    const ELEMS: usize;
    /// Bytes of a disk block of one row.
    const DISK: usize;
    /// Bytes of a packed block of eight rows.
    const PACKED: usize;
    /// Puts one row's disk block into row `row` of a packed block.
    fn pack(disk: &[u8], row: usize, packed: &mut [u8]);
    /// The values of row `row` of a packed block.
    fn unpack(packed: &[u8], row: usize, out: &mut [f32]);
}

/// Copies `N` bytes of `row` in an array of eight.
#[inline(always)]
fn put<const N: usize>(packed: &mut [u8], row: usize, value: &[u8]) {
    packed[row * N..(row + 1) * N].copy_from_slice(&value[..N]);
}

/// The f16 of `row` in an array of eight.
#[inline(always)]
pub(crate) fn f16_at(packed: &[u8], row: usize) -> f32 {
    f16_to_f32(u16::from_le_bytes([packed[2 * row], packed[2 * row + 1]]))
}

/// Value `k` of the 32 bytes of one row, interleaved pair by pair.
#[inline(always)]
pub(crate) fn byte(packed: &[u8], row: usize, k: usize) -> u8 {
    packed[k / 2 * 16 + row * 2 + k % 2]
}

/// Interleaves 32 4-bit values of one row, each in a byte of its own.
#[inline(always)]
fn put_nibbles(packed: &mut [u8], row: usize, values: &[u8; 32]) {
    for (v, eight) in values.chunks_exact(8).enumerate() {
        let [a, b, c, d, e, f, g, h] = *eight else {
            continue; // chunks of exactly eight
        };
        let word = [a | c << 4, e | g << 4, b | d << 4, f | h << 4];
        packed[v * 32 + row * 4..][..4].copy_from_slice(&word);
    }
}

/// Value `k` of 32 interleaved nibbles.
#[inline(always)]
pub(crate) fn nibble(packed: &[u8], row: usize, k: usize) -> u8 {
    packed[k / 8 * 32 + row * 4 + k % 2 * 2 + k % 8 / 4] >> (k / 2 % 2 * 4) & 15
}

/// The nibbles of 16 disk bytes: values 0..16 are the low ones.
#[inline(always)]
fn halves(bytes: &[u8]) -> [u8; 32] {
    let mut out = [0; 32];
    for (k, byte) in bytes[..16].iter().enumerate() {
        out[k] = byte & 15;
        out[k + 16] = byte >> 4;
    }
    out
}

/// Interleaves 32 2-bit values of one row.
#[inline(always)]
fn put_pairs(packed: &mut [u8], row: usize, value: impl Fn(usize) -> u8) {
    for (i, eight) in (0..32).step_by(8).enumerate() {
        for h in 0..2 {
            let byte = (0..4).fold(0, |b, f| b | value(eight + 2 * f + h) << (2 * f));
            packed[i / 2 * 32 + row * 4 + h * 2 + i % 2] = byte;
        }
    }
}

/// Value `k` of 32 interleaved 2-bit values.
#[inline(always)]
pub(crate) fn pair(packed: &[u8], row: usize, k: usize) -> u8 {
    packed[k / 16 * 32 + row * 4 + k % 2 * 2 + k / 8 % 2] >> (k / 2 % 4 * 2) & 3
}

/// Interleaves 32 bits of one row.
#[inline(always)]
fn put_bits(packed: &mut [u8], row: usize, bits: u32) {
    for h in 0..2 {
        let half = even_bits(bits >> h).to_le_bytes();
        packed[row * 4 + h * 2..][..2].copy_from_slice(&half);
    }
}

/// Bit `k` of 32 interleaved bits.
#[inline(always)]
pub(crate) fn bit(packed: &[u8], row: usize, k: usize) -> u8 {
    packed[row * 4 + k % 2 * 2 + k / 16] >> (k / 2 % 8) & 1
}

/// The even bits of a word, together.
fn even_bits(word: u32) -> u16 {
    let mut bits = word & 0x5555_5555;
    for (shift, mask) in [
        (1, 0x3333_3333),
        (2, 0x0f0f_0f0f),
        (4, 0x00ff_00ff),
        (8, 0xffff),
    ] {
        bits = (bits | bits >> shift) & mask;
    }
    bits as u16
}
