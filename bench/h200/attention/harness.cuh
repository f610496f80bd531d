// SPDX-License-Identifier: MIT OR Apache-2.0
// What the trials share: checked calls, a launch with programmatic dependence, random data by hash, the step block, graph
// timing. Kernels are called through their host symbols: they are compiled apart, with the flags of the tree.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <functional>
#include <vector>

typedef uint32_t u32;
typedef uint64_t u64;
typedef __nv_bfloat16 bf16;

#define CHECK(call)                                                                                   \
    do {                                                                                              \
        cudaError_t e_ = (call);                                                                      \
        if (e_ != cudaSuccess) {                                                                      \
            printf("%s:%d %s: %s\n", __FILE__, __LINE__, #call, cudaGetErrorString(e_));              \
            exit(1);                                                                                  \
        }                                                                                             \
    } while (0)

inline cudaStream_t stream() {
    static cudaStream_t s = [] {
        cudaStream_t s;
        CHECK(cudaStreamCreate(&s));
        return s;
    }();
    return s;
}

struct Where {
    dim3 grid;
    u32 block;
    u32 shared = 0;
    bool pdl = true;
};

template <typename... Args>
void launch(const void* kernel, Where w, Args... args) {
    if (w.shared > 48 * 1024) {
        CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, w.shared));
    }
    cudaLaunchConfig_t config = {};
    config.gridDim = w.grid;
    config.blockDim = dim3(w.block);
    config.dynamicSmemBytes = w.shared;
    config.stream = stream();
    cudaLaunchAttribute attribute = {};
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    config.attrs = &attribute;
    config.numAttrs = w.pdl ? 1 : 0;
    void* list[] = {(void*)&args...};
    CHECK(cudaLaunchKernelExC(&config, kernel, list));
    CHECK(cudaGetLastError());
}

inline void sync() { CHECK(cudaStreamSynchronize(stream())); }

template <typename T>
T* device(u64 n, int fill = 0xff) { // 0xff: NaN in f32 and bf16
    T* p;
    CHECK(cudaMalloc(&p, n * sizeof(T)));
    CHECK(cudaMemset(p, fill, n * sizeof(T)));
    return p;
}

template <typename T>
T* upload(const std::vector<T>& v) {
    T* p = device<T>(std::max<size_t>(v.size(), 1));
    CHECK(cudaMemcpy(p, v.data(), v.size() * sizeof(T), cudaMemcpyHostToDevice));
    return p;
}

template <typename T>
std::vector<T> download(const T* p, u64 n) {
    std::vector<T> v(n);
    sync();
    CHECK(cudaMemcpy(v.data(), p, n * sizeof(T), cudaMemcpyDeviceToHost));
    return v;
}

__host__ __device__ inline u32 hash32(u64 x) {
    x ^= x >> 33;
    x *= 0xff51afd7ed558ccdull;
    x ^= x >> 33;
    x *= 0xc4ceb9fe1a85ec53ull;
    x ^= x >> 33;
    return (u32)x;
}

// About N(0, 1): a sum of four uniforms.
__host__ __device__ inline float normal(u64 seed, u64 i) {
    float sum = 0.0f;
    for (u32 j = 0; j < 4; ++j) sum += (float)(hash32(seed * 0x9e3779b97f4a7c15ull + i * 4 + j) >> 8) * (1.0f / 16777216.0f);
    return (sum - 2.0f) * 1.7320508f;
}

template <typename T>
__global__ void fill_normal(T* p, u64 n, u64 seed, float scale) {
    for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (u64)gridDim.x * blockDim.x) {
        p[i] = (T)(normal(seed, i) * scale);
    }
}

template <typename T>
T* random_device(u64 n, u64 seed, float scale = 1.0f) {
    T* p = device<T>(n);
    fill_normal<<<1024, 256, 0, stream()>>>(p, n, seed, scale);
    CHECK(cudaGetLastError());
    return p;
}

struct Run {
    u32 slot, first, rows; // position of the first row, rows
};

// The step block's words, as crates/core/src/step.rs lays them out; sampling rows are 20 words each.
struct StepWords {
    std::vector<u32> ids, positions, slots, work, logits, history, bias, masks;
    u32 mask_words = 0; // of one mask
    std::vector<u32> sampling;
    void run(u32 slot, u32 first, u32 rows) {
        work.insert(work.end(), {slot, (u32)slots.size(), rows, first});
        for (u32 i = 0; i < rows; ++i) {
            ids.push_back(hash32(slot * 1000003ull + first + i));
            positions.push_back(first + i);
            slots.push_back(slot);
        }
    }
    std::vector<u32> words() const {
        std::vector<u32> w(32, 0);
        w[0] = slots.size();
        w[1] = logits.size();
        w[2] = work.size() / 4;
        w[4] = history.size() / 2;
        w[5] = bias.size() / 2;
        w[6] = mask_words ? masks.size() / mask_words : 0;
        const std::vector<u32>* fields[] = {&ids, &positions, &slots, &work, &logits, nullptr, &sampling, &history, &bias, &masks};
        for (u32 i = 0; i < 10; ++i) {
            w[8 + i] = w.size();
            if (fields[i]) w.insert(w.end(), fields[i]->begin(), fields[i]->end());
            while (w.size() % 4) w.push_back(0);
        }
        return w;
    }
    u32* upload() const { return ::upload(words()); }
};

// Median microseconds of one call of `body` (which launches `launches` kernels), by graph replay, per launch.
inline double time_us(u32 launches, const std::function<void()>& body, u32 repeats = 9) {
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    CHECK(cudaStreamBeginCapture(stream(), cudaStreamCaptureModeGlobal));
    body();
    CHECK(cudaStreamEndCapture(stream(), &graph));
    CHECK(cudaGraphInstantiate(&exec, graph, 0));
    cudaEvent_t a, b;
    CHECK(cudaEventCreate(&a));
    CHECK(cudaEventCreate(&b));
    std::vector<float> times;
    for (u32 i = 0; i < repeats + 2; ++i) {
        CHECK(cudaEventRecord(a, stream()));
        CHECK(cudaGraphLaunch(exec, stream()));
        CHECK(cudaEventRecord(b, stream()));
        CHECK(cudaEventSynchronize(b));
        float ms;
        CHECK(cudaEventElapsedTime(&ms, a, b));
        if (i >= 2) times.push_back(ms);
    }
    CHECK(cudaGraphExecDestroy(exec));
    CHECK(cudaGraphDestroy(graph));
    std::sort(times.begin(), times.end());
    return times[times.size() / 2] * 1e3 / launches;
}

inline int& failures() {
    static int n = 0;
    return n;
}

inline void verdict(bool good, const char* what) {
    if (!good) {
        ++failures();
        printf("FAILED %s\n", what);
    }
}
