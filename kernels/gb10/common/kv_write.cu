// SPDX-License-Identifier: MIT OR Apache-2.0
// kv_write: stores the key and value columns of each row into the paged pools [blocks, kv_heads, tokens of a head]
// (kv_tokens.cuh). Spec round_even: to nearest, ties to even. Spec amax_token (i8, e4m3): m = the largest magnitude of a token's
// head, s = m / 127 or m / 448, r = 1 / s, q = x * r rounded to f32, then to the format, ties to even, saturating; all q are 0
// where r is infinite; a NaN or an infinity makes s NaN and q 0.
#include "kv_tokens.cuh"

constexpr u32 THREADS = 128;

template <typename T>
__device__ void put(const Tokens<T>& to, u32 token, const float* x, u32* tops) {
    if constexpr (Tokens<T>::SCALED) {
        u32 top = 0;
        for (u32 i = threadIdx.x; i < to.dim; i += THREADS) top = max(top, magnitude(x[i]));
        top = __reduce_max_sync(0xffffffffu, top);
        __syncthreads(); // what stood in `tops` is read
        if (threadIdx.x % 32 == 0) tops[threadIdx.x / 32] = top;
        __syncthreads();
        for (u32 i = 0; i < THREADS / 32; ++i) top = max(top, tops[i]);
        float scale, inverse;
        scale_of(T{}, top, &scale, &inverse);
        for (u32 i = threadIdx.x; i < to.dim; i += THREADS) {
            T q{};
            if (inverse != 0.0f) quantized(x[i] * inverse, &q);
            to.at[token * to.dim + i] = q;
        }
        if (threadIdx.x == 0) *to.scale(token) = scale;
    } else {
        for (u32 i = threadIdx.x; i < to.dim; i += THREADS) from_f32(x[i], to.at + token * to.dim + i);
    }
}

template <typename T>
__device__ void kv_write(const float* qkv, T* k, T* v, const u32* tables, u32 heads, u32 kv_heads, u32 head_dim,
                         u32 blocks_per_slot, Step step) {
    __shared__ u32 tops[THREADS / 32];
    u32 row = blockIdx.x, head = blockIdx.y;
    if (row >= step.rows()) return;
    u32 position = step.positions()[row], block;
    if (!block_of(step, tables, blocks_per_slot, step.slots()[row], position, &block)) return;
    const float* from_k = qkv + ((u64)row * (heads + 2 * kv_heads) + heads + head) * head_dim;
    u64 at = (u64)block * kv_heads + head;
    put(Tokens<T>(k, at, head_dim), position % KV_BLOCK, from_k, tops);
    put(Tokens<T>(v, at, head_dim), position % KV_BLOCK, from_k + (u64)kv_heads * head_dim, tops);
}

#define KV_WRITE(NAME, T)                                                                                          \
    extern "C" __global__ void __launch_bounds__(THREADS)                                                          \
        NAME(const float* qkv, T* k, T* v, const u32* tables, u32 heads, u32 kv_heads, u32 head_dim,               \
             u32 blocks_per_slot, const u32* s) {                                                                  \
        kv_write(qkv, k, v, tables, heads, kv_heads, head_dim, blocks_per_slot, Step{s});                          \
    }

KV_WRITE(kv_write_f32, float)
KV_WRITE(kv_write_bf16, bf16)
KV_WRITE(kv_write_f16, f16)
KV_WRITE(kv_write_i8, Int8)
KV_WRITE(kv_write_e4m3, E4m3)
