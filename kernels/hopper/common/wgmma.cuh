// SPDX-License-Identifier: MIT OR Apache-2.0
// What every wgmma needs around it; a warpgroup calls them.
#pragma once

#include "step.cuh"

__device__ inline void wgmma_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ inline void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

// Until at most PENDING committed groups run.
template <u32 PENDING>
__device__ inline void wgmma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}

// Keeps the compiler from moving uses of accumulators over a wait or a begin.
template <u32 COUNT>
__device__ inline void settle(float (&d)[COUNT]) {
#pragma unroll
    for (u32 i = 0; i < COUNT; ++i) asm volatile("" : "+f"(d[i])::"memory");
}
