// SPDX-License-Identifier: MIT OR Apache-2.0
// pack for e4m3 weights of the plain points: rows dst_row.. of dst_rows_total as core's fp8 module lays them out (fp8.cuh).
// From such rows (spec exact), or from f32, bf16 and f16 rows, quantized on the way, a scale a row or 128 columns of one (specs
// amax_row, amax_block). block 256, grid any; a warp takes a row at a time.
#include "plain_rows.cuh"

template <bool BLOCK>
__device__ u64 pitch_of(u32 cols) {
    return f8_pitch(cols, BLOCK ? (cols + F8_COLUMNS - 1) / F8_COLUMNS : 1);
}

template <bool BLOCK>
__device__ void pack_stored(const u8* src, u8* dst, u32 rows, u32 cols, u32 dst_row) {
    u64 pitch = pitch_of<BLOCK>(cols), n = rows * pitch / 16, stride = (u64)gridDim.x * blockDim.x;
    uint4* to = (uint4*)(dst + dst_row * pitch);
    for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += stride) to[i] = ((const uint4*)src)[i];
}

template <class P, bool BLOCK>
__device__ void pack_quantized(const u8* src, u8* dst, u32 rows, u32 cols, u32 dst_row) {
    u32 lane = threadIdx.x % 32, warp = (blockIdx.x * blockDim.x + threadIdx.x) / 32, warps = gridDim.x * blockDim.x / 32;
    u32 per = BLOCK ? F8_COLUMNS : cols, values = f8_scales_at(cols);
    u64 pitch = pitch_of<BLOCK>(cols);
    for (u32 row = warp; row < rows; row += warps) {
        const u8* from = src + (u64)row * cols * P::BYTES;
        u8* to = dst + (dst_row + row) * pitch;
        for (u64 i = values + lane * 4; i < pitch; i += 128) *(u32*)(to + i) = 0; // a lane's scales lie among what it clears
        for (u32 i = cols + lane; i < values; i += 32) to[i] = 0;
        for (u32 b = 0; b * per < cols; ++b) {
            u32 begin = b * per, end = min(cols, begin + per), top = 0;
            for (u32 i = begin + lane; i < end; i += 32) top = max(top, magnitude(P::at(from, i)));
            float scale, inverse;
            scale_for(__reduce_max_sync(0xffffffffu, top), &scale, &inverse);
            for (u32 i = begin + lane; i < end; i += 32) to[i] = (u8)e4m3_quad(P::at(from, i), 0.0f, 0.0f, 0.0f, inverse);
            if (lane == b % 32) ((float*)(to + values))[b] = scale;
        }
    }
}

#define PACK(NAME, CALL)                                                                                    \
    extern "C" __global__ void __launch_bounds__(256)                                                       \
        NAME(const u8* src, u8* dst, u32 rows, u32 cols, u32 dst_row, u32 total) {                          \
        CALL(src, dst, rows, cols, dst_row);                                                                \
    }

PACK(pack_f8_row, pack_stored<false>)
PACK(pack_f8_block, pack_stored<true>)
PACK(pack_f32_f8_row, (pack_quantized<PlainF32, false>))
PACK(pack_f32_f8_block, (pack_quantized<PlainF32, true>))
PACK(pack_bf16_f8_row, (pack_quantized<PlainBf16, false>))
PACK(pack_bf16_f8_block, (pack_quantized<PlainBf16, true>))
PACK(pack_f16_f8_row, (pack_quantized<PlainF16, false>))
PACK(pack_f16_f8_block, (pack_quantized<PlainF16, true>))
