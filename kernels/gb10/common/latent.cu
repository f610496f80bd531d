// SPDX-License-Identifier: MIT OR Apache-2.0
// rope_part, latent_write, latent_attention: multi-head latent attention in its absorbed form (DeepSeek-V2, arXiv 2405.04434). A
// token stores one row [latent, rotated key] for all heads; the values are the latents.
// Specs: rope_part/half_f32 is rope's on columns offset..offset + rot of every `stride`. latent_write/round_even: to nearest,
// ties to even. latent_attention/cut256_step16 (attend.cuh): a query is its latent and then its last rot columns of q, one
// lanes8 chain over both. One block of 128 threads for a row and a query head.
#include "attend.cuh"

constexpr u32 MAX_DIM = 1024;

extern "C" __global__ void rope_part_f32(float* x, const float* cs, u32 heads, u32 stride, u32 offset, u32 rot,
                                         const u32* step_words) {
    Step step{step_words};
    u32 row = blockIdx.x, head = blockIdx.y, half = rot / 2;
    if (row >= step.rows()) return;
    x += ((u64)row * heads + head) * stride + offset;
    const float* cos = cs + (u64)row * rot;
    const float* sin = cos + half;
    for (u32 i = threadIdx.x; i < half; i += blockDim.x) {
        float a = x[i], b = x[i + half];
        x[i] = a * cos[i] - b * sin[i];
        x[i + half] = b * cos[i] + a * sin[i];
    }
}

template <typename T>
__device__ void latent_write(const float* x, T* kv, const u32* tables, u32 cols, u32 blocks_per_slot, Step step) {
    u32 row = blockIdx.x;
    if (row >= step.rows()) return;
    u32 position = step.positions()[row], block;
    if (!block_of(step, tables, blocks_per_slot, step.slots()[row], position, &block)) return;
    Tokens<T> to(kv, block, cols);
    for (u32 i = threadIdx.x; i < cols; i += THREADS) from_f32(x[(u64)row * cols + i], to.at + (position % KV_BLOCK) * cols + i);
}

template <typename T>
__device__ void latent_attention(const float* lat, const float* q, const T* kv, const u32* tables, float* a, u32 heads,
                                 u32 head_dim, u32 rank, u32 rot, u32 blocks_per_slot, float scale, Step step) {
    __shared__ float query[MAX_DIM];
    u32 row = blockIdx.x;
    if (row >= step.rows()) return;
    u64 head = (u64)row * heads + blockIdx.y; // among those of all rows
    const float* rotated = q + (head + 1) * head_dim - rot;
    for (u32 i = threadIdx.x; i < rank; i += THREADS) query[i] = lat[head * rank + i];
    for (u32 i = threadIdx.x; i < rot; i += THREADS) query[rank + i] = rotated[i];
    Stored<T> stored{kv, kv, tables, blocks_per_slot, 1, 0, rank + rot, rank};
    attend(query, stored, Scores{scale, 0, nullptr, 0.0f}, a + head * rank, row, step);
}

#define LATENT(WRITE, ATTENTION, T)                                                                                  \
    extern "C" __global__ void __launch_bounds__(THREADS)                                                            \
        WRITE(const float* x, T* kv, const u32* tables, u32 cols, u32 blocks_per_slot, const u32* s) {               \
        latent_write(x, kv, tables, cols, blocks_per_slot, Step{s});                                                 \
    }                                                                                                                \
    extern "C" __global__ void __launch_bounds__(THREADS, 8)                                                         \
        ATTENTION(const float* lat, const float* q, const T* kv, const u32* tables, float* a, u32 heads,             \
                  u32 head_dim, u32 rank, u32 rot, u32 blocks_per_slot, float scale, const u32* s) {                 \
        latent_attention(lat, q, kv, tables, a, heads, head_dim, rank, rot, blocks_per_slot, scale, Step{s});        \
    }

LATENT(latent_write_f32, latent_attention_f32, float)
LATENT(latent_write_bf16, latent_attention_bf16, bf16)
LATENT(latent_write_f16, latent_attention_f16, f16)
