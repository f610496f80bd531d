// SPDX-License-Identifier: MIT OR Apache-2.0
// linear, linear_add, linear_swiglu of e4m3 rows, few rows: f8_row (spec qgmma128_row) and f8_block (qgmma128_block). x has its scales behind
// each row's values, w (layouts f8_row_tiles, f8_row_pairs, f8_block_tiles, f8_block_pairs) behind its tiles.
//
// Launch facts: as the points of the same name in linear_split.cu, with 128 k for 64: S = linear_segments(k / 128, n), k % 128 == 0;
// f8_row shares its numbers for shared memory, f8_block: n8 111232 | n16 104448 | n32 105088 | n64 103040
//   n8h 69504 | n16h 70016 | n32h 64128 | n64h 70272
//   map: of x, u8, dims [k, rows], strides [pitch], box [128, N], swizzle 128B, out of bounds zero; pitch k + 128 or, f8_block,
//     k + ceil(4 (k / 128), 128)
//   f8_block, a second map: x + k bytes, f32, dims [k / 128, rows], strides [pitch], box [4, N], no swizzle. (A box that begins at
//     an address that is no multiple of 16 is an illegal instruction, hence four scales at a time.)
#include "linear_f8.cuh"
#include "linear_points.cuh"
#include "linear_split.cuh"

#define SPLIT(NAME, GROUPS, N, STAGES, BLOCKS)                                                                              \
    extern "C" __global__ void __launch_bounds__(GROUPS * 128 + 32, BLOCKS)                                                 \
        linear_f8_row_##NAME(const u8* x, const u8* w, const float* bias, float* y, u32 k, u32 n, u32 y_col, u32 y_ld,      \
                             u32 has_bias, u32 rows_unit, const u32* s, const __grid_constant__ TensorMap map) {            \
        linear_split<E4m3, GROUPS, N, STAGES>(&map, w, k / 128, n, Step{s}.unit_rows(rows_unit), row_scales(x, w, k, n),    \
                                              Linear{y + y_col, has_bias ? bias : nullptr, n, y_ld});                       \
    }                                                                                                                       \
    extern "C" __global__ void __launch_bounds__(GROUPS * 128 + 32, BLOCKS)                                                 \
        linear_add_f8_row_##NAME(const u8* x, const u8* w, const float* bias, float* res, u32 k, u32 n, u32 has_bias,       \
                                 u32 rows_unit, const u32* s, const __grid_constant__ TensorMap map) {                      \
        linear_split<E4m3, GROUPS, N, STAGES>(&map, w, k / 128, n, Step{s}.unit_rows(rows_unit), row_scales(x, w, k, n),    \
                                              LinearAdd{{res, has_bias ? bias : nullptr, n, n}});                           \
    }                                                                                                                       \
    extern "C" __global__ void __launch_bounds__(GROUPS * 128 + 32, BLOCKS)                                                 \
        linear_swiglu_f8_row_##NAME(const u8* x, const u8* w, bf16* h, u32 k, u32 ffn, const u32* s,                        \
                                    const __grid_constant__ TensorMap map) {                                                \
        linear_split<E4m3, GROUPS, N, STAGES>(&map, w, k / 128, 2 * ffn, Step{s}.rows(), row_scales(x, w, k, 2 * ffn),      \
                                              Swiglu{h, ffn});                                                              \
    }

#define SPLIT_BLOCK(NAME, GROUPS, N, STAGES, BLOCKS)                                                                        \
    extern "C" __global__ void __launch_bounds__(GROUPS * 128 + 32, BLOCKS)                                                 \
        linear_f8_block_##NAME(const u8*, const u8* w, const float* bias, float* y, u32 k, u32 n, u32 y_col, u32 y_ld,      \
                               u32 has_bias, u32 rows_unit, const u32* s, const __grid_constant__ TensorMap map,            \
                               const __grid_constant__ TensorMap scales) {                                                  \
        linear_split<E4m3, GROUPS, N, STAGES>(&map, w, k / 128, n, Step{s}.unit_rows(rows_unit),                            \
                                              block_scales(w, k, n, &scales),                                               \
                                              Linear{y + y_col, has_bias ? bias : nullptr, n, y_ld});                       \
    }                                                                                                                       \
    extern "C" __global__ void __launch_bounds__(GROUPS * 128 + 32, BLOCKS)                                                 \
        linear_add_f8_block_##NAME(const u8*, const u8* w, const float* bias, float* res, u32 k, u32 n, u32 has_bias,       \
                                   u32 rows_unit, const u32* s, const __grid_constant__ TensorMap map,                      \
                                   const __grid_constant__ TensorMap scales) {                                              \
        linear_split<E4m3, GROUPS, N, STAGES>(&map, w, k / 128, n, Step{s}.unit_rows(rows_unit),                            \
                                              block_scales(w, k, n, &scales),                                               \
                                              LinearAdd{{res, has_bias ? bias : nullptr, n, n}});                           \
    }                                                                                                                       \
    extern "C" __global__ void __launch_bounds__(GROUPS * 128 + 32, BLOCKS)                                                 \
        linear_swiglu_f8_block_##NAME(const u8*, const u8* w, bf16* h, u32 k, u32 ffn, const u32* s,                        \
                                      const __grid_constant__ TensorMap map, const __grid_constant__ TensorMap scales) {    \
        linear_split<E4m3, GROUPS, N, STAGES>(&map, w, k / 128, 2 * ffn, Step{s}.rows(),                                    \
                                              block_scales(w, k, 2 * ffn, &scales), Swiglu{h, ffn});                        \
    }

SPLIT_POINTS(SPLIT)
SPLIT_POINTS(SPLIT_BLOCK)
