// SPDX-License-Identifier: MIT OR Apache-2.0
// rope_angles: cosines and sines of a step's positions, [rows, rot]: cos then sin.
// Spec f64_trig: angle in f32; cos and sin in f64, rounded to f32 (CUDA's are within 2 ulp of f64: the rounding to f32 sees
// that about once in 2^27 values), then times scale in f32.
#include "step.cuh"

extern "C" __global__ void rope_angles_f32(const float* inv_freq, float* cs, u32 rot, float scale, const u32* step_words) {
    Step step{step_words};
    u32 row = blockIdx.x;
    if (row >= step.rows()) return;
    float position = (float)step.positions()[row];
    u32 half = rot / 2;
    for (u32 i = threadIdx.x; i < half; i += blockDim.x) {
        float angle = position * inv_freq[i];
        double s, c;
        sincos((double)angle, &s, &c);
        cs[(u64)row * rot + i] = (float)c * scale;
        cs[(u64)row * rot + half + i] = (float)s * scale;
    }
}
