// SPDX-License-Identifier: MIT OR Apache-2.0
// linear, linear_add, linear_swiglu over packed bf16 weights, many rows: see linear_serial.cuh. Spec k16_bf16, the bits of linear_split.cu.
//
// Launch facts: block 384; grid [132] (any even number is right that the device holds at a time: a persistent walk of the tiles);
// cluster [2, 1, 1]; PDL; any row count is right; k % 64 == 0
//   t128   shared 196704; two maps of x, both with box [64, 64]
//   wide   shared 204928; two maps of x, with boxes [64, 128] and [64, 96]
//   tall   block 512; shared 229504; one map of x, box [64, 128]; shapes of one segment (n > 12288)
//   maps: bf16, dims [k, rows], strides [2 k bytes], swizzle 128B, out of bounds zero
#include "linear_serial.cuh"

// S = 1 needs one set of accumulators, else two: the token tiles of either case, and the stages that fit.
template <u32 N, u32 STAGES, u32 FOLD_N, u32 FOLD_STAGES, class Out>
__device__ void linear(const u8* w, u32 blocks, u32 n, u32 rows, const TensorMap* whole, const TensorMap* folded, const Out& out) {
    if (linear_segments(blocks, n) == 1) {
        linear_serial<Bf16, N, STAGES, false>(whole, w, blocks, n, rows, Unscaled{}, out);
    } else {
        linear_serial<Bf16, FOLD_N, FOLD_STAGES, true>(folded, w, blocks, n, rows, Unscaled{}, out);
    }
}

#define SERIAL(NAME, N, STAGES, FOLD_N, FOLD_STAGES)                                                                        \
    extern "C" __global__ void __launch_bounds__(384, 1)                                                                    \
        linear_bf16_##NAME(const bf16*, const u8* w, const float* bias, float* y, u32 k, u32 n, u32 y_col, u32 y_ld,        \
                           u32 has_bias, u32 rows_unit, const u32* s, const __grid_constant__ TensorMap whole,              \
                           const __grid_constant__ TensorMap folded) {                                                      \
        linear<N, STAGES, FOLD_N, FOLD_STAGES>(w, k / 64, n, Step{s}.unit_rows(rows_unit), &whole, &folded,                 \
                                               Linear{y + y_col, has_bias ? bias : nullptr, n, y_ld});                      \
    }                                                                                                                       \
    extern "C" __global__ void __launch_bounds__(384, 1)                                                                    \
        linear_add_bf16_##NAME(const bf16*, const u8* w, const float* bias, float* res, u32 k, u32 n, u32 has_bias,         \
                               u32 rows_unit, const u32* s, const __grid_constant__ TensorMap whole,                        \
                               const __grid_constant__ TensorMap folded) {                                                  \
        linear<N, STAGES, FOLD_N, FOLD_STAGES>(w, k / 64, n, Step{s}.unit_rows(rows_unit), &whole, &folded,                 \
                                               LinearAdd{{res, has_bias ? bias : nullptr, n, n}});                          \
    }                                                                                                                       \
    extern "C" __global__ void __launch_bounds__(384, 1)                                                                    \
        linear_swiglu_bf16_##NAME(const bf16*, const u8* w, bf16* h, u32 k, u32 ffn, const u32* s,                          \
                                  const __grid_constant__ TensorMap whole, const __grid_constant__ TensorMap folded) {      \
        linear<N, STAGES, FOLD_N, FOLD_STAGES>(w, k / 64, 2 * ffn, Step{s}.rows(), &whole, &folded, Swiglu{h, ffn});        \
    }

#define SERIAL_POINTS(X) X(t128, 128, 6, 128, 6) X(wide, 256, 4, 192, 5)
SERIAL_POINTS(SERIAL)

// 192 weight rows a block.
#define TALL(NAME, N, STAGES)                                                                                               \
    extern "C" __global__ void __launch_bounds__(512, 1)                                                                    \
        linear_bf16_##NAME(const bf16*, const u8* w, const float* bias, float* y, u32 k, u32 n, u32 y_col, u32 y_ld,        \
                           u32 has_bias, u32 rows_unit, const u32* s, const __grid_constant__ TensorMap map) {              \
        linear_serial<Bf16, N, STAGES, false, 3>(&map, w, k / 64, n, Step{s}.unit_rows(rows_unit), Unscaled{},              \
                                                 Linear{y + y_col, has_bias ? bias : nullptr, n, y_ld});                    \
    }                                                                                                                       \
    extern "C" __global__ void __launch_bounds__(512, 1)                                                                    \
        linear_swiglu_bf16_##NAME(const bf16*, const u8* w, bf16* h, u32 k, u32 ffn, const u32* s,                          \
                                  const __grid_constant__ TensorMap map) {                                                  \
        linear_serial<Bf16, N, STAGES, false, 3>(&map, w, k / 64, 2 * ffn, Step{s}.rows(), Unscaled{}, Swiglu{h, ffn});     \
    }
#define TALL_POINTS(X) X(tall, 256, 4)
TALL_POINTS(TALL)
