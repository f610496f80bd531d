// SPDX-License-Identifier: MIT OR Apache-2.0
// The counter generator of the samplers.
#pragma once

#include "step.cuh"

// core::rng::uniform: Philox4x32-10.
__device__ inline float uniform(u32 seed_low, u32 seed_high, u32 choice, u32 position) {
    u32 c[4] = {position, choice, 0, 0}, k0 = seed_low, k1 = seed_high;
    for (int round = 0; round < 10; ++round) {
        if (round > 0) {
            k0 += 0x9E3779B9u;
            k1 += 0xBB67AE85u;
        }
        u64 p0 = (u64)0xD2511F53u * c[0], p1 = (u64)0xCD9E8D57u * c[2];
        u32 next[4] = {(u32)(p1 >> 32) ^ c[1] ^ k0, (u32)p1, (u32)(p0 >> 32) ^ c[3] ^ k1, (u32)p0};
        for (int i = 0; i < 4; ++i) c[i] = next[i];
    }
    return (float)(c[0] >> 8) * (1.0f / 16777216.0f);
}
