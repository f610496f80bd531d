// SPDX-License-Identifier: MIT OR Apache-2.0
// attention_bf16, attention_ext_bf16 for steps of many rows: tiles of 128 (row, head) pairs, products by wgmma. Spec cut256_step128_bf16
// (attention.cuh), the bits of attention_split.cu.
//
// A tile is the query heads of one KV head for up to 128 / group consecutive rows of a work item of the step block. Two
// warpgroups take 64 pairs each; one warp brings K and V by bulk copies, two steps ahead. While a step's values are added up, the
// next step's scores and their softmax are made. A tile walks all its cuts; the merged total waits in shared memory, where each
// thread has its part. The last tile of an item comes first: it has the most keys.
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
    u64 full_k[STAGES], empty_k[STAGES], full_v[STAGES], empty_v[STAGES];
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

template <u32 DIM, bool EXT>
__device__ inline void consume(const Shared& tile, unsigned char* memory, u32 q_offset, u32 barriers, const float* qkv,
                               bf16* a, u32 heads, u32 kv_heads, u32 kv_head, float t, const Extension& ext) {
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
                qkv + ((u64)(tile.row + pair / group) * (heads + 2 * kv_heads) + first_head + pair % group) * DIM + chunk * 8;
            float4 x = *(const float4*)from, y = *(const float4*)(from + 4);
            packed = make_uint4(pack_bf16(x.x, x.y), pack_bf16(x.z, x.w), pack_bf16(y.x, y.y), pack_bf16(y.z, y.w));
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
            wgmma_scores(score, q_matrix + q_off, k_matrix + k_off, c);
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
#pragma unroll
            for (u32 h = 0; h < 2; ++h) {
                float low = ex2(fmaf(score[4 * n + 2 * h], t, -offset[h]));
                float high = ex2(fmaf(score[4 * n + 2 * h + 1], t, -offset[h]));
                runs[h][n / 4] = n % 4 == 0 ? low : runs[h][n / 4] + low;
                runs[h][n / 4] = runs[h][n / 4] + high;
                score[4 * n + 2 * h] = low;
                score[4 * n + 2 * h + 1] = high;
            }
        }
#pragma unroll
        for (u32 h = 0; h < 2; ++h) {
            float fold = (runs[h][0] + runs[h][1]) + (runs[h][2] + runs[h][3]);
            cut_l[h] = fmaf(cut_l[h], c[h], fold);
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
    if (lane == 0) barrier_arrive(empty_k);
    weigh(0, c);
    pack_weights();
    for (u32 i = 0; i + 1 < steps; ++i) {
        make_scores(i + 1);
        barrier_wait(full_v + 8 * (i % STAGES), i / STAGES & 1);
        if (EXT && i == 0 && skip > 0) clear(0, 0, skip);
        add_values(i);
        wgmma_wait<1>();
        settle(score);
        if (lane == 0) barrier_arrive(empty_k + 8 * ((i + 1) % STAGES));
        float m[2] = {cut_m[0], cut_m[1]}, l[2] = {cut_l[0], cut_l[1]};
        weigh(i + 1, c);
        wgmma_wait<0>();
        settle(cut_o);
        hold_weights();
        if (lane == 0) barrier_arrive(empty_v + 8 * (i % STAGES));
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
        if (EXT && i == 0 && skip > 0) clear(0, 0, skip);
        if (keys < STEP_KEYS) clear(i, keys, STEP_KEYS);
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

template <u32 DIM, bool EXT>
__device__ inline void attention(const float* qkv, const bf16* k, const bf16* v, const u32* tables, bf16* a, u32 heads,
                                 u32 kv_heads, u32 blocks_per_slot, float scale, Extension ext, Step step) {
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
            barrier_init(barriers + 8 * i, 1);
            barrier_init(barriers + 8 * (STAGES + i), 4 * parts);
            barrier_init(barriers + 8 * (2 * STAGES + i), 1);
            barrier_init(barriers + 8 * (3 * STAGES + i), 4 * parts);
        }
        barrier_init_fence();
    }
    __syncthreads();
    pdl_wait();
    if (!good) {
        if (rows > 0 && threadIdx.x == 0) report(step, FAULT_POSITION, s.slot, live - 1, blocks_per_slot);
        return;
    }
    u32 base = shared_address(memory);
    if (threadIdx.x >= 256) {
        leave_registers<24>();
        if (threadIdx.x < 288) {
            produce<DIM>(s, base, barriers, k, v, tables + (u64)s.slot * blocks_per_slot, kv_heads, kv_head,
                         EXT ? ext.reach(s.position) : 0);
        }
    } else {
        take_registers<240>();
        if (threadIdx.x / 128 < parts) {
            consume<DIM, EXT>(s, memory, 2 * STAGES * STEP_BYTES<DIM>, barriers, qkv, a, heads, kv_heads, kv_head,
                              EXT ? exponent_of(ext, scale) : scale * LOG2_E_F32, ext);
        }
    }
}

#define ATTENTION(DIM)                                                                                                \
    extern "C" __global__ void __launch_bounds__(THREADS, 1)                                                          \
        attention_tile_##DIM(const float* qkv, const bf16* k, const bf16* v, const u32* tables, bf16* a, u32 heads,   \
                             u32 kv_heads, u32 head_dim, u32 blocks_per_slot, float scale, const u32* s,              \
                             unsigned char* scratch) {                                                                \
        attention<DIM, false>(qkv, k, v, tables, a, heads, kv_heads, blocks_per_slot, scale, Extension(), Step{s});   \
    }                                                                                                                 \
    extern "C" __global__ void __launch_bounds__(THREADS, 1)                                                          \
        attention_tile_ext_##DIM(const float* qkv, const bf16* k, const bf16* v, const u32* tables,                   \
                                 const float* sinks, bf16* a, u32 heads, u32 kv_heads, u32 head_dim,                  \
                                 u32 blocks_per_slot, u32 window, u32 has_sinks, float scale, float softcap,          \
                                 const u32* s, unsigned char* scratch) {                                              \
        attention<DIM, true>(qkv, k, v, tables, a, heads, kv_heads, blocks_per_slot, scale,                           \
                             extension(window, sinks, has_sinks, scale, softcap), Step{s});                           \
    }

ATTENTION(64)
ATTENTION(128)
