// SPDX-License-Identifier: MIT OR Apache-2.0
// Fast: CUDA graph replay of whole chains with distinct weights a layer, beside the read roofline of the same run.
#pragma once

#include <functional>

#include "launch.cuh"

// Reads a buffer once by bulk copies, twelve of 16 KB in flight a block.
__global__ void read_all(const u8* from, u64 tiles) {
    extern __shared__ __align__(1024) u8 shared[];
    __shared__ u64 barriers[12];
    if (threadIdx.x != 0) return;
    u32 base = shared_address(shared), barrier = shared_address(barriers);
    for (u32 i = 0; i < 12; ++i) barrier_init(barrier + 8 * i, 1);
    barrier_init_fence();
    u64 mine = (tiles - blockIdx.x + gridDim.x - 1) / gridDim.x;
    for (u64 i = 0; i < mine + 12; ++i) {
        u32 stage = i % 12;
        if (i >= 12) barrier_wait(barrier + 8 * stage, (i / 12 + 1) & 1);
        if (i < mine) {
            barrier_expect(barrier + 8 * stage, TILE_BYTES);
            copy_bulk(base + stage * TILE_BYTES, from + (blockIdx.x + i * gridDim.x) * TILE_BYTES, TILE_BYTES, barrier + 8 * stage);
        }
    }
}

// Median milliseconds of a replay.
static double replay(cudaStream_t stream, u32 runs, const std::function<void()>& enqueue) {
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    enqueue();
    CHECK(cudaStreamEndCapture(stream, &graph));
    CHECK(cudaGraphInstantiate(&exec, graph, 0));
    cudaEvent_t begin, end;
    CHECK(cudaEventCreate(&begin));
    CHECK(cudaEventCreate(&end));
    std::vector<float> times;
    for (u32 i = 0; i < runs + 2; ++i) {
        float ms;
        CHECK(cudaEventRecord(begin, stream));
        CHECK(cudaGraphLaunch(exec, stream));
        CHECK(cudaEventRecord(end, stream));
        CHECK(cudaEventSynchronize(end));
        CHECK(cudaEventElapsedTime(&ms, begin, end));
        if (i >= 2) times.push_back(ms);
    }
    CHECK(cudaGraphExecDestroy(exec));
    CHECK(cudaGraphDestroy(graph));
    std::sort(times.begin(), times.end());
    return times[times.size() / 2];
}

struct Model {
    std::vector<Shape> layer;
    Shape head;
    u32 layers;
};

// Which point takes a shape at a row count.
struct Policy {
    std::string name;
    std::function<Point(const Shape&, u32 rows)> point;
    std::function<bool(const Shape&, u32 rows)> pdl;
};

struct Bench {
    cudaStream_t stream;
    u8* weights;
    u64 weight_bytes;
    bf16* x; // 8192 rows of 12288
    float* y;
    u32* step;
    double roofline = 0; // bytes a second

    Bench(u64 bytes) : weight_bytes(bytes) {
        CHECK(cudaStreamCreate(&stream));
        weights = device_alloc<u8>(bytes);
        x = device_alloc<bf16>(8192ull * 12288);
        y = device_alloc<float>(8192ull * 24576);
        step = device_alloc<u32>(64);
        fill_random<<<1056, 256>>>((bf16*)weights, bytes / 2, 0.02f, 5, false);
        fill_random<<<1056, 256>>>(x, 8192ull * 12288, 1.0f, 6, false);
        CHECK(cudaDeviceSynchronize());
        CHECK(cudaFuncSetAttribute(read_all, cudaFuncAttributeMaxDynamicSharedMemorySize, 12 * TILE_BYTES));
        u64 tiles = 4000000000ull / TILE_BYTES;
        for (u32 blocks : {132u}) {
            double ms = replay(stream, 7, [&] { read_all<<<blocks, 32, 12 * TILE_BYTES, stream>>>(weights, tiles); });
            roofline = std::max(roofline, tiles * (double)TILE_BYTES / ms * 1e3);
        }
        printf("read roofline %.3f TB/s\n", roofline / 1e12);
    }

    void enqueue(const Shape& s, Point p, u64& offset, u32 rows, bool pdl) {
        if (offset + s.packed_bytes() > weight_bytes) offset = 0;
        u32 ld = s.paired ? 0 : s.n;
        launch(stream, p, s, Call{x, weights + offset, nullptr, y, 0, ld, rows, rows, step}, pdl);
        offset += (s.packed_bytes() + 1023) / 1024 * 1024;
    }

    double chain(const Model& m, const Policy& policy, u32 rows, u32 head_rows, u32 runs) {
        set_rows(step, rows);
        return replay(stream, runs, [&] {
            u64 offset = 0;
            for (u32 l = 0; l < m.layers; ++l) {
                for (const Shape& s : m.layer) enqueue(s, policy.point(s, rows), offset, rows, policy.pdl(s, rows));
            }
            if (head_rows) enqueue(m.head, policy.point(m.head, head_rows), offset, head_rows, policy.pdl(m.head, head_rows));
        });
    }

    // Microseconds of one launch among `copies` of the same shape over other weights.
    double alone(const Shape& s, Point p, u32 rows, bool pdl, u32 copies) {
        set_rows(step, rows);
        u64 offset = 0;
        return 1e3 / copies * replay(stream, 5, [&] {
            for (u32 i = 0; i < copies; ++i) enqueue(s, p, offset, rows, pdl);
        });
    }
};

static u64 bytes_of(const Model& m, bool head) {
    u64 bytes = 0;
    for (const Shape& s : m.layer) bytes += s.packed_bytes() * m.layers;
    return bytes + (head ? m.head.packed_bytes() : 0);
}
static double flops_of(const Model& m, u32 rows, bool head) {
    double flops = head ? 2.0 * m.head.n * m.head.k * rows : 0;
    for (const Shape& s : m.layer) flops += 2.0 * s.n * s.k * rows * m.layers;
    return flops;
}
