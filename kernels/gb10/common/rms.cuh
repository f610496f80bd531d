// SPDX-License-Identifier: MIT OR Apache-2.0
// The sum of squares of spec lanes8_f32, by one block over one row.
#pragma once

#include "numeric.cuh"

// Columns that are staged at a time: a multiple of 8, so that a chunk continues the lanes of the one before.
constexpr unsigned RMS_CHUNK = 2048;

// 1 / sqrt(sum of squares / cols + eps), the same in each thread. `stage` holds RMS_CHUNK floats and `result` one, both
// shared. Element i belongs to lane i mod 8, each lane is one ascending chain of fma: eight threads walk what the block
// has loaded.
__device__ inline float inverse_rms(const float* x, unsigned cols, float eps, float* stage, float* result) {
    float lane = 0.0f;
    for (unsigned begin = 0; begin < cols; begin += RMS_CHUNK) {
        unsigned n = min(RMS_CHUNK, cols - begin);
        __syncthreads();
        for (unsigned i = threadIdx.x; i < n; i += blockDim.x) stage[i] = x[begin + i];
        __syncthreads();
        if (threadIdx.x < 8) {
            for (unsigned i = threadIdx.x; i < n; i += 8) lane = fmaf(stage[i], stage[i], lane);
        }
    }
    if (threadIdx.x < 32) {
        float sum = fold_lanes8(lane);
        if (threadIdx.x == 0) *result = 1.0f / sqrtf(sum / (float)cols + eps);
    }
    __syncthreads();
    return *result;
}
