// SPDX-License-Identifier: MIT OR Apache-2.0
// add: res += delta, one rounding per element (spec f32).
#include "step.cuh"

extern "C" __global__ void add_f32(float* res, const float* delta, u32 cols, const u32* step_words) {
    Step step{step_words};
    u32 row = blockIdx.x;
    u32 col = blockIdx.y * blockDim.x + threadIdx.x;
    if (row >= step.rows() || col >= cols) return;
    u64 at = (u64)row * cols + col;
    res[at] = res[at] + delta[at];
}
