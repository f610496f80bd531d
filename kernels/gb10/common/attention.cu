// SPDX-License-Identifier: MIT OR Apache-2.0
// attention, attention_ext: causal, paged, grouped queries; one block of 128 threads for a row and a query head. Plain: it
// walks the keys in order and is no match for long contexts. Spec cut256_step16, and attention_ext's with window, cap and sink:
// attend.cuh. Spec cut256_step16_scaled: keys and values q * scale, rounded to f32, then the same.
#include "attend.cuh"

constexpr u32 MAX_DIM = MAX_WIDTH;

// What attention_ext adds; all absent in attention.
struct Extension {
    u32 window;
    const float* sinks; // a logit for each query head, or null
    float cap;
};

template <typename T>
__device__ void attention(const float* qkv, const T* k, const T* v, const u32* tables, float* a, u32 heads,
                          u32 kv_heads, u32 dim, u32 blocks_per_slot, float scale, Extension ext, Step step) {
    __shared__ float q[MAX_DIM];
    u32 row = blockIdx.x, head = blockIdx.y;
    if (row >= step.rows()) return;
    const float* from = qkv + ((u64)row * (heads + 2 * kv_heads) + head) * dim;
    for (u32 i = threadIdx.x; i < dim; i += THREADS) q[i] = from[i];
    Stored<T> kv{k, v, tables, blocks_per_slot, kv_heads, head / (heads / kv_heads), dim, dim};
    Scores scores{scale, ext.window, ext.sinks ? ext.sinks + head : nullptr, ext.cap};
    attend(q, kv, scores, a + ((u64)row * heads + head) * dim, row, step);
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
