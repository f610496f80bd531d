// SPDX-License-Identifier: MIT OR Apache-2.0
// linear, linear_swiglu over packed bf16 weights, few rows: see linear_split.cuh. Spec k16_bf16 (linear_tiles.cuh); the bits do
// not depend on the row count, on the point, or on linear_serial.cu's being used instead.
//
// Launch facts, all points (N = token tile, B = k / 64, S = linear_segments(B, n); for swiglu n = 2 ffn):
//   block 288; grid [tiles(n, 128) * S, tiles(rows, N)]; cluster [S, 1, 1]; PDL; any row count is right, best at rows <= N
//   shared, dynamic: n8 104544 | n16 110688 | n32 102480 | n64 98368 | n128 196704 | n256 196672
//   map: of x, bf16, dims [k, rows], strides [2 k bytes], box [64, N], swizzle 128B, out of bounds zero
// Rows at or beyond the step's count are loaded and multiplied but never written; k % 64 == 0.
#include "linear_split.cuh"

template <u32 N, u32 STAGES>
__device__ void linear(const u8* w, const float* bias, float* y, u32 k, u32 n, u32 y_col, u32 y_ld, u32 has_bias,
                       u32 rows, const TensorMap* map) {
    linear_split<Bf16, N, STAGES>(map, w, k / 64, n, rows, Linear{y + y_col, has_bias ? bias : nullptr, n, y_ld});
}

#define SPLIT(N, STAGES, BLOCKS)                                                                                            \
    extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)                                                           \
        linear_bf16_n##N(const bf16*, const u8* w, const float* bias, float* y, u32 k, u32 n, u32 y_col, u32 y_ld,          \
                         u32 has_bias, u32 rows_unit, const u32* s, const __grid_constant__ TensorMap map) {                \
        linear<N, STAGES>(w, bias, y, k, n, y_col, y_ld, has_bias, Step{s}.unit_rows(rows_unit), &map);                     \
    }                                                                                                                       \
    extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)                                                           \
        linear_swiglu_bf16_n##N(const bf16*, const u8* w, bf16* h, u32 k, u32 ffn, const u32* s,                            \
                                const __grid_constant__ TensorMap map) {                                                    \
        linear_split<Bf16, N, STAGES>(&map, w, k / 64, 2 * ffn, Step{s}.rows(), Swiglu{h, ffn});                            \
    }

SPLIT(8, 6, 2)
SPLIT(16, 6, 2)
SPLIT(32, 5, 2)
SPLIT(64, 4, 2)
SPLIT(128, 6, 1)
SPLIT(256, 4, 1)
