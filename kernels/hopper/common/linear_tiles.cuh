// SPDX-License-Identifier: MIT OR Apache-2.0
// What all linear kernels of class hopper share: the layout of packed weights and the K segments of spec k16_bf16.
//
// Packed weights: tiles of 128 rows x 128 bytes of k (64 bf16, 128 e4m3), 16 KB each, contiguous, in the order
// [row / 128][k block]; rows are padded with zeros to a multiple of 128. Inside a tile row r is 128 bytes at r * 128, its 16-byte
// chunk c stands at place c ^ (r % 8): what the tensor cores call the 128-byte swizzle, so one plain bulk copy makes an operand.
//
// Paired (gate and up of a SwiGLU): packed row 16 s + i is gate row 8 s + i for i < 8 and up row 8 s + i - 8 else, so that
// one thread of a wgmma fragment holds gate and up of one column of h.
//
// Spec k16_bf16: inside each of S segments of K one ascending chain of k16 tensor-core steps in f32; segments are added left
// to right in f32; bias last. Segment s covers k blocks [s B / S, (s + 1) B / S) of the B = k / 64.
#pragma once

#include "step.cuh"

constexpr u32 TILE_ROWS = 128;
constexpr u32 TILE_BYTES = 16384;
constexpr u32 BLOCK_BYTES = 128; // of k that a tile holds
constexpr u32 HALF_BYTES = TILE_BYTES / 2; // 64 rows: what one warpgroup takes

#ifndef LINEAR_SLOTS
#define LINEAR_SLOTS 192 // blocks that a launch may spread to: between one and two an SM, by measurement
#endif

// S(k, n) of `blocks` k blocks and n rows (2 ffn for a paired tensor): the largest power of two up to 8 that keeps 4 blocks a
// segment and tiles * S within LINEAR_SLOTS.
__host__ __device__ inline u32 linear_segments(u32 blocks, u32 n) {
    u32 tiles = (n + TILE_ROWS - 1) / TILE_ROWS, s = 1;
    while (s < 8 && blocks >= 8 * s && tiles * 2 * s <= LINEAR_SLOTS) s *= 2;
    return s;
}

// Rows of whole tiles: what packing pads n to.
__host__ __device__ inline u32 tile_rows(u32 n) { return (n + TILE_ROWS - 1) / TILE_ROWS * TILE_ROWS; }

// First k block of segment s of `segments`, a power of two up to 8: a shift, since a division would hold up the tensor cores.
__host__ __device__ inline u32 segment_begin(u32 s, u32 segments, u32 blocks) {
    return s * blocks >> (segments > 4 ? 3 : segments / 2);
}

// Byte of element-chunk `chunk` (16 bytes) of packed row `row` in a tensor of `blocks` k blocks.
__host__ __device__ inline u64 packed_chunk(u32 row, u32 chunk, u32 blocks) {
    u64 tile = (u64)(row / TILE_ROWS) * blocks + chunk / 8;
    return tile * TILE_BYTES + (row % TILE_ROWS) * BLOCK_BYTES + ((chunk % 8) ^ (row % 8)) * 16;
}

// Packed row of row `row` of [gate; up], ffn rows each.
__host__ __device__ inline u32 paired_row(u32 row, u32 ffn) {
    u32 up = row >= ffn, j = row - up * ffn;
    return j / 8 * 16 + up * 8 + j % 8;
}
