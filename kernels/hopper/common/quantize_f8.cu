// SPDX-License-Identifier: MIT OR Apache-2.0
// quantize_f8_row, quantize_f8_block: rows of f32 or bf16 to e4m3 with scales behind them (fp8.cuh). Specs amax_row, amax_block;
// bf16 converts exactly.
//
//   row    block 512, grid [unit_rows]: a block a row, values stay in registers between the two passes; cols a multiple of 128, at
//          most 4096, or 32768 for the entries *_wide
//   block  block 256, grid [unit_rows, tiles(cols, 2048)]: 16 threads a scale; cols a multiple of 128
// Any number of rows; buffers aligned to 16 bytes; no dynamic shared memory, no scratch; pdl = true.
#include "f8_out.cuh"
#include "numeric.cuh"
#include "pdl.cuh"

constexpr u32 LANES = 512;

// Eight neighbouring values as they are loaded.
struct RunF32 {
    typedef float Value;
    float4 a, b;
    __device__ void load(const float* from) { a = *(const float4*)from, b = *(const float4*)(from + 4); }
    __device__ void to(float (&v)[8]) const {
        v[0] = a.x, v[1] = a.y, v[2] = a.z, v[3] = a.w;
        v[4] = b.x, v[5] = b.y, v[6] = b.z, v[7] = b.w;
    }
};
struct RunBf16 {
    typedef bf16 Value;
    uint4 raw;
    __device__ void load(const bf16* from) { raw = *(const uint4*)from; }
    __device__ void to(float (&v)[8]) const {
        const u32 words[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
        for (u32 i = 0; i < 4; ++i) {
            v[2 * i] = __uint_as_float(words[i] << 16);
            v[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000u);
        }
    }
};

template <class Run, u32 TURNS>
__device__ void quantize_row(const typename Run::Value* x, u8* y, u32 cols, Step step, u32 unit) {
    __shared__ u32 tops[LANES / 32];
    pdl_launch();
    u32 row = blockIdx.x;
    bool live = row < step.unit_rows(unit);
    pdl_wait();
    if (!live) return;
    x += (u64)row * cols;
    y += row * f8_pitch(cols, 1);
    Run run[TURNS];
    u32 top = 0;
#pragma unroll
    for (u32 t = 0; t < TURNS; ++t) {
        u32 col = (t * LANES + threadIdx.x) * 8;
        if (col >= cols) break;
        run[t].load(x + col);
    }
#pragma unroll
    for (u32 t = 0; t < TURNS; ++t) {
        if ((t * LANES + threadIdx.x) * 8 >= cols) break;
        float v[8];
        run[t].to(v);
        top = max(top, largest(v));
    }
    top = block_max<LANES>(top, tops);
    float scale, inverse;
    scale_for(top, &scale, &inverse);
#pragma unroll
    for (u32 t = 0; t < TURNS; ++t) {
        u32 col = (t * LANES + threadIdx.x) * 8;
        if (col >= cols) break;
        float v[8];
        run[t].to(v);
        store8(y + col, v, inverse);
    }
    if (threadIdx.x < 32) ((float*)(y + cols))[threadIdx.x] = threadIdx.x == 0 ? scale : 0.0f;
}

template <class Run>
__device__ void quantize_block(const typename Run::Value* x, u8* y, u32 cols, Step step, u32 unit) {
    pdl_launch();
    u32 row = blockIdx.x, col = (blockIdx.y * blockDim.x + threadIdx.x) * 8;
    bool live = row < step.unit_rows(unit);
    pdl_wait();
    if (!live) return;
    y += row * f8_pitch(cols, cols / F8_COLUMNS);
    if (blockIdx.y == 0) f8_block_tail(y, cols);
    if (col >= cols) return; // 16 threads together
    Run run;
    run.load(x + (u64)row * cols + col);
    float v[8];
    run.to(v);
    store_block(y, cols, col, v);
}

#define QUANTIZE(NAME, RUN)                                                                                        \
    extern "C" __global__ void __launch_bounds__(LANES, 3)                                                         \
        quantize_f8_row_##NAME(const RUN::Value* x, u8* y, u32 cols, u32 rows_unit, const u32* s) {                \
        quantize_row<RUN, 1>(x, y, cols, Step{s}, rows_unit);                                                      \
    }                                                                                                              \
    extern "C" __global__ void __launch_bounds__(LANES, 1)                                                         \
        quantize_f8_row_##NAME##_wide(const RUN::Value* x, u8* y, u32 cols, u32 rows_unit, const u32* s) {         \
        quantize_row<RUN, 8>(x, y, cols, Step{s}, rows_unit);                                                      \
    }                                                                                                              \
    extern "C" __global__ void __launch_bounds__(256)                                                              \
        quantize_f8_block_##NAME(const RUN::Value* x, u8* y, u32 cols, u32 rows_unit, const u32* s) {              \
        quantize_block<RUN>(x, y, cols, Step{s}, rows_unit);                                                       \
    }

QUANTIZE(f32, RunF32)
QUANTIZE(bf16, RunBf16)
