// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the vector paths of `linear` need of a vector.

use crate::lanes::F8;

/// 32-bit lanes, one for each output of one group (AVX2) or two (AVX-512); as weights, two 16-bit integers in each.
///
/// Addresses come as one for each group; a vector of one group looks at the first alone.
///
/// # Safety
/// Every function is inlined into one that enables the features of the implementation; `p` points to packed blocks that
/// hold what is read.
pub(in crate::linear) trait Wide: Copy {
    /// The same lanes as f32.
    type Ps: Copy;
    /// Groups in a vector.
    const GROUPS: usize;

    unsafe fn zero() -> Self;
    /// Every 16-bit integer.
    unsafe fn splat16(v: i16) -> Self;
    /// 32 bytes of each group.
    unsafe fn load(p: [*const u8; 2], offset: usize) -> Self;
    /// 16 bytes of each group as signed 16-bit integers.
    unsafe fn load_bytes(p: [*const u8; 2], offset: usize) -> Self;
    /// 8 bytes of each group, each as a signed integer in both halves of its lane.
    unsafe fn load_scales(p: [*const u8; 2], offset: usize) -> Self;
    unsafe fn and(self, b: Self) -> Self;
    unsafe fn or(self, b: Self) -> Self;
    unsafe fn sub16(self, b: Self) -> Self;
    unsafe fn mul16(self, b: Self) -> Self;
    unsafe fn add32(self, b: Self) -> Self;
    /// 16-bit shifts by a constant: logical right.
    unsafe fn srl(self, bits: u32) -> Self;
    /// Left.
    unsafe fn sll(self, bits: u32) -> Self;
    /// Right, with the sign.
    unsafe fn sra(self, bits: u32) -> Self;
    /// Each byte, 0..=15, replaced by its entry in the table.
    unsafe fn look_up(self, table: &[i8; 16]) -> Self;
    /// `sum` plus the dot product of each lane's two integers with those of `x`.
    unsafe fn dot(self, sum: Self, x: i32) -> Self;
    /// 32-bit integers to f32, ties to even.
    unsafe fn to_ps(self) -> Self::Ps;

    unsafe fn splat(v: f32) -> Self::Ps;
    /// 8 halves of each group.
    unsafe fn halves(p: [*const u8; 2], offset: usize) -> Self::Ps;
    /// 8 bytes of each group, without sign.
    unsafe fn bytes_ps(p: [*const u8; 2], offset: usize) -> Self::Ps;
    /// 8 bytes of each group, with sign.
    unsafe fn signed_ps(p: [*const u8; 2], offset: usize) -> Self::Ps;
    /// 8 E8M0 scales of each group, halved.
    unsafe fn e8m0_halved(p: [*const u8; 2], offset: usize) -> Self::Ps;
    unsafe fn mul(a: Self::Ps, b: Self::Ps) -> Self::Ps;
    /// `a * b + c`, rounded once.
    unsafe fn fma(a: Self::Ps, b: Self::Ps, c: Self::Ps) -> Self::Ps;
    unsafe fn neg(a: Self::Ps) -> Self::Ps;
    /// The lanes by group.
    unsafe fn split(a: Self::Ps) -> [F8; 2];
}
