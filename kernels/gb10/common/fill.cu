// SPDX-License-Identifier: MIT OR Apache-2.0
// fill: values made from a counter, for models without weights. Spec hash_bell; host-kernels' `fill` says more.
#include "numeric.cuh"
#include "step.cuh"

__device__ inline u32 mix(u32 x) {
    x ^= x >> 16;
    x *= 0x7feb352du;
    x ^= x >> 15;
    x *= 0x846ca68bu;
    return x ^ x >> 16;
}

template <typename T>
__device__ void fill(T* dst, u32 count, u32 first, u32 seed, float mean, float scale) {
    u32 key = seed * 0x9e3779b9u;
    u64 stride = (u64)gridDim.x * blockDim.x;
    for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += stride) {
        u32 h = mix(mix(first + (u32)i + seed) ^ key);
        int sum = (h & 255) + (h >> 8 & 255) + (h >> 16 & 255) + (h >> 24);
        // Two roundings: the tree is compiled without contraction.
        from_f32((float)(sum - 510) * scale + mean, dst + i);
    }
}

#define FILL(NAME, T)                                                                                             \
    extern "C" __global__ void NAME(T* dst, u32 count, u32 first, u32 seed, float mean, float scale) {            \
        fill(dst, count, first, seed, mean, scale);                                                               \
    }

FILL(fill_f32, float)
FILL(fill_bf16, bf16)
FILL(fill_f16, f16)
