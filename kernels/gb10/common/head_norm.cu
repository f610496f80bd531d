// SPDX-License-Identifier: MIT OR Apache-2.0
// head_norm: rmsnorm of `dim` columns from `offset` on, in every `stride` columns, in place; one block a head. Spec lanes8_f32
// (rms.cuh).
#include "rms.cuh"
#include "step.cuh"

extern "C" __global__ void head_norm_f32(float* x, const float* w, u32 heads, u32 stride, u32 offset, u32 dim, float eps,
                                         const u32* step_words) {
    __shared__ float stage[RMS_CHUNK];
    __shared__ float result;
    Step step{step_words};
    u32 row = blockIdx.x, head = blockIdx.y;
    if (row >= step.rows()) return;
    x += ((u64)row * heads + head) * stride + offset;
    float r = inverse_rms(x, dim, eps, stage, &result);
    for (u32 i = threadIdx.x; i < dim; i += blockDim.x) x[i] = x[i] * r * w[i];
}
