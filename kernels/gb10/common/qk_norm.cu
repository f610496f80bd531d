// SPDX-License-Identifier: MIT OR Apache-2.0
// qk_norm: rmsnorm over head_dim of each query and key head, in place; one block a head. Spec lanes8_f32 (rms.cuh).
#include "rms.cuh"
#include "step.cuh"

extern "C" __global__ void qk_norm_f32(float* qkv, const float* qw, const float* kw, u32 heads, u32 kv_heads,
                                       u32 head_dim, float eps, const u32* step_words) {
    __shared__ float stage[RMS_CHUNK];
    __shared__ float result;
    Step step{step_words};
    u32 row = blockIdx.x, head = blockIdx.y;
    if (row >= step.rows()) return;
    float* x = qkv + ((u64)row * (heads + 2 * kv_heads) + head) * head_dim;
    const float* w = head < heads ? qw : kw;
    float r = inverse_rms(x, head_dim, eps, stage, &result);
    for (u32 i = threadIdx.x; i < head_dim; i += blockDim.x) x[i] = x[i] * r * w[i];
}
