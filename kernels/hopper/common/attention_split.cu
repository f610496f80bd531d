// SPDX-License-Identifier: MIT OR Apache-2.0
// attention_bf16, attention_ext_bf16 for steps of few rows (heads of 256 columns: of any): the cuts of a row are spread over blocks, products by mma.sync m16n8k16. Spec
// cut256_step128_bf16 (attention.cuh), the bits of attention_tile.cu.
//
// A *tile* is the query heads of one KV head for up to 16 / group consecutive rows of a sequence, at most 16 (row, head)
// pairs; tiles start at positions that are multiples of 16 / group. The block of a row that does not open a tile leaves at
// once. The tile's cuts go to `splits` blocks (gridDim.z at most); each cut's partial is written to scratch and the last block
// to arrive merges them in ascending order. Block 0 of a tile merges its own cuts in registers. If the scratch has fewer
// slots for a row than it has cuts, one block walks them all, with the same bits.
//
// In a step, four warps take 32 keys each for the scores, then a quarter of the dims each for the output; a fifth brings K and V
// by bulk copies into `stages` pairs of buffers.
//
// block 160; grid [rows, kv_heads * tiles(heads / kv_heads, 16), z] with any z >= 1 (tiles(512, rows * kv_heads) serves well);
// dynamic shared memory stages * 4 * 128 * head_dim bytes, stages 1 to 4 (the kernel reads how much it was given); scratch
// 262144 + 2048 * heads * (head_dim + 4) * 4 bytes, zeroed once: counters first (left at zero), then partials; rows *
// grid.y <= 65536; rows as the grid says. Buffers aligned to 16 bytes, pools to 128. pdl = true.
#include "attention.cuh"

constexpr u32 THREADS = 128; // and the warp that brings K and V
constexpr u32 PAIRS = 16;   // (row, head) pairs of a tile: the M of the product
constexpr u32 SLOTS = 2048; // partials for all heads of a row and a cut
constexpr u32 COUNTERS = 65536;
constexpr u32 MAX_STAGES = 4;

__device__ inline void mma_f16(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                 "{%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ inline void mma(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                 "{%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ inline void load_matrix(u32 (&r)[4], u32 address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
}

__device__ inline void load_matrix_transposed(u32 (&r)[4], u32 address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
}

struct Shared {
    unsigned char p[PAIRS * STEP_KEYS * 2]; // bf16 [16, 128], chunk c of row r at c xor (r mod 8)
    float largest[4][PAIRS];
    float sums[4][PAIRS][4];
    u64 full_k[MAX_STAGES], full_v[MAX_STAGES], empty_k[MAX_STAGES], empty_v[MAX_STAGES];
    u32 last;
};

// The four warps that compute.
__device__ inline void meet() { asm volatile("bar.sync 1, %0;" ::"n"(THREADS) : "memory"); }

// The tile that a row opens.
struct Rows {
    u32 slot, first, count; // position of its first row, rows
    bool opens;
};

__device__ inline Rows rows_of(Step step, u32 row, u32 per_tile) {
    u32 n = step.rows();
    const u32 *slots = step.slots(), *positions = step.positions();
    Rows r{slots[row], positions[row], 1, true};
    u32 tile = r.first / per_tile;
    if (row > 0 && slots[row - 1] == r.slot && positions[row - 1] / per_tile == tile) r.opens = false;
    while (row + r.count < n && r.count < per_tile && slots[row + r.count] == r.slot &&
           positions[row + r.count] / per_tile == tile) {
        ++r.count;
    }
    return r;
}

// A cut's or the total's state of the pairs lane / 4 and lane / 4 + 8, for the warp's dims.
template <u32 TILES>
struct State {
    float m[2], l[2], o[TILES][4];

    __device__ void clear() {
        m[0] = m[1] = minus_infinity();
        l[0] = l[1] = 0.0f;
#pragma unroll
        for (u32 t = 0; t < TILES; ++t) o[t][0] = o[t][1] = o[t][2] = o[t][3] = 0.0f;
    }
    __device__ void merge(const State& cut, float t) {
#pragma unroll
        for (u32 h = 0; h < 2; ++h) {
            float larger = fmaxf(m[h], cut.m[h]);
            float a = rescale(m[h], larger, t), b = rescale(cut.m[h], larger, t);
            l[h] = fmaf(cut.l[h], b, l[h] * a);
#pragma unroll
            for (u32 i = 0; i < TILES; ++i) {
                o[i][2 * h] = fmaf(cut.o[i][2 * h], b, o[i][2 * h] * a);
                o[i][2 * h + 1] = fmaf(cut.o[i][2 * h + 1], b, o[i][2 * h + 1] * a);
            }
            m[h] = larger;
        }
    }
};

__device__ inline void load_matrix_pair_transposed(u32 (&r)[4], u32 address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
                 : "=r"(r[0]), "=r"(r[1])
                 : "r"(address)
                 : "memory");
}

// F8: the pools are e4m3. A lane's columns of a pair of n8 tiles are then dims 4 quad to 4 quad + 3 of its 16.
template <u32 DIM, bool EXT, bool F8>
__device__ void attention(const float* qkv, const void* k, const void* v, const u32* tables, bf16* a, u32 heads, u32 kv_heads,
                          u32 blocks_per_slot, float scale, Extension ext, Step step, unsigned char* scratch) {
    constexpr u32 TILES = DIM / 32;  // n8 tiles of a warp's dims
    constexpr u32 CHAIN = DIM / 16;  // k16 steps of a score
    constexpr u32 STRIDE = DIM + 4;  // floats of a partial: o, m, l, 0, 0
    extern __shared__ __align__(1024) unsigned char ring[];
    __shared__ __align__(128) Shared s;
    pdl_launch();
    u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32, pair = lane / 4, quad = lane % 4;
    u32 group = heads / kv_heads, blocks_of_heads = (group + PAIRS - 1) / PAIRS;
    u32 kv_head = blockIdx.y / blocks_of_heads, first_head = blockIdx.y % blocks_of_heads * PAIRS;
    u32 tile_heads = min(PAIRS, group - first_head), per_tile = PAIRS / tile_heads;
    if (blocks_of_heads > 1) per_tile = 1;
    first_head += kv_head * group;
    u32 row = blockIdx.x, rows = step.rows();
    bool live_row = row < rows;
    Rows r{};
    if (live_row) r = rows_of(step, row, per_tile);
    if (!live_row || !r.opens) {
        pdl_wait();
        return;
    }
    u32 live = r.first + r.count; // keys of the last row
    if (live > blocks_per_slot * KV_BLOCK) {
        pdl_wait();
        if (threadIdx.x == 0) report(step, FAULT_POSITION, r.slot, live - 1, blocks_per_slot);
        return;
    }
    u32 reach = EXT ? ext.reach(r.first) : 0, skipped = reach / CUT_KEYS; // cuts that no row reaches
    u32 cuts = (live + CUT_KEYS - 1) / CUT_KEYS - skipped, per_row = SLOTS / rows;
    // Two cuts are walked as fast as they are merged.
    u32 splits = cuts > 2 && cuts <= per_row ? min(gridDim.z, cuts) : 1;
    if (blockIdx.z >= splits) {
        pdl_wait();
        return;
    }
    u32 cut_begin = blockIdx.z * cuts / splits, cut_end = (blockIdx.z + 1) * cuts / splits;
    u32 bytes;
    asm("mov.u32 %0, %%dynamic_smem_size;" : "=r"(bytes));
    u32 stages = min(MAX_STAGES, bytes / (2 * STEP_BYTES<DIM, F8>));
    u32 base = shared_address(ring), full_k = shared_address(s.full_k), full_v = shared_address(s.full_v);
    u32 empty_k = shared_address(s.empty_k), empty_v = shared_address(s.empty_v);
    if (threadIdx.x == 0) {
        for (u32 i = 0; i < stages; ++i) {
            barrier_init(full_k + 8 * i, 1);
            barrier_init(full_v + 8 * i, 1);
            barrier_init(empty_k + 8 * i, 4 * WARP_ARRIVALS);
            barrier_init(empty_v + 8 * i, 4 * WARP_ARRIVALS);
        }
        barrier_init_fence();
    }
    __syncthreads();

    u32 first_key = max((skipped + cut_begin) * CUT_KEYS, reach / STEP_KEYS * STEP_KEYS);
    u32 end_key = min(live, (skipped + cut_end) * CUT_KEYS);
    u32 skip = reach > first_key ? (reach - first_key) / KV_BLOCK : 0; // blocks of the first step that no row reaches
    u32 steps = (end_key - first_key + STEP_KEYS - 1) / STEP_KEYS;
    auto blocks_in = [&](u32 i) {
        return min(STEP_BLOCKS, (end_key - first_key - i * STEP_KEYS + KV_BLOCK - 1) / KV_BLOCK);
    };
    if (warp == 4) {
        // Blocks of tokens that were there before this step need not wait for the launch before: the pool and the tables have
        // them (the launch that writes the tables does not let its successors start early). Where the run's first row is not
        // the tile's, nobody looks for it.
        u32 old_blocks = row == 0 || step.slots()[row - 1] != r.slot ? r.first / KV_BLOCK : 0;
        bool waited = false;
        const u32* table = tables + (u64)r.slot * blocks_per_slot + first_key / KV_BLOCK;
        u32 block = 0;
        for (u32 i = 0; i < steps; ++i) {
            u32 at = i % stages, parity = (i / stages & 1) ^ 1; // an unused stage counts as empty
            u32 to = base + at * 2 * STEP_BYTES<DIM, F8>, next = 0;
            if (!waited && (i >= stages || (first_key + i * STEP_KEYS) / KV_BLOCK + blocks_in(i) > old_blocks)) {
                pdl_wait();
                waited = true;
            }
            if (i == 0 && lane < blocks_in(0)) block = table[lane];
            if (i + 1 < steps && lane < blocks_in(i + 1)) next = table[(i + 1) * STEP_BLOCKS + lane];
            barrier_wait(empty_k + 8 * at, parity);
            load_step<DIM, F8>(to, k, kv_heads, kv_head, block, i == 0 ? skip : 0, blocks_in(i), full_k + 8 * at);
            barrier_wait(empty_v + 8 * at, parity);
            load_step<DIM, F8>(to + STEP_BYTES<DIM, F8>, v, kv_heads, kv_head, block, i == 0 ? skip : 0, blocks_in(i),
                               full_v + 8 * at);
            block = next;
        }
        return;
    }
    pdl_wait();

    // The queries as fragments of the whole tile, the same in each warp. Pair i is row i / tile_heads, head i % tile_heads.
    u32 pairs = r.count * tile_heads, position[2], from_key[2];
    u32 q[CHAIN][4];
#pragma unroll
    for (u32 h = 0; h < 2; ++h) {
        u32 i = pair + 8 * h;
        bool used = i < pairs;
        u32 at_row = used ? i / tile_heads : 0, head = first_head + (used ? i % tile_heads : 0);
        position[h] = r.first + at_row;
        from_key[h] = EXT ? ext.reach(position[h]) : 0;
        const float* from = qkv + ((u64)(row + at_row) * (heads + 2 * kv_heads) + head) * DIM + (F8 ? 4 : 2) * quad;
#pragma unroll
        for (u32 c = 0; c < CHAIN; ++c) {
            float2 low = used ? *(const float2*)(from + 16 * c) : make_float2(0.0f, 0.0f);
            float2 high = used ? *(const float2*)(from + 16 * c + (F8 ? 2 : 8)) : make_float2(0.0f, 0.0f);
            q[c][h] = F8 ? pack_f16(low.x, low.y) : pack_bf16(low.x, low.y);
            q[c][2 + h] = F8 ? pack_f16(high.x, high.y) : pack_bf16(high.x, high.y);
        }
    }

    float t = EXT ? exponent_of(ext, scale) : scale * LOG2_E_F32;
    State<TILES> cut, total;
    total.clear();
    float* partials = (float*)(scratch + COUNTERS * 4);
    // The partial of pair i and cut j.
    auto partial_at = [&](u32 i, u32 j) {
        return partials + (((u64)(row + i / tile_heads) * per_row + j) * heads + first_head + i % tile_heads) * STRIDE;
    };
    auto store_partial = [&](const State<TILES>& state, u32 j) {
#pragma unroll
        for (u32 h = 0; h < 2; ++h) {
            if (pair + 8 * h >= pairs) continue;
            float* to = partial_at(pair + 8 * h, j);
#pragma unroll
            for (u32 i = 0; i < TILES; i += 2) {
                const float(&x)[4] = state.o[i], (&y)[4] = state.o[i + 1];
                float* at = to + warp * (DIM / 4) + 8 * i;
                if (F8) {
                    *(float4*)(at + 4 * quad) = make_float4(x[2 * h], y[2 * h], x[2 * h + 1], y[2 * h + 1]);
                } else {
                    *(float2*)(at + 2 * quad) = make_float2(x[2 * h], x[2 * h + 1]);
                    *(float2*)(at + 8 + 2 * quad) = make_float2(y[2 * h], y[2 * h + 1]);
                }
            }
            if (warp == 0 && quad == 0) *(float2*)(to + DIM) = make_float2(state.m[h], state.l[h]);
        }
    };

    for (u32 i = 0; i < steps; ++i) {
        u32 at = i % stages, parity = i / stages & 1, step_first = first_key + i * STEP_KEYS;
        u32 chunks = blocks_in(i), keys = min(STEP_KEYS, end_key - step_first); // chunks of 16 keys
        u32 k_at = base + at * 2 * STEP_BYTES<DIM, F8>, v_at = k_at + STEP_BYTES<DIM, F8>;
        const unsigned char *k_bytes = ring + (k_at - base), *v_bytes = ring + (v_at - base);
        u32 first_chunk = EXT && i == 0 ? skip : 0;
        if (i == 0 || step_first % CUT_KEYS == 0) cut.clear();

        // Scores of the warp's 32 keys.
        float score[4][4] = {};
        bool used = 32 * warp < keys;
        barrier_wait(full_k + 8 * at, parity);
        if (F8 && used) {
            u32 key = 32 * warp + lane;
#pragma unroll
            for (u32 c = 0; c < CHAIN; ++c) {
                u32 b[4]; // 16 dims of the 32 keys
                load_matrix(b, k_at + key / KV_BLOCK * BLOCK_BYTES<DIM, F8> + f8_offset(DIM, key % KV_BLOCK, 16 * c));
#pragma unroll
                for (u32 n = 0; n < 4; ++n) mma_f16(score[n], q[c], half_low(b[n]), half_high(b[n]));
            }
#pragma unroll
            for (u32 n = 0; n < 4; ++n) {
                float2 by = *(const float2*)(k_bytes + scale_offset<DIM>(32 * warp + 8 * n + 2 * quad));
                score[n][0] *= by.x, score[n][1] *= by.y, score[n][2] *= by.x, score[n][3] *= by.y;
            }
        }
        if (!F8 && used) {
#pragma unroll
            for (u32 c = 0; c < CHAIN; ++c) {
                u32 panel = k_at + c / 4 * ATOM_BYTES;
#pragma unroll
                for (u32 n = 0; n < 4; n += 2) {
                    u32 key = 32 * warp + 8 * (n + lane / 16) + lane % 8, chunk = 2 * (c % 4) + lane / 8 % 2, b[4];
                    load_matrix(b, panel + key / 8 * GROUP_BYTES<DIM> + key % 8 * 128 + (chunk ^ key % 8) * 16);
                    mma(score[n], q[c], b[0], b[1]);
                    mma(score[n + 1], q[c], b[2], b[3]);
                }
            }
        }
        warp_arrive(empty_k + 8 * at);
        float largest[2] = {minus_infinity(), minus_infinity()};
#pragma unroll
        for (u32 n = 0; n < 4; ++n) {
#pragma unroll
            for (u32 e = 0; e < 4; ++e) {
                u32 key = step_first + 32 * warp + 8 * n + 2 * quad + e % 2;
                if (EXT && ext.cap > 0.0f) score[n][e] = ext.capped(score[n][e]);
                if (key > position[e / 2] || (EXT && key < from_key[e / 2])) score[n][e] = minus_infinity();
                largest[e / 2] = fmaxf(largest[e / 2], score[n][e]);
            }
        }
#pragma unroll
        for (u32 h = 0; h < 2; ++h) {
            largest[h] = fmaxf(largest[h], __shfl_xor_sync(0xffffffffu, largest[h], 1));
            largest[h] = fmaxf(largest[h], __shfl_xor_sync(0xffffffffu, largest[h], 2));
            if (quad == 0) s.largest[warp][pair + 8 * h] = largest[h];
        }
        meet();
        if (F8) barrier_wait(full_v + 8 * at, parity);
        float c[2];
#pragma unroll
        for (u32 h = 0; h < 2; ++h) {
            u32 p = pair + 8 * h;
            float m = cut.m[h];
#pragma unroll
            for (u32 w = 0; w < 4; ++w) m = fmaxf(m, s.largest[w][p]);
            c[h] = rescale(cut.m[h], m, t);
            cut.m[h] = m;
            float offset = offset_of(m, t), sum = 0.0f;
#pragma unroll
            for (u32 n = 0; n < 4; ++n) {
                float low = ex2(fmaf(score[n][2 * h], t, -offset));
                float high = ex2(fmaf(score[n][2 * h + 1], t, -offset));
                sum = n == 0 ? low : sum + low;
                sum = sum + high;
                if (F8) {
                    // A key that does not count may have any scale.
                    float2 by = *(const float2*)(v_bytes + scale_offset<DIM>(32 * warp + 8 * n + 2 * quad));
                    low = score[n][2 * h] == minus_infinity() ? 0.0f : low * by.x;
                    high = score[n][2 * h + 1] == minus_infinity() ? 0.0f : high * by.y;
                }
                *(u32*)(s.p + p * 256 + (4 * warp + n ^ p % 8) * 16 + quad * 4) = pack_bf16(low, high);
            }
            s.sums[warp][p][quad] = sum;
        }
        if (!F8) barrier_wait(full_v + 8 * at, parity);
        if (!F8 && keys % KV_BLOCK != 0) {
            // Values past the last row's position may be anything; 0 x NaN would be NaN.
            clear_values<DIM>(ring + (v_at - base), keys, chunks * KV_BLOCK, threadIdx.x, THREADS);
        }
        meet();
#pragma unroll
        for (u32 h = 0; h < 2; ++h) {
            u32 p = pair + 8 * h;
            float fold = (s.sums[0][p][quad] + s.sums[1][p][quad]) + (s.sums[2][p][quad] + s.sums[3][p][quad]);
            cut.l[h] = fmaf(cut.l[h], c[h], fold);
#pragma unroll
            for (u32 n = 0; n < TILES; ++n) {
                cut.o[n][2 * h] *= c[h];
                cut.o[n][2 * h + 1] *= c[h];
            }
        }
        auto add_chunk = [&](u32 chunk) {
            u32 p[4], r16 = lane % 16;
            load_matrix(p, shared_address(s.p) + r16 * 256 + (2 * chunk + lane / 16 ^ r16 % 8) * 16);
            if constexpr (F8) {
                u32 block = v_at + chunk * BLOCK_BYTES<DIM, F8>;
#pragma unroll
                for (u32 n = 0; n < TILES; n += 4) {
                    u32 dims = warp * (DIM / 4) + 8 * n, b[4];
                    if (TILES == 2) {
                        load_matrix_pair_transposed(b, block + f8_offset(DIM, r16, dims));
                    } else {
                        load_matrix_transposed(b, block + f8_offset(DIM, r16, dims + lane / 16 * 16));
                    }
#pragma unroll
                    for (u32 i = 0; i < min(4u, TILES); i += 2) {
                        mma(cut.o[n + i], p, widen(b[i] << 8), widen(b[i + 1] << 8));
                        mma(cut.o[n + i + 1], p, widen(b[i]), widen(b[i + 1]));
                    }
                }
            } else {
#pragma unroll
                for (u32 n = 0; n < TILES; n += 2) {
                    u32 key = 16 * chunk + lane % 16, dims = warp * (DIM / 32) + n + lane / 16, b[4]; // dims in chunks of 8
                    load_matrix_transposed(b, v_at + dims / 8 * ATOM_BYTES + key / 8 * GROUP_BYTES<DIM> + key % 8 * 128 +
                                                  (dims % 8 ^ key % 8) * 16);
                    mma(cut.o[n], p, b[0], b[1]);
                    mma(cut.o[n + 1], p, b[2], b[3]);
                }
            }
        };
        if (chunks == STEP_BLOCKS && first_chunk == 0) {
#pragma unroll
            for (u32 chunk = 0; chunk < STEP_BLOCKS; ++chunk) add_chunk(chunk);
        } else {
            for (u32 chunk = first_chunk; chunk < chunks; ++chunk) add_chunk(chunk);
        }
        warp_arrive(empty_v + 8 * at);
        if ((step_first + STEP_KEYS) % CUT_KEYS == 0 || i + 1 == steps) {
#pragma unroll
            for (u32 h = 0; h < 2; ++h) {
                cut.l[h] += __shfl_xor_sync(0xffffffffu, cut.l[h], 1);
                cut.l[h] += __shfl_xor_sync(0xffffffffu, cut.l[h], 2);
            }
            if (blockIdx.z == 0) {
                total.merge(cut, t);
            } else {
                store_partial(cut, step_first / CUT_KEYS - skipped);
            }
        }
    }

    if (splits == 1) {
#pragma unroll
        for (u32 h = 0; h < 2; ++h) {
            u32 i = pair + 8 * h;
            if (i >= pairs) continue;
            u32 head = first_head + i % tile_heads;
            float inverse = 1.0f / (EXT ? total.l[h] + ext.sink(head, total.m[h], t) : total.l[h]);
            bf16* to = a + ((u64)(row + i / tile_heads) * heads + head) * DIM + warp * (DIM / 4);
#pragma unroll
            for (u32 n = 0; n < TILES; n += 2) {
                float x0 = total.o[n][2 * h] * inverse, x1 = total.o[n][2 * h + 1] * inverse;
                float y0 = total.o[n + 1][2 * h] * inverse, y1 = total.o[n + 1][2 * h + 1] * inverse;
                if (F8) {
                    *(uint2*)(to + 8 * n + 4 * quad) = make_uint2(pack_bf16(x0, y0), pack_bf16(x1, y1));
                } else {
                    *(u32*)(to + 8 * n + 2 * quad) = pack_bf16(x0, x1);
                    *(u32*)(to + 8 * n + 8 + 2 * quad) = pack_bf16(y0, y1);
                }
            }
        }
        return;
    }
    if (blockIdx.z == 0) store_partial(total, 0);
    __threadfence();
    meet();
    if (threadIdx.x == 0) {
        u32* counter = (u32*)scratch + (u64)row * gridDim.y + blockIdx.y;
        u32 before = atomicAdd(counter, 1);
        if (before == splits - 1) *counter = 0;
        s.last = before == splits - 1;
    }
    meet();
    if (!s.last) return;
    __threadfence();
    // A warp a pair, DIM / 32 dims a lane; slot 0 holds what block 0 merged.
    constexpr u32 OWN = DIM / 32, BATCH = OWN == 8 ? 8 : 16;
    u32 first_cut = cuts / splits;
    for (u32 i = warp; i < pairs; i += THREADS / 32) {
        const float* from = partial_at(i, 0);
        u64 stride = (u64)heads * STRIDE;
        float2 ml = __ldcg((const float2*)(from + DIM));
        float m = ml.x, l = ml.y, o[OWN];
#pragma unroll
        for (u32 d = 0; d < OWN; d += 2) {
            float2 x = __ldcg((const float2*)(from + lane * OWN + d));
            o[d] = x.x, o[d + 1] = x.y;
        }
        for (u32 j = first_cut; j < cuts; j += BATCH) {
            float2 part[BATCH][OWN / 2], state[BATCH];
#pragma unroll
            for (u32 n = 0; n < BATCH; ++n) {
                if (j + n >= cuts) break;
                const float* at = from + (j + n) * stride;
                state[n] = __ldcg((const float2*)(at + DIM));
                if (OWN % 4 == 0) {
#pragma unroll
                    for (u32 d = 0; d < OWN; d += 4) {
                        float4 x = __ldcg((const float4*)(at + lane * OWN + d));
                        part[n][d / 2] = make_float2(x.x, x.y);
                        part[n][min(d / 2 + 1, OWN / 2 - 1)] = make_float2(x.z, x.w);
                    }
                } else {
#pragma unroll
                    for (u32 d = 0; d < OWN; d += 2) part[n][d / 2] = __ldcg((const float2*)(at + lane * OWN + d));
                }
            }
#pragma unroll
            for (u32 n = 0; n < BATCH; ++n) {
                if (j + n >= cuts) break;
                float larger = fmaxf(m, state[n].x);
                float x = rescale(m, larger, t), y = rescale(state[n].x, larger, t);
                l = fmaf(state[n].y, y, l * x);
#pragma unroll
                for (u32 d = 0; d < OWN; d += 2) {
                    o[d] = fmaf(part[n][d / 2].x, y, o[d] * x);
                    o[d + 1] = fmaf(part[n][d / 2].y, y, o[d + 1] * x);
                }
                m = larger;
            }
        }
        u32 head = first_head + i % tile_heads;
        float inverse = 1.0f / (EXT ? l + ext.sink(head, m, t) : l);
        bf16* to = a + ((u64)(row + i / tile_heads) * heads + head) * DIM + lane * OWN;
#pragma unroll
        for (u32 d = 0; d < OWN; d += 2) *(u32*)(to + d) = pack_bf16(o[d] * inverse, o[d + 1] * inverse);
    }
}

#define ATTENTION(DIM, SUFFIX, T, F8, BLOCKS)                                                                         \
    extern "C" __global__ void __launch_bounds__(THREADS + 32, BLOCKS)                                                \
        attention_split_##SUFFIX(const float* qkv, const T* k, const T* v, const u32* tables, bf16* a, u32 heads,     \
                                 u32 kv_heads, u32 head_dim, u32 blocks_per_slot, float scale, const u32* s,          \
                                 unsigned char* scratch) {                                                            \
        attention<DIM, false, F8>(qkv, k, v, tables, a, heads, kv_heads, blocks_per_slot, scale, Extension(),         \
                                  Step{s}, scratch);                                                                  \
    }                                                                                                                 \
    extern "C" __global__ void __launch_bounds__(THREADS + 32, BLOCKS)                                                \
        attention_split_ext_##SUFFIX(const float* qkv, const T* k, const T* v, const u32* tables, const float* sinks, \
                                     bf16* a, u32 heads, u32 kv_heads, u32 head_dim, u32 blocks_per_slot, u32 window, \
                                     u32 has_sinks, float scale, float softcap, const u32* s,                         \
                                     unsigned char* scratch) {                                                        \
        attention<DIM, true, F8>(qkv, k, v, tables, a, heads, kv_heads, blocks_per_slot, scale,                       \
                                 extension(window, sinks, has_sinks, scale, softcap), Step{s}, scratch);              \
    }

ATTENTION(64, 64, bf16, false, 3)
ATTENTION(128, 128, bf16, false, 3)
ATTENTION(256, 256, bf16, false, 1)
ATTENTION(64, 64_f8, unsigned char, true, 3)
ATTENTION(128, 128_f8, unsigned char, true, 3)
ATTENTION(256, 256_f8, unsigned char, true, 1)
