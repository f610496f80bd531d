// SPDX-License-Identifier: MIT OR Apache-2.0
// The schedule for many rows: persistent clusters of two blocks; a cluster takes two neighbouring tiles of 128 weight rows and one
// tile of N tokens at a time. Each block loads its own weights and half of the tokens, which the copy engine writes to both:
// without that, reads of the L2 cache would be the limit. (Four blocks that share weights too were measured: slower.) K segments
// are folded in registers, in order; the bits are linear_split's.
//
// GROUPS (two, or three) consumer warpgroups of 64 weight rows take most registers of one more; one thread of that runs ahead with
// the loads, over tile borders too. Three read less shared memory and L2 cache for a product, and have fewer registers each.
#pragma once

#include "linear_out.cuh"
#include "linear_tiles.cuh"
#include "linear_wgmma.cuh"

// Of a whole warpgroup.
template <u32 REGISTERS>
__device__ inline void take_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}
template <u32 REGISTERS>
__device__ inline void leave_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}

template <u32 N, u32 STAGES, class Scales = Unscaled, u32 GROUPS = 2>
struct Serial {
    static constexpr u32 CONSUMERS = GROUPS * 128, THREADS = CONSUMERS + 128;
    static constexpr u32 WEIGHTS = GROUPS * HALF_BYTES, STAGE = WEIGHTS + N * BLOCK_BYTES;
    // Registers of a thread: what a launch of THREADS gets is handed from the producer's warpgroup to the consumers.
    static constexpr u32 TAKEN = GROUPS == 2 ? 224 : 160, LEFT = GROUPS == 2 ? 56 : 24;
    static constexpr u32 BARRIERS = STAGES * STAGE;
    static constexpr u32 SCALES = (BARRIERS + STAGES * 16 + 127) / 128 * 128;
    static constexpr u32 SCALE_BYTES = Scales::BLOCKS ? N * 16 + 64 : 0, SCALE_STAGE = (SCALE_BYTES + 127) / 128 * 128;
    static constexpr u32 HELD = SCALES + STAGES * SCALE_STAGE; // scales of tokens that a tile ends with; two tiles a warpgroup
    static constexpr u32 BYTES = HELD + (Scales::ROWS ? GROUPS * 2 * N * 4 : 0);
};

// The tiles in the order in which clusters take them: bands of token tiles, in a band token tiles run fastest, so that the tiles in
// flight form a block of weights and tokens that the L2 cache holds. Every band reads all weights again: it takes eight token
// tiles, of e4m3 as many as BAND_BYTES if those are more.
constexpr u32 BAND_BYTES = 14000000;

struct Raster {
    u32 pairs, token_tiles, band;

    __device__ u32 count() const { return pairs * token_tiles; }
    __device__ void tile(u32 index, u32* pair, u32* token_tile) const {
        u32 at = index / (band * pairs), in_band = index - at * band * pairs;
        u32 width = min(band, token_tiles - at * band);
        *pair = in_band / width;
        *token_tile = at * band + in_band % width;
    }
};

// What a warpgroup's tile ends with, fetched when it begins: a load where it ends would hold up the tensor cores. Scales of tokens
// are spread over the threads until `share`.
template <u32 N, class Scales, class Out>
struct Ends {
    static constexpr u32 TOKENS = Scales::ROWS ? (N + 127) / 128 : 1; // a thread
    float low = 1.0f, high = 1.0f, shift_low = -0.0f, shift_high = -0.0f, token[TOKENS];
    const float* tokens; // in shared memory

    // Of packed rows `row` + lane / 4 and 8 further; past the end the last row and token again.
    __device__ void fetch(const Scales& scales, const Out& out, u32 n, u32 row, u32 first_token, u32 rows) {
        u32 target = row + threadIdx.x % 32 / 4;
        if constexpr (Scales::ROWS) {
            u32 last = tile_rows(n) - 1;
            low = scales.weight(min(target, last));
            high = scales.weight(min(target + 8, last));
#pragma unroll
            for (u32 i = 0; i < TOKENS; ++i) token[i] = scales.token(min(first_token + threadIdx.x % 128 + 128 * i, rows - 1));
        }
        if constexpr (!Out::PAIRED) {
            shift_low = out.shift(min(target, n - 1));
            shift_high = out.shift(min(target + 8, n - 1));
        }
    }
    // Of a warpgroup; `held` is N values that nobody reads any more.
    __device__ void share(float* held) {
        if constexpr (Scales::ROWS) {
#pragma unroll
            for (u32 i = 0; i < TOKENS; ++i) {
                u32 at = threadIdx.x % 128 + 128 * i;
                if (at < N) held[at] = token[i];
            }
            sync_threads(1 + threadIdx.x / 128, 128);
        }
        tokens = held;
    }
    // Of tokens 2 pair and 2 pair + 1 of the tile.
    __device__ float2 pair(u32 pair) const {
        if constexpr (Scales::ROWS) return *(const float2*)(tokens + 2 * pair);
        return make_float2(1.0f, 1.0f);
    }
};

// Sums of one warpgroup, from registers to memory: 32-byte sectors for f32 (eight neighbouring rows of one token). A tile that lies
// wholly inside asks nothing on the way.
template <u32 N, class Scales, class Out>
__device__ void write_tile(const Out& out, const Scales& scales, const Ends<N, Scales, Out>& ends, const float (&d)[N / 2],
                           u32 row, u32 first_token, u32 tokens) {
    u32 lane = threadIdx.x % 32, target = row + lane / 4, ld = out.y_ld;
    auto write = [&](auto inside) {
        float* y = out.place(target, first_token + 2 * (lane % 4));
        bool low = inside || target < out.n, high = inside || target + 8 < out.n;
#pragma unroll
        for (u32 j = 0; j < N / 8; ++j) {
            float2 scale = ends.pair(4 * j + lane % 4);
#pragma unroll
            for (u32 i = 0; i < 2; ++i) {
                bool live = inside || first_token + 8 * j + 2 * (lane % 4) + i < tokens;
                float* at = y + i * ld;
                if (live && low) out.put(at, scales.apply(d[4 * j + i], ends.low, i == 0 ? scale.x : scale.y) + ends.shift_low);
                if (live && high) out.put(at + 8, scales.apply(d[4 * j + 2 + i], ends.high, i == 0 ? scale.x : scale.y) + ends.shift_high);
            }
            y += 8 * (u64)ld;
        }
    };
    struct Inside { __device__ constexpr operator bool() const { return true; } };
    if (row + 16 <= out.n && first_token + N <= tokens) {
        write(Inside{});
    } else {
        write(false);
    }
}

// The eight columns of h of a warp: an 8 x 8 transposition gives each thread two neighbouring columns of one token.
template <u32 N, class Scales>
__device__ void write_tile(const Swiglu& out, const Scales& scales, const Ends<N, Scales, Swiglu>& ends, const float (&d)[N / 2],
                           u32 row, u32 first_token, u32 tokens) {
    u32 lane = threadIdx.x % 32, column = row / 2 + 2 * (lane % 4);
#pragma unroll
    for (u32 j = 0; j < N / 8; ++j) {
        float2 scale = ends.pair(4 * j + lane % 4);
        float h[2];
#pragma unroll
        for (u32 i = 0; i < 2; ++i) {
            float by = i == 0 ? scale.x : scale.y;
            h[i] = swiglu(scales.apply(d[4 * j + i], ends.low, by), scales.apply(d[4 * j + 2 + i], ends.high, by));
        }
        __nv_bfloat162 both = __floats2bfloat162_rn(h[0], h[1]);
        u32 bits = *(u32*)&both, turned;
        asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(turned) : "r"(bits));
        u32 token = first_token + 8 * j + lane / 4;
        if (token < tokens && column < out.ffn) *(u32*)(out.h + (u64)token * out.ffn + column) = turned;
    }
}

template <class Format, u32 N, u32 STAGES, bool FOLD, u32 GROUPS = 2, class Scales, class Out>
__device__ void linear_serial(const TensorMap* map, const u8* w, u32 blocks, u32 n, u32 rows, const Scales& scales,
                              const Out& out) {
    using Sizes = Serial<N, STAGES, Scales, GROUPS>;
    // Three warpgroups compile for 128 registers, which an instruction of 256 tokens exceeds: two of 128 then.
    constexpr u32 PARTS = GROUPS == 3 && N > 128 ? 2 : 1, WIDTH = N / PARTS;
    static_assert(PARTS == 1 || !(FOLD || Format::PROMOTE || Scales::ROWS), "one part has sums and scales");
    static_assert(GROUPS % 2 == 0 || !Scales::BLOCKS, "scales of k blocks come for whole tiles");
    extern __shared__ __align__(1024) u8 shared[];
    u32 base = shared_address(shared), full = base + Sizes::BARRIERS, empty = full + STAGES * 8;
    u32 rank = cluster_rank(), warp = threadIdx.x / 32;
    u32 halves = tile_rows(n) / 64, segments = FOLD ? linear_segments(blocks, n) : 1; // halves of packed tiles
    u32 band = Format::PROMOTE ? max(8u, BAND_BYTES / (N * blocks * BLOCK_BYTES)) : 8;
    Raster raster{(halves + 2 * GROUPS - 1) / (2 * GROUPS), (rows + N - 1) / N, band};

    dependents_may_launch();
    bool one = FOLD || linear_segments(blocks, n) == 1;
    if (cluster_blocks() != 2 || (base & 1023) != 0 || !one) __trap(); // the launch is not what the manifest states
    if (threadIdx.x == 0) {
        for (u32 s = 0; s < STAGES; ++s) {
            barrier_init(full + s * 8, 1);
            barrier_init(empty + s * 8, 2 * Sizes::CONSUMERS / 32 * WARP_ARRIVALS);
        }
        barrier_init_fence();
    }
    cluster_sync();

    u32 stage = 0, parity = 0, tile, token_tile;
    auto advance = [&] {
        if (++stage == STAGES) {
            stage = 0;
            parity ^= 1;
        }
    };
    if (warp >= Sizes::CONSUMERS / 32) {
        leave_registers<Sizes::LEFT>();
        if (threadIdx.x == Sizes::CONSUMERS) {
            auto weights = [&](u32 pair, u32 block) { // past the end of the last pair: its last rows again
                u32 to = base + stage * Sizes::STAGE, barrier = full + stage * 8, half = (pair * 2 + rank) * GROUPS;
                auto from = [&](u32 half) { return w + ((u64)(half / 2) * blocks + block) * TILE_BYTES + half % 2 * HALF_BYTES; };
                barrier_expect(barrier, Sizes::STAGE + Sizes::SCALE_BYTES);
                if constexpr (GROUPS % 2 == 0) {
                    half = min(half, halves - GROUPS);
                    copy_bulk(to, from(half), Sizes::WEIGHTS, barrier);
                } else {
#pragma unroll
                    for (u32 g = 0; g < GROUPS; ++g) copy_bulk(to + g * HALF_BYTES, from(min(half + g, halves - 1)), HALF_BYTES, barrier);
                }
                if constexpr (Scales::BLOCKS) {
                    copy_bulk(base + Sizes::SCALES + stage * Sizes::SCALE_STAGE + N * 16, scales.of_half(half, blocks, block), 64,
                              barrier);
                }
            };
            auto tokens = [&](u32 stage, u32 token_tile, u32 block) {
                u32 half = rank * (N / 2), first = token_tile * N + half, barrier = full + stage * 8;
                copy_box_to(base + stage * Sizes::STAGE + Sizes::WEIGHTS + half * BLOCK_BYTES, map, block * Format::BLOCK, first, barrier,
                            3);
                if constexpr (Scales::BLOCKS) {
                    copy_box_to(base + Sizes::SCALES + stage * Sizes::SCALE_STAGE + half * 16, scales.tokens, block / 4 * 4, first, barrier,
                                3);
                }
            };
            prefetch_map(map);
            u32 ahead = 0, filled = 0;
            for (u32 index = blockIdx.x / 2; index < raster.count(); index += gridDim.x / 2) {
                raster.tile(index, &tile, &token_tile);
                u32 block = 0;
                if (filled == 0) { // before the wait: the first ring of weights
                    ahead = min(blocks, STAGES);
                    for (u32 i = 0; i < ahead; ++i) {
                        weights(tile, i);
                        advance();
                    }
                    wait_for_earlier();
                    for (u32 i = 0; i < ahead; ++i) tokens(i, token_tile, i);
                    filled = block = ahead;
                }
                for (; block < blocks; ++block) {
                    if (filled >= STAGES) barrier_wait(empty + stage * 8, parity ^ 1);
                    ++filled;
                    weights(tile, block);
                    tokens(stage, token_tile, block);
                    advance();
                }
            }
            if (filled == 0) wait_for_earlier();
        }
        __syncwarp();
    } else {
        take_registers<Sizes::TAKEN>();
        u32 group = warp / 4, previous = 0, turn = 0;
        float d[PARTS][N / 2 / PARTS], part[Format::PROMOTE ? N / 2 : 1], sum[FOLD ? N / 2 : 1];
        wait_for_earlier(); // for the scales of tokens; also the producer waits, before it loads tokens
        auto release = [&](u32 stage) {
            if (arrives(0)) barrier_arrive(empty + stage * 8);
            if (arrives(1)) barrier_arrive_at(empty + stage * 8, rank ^ 1); // it writes to this block, too
        };
        for (u32 index = blockIdx.x / 2; index < raster.count(); index += gridDim.x / 2) {
            raster.tile(index, &tile, &token_tile);
            u32 half = (tile * 2 + rank) * GROUPS + group, row = half * 64 + warp % 4 * 16, first = token_tile * N;
            Ends<WIDTH, Scales, Out> ends;
            ends.fetch(scales, out, n, row, first, rows);
            for (u32 s = 0; s < segments; ++s) {
                u32 begin = FOLD ? segment_begin(s, segments, blocks) : 0;
                u32 end = FOLD ? segment_begin(s + 1, segments, blocks) : blocks;
                if constexpr (Format::PROMOTE) begin_sum(part, scales);
                for (u32 block = begin; block < end; ++block) {
                    barrier_wait(full + stage * 8, parity);
                    u64 weights = operand(base + stage * Sizes::STAGE + group * HALF_BYTES);
                    u64 tokens = operand(base + stage * Sizes::STAGE + Sizes::WEIGHTS);
                    wgmma_begin();
#pragma unroll
                    for (u32 step = 0; step < 4; ++step) {
#pragma unroll
                        for (u32 p = 0; p < PARTS; ++p) {
                            Format::mma(d[p], weights + 2 * step, tokens + 2 * step + p * (WIDTH * BLOCK_BYTES / 16),
                                        Format::PROMOTE ? step != 0 : block != begin || step != 0);
                        }
                    }
                    wgmma_commit();
                    if constexpr (Format::PROMOTE) {
                        wgmma_wait<0>();
                        settle(d[0]);
                        if constexpr (Scales::BLOCKS) {
                            add_scaled<N>(part, d[0], shared + Sizes::SCALES + stage * Sizes::SCALE_STAGE, warp, block);
                            __syncwarp(); // the scales have been read
                        }
                        release(stage);
                        if constexpr (!Scales::BLOCKS) {
#pragma unroll
                            for (u32 i = 0; i < N / 2; ++i) part[i] = part[i] + d[0][i];
                        }
                    } else {
                        if (block != begin) {
                            wgmma_wait<1>();
                            release(previous);
                        }
                        previous = stage;
                    }
                    advance();
                }
                if constexpr (Format::PROMOTE) {
#pragma unroll
                    for (u32 i = 0; i < N / 2; ++i) d[0][i] = part[i];
                } else {
                    wgmma_wait<0>();
                    #pragma unroll
                    for (u32 p = 0; p < PARTS; ++p) settle(d[p]);
                    release(previous);
                }
                if constexpr (FOLD) {
#pragma unroll
                    for (u32 i = 0; i < N / 2; ++i) sum[i] = s == 0 ? d[0][i] : sum[i] + d[0][i];
                }
            }
            ends.share((float*)(shared + Sizes::HELD) + (group * 2 + turn) * N);
            turn ^= 1;
            if (half < halves) {
                if constexpr (FOLD) {
                    write_tile<N>(out, scales, ends, sum, row, first, rows);
                } else {
#pragma unroll
                    for (u32 p = 0; p < PARTS; ++p) write_tile<WIDTH>(out, scales, ends, d[p], row, first + p * WIDTH, rows);
                }
            }
        }
    }
    cluster_sync(); // the neighbour may still write here, or arrive
}
