// SPDX-License-Identifier: MIT OR Apache-2.0
// attention_bf16, attention_ext_bf16 for steps of many rows: tiles of 128 (row, head) pairs, products by wgmma. Spec cut256_step128_bf16
// (attention.cuh), the bits of attention_split.cu.
//
// A tile is the query heads of one KV head for up to 128 / group consecutive rows of a work item of the step block. Two
// warpgroups take 64 pairs each; one warp brings K and V by bulk copies, two steps ahead. While a step's values are added up, the
// next step's scores and their softmax are made. A tile walks all its cuts; the merged total waits in shared memory, where each
// thread has its part. The last tile of an item comes first: it has the most keys.
//
// Keys in e4m3 are widened to f16 on the way in and values to bf16, by four warps; keys' dims and queries' stand in the order of the
// spec. The scales of a step's keys and values have one place, free again when its weights are made.
//
// block 384; grid [kv_heads, rows / (128 / group) + slots] (integer quotients; group = heads / kv_heads <= 128), or less where
// fewer tiles can arise; dynamic shared memory 7 * 256 * head_dim + 1024 bytes; scratch (a parameter) unused; rows as the grid
// says. Buffers aligned to 16 bytes, pools to 128. pdl = true.
#include "attention.cuh"
#include "wgmma_attention.cuh"

constexpr u32 PAIRS = 128; // of a tile
constexpr u32 PART = 64;   // of a warpgroup
constexpr u32 STAGES = 2;
constexpr u32 THREADS = 384;

struct Shared {
    u64 full_k[STAGES], empty_k[STAGES], full_v[STAGES], empty_v[STAGES], empty_scales, unused;
    u32 slot, row, rows, position; // of the tile; rows 0 where there is none
};

// Tile `index` of the step: warp 0 looks for it in the work list.
__device__ inline void find_tile(Step step, u32 index, u32 per_tile, Shared& s) {
    u32 lane = threadIdx.x % 32, items = step.w[2], before = 0;
    const uint4* work = (const uint4*)(step.w + step.w[11]); // slot, first row, rows, first position
    if (lane == 0) s.rows = 0;
    __syncwarp();
    for (u32 begin = 0; begin < items; begin += 32) {
        uint4 item = begin + lane < items ? work[begin + lane] : make_uint4(0, 0, 0, 0);
        u32 tiles = (item.z + per_tile - 1) / per_tile, sum = tiles;
#pragma unroll
        for (u32 offset = 1; offset < 32; offset *= 2) {
            u32 other = __shfl_up_sync(0xffffffffu, sum, offset);
            if (lane >= offset) sum += other;
        }
        u32 first = before + sum - tiles;
        if (index >= first && index < before + sum) {
            u32 offset = (tiles - 1 - (index - first)) * per_tile;
            s.slot = item.x;
            s.row = item.y + offset;
            s.rows = min(per_tile, item.z - offset);
            s.position = item.w + offset;
        }
        before += __shfl_sync(0xffffffffu, sum, 31);
        if (index < before) break;
    }
}

template <u32 REGISTERS>
__device__ inline void take_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}
template <u32 REGISTERS>
__device__ inline void leave_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}

// `reach`: the first key that a row of the tile reaches.
template <u32 DIM>
__device__ inline void produce(const Shared& tile, u32 base, u32 barriers, const bf16* k, const bf16* v, const u32* table,
                               u32 kv_heads, u32 kv_head, u32 reach) {
    u32 live = tile.position + tile.rows, lane = threadIdx.x % 32;
    u32 full_k = barriers, empty_k = full_k + 8 * STAGES, full_v = empty_k + 8 * STAGES, empty_v = full_v + 8 * STAGES;
    u32 first_step = reach / STEP_KEYS, skip = reach % STEP_KEYS / KV_BLOCK;
    live -= first_step * STEP_KEYS;
    table += first_step * STEP_BLOCKS;
    u32 steps = (live + STEP_KEYS - 1) / STEP_KEYS;
    for (u32 i = 0; i < steps; ++i) {
        u32 blocks = min(STEP_BLOCKS, (live - i * STEP_KEYS + KV_BLOCK - 1) / KV_BLOCK), at = i % STAGES;
        u32 parity = (i / STAGES & 1) ^ 1; // an unused stage counts as empty
        u32 first = i == 0 ? skip : 0, block = lane >= first && lane < blocks ? table[i * STEP_BLOCKS + lane] : 0;
        barrier_wait(empty_k + 8 * at, parity);
        load_step<DIM>(base + at * 2 * STEP_BYTES<DIM>, k, kv_heads, kv_head, block, first, blocks, full_k + 8 * at);
        barrier_wait(empty_v + 8 * at, parity);
        load_step<DIM>(base + (2 * at + 1) * STEP_BYTES<DIM>, v, kv_heads, kv_head, block, first, blocks,
                       full_v + 8 * at);
    }
}

// Brings e4m3 in. A *batch* is four chunks of 16 dims a thread; the next one is on its way while one is widened.
template <u32 DIM>
struct Widening {
    static constexpr u32 CHUNKS = DIM / 16; // of a token
    static constexpr u32 BATCH = 4, BATCHES = CHUNKS / BATCH; // of keys, or of values, of a step
    static constexpr u32 APART = 128 / CHUNKS; // tokens from one chunk of a thread to the next: whole groups of 8
    const unsigned char *k, *v;
    const u32* table; // of the tile's first step, from the thread's block on
    u32 kv_heads, kv_head, skip, live, block; // the thread's first block of a step
    u32 from, to[2];  // where its chunk begins in a block, where the halves go

    __device__ Widening(const unsigned char* k_, const unsigned char* v_, const u32* table_, u32 kv_heads_, u32 kv_head_, u32 skip_,
                        u32 live_)
        : k(k_), v(v_), kv_heads(kv_heads_), kv_head(kv_head_), skip(skip_), live(live_) {
        u32 thread = threadIdx.x % 128, token = thread / CHUNKS, turn = DIM == 64 ? token / 2 % 4 : token % 8;
        u32 d = (thread % CHUNKS ^ turn) * 16;
        block = token / KV_BLOCK;
        table = table_ + block;
        from = token % KV_BLOCK * DIM + thread % CHUNKS * 16;
        to[0] = atom_offset(DIM, token, d);
        to[1] = atom_offset(DIM, token, d + 8);
    }
    __device__ void load(uint4 (&raw)[BATCH], u32 i, bool keys, u32 batch) const {
#pragma unroll
        for (u32 n = 0; n < BATCH; ++n) {
            u32 ahead = (batch * BATCH + n) * APART / KV_BLOCK, at = block + ahead; // the block in the step
            raw[n] = make_uint4(0, 0, 0, 0);
            if ((i > 0 || at >= skip) && i * STEP_KEYS + at * KV_BLOCK < live) {
                u64 head = (u64)table[i * STEP_BLOCKS + ahead] * kv_heads + kv_head;
                raw[n] = *(const uint4*)((keys ? k : v) + head * f8_block_bytes(DIM) + from);
            }
        }
    }
    // To atoms: keys in f16 and in the order of the spec, values in bf16; zeros for blocks that the tile does not have.
    template <bool KEYS>
    __device__ void store(unsigned char* memory, const uint4 (&raw)[BATCH], u32 batch) const {
#pragma unroll
        for (u32 n = 0; n < BATCH; ++n) {
            u32 words[4] = {raw[n].x, raw[n].y, raw[n].z, raw[n].w}, low[4], high[4];
#pragma unroll
            for (u32 w = 0; w < 4; ++w) {
                low[w] = KEYS ? half_low(words[w]) : widen_low(words[w]);
                high[w] = KEYS ? half_high(words[w]) : widen_high(words[w]);
            }
            unsigned char* at = memory + (batch * BATCH + n) * (APART / 8 * GROUP_BYTES<DIM>);
            if (KEYS) {
                *(uint4*)(at + to[0]) = make_uint4(low[0], low[1], low[2], low[3]);
                *(uint4*)(at + to[1]) = make_uint4(high[0], high[1], high[2], high[3]);
            } else {
                *(uint4*)(at + to[0]) = make_uint4(low[0], high[0], low[1], high[1]);
                *(uint4*)(at + to[1]) = make_uint4(low[2], high[2], low[3], high[3]);
            }
        }
    }
};

template <u32 DIM>
__device__ inline void produce_f8(const Shared& tile, unsigned char* memory, float* scales, u32 barriers,
                                  const unsigned char* k, const unsigned char* v, const u32* table, u32 kv_heads, u32 kv_head,
                                  u32 reach) {
    u32 full_k = barriers, empty_k = full_k + 8 * STAGES, full_v = empty_k + 8 * STAGES, empty_v = full_v + 8 * STAGES;
    u32 empty_scales = empty_v + 8 * STAGES, first_step = reach / STEP_KEYS;
    u32 live = tile.position + tile.rows - first_step * STEP_KEYS, steps = (live + STEP_KEYS - 1) / STEP_KEYS;
    u32 skip = reach % STEP_KEYS / KV_BLOCK, thread = threadIdx.x % 128;
    table += first_step * STEP_BLOCKS;
    Widening<DIM> w(k, v, table, kv_heads, kv_head, skip, live);
    constexpr u32 BATCHES = Widening<DIM>::BATCHES;
    uint4 raw[2][4];
    w.load(raw[0], 0, true, 0);
    for (u32 i = 0; i < steps; ++i) {
        u32 at = i % STAGES, parity = (i / STAGES & 1) ^ 1, own = thread / KV_BLOCK; // an unused stage counts as empty
        float k_scale = 0.0f, v_scale = 0.0f;
        if ((i > 0 || own >= skip) && i * STEP_KEYS + own * KV_BLOCK < live) {
            u64 head = (u64)table[i * STEP_BLOCKS + own] * kv_heads + kv_head;
            u64 from = head * f8_block_bytes(DIM) + KV_BLOCK * DIM + thread % KV_BLOCK * 4;
            k_scale = *(const float*)(k + from);
            v_scale = *(const float*)(v + from);
        }
#pragma unroll
        for (u32 b = 0; b < 2 * BATCHES; ++b) {
            bool last = b + 1 == 2 * BATCHES, keys = b < BATCHES, next_keys = last || b + 1 < BATCHES;
            w.load(raw[(b + 1) % 2], last ? i + 1 : i, next_keys, (b + 1) % BATCHES);
            unsigned char* to = memory + (2 * at + (keys ? 0 : 1)) * STEP_BYTES<DIM>;
            if (b == 0) barrier_wait(empty_k + 8 * at, parity);
            if (b == BATCHES) barrier_wait(empty_v + 8 * at, parity);
            if (keys) {
                w.template store<true>(to, raw[b % 2], b);
            } else {
                w.template store<false>(to, raw[b % 2], b - BATCHES);
            }
            if (b + 1 == BATCHES) {
                barrier_wait(empty_scales, (i & 1) ^ 1);
                scales[thread] = k_scale;
                scales[STEP_KEYS + thread] = v_scale;
            }
            if ((b + 1) % BATCHES == 0) {
                async_fence();
                warp_arrive((keys ? full_k : full_v) + 8 * at);
            }
        }
    }
}

template <u32 DIM, bool EXT, bool F8>
__device__ inline void consume(const Shared& tile, unsigned char* memory, u32 q_offset, const float* scales, u32 barriers,
                               const float* qkv, bf16* a, u32 heads, u32 kv_heads, u32 kv_head, float t,
                               const Extension& ext) {
    constexpr u32 PANELS = DIM / PANEL_DIMS, OUT = DIM / 2;
    u32 part = __shfl_sync(0xffffffffu, threadIdx.x / 128, 0), thread = threadIdx.x % 128, warp = thread / 32, lane = thread % 32, quad = lane % 4;
    u32 full_k = barriers, empty_k = full_k + 8 * STAGES, full_v = empty_k + 8 * STAGES, empty_v = full_v + 8 * STAGES;
    u32 group = heads / kv_heads, pairs = tile.rows * group, first_head = kv_head * group;
    u32 reach = EXT ? ext.reach(tile.position) : 0, first_step = reach / STEP_KEYS;
    // Steps and the keys of the last row count from `first_step` on.
    u32 live = tile.position + tile.rows - first_step * STEP_KEYS, steps = (live + STEP_KEYS - 1) / STEP_KEYS;
    u32 my_pairs = min(PART, pairs - part * PART); // at least 1
    u32 first_position = tile.position + part * PART / group; // of the part's first pair

    // The queries, bf16, [panel, 64 pairs, 64 dims] with swizzled chunks.
    u32 q_part = q_offset + part * PANELS * PART * 128;
#pragma unroll 4
    for (u32 i = thread; i < PART * (DIM / 8); i += 128) {
        u32 p = i / (DIM / 8), chunk = i % (DIM / 8), pair = part * PART + p;
        uint4 packed = make_uint4(0, 0, 0, 0);
        if (p < my_pairs) {
            const float* from =
                qkv + ((u64)(tile.row + pair / group) * (heads + 2 * kv_heads) + first_head + pair % group) * DIM;
            if (F8) {
                u32 words[4];
#pragma unroll
                for (u32 w = 0; w < 4; ++w) {
                    float2 x = *(const float2*)(from + chunk / 2 * 16 + chunk % 2 * 2 + 4 * w);
                    words[w] = pack_f16(x.x, x.y);
                }
                packed = make_uint4(words[0], words[1], words[2], words[3]);
            } else {
                float4 x = *(const float4*)(from + chunk * 8), y = *(const float4*)(from + chunk * 8 + 4);
                packed = make_uint4(pack_bf16(x.x, x.y), pack_bf16(x.z, x.w), pack_bf16(y.x, y.y), pack_bf16(y.z, y.w));
            }
        }
        *(uint4*)(memory + q_part + chunk / 8 * (PART * 128) + p * 128 + (chunk % 8 ^ p % 8) * 16) = packed;
    }
    async_fence();
    asm volatile("bar.sync %0, 128;" ::"r"(part + 1) : "memory");

    u32 position[2], from_key[2], last_reach = 0; // of the part's last pair
#pragma unroll
    for (u32 h = 0; h < 2; ++h) {
        u32 p = min(16 * warp + lane / 4 + 8 * h, my_pairs - 1);
        position[h] = tile.position + (part * PART + p) / group;
        from_key[h] = EXT ? ext.reach(position[h]) : 0;
    }
    if (EXT) last_reach = ext.reach(tile.position + (part * PART + my_pairs - 1) / group);
    u32 base = __shfl_sync(0xffffffffu, shared_address(memory), 0);
    u64 q_matrix = matrix_at(base + q_part, 16, 1024);
    float4* total = (float4*)(memory + q_offset + PAIRS * DIM * 2) + part * 128 * (OUT / 4) + thread; // stride 128
    float cut_m[2] = {minus_infinity(), minus_infinity()}, cut_l[2] = {0.0f, 0.0f}, cut_o[OUT];
    float total_m[2] = {minus_infinity(), minus_infinity()}, total_l[2] = {0.0f, 0.0f};
    float score[64];
    u32 weights[8][4];

    auto make_scores = [&](u32 i) {
        u64 k_matrix = matrix_at(base + i % STAGES * 2 * STEP_BYTES<DIM>, 16, GROUP_BYTES<DIM>);
        barrier_wait(full_k + 8 * (i % STAGES), i / STAGES & 1);
        settle(score);
        wgmma_begin();
#pragma unroll
        for (u32 c = 0; c < DIM / 16; ++c) {
            u64 q_off = (c / 4 * (PART * 128) + c % 4 * 32) / 16, k_off = (c / 4 * ATOM_BYTES + c % 4 * 32) / 16;
            if (F8) {
                wgmma_scores_f16(score, q_matrix + q_off, k_matrix + k_off, c);
            } else {
                wgmma_scores(score, q_matrix + q_off, k_matrix + k_off, c);
            }
        }
        wgmma_commit();
    };
    auto add_values = [&](u32 i) {
        u64 v_matrix = matrix_at(base + (2 * (i % STAGES) + 1) * STEP_BYTES<DIM>, ATOM_BYTES, GROUP_BYTES<DIM>);
        settle(cut_o);
        wgmma_begin();
#pragma unroll
        for (u32 c = 0; c < STEP_KEYS / 16; ++c) {
            wgmma_values(cut_o, weights[c], v_matrix + c * (2 * GROUP_BYTES<DIM> / 16),
                         c == 0 ? i > 0 && (first_step + i) % 2 : 1);
        }
        wgmma_commit();
    };
    // Scores become weights in place; c is what the cut's output is scaled by. A cut takes two steps.
    auto weigh = [&](u32 i, float(&c)[2]) {
        u32 step_first = (first_step + i) * STEP_KEYS;
        if (F8) {
#pragma unroll
            for (u32 n = 0; n < 16; ++n) {
                float2 by = *(const float2*)(scales + 8 * n + 2 * quad);
                score[4 * n] *= by.x, score[4 * n + 1] *= by.y, score[4 * n + 2] *= by.x, score[4 * n + 3] *= by.y;
            }
        }
        if (EXT && ext.cap > 0.0f) {
#pragma unroll
            for (u32 e = 0; e < 64; ++e) score[e] = ext.capped(score[e]);
        }
        if (step_first + STEP_KEYS - 1 > first_position || (EXT && step_first < last_reach)) {
#pragma unroll
            for (u32 e = 0; e < 64; ++e) {
                u32 key = step_first + e / 4 * 8 + 2 * quad + e % 2;
                if (key > position[e / 2 % 2] || (EXT && key < from_key[e / 2 % 2])) score[e] = minus_infinity();
            }
        }
        bool fresh = i == 0 || (first_step + i) % 2 == 0;
        float offset[2], largest[2][2], runs[2][4];
#pragma unroll
        for (u32 h = 0; h < 2; ++h) {
            if (fresh) {
                cut_m[h] = minus_infinity();
                cut_l[h] = 0.0f;
            }
            largest[h][0] = fmaxf(cut_m[h], score[2 * h]);
            largest[h][1] = score[2 * h + 1];
        }
#pragma unroll
        for (u32 n = 1; n < 16; ++n) {
#pragma unroll
            for (u32 e = 0; e < 4; ++e) largest[e / 2][e % 2] = fmaxf(largest[e / 2][e % 2], score[4 * n + e]);
        }
#pragma unroll
        for (u32 h = 0; h < 2; ++h) {
            float m = fmaxf(largest[h][0], largest[h][1]);
            m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, 1));
            m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, 2));
            c[h] = rescale(cut_m[h], m, t);
            offset[h] = offset_of(m, t);
            cut_m[h] = m;
        }
#pragma unroll
        for (u32 n = 0; n < 16; ++n) {
            float2 by = make_float2(1.0f, 1.0f);
            if (F8) by = *(const float2*)(scales + STEP_KEYS + 8 * n + 2 * quad);
#pragma unroll
            for (u32 h = 0; h < 2; ++h) {
                float low = ex2(fmaf(score[4 * n + 2 * h], t, -offset[h]));
                float high = ex2(fmaf(score[4 * n + 2 * h + 1], t, -offset[h]));
                runs[h][n / 4] = n % 4 == 0 ? low : runs[h][n / 4] + low;
                runs[h][n / 4] = runs[h][n / 4] + high;
                if (F8) {
                    // A key that does not count may have any scale.
                    low = score[4 * n + 2 * h] == minus_infinity() ? 0.0f : low * by.x;
                    high = score[4 * n + 2 * h + 1] == minus_infinity() ? 0.0f : high * by.y;
                }
                score[4 * n + 2 * h] = low;
                score[4 * n + 2 * h + 1] = high;
            }
        }
#pragma unroll
        for (u32 h = 0; h < 2; ++h) {
            float fold = (runs[h][0] + runs[h][1]) + (runs[h][2] + runs[h][3]);
            cut_l[h] = fmaf(cut_l[h], c[h], fold);
        }
        if (F8) {
            warp_arrive(empty_v + 8 * STAGES); // the scales' place
        }
    };
    // Their registers are read until the values are added up.
    auto hold_weights = [&] {
#pragma unroll
        for (u32 e = 0; e < 32; ++e) asm volatile("" : "+r"(weights[e / 4][e % 4])::"memory");
    };
    // Values that are not the tile's may be anything, and 0 x NaN would be NaN: those of blocks that were not loaded, before
    // its first step's, and those past its last row.
    auto clear = [&](u32 i, u32 from, u32 end) {
        clear_values<DIM>(memory + (2 * (i % STAGES) + 1) * STEP_BYTES<DIM>, from, end, thread, 128);
        async_fence();
        asm volatile("bar.sync %0, 128;" ::"r"(part + 1) : "memory");
    };
    u32 skip = reach % STEP_KEYS / KV_BLOCK * KV_BLOCK; // keys of the first step that were not loaded
    auto pack_weights = [&] {
#pragma unroll
        for (u32 e = 0; e < 32; ++e) weights[e / 4][e % 4] = pack_bf16(score[2 * e], score[2 * e + 1]);
    };
    // Merges a cut whose m and l are given; x and y scale the total and the cut.
    auto merge_state = [&](const float(&m)[2], const float(&l_of)[2], float(&x)[2], float(&y)[2]) {
#pragma unroll
        for (u32 h = 0; h < 2; ++h) {
            float l = l_of[h];
            l += __shfl_xor_sync(0xffffffffu, l, 1);
            l += __shfl_xor_sync(0xffffffffu, l, 2);
            float larger = fmaxf(total_m[h], m[h]);
            x[h] = rescale(total_m[h], larger, t);
            y[h] = rescale(m[h], larger, t);
            total_l[h] = fmaf(l, y[h], total_l[h] * x[h]);
            total_m[h] = larger;
        }
    };
#pragma unroll
    for (u32 n = 0; n < OUT / 4; ++n) total[n * 128] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);

    float c[2];
    make_scores(0);
    wgmma_wait<0>();
    settle(score);
    warp_arrive(empty_k);
    weigh(0, c);
    pack_weights();
    for (u32 i = 0; i + 1 < steps; ++i) {
        make_scores(i + 1);
        barrier_wait(full_v + 8 * (i % STAGES), i / STAGES & 1);
        if (EXT && !F8 && i == 0 && skip > 0) clear(0, 0, skip);
        add_values(i);
        wgmma_wait<1>();
        settle(score);
        warp_arrive(empty_k + 8 * ((i + 1) % STAGES));
        float m[2] = {cut_m[0], cut_m[1]}, l[2] = {cut_l[0], cut_l[1]};
        weigh(i + 1, c);
        wgmma_wait<0>();
        settle(cut_o);
        hold_weights();
        warp_arrive(empty_v + 8 * (i % STAGES));
        if ((first_step + i) % 2 == 0) {
#pragma unroll
            for (u32 e = 0; e < OUT; ++e) cut_o[e] *= c[e / 2 % 2];
        } else {
            float x[2], y[2];
            merge_state(m, l, x, y);
#pragma unroll
            for (u32 n = 0; n < OUT / 4; ++n) {
                float4 o = total[n * 128];
                total[n * 128] = make_float4(fmaf(cut_o[4 * n], y[0], o.x * x[0]), fmaf(cut_o[4 * n + 1], y[0], o.y * x[0]),
                                             fmaf(cut_o[4 * n + 2], y[1], o.z * x[1]), fmaf(cut_o[4 * n + 3], y[1], o.w * x[1]));
            }
        }
        pack_weights();
    }
    {
        u32 i = steps - 1, at = i % STAGES, keys = live - i * STEP_KEYS;
        barrier_wait(full_v + 8 * at, i / STAGES & 1);
        if (EXT && !F8 && i == 0 && skip > 0) clear(0, 0, skip);
        if (!F8 && keys < STEP_KEYS) clear(i, keys, STEP_KEYS);
        add_values(i);
        wgmma_wait<0>();
        settle(cut_o);
        float x[2], y[2];
        merge_state(cut_m, cut_l, x, y);
#pragma unroll
        for (u32 n = 0; n < OUT / 4; ++n) {
            float4 o = total[n * 128];
            cut_o[4 * n] = fmaf(cut_o[4 * n], y[0], o.x * x[0]);
            cut_o[4 * n + 1] = fmaf(cut_o[4 * n + 1], y[0], o.y * x[0]);
            cut_o[4 * n + 2] = fmaf(cut_o[4 * n + 2], y[1], o.z * x[1]);
            cut_o[4 * n + 3] = fmaf(cut_o[4 * n + 3], y[1], o.w * x[1]);
        }
    }
#pragma unroll
    for (u32 h = 0; h < 2; ++h) {
        u32 p = 16 * warp + lane / 4 + 8 * h, pair = part * PART + p;
        if (p >= my_pairs) continue;
        u32 head = first_head + pair % group;
        float inverse = 1.0f / (EXT ? total_l[h] + ext.sink(head, total_m[h], t) : total_l[h]);
        bf16* to = a + ((u64)(tile.row + pair / group) * heads + head) * DIM + 2 * quad;
#pragma unroll
        for (u32 n = 0; n < OUT / 4; ++n) {
            *(u32*)(to + 8 * n) = pack_bf16(cut_o[4 * n + 2 * h] * inverse, cut_o[4 * n + 2 * h + 1] * inverse);
        }
    }
}

template <u32 DIM, bool EXT, bool F8, typename T>
__device__ inline void attention(const float* qkv, const T* k, const T* v, const u32* tables, bf16* a, u32 heads, u32 kv_heads,
                                 u32 blocks_per_slot, float scale, Extension ext, Step step) {
    __shared__ __align__(16) float scales[F8 ? 2 * STEP_KEYS : 1]; // of a step's keys, of its values
    extern __shared__ unsigned char raw[];
    __shared__ Shared s;
    pdl_launch();
    u32 group = heads / kv_heads, per_tile = PAIRS / group, kv_head = blockIdx.x;
    unsigned char* memory = raw + (1024 - shared_address(raw) % 1024) % 1024;
    u32 barriers = shared_address(s.full_k);
    if (threadIdx.x < 32) find_tile(step, blockIdx.y, per_tile, s);
    __syncthreads();
    u32 rows = s.rows, live = s.position + rows;
    bool good = rows > 0 && live <= blocks_per_slot * KV_BLOCK;
    u32 parts = rows * group > PART ? 2 : 1;
    if (good && threadIdx.x == 0) {
        for (u32 i = 0; i < STAGES; ++i) {
            barrier_init(barriers + 8 * i, F8 ? 4 * WARP_ARRIVALS : 1);
            barrier_init(barriers + 8 * (STAGES + i), 4 * parts * WARP_ARRIVALS);
            barrier_init(barriers + 8 * (2 * STAGES + i), F8 ? 4 * WARP_ARRIVALS : 1);
            barrier_init(barriers + 8 * (3 * STAGES + i), 4 * parts * WARP_ARRIVALS);
        }
        if (F8) barrier_init(barriers + 8 * 4 * STAGES, 4 * parts * WARP_ARRIVALS);
        barrier_init_fence();
    }
    __syncthreads();
    pdl_wait();
    if (!good) {
        if (rows > 0 && threadIdx.x == 0) report(step, FAULT_POSITION, s.slot, live - 1, blocks_per_slot);
        return;
    }
    u32 base = shared_address(memory);
    const u32* table = tables + (u64)s.slot * blocks_per_slot;
    u32 reach = EXT ? ext.reach(s.position) : 0;
    if (threadIdx.x >= 256) {
        if constexpr (F8) {
            leave_registers<72>();
            produce_f8<DIM>(s, memory, scales, barriers, k, v, table, kv_heads, kv_head, reach);
        } else {
            leave_registers<24>();
            if (threadIdx.x < 288) produce<DIM>(s, base, barriers, k, v, table, kv_heads, kv_head, reach);
        }
    } else {
        take_registers<F8 ? 216 : 240>();
        if (threadIdx.x / 128 < parts) {
            consume<DIM, EXT, F8>(s, memory, 2 * STAGES * STEP_BYTES<DIM>, scales, barriers, qkv, a, heads, kv_heads, kv_head,
                                  EXT ? exponent_of(ext, scale) : scale * LOG2_E_F32, ext);
        }
    }
}

#define ATTENTION(DIM, SUFFIX, T, F8)                                                                                 \
    extern "C" __global__ void __launch_bounds__(THREADS, 1)                                                          \
        attention_tile_##SUFFIX(const float* qkv, const T* k, const T* v, const u32* tables, bf16* a, u32 heads,      \
                                u32 kv_heads, u32 head_dim, u32 blocks_per_slot, float scale, const u32* s,           \
                                unsigned char* scratch) {                                                             \
        attention<DIM, false, F8>(qkv, k, v, tables, a, heads, kv_heads, blocks_per_slot, scale, Extension(),         \
                                  Step{s});                                                                           \
    }                                                                                                                 \
    extern "C" __global__ void __launch_bounds__(THREADS, 1)                                                          \
        attention_tile_ext_##SUFFIX(const float* qkv, const T* k, const T* v, const u32* tables, const float* sinks,  \
                                    bf16* a, u32 heads, u32 kv_heads, u32 head_dim, u32 blocks_per_slot, u32 window,  \
                                    u32 has_sinks, float scale, float softcap, const u32* s,                          \
                                    unsigned char* scratch) {                                                         \
        attention<DIM, true, F8>(qkv, k, v, tables, a, heads, kv_heads, blocks_per_slot, scale,                       \
                                 extension(window, sinks, has_sinks, scale, softcap), Step{s});                       \
    }

ATTENTION(64, 64, bf16, false)
ATTENTION(128, 128, bf16, false)
ATTENTION(64, 64_f8, unsigned char, true)
ATTENTION(128, 128_f8, unsigned char, true)
