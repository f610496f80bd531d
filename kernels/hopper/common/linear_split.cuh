// SPDX-License-Identifier: MIT OR Apache-2.0
// The schedule for few rows: one cluster of S blocks for GROUPS * 64 weight rows x N tokens, one K segment a block, all weights
// in flight at once. A block is GROUPS consumer warpgroups (64 weight rows each) and a producer warp that keeps STAGES k blocks
// coming: weights as plain bulk copies of packed tiles, tokens as boxes of a tensor map.
//
// The ring is filled with weights before the launch waits for earlier ones: that is most of what programmatic launch gives.
// The fold: rank r owns rows [r * ROWS / S, ...) of the tile. Every block sends each owner its partial sums through
// distributed shared memory; the owner adds them in rank order, so the bits are those of a serial fold.
#pragma once

#include "linear_out.cuh"
#include "linear_tiles.cuh"
#include "linear_wgmma.cuh"

template <u32 GROUPS, u32 N, u32 STAGES, class Scales = Unscaled>
struct Split {
    static constexpr u32 ROWS = GROUPS * 64, CONSUMERS = GROUPS * 128, THREADS = CONSUMERS + 32;
    static constexpr u32 WEIGHTS = GROUPS * HALF_BYTES, STAGE = WEIGHTS + N * BLOCK_BYTES;
    // Partial sums come to a place of their own where that is small, else over the drained ring.
    static constexpr bool APART = N <= 32;
    static constexpr u32 PARTS_BYTES = N * 4 * (ROWS + 4 * 8); // of eight segments
    static constexpr u32 PARTS = APART ? STAGES * STAGE : 0, BARRIERS = STAGES * STAGE + (APART ? PARTS_BYTES : 0);
    // Scales of k blocks lie behind the barriers, each stage's at a multiple of 128 bytes.
    static constexpr u32 SCALES = (BARRIERS + (2 * STAGES + 1) * 8 + 127) / 128 * 128;
    static constexpr u32 SCALE_BYTES = Scales::BLOCKS ? N * 16 + GROUPS * 32 : 0, SCALE_STAGE = (SCALE_BYTES + 127) / 128 * 128;
    static constexpr u32 HELD = SCALES + STAGES * SCALE_STAGE; // scales of tokens that the sums end with
    static constexpr u32 BYTES = HELD + (Scales::ROWS ? N * 4 : 0);
    static_assert(APART || PARTS_BYTES <= BARRIERS, "they fit over the ring");
};

// Place of the partial sums of columns 2 pair and 2 pair + 1 among `rows` rows: rows together, padded by four against bank
// conflicts.
__device__ inline u32 partial_at(u32 pair, u32 row, u32 rows) { return (pair * (rows + 4) + row) * 8; }

// Row of a tile in the order of the fold: gate and up of one column of h are neighbours there.
template <class Out>
__device__ inline u32 fold_row(u32 row) {
    return Out::PAIRED ? row / 16 * 16 + row % 8 * 2 + row / 8 % 2 : row;
}

// What a thread hands out with, fetched before the products: the scales and the bias of its row, or of its gate and up.
template <class Scales, class Out>
struct Hand {
    float weight = 1.0f, up = 1.0f, shift = -0.0f, token = 1.0f;

    __device__ void fetch(const Scales& scales, const Out& out, u32 rows, u32 first_row, u32 n, u32 token_at) {
        if constexpr (Out::PAIRED) {
            u32 target = first_row / 2 + threadIdx.x % (rows / 2), packed = target / 8 * 16 + target % 8;
            if (target < out.ffn) {
                weight = scales.weight(packed);
                up = scales.weight(packed + 8);
            }
        } else {
            u32 target = first_row + threadIdx.x % rows;
            if (target < n) {
                weight = scales.weight(target);
                shift = out.shift(target);
            }
        }
        if constexpr (Scales::ROWS) token = scales.token(token_at);
    }
};

// Adds partial sums in rank order and hands them out: `rows` of them from fold row `first_row` of the whole tensor, `pairs` pairs
// of columns from `first_token`. Those of rank s lie at parts + s * slice.
template <u32 THREADS, class Scales, class Out>
__device__ void hand_out(const u8* parts, u32 slice, u32 segments, u32 rows, u32 first_row, u32 first_token, u32 pairs,
                         u32 tokens, u32 n, const Scales& scales,
                         const Hand<Scales, Out>& hand, const float* held, const Out& out) {
    auto scale_of = [&](u32 pair) { // of tokens 2 pair and 2 pair + 1
        if constexpr (Scales::ROWS) return *(const float2*)(held + 2 * pair);
        return make_float2(1.0f, 1.0f);
    };
    auto total = [&](u32 pair, u32 row) {
        const u8* at = parts + partial_at(pair, row, rows);
        float2 sum = *(const float2*)at;
        for (u32 s = 1; s < segments; ++s) {
            float2 more = *(const float2*)(at + s * slice);
            sum.x = sum.x + more.x;
            sum.y = sum.y + more.y;
        }
        return sum;
    };
    if constexpr (Out::PAIRED) {
        u32 columns = rows / 2, column = threadIdx.x % columns, target = first_row / 2 + column;
        if (target >= out.ffn) return;
        for (u32 pair = threadIdx.x / columns; pair < pairs; pair += THREADS / columns) {
            u32 token = first_token + 2 * pair;
            if (token >= tokens) break;
            float2 gate = total(pair, 2 * column), up = total(pair, 2 * column + 1);
            float2 scale = scale_of(pair);
            out.store(target, token, scales.apply(gate.x, hand.weight, scale.x), scales.apply(up.x, hand.up, scale.x));
            if (token + 1 < tokens) {
                out.store(target, token + 1, scales.apply(gate.y, hand.weight, scale.y), scales.apply(up.y, hand.up, scale.y));
            }
        }
    } else {
        u32 row = threadIdx.x % rows, target = first_row + row;
        if (target >= n) return;
        for (u32 pair = threadIdx.x / rows; pair < pairs; pair += THREADS / rows) {
            u32 token = first_token + 2 * pair;
            if (token >= tokens) break;
            float2 sum = total(pair, row), scale = scale_of(pair);
            float* y = out.place(target, token);
            out.put(y, scales.apply(sum.x, hand.weight, scale.x) + hand.shift);
            if (token + 1 < tokens) out.put(y + out.y_ld, scales.apply(sum.y, hand.weight, scale.y) + hand.shift);
        }
    }
}

template <class Format, u32 GROUPS, u32 N, u32 STAGES, class Scales, class Out>
__device__ void linear_split(const TensorMap* map, const u8* w, u32 blocks, u32 n, u32 tokens, const Scales& scales,
                             const Out& out) {
    using Sizes = Split<GROUPS, N, STAGES, Scales>;
    extern __shared__ __align__(1024) u8 shared[];
    u32 base = shared_address(shared), full = base + Sizes::BARRIERS, empty = full + STAGES * 8, fold = empty + STAGES * 8;
    u32 segments = cluster_blocks(), rank = cluster_rank(), tile = blockIdx.x / segments, first_token = blockIdx.y * N;
    u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32;

    dependents_may_launch();
    if (segments != linear_segments(blocks, n) || (base & 1023) != 0) __trap(); // the launch is not what the manifest states
    if (first_token >= tokens) {
        wait_for_earlier();
        return;
    }
    u32 begin = segment_begin(rank, segments, blocks), count = segment_begin(rank + 1, segments, blocks) - begin;
    u32 owned = Sizes::ROWS / segments, slice = partial_at(N / 2, 0, owned); // bytes from one rank to one owner

    if (threadIdx.x == 0) {
        for (u32 s = 0; s < STAGES; ++s) {
            barrier_init(full + s * 8, 1);
            barrier_init(empty + s * 8, Sizes::CONSUMERS / 32 * WARP_ARRIVALS);
        }
        barrier_init(fold, 1);
        barrier_init_fence();
        barrier_expect(fold, Sizes::ROWS * N * 4);
    }
    __syncthreads();
    if (segments > 1) cluster_arrive(); // waited for before anything is sent

    if (warp == Sizes::CONSUMERS / 32) {
        if (lane == 0) {
            u32 half = tile * GROUPS; // of a packed tile
            const u8* from = w + ((u64)(half / 2) * blocks + begin) * TILE_BYTES + half % 2 * HALF_BYTES;
            u64 policy = gridDim.y == 1 ? read_once() : read_again();
            u32 ahead = min(count, STAGES), stage = 0, parity = 0;
            auto load_weights = [&](u32 i) {
                u32 at = base + stage * Sizes::STAGE, barrier = full + stage * 8;
                barrier_expect(barrier, Sizes::STAGE + Sizes::SCALE_BYTES);
                copy_bulk(at, from + (u64)i * TILE_BYTES, Sizes::WEIGHTS, barrier, policy);
                if constexpr (Scales::BLOCKS) {
                    copy_bulk(base + Sizes::SCALES + stage * Sizes::SCALE_STAGE + N * 16, scales.of_half(half, blocks, begin + i),
                              GROUPS * 32, barrier);
                }
            };
            auto load_tokens = [&](u32 i) {
                u32 at = base + stage * Sizes::STAGE + Sizes::WEIGHTS, barrier = full + stage * 8;
                copy_box(at, map, (begin + i) * Format::BLOCK, first_token, barrier);
                if constexpr (Scales::BLOCKS) {
                    copy_box(base + Sizes::SCALES + stage * Sizes::SCALE_STAGE, scales.tokens, (begin + i) / 4 * 4, first_token, barrier);
                }
            };
            prefetch_map(map);
            for (; stage < ahead; ++stage) load_weights(stage);
            wait_for_earlier();
            for (stage = 0; stage < ahead; ++stage) load_tokens(stage);
            stage = 0;
            for (u32 i = ahead; i < count; ++i) {
                barrier_wait(empty + stage * 8, parity);
                load_weights(i);
                load_tokens(i);
                if (++stage == STAGES) {
                    stage = 0;
                    parity ^= 1;
                }
            }
        }
        __syncwarp();
        if (segments > 1) { // the barriers of the fold count every thread of the cluster
            cluster_wait();
            if (!Sizes::APART) cluster_sync();
        }
        return;
    }

    u32 group = warp / 4, first_row = tile * Sizes::ROWS + rank * owned;
    wait_for_earlier(); // for the scales of tokens; also the producer waits, before it loads tokens
    Hand<Scales, Out> hand;
    hand.fetch(scales, out, owned, first_row, n, min(first_token + threadIdx.x, tokens - 1));
    float d[N / 2], sum[Format::PROMOTE ? N / 2 : 1];
    u32 stage = 0, parity = 0, previous = 0;
    if constexpr (Format::PROMOTE) begin_sum(sum, scales);
    for (u32 i = 0; i < count; ++i) {
        barrier_wait(full + stage * 8, parity);
        u64 a = operand(base + stage * Sizes::STAGE + group * HALF_BYTES);
        u64 b = operand(base + stage * Sizes::STAGE + Sizes::WEIGHTS);
        wgmma_begin();
#pragma unroll
        for (u32 step = 0; step < 4; ++step) Format::mma(d, a + 2 * step, b + 2 * step, Format::PROMOTE ? step != 0 : (i | step) != 0);
        wgmma_commit();
        if constexpr (Format::PROMOTE) {
            wgmma_wait<0>();
            settle(d);
            if constexpr (Scales::BLOCKS) {
                add_scaled<N>(sum, d, shared + Sizes::SCALES + stage * Sizes::SCALE_STAGE, warp, begin + i);
                __syncwarp(); // the scales have been read
            }
            if (arrives(0)) barrier_arrive(empty + stage * 8);
            if constexpr (!Scales::BLOCKS) {
#pragma unroll
                for (u32 j = 0; j < N / 2; ++j) sum[j] = sum[j] + d[j];
            }
        } else {
            if (i != 0) {
                wgmma_wait<1>();
                if (arrives(0)) barrier_arrive(empty + previous * 8);
            }
            previous = stage;
        }
        if (++stage == STAGES) {
            stage = 0;
            parity ^= 1;
        }
    }
    if constexpr (Format::PROMOTE) {
#pragma unroll
        for (u32 j = 0; j < N / 2; ++j) d[j] = sum[j];
    } else {
        wgmma_wait<0>();
        settle(d);
    }
    float* held = (float*)(shared + Sizes::HELD);
    if (Scales::ROWS && threadIdx.x < N) held[threadIdx.x] = hand.token;
    u32 row = fold_row<Out>(warp * 16 + lane / 4), row8 = fold_row<Out>(warp * 16 + lane / 4 + 8);
    u8* parts = shared + Sizes::PARTS;
    if (segments > 1) {
        cluster_wait();                     // all blocks of the cluster run, their barriers are there
        if (!Sizes::APART) cluster_sync();  // and their rings are drained
        u32 here = base + Sizes::PARTS + rank * slice;
        u32 to = address_at(here, row / owned) + partial_at(lane % 4, row % owned, owned);
        u32 to8 = address_at(here, row8 / owned) + partial_at(lane % 4, row8 % owned, owned);
        u32 there = address_at(fold, row / owned), there8 = address_at(fold, row8 / owned);
#pragma unroll
        for (u32 j = 0; j < N / 8; ++j) {
            u32 at = partial_at(4 * j, 0, owned);
            send(to + at, d[4 * j], d[4 * j + 1], there);
            send(to8 + at, d[4 * j + 2], d[4 * j + 3], there8);
        }
        if (Scales::ROWS) sync_threads(1, Sizes::CONSUMERS);
        barrier_wait(fold, 0);
    } else {
        if (!Sizes::APART) sync_threads(1, Sizes::CONSUMERS);
#pragma unroll
        for (u32 j = 0; j < N / 8; ++j) {
            *(float2*)(parts + partial_at(4 * j + lane % 4, row, owned)) = make_float2(d[4 * j], d[4 * j + 1]);
            *(float2*)(parts + partial_at(4 * j + lane % 4, row8, owned)) = make_float2(d[4 * j + 2], d[4 * j + 3]);
        }
        sync_threads(1, Sizes::CONSUMERS);
    }
    hand_out<Sizes::CONSUMERS>(parts, slice, segments, owned, first_row, first_token, N / 2, tokens, n, scales, hand, held, out);
}
