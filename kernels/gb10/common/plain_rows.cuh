// SPDX-License-Identifier: MIT OR Apache-2.0
// Rows of f32, bf16 and f16 as they lie on disk, read value by value.
#pragma once

#include "fp8.cuh"

// A row as it is read: value i as f32.
struct PlainF32 {
    static constexpr u32 BYTES = 4;
    static __device__ float at(const u8* row, u32 i) { return ((const float*)row)[i]; }
};
struct PlainBf16 {
    static constexpr u32 BYTES = 2;
    static __device__ float at(const u8* row, u32 i) { return __uint_as_float((u32)((const u16*)row)[i] << 16); }
};
struct PlainF16 {
    static constexpr u32 BYTES = 2;
    static __device__ float at(const u8* row, u32 i) {
        float v;
        asm("cvt.f32.f16 %0, %1;" : "=f"(v) : "h"(((const u16*)row)[i]));
        return v;
    }
};
