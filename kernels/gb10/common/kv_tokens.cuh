// SPDX-License-Identifier: MIT OR Apache-2.0
// One head's tokens of one block of a plain pool, in each format that a pool may have (core's kv module lays them out):
//   f32, bf16, f16   [16 tokens, head_dim]
//   i8, e4m3         [16 tokens, head_dim] bytes, then 16 scales in f32; a value is q * scale, rounded to f32
#pragma once

#include "fp8.cuh"
#include "numeric.cuh"
#include "step.cuh"

struct Int8 {
    signed char q;
};
struct E4m3 {
    u8 q;
};

__device__ inline float to_f32(Int8 v) { return (float)v.q; }
__device__ inline float to_f32(E4m3 v) {
    u32 pair;
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(pair) : "h"((u16)v.q));
    return __half2float(__ushort_as_half((u16)pair));
}

// A token's scale, and what its values are multiplied by before they are rounded (0: all q are 0), of the largest magnitude.
__device__ inline void scale_of(Int8, u32 bits, float* scale, float* inverse) { scale_to(bits, 127.0f, scale, inverse); }
__device__ inline void scale_of(E4m3, u32 bits, float* scale, float* inverse) { scale_to(bits, 448.0f, scale, inverse); }

// To nearest, ties to even, saturating.
__device__ inline void quantized(float x, Int8* to) { to->q = (signed char)rintf(fminf(fmaxf(x, -127.0f), 127.0f)); }
__device__ inline void quantized(float x, E4m3* to) { to->q = (u8)e4m3_pair(x, 0.0f); }

template <typename T>
struct Tokens {
    static constexpr bool SCALED = false;
    T* at;
    u32 dim;
    // `head` counts heads of all blocks.
    __device__ Tokens(T* pool, u64 head, u32 dim_) : at(pool + head * KV_BLOCK * dim_), dim(dim_) {}
    __device__ float get(u32 token, u32 d) const { return to_f32(at[token * dim + d]); }
};

__device__ inline float* scales(void* behind) { return (float*)behind; }
__device__ inline const float* scales(const void* behind) { return (const float*)behind; }

template <typename Q>
struct Scaled {
    static constexpr bool SCALED = true;
    Q* at;
    u32 dim;
    __device__ Scaled(Q* pool, u64 head, u32 dim_) : at(pool + head * KV_BLOCK * (dim_ + 4)), dim(dim_) {}
    __device__ auto scale(u32 token) const { return scales(at + KV_BLOCK * dim) + token; }
    __device__ float get(u32 token, u32 d) const { return to_f32(at[token * dim + d]) * *scale(token); }
};
template <>
struct Tokens<Int8> : Scaled<Int8> {
    using Scaled::Scaled;
};
template <>
struct Tokens<const Int8> : Scaled<const Int8> {
    using Scaled::Scaled;
};
template <>
struct Tokens<E4m3> : Scaled<E4m3> {
    using Scaled::Scaled;
};
template <>
struct Tokens<const E4m3> : Scaled<const E4m3> {
    using Scaled::Scaled;
};
