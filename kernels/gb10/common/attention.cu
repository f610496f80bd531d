// SPDX-License-Identifier: MIT OR Apache-2.0
// attention, attention_ext: causal, paged, grouped queries; one block of 128 threads for a row and a query head. Plain: it
// walks the keys in order and is no match for long contexts.
//
// Spec cut256_step16: keys 0..=position, cut at absolute multiples of 256; a cut starts fresh (m = -inf, l = 0, o = 0) and
// takes ascending steps of 16 keys (one KV block). In a step: score = lanes8(q, k) * scale; m' = max(m, scores);
// c = exp(m - m'), p = exp(score - m'); l = l * c, then l + p ascending; o = o * c, then fma(p, v, o) ascending. Cuts merge
// ascending: M' = max(M, m), a = exp(M - M'), b = exp(m - M'), L = fma(l, b, L * a), O = fma(o, b, O * a). The result is
// O * (1 / L). Keys past the position are never loaded (0 x NaN is NaN).
// attention_ext takes the keys from max(0, position + 1 - window) on (window 0: from 0) with the same absolute borders, leaves
// out cuts and steps without a key in reach, caps scores (c * tanh(score / c), c > 0) and ends with the head's sink s, if there
// is one: M' = max(M, s), a = exp(M - M'), L = L * a + exp(s - M'), O = O * a.
// Spec cut256_step16_scaled: keys and values q * scale, rounded to f32, then the same.
// After Milakov and Gimelshein, "Online normalizer calculation for softmax", arXiv 1805.02867.
#include "kv_tokens.cuh"

constexpr u32 CUT = 256;
constexpr u32 THREADS = 128; // 16 keys by 8 lanes
constexpr u32 MAX_DIM = 512;
constexpr u32 OWN = MAX_DIM / THREADS; // dims that a thread owns: d, d + 128, ...

// `b` if either is NaN: a NaN score reaches the output through its p, not through m.
__device__ inline float larger(float a, float b) { return a > b ? a : b; }

// What attention_ext adds; all absent in attention.
struct Extension {
    u32 window;         // keys in reach; 0: all
    const float* sinks; // a logit for each query head, or null
    float cap;          // 0: none
};

template <typename T>
__device__ void attention(const float* qkv, const T* k, const T* v, const u32* tables, float* a, u32 heads,
                          u32 kv_heads, u32 dim, u32 blocks_per_slot, float scale, Extension ext, Step step) {
    __shared__ float q[MAX_DIM];
    __shared__ float scores[KV_BLOCK];
    __shared__ float weights[KV_BLOCK];
    u32 row = blockIdx.x, head = blockIdx.y, kv_head = head / (heads / kv_heads);
    if (row >= step.rows()) return;
    u32 slot = step.slots()[row], live = step.positions()[row] + 1;
    u32 reach = ext.window == 0 || ext.window >= live ? 0 : live - ext.window; // the first key
    const float* from = qkv + ((u64)row * (heads + 2 * kv_heads) + head) * dim;
    for (u32 i = threadIdx.x; i < dim; i += THREADS) q[i] = from[i];

    const float minus_inf = __int_as_float(0xff800000);
    u32 key = threadIdx.x / 8, lane = threadIdx.x % 8;
    float total_m = minus_inf, total_l = 0.0f, total_o[OWN] = {};
    for (u32 begin = reach / CUT * CUT; begin < live; begin += CUT) {
        u32 end = min(live, begin + CUT);
        float m = minus_inf, l = 0.0f, o[OWN] = {};
        for (u32 first = max(begin, reach / KV_BLOCK * KV_BLOCK); first < end; first += KV_BLOCK) {
            u32 skip = max(reach, first) - first, n = min(KV_BLOCK, end - first), block; // keys skip..n of the block
            if (!block_of(step, tables, blocks_per_slot, slot, first, &block)) return; // the same in all threads
            u64 at = (u64)block * kv_heads + kv_head;
            Tokens<const T> keys(k, at, dim), values(v, at, dim);
            __syncthreads(); // q is there; the last step's scores and weights are read
            float dot = 0.0f;
            if (key >= skip && key < n) {
                for (u32 i = lane; i < dim; i += 8) dot = fmaf(q[i], keys.get(key, i), dot);
            }
            dot = fold_lanes8(dot);
            if (lane == 0) {
                float score = dot * scale;
                scores[key] = ext.cap > 0.0f ? ext.cap * tanh_f32(score / ext.cap) : score;
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
                if (d >= dim) break;
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
    if (ext.sinks != nullptr) {
        float sink = ext.sinks[head], m_new = larger(sink, total_m), shrink = exp_f32(total_m - m_new);
        total_l = total_l * shrink + exp_f32(sink - m_new);
        for (u32 i = 0; i < OWN; ++i) total_o[i] = total_o[i] * shrink;
    }
    float inverse = 1.0f / total_l;
    for (u32 i = 0; i < OWN; ++i) {
        u32 d = threadIdx.x + i * THREADS;
        if (d < dim) a[((u64)row * heads + head) * dim + d] = total_o[i] * inverse;
    }
}

#define ATTENTION(NAME, EXT_NAME, T)                                                                                \
    extern "C" __global__ void __launch_bounds__(THREADS, 8)                                                         \
        NAME(const float* qkv, const T* k, const T* v, const u32* tables, float* a, u32 heads, u32 kv_heads,        \
             u32 head_dim, u32 blocks_per_slot, float scale, const u32* s) {                                        \
        Extension none{0, nullptr, 0.0f};                                                                           \
        attention(qkv, k, v, tables, a, heads, kv_heads, head_dim, blocks_per_slot, scale, none, Step{s});          \
    }                                                                                                               \
    extern "C" __global__ void __launch_bounds__(THREADS, 8)                                                         \
        EXT_NAME(const float* qkv, const T* k, const T* v, const u32* tables, const float* sinks, float* a,         \
                 u32 heads, u32 kv_heads, u32 head_dim, u32 blocks_per_slot, u32 window, u32 has_sinks,             \
                 float scale, float softcap, const u32* s) {                                                        \
        Extension ext{window, has_sinks ? sinks : nullptr, softcap};                                                \
        attention(qkv, k, v, tables, a, heads, kv_heads, head_dim, blocks_per_slot, scale, ext, Step{s});           \
    }

ATTENTION(attention_f32, attention_ext_f32, float)
ATTENTION(attention_bf16, attention_ext_bf16, bf16)
ATTENTION(attention_f16, attention_ext_f16, f16)
ATTENTION(attention_i8, attention_ext_i8, Int8)
ATTENTION(attention_e4m3, attention_ext_e4m3, E4m3)
