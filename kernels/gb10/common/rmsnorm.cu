// SPDX-License-Identifier: MIT OR Apache-2.0
// rmsnorm: y = (x / rms(x)) * w, one block a row. Spec lanes8_f32 (rms.cuh); y = (x * r) * w, two roundings.
// Formula: Zhang and Sennrich, "Root Mean Square Layer Normalization", arXiv 1910.07467.
#include "rms.cuh"
#include "step.cuh"

extern "C" __global__ void rmsnorm_f32(const float* x, const float* w, float* y, u32 cols, float eps, u32 rows_unit,
                                       const u32* step_words) {
    __shared__ float stage[RMS_CHUNK];
    __shared__ float result;
    Step step{step_words};
    u32 row = blockIdx.x;
    if (row >= step.unit_rows(rows_unit)) return;
    x += (u64)row * cols;
    y += (u64)row * cols;
    float r = inverse_rms(x, cols, eps, stage, &result);
    for (u32 i = threadIdx.x; i < cols; i += blockDim.x) y[i] = x[i] * r * w[i];
}
