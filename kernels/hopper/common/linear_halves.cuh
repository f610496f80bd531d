// SPDX-License-Identifier: MIT OR Apache-2.0
// The schedule for 65 to 256 rows where tiles are fewer than multiprocessors: clusters of four blocks (a, h) take two neighbouring
// tiles of 128 weight rows (a) of N tokens, half of the K segments (h) a block. Tokens are loaded once for both a, as in
// linear_serial. Four segments need no more than two sets of accumulators: h = 0 ends with p = s0 + s1, h = 1 with s2 and s3; the
// first sends p to the second, thread to thread, and that writes (p + s2) + s3. S must be 2 or 4.
#pragma once

#include "linear_serial.cuh"

template <u32 N, u32 STAGES>
struct Halves {
    static constexpr u32 CONSUMERS = 256, THREADS = CONSUMERS + 32;
    static constexpr u32 STAGE = TILE_BYTES + N * BLOCK_BYTES, BARRIERS = STAGES * STAGE;
    static constexpr u32 BYTES = BARRIERS + (2 * STAGES + 1) * 8;
    static_assert(TILE_ROWS * N * 4 <= BARRIERS, "what is sent fits over the ring");
};

template <u32 N, u32 STAGES, class Out>
__device__ void linear_halves(const TensorMap* map, const u8* w, u32 blocks, u32 n, u32 rows, const Out& out) {
    using Sizes = Halves<N, STAGES>;
    extern __shared__ __align__(1024) u8 shared[];
    u32 base = shared_address(shared), full = base + Sizes::BARRIERS, empty = full + STAGES * 8, fold = empty + STAGES * 8;
    u32 rank = cluster_rank(), a = rank % 2, h = rank / 2, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    u32 tiles = (n + TILE_ROWS - 1) / TILE_ROWS, tile = blockIdx.x / 4 * 2 + a, first_token = blockIdx.y * N;
    u32 segments = linear_segments(blocks, n), mine = segments / 2;

    dependents_may_launch();
    if (cluster_blocks() != 4 || (segments != 2 && segments != 4) || (base & 1023) != 0) __trap(); // not what the manifest states
    if (first_token >= rows) {
        wait_for_earlier();
        return;
    }
    if (threadIdx.x == 0) {
        for (u32 s = 0; s < STAGES; ++s) {
            barrier_init(full + s * 8, 1);
            barrier_init(empty + s * 8, 2 * Sizes::CONSUMERS / 32);
        }
        barrier_init(fold, 1);
        barrier_init_fence();
        barrier_expect(fold, TILE_ROWS * N * 4);
    }
    cluster_sync();

    u32 begin = segment_begin(h * mine, segments, blocks), end = segment_begin((h + 1) * mine, segments, blocks);
    u32 stage = 0, parity = 0;
    auto advance = [&] {
        if (++stage == STAGES) {
            stage = 0;
            parity ^= 1;
        }
    };
    if (warp == Sizes::CONSUMERS / 32) {
        if (lane == 0) {
            const u8* from = w + (u64)min(tile, tiles - 1) * blocks * TILE_BYTES; // past the end a tile again, not written
            u64 policy = read_once();
            auto weights = [&](u32 block) {
                barrier_expect(full + stage * 8, Sizes::STAGE);
                copy_bulk(base + stage * Sizes::STAGE, from + (u64)block * TILE_BYTES, TILE_BYTES, full + stage * 8, policy);
            };
            auto tokens = [&](u32 block) {
                u32 half = a * (N / 2);
                copy_box_to(base + stage * Sizes::STAGE + TILE_BYTES + half * BLOCK_BYTES, map, block * Bf16::BLOCK, first_token + half,
                            full + stage * 8, 3 << 2 * h);
            };
            u32 ahead = min(end - begin, STAGES);
            prefetch_map(map);
            for (; stage < ahead; ++stage) weights(begin + stage);
            wait_for_earlier();
            for (stage = 0; stage < ahead; ++stage) tokens(begin + stage);
            stage = 0;
            for (u32 block = begin + ahead; block < end; ++block) {
                barrier_wait(empty + stage * 8, parity);
                weights(block);
                tokens(block);
                advance();
            }
        }
        __syncwarp();
        cluster_sync();
        return;
    }

    float d[N / 2], sum[N / 2];
    u32 group = warp / 4, previous = 0;
    auto release = [&](u32 stage) {
        if (lane < 2) barrier_arrive_at(empty + stage * 8, rank ^ lane); // both write to this block
    };
    for (u32 s = 0; s < mine; ++s) {
        u32 first = segment_begin(h * mine + s, segments, blocks), last = segment_begin(h * mine + s + 1, segments, blocks);
        if (s == 1) { // what the first left
#pragma unroll
            for (u32 i = 0; i < N / 2; ++i) sum[i] = d[i];
        }
        for (u32 block = first; block < last; ++block) {
            barrier_wait(full + stage * 8, parity);
            u64 weights = operand(base + stage * Sizes::STAGE + group * HALF_BYTES);
            u64 tokens = operand(base + stage * Sizes::STAGE + TILE_BYTES);
            wgmma_begin();
#pragma unroll
            for (u32 step = 0; step < 4; ++step) Bf16::mma(d, weights + 2 * step, tokens + 2 * step, block != first || step != 0);
            wgmma_commit();
            if (block != first) {
                wgmma_wait<1>();
                release(previous);
            }
            previous = stage;
            advance();
        }
        wgmma_wait<0>();
        settle(d);
        release(previous);
    }
    cluster_sync(); // all blocks have done with their rings; the copies into this one have been waited for

    // d: the last segment of this half; sum: the one before, if there are two.
    u32 place = base + threadIdx.x * 8;
    if (h == 0) {
        u32 to = address_at(place, rank ^ 2), there = address_at(fold, rank ^ 2);
#pragma unroll
        for (u32 i = 0; i < N / 2; i += 2) {
            float low = mine == 2 ? sum[i] + d[i] : d[i], high = mine == 2 ? sum[i + 1] + d[i + 1] : d[i + 1];
            send(to + i / 2 * Sizes::CONSUMERS * 8, low, high, there);
        }
    } else {
        barrier_wait(fold, 0);
        const u8* received = shared + threadIdx.x * 8;
#pragma unroll
        for (u32 i = 0; i < N / 2; i += 2) {
            float2 p = *(const float2*)(received + i / 2 * Sizes::CONSUMERS * 8);
            sum[i] = mine == 2 ? p.x + sum[i] + d[i] : p.x + d[i];
            sum[i + 1] = mine == 2 ? p.y + sum[i + 1] + d[i + 1] : p.y + d[i + 1];
        }
        if (tile < tiles) write_tile<N>(out, Unscaled{}, sum, tile * TILE_ROWS + warp * 16, first_token, rows);
    }
}
