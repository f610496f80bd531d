// SPDX-License-Identifier: MIT OR Apache-2.0
// qk_norm_rope_kv_write, rope_kv_write: query and key heads are normed (the first alone) and rotated; queries go back to qkv
// in f32, keys and values to the paged pools in bf16 or e4m3 (layouts of kv_layout.cuh). Key and value columns of qkv stay as they
// were. A warp takes two query heads, or a key head and its value head.
//
// Values in the pool of bf16 are finite: where one of a token's values of a head is not, in bf16, all of them are stored as 0 and the key
// as NaN. A row that reaches the token gets NaN from its score; the weight of a row that does not is 0, and 0 x NaN cannot
// arise where the tensor cores multiply them nevertheless. In e4m3 the scale is NaN and the values are 0, by kv_write/amax_token.
//
// Spec: norm warp32_f32: column i belongs to lane i / (head_dim / 32), each lane one ascending chain of fma from 0, lanes
// folded by sums with l xor 16, 8, 4, 2, 1; r = 1 / sqrt(sum / head_dim + eps), every step rounded to f32; x = (x * r) * w.
// Then rope/half_f32 and kv_write/round_even as FAMILIES.toml states them.
//
// block 256, grid [rows, tiles(tiles(heads, 2) + kv_heads, 8)]; no dynamic shared memory, no scratch; head_dim 64, 128 or 256, rot
// a multiple of head_dim / 16; any number of rows; buffers aligned to 16 bytes. pdl = true.
#include "fp8.cuh"
#include "kv_layout.cuh"
#include "numeric.cuh"
#include "pdl.cuh"

constexpr u32 WARPS = 8;
constexpr u32 HEADS = 2; // of a warp
#define INFINITY_F32 __int_as_float(0x7f800000)
#define NAN_F32 __int_as_float(0x7fc00000)

template <u32 N>
__device__ inline void load(const float* from, float* to) {
#pragma unroll
    for (u32 i = 0; i < N; i += 2) {
        float2 v = *(const float2*)(from + i);
        to[i] = v.x, to[i + 1] = v.y;
    }
}
template <>
__device__ inline void load<4>(const float* from, float* to) {
    float4 v = *(const float4*)from;
    to[0] = v.x, to[1] = v.y, to[2] = v.z, to[3] = v.w;
}
template <>
__device__ inline void load<8>(const float* from, float* to) {
    load<4>(from, to);
    load<4>(from + 4, to + 4);
}

// N = head_dim / 32: the dims of a lane. F8: the pools are e4m3.
template <u32 N, bool NORM, bool F8>
__device__ void heads_of(float* qkv, const float* qw, const float* kw, const float* cs, void* k, void* v, const u32* tables,
                         u32 heads, u32 kv_heads, u32 rot, float eps, u32 blocks_per_slot, Step step) {
    constexpr u32 DIM = 32 * N;
    u32 row = blockIdx.x, pair = blockIdx.y * WARPS + threadIdx.x / 32, lane = threadIdx.x % 32;
    u32 all = heads + 2 * kv_heads, first = lane * N, half = rot / 2, query_pairs = (heads + HEADS - 1) / HEADS;
    bool live = row < step.rows() && pair < query_pairs + kv_heads, query = pair < query_pairs;
    u32 kv_head = pair - query_pairs; // of a pair of key and value
    auto head_of = [&](u32 j) { return query ? HEADS * pair + j : heads + j * kv_heads + kv_head; };
    u32 count = query ? min(HEADS, heads - HEADS * pair) : 2;
    bool low = first < half, rotated = first < rot;
    u32 partner = low ? lane + half / N : lane - half / N;
    u32 position = live ? step.positions()[row] : 0, slot = live ? step.slots()[row] : 0;
    float w[HEADS][N];
#pragma unroll
    for (u32 j = 0; j < HEADS; ++j) {
        if (NORM && live && (query || j == 0)) load<N>((query ? qw : kw) + first, w[j]);
    }
    pdl_wait();
    if (!live) return; // the whole warp
    float* at = qkv + (u64)row * all * DIM + first;
    float values[HEADS][N], c[N], s[N];
#pragma unroll
    for (u32 j = 0; j < HEADS; ++j) {
        if (j < count) load<N>(at + head_of(j) * DIM, values[j]);
    }
    if (rotated) {
        const float* cos = cs + (u64)row * rot + (low ? first : first - half);
        load<N>(cos, c);
        load<N>(cos + half, s);
    }
    u32 block = 0;
    bool poison = false;
    if (!query) {
        if (!block_of(step, tables, blocks_per_slot, slot, position, &block)) return;
#pragma unroll
        for (u32 i = 0; i < N; ++i) {
            poison = poison || !(fabsf(__bfloat162float(__float2bfloat16_rn(values[1][i]))) < INFINITY_F32);
        }
        poison = !F8 && __any_sync(0xffffffffu, poison);
    }
#pragma unroll
    for (u32 j = 0; j < HEADS; ++j) {
        if (j >= count) break;
        float(&x)[N] = values[j];
        if (query || j == 0) {
            if (NORM) {
                float sum = 0.0f;
#pragma unroll
                for (u32 i = 0; i < N; ++i) sum = fmaf(x[i], x[i], sum);
#pragma unroll
                for (u32 offset = 16; offset > 0; offset /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
                float r = 1.0f / sqrtf(sum / (float)DIM + eps);
#pragma unroll
                for (u32 i = 0; i < N; ++i) x[i] = x[i] * r * w[j][i];
            }
            float other[N];
#pragma unroll
            for (u32 i = 0; i < N; ++i) other[i] = __shfl_sync(0xffffffffu, x[i], rotated ? partner : lane);
            if (rotated) {
#pragma unroll
                for (u32 i = 0; i < N; ++i) {
                    x[i] = low ? x[i] * c[i] - other[i] * s[i] : x[i] * c[i] + other[i] * s[i];
                }
            }
        }
        if (query) {
#pragma unroll
            for (u32 i = 0; i < N; i += 2) *(float2*)(at + head_of(j) * DIM + i) = make_float2(x[i], x[i + 1]);
            continue;
        }
        if constexpr (F8) {
            u32 top = 0, token = position % KV_BLOCK;
#pragma unroll
            for (u32 i = 0; i < N; ++i) top = max(top, magnitude(x[i]));
            top = __reduce_max_sync(0xffffffffu, top);
            float scale, inverse;
            scale_for(top, &scale, &inverse);
            u8* to = (u8*)(j == 0 ? k : v) + ((u64)block * kv_heads + kv_head) * f8_block_bytes(DIM);
            u8* values = to + f8_offset(DIM, token, first);
            if constexpr (N == 2) {
                *(u16*)values = inverse == 0.0f ? 0 : (u16)e4m3_pair(x[0] * inverse, x[1] * inverse);
            } else {
#pragma unroll
                for (u32 i = 0; i < N; i += 4) {
                    *(u32*)(values + i) = e4m3_quad(x[i], x[i + 1], x[i + 2], x[i + 3], inverse);
                }
            }
            if (lane == 0) ((float*)(to + KV_BLOCK * DIM))[token] = scale;
        } else {
#pragma unroll
            for (u32 i = 0; i < N; ++i) x[i] = poison ? (j == 0 ? NAN_F32 : 0.0f) : x[i];
            unsigned char* to =
                (unsigned char*)(j == 0 ? k : v) + kv_offset(block, kv_heads, kv_head, DIM, position % KV_BLOCK, first);
#pragma unroll
            for (u32 i = 0; i < N; i += 2) {
                *(__nv_bfloat162*)(to + 2 * i) = __floats2bfloat162_rn(x[i], x[i + 1]);
            }
        }
    }
}

// NARROW: heads of 64 or 128 columns; else of 256.
template <bool NORM, bool NARROW, bool F8>
__device__ void by_dim(float* qkv, const float* qw, const float* kw, const float* cs, void* k, void* v, const u32* tables,
                       u32 heads, u32 kv_heads, u32 head_dim, u32 rot, float eps, u32 blocks_per_slot, Step step) {
    pdl_launch();
    if (!NARROW) {
        heads_of<8, NORM, F8>(qkv, qw, kw, cs, k, v, tables, heads, kv_heads, rot, eps, blocks_per_slot, step);
    } else if (head_dim == 64) {
        heads_of<2, NORM, F8>(qkv, qw, kw, cs, k, v, tables, heads, kv_heads, rot, eps, blocks_per_slot, step);
    } else {
        heads_of<4, NORM, F8>(qkv, qw, kw, cs, k, v, tables, heads, kv_heads, rot, eps, blocks_per_slot, step);
    }
}

#define ROPE_KV_WRITE(SUFFIX, T, NARROW, BLOCKS, F8)                                                                  \
    extern "C" __global__ void __launch_bounds__(32 * WARPS, BLOCKS)                                                  \
        qk_norm_rope_kv_write##SUFFIX(float* qkv, const float* qw, const float* kw, const float* cs, T* k, T* v,      \
                                      const u32* tables, u32 heads, u32 kv_heads, u32 head_dim, u32 rot, float eps,   \
                                      u32 blocks_per_slot, const u32* s) {                                            \
        by_dim<true, NARROW, F8>(qkv, qw, kw, cs, k, v, tables, heads, kv_heads, head_dim, rot, eps, blocks_per_slot, \
                                 Step{s});                                                                            \
    }                                                                                                                 \
    extern "C" __global__ void __launch_bounds__(32 * WARPS, BLOCKS)                                                  \
        rope_kv_write##SUFFIX(float* qkv, const float* cs, T* k, T* v, const u32* tables, u32 heads, u32 kv_heads,    \
                              u32 head_dim, u32 rot, u32 blocks_per_slot, const u32* s) {                             \
        by_dim<false, NARROW, F8>(qkv, cs, cs, cs, k, v, tables, heads, kv_heads, head_dim, rot, 0.0f,                \
                                  blocks_per_slot, Step{s});                                                          \
    }

ROPE_KV_WRITE(, bf16, true, 5, false)
ROPE_KV_WRITE(_wide, bf16, false, 3, false)
ROPE_KV_WRITE(_f8, u8, true, 5, true)
ROPE_KV_WRITE(_f8_wide, u8, false, 3, true)
