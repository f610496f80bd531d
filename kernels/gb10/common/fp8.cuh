// SPDX-License-Identifier: MIT OR Apache-2.0
// Rows of e4m3 with f32 scales behind their values, as core's fp8 module lays them out, and the rule that quantizes (specs
// amax_row, amax_block):
//   m = the largest magnitude, s = m / 448, r = 1 / s; q = e4m3 of x * r, nearest even, saturating; every step rounded to f32.
//   Where r is infinite all q are 0; where m is infinite or no number s is NaN, too.
#pragma once

#include "step.cuh"

typedef unsigned char u8;
typedef unsigned short u16;

constexpr u32 F8_COLUMNS = 128; // that share a scale of f8_block; parts of a row are padded to as many bytes

// Where the scales of a row of `cols` values begin, and bytes from row to row, with `scales` of them.
__host__ __device__ inline u32 f8_scales_at(u32 cols) { return (cols + 127) / 128 * 128; }
__host__ __device__ inline u64 f8_pitch(u32 cols, u32 scales) { return f8_scales_at(cols) + (u64)(4 * scales + 127) / 128 * 128; }

// A magnitude as bits, which order as magnitudes do, a NaN above infinity.
__device__ inline u32 magnitude(float v) { return __float_as_uint(v) & 0x7fffffffu; }

// s, and what values are multiplied by (0: all q are 0), of the largest magnitude, which becomes `most`.
__device__ inline void scale_to(u32 bits, float most, float* scale, float* inverse) {
    float s = __fdiv_rn(__uint_as_float(bits), most), r = __fdiv_rn(1.0f, s);
    bool finite = bits < 0x7f800000u, usable = __float_as_uint(r) < 0x7f800000u;
    *scale = finite ? s : __uint_as_float(0x7fc00000u);
    *inverse = finite && usable ? r : 0.0f;
}
__device__ inline void scale_for(u32 bits, float* scale, float* inverse) { scale_to(bits, 448.0f, scale, inverse); }

// Two values, nearest even, saturating; the first in the low byte.
__device__ inline u32 e4m3_pair(float low, float high) {
    u16 v;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(v) : "f"(high), "f"(low));
    return v;
}

// Four values times `inverse`.
__device__ inline u32 e4m3_quad(float a, float b, float c, float d, float inverse) {
    if (inverse == 0.0f) return 0;
    return e4m3_pair(__fmul_rn(a, inverse), __fmul_rn(b, inverse)) | e4m3_pair(__fmul_rn(c, inverse), __fmul_rn(d, inverse)) << 16;
}
