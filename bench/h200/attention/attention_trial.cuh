// SPDX-License-Identifier: MIT OR Apache-2.0
// attention_split and attention_tile: against float64, bits of a row alone, in a crowd, in chunks and in a whole prefill,
// then times.
#pragma once

#include "harness.cuh"

#include <cuda_fp16.h>
#include <cuda_fp8.h>

#define ATTENTION(NAME)                                                                                                     \
    void attention_##NAME(const float*, const void*, const void*, const u32*, bf16*, u32, u32, u32, u32, float, const u32*, \
                          unsigned char*);
#define ATTENTION_EXT(NAME)                                                                                                 \
    void attention_##NAME(const float*, const void*, const void*, const u32*, const float*, bf16*, u32, u32, u32, u32, u32, \
                          u32, float, float, const u32*, unsigned char*);
extern "C" {
ATTENTION(split_64) ATTENTION(split_128) ATTENTION(split_256) ATTENTION(tile_64) ATTENTION(tile_128)
ATTENTION(split_64_f8) ATTENTION(split_128_f8) ATTENTION(split_256_f8) ATTENTION(tile_64_f8) ATTENTION(tile_128_f8)
ATTENTION_EXT(split_ext_64) ATTENTION_EXT(split_ext_128) ATTENTION_EXT(split_ext_256) ATTENTION_EXT(tile_ext_64)
ATTENTION_EXT(tile_ext_128) ATTENTION_EXT(split_ext_64_f8) ATTENTION_EXT(split_ext_128_f8) ATTENTION_EXT(split_ext_256_f8)
ATTENTION_EXT(tile_ext_64_f8) ATTENTION_EXT(tile_ext_128_f8)
}

// By kernel, head dim, format.
inline const void* attention_of(bool tile, bool ext, u32 dim, bool f8) {
    static const void* const of[2][2][3][2] = {
        {{{(void*)attention_split_64, (void*)attention_split_64_f8},
          {(void*)attention_split_128, (void*)attention_split_128_f8},
          {(void*)attention_split_256, (void*)attention_split_256_f8}},
         {{(void*)attention_split_ext_64, (void*)attention_split_ext_64_f8},
          {(void*)attention_split_ext_128, (void*)attention_split_ext_128_f8},
          {(void*)attention_split_ext_256, (void*)attention_split_ext_256_f8}}},
        {{{(void*)attention_tile_64, (void*)attention_tile_64_f8}, {(void*)attention_tile_128, (void*)attention_tile_128_f8}},
         {{(void*)attention_tile_ext_64, (void*)attention_tile_ext_64_f8},
          {(void*)attention_tile_ext_128, (void*)attention_tile_ext_128_f8}}}};
    return of[tile][ext][dim / 128][f8];
}

constexpr u32 SCRATCH_SLOTS = 2048;

// What attention_ext adds, and whether the pools are e4m3.
struct Kind {
    u32 window = 0;
    float cap = 0.0f;
    bool sinks = false, f8 = false;
    bool ext() const { return window != 0 || cap != 0.0f || sinks; }
};

// One sequence of `n` tokens that every slot's table names.
struct World {
    u32 heads, kv_heads, dim, n;
    Kind kind;
    u32 blocks_per_slot, blocks;
    float scale;
    float *qkv, *sinks;      // [n, (heads + 2 kv_heads) dim], [heads]
    float *plain_k, *plain_v; // [n, kv_heads, dim]
    float *read_k, *read_v;   // as reading the pools gives them
    unsigned char *k, *v;     // pools
    std::vector<u32> table;
    unsigned char* scratch;
    u32 columns() const { return (heads + 2 * kv_heads) * dim; }
    u64 block_bytes() const { return (u64)kv_heads * 16 * (kind.f8 ? dim + 4 : 2 * dim); }
    // The first key in reach of a position.
    u32 reach(u32 position) const { return kind.window == 0 || kind.window > position ? 0 : position + 1 - kind.window; }
};

// Tokens at or past `live` become NaN; token `poison` has a key that is no number and values of 0.
__global__ void fill_pool(bf16* pool, const float* plain, float* read, const u32* table, u32 n, u32 live, u32 kv_heads, u32 dim,
                          u32 poison, bool keys) {
    for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < (u64)n * kv_heads * dim; i += (u64)gridDim.x * blockDim.x) {
        u32 d = i % dim, head = i / dim % kv_heads, token = i / dim / kv_heads, t = token % 16;
        u64 atom = (((u64)table[token / 16] * kv_heads + head) * 2 + t / 8) * (dim / 64) + d / 64;
        u64 at = atom * 512 + t % 8 * 64 + ((d % 64 / 8) ^ (t % 8)) * 8 + d % 8;
        bf16 value = __float2bfloat16_rn(plain[i]);
        read[i] = __bfloat162float(value);
        if (token >= live || (token == poison && keys)) value = __ushort_as_bfloat16(0x7fff);
        if (token == poison && !keys) value = __ushort_as_bfloat16(0);
        pool[at] = value;
    }
}

// The same in e4m3: a thread a token and head.
__global__ void fill_pool_f8(unsigned char* pool, const float* plain, float* read, const u32* table, u32 n, u32 live, u32 kv_heads,
                             u32 dim, u32 poison) {
    for (u32 i = blockIdx.x * blockDim.x + threadIdx.x; i < n * kv_heads; i += gridDim.x * blockDim.x) {
        u32 head = i % kv_heads, token = i / kv_heads, t = token % 16;
        float top = 0.0f;
        for (u32 d = 0; d < dim; ++d) top = fmaxf(top, fabsf(plain[(u64)i * dim + d]));
        float scale = top / 448.0f, inverse = 1.0f / scale;
        unsigned char* to = pool + ((u64)table[token / 16] * kv_heads + head) * 16 * (dim + 4);
        for (u32 d = 0; d < dim; ++d) {
            __nv_fp8_storage_t q = __nv_cvt_float_to_fp8(plain[(u64)i * dim + d] * inverse, __NV_SATFINITE, __NV_E4M3);
            __nv_fp8_e4m3 value;
            value.__x = q;
            read[(u64)i * dim + d] = (float)value * scale;
            u32 turn = dim == 64 ? t / 2 % 4 : t % 8;
            to[t * dim + (d / 16 ^ turn) * 16 + d % 16] = token >= live ? 0xff : token == poison ? 0 : q;
        }
        ((float*)(to + 16 * dim))[t] = token >= live || token == poison ? __int_as_float(0x7fc00000) : scale;
    }
}

__global__ void gather(const float* from, float* to, const u32* positions, u32 columns) {
    for (u32 i = threadIdx.x; i < columns; i += blockDim.x) {
        to[(u64)blockIdx.x * columns + i] = from[(u64)positions[blockIdx.x] * columns + i];
    }
}

// Block: a position and a head. out: value and sum of p |v|, f64.
__global__ void reference(const float* qkv, const float* k, const float* v, const float* sinks, const u32* positions, double* out,
                          u32 heads, u32 kv_heads, u32 dim, float scale, u32 window, float cap, bool f8) {
    extern __shared__ double p[];
    __shared__ double fold[128];
    u32 position = positions[blockIdx.x], head = blockIdx.y, kv_head = head / (heads / kv_heads), n = position + 1;
    u32 first = window == 0 || window > position ? 0 : n - window;
    const float* q = qkv + ((u64)position * (heads + 2 * kv_heads) + head) * dim;
    double m = -1e300;
    for (u32 j = first + threadIdx.x; j < n; j += 128) {
        double s = 0;
        for (u32 d = 0; d < dim; ++d) {
            s += (double)(f8 ? __half2float(__float2half_rn(q[d])) : __bfloat162float(__float2bfloat16_rn(q[d]))) * (double)k[((u64)j * kv_heads + kv_head) * dim + d];
        }
        p[j] = cap > 0 ? cap * tanh(s * scale / cap) : s * scale;
        m = max(m, p[j]);
    }
    fold[threadIdx.x] = m;
    __syncthreads();
    for (u32 i = 0; i < 128; ++i) m = max(m, fold[i]);
    if (sinks) m = max(m, (double)sinks[head]);
    double l = 0;
    for (u32 j = first + threadIdx.x; j < n; j += 128) l += p[j] = exp(p[j] - m);
    __syncthreads();
    fold[threadIdx.x] = l;
    __syncthreads();
    l = 0;
    for (u32 i = 0; i < 128; ++i) l += fold[i];
    if (sinks) l += exp((double)sinks[head] - m);
    for (u32 d = threadIdx.x; d < dim; d += 128) {
        double o = 0, a = 0;
        for (u32 j = first; j < n; ++j) {
            double x = p[j] * (double)v[((u64)j * kv_heads + kv_head) * dim + d];
            o += x;
            a += fabs(x);
        }
        u64 at = (((u64)blockIdx.x * heads + head) * dim + d) * 2;
        out[at] = o / l;
        out[at + 1] = a / l;
    }
}

inline World make_world(u32 heads, u32 kv_heads, u32 dim, u32 n, Kind kind, u64 seed) {
    World w{heads, kv_heads, dim, n, kind, (n + 15) / 16, 0, 1.0f / sqrtf((float)dim)};
    w.blocks = w.blocks_per_slot + 5;
    u64 values = (u64)n * kv_heads * dim;
    w.qkv = random_device<float>((u64)n * w.columns(), seed, 1.5f);
    w.sinks = random_device<float>(heads, seed + 3, 2.0f);
    w.plain_k = random_device<float>(values, seed + 1, 1.2f);
    w.plain_v = random_device<float>(values, seed + 2);
    w.read_k = device<float>(values);
    w.read_v = device<float>(values);
    for (u32 i = 0; i < w.blocks; ++i) w.table.push_back(i);
    for (u32 i = w.blocks - 1; i > 0; --i) std::swap(w.table[i], w.table[hash32(seed * 77 + i) % (i + 1)]);
    w.table.resize(w.blocks_per_slot);
    w.k = device<unsigned char>(w.blocks * w.block_bytes());
    w.v = device<unsigned char>(w.blocks * w.block_bytes());
    u64 bytes = 262144 + (u64)SCRATCH_SLOTS * heads * (dim + 4) * 4;
    w.scratch = device<unsigned char>(bytes);
    CHECK(cudaMemset(w.scratch, 0, 262144));
    return w;
}

inline void set_live(World& w, u32 live, u32 poison = ~0u) {
    u32* table = upload(w.table);
    for (bool keys : {true, false}) {
        unsigned char* pool = keys ? w.k : w.v;
        float *plain = keys ? w.plain_k : w.plain_v, *read = keys ? w.read_k : w.read_v;
        if (w.kind.f8) {
            fill_pool_f8<<<512, 256, 0, stream()>>>(pool, plain, read, table, w.n, live, w.kv_heads, w.dim, poison);
        } else {
            fill_pool<<<512, 256, 0, stream()>>>((bf16*)pool, plain, read, table, w.n, live, w.kv_heads, w.dim, poison, keys);
        }
        CHECK(cudaGetLastError());
    }
    sync();
    CHECK(cudaFree(table));
}

// NO_TILE=1 leaves attention_tile out.
inline bool use_tile() { return getenv("NO_TILE") == nullptr; }

struct Kernel {
    bool tile;
    u32 z = 0, stages = 1; // z 0: the formula
};

// PROCESSORS=3: as if the device had three, for many tiles a block.
inline u32 processors() {
    static int n = getenv("PROCESSORS") ? atoi(getenv("PROCESSORS")) : 0;
    if (n == 0) CHECK(cudaDeviceGetAttribute(&n, cudaDevAttrMultiProcessorCount, 0));
    return n;
}

inline u32 tiles(u32 n, u32 m) { return (n + m - 1) / m; }

inline void call_attention(const World& w, Kernel kernel, const float* qkv, const void* k, const void* v, const u32* tables,
                           u32 blocks_per_slot, bf16* a, const u32* step, u32 bucket, u32 slots) {
    u32 group = w.heads / w.kv_heads;
    u32 y = w.kv_heads * tiles(group, 16), z = kernel.z ? kernel.z : tiles(w.dim == 256 ? 264 : 512, bucket * w.kv_heads);
    u32 stages = w.dim == 256 ? 1 : kernel.stages;
    Where where{dim3(bucket, y, z), 160, stages * (w.kind.f8 ? 256 * (w.dim + 4) : 512 * w.dim)};
    if (kernel.tile) where = {dim3(std::min(processors(), w.kv_heads * (bucket / std::max(1u, 128 / group) + slots))), 384, TILE_SHARED(w.dim)};
    const void* f = attention_of(kernel.tile, w.kind.ext(), w.dim, w.kind.f8);
    if (w.kind.ext()) {
        launch(f, where, qkv, k, v, tables, (const float*)w.sinks, a, w.heads, w.kv_heads, w.dim, blocks_per_slot, w.kind.window,
               (u32)w.kind.sinks, w.scale, w.kind.cap, step, w.scratch);
    } else {
        launch(f, where, qkv, k, v, tables, a, w.heads, w.kv_heads, w.dim, blocks_per_slot, w.scale, step, w.scratch);
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
        for (u32 i = w.reach(r.first) / 16; i <= (r.first + r.rows - 1) / 16; ++i) tables[(u64)r.slot * w.blocks_per_slot + i] = w.table[i];
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
    reference<<<dim3(positions.size(), w.heads), 128, w.n * 8, stream()>>>(
        w.qkv, w.read_k, w.read_v, w.kind.sinks ? w.sinks : nullptr, list, ref, w.heads, w.kv_heads, w.dim, w.scale, w.kind.window,
        w.kind.cap, w.kind.f8);
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

// A token whose values are no numbers makes NaN of the rows that reach it and leaves the rest alone.
inline void check_poison(World& w, const std::vector<std::vector<uint16_t>>& out) {
    u32 token = w.n / 2 + 3, first = token - 6, rows = 12;
    if (w.kind.window != 0) rows = std::min(w.n - first, 12 + w.kind.window);
    set_live(w, w.n, token);
    for (bool tile : {false, true}) {
        if (tile && (!use_tile() || w.dim == 256)) continue;
        std::vector<std::vector<uint16_t>> got(w.n);
        run_step(w, {tile, 0, 1}, {{0, first, rows}}, got);
        bool good = true;
        for (u32 p = first; p < first + rows; ++p) {
            bool reached = p >= token && w.reach(p) <= token;
            for (uint16_t v : got[p]) good = good && (!reached || (v & 0x7fff) > 0x7f80);
            good = good && (reached || out[p].empty() || got[p] == out[p]);
        }
        verdict(good, tile ? "tile: NaN stays in its rows" : "split: NaN stays in its rows");
    }
}

inline void check_attention(u32 heads, u32 kv_heads, u32 dim, u32 n, bool small, Kind kind = {}) {
    World w = make_world(heads, kv_heads, dim, n, kind, 1000 + n + dim + heads);
    bool with_tile = use_tile() && dim != 256;
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
        if (with_tile) run_step(w, {true}, {{0, p, 1}}, out);
    }
    double worst = worst_of(w, odd, out);
    // Crowds.
    for (u32 rows : small ? std::vector<u32>{17} : std::vector<u32>{3, 17, 200}) {
        std::vector<Run> runs;
        for (u32 i = 0; i < rows; ++i) runs.push_back({i, i < odd.size() ? odd[i] : hash32(i * 31 + rows) % n, 1});
        run_step(w, {false, 0, 1}, runs, out);
        run_step(w, {false, 2, 2}, runs, out);
        if (with_tile) run_step(w, {true}, runs, out);
    }
    // Whole and in chunks; then chunks of two sequences with decode rows between.
    for (bool tile : {false, true}) {
        if (tile && !with_tile) break;
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
        if (with_tile) run_step(w, {true}, {{0, live - rows, rows}}, out);
    }
    check_poison(w, out);
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
    printf("attention %s heads %u/%u dim %u n %u window %u cap %g sinks %d: error/bound %.3f (alone) %.3f (all), bit failures %d\n", kind.f8 ? "e4m3" : "bf16", heads,
           kv_heads, dim, n, kind.window, kind.cap, kind.sinks, worst, all, failures() - before);
    verdict(worst <= 1 && all <= 1, "attention error");
    for (void* p : {(void*)w.qkv, (void*)w.sinks, (void*)w.plain_k, (void*)w.plain_v, (void*)w.read_k, (void*)w.read_v, (void*)w.k,
                    (void*)w.v, (void*)w.scratch}) {
        CHECK(cudaFree(p));
    }
}

// Few launches that reach every path, for racecheck, which takes its time.
inline void check_races() {
    for (bool f8 : {false, true}) {
        World w = make_world(8, 2, 128, 900, {f8 ? 300u : 0, 0, false, f8}, 5);
        set_live(w, w.n);
        std::vector<std::vector<uint16_t>> out(w.n);
        run_step(w, {false, 64, 1}, {{0, 899, 1}, {1, 500, 3}}, out);
        run_step(w, {false, 1, 2}, {{0, 899, 1}}, out);
        run_step(w, {true}, {{0, 500, 70}}, out);
        printf("%s: done\n", f8 ? "e4m3" : "bf16");
    }
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

// Random bytes with scales of 0.01, a block of one head after the other.
__global__ void fill_f8(u32* pool, u64 words, u32 dim, u32 seed) {
    u32 per = 4 * (dim + 4);
    for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < words; i += (u64)gridDim.x * blockDim.x) {
        pool[i] = i % per >= 4 * dim ? 0x3c23d70au : hash32(i * 2 + seed) & 0xb7b7b7b7u; // magnitudes up to 15
    }
}

// Decode at 1 and 64 rows of 4096 tokens, and what serving meets most; bf16, e4m3, a window of 1024.
inline void time_formats() {
    const u32 HEADS = 32, KV = 8, DIM = 128, LAYERS = 36, ROWS = 8192;
    u32 blocks = 49152; // 3.2 GB of bf16
    u64 bytes = (u64)blocks * KV * 16 * DIM * 2;
    unsigned char *k = (unsigned char*)random_device<bf16>(bytes / 2, 5), *v = (unsigned char*)random_device<bf16>(bytes / 2, 6);
    unsigned char* scratch = device<unsigned char>(262144 + (u64)SCRATCH_SLOTS * HEADS * (DIM + 4) * 4);
    CHECK(cudaMemset(scratch, 0, 262144));
    float* qkv = random_device<float>((u64)ROWS * (HEADS + 2 * KV) * DIM, 7);
    bf16* a = device<bf16>((u64)ROWS * HEADS * DIM);
    u32* sink = device<u32>(1);
    double read = 0;
    for (u32 grid : {132 * 8, 132 * 16}) {
        double us = time_us(2, [&] {
            read_all<<<grid, 256, 0, stream()>>>((const uint4*)k, bytes / 16, sink);
            read_all<<<grid, 256, 0, stream()>>>((const uint4*)v, bytes / 16, sink);
        });
        read = std::max(read, bytes / us / 1e6);
    }
    printf("read roofline %.3f TB/s\n", read);
    std::vector<u32> order(blocks);
    for (u32 i = 0; i < blocks; ++i) order[i] = i;
    for (u32 i = blocks - 1; i > 0; --i) std::swap(order[i], order[hash32(i) % (i + 1)]);
    for (Kind kind : {Kind{}, Kind{1024, 0, false, false}, Kind{0, 0, false, true}, Kind{1024, 50.0f, false, true}}) {
        if (kind.f8 && kind.window == 0) {
            for (unsigned char* pool : {k, v}) fill_f8<<<1024, 256, 0, stream()>>>((u32*)pool, bytes / 8, DIM, pool == k);
        }
        World w{HEADS, KV, DIM, 0, kind, 0, 0, 1.0f / sqrtf(128.0f)};
        w.scratch = scratch;
        u32 usable = kind.f8 ? blocks / 2 - 1 : blocks;
        for (std::pair<u32, u32> shape : {std::pair<u32, u32>{1, 384}, {1, 4096}, {64, 384}, {64, 4096}, {256, 384}}) {
            u32 rows = shape.first, context = shape.second;
            u32 per = context / 16, sets = std::min(LAYERS, usable / (rows * per)), seen = kind.window ? std::min(kind.window, context) : context;
            if (sets == 0) continue;
            StepWords words;
            for (u32 i = 0; i < rows; ++i) words.run(i, context - 1, 1);
            u32* step = words.upload();
            std::vector<u32*> tables;
            for (u32 set = 0; set < sets; ++set) {
                std::vector<u32> t;
                for (u32 i = 0; t.size() < (size_t)rows * per; ++i) {
                    u32 block = order[(set * rows * per + i) % blocks];
                    if (block < usable) t.push_back(block);
                }
                tables.push_back(upload(t));
            }
            double floor = (double)rows * seen * KV * 2 * (kind.f8 ? DIM + 4 : 2 * DIM) / read / 1e6;
            printf("decode %s window %4u: %3u x %4u: floor %6.2f us |", kind.f8 ? "e4m3" : "bf16", kind.window, rows, context, floor);
            for (u32 stages : {1, 2, 4}) {
                if (stages == 4 && !kind.f8) continue;
                double us = time_us(LAYERS, [&] {
                    for (u32 layer = 0; layer < LAYERS; ++layer) {
                        call_attention(w, {false, 0, stages}, qkv, k, v, tables[layer % sets], per, a, step, rows, rows);
                    }
                }, 5);
                printf(" %u stages %.2f (%.0f%%)", stages, us, 100 * floor / us);
            }
            printf("\n");
            CHECK(cudaFree(step));
            for (u32* t : tables) CHECK(cudaFree(t));
        }
        for (u32 rows : {2048, 8192}) {
            u32 per = rows / 16;
            StepWords words;
            words.run(0, 0, rows);
            std::vector<u32> t(order.begin(), order.begin() + per);
            for (u32& block : t) block %= usable;
            u32 *step = words.upload(), *table = upload(t);
            double us = time_us(4, [&] {
                for (u32 i = 0; i < 4; ++i) call_attention(w, {true}, qkv, k, v, table, per, a, step, rows, 1);
            }, 5);
            double pairs = 0;
            for (u32 p = 0; p < rows; ++p) pairs += p + 1 - w.reach(p);
            printf("prefill %s window %u: %u rows %.1f us, %.0f TFLOP/s\n", kind.f8 ? "e4m3" : "bf16", kind.window, rows, us,
                   4.0 * HEADS * DIM * pairs / us / 1e6);
            CHECK(cudaFree(step));
            CHECK(cudaFree(table));
        }
    }
    for (void* p : {(void*)k, (void*)v, (void*)qkv, (void*)a, (void*)scratch}) CHECK(cudaFree(p));
}

inline void time_attention() {
    const u32 HEADS = 32, KV = 8, DIM = 128, LAYERS = 36;
    World w{HEADS, KV, DIM, 0, {}, 0, 0, 1.0f / sqrtf(128.0f)};
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
