// SPDX-License-Identifier: MIT OR Apache-2.0
// linear: y[:, y_col..y_col+n] = x W^T (+ bias), weights row-major [n, k], activations f32. chain.cuh has the schedule.
//
// Spec chain256_f32: one chain per output over ascending k, acc = fma(w, x, acc), weights converted exactly, started fresh
// every 256 k; segments add up left to right, from 0. Bias is added last. Spec chain128_f32, of e4m3 rows with scales: the same
// over w / 256, started fresh every 128 k; total = fma(acc, 256 * s, total), s the scale of the row or of those 128 columns.
#include <cuda_fp8.h>

#include "chain.cuh"
#include "fp8.cuh"

template <bool BLOCK>
struct Scaled {
    static constexpr u32 SEGMENT = F8_COLUMNS;
    const u8* w;
    u32 k;

    __device__ const u8* row(u32 out) const { return w + out * f8_pitch(k, BLOCK ? (k + F8_COLUMNS - 1) / F8_COLUMNS : 1); }
    __device__ float at(u32 out, u32 i) const {
        __half_raw half = __nv_cvt_fp8_to_halfraw(row(out)[i], __NV_E4M3);
        return __half2float(__half(half)) * 0.00390625f; // both exact
    }
    __device__ float join(float total, float acc, u32 out, u32 segment) const {
        float scale = ((const float*)(row(out) + f8_scales_at(k)))[BLOCK ? segment : 0];
        return fmaf(acc, 256.0f * scale, total);
    }
};

template <class W>
__device__ void linear(const float* x, W w, const float* bias, float* y, u32 k, u32 n, u32 y_col, u32 y_ld,
                       u32 has_bias, u32 rows_unit, Step step) {
    u32 all = step.unit_rows(rows_unit), first_row = blockIdx.y * ROWS;
    if (first_row >= all) return;
    const float* from = x + (u64)first_row * k;
    float* to = y + (u64)first_row * y_ld + y_col;
    auto row = [=](u32 r) { return from + (u64)r * k; };
    chain_tile(w, row, min(ROWS, all - first_row), k, n, blockIdx.x * OUTPUTS, [=](u32 r, u32 out, float total) {
        to[(u64)r * y_ld + out] = has_bias ? total + bias[out] : total;
    });
}

#define LINEAR(NAME, T, W)                                                                                          \
    extern "C" __global__ void __launch_bounds__(256)                                                               \
        NAME(const float* x, const T* w, const float* bias, float* y, u32 k, u32 n, u32 y_col, u32 y_ld,            \
             u32 has_bias, u32 rows_unit, const u32* s) {                                                           \
        linear(x, W{w, k}, bias, y, k, n, y_col, y_ld, has_bias, rows_unit, Step{s});                               \
    }

LINEAR(linear_f32, float, Plain<float>)
LINEAR(linear_bf16, bf16, Plain<bf16>)
LINEAR(linear_f16, f16, Plain<f16>)
LINEAR(linear_f8_row, u8, Scaled<false>)
LINEAR(linear_f8_block, u8, Scaled<true>)
