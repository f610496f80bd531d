// SPDX-License-Identifier: MIT OR Apache-2.0
// The paged pools as the tensor-core points of class hopper keep them: layout `panel64`, bf16.
//
// A pool is [blocks, kv_heads, head_dim / 64, 16 tokens, 64 dims]: as large as the plain pool [blocks, kv_heads, 16,
// head_dim], but a block's tokens of one head lie in panels of 64 dims (128 bytes a token, 2 KB a panel), and the 16-byte
// chunk c of token t stands at place c xor (t mod 8). That is the 128-byte swizzle of wgmma and of the copy engine, so that a
// panel goes to shared memory as one plain bulk copy and is read there without bank conflicts. Kernels of this layout and
// plain ones must not share a pool.
#pragma once

#include "step.cuh"

constexpr u32 PANEL_DIMS = 64;
constexpr u32 PANEL_BYTES = KV_BLOCK * PANEL_DIMS * 2;

// Byte offset of dim `d` of token `t` (in its block), from the start of the pool.
__device__ inline u64 kv_offset(u32 block, u32 kv_heads, u32 head, u32 head_dim, u32 t, u32 d) {
    u64 panel = ((u64)block * kv_heads + head) * (head_dim / PANEL_DIMS) + d / PANEL_DIMS;
    u32 in = d % PANEL_DIMS;
    return panel * PANEL_BYTES + t * (PANEL_DIMS * 2) + ((in / 8 ^ t % 8) * 16) + in % 8 * 2;
}
