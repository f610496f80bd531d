// SPDX-License-Identifier: MIT OR Apache-2.0
// swiglu: h = silu(gate) * up, gate columns first (Shazeer, "GLU Variants Improve Transformer", arXiv 2002.05202).
// Spec exp_f32: (g / (1 + exp(-g))) * u, each operation rounded, core's exp.
#include "numeric.cuh"
#include "step.cuh"

extern "C" __global__ void swiglu_f32(const float* gu, float* h, u32 ffn, const u32* step_words) {
    Step step{step_words};
    u32 row = blockIdx.x;
    u32 col = blockIdx.y * blockDim.x + threadIdx.x;
    if (row >= step.rows() || col >= ffn) return;
    float g = gu[(u64)row * 2 * ffn + col], u = gu[(u64)row * 2 * ffn + ffn + col];
    h[(u64)row * ffn + col] = g / (1.0f + exp_f32(0.0f - g)) * u;
}
