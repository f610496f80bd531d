// SPDX-License-Identifier: MIT OR Apache-2.0
// The schedule for up to 256 rows where tiles are fewer than multiprocessors: a cluster takes A (1 or 2) neighbouring tiles of 128
// weight rows of N tokens; block (a, h) takes half of the K segments (h) of tile a. With A = 2 tokens are loaded once for both
// tiles, as in linear_serial; clusters of four do not reach every multiprocessor, so that A = 1 is better for many.
//
// Four segments need no more than two sets of accumulators: h = 0 ends with p = s0 + s1, h = 1 with s2 and s3; the first sends p to
// the second, thread to thread, and that writes (p + s2) + s3. S must be 2 or 4.
#pragma once

#include "linear_serial.cuh"

template <u32 N, u32 STAGES, class Scales = Unscaled>
struct Halves {
    using Ring = Serial<N, STAGES, Scales>;
    static constexpr u32 FOLD = (Ring::BYTES + 7) / 8 * 8, BYTES = FOLD + 8; // its barrier comes last
    static_assert(TILE_ROWS * N * 4 <= Ring::BARRIERS, "what is sent fits over the ring");
};

template <class Format, u32 A, u32 N, u32 STAGES, class Scales, class Out>
__device__ void linear_halves(const TensorMap* map, const u8* w, u32 blocks, u32 n, u32 rows, const Scales& scales, const Out& out) {
    using Sizes = Serial<N, STAGES, Scales>;
    extern __shared__ __align__(1024) u8 shared[];
    u32 base = shared_address(shared), full = base + Sizes::BARRIERS, empty = full + STAGES * 8;
    u32 fold = base + Halves<N, STAGES, Scales>::FOLD;
    u32 rank = cluster_rank(), a = rank % A, h = rank / A, warp = threadIdx.x / 32;
    u32 tiles = (n + TILE_ROWS - 1) / TILE_ROWS, tile = blockIdx.x / (2 * A) * A + a, first_token = blockIdx.y * N;
    u32 segments = linear_segments(blocks, n), mine = segments / 2;

    dependents_may_launch();
    if (cluster_blocks() != 2 * A || (segments != 2 && segments != 4) || (base & 1023) != 0) __trap(); // not what the manifest states
    if (first_token >= rows) {
        wait_for_earlier();
        return;
    }
    if (threadIdx.x == 0) {
        for (u32 s = 0; s < STAGES; ++s) {
            barrier_init(full + s * 8, 1);
            barrier_init(empty + s * 8, A * Sizes::CONSUMERS / 32 * WARP_ARRIVALS);
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
    if (warp >= Sizes::CONSUMERS / 32) {
        leave_registers<56>();
        if (threadIdx.x == Sizes::CONSUMERS) {
            u32 from = min(tile, tiles - 1); // past the end a tile again, not written
            u64 policy = gridDim.y == 1 ? read_once() : read_again();
            auto weights = [&](u32 block) {
                u32 barrier = full + stage * 8;
                barrier_expect(barrier, Sizes::STAGE + Sizes::SCALE_BYTES);
                copy_bulk(base + stage * Sizes::STAGE, w + ((u64)from * blocks + block) * TILE_BYTES, TILE_BYTES, barrier, policy);
                if constexpr (Scales::BLOCKS) {
                    copy_bulk(base + Sizes::SCALES + stage * Sizes::SCALE_STAGE + N * 16, scales.of_half(2 * from, blocks, block), 64,
                              barrier);
                }
            };
            auto tokens = [&](u32 block) {
                u32 half = a * (N / 2), barrier = full + stage * 8;
                u32 to = base + stage * Sizes::STAGE + TILE_BYTES + half * BLOCK_BYTES;
                u32 scales_to = base + Sizes::SCALES + stage * Sizes::SCALE_STAGE + half * 16;
                if constexpr (A == 1) {
                    copy_box(to, map, block * Format::BLOCK, first_token, barrier);
                    if constexpr (Scales::BLOCKS) copy_box(scales_to, scales.tokens, block / 4 * 4, first_token, barrier);
                } else {
                    copy_box_to(to, map, block * Format::BLOCK, first_token + half, barrier, 3 << 2 * h);
                    if constexpr (Scales::BLOCKS) {
                        copy_box_to(scales_to, scales.tokens, block / 4 * 4, first_token + half, barrier, 3 << 2 * h);
                    }
                }
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
    } else {
        take_registers<224>();
        float d[N / 2], part[Format::PROMOTE ? N / 2 : 1], sum[N / 2];
        u32 group = warp / 4, previous = 0, row = tile * TILE_ROWS + warp * 16;
        wait_for_earlier(); // for the scales of tokens; also the producer waits, before it loads tokens
        Ends<N, Scales, Out> ends;
        if (h == 1) ends.fetch(scales, out, n, row, first_token, rows);
        auto release = [&](u32 stage) {
            if (arrives(0)) barrier_arrive(empty + stage * 8);
            if (A == 2 && arrives(1)) barrier_arrive_at(empty + stage * 8, rank ^ 1); // it writes to this block, too
        };
        for (u32 s = 0; s < mine; ++s) {
            u32 first = segment_begin(h * mine + s, segments, blocks), last = segment_begin(h * mine + s + 1, segments, blocks);
            if (s == 1) { // what the first left
#pragma unroll
                for (u32 i = 0; i < N / 2; ++i) sum[i] = d[i];
            }
            if constexpr (Format::PROMOTE) begin_sum(part, scales);
            for (u32 block = first; block < last; ++block) {
                barrier_wait(full + stage * 8, parity);
                u64 weights = operand(base + stage * Sizes::STAGE + group * HALF_BYTES);
                u64 tokens = operand(base + stage * Sizes::STAGE + TILE_BYTES);
                wgmma_begin();
#pragma unroll
                for (u32 step = 0; step < 4; ++step) {
                    Format::mma(d, weights + 2 * step, tokens + 2 * step, Format::PROMOTE ? step != 0 : block != first || step != 0);
                }
                wgmma_commit();
                if constexpr (Format::PROMOTE) {
                    wgmma_wait<0>();
                    settle(d);
                    if constexpr (Scales::BLOCKS) {
                        add_scaled<N>(part, d, shared + Sizes::SCALES + stage * Sizes::SCALE_STAGE, warp, block);
                        __syncwarp(); // the scales have been read
                    }
                    release(stage);
                    if constexpr (!Scales::BLOCKS) {
#pragma unroll
                        for (u32 i = 0; i < N / 2; ++i) part[i] = part[i] + d[i];
                    }
                } else {
                    if (block != first) {
                        wgmma_wait<1>();
                        release(previous);
                    }
                    previous = stage;
                }
                advance();
            }
            if constexpr (Format::PROMOTE) {
#pragma unroll
                for (u32 i = 0; i < N / 2; ++i) d[i] = part[i];
            } else {
                wgmma_wait<0>();
                settle(d);
                release(previous);
            }
        }
        cluster_sync(); // all blocks have done with their rings

        // d: the last segment of this half; sum: the one before, if there are two.
        if (h == 0) {
            u32 to = address_at(base + threadIdx.x * 8, rank + A), there = address_at(fold, rank + A);
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
            ends.share((float*)(shared + Sizes::HELD) + group * 2 * N);
            if (tile < tiles) write_tile<N>(out, scales, ends, sum, row, first_token, rows);
        }
    }
}
