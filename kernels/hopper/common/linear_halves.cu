// SPDX-License-Identifier: MIT OR Apache-2.0
// linear over packed bf16 weights, 65 to 256 rows or so, few tiles: see linear_halves.cuh. Spec k16_bf16, the bits of
// linear_split.cu. For S = 2 and 4 only (n of 3073 to 6144 with k >= 1024 has S = 4).
//
// Launch facts: block 288; cluster [4, 1, 1]; grid [4 * tiles(tiles(n, 128), 2), tiles(rows, N)]; PDL; k % 64 == 0
//   t64k2   N 64, shared 196744; map of x: box [64, 32]       t128k2  N 128, shared 196712; map of x: box [64, 64]
//   maps: bf16, dims [k, rows], strides [2 k bytes], swizzle 128B, out of bounds zero
#include "linear_halves.cuh"

#define HALVES(NAME, N, STAGES)                                                                                             \
    extern "C" __global__ void __launch_bounds__(288, 1)                                                                    \
        linear_bf16_##NAME(const bf16*, const u8* w, const float* bias, float* y, u32 k, u32 n, u32 y_col, u32 y_ld,        \
                           u32 has_bias, u32 rows_unit, const u32* s, const __grid_constant__ TensorMap map) {              \
        linear_halves<N, STAGES>(&map, w, k / 64, n, Step{s}.unit_rows(rows_unit),                                          \
                                 Linear{y + y_col, has_bias ? bias : nullptr, n, y_ld});                                    \
    }

#define HALVES_POINTS(X) X(t64k2, 64, 8) X(t128k2, 128, 6)
HALVES_POINTS(HALVES)
