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
// Spec of the first: exact. Compiled, and not yet run on a device.
#include "linear_sm90.cuh"
#include "linear_tiles.cuh"
#include "numeric.cuh"

constexpr u32 FULL = 0xffffffffu;

// A row as it is read: value i as f32.
struct PlainF32 {
    static constexpr u32 BYTES = 4;
    static __device__ float at(const u8* row, u32 i) { return ((const float*)row)[i]; }
};
struct PlainBf16 {
    static constexpr u32 BYTES = 2;
    static __device__ float at(const u8* row, u32 i) { return __uint_as_float((u32)((const u16*)row)[i] << 16); }
};
struct PlainF16 {
    static constexpr u32 BYTES = 2;
    static __device__ float at(const u8* row, u32 i) {
        float v;
        asm("cvt.f32.f16 %0, %1;" : "=f"(v) : "h"(((const u16*)row)[i]));
        return v;
    }
};

// The largest of a warp's magnitudes, as bits: a NaN counts above infinity.
__device__ inline u32 warp_max(u32 m) { return __reduce_max_sync(FULL, m); }

// s and what values are multiplied by: spec amax_row.
__device__ inline void scale_for(u32 bits, float* scale, float* inverse) {
    float m = __uint_as_float(bits), s = __fdiv_rn(m, 448.0f), r = __fdiv_rn(1.0f, s);
    bool finite = bits < 0x7f800000u, usable = __float_as_uint(r) < 0x7f800000u;
    *scale = finite ? s : __uint_as_float(0x7fc00000u);
    *inverse = finite && usable ? r : 0.0f;
}

// Two values, nearest even, saturating; the first in the low byte.
__device__ inline u32 e4m3_pair(float low, float high) {
    u16 v;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(v) : "f"(high), "f"(low));
    return v;
}

template <class P>
__device__ inline uint4 e4m3_chunk(const u8* row, u32 chunk, float inverse) {
    u32 words[4] = {};
    if (inverse != 0.0f) {
#pragma unroll
        for (u32 i = 0; i < 8; ++i) {
            float low = __fmul_rn(P::at(row, chunk * 16 + 2 * i), inverse);
            float high = __fmul_rn(P::at(row, chunk * 16 + 2 * i + 1), inverse);
            words[i / 2] |= e4m3_pair(low, high) << 16 * (i % 2);
        }
    }
    return make_uint4(words[0], words[1], words[2], words[3]);
}

template <class P>
__device__ inline u32 chunk_max(const u8* row, u32 chunk) {
    u32 m = 0;
#pragma unroll
    for (u32 i = 0; i < 16; ++i) m = max(m, __float_as_uint(P::at(row, chunk * 16 + i)) & 0x7fffffffu);
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
};

// Walks groups of 8 rows that lie together in the packed tensor, a warp each; `one` gets the first row, its packed place and how
// many of the 8 this call brings; padding is zero.
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
    auto zero = [&](u32 row) {
        for (u32 c = lane; c < chunks; c += 32) to.put(row, c, make_uint4(0, 0, 0, 0));
        if (!BLOCK && lane == 0) to.row_scale(row, 0.0f);
        if (BLOCK && row % 8 == 0)
            for (u32 b = lane; b < to.blocks; b += 32) to.block_scale(row, b, 0.0f);
    };
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
    auto zero = [&](u32 row) {
        for (u32 c = lane; c < chunks; c += 32) to.put(row, c, make_uint4(0, 0, 0, 0));
        if (!BLOCK && lane == 0) to.row_scale(row, 0.0f);
        if (BLOCK && row % 8 == 0)
            for (u32 b = lane; b < to.blocks; b += 32) to.block_scale(row, b, 0.0f);
    };
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
