// SPDX-License-Identifier: MIT OR Apache-2.0
// read: the exclusive or of each 64 KiB of a buffer. Launched by benchmarks: it measures what reading can reach.
#include "step.cuh"

// 16-byte loads of one thread, all in flight at once.
static const u32 LOADS = 16;

extern "C" __global__ void read_xor(const uint4* src, u32* out, u32 quads) {
    __shared__ u32 warps[8];
    u64 base = (u64)blockIdx.x * (256 * LOADS) + threadIdx.x;
    uint4 v[LOADS];
#pragma unroll
    for (u32 i = 0; i < LOADS; i++) {
        u64 at = base + i * 256;
        v[i] = at < quads ? __ldcs(src + at) : make_uint4(0, 0, 0, 0);
    }
    u32 x = 0;
#pragma unroll
    for (u32 i = 0; i < LOADS; i++) x ^= v[i].x ^ v[i].y ^ v[i].z ^ v[i].w;
#pragma unroll
    for (u32 lane = 16; lane > 0; lane /= 2) x ^= __shfl_xor_sync(0xffffffffu, x, lane);
    if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = x;
    __syncthreads();
    if (threadIdx.x == 0) {
        for (u32 w = 1; w < 8; w++) x ^= warps[w];
        out[blockIdx.x] = x;
    }
}
