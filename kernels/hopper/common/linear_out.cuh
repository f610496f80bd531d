// SPDX-License-Identifier: MIT OR Apache-2.0
// What a linear does with its sums: both schedules hand the same values to one of these.
#pragma once

#include "linear_sm90.cuh"
#include "numeric.cuh"

// silu(g) * u of spec ex2_approx: e = ex2.approx(-g * log2 e), s = rcp.approx(1 + e), (g * s) * u, each step rounded to f32
// (e and s as the device's approximations give them, subnormals flushed).
__device__ inline float swiglu(float g, float u) {
    float e, s;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(e) : "f"(g * -1.44269504088896340736f));
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(s) : "f"(1.0f + e));
    return g * s * u;
}

// What a sum is multiplied with at the end: nothing, or weight scale, then activation scale (spec qgmma128_row).
struct Unscaled {
    static constexpr bool BLOCKS = false, ROWS = false;
    __device__ float weight(u32) const { return 1.0f; }
    __device__ float apply(float sum, float, float) const { return sum; }
};
struct RowScales {
    static constexpr bool BLOCKS = false, ROWS = true;
    const float* weights; // [packed rows]
    const u8* tokens;     // that of token 0
    u32 pitch;            // bytes from token to token

    __device__ float weight(u32 packed_row) const { return weights[packed_row]; }
    // Past the first-level cache, which may hold what an earlier launch had here.
    __device__ float token(u32 token) const { return __ldcg((const float*)(tokens + (u64)token * pitch)); }
    __device__ float apply(float sum, float weight, float token) const { return sum * weight * token; }
};

// Scales of 128 k (spec qgmma128_block): each k block brings them to shared memory, [tokens][4] f32 of four k blocks (16 bytes is the
// least that a box takes), then one f32 for each eight packed rows; the sum takes fma(chain, weight scale * token scale, sum).
struct BlockScales {
    static constexpr bool BLOCKS = true, ROWS = false;
    const u8* weights;       // f32 [packed rows / 128][k blocks][16]
    const TensorMap* tokens; // f32, box [4, tokens of a box]

    __device__ float weight(u32) const { return 1.0f; }
    __device__ float apply(float sum, float, float) const { return sum; }
    __device__ const u8* of_half(u32 half, u32 blocks, u32 block) const {
        return weights + ((u64)(half / 2) * blocks + block) * 64 + half % 2 * 32;
    }
};

// What a sum of chains begins at: -0 + c is c, to the sign of a zero; products of block scales begin at +0.
template <u32 COUNT, class Scales>
__device__ inline void begin_sum(float (&sum)[COUNT], const Scales&) {
#pragma unroll
    for (u32 i = 0; i < COUNT; ++i) sum[i] = Scales::BLOCKS ? 0.0f : -0.0f;
}

// sum = fma(chain, scale, sum), of a k block's chains `d` and its scales in shared memory; `warp` of the block.
template <u32 N>
__device__ inline void add_scaled(float (&sum)[N / 2], const float (&d)[N / 2], const u8* scales, u32 warp, u32 block) {
    float2 w = *(const float2*)(scales + N * 16 + warp * 8);
    const u8* tokens = scales + threadIdx.x % 4 * 32 + block % 4 * 4;
#pragma unroll
    for (u32 j = 0; j < N / 8; ++j) {
#pragma unroll
        for (u32 i = 0; i < 2; ++i) {
            float x = *(const float*)(tokens + j * 128 + i * 16);
            sum[4 * j + i] = fmaf(d[4 * j + i], w.x * x, sum[4 * j + i]);
            sum[4 * j + 2 + i] = fmaf(d[4 * j + 2 + i], w.y * x, sum[4 * j + 2 + i]);
        }
    }
}

// y[token, y_col + out] = sum + shift, f32; shift is the bias, or -0, which changes no sum, not even a zero's sign.
struct Linear {
    static constexpr bool PAIRED = false;
    float* y;
    const float* bias; // or null
    u32 n, y_ld;

    __device__ float* place(u32 out, u32 token) const { return y + (u64)token * y_ld + out; }
    __device__ float shift(u32 out) const { return bias != nullptr ? bias[out] : -0.0f; }
    __device__ static void put(float* at, float value) { *at = value; }
};

// x[token, out] += y of linear, x the residual: the L2 cache adds, so that no block reads or waits for it. A launch adds to each
// element once: there is no order that could change. Subnormal operands and sums count as zeros.
struct LinearAdd : Linear {
    __device__ static void put(float* at, float value) {
        asm volatile("red.relaxed.gpu.global.add.f32 [%0], %1;" ::"l"(at), "f"(value) : "memory");
    }
};

// h[token, j] = silu(gate) * up in bf16, of paired weights.
struct Swiglu {
    static constexpr bool PAIRED = true;
    bf16* h;
    u32 ffn;

    __device__ void store(u32 column, u32 token, float gate, float up) const {
        h[(u64)token * ffn + column] = __float2bfloat16_rn(swiglu(gate, up));
    }
};
