// SPDX-License-Identifier: MIT OR Apache-2.0
// Kernels that move rows: embed (packed bf16 tables), gather_rows, to_bf16. 16-byte accesses; buffers aligned
// to 16 bytes; any number of rows. pdl = true for each; no dynamic shared memory, no scratch.
#include "numeric.cuh"
#include "pdl.cuh"
#include "step.cuh"

constexpr u32 THREADS = 256;

// embed: rows of the table by token id, eight columns a thread. Spec embed/dequant_f32. The table is as linear/bf16_k16 keeps
// it: tiles of 128 rows x 64 columns, tile order [row / 128][column / 64], the 16-byte chunk c of a row of a tile at place c xor
// (row mod 8).
//
// block 256, grid [rows, tiles(hidden, 2048)]; hidden a multiple of 64.
extern "C" __global__ void __launch_bounds__(THREADS)
    embed_bf16_packed(const bf16* table, float* out, u32 hidden, u32 vocab, float scale, const u32* s) {
    Step step{s};
    pdl_launch();
    u32 row = blockIdx.x, col = (blockIdx.y * THREADS + threadIdx.x) * 8;
    bool live = row < step.rows() && col < hidden;
    pdl_wait();
    if (!live) return;
    u32 id = step.ids()[row];
    uint4 raw = make_uint4(0, 0, 0, 0);
    if (id < vocab) {
        u64 tile = (u64)(id / 128) * (hidden / 64) + col / 64;
        raw = *(const uint4*)(table + tile * (128 * 64) + id % 128 * 64 + (col % 64 / 8 ^ id % 8) * 8);
    } else if (col == 0) {
        report(step, FAULT_TOKEN, row, id, vocab);
    }
    u32 words[4] = {raw.x, raw.y, raw.z, raw.w};
    float value[8];
#pragma unroll
    for (u32 i = 0; i < 4; ++i) {
        value[2 * i] = __uint_as_float(words[i] << 16) * scale;
        value[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000u) * scale;
    }
    float* to = out + (u64)row * hidden + col;
    *(float4*)to = make_float4(value[0], value[1], value[2], value[3]);
    *(float4*)(to + 4) = make_float4(value[4], value[5], value[6], value[7]);
}

// gather_rows, spec f32. block 256, grid [logits_rows, tiles(cols, 1024)]; cols a multiple of 4.
extern "C" __global__ void __launch_bounds__(THREADS)
    gather_rows_vec(const float* res, const float* delta, float* r, u32 cols, u32 has_delta, const u32* s) {
    pdl_launch();
    Step step{s};
    u32 index = blockIdx.x, col = (blockIdx.y * THREADS + threadIdx.x) * 4;
    bool live = index < step.logits_rows() && col < cols;
    pdl_wait();
    if (!live) return;
    u32 row = step.logits_row()[index];
    float4 value = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    if (row < step.rows()) {
        u64 at = (u64)row * cols + col;
        value = *(const float4*)(res + at);
        if (has_delta) {
            float4 d = *(const float4*)(delta + at);
            value = make_float4(value.x + d.x, value.y + d.y, value.z + d.z, value.w + d.w);
        }
    } else if (col == 0) {
        report(step, FAULT_LOGITS_ROW, index, row, step.rows());
    }
    *(float4*)(r + (u64)index * cols + col) = value;
}

// to_bf16: y = x rounded to bf16, ties to even (spec round_even). block 256, grid [unit_rows, tiles(cols, 2048)]; cols a
// multiple of 8.
extern "C" __global__ void __launch_bounds__(THREADS)
    to_bf16(const float* x, bf16* y, u32 cols, u32 rows_unit, const u32* s) {
    pdl_launch();
    Step step{s};
    u32 row = blockIdx.x, col = (blockIdx.y * THREADS + threadIdx.x) * 8;
    bool live = row < step.unit_rows(rows_unit) && col < cols;
    pdl_wait();
    if (!live) return;
    u64 at = (u64)row * cols + col;
    float4 a = *(const float4*)(x + at), b = *(const float4*)(x + at + 4);
    __nv_bfloat162 out[4] = {__floats2bfloat162_rn(a.x, a.y), __floats2bfloat162_rn(a.z, a.w),
                             __floats2bfloat162_rn(b.x, b.y), __floats2bfloat162_rn(b.z, b.w)};
    *(uint4*)(y + at) = *(uint4*)out;
}
