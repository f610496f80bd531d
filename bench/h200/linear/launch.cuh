// SPDX-License-Identifier: MIT OR Apache-2.0
// The kernels as a host launches them: one function that knows each point's launch facts, and small helpers.
#pragma once

#include <cuda.h>
#include <cuda_fp8.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

// Points beside those of the tree, to compare with.
#define HALVES_POINTS(X) \
    X(t16k1, 1, 16, 12) X(t32k1, 1, 32, 10) X(t64k1, 1, 64, 9) X(t128k1, 1, 128, 6) X(t128k2, 2, 128, 6)

#include "linear_halves.cu"
#include "linear_serial.cu"
#undef SERIAL
#include "linear_serial_f8.cu"
#include "linear_split.cu"
#undef SPLIT
#include "linear_split_f8.cu"
#include "norm.cu"
#include "pack_tiles.cu"

#define CHECK(call)                                                                                          \
    do {                                                                                                     \
        cudaError_t e = (call);                                                                              \
        if (e != cudaSuccess) {                                                                              \
            printf("%s:%d: %s: %s\n", __FILE__, __LINE__, #call, cudaGetErrorString(e));                     \
            exit(1);                                                                                         \
        }                                                                                                    \
    } while (0)

enum Format { BF16, F8_ROW, F8_BLOCK };
static const char* const FORMAT_NAMES[] = {"bf16", "f8_row", "f8_block"};

// Bytes of a row of k values: e4m3 rows carry their scales behind the values.
__host__ __device__ inline u32 row_pitch(Format f, u32 k) {
    return f == BF16 ? 2 * k : f == F8_ROW ? k + 128 : k + (k / 128 * 4 + 127) / 128 * 128;
}

// A linear as a model states it: n rows of k; swiglu has n = 2 ffn; `add` adds into the residual, row by row of n.
struct Shape {
    const char* name;
    u32 n, k;
    bool paired;
    Format format = BF16;
    bool add = false;

    u32 end() const { return paired ? 1 : add ? 2 : 0; } // of PointFacts::kernels

    u64 padded() const { return (u64)(n + 127) / 128 * 128; }
    u64 tile_bytes() const { return padded() * k * (format == BF16 ? 2 : 1); }
    u64 packed_bytes() const { return tile_bytes() + (format == BF16 ? 0 : format == F8_ROW ? padded() * 4 : padded() / 128 * (k / 128) * 64); }
    u32 segments() const { return linear_segments(k / (format == BF16 ? 64 : 128), n); }
    u32 pitch() const { return row_pitch(format, k); }
};

#define POINT_ENUM(NAME, ...) P_##NAME,
enum Point {
    SPLIT_POINTS(POINT_ENUM) SPLIT_BF16_POINTS(POINT_ENUM) HALVES_POINTS(POINT_ENUM) SERIAL_POINTS(POINT_ENUM) P_t192, P_tall, POINTS
};

enum Schedule { SPLIT_K, HALVES_OF_K, SERIAL_K };

struct PointFacts {
    const char* name;
    const void* kernels[3][3]; // by format; linear, swiglu, add; null where there is none
    Schedule schedule;
    u32 rows, threads, shared[3], tokens, folded; // rows a block; shared memory by format; tokens a
    // tile with S = 1, with more
};

static const PointFacts& facts(Point p) {
#define KERNELS(FORMAT, NAME) \
    {(void*)linear_##FORMAT##_##NAME, (void*)linear_swiglu_##FORMAT##_##NAME, (void*)linear_add_##FORMAT##_##NAME}
#define UNPAIRED(FORMAT, NAME) {(void*)linear_##FORMAT##_##NAME, nullptr, (void*)linear_add_##FORMAT##_##NAME}
#define SPLIT_REST(GROUPS, N, STAGES)                                                                           \
    SPLIT_K, GROUPS * 64, GROUPS * 128 + 32, {Split<GROUPS, N, STAGES>::BYTES, Split<GROUPS, N, STAGES, RowScales>::BYTES, Split<GROUPS, N, STAGES, BlockScales>::BYTES}, N, N
#define SPLIT_FACTS(NAME, GROUPS, N, STAGES, BLOCKS)                                                            \
    {#NAME, {KERNELS(bf16, NAME), KERNELS(f8_row, NAME), KERNELS(f8_block, NAME)}, SPLIT_REST(GROUPS, N, STAGES)},
#define SPLIT_BF16_FACTS(NAME, GROUPS, N, STAGES, BLOCKS) {#NAME, {KERNELS(bf16, NAME), {}, {}}, SPLIT_REST(GROUPS, N, STAGES)},
#define HALVES_FACTS(NAME, A, N, STAGES)                                                                        \
    {#NAME, {UNPAIRED(bf16, NAME), UNPAIRED(f8_row, NAME), UNPAIRED(f8_block, NAME)},                               \
     HALVES_OF_K, 128 * A, 384, {Halves<N, STAGES>::BYTES, Halves<N, STAGES, RowScales>::BYTES, Halves<N, STAGES, BlockScales>::BYTES}, N, N},
#define SERIAL_FACTS(NAME, N, STAGES, FOLD_N, FOLD_STAGES)                                                      \
    {#NAME, {KERNELS(bf16, NAME), {}, {}}, SERIAL_K, 128, 384,                                                  \
     {std::max(Serial<N, STAGES>::BYTES, Serial<FOLD_N, FOLD_STAGES>::BYTES), Serial<FOLD_N, FOLD_STAGES, RowScales>::BYTES, \
      Serial<FOLD_N, FOLD_STAGES, BlockScales>::BYTES}, N, FOLD_N},
    static PointFacts all[POINTS] = {SPLIT_POINTS(SPLIT_FACTS) SPLIT_BF16_POINTS(SPLIT_BF16_FACTS)
                                       HALVES_POINTS(HALVES_FACTS) SERIAL_POINTS(SERIAL_FACTS)
                                       {"t192", {{}, {(void*)linear_f8_row_t192, (void*)linear_swiglu_f8_row_t192}, {}}, SERIAL_K, 128, 384, {0, Serial<192, 5, RowScales>::BYTES, 0}, 192, 192},
                                       {"tall", {{(void*)linear_bf16_tall, (void*)linear_swiglu_bf16_tall}, {}, {}}, SERIAL_K, 192, 512, {Serial<256, 4, Unscaled, 3>::BYTES, 0, 0}, 256, 256}};
    const void* t128[2][3] = {KERNELS(f8_row, t128), KERNELS(f8_block, t128)};
    memcpy(all[P_t128].kernels[F8_ROW], t128, sizeof t128);
    return all[p];
}

// Whether the point takes the shape.
static bool takes(Point p, const Shape& s) {
    const PointFacts& f = facts(p);
    bool segments = f.schedule != HALVES_OF_K || s.segments() == 2 || s.segments() == 4;
    segments = segments && (p < P_t192 || s.segments() == 1); // without a fold
    return segments && f.kernels[s.format][s.end()] != nullptr;
}

static CUtensorMap encode_map(CUtensorMapDataType type, const void* at, u32 columns, u32 rows, u32 pitch, u32 box_columns,
                              u32 box_rows, CUtensorMapSwizzle swizzle) {
    static auto encode = [] {
        void* f = nullptr;
        cudaDriverEntryPointQueryResult found;
        CHECK(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &f, 12000, cudaEnableDefault, &found));
        return (decltype(&cuTensorMapEncodeTiled))f;
    }();
    CUtensorMap map;
    cuuint64_t dims[2] = {columns, rows}, strides[1] = {pitch};
    cuuint32_t box[2] = {box_columns, box_rows}, steps[2] = {1, 1};
    CUresult r = encode(&map, type, 2, (void*)at, dims, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle,
                        CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (r != CUDA_SUCCESS) printf("cuTensorMapEncodeTiled: %d\n", r), exit(1);
    return map;
}

static CUtensorMap token_map(const void* x, const Shape& s, u32 rows, u32 box_rows) {
    bool wide = s.format == BF16;
    return encode_map(wide ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_UINT8, x, s.k, rows, s.pitch(), wide ? 64 : 128,
                      box_rows, CU_TENSOR_MAP_SWIZZLE_128B);
}

// Scales of x in f8_block: one f32 a k block behind each row's values.
static CUtensorMap scale_map(const void* x, const Shape& s, u32 rows, u32 box_rows) {
    return encode_map(CU_TENSOR_MAP_DATA_TYPE_FLOAT32, (const u8*)x + s.k, s.k / 128, rows, s.pitch(), 4, box_rows, CU_TENSOR_MAP_SWIZZLE_NONE);
}

// x holds `limit` rows; the launch is that of a bucket of `rows`; the live count stands in `step`.
struct Call {
    const void* x;
    const u8* w;
    const float* bias;
    void* y;
    u32 y_col, y_ld, limit, rows;
    const u32* step;
};

static void launch(cudaStream_t stream, Point p, const Shape& s, const Call& c, bool pdl) {
    const PointFacts& f = facts(p);
    u32 cluster = f.schedule == SPLIT_K ? s.segments() : f.schedule == HALVES_OF_K ? f.rows / 64 : 2;
    u32 tiles = (s.n + f.rows - 1) / f.rows, token_tiles = (c.rows + f.tokens - 1) / f.tokens;
    cudaLaunchConfig_t config = {};
    config.gridDim = f.schedule == SPLIT_K       ? dim3(tiles * cluster, token_tiles)
                     : f.schedule == HALVES_OF_K ? dim3(tiles * cluster, token_tiles)
                                                 : dim3(132);
    config.blockDim = dim3(f.threads);
    config.dynamicSmemBytes = f.shared[s.format];
    config.stream = stream;
    cudaLaunchAttribute attributes[2] = {};
    attributes[0].id = cudaLaunchAttributeClusterDimension;
    attributes[0].val.clusterDim.x = cluster;
    attributes[0].val.clusterDim.y = attributes[0].val.clusterDim.z = 1;
    attributes[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[1].val.programmaticStreamSerializationAllowed = 1;
    config.attrs = attributes;
    config.numAttrs = pdl ? 2 : 1;
    u32 part = f.schedule == SPLIT_K || (f.schedule == HALVES_OF_K && f.rows == 128) ? 1 : 2; // loaded by so many blocks
    CUtensorMap map = token_map(c.x, s, c.limit, f.tokens / part), second = token_map(c.x, s, c.limit, f.folded / part);
    if (s.format == F8_BLOCK) second = scale_map(c.x, s, c.limit, f.tokens / part);
    u32 k = s.k, n = s.n, ffn = s.n / 2, y_col = c.y_col, y_ld = c.y_ld, has_bias = c.bias != nullptr, unit = 0;
    const void* x = c.x;
    const u8* w = c.w;
    const float* bias = c.bias;
    void* y = c.y;
    const u32* step = c.step;
    const void* kernel = f.kernels[s.format][s.end()];
    CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, config.dynamicSmemBytes));
    if (s.paired) {
        void* args[] = {&x, &w, &y, &k, &ffn, &step, &map, &second};
        CHECK(cudaLaunchKernelExC(&config, kernel, args));
    } else if (s.add) {
        void* args[] = {&x, &w, &bias, &y, &k, &n, &has_bias, &unit, &step, &map, &second};
        CHECK(cudaLaunchKernelExC(&config, kernel, args));
    } else {
        void* args[] = {&x, &w, &bias, &y, &k, &n, &y_col, &y_ld, &has_bias, &unit, &step, &map, &second};
        CHECK(cudaLaunchKernelExC(&config, kernel, args));
    }
}

// Clusters of `blocks` that the device holds at a time.
static int clusters_held(Point p, u32 blocks) {
    const PointFacts& f = facts(p);
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(132 * 8 / blocks * blocks);
    config.blockDim = dim3(f.threads);
    config.dynamicSmemBytes = f.shared[BF16];
    cudaLaunchAttribute attribute = {};
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim.x = blocks;
    attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
    config.attrs = &attribute;
    config.numAttrs = 1;
    int held = 0;
    CHECK(cudaFuncSetAttribute(f.kernels[BF16][0], cudaFuncAttributeMaxDynamicSharedMemorySize, f.shared[BF16]));
    CHECK(cudaOccupancyMaxActiveClusters(&held, f.kernels[BF16][0], &config));
    return held;
}

template <class T>
static T* device_alloc(u64 count) {
    T* p;
    CHECK(cudaMalloc(&p, count * sizeof(T)));
    return p;
}

// Close to normal: the sum of four uniforms, of deviation `scale`; every 509th value of `outliers` is 20 times as large.
__global__ void fill_random(bf16* to, u64 count, float scale, u32 seed, bool outliers) {
    for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += (u64)gridDim.x * blockDim.x) {
        u64 h = (i + 1) * 0x9e3779b97f4a7c15ull + (u64)seed * 0xd1b54a32d192ed03ull;
        h = (h ^ h >> 30) * 0xbf58476d1ce4e5b9ull;
        h = (h ^ h >> 27) * 0x94d049bb133111ebull;
        h ^= h >> 31;
        float sum = 0;
        for (int j = 0; j < 4; ++j) sum += (float)(h >> 16 * j & 0xffff) / 65536.0f - 0.5f;
        float v = sum * 1.7320508f * scale;
        to[i] = __float2bfloat16_rn(outliers && i % 509 == 7 ? 20 * v : v);
    }
}

// e4m3 values of deviation 64, and f32 scales near `scale` / 64 behind the values: of the row, or of each 128 values, equal
// over eight rows if `eights`.
__global__ void fill_f8_rows(u8* to, Format format, u32 rows, u32 k, float scale, u32 seed, bool eights) {
    auto hash = [&](u64 i) {
        u64 h = (i + 1) * 0x9e3779b97f4a7c15ull + (u64)seed * 0xd1b54a32d192ed03ull;
        h = (h ^ h >> 30) * 0xbf58476d1ce4e5b9ull;
        h = (h ^ h >> 27) * 0x94d049bb133111ebull;
        return h ^ h >> 31;
    };
    u32 pitch = row_pitch(format, k), of = format == F8_ROW ? k : 128;
    for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < (u64)rows * k; i += (u64)gridDim.x * blockDim.x) {
        u64 h = hash(i), row = i / k, col = i % k;
        float sum = (float)(h & 0xffff) / 65536.0f + (float)(h >> 16 & 0xffff) / 65536.0f + (float)(h >> 32 & 0xffff) / 65536.0f - 1.5f;
        to[row * pitch + col] = __nv_cvt_float_to_fp8(sum * 128.0f, __NV_SATFINITE, __NV_E4M3);
        u64 group = (eights ? row / 8 : row) * (k / of) + col / of;
        if (col % of == 0) *(float*)(to + row * pitch + k + col / of * 4) = scale / 64.0f * (0.5f + (float)(hash(~group) >> 48) / 65536.0f);
    }
}

// Packs such rows as the loader's pack points do: tiles, then scales of packed rows, or of each eight of them and k block.
__global__ void pack_f8(const u8* rows, u8* packed, Format format, u32 n, u32 k, bool paired) {
    u64 padded = (u64)(n + 127) / 128 * 128;
    u8* scales = packed + padded * k;
    for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < padded * (k / 16); i += (u64)gridDim.x * blockDim.x) {
        u32 row = (u32)(i / (k / 16)), chunk = (u32)(i % (k / 16)), to = row < n && paired ? paired_row(row, n / 2) : row;
        const u8* from = rows + (u64)row * row_pitch(format, k);
        *(uint4*)(packed + packed_chunk(to, chunk, k / 128)) = row < n ? *(const uint4*)(from + chunk * 16) : make_uint4(0, 0, 0, 0);
        if (format == F8_ROW && chunk == 0) *(float*)(scales + to * 4) = row < n ? *(const float*)(from + k) : 0.0f;
        if (format == F8_BLOCK && chunk % 8 == 0 && row % 8 == 0) {
            u64 at = ((u64)(to / 128) * (k / 128) + chunk / 8) * 16 + to % 128 / 8;
            *(float*)(scales + at * 4) = row < n ? *(const float*)(from + k + chunk / 8 * 4) : 0.0f;
        }
    }
}

static void set_rows(u32* step, u32 rows) {
    u32 words[32] = {rows, rows};
    CHECK(cudaMemcpy(step, words, sizeof words, cudaMemcpyHostToDevice));
}
