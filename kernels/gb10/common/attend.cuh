// SPDX-License-Identifier: MIT OR Apache-2.0
// One query over the stored keys and values of its sequence, by a block of 128 threads: what the plain attention kernels share.
//
// Spec cut256_step16: keys 0..=position, cut at absolute multiples of 256; a cut starts fresh (m = -inf, l = 0, o = 0) and
// takes ascending steps of 16 keys (one KV block). In a step: score = lanes8(q, k) * scale; m' = max(m, scores);
// c = exp(m - m'), p = exp(score - m'); l = l * c, then l + p ascending; o = o * c, then fma(p, v, o) ascending. Cuts merge
// ascending: M' = max(M, m), a = exp(M - M'), b = exp(m - M'), L = fma(l, b, L * a), O = fma(o, b, O * a). The result is
// O * (1 / L). Keys past the position are never loaded (0 x NaN is NaN).
// With a window the keys are those from max(0, position + 1 - window) on, with the same absolute borders, without cuts and steps
// that have no key in reach; a cap makes a score c * tanh(score / c); a sink s ends it: M' = max(M, s), a = exp(M - M'),
// L = L * a + exp(s - M'), O = O * a.
// After Milakov and Gimelshein, "Online normalizer calculation for softmax", arXiv 1805.02867.
#pragma once

#include "kv_tokens.cuh"

constexpr u32 CUT = 256;
constexpr u32 THREADS = 128; // 16 keys by 8 lanes
constexpr u32 MAX_WIDTH = 512;
constexpr u32 OWN = MAX_WIDTH / THREADS; // dims of a value that a thread owns: d, d + 128, ...

// `b` if either is NaN: a NaN score reaches the output through its p, not through m.
__device__ inline float larger(float a, float b) { return a > b ? a : b; }

// Where the keys and values of a head lie.
template <typename T>
struct Stored {
    const T *k, *v;
    const u32* tables;
    u32 blocks_per_slot, heads, head;
    u32 dim, width; // columns of a row; those of it that are the value, at most MAX_WIDTH
};

// What scores go through, and what bounds the keys.
struct Scores {
    float scale;
    u32 window;        // keys in reach; 0: all
    const float* sink; // a logit, or null
    float cap;         // 0: none
};

// `q` is shared, dim values, which need not be there yet when it is called; `a` takes the width values of the result.
template <typename T>
__device__ void attend(const float* q, const Stored<T>& kv, const Scores& s, float* a, u32 row, Step step) {
    __shared__ float scores[KV_BLOCK];
    __shared__ float weights[KV_BLOCK];
    u32 slot = step.slots()[row], live = step.positions()[row] + 1;
    u32 reach = s.window == 0 || s.window >= live ? 0 : live - s.window; // the first key
    const float minus_inf = __int_as_float(0xff800000);
    u32 key = threadIdx.x / 8, lane = threadIdx.x % 8;
    float total_m = minus_inf, total_l = 0.0f, total_o[OWN] = {};
    for (u32 begin = reach / CUT * CUT; begin < live; begin += CUT) {
        u32 end = min(live, begin + CUT);
        float m = minus_inf, l = 0.0f, o[OWN] = {};
        for (u32 first = max(begin, reach / KV_BLOCK * KV_BLOCK); first < end; first += KV_BLOCK) {
            u32 skip = max(reach, first) - first, n = min(KV_BLOCK, end - first), block; // keys skip..n of the block
            if (!block_of(step, kv.tables, kv.blocks_per_slot, slot, first, &block)) return; // the same in all threads
            u64 at = (u64)block * kv.heads + kv.head;
            Tokens<const T> keys(kv.k, at, kv.dim), values(kv.v, at, kv.dim);
            __syncthreads(); // q is there; the last step's scores and weights are read
            float dot = 0.0f;
            if (key >= skip && key < n) {
                for (u32 i = lane; i < kv.dim; i += 8) dot = fmaf(q[i], keys.get(key, i), dot);
            }
            dot = fold_lanes8(dot);
            if (lane == 0) {
                float score = dot * s.scale;
                scores[key] = s.cap > 0.0f ? s.cap * tanh_f32(score / s.cap) : score;
            }
            __syncthreads();
            float m_new = m;
            for (u32 j = skip; j < n; ++j) m_new = larger(scores[j], m_new);
            if (threadIdx.x >= skip && threadIdx.x < n) weights[threadIdx.x] = exp_f32(scores[threadIdx.x] - m_new);
            float c = exp_f32(m - m_new);
            __syncthreads();
            l = l * c;
            for (u32 j = skip; j < n; ++j) l = l + weights[j];
            for (u32 i = 0; i < OWN; ++i) {
                u32 d = threadIdx.x + i * THREADS;
                if (d >= kv.width) break;
                float acc = o[i] * c;
                for (u32 j = skip; j < n; ++j) acc = fmaf(weights[j], values.get(j, d), acc);
                o[i] = acc;
            }
            m = m_new;
        }
        float m_new = larger(m, total_m);
        float scale_total = exp_f32(total_m - m_new), scale_cut = exp_f32(m - m_new);
        total_l = fmaf(l, scale_cut, total_l * scale_total);
        for (u32 i = 0; i < OWN; ++i) total_o[i] = fmaf(o[i], scale_cut, total_o[i] * scale_total);
        total_m = m_new;
    }
    if (s.sink != nullptr) {
        float sink = *s.sink, m_new = larger(sink, total_m), shrink = exp_f32(total_m - m_new);
        total_l = total_l * shrink + exp_f32(sink - m_new);
        for (u32 i = 0; i < OWN; ++i) total_o[i] = total_o[i] * shrink;
    }
    float inverse = 1.0f / total_l;
    for (u32 i = 0; i < OWN; ++i) {
        u32 d = threadIdx.x + i * THREADS;
        if (d < kv.width) a[d] = total_o[i] * inverse;
    }
}
