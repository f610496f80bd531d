// SPDX-License-Identifier: MIT OR Apache-2.0
// The kernels as a host launches them: one function that knows each point's launch facts, and small helpers.
#pragma once

#include <cuda.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "linear_serial.cu"
#include "linear_split.cu"
#include "pack_tiles.cu"

#define CHECK(call)                                                                                          \
    do {                                                                                                     \
        cudaError_t e = (call);                                                                              \
        if (e != cudaSuccess) {                                                                              \
            printf("%s:%d: %s: %s\n", __FILE__, __LINE__, #call, cudaGetErrorString(e));                     \
            exit(1);                                                                                         \
        }                                                                                                    \
    } while (0)

// A linear as a model states it: n rows of k; swiglu has n = 2 ffn.
struct Shape {
    const char* name;
    u32 n, k;
    bool paired;

    u64 packed_bytes() const { return (u64)(n + 127) / 128 * 128 * k * 2; }
    u32 segments() const { return linear_segments(k / 64, n); }
};

enum Point { N8, N16, N32, N64, N128, N256, T128, WIDE, POINTS };
static const char* const POINT_NAMES[] = {"n8", "n16", "n32", "n64", "n128", "n256", "t128", "wide"};

struct PointFacts {
    const void *linear, *swiglu;
    u32 tokens, shared;
};

static const PointFacts& facts(Point p) {
#define SPLIT_FACTS(N, STAGES) {(void*)linear_bf16_n##N, (void*)linear_swiglu_bf16_n##N, N, SplitShared<N, STAGES>::BYTES}
    static const PointFacts all[POINTS] = {
        SPLIT_FACTS(8, 6), SPLIT_FACTS(16, 6), SPLIT_FACTS(32, 5), SPLIT_FACTS(64, 4), SPLIT_FACTS(128, 6), SPLIT_FACTS(256, 4),
        {(void*)linear_bf16_t128, (void*)linear_swiglu_bf16_t128, 128, SerialShared<128, 6>::BYTES},
        {(void*)linear_bf16_wide, (void*)linear_swiglu_bf16_wide, 256,
         std::max(SerialShared<256, 4>::BYTES, SerialShared<192, 5>::BYTES)},
    };
    return all[p];
}

static CUtensorMap token_map(const bf16* x, u32 rows, u32 k, u32 box_rows) {
    static auto encode = [] {
        void* f = nullptr;
        cudaDriverEntryPointQueryResult found;
        CHECK(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &f, 12000, cudaEnableDefault, &found));
        return (decltype(&cuTensorMapEncodeTiled))f;
    }();
    CUtensorMap map;
    cuuint64_t dims[2] = {k, rows}, strides[1] = {(cuuint64_t)k * 2};
    cuuint32_t box[2] = {64, box_rows}, steps[2] = {1, 1};
    CUresult r = encode(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, (void*)x, dims, strides, box, steps,
                        CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                        CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (r != CUDA_SUCCESS) printf("cuTensorMapEncodeTiled: %d\n", r), exit(1);
    return map;
}

// x holds `limit` rows; the launch is that of a bucket of `rows`; the live count stands in `step`.
struct Call {
    const bf16* x;
    const u8* w;
    const float* bias;
    void* y;
    u32 y_col, y_ld, limit, rows;
    const u32* step;
};

static void launch(cudaStream_t stream, Point p, const Shape& s, const Call& c, bool pdl) {
    const PointFacts& f = facts(p);
    bool split = p <= N256;
    u32 cluster = split ? s.segments() : 2;
    cudaLaunchConfig_t config = {};
    config.gridDim = split ? dim3((s.n + 127) / 128 * cluster, (c.rows + f.tokens - 1) / f.tokens) : dim3(132);
    config.blockDim = dim3(split ? THREADS : SERIAL_THREADS);
    config.dynamicSmemBytes = f.shared;
    config.stream = stream;
    cudaLaunchAttribute attributes[2] = {};
    attributes[0].id = cudaLaunchAttributeClusterDimension;
    attributes[0].val.clusterDim.x = cluster;
    attributes[0].val.clusterDim.y = attributes[0].val.clusterDim.z = 1;
    attributes[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[1].val.programmaticStreamSerializationAllowed = 1;
    config.attrs = attributes;
    config.numAttrs = pdl ? 2 : 1;
    u32 box = split ? f.tokens : f.tokens / 2;
    CUtensorMap map = token_map(c.x, c.limit, s.k, box), folded = token_map(c.x, c.limit, s.k, 96);
    u32 k = s.k, n = s.n, ffn = s.n / 2, y_col = c.y_col, y_ld = c.y_ld, has_bias = c.bias != nullptr, unit = 0;
    const bf16* x = c.x;
    const u8* w = c.w;
    const float* bias = c.bias;
    void* y = c.y;
    const u32* step = c.step;
    const void* kernel = s.paired ? f.swiglu : f.linear;
    CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, f.shared));
    if (s.paired) {
        void* args[] = {&x, &w, &y, &k, &ffn, &step, &map, &folded};
        CHECK(cudaLaunchKernelExC(&config, kernel, args));
    } else {
        void* args[] = {&x, &w, &bias, &y, &k, &n, &y_col, &y_ld, &has_bias, &unit, &step, &map, &folded};
        CHECK(cudaLaunchKernelExC(&config, kernel, args));
    }
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

static void set_rows(u32* step, u32 rows) {
    u32 words[32] = {rows, rows};
    CHECK(cudaMemcpy(step, words, sizeof words, cudaMemcpyHostToDevice));
}
