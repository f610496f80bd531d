// SPDX-License-Identifier: MIT OR Apache-2.0
// Products of plain points: chains of fma over ascending k, started fresh in each segment of k, segments added up left to right.
//
// Schedule: a block of 256 threads takes 32 outputs of at most 8 rows. Its eight warps walk different segments at a time (a
// lane is an output), then warp r folds the segments of row r in order. Grid, tile and which warp takes a segment are free
// within the specs.
#pragma once

#include "numeric.cuh"
#include "step.cuh"

constexpr u32 OUTPUTS = 32;
constexpr u32 ROWS = 8;
constexpr u32 WARPS = 8;
constexpr u32 DEPTH = 32; // k that a warp stages at a time

// Weights: values of a row by k, and how a segment of an output joins the total. These are row-major [n, k].
template <typename T>
struct Plain {
    static constexpr u32 SEGMENT = 256;
    const T* w;
    u32 k;

    __device__ float at(u32 out, u32 i) const { return to_f32(w[(u64)out * k + i]); }
    __device__ float join(float total, float acc, u32, u32) const { return total + acc; }
};

// Outputs first_out..min(n, first_out + 32) of `rows` rows, at most 8. `x(r)` is where row r's inputs begin; `put(r, out, total)`
// takes each result. Every thread calls it.
template <class W, class X, class Put>
__device__ void chain_tile(const W& w, X x, u32 rows, u32 k, u32 n, u32 first_out, Put put) {
    constexpr u32 SEGMENT = W::SEGMENT;
    // Padded by one, so that 32 lanes reading one k of 32 outputs hit 32 banks.
    __shared__ float weights[WARPS][OUTPUTS][DEPTH + 1];
    __shared__ float inputs[WARPS][ROWS][DEPTH];
    float(*partial)[ROWS][OUTPUTS] = (float(*)[ROWS][OUTPUTS]) & weights[0][0][0]; // after the segments are done

    u32 outs = min(OUTPUTS, n - first_out), warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    float total = 0.0f; // of row `warp`, output `lane`
    for (u32 round = 0; round * WARPS * SEGMENT < k; ++round) {
        u32 begin = (round * WARPS + warp) * SEGMENT, end = min(k, begin + SEGMENT);
        float acc[ROWS] = {};
        for (u32 k0 = begin; k0 < end; k0 += DEPTH) {
            u32 depth = min(DEPTH, end - k0);
            __syncwarp();
            if (lane < depth) {
                for (u32 o = 0; o < outs; ++o) weights[warp][o][lane] = w.at(first_out + o, k0 + lane);
                for (u32 r = 0; r < rows; ++r) inputs[warp][r][lane] = x(r)[k0 + lane];
            }
            __syncwarp();
            for (u32 i = 0; i < depth; ++i) {
                float value = weights[warp][lane][i];
#pragma unroll
                for (u32 r = 0; r < ROWS; ++r) {
                    if (r < rows) acc[r] = fmaf(value, inputs[warp][r][i], acc[r]);
                }
            }
        }
        __syncthreads();
#pragma unroll
        for (u32 r = 0; r < ROWS; ++r) partial[warp][r][lane] = acc[r];
        __syncthreads();
        u32 segments = min(WARPS, (k - round * WARPS * SEGMENT + SEGMENT - 1) / SEGMENT);
        if (lane < outs) {
            for (u32 s = 0; s < segments; ++s) total = w.join(total, partial[s][warp][lane], first_out + lane, round * WARPS + s);
        }
        __syncthreads();
    }
    if (warp < rows && lane < outs) put(warp, first_out + lane, total);
}
