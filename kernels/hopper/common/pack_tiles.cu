// SPDX-License-Identifier: MIT OR Apache-2.0
// pack and embed for the packed weights of linear_tiles.cuh (the layout stands there).
//
//   pack_bf16_tiles    rows of [n, k] to packed rows dst_row.. of a plain tensor; dst_rows_total is n
//   pack_bf16_paired   rows of the concatenation [gate; up], 2 ffn rows, to the paired order: a gate tensor comes with dst_row
//                      0.., an up tensor with dst_row ffn..; dst_rows_total is 2 ffn, ffn % 8 == 0
//   both               grid any (128 blocks of 256 threads are enough), a thread takes 16 bytes a step; cols % 64 == 0; dst holds
//                      tiles(dst_rows_total, 128) * 128 * cols * 2 bytes. The call that brings the last row writes the padding.
//   embed_bf16_tiles   rows of a plain packed table; block 256, grid [rows, tiles(hidden, 2048)]. Spec dequant_f32.
// Spec of pack: exact.
#include "linear_sm90.cuh"
#include "linear_tiles.cuh"
#include "numeric.cuh"

// 16 bytes from a place that is aligned to 2 bytes only.
__device__ inline uint4 load_unaligned(const u16* p) {
    u16 v[8];
#pragma unroll
    for (u32 i = 0; i < 8; ++i) v[i] = p[i];
    return make_uint4(v[0] | v[1] << 16, v[2] | v[3] << 16, v[4] | v[5] << 16, v[6] | v[7] << 16);
}

template <bool PAIRED>
__device__ void pack_tiles(const u16* src, u8* dst, u32 rows, u32 cols, u32 dst_row, u32 total) {
    u32 chunks = cols / 8, blocks = cols / 64;
    bool aligned = ((u64)src & 15) == 0;
    u32 last = dst_row + rows == total ? (total + TILE_ROWS - 1) / TILE_ROWS * TILE_ROWS : dst_row + rows;
    u64 count = (u64)(last - dst_row) * chunks, stride = (u64)gridDim.x * blockDim.x;
    for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += stride) {
        u32 row = dst_row + (u32)(i / chunks), chunk = (u32)(i % chunks);
        uint4 value = make_uint4(0, 0, 0, 0);
        if (row < total) {
            const u16* from = src + i * 8;
            value = aligned ? *(const uint4*)from : load_unaligned(from);
            if (PAIRED) row = paired_row(row, total / 2);
        }
        *(uint4*)(dst + packed_chunk(row, chunk, blocks)) = value;
    }
}

extern "C" __global__ void pack_bf16_tiles(const u16* src, u8* dst, u32 rows, u32 cols, u32 dst_row, u32 total) {
    pack_tiles<false>(src, dst, rows, cols, dst_row, total);
}

extern "C" __global__ void pack_bf16_paired(const u16* src, u8* dst, u32 rows, u32 cols, u32 dst_row, u32 total) {
    pack_tiles<true>(src, dst, rows, cols, dst_row, total);
}

extern "C" __global__ void embed_bf16_tiles(const u8* table, float* out, u32 hidden, u32 vocab, float scale, const u32* s) {
    Step step{s};
    u32 row = blockIdx.x, chunk = blockIdx.y * blockDim.x + threadIdx.x;
    dependents_may_launch();
    wait_for_earlier();
    if (row >= step.rows() || chunk >= hidden / 8) return;
    u32 id = step.ids()[row];
    float value[8] = {};
    if (id < vocab) {
        uint4 bits = *(const uint4*)(table + packed_chunk(id, chunk, hidden / 64));
        u32 words[4] = {bits.x, bits.y, bits.z, bits.w};
#pragma unroll
        for (u32 i = 0; i < 4; ++i) {
            value[2 * i] = __uint_as_float(words[i] << 16);
            value[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000u);
        }
    } else if (chunk == 0) {
        report(step, FAULT_TOKEN, row, id, vocab);
    }
    float4* to = (float4*)(out + (u64)row * hidden + chunk * 8);
    to[0] = make_float4(value[0] * scale, value[1] * scale, value[2] * scale, value[3] * scale);
    to[1] = make_float4(value[4] * scale, value[5] * scale, value[6] * scale, value[7] * scale);
}
