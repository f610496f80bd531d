// SPDX-License-Identifier: MIT OR Apache-2.0
// kv_write: stores the key and value columns of each row into the paged pools [blocks, kv_heads, 16, head_dim].
// Spec round_even: to nearest, ties to even.
#include "numeric.cuh"
#include "step.cuh"

template <typename T>
__device__ void kv_write(const float* qkv, T* k, T* v, const u32* tables, u32 heads, u32 kv_heads, u32 head_dim,
                         u32 blocks_per_slot, Step step) {
    u32 row = blockIdx.x, head = blockIdx.y;
    if (row >= step.rows()) return;
    u32 position = step.positions()[row], block;
    if (!block_of(step, tables, blocks_per_slot, step.slots()[row], position, &block)) return;
    const float* from_k = qkv + ((u64)row * (heads + 2 * kv_heads) + heads + head) * head_dim;
    const float* from_v = from_k + (u64)kv_heads * head_dim;
    u64 to = (((u64)block * kv_heads + head) * KV_BLOCK + position % KV_BLOCK) * head_dim;
    for (u32 i = threadIdx.x; i < head_dim; i += blockDim.x) {
        from_f32(from_k[i], k + to + i);
        from_f32(from_v[i], v + to + i);
    }
}

#define KV_WRITE(NAME, T)                                                                                          \
    extern "C" __global__ void NAME(const float* qkv, T* k, T* v, const u32* tables, u32 heads, u32 kv_heads,      \
                                    u32 head_dim, u32 blocks_per_slot, const u32* s) {                             \
        kv_write(qkv, k, v, tables, heads, kv_heads, head_dim, blocks_per_slot, Step{s});                          \
    }

KV_WRITE(kv_write_f32, float)
KV_WRITE(kv_write_bf16, bf16)
KV_WRITE(kv_write_f16, f16)
