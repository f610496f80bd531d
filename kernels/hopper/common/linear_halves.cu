// SPDX-License-Identifier: MIT OR Apache-2.0
// linear, linear_add over packed bf16 or e4m3 weights, up to 256 rows or so, few tiles: see linear_halves.cuh. Specs k16_bf16, qgmma128_row,
// qgmma128_block, the bits of linear_split. For S = 2 and 4 only (n of 3073 to 6144 has S = 4 with k >= 1024, e4m3 2048).
//
// Launch facts: block 384; cluster [2 A, 1, 1]; grid [2 A * tiles(n, 128 A), tiles(rows, N)]; PDL; maps as in linear_split.cu and
// linear_split_f8.cu with boxes of N / A rows
//   t64k1: A 1, N 64, shared 221448 (f8_row 222472, f8_block 231816); t128k1: A 1, N 128, and t128k2: A 2, N 128, 196744 (198792, 209800)
#include "linear_f8.cuh"
#include "linear_halves.cuh"

#define HALVES(NAME, A, N, STAGES)                                                                                          \
    extern "C" __global__ void __launch_bounds__(384, 1)                                                                    \
        linear_bf16_##NAME(const bf16*, const u8* w, const float* bias, float* y, u32 k, u32 n, u32 y_col, u32 y_ld,        \
                           u32 has_bias, u32 rows_unit, const u32* s, const __grid_constant__ TensorMap map) {              \
        linear_halves<Bf16, A, N, STAGES>(&map, w, k / 64, n, Step{s}.unit_rows(rows_unit), Unscaled{},                     \
                                          Linear{y + y_col, has_bias ? bias : nullptr, n, y_ld});                           \
    }                                                                                                                       \
    extern "C" __global__ void __launch_bounds__(384, 1)                                                                    \
        linear_add_bf16_##NAME(const bf16*, const u8* w, const float* bias, float* res, u32 k, u32 n, u32 has_bias,         \
                               u32 rows_unit, const u32* s, const __grid_constant__ TensorMap map) {                        \
        linear_halves<Bf16, A, N, STAGES>(&map, w, k / 64, n, Step{s}.unit_rows(rows_unit), Unscaled{},                     \
                                          LinearAdd{{res, has_bias ? bias : nullptr, n, n}});                               \
    }                                                                                                                       \
    extern "C" __global__ void __launch_bounds__(384, 1)                                                                    \
        linear_f8_row_##NAME(const u8* x, const u8* w, const float* bias, float* y, u32 k, u32 n, u32 y_col, u32 y_ld,      \
                             u32 has_bias, u32 rows_unit, const u32* s, const __grid_constant__ TensorMap map) {            \
        linear_halves<E4m3, A, N, STAGES>(&map, w, k / 128, n, Step{s}.unit_rows(rows_unit), row_scales(x, w, k, n),        \
                                          Linear{y + y_col, has_bias ? bias : nullptr, n, y_ld});                           \
    }                                                                                                                       \
    extern "C" __global__ void __launch_bounds__(384, 1)                                                                    \
        linear_add_f8_row_##NAME(const u8* x, const u8* w, const float* bias, float* res, u32 k, u32 n, u32 has_bias,       \
                               u32 rows_unit, const u32* s, const __grid_constant__ TensorMap map) {                        \
        linear_halves<E4m3, A, N, STAGES>(&map, w, k / 128, n, Step{s}.unit_rows(rows_unit), row_scales(x, w, k, n),        \
                                          LinearAdd{{res, has_bias ? bias : nullptr, n, n}});                               \
    }                                                                                                                       \
    extern "C" __global__ void __launch_bounds__(384, 1)                                                                    \
        linear_f8_block_##NAME(const u8*, const u8* w, const float* bias, float* y, u32 k, u32 n, u32 y_col, u32 y_ld,      \
                               u32 has_bias, u32 rows_unit, const u32* s, const __grid_constant__ TensorMap map,            \
                               const __grid_constant__ TensorMap scales) {                                                  \
        linear_halves<E4m3, A, N, STAGES>(&map, w, k / 128, n, Step{s}.unit_rows(rows_unit), block_scales(w, k, n, &scales), \
                                          Linear{y + y_col, has_bias ? bias : nullptr, n, y_ld});                           \
    }                                                                                                                       \
    extern "C" __global__ void __launch_bounds__(384, 1)                                                                    \
        linear_add_f8_block_##NAME(const u8*, const u8* w, const float* bias, float* res, u32 k, u32 n, u32 has_bias,       \
                               u32 rows_unit, const u32* s, const __grid_constant__ TensorMap map,                          \
                               const __grid_constant__ TensorMap scales) {                                                  \
        linear_halves<E4m3, A, N, STAGES>(&map, w, k / 128, n, Step{s}.unit_rows(rows_unit), block_scales(w, k, n, &scales),\
                                          LinearAdd{{res, has_bias ? bias : nullptr, n, n}});                               \
    }

#ifndef HALVES_POINTS // the trial compiles others
#define HALVES_POINTS(X) X(t64k1, 1, 64, 9) X(t128k1, 1, 128, 6) X(t128k2, 2, 128, 6)
#endif
HALVES_POINTS(HALVES)
