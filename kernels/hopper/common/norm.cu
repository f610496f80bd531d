// SPDX-License-Identifier: MIT OR Apache-2.0
// rmsnorm_{bf16,f8_row,f8_block}, add_rmsnorm_{..}: y = (x / rms(x)) * w, one block a row; the second first adds delta to x in
// place.
//
// Specs lanes512_{bf16,row,block}: the sum of squares over 512 lanes: column i belongs to lane (i / 8) mod 512, each lane one
// ascending chain of fma from 0; lanes l of a warp (32 lanes in order) are folded by sums with l xor 16, 8, 4, 2, 1, the 16
// warps' sums in the same way by 8, 4, 2, 1. r = 1 / sqrt(sum / cols + eps), every step rounded to f32; y = (x * r) * w, rounded
// to bf16, ties to even, or quantized as it is (fp8.cuh). add: res = res + delta in f32, one rounding, before.
// Formula: Zhang and Sennrich, "Root Mean Square Layer Normalization", arXiv 1910.07467.
//
// block 512, grid [unit_rows] (rmsnorm_*) or [rows]; no dynamic shared memory, no scratch; cols a multiple of 8 (e4m3: of 128), at
// most 4096, or 16384 for the entries *_wide (the same bits, more registers); any number of rows; buffers aligned to 16 bytes.
// pdl = true.
#include "f8_out.cuh"
#include "numeric.cuh"
#include "pdl.cuh"
#include "step.cuh"

constexpr u32 LANES = 512;
constexpr u32 RUN = 8; // consecutive columns of a lane

__device__ inline void load8(const float* from, float* to) {
    float4 a = *(const float4*)from, b = *(const float4*)(from + 4);
    to[0] = a.x, to[1] = a.y, to[2] = a.z, to[3] = a.w;
    to[4] = b.x, to[5] = b.y, to[6] = b.z, to[7] = b.w;
}

__device__ inline u32 pair_bf16(float low, float high) {
    __nv_bfloat162 both = __floats2bfloat162_rn(low, high);
    return *(u32*)&both;
}

// How the result is written: `put` takes the TURNS runs of a thread (those that begin below cols) and each thread calls it.
struct ToBf16 {
    bf16* y;

    template <u32 TURNS>
    __device__ void put(const float (&value)[TURNS][RUN], u32 row, u32 cols) const {
#pragma unroll
        for (u32 t = 0; t < TURNS; ++t) {
            u32 col = (t * LANES + threadIdx.x) * RUN, out[RUN / 2];
            if (col >= cols) break;
#pragma unroll
            for (u32 i = 0; i < RUN; i += 2) out[i / 2] = pair_bf16(value[t][i], value[t][i + 1]);
            *(uint4*)(y + (u64)row * cols + col) = make_uint4(out[0], out[1], out[2], out[3]);
        }
    }
};
struct ToF8Row {
    u8* y;

    template <u32 TURNS>
    __device__ void put(const float (&value)[TURNS][RUN], u32 row, u32 cols) const {
        __shared__ u32 tops[LANES / 32];
        u8* to = y + row * f8_pitch(cols, 1);
        u32 top = 0;
#pragma unroll
        for (u32 t = 0; t < TURNS; ++t) {
            if ((t * LANES + threadIdx.x) * RUN >= cols) break;
            top = max(top, largest(value[t]));
        }
        float scale, inverse;
        scale_for(block_max<LANES>(top, tops), &scale, &inverse);
#pragma unroll
        for (u32 t = 0; t < TURNS; ++t) {
            u32 col = (t * LANES + threadIdx.x) * RUN;
            if (col >= cols) break;
            store8(to + col, value[t], inverse);
        }
        if (threadIdx.x < 32) ((float*)(to + cols))[threadIdx.x] = threadIdx.x == 0 ? scale : 0.0f;
    }
};
struct ToF8Block {
    u8* y;

    template <u32 TURNS>
    __device__ void put(const float (&value)[TURNS][RUN], u32 row, u32 cols) const {
        u8* to = y + row * f8_pitch(cols, cols / F8_COLUMNS);
        f8_block_tail(to, cols);
#pragma unroll
        for (u32 t = 0; t < TURNS; ++t) {
            u32 col = (t * LANES + threadIdx.x) * RUN;
            if (col >= cols) break; // 16 threads together
            store_block(to, cols, col, value[t]);
        }
    }
};

// `x` is written only with ADD. TURNS: runs of a lane at most.
template <bool ADD, u32 TURNS, class Out>
__device__ void norm(float* x, const float* delta, const float* w, Out out, u32 cols, float eps, Step step, u32 unit) {
    __shared__ float sums[LANES / 32];
    pdl_launch();
    float weight[TURNS][RUN];
#pragma unroll
    for (u32 t = 0; t < TURNS; ++t) {
        u32 col = (t * LANES + threadIdx.x) * RUN;
        if (col < cols) load8(w + col, weight[t]);
    }
    u32 row = blockIdx.x;
    bool live = row < step.unit_rows(unit);
    pdl_wait();
    if (!live) return;
    x += (u64)row * cols;
    delta += (u64)row * cols;
    float value[TURNS][RUN], sum = 0.0f;
#pragma unroll
    for (u32 t = 0; t < TURNS; ++t) {
        u32 col = (t * LANES + threadIdx.x) * RUN;
        if (col >= cols) break;
        load8(x + col, value[t]);
        if (ADD) {
            float d[RUN];
            load8(delta + col, d);
#pragma unroll
            for (u32 i = 0; i < RUN; ++i) value[t][i] = value[t][i] + d[i];
            *(float4*)(x + col) = make_float4(value[t][0], value[t][1], value[t][2], value[t][3]);
            *(float4*)(x + col + 4) = make_float4(value[t][4], value[t][5], value[t][6], value[t][7]);
        }
#pragma unroll
        for (u32 i = 0; i < RUN; ++i) sum = fmaf(value[t][i], value[t][i], sum);
    }
#pragma unroll
    for (u32 offset = 16; offset > 0; offset /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
    if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = sum;
    __syncthreads();
    sum = sums[threadIdx.x % 16];
#pragma unroll
    for (u32 offset = 8; offset > 0; offset /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
    float r = 1.0f / sqrtf(sum / (float)cols + eps);
#pragma unroll
    for (u32 t = 0; t < TURNS; ++t) {
        if ((t * LANES + threadIdx.x) * RUN >= cols) break;
#pragma unroll
        for (u32 i = 0; i < RUN; ++i) value[t][i] = value[t][i] * r * weight[t][i];
    }
    out.put(value, row, cols);
}

#define NORMS(FORMAT, TYPE, OUT, SUFFIX, TURNS, BLOCKS)                                                                \
    extern "C" __global__ void __launch_bounds__(LANES, BLOCKS) rmsnorm_##FORMAT##SUFFIX(                              \
        const float* x, const float* w, TYPE* y, u32 cols, float eps, u32 rows_unit, const u32* s) {                   \
        norm<false, TURNS>(const_cast<float*>(x), x, w, OUT{y}, cols, eps, Step{s}, rows_unit);                        \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(LANES, BLOCKS) add_rmsnorm_##FORMAT##SUFFIX(                          \
        float* res, const float* delta, const float* w, TYPE* y, u32 cols, float eps, const u32* s) {                  \
        norm<true, TURNS>(res, delta, w, OUT{y}, cols, eps, Step{s}, 0);                                               \
    }

NORMS(bf16, bf16, ToBf16, , 1, 3)
NORMS(bf16, bf16, ToBf16, _wide, 4, 1)
NORMS(f8_row, u8, ToF8Row, , 1, 3)
NORMS(f8_row, u8, ToF8Row, _wide, 4, 1)
NORMS(f8_block, u8, ToF8Block, , 1, 3)
NORMS(f8_block, u8, ToF8Block, _wide, 4, 1)
