// SPDX-License-Identifier: MIT OR Apache-2.0
// rope: rotates pairs (j, j + rot/2) of each query and key head, in place (arXiv 2104.09864, half-split layout).
// Spec half_f32: a*cos - b*sin and b*cos + a*sin, each product and sum rounded.
#include "step.cuh"

extern "C" __global__ void rope_f32(float* qkv, const float* cs, u32 heads, u32 kv_heads, u32 head_dim, u32 rot,
                                    const u32* step_words) {
    Step step{step_words};
    u32 row = blockIdx.x, head = blockIdx.y, half = rot / 2;
    if (row >= step.rows()) return;
    float* x = qkv + ((u64)row * (heads + 2 * kv_heads) + head) * head_dim;
    const float* cos = cs + (u64)row * rot;
    const float* sin = cos + half;
    for (u32 i = threadIdx.x; i < half; i += blockDim.x) {
        float a = x[i], b = x[i + half];
        x[i] = a * cos[i] - b * sin[i];
        x[i + half] = b * cos[i] + a * sin[i];
    }
}
