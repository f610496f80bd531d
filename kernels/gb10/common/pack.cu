// SPDX-License-Identifier: MIT OR Apache-2.0
// pack: rows of a checkpoint's tensor, as staged from disk, into the class's own layout. Here that is row-major [n, k] in
// the disk's format: rows dst_row.. of dst_rows_total. Vectors (norm weights, biases) become f32. Spec exact.
#include "numeric.cuh"
#include "step.cuh"

// dst[dst_row * cols + i] = src[i] for rows * cols values.
template <typename From, typename To>
__device__ void pack(const From* src, To* dst, u32 rows, u32 cols, u32 dst_row) {
    u64 n = (u64)rows * cols;
    dst += (u64)dst_row * cols;
    u64 stride = (u64)gridDim.x * blockDim.x;
    for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += stride) {
        dst[i] = static_cast<To>(src[i]);
    }
}

#define PACK(NAME, FROM, TO)                                                                                  \
    extern "C" __global__ void NAME(const FROM* src, TO* dst, u32 rows, u32 cols, u32 dst_row, u32 total) {   \
        pack(src, dst, rows, cols, dst_row);                                                                  \
    }

// Bits are moved, not values: a signalling NaN stays what it is.
PACK(pack_bits32, u32, u32)
PACK(pack_bits16, unsigned short, unsigned short)
PACK(pack_bf16_vec, bf16, float)
PACK(pack_f16_vec, f16, float)

// Blocks of 32 values, 17 bytes each.
extern "C" __global__ void pack_mxfp4(const unsigned char* src, unsigned char* dst, u32 rows, u32 cols, u32 dst_row, u32 total) {
    pack(src, dst, rows, cols / 32 * 17, dst_row);
}
