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

// y[token, y_col + out] = sum (+ bias[out]), f32.
struct Linear {
    static constexpr bool PAIRED = false;
    float* y;
    const float* bias; // or null
    u32 n, y_ld;

    __device__ float* column(u32 out) const { return y + out; }
    __device__ float shift(u32 out) const { return bias != nullptr ? bias[out] : 0.0f; }
    // `shift` is added only where there is a bias: -0 + 0 would lose its sign.
    __device__ void store(float* column, float shift, u32 token, float sum) const {
        column[(u64)token * y_ld] = bias != nullptr ? sum + shift : sum;
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
