// SPDX-License-Identifier: MIT OR Apache-2.0
// Rows of e4m3 as kernels write them, eight neighbouring columns a thread (fp8.cuh has the layout and the rule).
#pragma once

#include "fp8.cuh"

// The largest magnitude of eight values, as bits.
__device__ inline u32 largest(const float (&v)[8]) {
    u32 top = 0;
#pragma unroll
    for (u32 i = 0; i < 8; ++i) top = max(top, magnitude(v[i]));
    return top;
}

// That of a block of THREADS, in each thread; `tops` holds one a warp.
template <u32 THREADS>
__device__ inline u32 block_max(u32 top, u32* tops) {
    top = __reduce_max_sync(0xffffffffu, top);
    if (threadIdx.x % 32 == 0) tops[threadIdx.x / 32] = top;
    __syncthreads();
    return __reduce_max_sync(0xffffffffu, tops[threadIdx.x % (THREADS / 32)]);
}

__device__ inline void store8(u8* to, const float (&v)[8], float inverse) {
    *(uint2*)to = make_uint2(e4m3_quad(v[0], v[1], v[2], v[3], inverse), e4m3_quad(v[4], v[5], v[6], v[7], inverse));
}

// Columns col.. of a row of f8_block; 16 neighbouring threads, of one half of a warp, hold the 128 columns of a scale.
__device__ inline void store_block(u8* row, u32 cols, u32 col, const float (&v)[8]) {
    u32 top = largest(v), half = 0xffffu << (threadIdx.x & 16);
#pragma unroll
    for (u32 offset = 8; offset > 0; offset /= 2) top = max(top, __shfl_xor_sync(half, top, offset));
    float scale, inverse;
    scale_for(top, &scale, &inverse);
    store8(row + col, v, inverse);
    if (threadIdx.x % 16 == 0) ((float*)(row + cols))[col / F8_COLUMNS] = scale;
}

// Zeros behind the scales of a row of f8_block, by 32 threads.
__device__ inline void f8_block_tail(u8* row, u32 cols) {
    u32 scales = cols / F8_COLUMNS, end = (scales + 31) / 32 * 32;
    if (threadIdx.x < end - scales) ((float*)(row + cols))[scales + threadIdx.x] = 0.0f;
}
