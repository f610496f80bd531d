// SPDX-License-Identifier: MIT OR Apache-2.0
// conv1d, gated_delta, ssm_scan: recurrences of a sequence's state, one token at a time at every row count, so that a position's
// bits do not depend on the step that computes it. State is a row of f32 a slot; a run that begins at position 0 starts from
// zeros. A block takes a part of the state that no other touches, and walks a run of rows in order.
// Specs:
//   conv1d/chain_f32: acc = bias or 0, then fma(w[c][j], x[c][t - width + 1 + j], acc) by ascending j, inputs before position 0
//   being 0; y = acc / (1 + exp(-acc)). The state holds a channel's last width - 1 inputs.
//   gated_delta/recurrent_f32 (arXiv 2412.06464, eq. 10), per value head: n = 1 / sqrt(lanes8(x, x) + eps) for q and k of its key
//   head, x * n, q then times 1 / sqrt(key_dim); g = exp((0 - exp(a_log)) * softplus(a + dt_bias)), beta = sigmoid(b); S = S * g;
//   m[j] = fma(S[i][j], k[i], m[j]) by ascending i; d[j] = (v[j] - m[j]) * beta; S[i][j] = fma(k[i], d[j], S[i][j]); y[j] =
//   fma(S[i][j], q[i], y[j]) by ascending i.
//   ssm_scan/recurrent_f32 (arXiv 2405.21060, section 2), per head: t = softplus(dt + dt_bias), g = exp(t * (0 - exp(a_log))); per
//   column p: u = t * x[p], S[p][n] = fma(S[p][n], g, u * B[n]), y[p] = fma(skip, x[p], lanes8(S[p], C)).
#include "numeric.cuh"
#include "step.cuh"

// host-kernels' softplus: ln(1 + e^x) as u * ln(w) / (w - 1), w = 1 + u, u = e^x. The logarithm is rounded from f64.
__device__ inline float softplus_f32(float x) {
    if (x > 20.0f) return x;
    float u = exp_f32(x), w = 1.0f + u;
    if (w == 1.0f) return u;
    return (float)log((double)w) * u / (w - 1.0f);
}

// One thread a channel.
extern "C" __global__ void conv1d_f32(const float* x, const float* w, const float* bias, float* conv, float* y, u32 channels,
                                      u32 width, u32 has_bias, const u32* step_words) {
    Step step{step_words};
    u32 c = blockIdx.x * blockDim.x + threadIdx.x;
    if (blockIdx.y >= step.items() || c >= channels) return;
    const u32* run = step.item(blockIdx.y);
    u32 first = run[1], rows = run[2], kept = width - 1;
    bool fresh = run[3] == 0;
    float* past = conv + ((u64)run[0] * channels + c) * kept;
    // The input `index - kept` rows after the run's first: of the state below that row.
    auto input = [&](u32 index) {
        if (index >= kept) return x[(u64)(first + index - kept) * channels + c];
        return fresh ? 0.0f : past[index];
    };
    w += (u64)c * width;
    for (u32 t = 0; t < rows; ++t) {
        float acc = has_bias ? bias[c] : 0.0f;
        for (u32 j = 0; j < width; ++j) acc = fmaf(w[j], input(t + j), acc);
        y[(u64)(first + t) * channels + c] = silu_f32(acc);
    }
    for (u32 j = 0; j < kept && rows > 0; ++j) past[j] = input(rows + j); // each reads what is further on
}

// One warp for 32 columns of a value head's state, which stand in shared memory meanwhile.
extern "C" __global__ void __launch_bounds__(32)
    gated_delta_f32(const float* qkv, const float* ba, const float* a_log, const float* dt_bias, float* state, float* y,
                    u32 key_heads, u32 value_heads, u32 key_dim, u32 value_dim, float eps, const u32* step_words) {
    extern __shared__ float shared[]; // q and k of the head, then the state [key_dim][32]
    float *q = shared, *k = q + key_dim, *s = k + key_dim;
    Step step{step_words};
    u32 head = blockIdx.x, lane = threadIdx.x, col = blockIdx.y * 32 + lane;
    if (blockIdx.z >= step.items()) return;
    const u32* run = step.item(blockIdx.z);
    u32 key_head = head / (value_heads / key_heads), keys = key_heads * key_dim;
    bool own = col < value_dim; // no others' columns are read or written
    float* stored = state + ((u64)run[0] * value_heads + head) * key_dim * value_dim + col;
    for (u32 i = 0; i < key_dim; ++i) s[i * 32 + lane] = own && run[3] != 0 ? stored[(u64)i * value_dim] : 0.0f;
    float rate = 0.0f - exp_f32(a_log[head]), scale = 1.0f / sqrtf((float)key_dim);
    for (u32 row = run[1]; row < run[1] + run[2]; ++row) {
        const float* from = qkv + (u64)row * (2 * keys + value_heads * value_dim);
        __syncwarp();
        for (u32 i = lane; i < key_dim; i += 32) {
            q[i] = from[key_head * key_dim + i];
            k[i] = from[keys + key_head * key_dim + i];
        }
        __syncwarp();
        // lanes8 of q by threads 0..8, of k by 8..16.
        const float* of = lane < 8 ? q : k;
        float dot = 0.0f;
        for (u32 i = lane % 8; i < key_dim; i += 8) dot = fmaf(of[i], of[i], dot);
        float n = 1.0f / sqrtf(fold_lanes8(dot) + eps);
        float n_q = __shfl_sync(0xffffffffu, n, 0), n_k = __shfl_sync(0xffffffffu, n, 8);
        __syncwarp();
        for (u32 i = lane; i < key_dim; i += 32) {
            q[i] = q[i] * n_q * scale;
            k[i] = k[i] * n_k;
        }
        __syncwarp();
        const float* gates = ba + (u64)row * 2 * value_heads;
        float beta = sigmoid_f32(gates[head]);
        float decay = exp_f32(rate * softplus_f32(gates[value_heads + head] + dt_bias[head]));
        float m = 0.0f, out = 0.0f, v = own ? from[2 * keys + head * value_dim + col] : 0.0f;
        for (u32 i = 0; i < key_dim; ++i) {
            float kept = s[i * 32 + lane] * decay;
            s[i * 32 + lane] = kept;
            m = fmaf(kept, k[i], m);
        }
        float d = (v - m) * beta;
        for (u32 i = 0; i < key_dim; ++i) {
            float next = fmaf(k[i], d, s[i * 32 + lane]);
            s[i * 32 + lane] = next;
            out = fmaf(next, q[i], out);
        }
        if (own) y[((u64)row * value_heads + head) * value_dim + col] = out;
    }
    for (u32 i = 0; own && run[2] > 0 && i < key_dim; ++i) stored[(u64)i * value_dim] = s[i * 32 + lane];
}

constexpr u32 COLUMNS = 32; // of a head, by eight lanes each

extern "C" __global__ void __launch_bounds__(COLUMNS * 8)
    ssm_scan_f32(const float* xbc, const float* dt, const float* a_log, const float* dt_bias, const float* skip, float* state,
                 float* y, u32 heads, u32 head_dim, u32 groups, u32 state_dim, const u32* step_words) {
    extern __shared__ float shared[]; // [COLUMNS][state_dim + 8]: neighbouring columns lie eight banks apart
    Step step{step_words};
    u32 head = blockIdx.x, lane = threadIdx.x % 8, p = blockIdx.y * COLUMNS + threadIdx.x / 8;
    if (blockIdx.z >= step.items()) return;
    const u32* run = step.item(blockIdx.z);
    bool own = p < head_dim;
    float* s = shared + threadIdx.x / 8 * (state_dim + 8); // a thread touches its own values alone
    float* stored = state + (((u64)run[0] * heads + head) * head_dim + p) * state_dim;
    for (u32 i = lane; i < state_dim; i += 8) s[i] = own && run[3] != 0 ? stored[i] : 0.0f;
    float rate = 0.0f - exp_f32(a_log[head]);
    u32 group = head / (heads / groups), inner = heads * head_dim;
    for (u32 row = run[1]; row < run[1] + run[2]; ++row) {
        const float* from = xbc + (u64)row * (inner + 2 * groups * state_dim);
        const float* b = from + inner + group * state_dim;
        const float* c = b + groups * state_dim;
        float t = softplus_f32(dt[(u64)row * heads + head] + dt_bias[head]), decay = exp_f32(t * rate);
        float x = own ? from[head * head_dim + p] : 0.0f, u = t * x, dot = 0.0f;
        for (u32 i = lane; i < state_dim; i += 8) {
            float next = fmaf(s[i], decay, u * b[i]);
            s[i] = next;
            dot = fmaf(next, c[i], dot);
        }
        dot = fold_lanes8(dot);
        if (own && lane == 0) y[(u64)row * inner + head * head_dim + p] = fmaf(skip[head], x, dot);
    }
    for (u32 i = lane; own && run[2] > 0 && i < state_dim; i += 8) stored[i] = s[i];
}
