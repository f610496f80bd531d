// SPDX-License-Identifier: MIT OR Apache-2.0
// linear: y[:, y_col..y_col+n] = x W^T (+ bias), weights row-major [n, k], activations f32.
//
// Spec chain256_f32: one chain per output over ascending k, acc = fma(w, x, acc), weights converted exactly, started fresh
// every 256 k; segments add up left to right, from 0. Bias is added last. Spec chain128_f32, of e4m3 rows with scales: the same
// over w / 256, started fresh every 128 k; total = fma(acc, 256 * s, total), s the scale of the row or of those 128 columns.
//
// Schedule: a block takes 32 outputs by 8 rows. Its eight warps walk different segments at a time (a lane is an output),
// then warp r folds the segments of row r in order. Grid, tile and which warp takes a segment are free within the spec.
#include <cuda_fp8.h>

#include "fp8.cuh"
#include "numeric.cuh"

constexpr u32 OUTPUTS = 32;
constexpr u32 ROWS = 8;
constexpr u32 WARPS = 8;
constexpr u32 DEPTH = 32; // k that a warp stages at a time

// Weights: values of a row by k, and how a segment of an output joins the total.
template <typename T>
struct Plain {
    static constexpr u32 SEGMENT = 256;
    const T* w;
    u32 k;

    __device__ float at(u32 out, u32 i) const { return to_f32(w[(u64)out * k + i]); }
    __device__ float join(float total, float acc, u32, u32) const { return total + acc; }
};
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
    // Padded by one, so that 32 lanes reading one k of 32 outputs hit 32 banks.
    constexpr u32 SEGMENT = W::SEGMENT;
    __shared__ float weights[WARPS][OUTPUTS][DEPTH + 1];
    __shared__ float inputs[WARPS][ROWS][DEPTH];
    float(*partial)[ROWS][OUTPUTS] = (float(*)[ROWS][OUTPUTS]) & weights[0][0][0]; // after the segments are done

    u32 all = step.unit_rows(rows_unit), first_row = blockIdx.y * ROWS;
    if (first_row >= all) return;
    u32 rows = min(ROWS, all - first_row);
    u32 first_out = blockIdx.x * OUTPUTS, outs = min(OUTPUTS, n - first_out);
    u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32;

    float total = 0.0f; // of row `warp`, output `lane`
    for (u32 round = 0; round * WARPS * SEGMENT < k; ++round) {
        u32 begin = (round * WARPS + warp) * SEGMENT, end = min(k, begin + SEGMENT);
        float acc[ROWS] = {};
        for (u32 k0 = begin; k0 < end; k0 += DEPTH) {
            u32 depth = min(DEPTH, end - k0);
            __syncwarp();
            if (lane < depth) {
                for (u32 o = 0; o < outs; ++o) weights[warp][o][lane] = w.at(first_out + o, k0 + lane);
                for (u32 r = 0; r < rows; ++r) inputs[warp][r][lane] = x[(u64)(first_row + r) * k + k0 + lane];
            }
            __syncwarp();
            for (u32 i = 0; i < depth; ++i) {
                float value = weights[warp][lane][i];
#pragma unroll
                for (u32 r = 0; r < ROWS; ++r) {
                    if (r < rows) acc[r] = fmaf(value, inputs[warp][r][i], acc[r]);
                }
            }
        }
        __syncthreads();
#pragma unroll
        for (u32 r = 0; r < ROWS; ++r) partial[warp][r][lane] = acc[r];
        __syncthreads();
        u32 segments = min(WARPS, (k - round * WARPS * SEGMENT + SEGMENT - 1) / SEGMENT);
        if (lane < outs) {
            for (u32 s = 0; s < segments; ++s) total = w.join(total, partial[s][warp][lane], first_out + lane, round * WARPS + s);
        }
        __syncthreads();
    }
    if (warp < rows && lane < outs) {
        u32 out = first_out + lane;
        if (has_bias) total = total + bias[out];
        y[(u64)(first_row + warp) * y_ld + y_col + out] = total;
    }
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
