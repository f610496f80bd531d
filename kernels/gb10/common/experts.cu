// SPDX-License-Identifier: MIT OR Apache-2.0
// router, expert_glu, expert_sum: what stands around the experts' matrices (expert_linear.cu).
// Spec router/exp_f32: scores are the softmax (exp(logit - max), divided by their ascending sum), the logit, or 1 / (1 +
// exp(-logit)). Choice is by score + bias, descending, ties to the lower id, within the best groups (the sum of a group's best
// two, ties to the lower group). Weights are the scores without bias; of score 1 the softmax over the chosen in order of choice;
// renorm divides by their ascending sum (+ 1e-20 for sigmoid); then times scale. f32 throughout.
// Spec expert_glu/exp_f32: act 0 is swiglu's; act 1: g = min(g, limit), u = max(min(u, limit), -limit), h = (u + 1) * (g / (1 +
// exp(-(alpha * g)))). Spec expert_sum/chain_f32: acc = fma(weight, d, acc) over ascending slots, from 0.
#include "numeric.cuh"
#include "step.cuh"

enum Score : u32 { SOFTMAX, CHOSEN, SIGMOID, PLAIN };

constexpr u32 ALL = 0xffffffffu;  // lanes
constexpr u32 LAST = 0xfffffffeu; // what is left of a key of id 0

// Larger values have larger keys, in the total order of IEEE 754 (-NaN lowest, NaN highest); the lower id wins. Neither 0 nor
// the largest u64.
__device__ inline u64 rank_key(float v, u32 id) {
    u32 bits = __float_as_uint(v);
    bits = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
    return (u64)bits << 32 | (LAST - id);
}

// The largest key below `upper`, the same in each lane.
__device__ inline u64 largest_below(const u64* keys, u32 n, u64 upper) {
    u64 best = 0;
    for (u32 i = threadIdx.x; i < n; i += 32) best = keys[i] < upper && keys[i] > best ? keys[i] : best;
    for (int offset = 16; offset > 0; offset /= 2) {
        u64 other = __shfl_xor_sync(ALL, best, offset);
        best = other > best ? other : best;
    }
    return best;
}

// The scores of a row's experts.
__device__ inline void scores_of(u32 score, const float* logits, float* scores, u32 n) {
    if (score != SOFTMAX) {
        for (u32 e = threadIdx.x; e < n; e += 32) scores[e] = score == SIGMOID ? 1.0f / (1.0f + exp_f32(0.0f - logits[e])) : logits[e];
        return;
    }
    float top = __int_as_float(0xff800000); // of what is a number
    for (u32 e = threadIdx.x; e < n; e += 32) top = logits[e] > top ? logits[e] : top;
    for (int offset = 16; offset > 0; offset /= 2) {
        float other = __shfl_xor_sync(ALL, top, offset);
        top = other > top ? other : top;
    }
    for (u32 e = threadIdx.x; e < n; e += 32) scores[e] = exp_f32(logits[e] - top);
    __syncwarp();
    float sum = 0.0f; // the same chain in each lane
    for (u32 e = 0; e < n; ++e) sum += scores[e];
    __syncwarp();
    for (u32 e = threadIdx.x; e < n; e += 32) scores[e] = scores[e] / sum;
}

// Takes the keys of all experts out whose group is not among the best.
__device__ inline void keep_groups(u64* keys, u64* group_keys, u32 experts, u32 groups, u32 top_groups) {
    u32 size = experts / groups;
    for (u32 g = threadIdx.x; g < groups; g += 32) {
        float first = __int_as_float(0xff800000), second = first;
        for (u32 i = 0; i < size; ++i) {
            u32 bits = (u32)(keys[g * size + i] >> 32);
            float s = __uint_as_float(bits & 0x80000000u ? bits & 0x7fffffffu : ~bits);
            if (s > first) {
                second = first;
                first = s;
            } else if (s > second) {
                second = s;
            }
        }
        group_keys[g] = rank_key(size > 1 ? first + second : first, g);
    }
    __syncwarp();
    u64 last = ~(u64)0; // the least of the best
    for (u32 i = 0; i < top_groups; ++i) last = largest_below(group_keys, groups, last);
    for (u32 e = threadIdx.x; e < experts; e += 32) {
        if (group_keys[e / size] < last) keys[e] = 0;
    }
    __syncwarp();
}

// One warp a row.
extern "C" __global__ void __launch_bounds__(32)
    router_f32(const float* logits, const float* bias, u32* ids, float* weights, u32 experts, u32 top_k, u32 score, u32 renorm,
               u32 groups, u32 top_groups, u32 has_bias, float scale, const u32* step_words) {
    extern __shared__ u64 keys[]; // [experts], then a key a group, the scores, and those of the chosen
    u64* group_keys = keys + experts;
    float* scores = (float*)(group_keys + groups);
    float* chosen = scores + experts;
    Step step{step_words};
    u32 row = blockIdx.x;
    if (row >= step.rows()) return;
    scores_of(score, logits + (u64)row * experts, scores, experts);
    for (u32 e = threadIdx.x; e < experts; e += 32) keys[e] = rank_key(scores[e] + (has_bias ? bias[e] : 0.0f), e);
    __syncwarp();
    if (top_groups < groups) keep_groups(keys, group_keys, experts, groups, top_groups);

    u64 last = ~(u64)0;
    for (u32 i = 0; i < top_k; ++i) {
        last = largest_below(keys, experts, last);
        if (threadIdx.x == 0) {
            u32 id = min(LAST - (u32)last, experts - 1);
            ids[(u64)row * top_k + i] = id;
            chosen[i] = scores[id];
        }
    }
    __syncwarp();
    if (score == CHOSEN) {
        float top = chosen[0];
        __syncwarp();
        for (u32 i = threadIdx.x; i < top_k; i += 32) chosen[i] = exp_f32(chosen[i] - top);
        __syncwarp();
    }
    float sum = 0.0f;
    for (u32 i = 0; i < top_k; ++i) sum += chosen[i];
    if (score == SIGMOID) sum += 1e-20f;
    for (u32 i = threadIdx.x; i < top_k; i += 32) {
        float weight = renorm || score == CHOSEN ? chosen[i] / sum : chosen[i];
        weights[(u64)row * top_k + i] = weight * scale;
    }
}

extern "C" __global__ void expert_glu_f32(const float* gu, float* h, u32 slots, u32 ffn, u32 act, float alpha, float limit,
                                          const u32* step_words) {
    Step step{step_words};
    u32 row = blockIdx.x, at = blockIdx.y * blockDim.x + threadIdx.x;
    if (row >= step.rows() || at >= slots * ffn) return;
    u64 pair = (u64)row * slots + at / ffn;
    float g = gu[pair * 2 * ffn + at % ffn], u = gu[pair * 2 * ffn + ffn + at % ffn];
    float out;
    if (act == 0) {
        out = g / (1.0f + exp_f32(0.0f - g)) * u;
    } else {
        // Written so that a NaN stays one.
        g = g > limit ? limit : g;
        u = u > limit ? limit : u;
        u = u < -limit ? -limit : u;
        out = (u + 1.0f) * (g / (1.0f + exp_f32(0.0f - alpha * g)));
    }
    h[pair * ffn + at % ffn] = out;
}

extern "C" __global__ void expert_sum_f32(const float* d, const float* weights, float* y, u32 slots, u32 cols,
                                          const u32* step_words) {
    Step step{step_words};
    u32 row = blockIdx.x, col = blockIdx.y * blockDim.x + threadIdx.x;
    if (row >= step.rows() || col >= cols) return;
    float acc = 0.0f;
    for (u32 s = 0; s < slots; ++s) {
        u64 pair = (u64)row * slots + s;
        acc = fmaf(weights[pair], d[pair * cols + col], acc);
    }
    y[(u64)row * cols + col] = acc;
}
