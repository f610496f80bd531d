// SPDX-License-Identifier: MIT OR Apache-2.0
// attention_split and attention_tile: against float64, bits of a row alone, in a crowd, in chunks and in a whole prefill,
// then times.
#pragma once

#include "harness.cuh"

extern "C" {
void attention_split_64(const float*, const bf16*, const bf16*, const u32*, bf16*, u32, u32, u32, u32, float, const u32*, unsigned char*);
void attention_split_128(const float*, const bf16*, const bf16*, const u32*, bf16*, u32, u32, u32, u32, float, const u32*, unsigned char*);
void attention_tile_64(const float*, const bf16*, const bf16*, const u32*, bf16*, u32, u32, u32, u32, float, const u32*, unsigned char*);
void attention_tile_128(const float*, const bf16*, const bf16*, const u32*, bf16*, u32, u32, u32, u32, float, const u32*, unsigned char*);
}

constexpr u32 SCRATCH_SLOTS = 2048;

// One sequence of `n` tokens that every slot's table names.
struct World {
    u32 heads, kv_heads, dim, n, blocks_per_slot, blocks;
    float scale;
    float* qkv; // [n, (heads + 2 kv_heads) dim]
    bf16 *plain_k, *plain_v; // [n, kv_heads, dim]
    bf16 *k, *v;             // pools
    std::vector<u32> table;
    unsigned char* scratch;
    u32 columns() const { return (heads + 2 * kv_heads) * dim; }
};

// Tokens at or past `live` become NaN.
__global__ void fill_pool(bf16* pool, const bf16* plain, const u32* table, u32 n, u32 live, u32 kv_heads, u32 dim) {
    for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < (u64)n * kv_heads * dim; i += (u64)gridDim.x * blockDim.x) {
        u32 d = i % dim, head = i / dim % kv_heads, token = i / dim / kv_heads, t = token % 16;
        u64 atom = (((u64)table[token / 16] * kv_heads + head) * 2 + t / 8) * (dim / 64) + d / 64;
        u64 at = atom * 512 + t % 8 * 64 + ((d % 64 / 8) ^ (t % 8)) * 8 + d % 8;
        pool[at] = token < live ? plain[i] : __ushort_as_bfloat16(0x7fff);
    }
}

__global__ void gather(const float* from, float* to, const u32* positions, u32 columns) {
    for (u32 i = threadIdx.x; i < columns; i += blockDim.x) {
        to[(u64)blockIdx.x * columns + i] = from[(u64)positions[blockIdx.x] * columns + i];
    }
}

// Block: a position and a head. out: value and sum of p |v|, f64.
__global__ void reference(const float* qkv, const bf16* k, const bf16* v, const u32* positions, double* out, u32 heads,
                          u32 kv_heads, u32 dim, float scale) {
    extern __shared__ double p[];
    __shared__ double fold[128];
    u32 position = positions[blockIdx.x], head = blockIdx.y, kv_head = head / (heads / kv_heads), n = position + 1;
    const float* q = qkv + ((u64)position * (heads + 2 * kv_heads) + head) * dim;
    double m = -1e300;
    for (u32 j = threadIdx.x; j < n; j += 128) {
        double s = 0;
        for (u32 d = 0; d < dim; ++d) {
            s += (double)__bfloat162float(__float2bfloat16_rn(q[d])) * (double)__bfloat162float(k[((u64)j * kv_heads + kv_head) * dim + d]);
        }
        p[j] = s * scale;
        m = max(m, p[j]);
    }
    fold[threadIdx.x] = m;
    __syncthreads();
    for (u32 i = 0; i < 128; ++i) m = max(m, fold[i]);
    double l = 0;
    for (u32 j = threadIdx.x; j < n; j += 128) l += p[j] = exp(p[j] - m);
    __syncthreads();
    fold[threadIdx.x] = l;
    __syncthreads();
    l = 0;
    for (u32 i = 0; i < 128; ++i) l += fold[i];
    for (u32 d = threadIdx.x; d < dim; d += 128) {
        double o = 0, a = 0;
        for (u32 j = 0; j < n; ++j) {
            double x = p[j] * (double)__bfloat162float(v[((u64)j * kv_heads + kv_head) * dim + d]);
            o += x;
            a += fabs(x);
        }
        u64 at = (((u64)blockIdx.x * heads + head) * dim + d) * 2;
        out[at] = o / l;
        out[at + 1] = a / l;
    }
}

inline World make_world(u32 heads, u32 kv_heads, u32 dim, u32 n, u64 seed) {
    World w{heads, kv_heads, dim, n, (n + 15) / 16, 0, 1.0f / sqrtf((float)dim)};
    w.blocks = w.blocks_per_slot + 5;
    w.qkv = random_device<float>((u64)n * w.columns(), seed, 1.5f);
    w.plain_k = random_device<bf16>((u64)n * kv_heads * dim, seed + 1, 1.2f);
    w.plain_v = random_device<bf16>((u64)n * kv_heads * dim, seed + 2);
    for (u32 i = 0; i < w.blocks; ++i) w.table.push_back(i);
    for (u32 i = w.blocks - 1; i > 0; --i) std::swap(w.table[i], w.table[hash32(seed * 77 + i) % (i + 1)]);
    w.table.resize(w.blocks_per_slot);
    w.k = device<bf16>((u64)w.blocks * 16 * kv_heads * dim);
    w.v = device<bf16>((u64)w.blocks * 16 * kv_heads * dim);
    u64 bytes = 262144 + (u64)SCRATCH_SLOTS * heads * (dim + 4) * 4;
    w.scratch = device<unsigned char>(bytes);
    CHECK(cudaMemset(w.scratch, 0, 262144));
    return w;
}

inline void set_live(World& w, u32 live) {
    u32* table = upload(w.table);
    fill_pool<<<512, 256, 0, stream()>>>(w.k, w.plain_k, table, w.n, live, w.kv_heads, w.dim);
    fill_pool<<<512, 256, 0, stream()>>>(w.v, w.plain_v, table, w.n, live, w.kv_heads, w.dim);
    CHECK(cudaGetLastError());
    sync();
    CHECK(cudaFree(table));
}

// NO_TILE=1 leaves attention_tile out.
inline bool use_tile() { return getenv("NO_TILE") == nullptr; }

struct Kernel {
    bool tile;
    u32 z = 0, stages = 1; // z 0: the formula
};

inline u32 tiles(u32 n, u32 m) { return (n + m - 1) / m; }

inline void call_attention(const World& w, Kernel kernel, const float* qkv, const bf16* k, const bf16* v, const u32* tables,
                           u32 blocks_per_slot, bf16* a, const u32* step, u32 bucket, u32 slots) {
    u32 group = w.heads / w.kv_heads;
    if (!kernel.tile) {
        u32 y = w.kv_heads * tiles(group, 16), z = kernel.z ? kernel.z : tiles(512, bucket * w.kv_heads);
        Where where{dim3(bucket, y, z), 160, kernel.stages * 512 * w.dim};
        launch(w.dim == 128 ? (const void*)attention_split_128 : (const void*)attention_split_64, where, qkv, k, v, tables, a,
               w.heads, w.kv_heads, w.dim, blocks_per_slot, w.scale, step, w.scratch);
    } else {
        u32 y = bucket / std::max(1u, 128 / group) + slots;
        Where where{dim3(w.kv_heads, y), 384, TILE_SHARED(w.dim)};
        launch(w.dim == 128 ? (const void*)attention_tile_128 : (const void*)attention_tile_64, where, qkv, k, v, tables, a,
               w.heads, w.kv_heads, w.dim, blocks_per_slot, w.scale, step, w.scratch);
    }
}

// Runs a step and puts the rows' outputs to out[position]. Slots are those of the runs, each with a table of its own.
inline void run_step(const World& w, Kernel kernel, const std::vector<Run>& runs, std::vector<std::vector<uint16_t>>& out) {
    StepWords words;
    u32 slots = 0;
    for (const Run& r : runs) {
        words.run(r.slot, r.first, r.rows);
        slots = std::max(slots, r.slot + 1);
    }
    std::vector<u32> tables((u64)slots * w.blocks_per_slot, 0x7fffffff);
    for (const Run& r : runs) {
        for (u32 i = 0; i <= (r.first + r.rows - 1) / 16; ++i) tables[(u64)r.slot * w.blocks_per_slot + i] = w.table[i];
    }
    u32 rows = words.slots.size(), bucket = rows + rows % 3; // sometimes wider than the step
    u32 *step = words.upload(), *table = upload(tables), *positions = upload(words.positions);
    float* qkv = device<float>((u64)bucket * w.columns());
    u64 values = (u64)bucket * w.heads * w.dim;
    bf16* a = device<bf16>(values);
    gather<<<rows, 256, 0, stream()>>>(w.qkv, qkv, positions, w.columns());
    call_attention(w, kernel, qkv, w.k, w.v, table, w.blocks_per_slot, a, step, bucket, slots);
    std::vector<uint16_t> result = download((const uint16_t*)a, values);
    u64 row = (u64)w.heads * w.dim;
    for (u32 r = 0; r < rows; ++r) {
        std::vector<uint16_t> values(result.begin() + r * row, result.begin() + (r + 1) * row);
        std::vector<uint16_t>& to = out[words.positions[r]];
        if (to.empty()) {
            to = values;
        } else if (to != values) {
            u32 differ = 0;
            for (u64 i = 0; i < row; ++i) differ += to[i] != values[i];
            if (failures()++ < 12) {
                printf("FAILED bits: %s z %u stages %u rows %u position %u: %u of %u differ\n", kernel.tile ? "tile" : "split",
                       kernel.z, kernel.stages, rows, words.positions[r], differ, (u32)row);
            }
        }
    }
    for (u64 i = rows * row; i < values; ++i) {
        if (result[i] != 0xffff) {
            verdict(false, "a dead row was written");
            break;
        }
    }
    CHECK(cudaFree(step));
    CHECK(cudaFree(table));
    CHECK(cudaFree(positions));
    CHECK(cudaFree(qkv));
    CHECK(cudaFree(a));
}

inline float from_bf16(uint16_t x) {
    u32 bits = (u32)x << 16;
    float f;
    memcpy(&f, &bits, 4);
    return f;
}

// Largest error over the bound: rounding of p (2^-8 of sum p |v| / l), of the result (2^-8), and 2^-14 of sum p |v| / l for
// scores in f32 on truncating tensor cores, ex2.approx and sums.
inline double worst_of(const World& w, const std::vector<u32>& positions, const std::vector<std::vector<uint16_t>>& out) {
    u32* list = upload(positions);
    u64 row = (u64)w.heads * w.dim;
    double* ref = device<double>(positions.size() * row * 2);
    CHECK(cudaFuncSetAttribute(reference, cudaFuncAttributeMaxDynamicSharedMemorySize, 160 * 1024));
    reference<<<dim3(positions.size(), w.heads), 128, w.n * 8, stream()>>>(w.qkv, w.plain_k, w.plain_v, list, ref, w.heads,
                                                                          w.kv_heads, w.dim, w.scale);
    CHECK(cudaGetLastError());
    std::vector<double> expected = download(ref, positions.size() * row * 2);
    double worst = 0;
    for (size_t i = 0; i < positions.size(); ++i) {
        for (u64 j = 0; j < row; ++j) {
            double e = expected[(i * row + j) * 2], a = expected[(i * row + j) * 2 + 1];
            double bound = (1.0 / 256 + 1.0 / 16384) * a + fabs(e) / 256;
            double ratio = fabs(from_bf16(out[positions[i]][j]) - e) / bound;
            if (!(ratio <= worst)) worst = ratio; // a NaN stays
        }
    }
    CHECK(cudaFree(list));
    CHECK(cudaFree(ref));
    return worst;
}

inline void check_attention(u32 heads, u32 kv_heads, u32 dim, u32 n, bool small) {
    World w = make_world(heads, kv_heads, dim, n, 1000 + n + dim + heads);
    set_live(w, n);
    std::vector<std::vector<uint16_t>> out(n);
    int before = failures();
    std::vector<u32> odd;
    for (u32 p : {0u, 1u, 14u, 15u, 16u, 17u, 126u, 127u, 128u, 129u, 254u, 255u, 256u, 257u, 300u, 511u, 512u, 999u, 1000u, 1001u,
                  2303u, 2304u, 3000u, 4095u, 4096u}) {
        if (p < n) odd.push_back(p);
    }
    // Each odd position alone, with several splits.
    for (u32 p : odd) {
        for (Kernel k : {Kernel{false, 1, 1}, Kernel{false, 64, 1}, Kernel{false, 3, 2}}) run_step(w, k, {{0, p, 1}}, out);
        if (use_tile()) run_step(w, {true}, {{0, p, 1}}, out);
    }
    double worst = worst_of(w, odd, out);
    // Crowds.
    for (u32 rows : small ? std::vector<u32>{17} : std::vector<u32>{3, 17, 200}) {
        std::vector<Run> runs;
        for (u32 i = 0; i < rows; ++i) runs.push_back({i, i < odd.size() ? odd[i] : hash32(i * 31 + rows) % n, 1});
        run_step(w, {false, 0, 1}, runs, out);
        run_step(w, {false, 2, 2}, runs, out);
        if (use_tile()) run_step(w, {true}, runs, out);
    }
    // Whole and in chunks; then chunks of two sequences with decode rows between.
    for (bool tile : {false, true}) {
        if (tile && !use_tile()) break;
        run_step(w, {tile, 0, 1}, {{0, 0, n}}, out);
        for (u32 chunk : small ? std::vector<u32>{17} : std::vector<u32>{200, 255, 1000}) {
            for (u32 p = 0; p < n; p += chunk) run_step(w, {tile, 0, 1}, {{0, p, std::min(chunk, n - p)}}, out);
        }
        u32 third = n / 3;
        run_step(w, {tile, 0, 1}, {{3, third, n - third}, {1, n - 1, 1}, {0, 0, third}, {2, n / 2, 1}, {4, n / 2 + 5, 7}}, out);
    }
    // Nothing of what stands past the position counts.
    for (u32 live : odd) {
        if (live == 0) continue;
        set_live(w, live);
        u32 rows = std::min(live, 9u);
        run_step(w, {false, 0, 1}, {{0, live - rows, rows}}, out);
        run_step(w, {false, 64, 2}, {{0, live - 1, 1}}, out);
        if (use_tile()) run_step(w, {true}, {{0, live - rows, rows}}, out);
    }
    std::vector<u32> counters = download((const u32*)w.scratch, 65536);
    for (u32 c : counters) {
        if (c) {
            verdict(false, "a counter was not left at zero");
            break;
        }
    }
    std::vector<u32> some = odd;
    for (u32 i = 0; i < 40; ++i) some.push_back(hash32(i + 5) % n);
    double all = worst_of(w, some, out);
    printf("attention heads %u/%u dim %u n %u: error/bound %.3f (alone) %.3f (all), bit failures %d\n", heads, kv_heads, dim, n,
           worst, all, failures() - before);
    verdict(worst <= 1 && all <= 1, "attention error");
    for (void* p : {(void*)w.qkv, (void*)w.plain_k, (void*)w.plain_v, (void*)w.k, (void*)w.v, (void*)w.scratch}) CHECK(cudaFree(p));
}

// Bytes read per second by plain 16-byte loads.
__global__ void read_all(const uint4* p, u64 n, u32* out) {
    u32 x = 0;
    for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i + 3 * (u64)gridDim.x * blockDim.x < n; i += 4 * (u64)gridDim.x * blockDim.x) {
#pragma unroll
        for (u32 j = 0; j < 4; ++j) {
            uint4 v = p[i + j * (u64)gridDim.x * blockDim.x];
            x ^= v.x ^ v.y ^ v.z ^ v.w;
        }
    }
    if (x == 0x12345678) *out = x;
}

inline void time_attention() {
    const u32 HEADS = 32, KV = 8, DIM = 128, LAYERS = 36;
    World w{HEADS, KV, DIM, 0, 0, 0, 1.0f / sqrtf(128.0f)};
    u32 blocks = 8 * 256 * 24; // eight layers' worth of 256 sequences of 384 tokens: 1.6 GB for K, as much for V
    u64 values = (u64)blocks * 16 * KV * DIM;
    bf16 *k = random_device<bf16>(values, 5), *v = random_device<bf16>(values, 6);
    u64 bytes = 262144 + (u64)SCRATCH_SLOTS * HEADS * (DIM + 4) * 4;
    w.scratch = device<unsigned char>(bytes);
    CHECK(cudaMemset(w.scratch, 0, 262144));
    u32* sink = device<u32>(1);
    double read = 0;
    for (u32 grid : {132 * 8, 132 * 16}) {
        double us = time_us(2, [&] {
            read_all<<<grid, 256, 0, stream()>>>((const uint4*)k, values / 8, sink);
            read_all<<<grid, 256, 0, stream()>>>((const uint4*)v, values / 8, sink);
        });
        read = std::max(read, values * 2 / us / 1e6);
    }
    printf("read roofline %.3f TB/s\n", read);
    std::vector<u32> order(blocks);
    for (u32 i = 0; i < blocks; ++i) order[i] = i;
    for (u32 i = blocks - 1; i > 0; --i) std::swap(order[i], order[hash32(i) % (i + 1)]);
    u32 max_rows = 8192;
    float* qkv = random_device<float>((u64)max_rows * (HEADS + 2 * KV) * DIM, 7);
    bf16* a = device<bf16>((u64)max_rows * HEADS * DIM);
    struct Shape {
        u32 rows, context;
    };
    for (Shape s : {Shape{1, 128}, {1, 384}, {1, 640}, {1, 2048}, {1, 8192}, {8, 160}, {8, 384}, {8, 2048}, {32, 160}, {32, 384},
                    {64, 160}, {64, 384}, {64, 2048}, {128, 160}, {128, 384}, {256, 160}, {256, 192}, {256, 256}, {256, 384}}) {
        if (getenv("ONLY_PREFILL")) break;
        u32 per = (s.context + 15) / 16, sets = std::min(LAYERS, blocks / (s.rows * per));
        StepWords words;
        for (u32 i = 0; i < s.rows; ++i) words.run(i, s.context - 1, 1);
        u32* step = words.upload();
        std::vector<u32*> tables;
        for (u32 set = 0; set < sets; ++set) {
            tables.push_back(upload(std::vector<u32>(order.begin() + set * s.rows * per, order.begin() + (set + 1) * s.rows * per)));
        }
        double kv = (double)s.rows * s.context * KV * DIM * 4, floor = kv / read / 1e6;
        printf("decode %3u x %4u: floor %6.2f us |", s.rows, s.context, floor);
        std::vector<Kernel> kernels = {{false, 0, 1}, {false, 0, 2}, {false, 1, 1}};
        if (s.rows <= 8) kernels.push_back({false, 16, 2});
        if (s.rows >= 32 && use_tile()) kernels.push_back({true});
        for (Kernel kernel : kernels) {
            double us = time_us(LAYERS, [&] {
                for (u32 layer = 0; layer < LAYERS; ++layer) {
                    call_attention(w, kernel, qkv, k, v, tables[layer % sets], per, a, step, s.rows, s.rows);
                }
            });
            if (kernel.tile) printf(" tile");
            else printf(" z%u/%u", kernel.z, kernel.stages);
            printf(" %.2f (%.0f%%)", us, 100 * floor / us);
        }
        printf("\n");
        CHECK(cudaFree(step));
        for (u32* t : tables) CHECK(cudaFree(t));
    }
    for (Shape s : !use_tile() ? std::vector<Shape>{} : std::vector<Shape>{{128, 0}, {512, 0}, {2048, 0}, {8192, 0}, {2048, 6144}}) { // rows after a prefix
        u32 n = s.rows + s.context, per = (n + 15) / 16;
        StepWords words;
        words.run(0, s.context, s.rows);
        u32 *step = words.upload(), *table = upload(std::vector<u32>(order.begin(), order.begin() + per));
        double us = time_us(4, [&] {
            for (u32 i = 0; i < 4; ++i) call_attention(w, {true}, qkv, k, v, table, per, a, step, s.rows, 1);
        });
        double flop = 4.0 * HEADS * DIM * ((double)s.rows * s.context + s.rows * (s.rows + 1.0) / 2);
        printf("prefill %u after %u: %.1f us, %.0f TFLOP/s\n", s.rows, s.context, us, flop / us / 1e6);
        CHECK(cudaFree(step));
        CHECK(cudaFree(table));
    }
    for (void* p : {(void*)k, (void*)v, (void*)qkv, (void*)a, (void*)w.scratch}) CHECK(cudaFree(p));
}
