// SPDX-License-Identifier: MIT OR Apache-2.0
// expert_linear: for each slot of a row, y = W[e] x (+ bias[e]), e the slot's id, or the slot itself where no ids are bound.
// Stacks are row-major [experts, n, k]; a (row, slot) pair is a row of y. Spec chain256_f32: linear's, with the matrix and the
// bias of the slot's expert; MXFP4 converts exactly, 2^(e - 128) times its doubled level.
//
// Two schedules (chain.cuh is the inner loop of both): `few` takes a pair a block; the other an expert a block, which looks
// through all pairs for its own and reads its weights once for eight of them. Which pairs stand together changes no bit.
#include "chain.cuh"

typedef unsigned char u8;

// As GGUF stores it: 17 bytes for 32 values, an exponent, then value j in the low half of byte j and j + 16 in the high half.
struct Mxfp4 {
    static constexpr u32 SEGMENT = 256;
    const u8* w;
    u32 k;

    __device__ float at(u32 out, u32 i) const {
        const u8* block = w + ((u64)out * (k / 32) + i / 32) * 17;
        u32 e = block[0], nibble = block[1 + i % 16] >> (i % 32 / 16 * 4) & 15;
        float scale = __uint_as_float(e < 2 ? 0x00200000u << e : (e - 1) << 23); // 2^(e - 128)
        float level = (float)(0xc8643210u >> (nibble & 7) * 4 & 15);             // doubled: 0, 1, 2, 3, 4, 6, 8, 12
        return scale * (nibble & 8 ? -level : level);
    }
    __device__ float join(float total, float acc, u32, u32) const { return total + acc; }
};

struct Experts {
    const u32* ids; // null: a slot's expert is the slot
    u32 n, experts, slots, x_slots, x_ld, y_col, y_ld;

    __device__ u32 of(u32 pair) const { return ids != nullptr ? ids[pair] : pair % slots; }
};

// Where a (row, slot) pair's inputs stand among the rows of x, and which pair it is.
struct Pair {
    u32 x, y;
    __device__ Pair() {}
    __device__ Pair(const Experts& s, u32 pair) : x(s.x_slots == 1 ? pair / s.slots : pair), y(pair) {}
};

// Outputs of one tile for `count` pairs of expert `e`, at most 8.
template <class W>
__device__ void tile(const float* x, W w, const float* bias, float* y, const Experts& s, u32 e, const Pair* pairs, u32 count) {
    auto row = [&](u32 r) { return x + (u64)pairs[r].x * s.x_ld; };
    chain_tile(w, row, count, w.k, s.n, blockIdx.x * OUTPUTS, [&](u32 r, u32 out, float total) {
        if (bias != nullptr) total = total + bias[(u64)e * s.n + out];
        y[(u64)pairs[r].y * s.y_ld + s.y_col + out] = total;
    });
}

// Pairs of an expert that are collected before their products.
constexpr u32 PAIRS = 256;

// `matrix(e)` gives the weights of expert e.
template <bool FEW, class M>
__device__ void expert_linear(const float* x, M matrix, const float* bias, float* y, const Experts& s, Step step) {
    __shared__ Pair pairs[FEW ? 1 : PAIRS + 256];
    __shared__ u32 found[WARPS];
    u32 all = step.rows() * s.slots;
    if (FEW) {
        if (blockIdx.y >= all) return;
        u32 e = s.of(blockIdx.y);
        if (e >= s.experts) return; // no id of `router`
        if (threadIdx.x == 0) pairs[0] = Pair(s, blockIdx.y);
        __syncthreads();
        tile(x, matrix(e), bias, y, s, e, pairs, 1);
        return;
    }
    u32 e = blockIdx.y, warp = threadIdx.x / 32, lane = threadIdx.x % 32, count = 0;
    for (u32 begin = 0; begin < all; begin += 256) {
        u32 pair = begin + threadIdx.x;
        bool own = pair < all && s.of(pair) == e;
        u32 vote = __ballot_sync(0xffffffffu, own);
        if (lane == 0) found[warp] = __popc(vote);
        __syncthreads();
        u32 at = count + __popc(vote & ((1u << lane) - 1));
        for (u32 i = 0; i < WARPS; ++i) {
            if (i < warp) at += found[i];
            count += found[i];
        }
        if (own) pairs[at] = Pair(s, pair);
        __syncthreads();
        if (count < PAIRS && begin + 256 < all) continue;
        for (u32 i = 0; i < count; i += ROWS) tile(x, matrix(e), bias, y, s, e, pairs + i, min(ROWS, count - i));
        __syncthreads(); // the list is read
        count = 0;
    }
}

#define EXPERTS(NAME, FEW, T, MATRIX)                                                                               \
    extern "C" __global__ void __launch_bounds__(256)                                                               \
        NAME(const float* x, const u32* ids, const T* w, const float* bias, float* y, u32 k, u32 n, u32 experts,    \
             u32 slots, u32 x_slots, u32 x_ld, u32 y_col, u32 y_ld, u32 has_ids, u32 has_bias, const u32* s) {      \
        Experts shape{has_ids ? ids : nullptr, n, experts, slots, x_slots, x_ld, y_col, y_ld};                      \
        auto matrix = [=](u32 e) { return MATRIX; };                                                                \
        expert_linear<FEW>(x, matrix, has_bias ? bias : nullptr, y, shape, Step{s});                                \
    }

#define BOTH(FEW_NAME, NAME, T, MATRIX) \
    EXPERTS(FEW_NAME, true, T, MATRIX)  \
    EXPERTS(NAME, false, T, MATRIX)

BOTH(expert_linear_f32_few, expert_linear_f32, float, (Plain<float>{w + (u64)e * n * k, k}))
BOTH(expert_linear_bf16_few, expert_linear_bf16, bf16, (Plain<bf16>{w + (u64)e * n * k, k}))
BOTH(expert_linear_f16_few, expert_linear_f16, f16, (Plain<f16>{w + (u64)e * n * k, k}))
BOTH(expert_linear_mxfp4_few, expert_linear_mxfp4, u8, (Mxfp4{w + (u64)e * n * (k / 32) * 17, k}))
