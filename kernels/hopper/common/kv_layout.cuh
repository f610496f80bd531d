// SPDX-License-Identifier: MIT OR Apache-2.0
// The paged pools as the tensor-core points of class hopper keep them: layout `atoms8x64` for bf16, `turned16` for e4m3.
//
// A pool of bf16 is [blocks, kv_heads, 2, head_dim / 64, 8 tokens, 64 dims]: as large as the plain pool [blocks, kv_heads, 16,
// head_dim], but a block's tokens of one head lie in atoms of 8 tokens by 64 dims (1 KB, 128 bytes a token), and the 16-byte
// chunk c of token t stands at place c xor (t mod 8). That is the 128-byte swizzle of wgmma: a block of one head goes to shared
// memory as one plain bulk copy (4 KB at head_dim 128), blocks follow each other there with one stride between groups of 8
// tokens, and both wgmma and ldmatrix read it without bank conflicts. Kernels of this layout and plain ones must not share a
// pool.
//
// A pool of e4m3 is [blocks, kv_heads], as large as the plain one: of each block and head 16 tokens of head_dim bytes, then 16
// scales in f32. The 16-byte chunk c of token t stands at place c xor (t mod 8), with 64 columns at c xor (t / 2 mod 4): eight
// tokens' chunks lie in different banks. A block of one head is one bulk copy, scales and all.
#pragma once

#include "step.cuh"

constexpr u32 PANEL_DIMS = 64;
constexpr u32 ATOM_BYTES = 8 * PANEL_DIMS * 2;

// Byte offset of dim `d` of token `t`, in tokens of one head that lie in atoms; d of which is a multiple of 2.
__device__ inline u32 atom_offset(u32 head_dim, u32 t, u32 d) {
    u32 atom = t / 8 * (head_dim / PANEL_DIMS) + d / PANEL_DIMS, in = d % PANEL_DIMS;
    return atom * ATOM_BYTES + t % 8 * (PANEL_DIMS * 2) + ((in / 8 ^ t % 8) * 16) + in % 8 * 2;
}

// Byte offset of dim `d` of token `t` of a block, from the start of the pool.
__device__ inline u64 kv_offset(u32 block, u32 kv_heads, u32 head, u32 head_dim, u32 t, u32 d) {
    return ((u64)block * kv_heads + head) * (KV_BLOCK * head_dim * 2) + atom_offset(head_dim, t, d);
}

// Bytes of one head of a block of e4m3.
__host__ __device__ constexpr u32 f8_block_bytes(u32 head_dim) { return KV_BLOCK * (head_dim + 4); }

// Byte offset of dim `d` of token `t` of a block, in the tokens of one head in e4m3.
__device__ inline u32 f8_offset(u32 head_dim, u32 t, u32 d) {
    u32 turn = head_dim == 64 ? t / 2 % 4 : t % 8;
    return t * head_dim + (d / 16 ^ turn) * 16 + d % 16;
}
