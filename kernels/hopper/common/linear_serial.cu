// SPDX-License-Identifier: MIT OR Apache-2.0
// linear, linear_swiglu over packed bf16 weights, many rows: see linear_serial.cuh. Spec k16_bf16, the bits of linear_split.cu.
//
// Launch facts: block 384; grid [132] (any even number is right: a persistent walk of the tiles); cluster [2, 1, 1]; PDL; any
// row count is right; k % 64 == 0
//   t128   shared 196704; map of x: bf16, dims [k, rows], strides [2 k bytes], box [64, 64], swizzle 128B, out of bounds zero
//   wide   shared 204880; two maps of x, alike but for the box: [64, 128], then [64, 96]
#include "linear_serial.cuh"

// S = 1 needs one set of accumulators: 256 tokens a tile. Else two sets: 192.
template <class Out>
__device__ void linear_wide(const u8* w, u32 blocks, u32 n, u32 rows, const TensorMap* whole, const TensorMap* folded,
                            const Out& out) {
    if (linear_segments(blocks, n) == 1) {
        linear_serial<Bf16, 256, 4, false>(whole, w, blocks, n, rows, out);
    } else {
        linear_serial<Bf16, 192, 5, true>(folded, w, blocks, n, rows, out);
    }
}

extern "C" __global__ void __launch_bounds__(SERIAL_THREADS, 1)
    linear_bf16_wide(const bf16*, const u8* w, const float* bias, float* y, u32 k, u32 n, u32 y_col, u32 y_ld, u32 has_bias,
                     u32 rows_unit, const u32* s, const __grid_constant__ TensorMap whole,
                     const __grid_constant__ TensorMap folded) {
    linear_wide(w, k / 64, n, Step{s}.unit_rows(rows_unit), &whole, &folded,
                Linear{y + y_col, has_bias ? bias : nullptr, n, y_ld});
}

extern "C" __global__ void __launch_bounds__(SERIAL_THREADS, 1)
    linear_swiglu_bf16_wide(const bf16*, const u8* w, bf16* h, u32 k, u32 ffn, const u32* s,
                            const __grid_constant__ TensorMap whole, const __grid_constant__ TensorMap folded) {
    linear_wide(w, k / 64, 2 * ffn, Step{s}.rows(), &whole, &folded, Swiglu{h, ffn});
}

// 128 tokens a tile, for 129 to 256 rows or so: more tiles, an even spread over the multiprocessors.
extern "C" __global__ void __launch_bounds__(SERIAL_THREADS, 1)
    linear_bf16_t128(const bf16*, const u8* w, const float* bias, float* y, u32 k, u32 n, u32 y_col, u32 y_ld, u32 has_bias,
                     u32 rows_unit, const u32* s, const __grid_constant__ TensorMap map) {
    linear_serial<Bf16, 128, 6, true>(&map, w, k / 64, n, Step{s}.unit_rows(rows_unit),
                                      Linear{y + y_col, has_bias ? bias : nullptr, n, y_ld});
}

extern "C" __global__ void __launch_bounds__(SERIAL_THREADS, 1)
    linear_swiglu_bf16_t128(const bf16*, const u8* w, bf16* h, u32 k, u32 ffn, const u32* s,
                            const __grid_constant__ TensorMap map) {
    linear_serial<Bf16, 128, 6, true>(&map, w, k / 64, 2 * ffn, Step{s}.rows(), Swiglu{h, ffn});
}
