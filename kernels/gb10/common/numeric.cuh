// SPDX-License-Identifier: MIT OR Apache-2.0
// Conversions and elementary functions with fixed bits. The tree is compiled with -fmad=false: a product and a sum are
// two roundings wherever `fmaf` does not stand.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

typedef __nv_bfloat16 bf16;
typedef __half f16;

__device__ inline float to_f32(float v) { return v; }
__device__ inline float to_f32(bf16 v) { return __bfloat162float(v); }
__device__ inline float to_f32(f16 v) { return __half2float(v); }

// To nearest, ties to even.
__device__ inline void from_f32(float v, float* to) { *to = v; }
__device__ inline void from_f32(float v, bf16* to) { *to = __float2bfloat16_rn(v); }
__device__ inline void from_f32(float v, f16* to) { *to = __float2half_rn(v); }

// core::numeric::math::exp, operation by operation.
__device__ inline float exp_f32(float x) {
    const float EXP_MIN = -87.33654f, EXP_MAX = 88.72283f;
    const float LOG2_E = 1.44269504088896340736f, LN2_HI = 0.6933594f, LN2_LO = -2.1219444e-4f;
    float c = x > EXP_MAX ? EXP_MAX : x;
    c = c < EXP_MIN ? EXP_MIN : c;
    float n = rintf(c * LOG2_E);
    float r = fmaf(-n, LN2_HI, c);
    r = fmaf(-n, LN2_LO, r);
    float p = 1.0f / 720.0f;
    p = fmaf(p, r, 1.0f / 120.0f);
    p = fmaf(p, r, 1.0f / 24.0f);
    p = fmaf(p, r, 1.0f / 6.0f);
    p = fmaf(p, r, 0.5f);
    p = fmaf(p, r, 1.0f);
    p = fmaf(p, r, 1.0f);
    int i = (int)n;
    int half = i >> 1;
    float y = p * __int_as_float((half + 127) << 23) * __int_as_float((i - half + 127) << 23);
    y = x < EXP_MIN ? 0.0f : y;
    y = x > EXP_MAX ? __int_as_float(0x7f800000) : y;
    return isnan(x) ? x : y;
}

// core::numeric::math::tanh, operation by operation.
__device__ inline float tanh_f32(float x) {
    float a = fabsf(x);
    if (a <= 1.0f) {
        float s = x * x;
        float p = ((s + 378.0f) * s + 17325.0f) * s + 135135.0f;
        float q = ((28.0f * s + 3150.0f) * s + 62370.0f) * s + 135135.0f;
        return x * p / q;
    }
    if (isnan(x)) return x;
    return copysignf(1.0f - 2.0f / (exp_f32(2.0f * a) + 1.0f), x);
}

// host-kernels' sigmoid and silu.
__device__ inline float sigmoid_f32(float x) { return 1.0f / (1.0f + exp_f32(0.0f - x)); }
__device__ inline float silu_f32(float x) { return x / (1.0f + exp_f32(0.0f - x)); }

// The tree of lanes8, ((l0+l4)+(l2+l6)) + ((l1+l5)+(l3+l7)), over eight neighbouring threads of a warp; each gets the sum.
// A sum of two f32 does not depend on their order, so three exchanges give exactly that tree. All 32 threads must call.
__device__ inline float fold_lanes8(float lane) {
    lane += __shfl_xor_sync(0xffffffffu, lane, 4);
    lane += __shfl_xor_sync(0xffffffffu, lane, 2);
    lane += __shfl_xor_sync(0xffffffffu, lane, 1);
    return lane;
}
