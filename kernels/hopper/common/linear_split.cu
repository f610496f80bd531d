// SPDX-License-Identifier: MIT OR Apache-2.0
// linear, linear_add, linear_swiglu over packed bf16 weights, few rows: see linear_split.cuh. Spec k16_bf16 (linear_tiles.cuh); the bits do
// not depend on the row count, on the point, or on linear_serial.cu's being used instead.
//
// Launch facts (points: linear_points.cuh; N = token tile, R = rows of a block's tile: 64 for the h points, else 128; B = k / 64,
// S = linear_segments(B, n); for swiglu n = 2 ffn):
//   block 160 for the h points, else 288; grid [tiles(n, R) * S, tiles(rows, N)]; cluster [S, 1, 1]; PDL; any row count is right
//   shared, dynamic: n8 109696 | n16 102528 | n32 102528 | n64 98432 | n8h 67712
//                    n16h 67712 | n32h 61568 | n64h 65664 | n128 98432
//   map: of x, bf16, dims [k, rows], strides [2 k bytes], box [64, N], swizzle 128B, out of bounds zero
// Rows at or beyond the step's count are loaded and multiplied but never written; k % 64 == 0.
#include "linear_points.cuh"
#include "linear_split.cuh"

template <u32 GROUPS, u32 N, u32 STAGES>
__device__ void linear(const u8* w, const float* bias, float* y, u32 k, u32 n, u32 y_col, u32 y_ld, u32 has_bias,
                       u32 tokens, const TensorMap* map) {
    linear_split<Bf16, GROUPS, N, STAGES>(map, w, k / 64, n, tokens, Unscaled{},
                                          Linear{y + y_col, has_bias ? bias : nullptr, n, y_ld});
}

// BLOCKS that fit a multiprocessor.
#define SPLIT(NAME, GROUPS, N, STAGES, BLOCKS)                                                                              \
    extern "C" __global__ void __launch_bounds__(GROUPS * 128 + 32, BLOCKS)                                                 \
        linear_bf16_##NAME(const bf16*, const u8* w, const float* bias, float* y, u32 k, u32 n, u32 y_col, u32 y_ld,        \
                           u32 has_bias, u32 rows_unit, const u32* s, const __grid_constant__ TensorMap map) {              \
        linear<GROUPS, N, STAGES>(w, bias, y, k, n, y_col, y_ld, has_bias, Step{s}.unit_rows(rows_unit), &map);             \
    }                                                                                                                       \
    extern "C" __global__ void __launch_bounds__(GROUPS * 128 + 32, BLOCKS)                                                 \
        linear_add_bf16_##NAME(const bf16*, const u8* w, const float* bias, float* res, u32 k, u32 n, u32 has_bias,         \
                               u32 rows_unit, const u32* s, const __grid_constant__ TensorMap map) {                        \
        linear_split<Bf16, GROUPS, N, STAGES>(&map, w, k / 64, n, Step{s}.unit_rows(rows_unit), Unscaled{},                 \
                                              LinearAdd{{res, has_bias ? bias : nullptr, n, n}});                           \
    }                                                                                                                       \
    extern "C" __global__ void __launch_bounds__(GROUPS * 128 + 32, BLOCKS)                                                 \
        linear_swiglu_bf16_##NAME(const bf16*, const u8* w, bf16* h, u32 k, u32 ffn, const u32* s,                          \
                                  const __grid_constant__ TensorMap map) {                                                  \
        linear_split<Bf16, GROUPS, N, STAGES>(&map, w, k / 64, 2 * ffn, Step{s}.rows(), Unscaled{}, Swiglu{h, ffn});                    \
    }

SPLIT_POINTS(SPLIT)
SPLIT_BF16_POINTS(SPLIT)
