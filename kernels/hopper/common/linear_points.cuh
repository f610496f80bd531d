// SPDX-License-Identifier: MIT OR Apache-2.0
// The split points of all formats: name, warpgroups a block, tokens a tile, stages, blocks that fit a multiprocessor. Those of one
// warpgroup (h, half a tile) fill the multiprocessors evenly where a tensor has many rows or long ones (bench/h200/linear).
#pragma once

#ifndef SPLIT_POINTS // the trial compiles others
#define SPLIT_POINTS(X)                                                              \
    X(n8, 2, 8, 6, 2) X(n16, 2, 16, 5, 2) X(n32, 2, 32, 4, 2) X(n64, 2, 64, 4, 2)    \
    X(n8h, 1, 8, 7, 3) X(n16h, 1, 16, 6, 3) X(n32h, 1, 32, 4, 3) X(n64h, 1, 64, 4, 3)
#endif
#ifndef SPLIT_BF16_POINTS // and those that bf16 alone has: e4m3 would spill registers
#define SPLIT_BF16_POINTS(X) X(n128, 2, 128, 3, 2)
#endif
