// SPDX-License-Identifier: MIT OR Apache-2.0
// The schedule for few rows: one cluster of S blocks a tile of 128 weight rows x N tokens, one K segment a block, all weights
// in flight at once. A block is two consumer warpgroups (64 weight rows each) and a producer warp that keeps STAGES k blocks
// coming: weights as plain bulk copies of packed tiles, tokens as boxes of a tensor map.
//
// The ring is filled with weights before the launch waits for earlier ones: that is most of what programmatic launch gives.
// The fold: rank r owns rows [r * 128 / S, ...) of the tile. Every block sends each owner its partial sums through
// distributed shared memory; the owner adds them in rank order, so the bits are those of a serial fold.
#pragma once

#include "linear_out.cuh"
#include "linear_tiles.cuh"
#include "linear_wgmma.cuh"

// Shared memory of a split block: ring, then barriers. The partial sums lie over the ring when it is drained.
template <u32 N, u32 STAGES>
struct SplitShared {
    static constexpr u32 STAGE = TILE_BYTES + N * BLOCK_BYTES;
    static constexpr u32 BARRIERS = STAGES * STAGE;
    static constexpr u32 BYTES = BARRIERS + STAGES * 16;
    static_assert(N * 4 * (TILE_ROWS + 8 * 8) <= BARRIERS, "partial sums of eight segments fit");
};

// Owner's place of the partial sums of `rank` at (row, columns 2 pair and 2 pair + 1): f32 pairs, rows together, padded by
// eight so that neither side meets bank conflicts.
__device__ inline u32 partial_at(u32 rank, u32 pair, u32 row, u32 pairs, u32 rows) {
    return ((rank * pairs + pair) * (rows + 8) + row) * 8;
}

template <class Format, u32 N, u32 STAGES, class Out>
__device__ void linear_split(const TensorMap* map, const u8* w, u32 blocks, u32 n, u32 rows, const Out& out) {
    using Shared = SplitShared<N, STAGES>;
    extern __shared__ __align__(1024) u8 shared[];
    u32 base = shared_address(shared), full = base + Shared::BARRIERS, empty = full + STAGES * 8;
    u32 segments = cluster_blocks(), rank = cluster_rank();
    u32 tile = blockIdx.x / segments, first_token = blockIdx.y * N;
    u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32;

    dependents_may_launch();
    if (segments != linear_segments(blocks, n) || (base & 1023) != 0) __trap(); // the launch is not what the manifest states
    if (first_token >= rows) {
        wait_for_earlier();
        return;
    }
    u32 begin = segment_begin(rank, segments, blocks), count = segment_begin(rank + 1, segments, blocks) - begin;

    if (threadIdx.x == 0) {
        for (u32 s = 0; s < STAGES; ++s) {
            barrier_init(full + s * 8, 1);
            barrier_init(empty + s * 8, CONSUMERS / 32);
        }
        barrier_init_fence();
    }
    __syncthreads();

    if (warp == CONSUMERS / 32) {
        if (lane == 0) {
            const u8* from = w + ((u64)tile * blocks + begin) * TILE_BYTES;
            u64 policy = read_once();
            u32 ahead = min(count, STAGES);
            prefetch_map(map);
            for (u32 i = 0; i < ahead; ++i) {
                barrier_expect(full + i * 8, Shared::STAGE);
                copy_bulk(base + i * Shared::STAGE, from + (u64)i * TILE_BYTES, TILE_BYTES, full + i * 8, policy);
            }
            wait_for_earlier();
            for (u32 i = 0; i < ahead; ++i) {
                copy_box(base + i * Shared::STAGE + TILE_BYTES, map, (begin + i) * Format::BLOCK, first_token, full + i * 8);
            }
            u32 stage = 0, parity = 0;
            for (u32 i = ahead; i < count; ++i) {
                u32 at = base + stage * Shared::STAGE;
                barrier_wait(empty + stage * 8, parity);
                barrier_expect(full + stage * 8, Shared::STAGE);
                copy_bulk(at, from + (u64)i * TILE_BYTES, TILE_BYTES, full + stage * 8, policy);
                copy_box(at + TILE_BYTES, map, (begin + i) * Format::BLOCK, first_token, full + stage * 8);
                if (++stage == STAGES) {
                    stage = 0;
                    parity ^= 1;
                }
            }
        }
        __syncwarp();
        if (segments > 1) { // the barriers of the fold count every thread of the cluster
            cluster_sync();
            cluster_sync();
        }
        return;
    }

    u32 group = warp / 4;
    float d[N / 2];
    u32 stage = 0, parity = 0, previous = 0;
    for (u32 i = 0; i < count; ++i) {
        barrier_wait(full + stage * 8, parity);
        u64 a = operand(base + stage * Shared::STAGE + group * (TILE_BYTES / 2));
        u64 b = operand(base + stage * Shared::STAGE + TILE_BYTES);
        wgmma_begin();
#pragma unroll
        for (u32 step = 0; step < 4; ++step) Format::mma(d, a + 2 * step, b + 2 * step, (i | step) != 0);
        wgmma_commit();
        if (i != 0) {
            wgmma_wait<1>();
            if (lane == 0) barrier_arrive(empty + previous * 8);
        }
        previous = stage;
        if (++stage == STAGES) {
            stage = 0;
            parity ^= 1;
        }
    }
    wgmma_wait<0>();
    settle(d);

    // The ring is drained in this block, then in all: what follows lies over it.
    if (segments > 1) {
        cluster_sync();
    } else {
        sync_threads(1, CONSUMERS);
    }
    u32 owned = TILE_ROWS / segments; // 16 or more: a warp's 16 rows have one owner
    u32 row = warp * 16 + lane / 4;
    u32 to = address_at(base, row / owned) + partial_at(rank, lane % 4, row % owned, N / 2, owned);
#pragma unroll
    for (u32 j = 0; j < N / 8; ++j) {
        u32 at = to + partial_at(0, 4 * j, 0, N / 2, owned);
        store_at(at, d[4 * j], d[4 * j + 1]);
        store_at(at + 8 * 8, d[4 * j + 2], d[4 * j + 3]);
    }
    if (segments > 1) {
        cluster_sync();
    } else {
        sync_threads(1, CONSUMERS);
    }

    auto total = [&](u32 row, u32 pair) {
        const u8* at = shared + partial_at(0, pair, row, N / 2, owned);
        float2 sum = *(const float2*)at;
        for (u32 s = 1; s < segments; ++s) {
            float2 part = *(const float2*)(at + partial_at(s, 0, 0, N / 2, owned));
            sum.x = sum.x + part.x;
            sum.y = sum.y + part.y;
        }
        return sum;
    };
    u32 first_row = tile * TILE_ROWS + rank * owned;
    if constexpr (Out::PAIRED) {
        u32 columns = owned / 2, column = threadIdx.x % columns;
        u32 gate_row = column / 8 * 16 + column % 8, target = first_row / 2 + column;
        if (target >= out.ffn) return;
        for (u32 pair = threadIdx.x / columns; pair < N / 2; pair += CONSUMERS / columns) {
            u32 token = first_token + 2 * pair;
            if (token >= rows) break;
            float2 gate = total(gate_row, pair), up = total(gate_row + 8, pair);
            out.store(target, token, gate.x, up.x);
            if (token + 1 < rows) out.store(target, token + 1, gate.y, up.y);
        }
    } else {
        u32 own = threadIdx.x % owned, target = first_row + own;
        if (target >= n) return;
        float* column = out.column(target);
        float shift = out.shift(target);
        for (u32 pair = threadIdx.x / owned; pair < N / 2; pair += CONSUMERS / owned) {
            u32 token = first_token + 2 * pair;
            if (token >= rows) break;
            float2 sum = total(own, pair);
            out.store(column, shift, token, sum.x);
            if (token + 1 < rows) out.store(column, shift, token + 1, sum.y);
        }
    }
}
