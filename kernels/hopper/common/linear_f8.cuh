// SPDX-License-Identifier: MIT OR Apache-2.0
// Where the scales of e4m3 rows lie: of x behind each row's values, of packed weights behind the tiles.
#pragma once

#include "linear_out.cuh"
#include "linear_tiles.cuh"

__device__ inline RowScales row_scales(const u8* x, const u8* w, u32 k, u32 n) {
    u64 tiles = (u64)tile_rows(n) * k;
    return RowScales{(const float*)(w + tiles), x + k, k + 128};
}

__device__ inline BlockScales block_scales(const u8* w, u32 k, u32 n, const TensorMap* tokens) {
    u64 tiles = (u64)tile_rows(n) * k;
    return BlockScales{w + tiles, tokens};
}
