// SPDX-License-Identifier: MIT OR Apache-2.0
// embed: rows of the table by token id. Spec dequant_f32: exact conversion, times scale in one rounding.
// The table is row-major [vocab, hidden].
#include "numeric.cuh"
#include "step.cuh"

template <typename T>
__device__ void embed(const T* table, float* out, u32 hidden, u32 vocab, float scale, Step step) {
    u32 row = blockIdx.x;
    u32 col = blockIdx.y * blockDim.x + threadIdx.x;
    if (row >= step.rows() || col >= hidden) return;
    u32 id = step.ids()[row];
    float value = 0.0f;
    if (id < vocab) {
        value = to_f32(table[(u64)id * hidden + col]);
    } else if (col == 0) {
        report(step, FAULT_TOKEN, row, id, vocab);
    }
    out[(u64)row * hidden + col] = value * scale;
}

#define EMBED(NAME, T)                                                                                              \
    extern "C" __global__ void NAME(const T* table, float* out, u32 hidden, u32 vocab, float scale, const u32* s) { \
        embed(table, out, hidden, vocab, scale, Step{s});                                                           \
    }

EMBED(embed_f32, float)
EMBED(embed_bf16, bf16)
EMBED(embed_f16, f16)
