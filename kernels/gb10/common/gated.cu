// SPDX-License-Identifier: MIT OR Apache-2.0
// gated_norm, sigmoid_gate, relu2: what stands between a recurrence and its output projection.
// Spec gated_norm/lanes8_f32, a block a group of columns: silu(z) = z / (1 + exp(-z)); gate_first 1: h = x * silu(z), y = (h * r)
// * w; 0: y = ((x * r) * w) * silu(z); r as in rmsnorm (rms.cuh). Spec sigmoid_gate/exp_f32: x * (1 / (1 + exp(-gate))). Spec
// relu2/f32: m * m, m = x where x > 0, else x * 0.
#include "rms.cuh"
#include "step.cuh"

extern "C" __global__ void gated_norm_f32(const float* x, const float* z, const float* w, float* y, u32 cols, u32 group,
                                          u32 w_cols, u32 gate_first, float eps, const u32* step_words) {
    __shared__ float stage[RMS_CHUNK];
    __shared__ float result;
    Step step{step_words};
    u32 row = blockIdx.x, first = blockIdx.y * group;
    if (row >= step.rows()) return;
    u64 at = (u64)row * cols + first;
    w += first % w_cols;
    for (u32 i = threadIdx.x; i < group; i += blockDim.x) y[at + i] = gate_first ? x[at + i] * silu_f32(z[at + i]) : x[at + i];
    float r = inverse_rms(y + at, group, eps, stage, &result); // begins with a barrier
    for (u32 i = threadIdx.x; i < group; i += blockDim.x) {
        float v = y[at + i] * r * w[i];
        y[at + i] = gate_first ? v : v * silu_f32(z[at + i]);
    }
}

extern "C" __global__ void sigmoid_gate_f32(float* x, const float* gate, u32 cols, u32 gates, const u32* step_words) {
    Step step{step_words};
    u32 row = blockIdx.x, col = blockIdx.y * blockDim.x + threadIdx.x;
    if (row >= step.rows() || col >= cols) return;
    u64 at = (u64)row * cols + col;
    x[at] = x[at] * sigmoid_f32(gate[(u64)row * gates + col / (cols / gates)]);
}

extern "C" __global__ void relu2_f32(const float* x, float* y, u32 cols, const u32* step_words) {
    Step step{step_words};
    u32 row = blockIdx.x, col = blockIdx.y * blockDim.x + threadIdx.x;
    if (row >= step.rows() || col >= cols) return;
    u64 at = (u64)row * cols + col;
    float m = x[at] > 0.0f ? x[at] : x[at] * 0.0f;
    y[at] = m * m;
}
