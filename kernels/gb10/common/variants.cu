// SPDX-License-Identifier: MIT OR Apache-2.0
// scale, softcap, geglu: what some families do beside or instead of the usual.
// Specs: scale/f32: x * factor. softcap/tanh_f32: cap * tanh(x / cap). geglu/tanh_f32: t = tanh(0.7978846 * (g + 0.044715 *
// (g * g * g))), h = (0.5 * g * (1 + t)) * u; each operation rounded, products from the left, core's tanh.
// The tanh form of gelu: Hendrycks and Gimpel, "Gaussian Error Linear Units", arXiv 1606.08415.
#include "numeric.cuh"
#include "step.cuh"

extern "C" __global__ void scale_f32(float* x, u32 cols, float factor, u32 rows_unit, const u32* step_words) {
    Step step{step_words};
    u32 row = blockIdx.x, col = blockIdx.y * blockDim.x + threadIdx.x;
    if (row >= step.unit_rows(rows_unit) || col >= cols) return;
    u64 at = (u64)row * cols + col;
    x[at] = x[at] * factor;
}

extern "C" __global__ void softcap_f32(float* x, u32 cols, float cap, u32 rows_unit, const u32* step_words) {
    Step step{step_words};
    u32 row = blockIdx.x, col = blockIdx.y * blockDim.x + threadIdx.x;
    if (row >= step.unit_rows(rows_unit) || col >= cols) return;
    u64 at = (u64)row * cols + col;
    x[at] = cap * tanh_f32(x[at] / cap);
}

extern "C" __global__ void geglu_f32(const float* gu, float* h, u32 ffn, const u32* step_words) {
    Step step{step_words};
    u32 row = blockIdx.x, col = blockIdx.y * blockDim.x + threadIdx.x;
    if (row >= step.rows() || col >= ffn) return;
    float g = gu[(u64)row * 2 * ffn + col], u = gu[(u64)row * 2 * ffn + ffn + col];
    float t = tanh_f32(0.7978846f * (g + 0.044715f * (g * g * g)));
    h[(u64)row * ffn + col] = 0.5f * g * (1.0f + t) * u;
}
