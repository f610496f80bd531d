// SPDX-License-Identifier: MIT OR Apache-2.0
// linear, linear_add, linear_swiglu of e4m3 rows, many rows; formats and maps as in linear_split_f8.cu, the same bits.
//
// Launch facts: block 384; grid [132] (any even number that the device holds at a time); cluster [2, 1, 1]; PDL; boxes of half the
// tokens of a tile, [128, 64] or [128, 96], and of the scales of f8_block [4, 64]; shared: f8_row t128 198784, t192 208000, f8_block 209792.
// t192 has no registers to fold segments in: it takes shapes with one (n > 12288).
#include "linear_f8.cuh"
#include "linear_serial.cuh"

#define SERIAL_ROW(NAME, N, STAGES, FOLD)                                                                                   \
    extern "C" __global__ void __launch_bounds__(384, 1)                                                                    \
        linear_f8_row_##NAME(const u8* x, const u8* w, const float* bias, float* y, u32 k, u32 n, u32 y_col, u32 y_ld,      \
                             u32 has_bias, u32 rows_unit, const u32* s, const __grid_constant__ TensorMap map) {            \
        linear_serial<E4m3, N, STAGES, FOLD>(&map, w, k / 128, n, Step{s}.unit_rows(rows_unit), row_scales(x, w, k, n),     \
                                             Linear{y + y_col, has_bias ? bias : nullptr, n, y_ld});                        \
    }                                                                                                                       \
    extern "C" __global__ void __launch_bounds__(384, 1)                                                                    \
        linear_swiglu_f8_row_##NAME(const u8* x, const u8* w, bf16* h, u32 k, u32 ffn, const u32* s,                        \
                                    const __grid_constant__ TensorMap map) {                                                \
        linear_serial<E4m3, N, STAGES, FOLD>(&map, w, k / 128, 2 * ffn, Step{s}.rows(), row_scales(x, w, k, 2 * ffn),       \
                                             Swiglu{h, ffn});                                                               \
    }
#define SERIAL_ROW_ADD(NAME, N, STAGES)                                                                                     \
    extern "C" __global__ void __launch_bounds__(384, 1)                                                                    \
        linear_add_f8_row_##NAME(const u8* x, const u8* w, const float* bias, float* res, u32 k, u32 n, u32 has_bias,       \
                                 u32 rows_unit, const u32* s, const __grid_constant__ TensorMap map) {                      \
        linear_serial<E4m3, N, STAGES, true>(&map, w, k / 128, n, Step{s}.unit_rows(rows_unit), row_scales(x, w, k, n),     \
                                             LinearAdd{{res, has_bias ? bias : nullptr, n, n}});                            \
    }
#define SERIAL_BLOCK(NAME, N, STAGES)                                                                                       \
    extern "C" __global__ void __launch_bounds__(384, 1)                                                                    \
        linear_f8_block_##NAME(const u8*, const u8* w, const float* bias, float* y, u32 k, u32 n, u32 y_col, u32 y_ld,      \
                               u32 has_bias, u32 rows_unit, const u32* s, const __grid_constant__ TensorMap map,            \
                               const __grid_constant__ TensorMap scales) {                                                  \
        linear_serial<E4m3, N, STAGES, true>(&map, w, k / 128, n, Step{s}.unit_rows(rows_unit),                             \
                                             block_scales(w, k, n, &scales),                                                \
                                             Linear{y + y_col, has_bias ? bias : nullptr, n, y_ld});                        \
    }                                                                                                                       \
    extern "C" __global__ void __launch_bounds__(384, 1)                                                                    \
        linear_add_f8_block_##NAME(const u8*, const u8* w, const float* bias, float* res, u32 k, u32 n, u32 has_bias,       \
                                   u32 rows_unit, const u32* s, const __grid_constant__ TensorMap map,                      \
                                   const __grid_constant__ TensorMap scales) {                                              \
        linear_serial<E4m3, N, STAGES, true>(&map, w, k / 128, n, Step{s}.unit_rows(rows_unit),                             \
                                             block_scales(w, k, n, &scales),                                                \
                                             LinearAdd{{res, has_bias ? bias : nullptr, n, n}});                            \
    }                                                                                                                       \
    extern "C" __global__ void __launch_bounds__(384, 1)                                                                    \
        linear_swiglu_f8_block_##NAME(const u8*, const u8* w, bf16* h, u32 k, u32 ffn, const u32* s,                        \
                                      const __grid_constant__ TensorMap map, const __grid_constant__ TensorMap scales) {    \
        linear_serial<E4m3, N, STAGES, true>(&map, w, k / 128, 2 * ffn, Step{s}.rows(),                                     \
                                             block_scales(w, k, 2 * ffn, &scales), Swiglu{h, ffn});                         \
    }

#define SERIAL_ROW_POINTS(X) X(t128, 128, 6, true) X(t192, 192, 5, false)
SERIAL_ROW_POINTS(SERIAL_ROW)
SERIAL_ROW_ADD(t128, 128, 6)
SERIAL_BLOCK(t128, 128, 6)
