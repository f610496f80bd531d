// SPDX-License-Identifier: MIT OR Apache-2.0
// attention_bf16, attention_ext_bf16 for steps of many rows: tiles of 128 (row, head) pairs, products by wgmma. Spec cut256_step128_bf16
// (attention.cuh), the bits of attention_split.cu.
//
// A tile is the query heads of one KV head for up to 128 / group consecutive rows of a work item of the step block. Two
// warpgroups take 64 pairs each; one warp brings K, another V, by bulk copies, two steps ahead. While a step's values are added up,
// the next step's scores and their softmax are made. A tile walks all its cuts; the merged total waits in registers and what they
// do not hold in shared memory, where each thread has its part. The last tile of an item comes first: it has the most keys.
//
// A block stays and takes tile after tile of the list of all, there and back (0 to n - 1, n - 1 to 0, and so on), so that each has
// long and short ones. A warp finds them, up to three ahead, and asks for their queries, which are then in L2 when a tile begins. The
// first scores of a tile are made beside the last values of the one before.
//
// Keys in e4m3 are widened to f16 on the way in and values to bf16, by four warps; keys' dims and queries' stand in the order of the
// spec. The scales of a step's keys and values have one place, free again when its weights are made.
//
// block 384; grid any, of one dimension (min(processors, tiles) serves well: one block has a processor); group = heads / kv_heads <=
// 128; dynamic shared memory 7 * 256 * head_dim + 1024 bytes; scratch (a parameter) unused; rows by the step's work list. Buffers
// aligned to 16 bytes, pools to 128. pdl = true.
#include "attention.cuh"
#include "wgmma_attention.cuh"

constexpr u32 PAIRS = 128; // of a tile
constexpr u32 PART = 64;   // of a warpgroup
constexpr u32 THREADS = 384;
constexpr u32 RING = 4; // tiles known
constexpr u32 STAGES = 2;
// float4s of a thread's merged total that it holds in registers; the others lie in shared memory.
template <u32 DIM, bool EXT, bool F8>
constexpr int HOLD = F8 ? 0 : DIM == 64 ? 8 : EXT ? 10 : 12;

struct Tile {
    u32 slot, row, rows, position, kv_head, unused[3]; // rows 0: there is no tile
};

struct Shared {
    u64 full_k[STAGES], empty_k[STAGES], full_v[STAGES], empty_v[STAGES], full_tile[RING], empty_tile[RING], empty_scales, unused;
    Tile tiles[RING];
};
constexpr u32 FULL_K = 0, EMPTY_K = 8 * STAGES, FULL_V = 16 * STAGES, EMPTY_V = 24 * STAGES, FULL_TILE = 32 * STAGES,
              EMPTY_TILE = FULL_TILE + 8 * RING, EMPTY_SCALES = EMPTY_TILE + 8 * RING; // where they lie in it

// Tile `index` of a KV head: the warp looks for it in the work list.
__device__ inline void find_tile(Step step, u32 index, u32 per_tile, Tile& t) {
    u32 lane = threadIdx.x % 32, items = step.w[2], before = 0;
    const uint4* work = (const uint4*)(step.w + step.w[11]); // slot, first row, rows, first position
    if (lane == 0) t.rows = 0;
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
            t.slot = item.x;
            t.row = item.y + offset;
            t.rows = min(per_tile, item.z - offset);
            t.position = item.w + offset;
        }
        before += __shfl_sync(0xffffffffu, sum, 31);
        if (index < before) break;
    }
    __syncwarp();
}

// Brings the tiles of the block into the ring. The blocks take tiles from the list there and back.
struct Finder {
    Shared& s;
    u32 barriers, turn, per_tile, kv_heads, blocks_per_slot;
    Step step;
    // Tile `j` of the block; false where there is none.
    __device__ bool next(u32 j) {
        Tile& t = s.tiles[j % RING];
        barrier_wait(barriers + EMPTY_TILE + 8 * (j % RING), (j / RING & 1) ^ 1);
        bool any;
        for (;;) {
            u32 n = turn * gridDim.x + (turn % 2 ? gridDim.x - 1 - blockIdx.x : blockIdx.x);
            ++turn;
            if (threadIdx.x % 32 == 0) t.kv_head = n % kv_heads;
            find_tile(step, n / kv_heads, per_tile, t);
            any = t.rows > 0;
            if (!any || t.position + t.rows <= blocks_per_slot * KV_BLOCK) break;
            if (threadIdx.x % 32 == 0) report(step, FAULT_POSITION, t.slot, t.position + t.rows - 1, blocks_per_slot);
            __syncwarp();
        }
        warp_arrive(barriers + FULL_TILE + 8 * (j % RING));
        return any;
    }
    // The queries of a tile, to L2.
    __device__ void ask(const Tile& t, const float* qkv, u32 heads, u32 dim) const {
        u32 group = heads / kv_heads;
        for (u32 row = threadIdx.x % 32; row < t.rows; row += 32) {
            const float* from = qkv + ((u64)(t.row + row) * (heads + 2 * kv_heads) + t.kv_head * group) * dim;
            asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(group * dim * 4) : "memory");
        }
    }
};

// Volatile, that ptxas keeps them in their order: all loads first would take too many registers.
__device__ inline float4 load_total(u32 at) {
    float4 x;
    asm volatile("ld.volatile.shared.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w) : "r"(at) : "memory");
    return x;
}
__device__ inline float2 load_half(u32 at) {
    float2 x;
    asm volatile("ld.volatile.shared.v2.f32 {%0, %1}, [%2];" : "=f"(x.x), "=f"(x.y) : "r"(at) : "memory");
    return x;
}
__device__ inline void store_total(u32 at, float4 x) {
    asm volatile("st.volatile.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(at), "f"(x.x), "f"(x.y), "f"(x.z), "f"(x.w) : "memory");
}

// The warp's value, known to be one.
__device__ inline u32 uniform(u32 x) { return __shfl_sync(0xffffffffu, x, 0); }
// A value that ptxas keeps and does not make again.
__device__ inline u32 kept(u32 x) {
    asm volatile("" : "+r"(x));
    return x;
}

template <u32 REGISTERS>
__device__ inline void take_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}
template <u32 REGISTERS>
__device__ inline void leave_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}

// The keys of a tile, in steps from the first that one of its rows reaches on.
struct Span {
    u32 first_step, skip, live, steps; // blocks of the first step that are not loaded, keys
    __device__ Span(const Tile& t, u32 reach)
        : first_step(reach / STEP_KEYS), skip(reach % STEP_KEYS / KV_BLOCK), live(t.position + t.rows - first_step * STEP_KEYS),
          steps((live + STEP_KEYS - 1) / STEP_KEYS) {}
};

// A warp brings the keys, another the values; `memory`: their stages, `full` and `empty` their barriers.
template <u32 DIM, bool EXT>
__device__ inline void produce(const Shared& s, u32 barriers, u32 memory, u32 full, u32 empty, const bf16* pool, const u32* tables,
                               u32 kv_heads, u32 blocks_per_slot, const Extension& ext) {
    u32 lane = threadIdx.x % 32;
    for (u32 j = 0, g = 0;; ++j) {
        barrier_wait(barriers + FULL_TILE + 8 * (j % RING), j / RING & 1);
        const Tile& t = s.tiles[j % RING];
        if (t.rows == 0) break;
        Span span(t, EXT ? ext.reach(t.position) : 0);
        const u32* table = tables + (u64)t.slot * blocks_per_slot + span.first_step * STEP_BLOCKS;
        u32 kv_head = t.kv_head;
        for (u32 i = 0; i < span.steps; ++i, ++g) {
            u32 blocks = min(STEP_BLOCKS, (span.live - i * STEP_KEYS + KV_BLOCK - 1) / KV_BLOCK);
            u32 first = i == 0 ? span.skip : 0, block = lane >= first && lane < blocks ? table[i * STEP_BLOCKS + lane] : 0;
            u32 at = g % STAGES; // an unused stage counts as empty
            barrier_wait(empty + 8 * at, (g / STAGES & 1) ^ 1);
            load_step<DIM>(memory + at * STEP_BYTES<DIM>, pool, kv_heads, kv_head, block, first, blocks, full + 8 * at);
        }
        warp_arrive(barriers + EMPTY_TILE + 8 * (j % RING));
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

template <u32 DIM, bool EXT>
__device__ inline void produce_f8(Finder finder, unsigned char* memory, float* scales, const float* qkv, const unsigned char* k,
                                  const unsigned char* v, const u32* tables, u32 heads, const Extension& ext) {
    constexpr u32 BATCHES = Widening<DIM>::BATCHES;
    u32 thread = threadIdx.x % 128, own = thread / KV_BLOCK, kv_heads = finder.kv_heads, barriers = finder.barriers;
    for (u32 j = 0, g = 0;; ++j) {
        barrier_wait(barriers + FULL_TILE + 8 * (j % RING), j / RING & 1);
        const Tile& t = finder.s.tiles[j % RING];
        if (t.rows == 0) break;
        Span span(t, EXT ? ext.reach(t.position) : 0);
        const u32* table = tables + (u64)t.slot * finder.blocks_per_slot + span.first_step * STEP_BLOCKS;
        u32 kv_head = t.kv_head;
        Widening<DIM> w(k, v, table, kv_heads, kv_head, span.skip, span.live);
        if (thread < 32) {
            finder.next(j + 1);
            finder.ask(finder.s.tiles[(j + 1) % RING], qkv, heads, DIM);
        }
        uint4 raw[2][4];
        w.load(raw[0], 0, true, 0);
        for (u32 i = 0; i < span.steps; ++i, ++g) {
            u32 at = g % 2, parity = (g / 2 & 1) ^ 1; // an unused stage counts as empty
            float k_scale = 0.0f, v_scale = 0.0f;
            if ((i > 0 || own >= span.skip) && i * STEP_KEYS + own * KV_BLOCK < span.live) {
                u64 head = (u64)table[i * STEP_BLOCKS + own] * kv_heads + kv_head;
                u64 from = head * f8_block_bytes(DIM) + KV_BLOCK * DIM + thread % KV_BLOCK * 4;
                k_scale = *(const float*)(k + from);
                v_scale = *(const float*)(v + from);
            }
#pragma unroll
            for (u32 b = 0; b < 2 * BATCHES; ++b) {
                bool last = b + 1 == 2 * BATCHES, keys = b < BATCHES, next_keys = last || b + 1 < BATCHES;
                w.load(raw[(b + 1) % 2], last ? i + 1 : i, next_keys, (b + 1) % BATCHES);
                unsigned char* to = memory + ((keys ? 0 : 2) + at) * STEP_BYTES<DIM>;
                if (b == 0) barrier_wait(barriers + EMPTY_K + 8 * at, parity);
                if (b == BATCHES) barrier_wait(barriers + EMPTY_V + 8 * at, parity);
                if (keys) {
                    w.template store<true>(to, raw[b % 2], b);
                } else {
                    w.template store<false>(to, raw[b % 2], b - BATCHES);
                }
                if (b + 1 == BATCHES) {
                    barrier_wait(barriers + EMPTY_SCALES, (g & 1) ^ 1);
                    scales[thread] = k_scale;
                    scales[STEP_KEYS + thread] = v_scale;
                }
                if ((b + 1) % BATCHES == 0) {
                    async_fence();
                    warp_arrive(barriers + (keys ? FULL_K : FULL_V) + 8 * at);
                }
            }
        }
        warp_arrive(barriers + EMPTY_TILE + 8 * (j % RING));
    }
}

template <u32 DIM, bool EXT, bool F8>
__device__ inline void consume(const Shared& s, unsigned char* memory, const float* scales, u32 barriers, const float* qkv, bf16* a,
                               u32 heads, u32 kv_heads, float t, const Extension& ext) {
    constexpr u32 PANELS = DIM / PANEL_DIMS, OUT = DIM / 2;
    constexpr int HOLDS = HOLD<DIM, EXT, F8>, QUARTERS = OUT / 4, AT_ONCE = EXT && !F8 ? 6 : 4; // of the total, loaded at once
    constexpr u32 QUERIES = 2 * STAGES * STEP_BYTES<DIM>; // their place
    u32 part = __shfl_sync(0xffffffffu, threadIdx.x / 128, 0), thread = threadIdx.x % 128, warp = thread / 32, lane = thread % 32, quad = lane % 4;
    u32 group = heads / kv_heads, inverse_group = (65536 + group - 1) / group; // x / group = x * it / 65536 for x < 128
    u32 base = __shfl_sync(0xffffffffu, shared_address(memory), 0), q_part = QUERIES + part * PANELS * PART * 128;
    u64 q_matrix = matrix_at(base + q_part, 16, 1024);
    u32 total = base + QUERIES + PAIRS * DIM * 2 + (part * 128 * (QUARTERS - HOLDS) + thread) * 16;
    total = kept(total); // float4s, 2048 bytes apart

    // Of the tile whose scores are made: the first key of the step, what follows its last key, keys of its first step not loaded.
    u32 key = 0, end = 0, skip = 0, first_position = 0, last_reach = 0, position[2], from_key[2];
    float cut_m[2], cut_l[2], cut_o[OUT], total_m[2], total_l[2], held[4 * HOLDS + 1];
    float score[64];
    u32 weights[8][4];

    auto meet = [&] { asm volatile("bar.sync %0, 128;" ::"r"(part + 1) : "memory"); };
    // Takes tile `j` with the queries of the part; false where the part has none.
    auto enter = [&](u32 j) {
        barrier_wait(barriers + FULL_TILE + 8 * (j % RING), j / RING & 1);
        const Tile& tile = s.tiles[j % RING];
        u32 rows = uniform(tile.rows), start = uniform(tile.position), pairs = rows * group;
        if (pairs <= part * PART) return false;
        u32 reach = EXT ? ext.reach(start) : 0, last_pair = min(PART, pairs - part * PART) - 1; // of the part
        key = reach / STEP_KEYS * STEP_KEYS, skip = reach % STEP_KEYS / KV_BLOCK * KV_BLOCK, end = start + rows;
        // The queries, bf16, [panel, 64 pairs, 64 dims] with swizzled chunks; pairs past the end as the last one.
        constexpr u32 TURN_PAIRS = 128 / (DIM / 8), BATCH = 4;
        u32 p0 = thread / (DIM / 8), chunk = thread % (DIM / 8);
        const float* head_at = qkv + ((u64)tile.row * (heads + 2 * kv_heads) + tile.kv_head * group) * DIM;
#pragma unroll 1
        for (u32 turn = 0; turn < PART / TURN_PAIRS; turn += BATCH) {
            float x[BATCH][8];
#pragma unroll
            for (u32 n = 0; n < BATCH; ++n) {
                u32 pair = part * PART + min(p0 + (turn + n) * TURN_PAIRS, last_pair), row = pair * inverse_group >> 16;
                const float* from = head_at + ((u64)row * (heads + 2 * kv_heads) + pair - row * group) * DIM;
                if (F8) {
#pragma unroll
                    for (u32 w = 0; w < 4; ++w) *(float2*)&x[n][2 * w] = *(const float2*)(from + chunk / 2 * 16 + chunk % 2 * 2 + 4 * w);
                } else {
                    *(float4*)&x[n][0] = *(const float4*)(from + chunk * 8);
                    *(float4*)&x[n][4] = *(const float4*)(from + chunk * 8 + 4);
                }
            }
            if (turn == 0) meet(); // the part's products with the queries before are done
#pragma unroll
            for (u32 n = 0; n < BATCH; ++n) {
                u32 p = p0 + (turn + n) * TURN_PAIRS, words[4];
#pragma unroll
                for (u32 w = 0; w < 4; ++w) words[w] = F8 ? pack_f16(x[n][2 * w], x[n][2 * w + 1]) : pack_bf16(x[n][2 * w], x[n][2 * w + 1]);
                *(uint4*)(memory + q_part + chunk / 8 * (PART * 128) + p * 128 + (chunk % 8 ^ p % 8) * 16) =
                    make_uint4(words[0], words[1], words[2], words[3]);
            }
        }
        async_fence();
        meet();
        first_position = start + (part * PART * inverse_group >> 16);
        if (EXT) last_reach = ext.reach(start + ((part * PART + last_pair) * inverse_group >> 16));
#pragma unroll
        for (u32 h = 0; h < 2; ++h) {
            position[h] = start + ((part * PART + min(16 * warp + lane / 4 + 8 * h, last_pair)) * inverse_group >> 16);
            from_key[h] = EXT ? ext.reach(position[h]) : 0;
        }
        return true;
    };
    // `g`: steps since the block's start.
    auto wait_k = [&](u32 g) { barrier_wait(barriers + FULL_K + 8 * (g % STAGES), g / STAGES & 1); };
    auto make_scores = [&](u32 g) {
        u64 k_matrix = matrix_at(base + g % STAGES * STEP_BYTES<DIM>, 16, GROUP_BYTES<DIM>);
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
    auto add_values = [&](u32 g, u32 keep) {
        u64 v_matrix = matrix_at(base + (STAGES + g % STAGES) * STEP_BYTES<DIM>, ATOM_BYTES, GROUP_BYTES<DIM>);
        settle(cut_o);
        wgmma_begin();
#pragma unroll
        for (u32 c = 0; c < STEP_KEYS / 16; ++c) {
            wgmma_values(cut_o, weights[c], v_matrix + c * (2 * GROUP_BYTES<DIM> / 16), c == 0 ? keep : 1);
        }
        wgmma_commit();
    };
    // Scores become weights in place; c is what the cut's output is scaled by. A cut takes two steps.
    auto weigh = [&](bool first, float(&c)[2]) {
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
        if (key + STEP_KEYS - 1 > first_position || (EXT && key < last_reach)) {
#pragma unroll
            for (u32 e = 0; e < 64; ++e) {
                u32 at = key + e / 4 * 8 + 2 * quad + e % 2;
                if (at > position[e / 2 % 2] || (EXT && at < from_key[e / 2 % 2])) score[e] = minus_infinity();
            }
        }
        bool fresh = first || key % CUT_KEYS == 0;
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
        if (F8) warp_arrive(barriers + EMPTY_SCALES); // the scales' place
    };
    // Their registers are read until the values are added up.
    auto hold_weights = [&] {
#pragma unroll
        for (u32 e = 0; e < 32; ++e) asm volatile("" : "+r"(weights[e / 4][e % 4])::"memory");
    };
    // Values that are not the tile's may be anything, and 0 x NaN would be NaN: those of blocks that were not loaded, before
    // its first step's, and those past its last row.
    auto clear = [&](u32 g, u32 from, u32 end) {
        clear_values<DIM>(memory + (STAGES + g % STAGES) * STEP_BYTES<DIM>, from, end, thread, 128);
        async_fence();
        meet();
    };
    auto pack_weights = [&] {
#pragma unroll
        for (u32 e = 0; e < 32; ++e) weights[e / 4][e % 4] = pack_bf16(score[2 * e], score[2 * e + 1]);
    };
    auto start_total = [&] {
#pragma unroll
        for (int n = HOLDS; n < QUARTERS; ++n) store_total(total + (n - HOLDS) * 2048, make_float4(0.0f, 0.0f, 0.0f, 0.0f));
#pragma unroll
        for (int e = 0; e < 4 * HOLDS; ++e) held[e] = 0.0f;
        total_m[0] = total_m[1] = minus_infinity();
        total_l[0] = total_l[1] = 0.0f;
    };
    // Merges the cut's m and l; x and y scale the total and the cut.
    float x[2], y[2];
    auto merge_state = [&] {
#pragma unroll
        for (u32 h = 0; h < 2; ++h) {
            float l = cut_l[h];
            l += __shfl_xor_sync(0xffffffffu, l, 1);
            l += __shfl_xor_sync(0xffffffffu, l, 2);
            float larger = fmaxf(total_m[h], cut_m[h]);
            x[h] = rescale(total_m[h], larger, t);
            y[h] = rescale(cut_m[h], larger, t);
            total_l[h] = fmaf(l, y[h], total_l[h] * x[h]);
            total_m[h] = larger;
        }
    };
    auto merge = [&] {
#pragma unroll
        for (int n = HOLDS; n < QUARTERS; n += AT_ONCE) {
            float4 o[AT_ONCE];
#pragma unroll
            for (int e = 0; e < AT_ONCE; ++e) o[e] = load_total(total + (n + e - HOLDS) * 2048);
#pragma unroll
            for (int e = 0; e < AT_ONCE; ++e) {
                const float* cut = cut_o + 4 * (n + e);
                store_total(total + (n + e - HOLDS) * 2048,
                            make_float4(fmaf(cut[0], y[0], o[e].x * x[0]), fmaf(cut[1], y[0], o[e].y * x[0]),
                                        fmaf(cut[2], y[1], o[e].z * x[1]), fmaf(cut[3], y[1], o[e].w * x[1])));
            }
        }
#pragma unroll
        for (int e = 0; e < 4 * HOLDS; ++e) held[e] = fmaf(cut_o[e], y[e / 2 % 2], held[e] * x[e / 2 % 2]);
    };
    // Writes the results of tile `j`, whose last cut is merged.
    auto finish = [&](u32 j) {
        const Tile& tile = s.tiles[j % RING];
        u32 pairs = tile.rows * group, row = tile.row, first_head = tile.kv_head * group;
#pragma unroll
        for (u32 h = 0; h < 2; ++h) {
            u32 pair = part * PART + 16 * warp + lane / 4 + 8 * h, ahead = pair * inverse_group >> 16;
            if (pair < pairs) {
                u32 head = first_head + pair - ahead * group;
                float inverse = 1.0f / (EXT ? total_l[h] + ext.sink(head, total_m[h], t) : total_l[h]);
                bf16* to = a + ((u64)(row + ahead) * heads + head) * DIM + 2 * quad;
#pragma unroll
                for (int n = 0; n < QUARTERS; ++n) {
                    float2 o = n < HOLDS ? make_float2(held[4 * n + 2 * h], held[4 * n + 2 * h + 1]) : load_half(total + (n - HOLDS) * 2048 + 8 * h);
                    *(u32*)(to + 8 * n) = pack_bf16(o.x * inverse, o.y * inverse);
                }
            }
        }
        warp_arrive(barriers + EMPTY_TILE + 8 * (j % RING));
        start_total();
    };

    u32 j = 0, g = 0;
    start_total();
    for (;;) {
        if (!enter(j)) {
            const Tile& tile = s.tiles[j % RING];
            if (tile.rows == 0) break;
            for (u32 steps = Span(tile, EXT ? ext.reach(tile.position) : 0).steps; steps > 0; --steps, ++g) {
                wait_k(g);
                warp_arrive(barriers + EMPTY_K + 8 * (g % STAGES));
                if (F8) warp_arrive(barriers + EMPTY_SCALES);
                barrier_wait(barriers + FULL_V + 8 * (g % STAGES), g / STAGES & 1);
                warp_arrive(barriers + EMPTY_V + 8 * (g % STAGES));
            }
            warp_arrive(barriers + EMPTY_TILE + 8 * (j % RING));
            ++j;
            continue;
        }
        // Step by step until the block ends or a tile comes in which the part has no pairs: while a step's values are added up, the
        // next one's scores and their softmax are made.
        bool first = true; // step of the tile
        float c[2];
        wait_k(g);
        make_scores(g);
        wgmma_wait<0>();
        settle(score);
        warp_arrive(barriers + EMPTY_K + 8 * (g % STAGES));
        weigh(true, c);
        for (;;) {
            pack_weights();
            bool odd = key / STEP_KEYS % 2, last = key + STEP_KEYS >= end;
            u32 keep = odd && !(EXT && first), from = EXT && first ? skip : 0, keys = min(end - key, STEP_KEYS);
            if (last && !enter(j + 1)) {
                barrier_wait(barriers + FULL_V + 8 * (g % STAGES), g / STAGES & 1);
                if (EXT && !F8 && from > 0) clear(g, 0, from);
                if (!F8 && keys < STEP_KEYS) clear(g, keys, STEP_KEYS);
                add_values(g, keep);
                merge_state();
                wgmma_wait<0>();
                settle(cut_o);
                hold_weights();
                warp_arrive(barriers + EMPTY_V + 8 * (g % STAGES));
                ++g;
                merge();
                finish(j);
                ++j;
                break;
            }
            first = last;
            if (!last) key += STEP_KEYS;
            wait_k(g + 1);
            make_scores(g + 1);
            barrier_wait(barriers + FULL_V + 8 * (g % STAGES), g / STAGES & 1);
            if (EXT && !F8 && from > 0) clear(g, 0, from);
            if (!F8 && keys < STEP_KEYS) clear(g, keys, STEP_KEYS);
            add_values(g, keep);
            if (odd || last) merge_state();
            wgmma_wait<1>();
            settle(score);
            warp_arrive(barriers + EMPTY_K + 8 * ((g + 1) % STAGES));
            weigh(first, c);
            // A wait in each branch and not alike, for ptxas moves one before them up to the head of the softmax.
            if (odd || last) {
                asm volatile("wgmma.wait_group.sync.aligned 0; // before a merge" ::: "memory");
                settle(cut_o);
                hold_weights();
                warp_arrive(barriers + EMPTY_V + 8 * (g % STAGES));
                merge();
                if (last) {
                    finish(j);
                    ++j;
                }
            } else {
                wgmma_wait<0>();
                settle(cut_o);
                hold_weights();
                warp_arrive(barriers + EMPTY_V + 8 * (g % STAGES));
#pragma unroll
                for (u32 e = 0; e < OUT; ++e) cut_o[e] *= c[e / 2 % 2];
            }
            ++g;
        }
    }
}

template <u32 DIM, bool EXT, bool F8, typename T>
__device__ inline void attention(const float* qkv, const T* k, const T* v, const u32* tables, bf16* a, u32 heads, u32 kv_heads,
                                 u32 blocks_per_slot, float scale, Extension ext, Step step) {
    __shared__ __align__(16) float scales[F8 ? 2 * STEP_KEYS : 1]; // of a step's keys, of its values
    extern __shared__ unsigned char raw[];
    __shared__ __align__(16) Shared s;
    pdl_launch();
    unsigned char* memory = raw + (1024 - shared_address(raw) % 1024) % 1024;
    u32 barriers = shared_address(&s);
    if (threadIdx.x == 0) {
        for (u32 i = 0; i < STAGES; ++i) {
            barrier_init(barriers + FULL_K + 8 * i, F8 ? 4 * WARP_ARRIVALS : 1);
            barrier_init(barriers + EMPTY_K + 8 * i, 8 * WARP_ARRIVALS);
            barrier_init(barriers + FULL_V + 8 * i, F8 ? 4 * WARP_ARRIVALS : 1);
            barrier_init(barriers + EMPTY_V + 8 * i, 8 * WARP_ARRIVALS);
        }
        for (u32 i = 0; i < RING; ++i) {
            barrier_init(barriers + FULL_TILE + 8 * i, WARP_ARRIVALS);
            barrier_init(barriers + EMPTY_TILE + 8 * i, (F8 ? 12 : 10) * WARP_ARRIVALS);
        }
        barrier_init(barriers + EMPTY_SCALES, 8 * WARP_ARRIVALS);
        barrier_init_fence();
    }
    __syncthreads();
    Finder finder{s, barriers, 0, PAIRS / (heads / kv_heads), kv_heads, blocks_per_slot, step};
    bool any = false;
    if (threadIdx.x / 32 == (F8 ? 8 : 9)) any = finder.next(0);
    pdl_wait();
    if (threadIdx.x >= 256) {
        if constexpr (F8) {
            leave_registers<88>();
            produce_f8<DIM, EXT>(finder, memory, scales, qkv, k, v, tables, heads, ext);
        } else {
            leave_registers<24>();
            u32 base = shared_address(memory);
            if (threadIdx.x < 288) {
                produce<DIM, EXT>(s, barriers, base, barriers + FULL_K, barriers + EMPTY_K, k, tables, kv_heads, blocks_per_slot, ext);
            } else if (threadIdx.x >= 352) {
                produce<DIM, EXT>(s, barriers, base + STAGES * STEP_BYTES<DIM>, barriers + FULL_V, barriers + EMPTY_V, v, tables,
                                  kv_heads, blocks_per_slot, ext);
            } else if (threadIdx.x < 320) {
                for (u32 j = 1; any; ++j) {
                    any = finder.next(j);
                    finder.ask(s.tiles[j % RING], qkv, heads, DIM);
                }
            }
        }
    } else {
        take_registers<F8 ? 208 : 240>();
        consume<DIM, EXT, F8>(s, memory, scales, barriers, qkv, a, heads, kv_heads, EXT ? exponent_of(ext, scale) : scale * LOG2_E_F32, ext);
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
