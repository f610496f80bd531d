// SPDX-License-Identifier: MIT OR Apache-2.0
// pack for the e4m3 weights of linear_f8.cuh: tiles as linear_tiles.cuh says, behind them the scales, in packed order:
//   f8_row    f32 [n padded to 128], one of each packed row
//   f8_block  f32 [n / 128][k / 128][16], one of each 8 packed rows and 128 k
//
//   pack_f8_{row,block}_{tiles,paired}            rows of core's fp8 module: k values, then their scales
//   pack_{bf16,f16,f32}_f8_{row,block}_{tiles,paired}  plain rows, quantized on the way. Spec amax_row; amax_block: of 8 rows x
//                                                 128 k, since that is what a packed scale belongs to
//   paired    rows of [gate; up], 2 ffn rows, to the paired order; dst_rows_total is 2 ffn, ffn % 8 == 0
//   all       block 256, grid any (132 blocks are enough); a warp takes 8 rows at a time; cols % 128 == 0; src is aligned to
//             16 bytes; but the last, calls bring multiples of 8 rows from a multiple of 8 on. The call that brings the last row writes the padding.
// Spec of the first: exact.
#include "fp8.cuh"
#include "linear_tiles.cuh"
#include "plain_rows.cuh"

constexpr u32 FULL = 0xffffffffu;

// The largest of a warp's magnitudes, as bits: a NaN counts above infinity.
__device__ inline u32 warp_max(u32 m) { return __reduce_max_sync(FULL, m); }

template <class P>
__device__ inline uint4 e4m3_chunk(const u8* row, u32 chunk, float inverse) {
    u32 words[4], first = chunk * 16;
#pragma unroll
    for (u32 i = 0; i < 4; ++i) {
        u32 at = first + 4 * i;
        words[i] = e4m3_quad(P::at(row, at), P::at(row, at + 1), P::at(row, at + 2), P::at(row, at + 3), inverse);
    }
    return make_uint4(words[0], words[1], words[2], words[3]);
}

template <class P>
__device__ inline u32 chunk_max(const u8* row, u32 chunk) {
    u32 m = 0;
#pragma unroll
    for (u32 i = 0; i < 16; ++i) m = max(m, magnitude(P::at(row, chunk * 16 + i)));
    return m;
}

struct Packed {
    u8* dst;
    float* scales;
    u32 blocks;

    __device__ Packed(u8* to, u32 cols, u32 total) : dst(to), blocks(cols / 128) {
        scales = (float*)(to + (u64)(total + TILE_ROWS - 1) / TILE_ROWS * TILE_ROWS * cols);
    }
    __device__ void put(u32 row, u32 chunk, uint4 v) const { *(uint4*)(dst + packed_chunk(row, chunk, blocks)) = v; }
    __device__ void row_scale(u32 row, float s) const { scales[row] = s; }
    __device__ void block_scale(u32 row, u32 block, float s) const {
        scales[((u64)(row / TILE_ROWS) * blocks + block) * 16 + row % TILE_ROWS / 8] = s;
    }
    // A row of padding, by a warp: values and what scales are its own.
    template <bool BLOCK>
    __device__ void zero(u32 row, u32 lane, u32 chunks) const {
        for (u32 c = lane; c < chunks; c += 32) put(row, c, make_uint4(0, 0, 0, 0));
        if (!BLOCK && lane == 0) row_scale(row, 0.0f);
        if (BLOCK && row % 8 == 0)
            for (u32 b = lane; b < blocks; b += 32) block_scale(row, b, 0.0f);
    }
};

// Walks groups of 8 rows that lie together in the packed tensor, a warp each; `fill` gets the first row, its packed place and how
// many of the 8 this call brings, `zero` each row of padding.
template <bool PAIRED, class Fill, class Zero>
__device__ inline void groups(u32 rows, u32 first, u32 total, Fill fill, Zero zero) {
    u32 end = first + rows == total ? (total + TILE_ROWS - 1) / TILE_ROWS * TILE_ROWS : first + rows;
    u32 warp = (blockIdx.x * blockDim.x + threadIdx.x) / 32, warps = gridDim.x * blockDim.x / 32;
    for (u32 g = first / 8 + warp; g * 8 < end; g += warps) {
        for (u32 row = max(g * 8, first); row < min(g * 8 + 8, end); ++row)
            if (row >= total) zero(row);
        u32 low = max(g * 8, first), high = min(min(g * 8 + 8, first + rows), total);
        if (low < high) fill(low, PAIRED ? paired_row(low, total / 2) : low, high - low);
    }
}

template <bool BLOCK, bool PAIRED>
__device__ void pack_stored(const u8* src, u8* dst, u32 rows, u32 cols, u32 first, u32 total) {
    Packed to(dst, cols, total);
    u32 lane = threadIdx.x % 32, chunks = cols / 16, per_row = BLOCK ? to.blocks : 1;
    u64 pitch = cols + (u64)(4 * per_row + 127) / 128 * 128;
    auto zero = [&](u32 row) { to.zero<BLOCK>(row, lane, chunks); };
    auto fill = [&](u32 row, u32 place, u32 count) {
        for (u32 i = 0; i < count; ++i) {
            const u8* from = src + (u64)(row + i - first) * pitch;
            const float* s = (const float*)(from + cols);
            for (u32 c = lane; c < chunks; c += 32) to.put(place + i, c, ((const uint4*)from)[c]);
            if (!BLOCK && lane == 0) to.row_scale(place + i, s[0]);
            if (BLOCK && i == 0)
                for (u32 b = lane; b < to.blocks; b += 32) to.block_scale(place, b, s[b]);
        }
    };
    groups<PAIRED>(rows, first, total, fill, zero);
}

template <class P, bool BLOCK, bool PAIRED>
__device__ void pack_quantized(const u8* src, u8* dst, u32 rows, u32 cols, u32 first, u32 total) {
    Packed to(dst, cols, total);
    u32 lane = threadIdx.x % 32, chunks = cols / 16;
    u64 pitch = (u64)cols * P::BYTES;
    auto zero = [&](u32 row) { to.zero<BLOCK>(row, lane, chunks); };
    auto fill = [&](u32 row, u32 place, u32 count) {
        const u8* from = src + (u64)(row - first) * pitch;
        float scale, inverse;
        if constexpr (!BLOCK) {
            for (u32 i = 0; i < count; ++i, from += pitch) {
                u32 m = 0;
                for (u32 c = lane; c < chunks; c += 32) m = max(m, chunk_max<P>(from, c));
                scale_for(warp_max(m), &scale, &inverse);
                for (u32 c = lane; c < chunks; c += 32) to.put(place + i, c, e4m3_chunk<P>(from, c, inverse));
                if (lane == 0) to.row_scale(place + i, scale);
            }
        } else {
            // 8 rows x 8 chunks of a block: two a lane.
            for (u32 b = 0; b < to.blocks; ++b) {
                u32 m = 0;
                for (u32 j = lane; j < count * 8; j += 32) m = max(m, chunk_max<P>(from + j / 8 * pitch, b * 8 + j % 8));
                scale_for(warp_max(m), &scale, &inverse);
                for (u32 j = lane; j < count * 8; j += 32)
                    to.put(place + j / 8, b * 8 + j % 8, e4m3_chunk<P>(from + j / 8 * pitch, b * 8 + j % 8, inverse));
                if (lane == 0) to.block_scale(place, b, scale);
            }
        }
    };
    groups<PAIRED>(rows, first, total, fill, zero);
}

#define PACK(NAME, CALL)                                                                                                     \
    extern "C" __global__ void __launch_bounds__(256)                                                                        \
        NAME(const u8* src, u8* dst, u32 rows, u32 cols, u32 dst_row, u32 total) {                                           \
        CALL(src, dst, rows, cols, dst_row, total);                                                                          \
    }
#define PACK_BOTH(STEM, ...)                                                                                                 \
    PACK(STEM##_tiles, (__VA_ARGS__, false>))                                                                                \
    PACK(STEM##_paired, (__VA_ARGS__, true>))

PACK_BOTH(pack_f8_row, pack_stored<false)
PACK_BOTH(pack_f8_block, pack_stored<true)
PACK_BOTH(pack_bf16_f8_row, pack_quantized<PlainBf16, false)
PACK_BOTH(pack_bf16_f8_block, pack_quantized<PlainBf16, true)
PACK_BOTH(pack_f16_f8_row, pack_quantized<PlainF16, false)
PACK_BOTH(pack_f16_f8_block, pack_quantized<PlainF16, true)
PACK_BOTH(pack_f32_f8_row, pack_quantized<PlainF32, false)
PACK_BOTH(pack_f32_f8_block, pack_quantized<PlainF32, true)
