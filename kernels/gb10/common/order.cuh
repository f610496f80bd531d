// SPDX-License-Identifier: MIT OR Apache-2.0
// Candidates by descending logit, equal ones by ascending id, handed out in sorted bands of at most BAND.
//
// A candidate is one 64-bit key (the logit's bits made monotone, then the complement of the id), so that the order is that
// of the keys and every key is different. A band is found by a radix descent: histograms of eight key bits at a time, until
// what lies above the threshold fits. A draw seldom looks past the first band.
#pragma once

#include "step.cuh"

constexpr u32 BAND = 2048;
constexpr u32 SAMPLE_THREADS = 1024;

// Shared memory of one block.
struct Order {
    u64 keys[BAND];
    float weights[BAND]; // the caller's, by rank in the band
    u32 histogram[256];
    u64 prefix, mask;
    u32 count, taken, done;
};

__device__ inline u64 order_key(float y, u32 id) {
    u32 bits = __float_as_uint(y + 0.0f); // -0 and +0 are equal, and the lower id wins
    bits = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
    return (u64)bits << 32 | (u32)~id;
}

__device__ inline u32 order_id(u64 key) { return ~(u32)key; }

// A row of logits of which those that a mask does not allow are minus infinity. No mask: the row as it is.
struct Masked {
    const float* y;
    const u32* mask;

    __device__ float operator[](u32 id) const {
        bool allowed = mask == nullptr || (mask[id / 32] >> id % 32 & 1) != 0;
        return allowed ? y[id] : __int_as_float(0xff800000);
    }
};

// Collects the largest keys below `upper` into order.keys, sorted, and their number into order.count: all of them, or as
// many as whole radix buckets of them fit. `y[id]` is a row's value. Every thread calls it.
template <typename Y>
__device__ inline void next_band(Order& order, const Y& y, u32 n, u64 upper) {
    if (threadIdx.x == 0) {
        order.prefix = 0;
        order.mask = 0;
        order.taken = 0; // keys above the bucket that is being descended into
        order.done = 0;
    }
    __syncthreads();
    u64 threshold = 0;
    for (int shift = 56; shift >= 0; shift -= 8) {
        for (u32 i = threadIdx.x; i < 256; i += blockDim.x) order.histogram[i] = 0;
        __syncthreads();
        u64 prefix = order.prefix, mask = order.mask;
        for (u32 i = threadIdx.x; i < n; i += blockDim.x) {
            u64 key = order_key(y[i], i);
            if (key < upper && (key & mask) == prefix) atomicAdd(&order.histogram[key >> shift & 255], 1u);
        }
        __syncthreads();
        if (threadIdx.x == 0) {
            // From the largest digit down: whole buckets while they fit; the first that does not is descended into, if
            // nothing has been taken yet.
            u32 taken = order.taken;
            int digit = 255;
            while (digit >= 0 && taken + order.histogram[digit] <= BAND) taken += order.histogram[digit--];
            order.taken = taken;
            if (digit < 0 || taken > 0) {
                order.prefix = prefix | (u64)(digit + 1) << shift; // digit 255 cannot be left untaken with taken > 0
                order.done = 1;
                if (digit < 0) order.prefix = prefix;
            } else {
                order.prefix = prefix | (u64)digit << shift;
                order.mask = mask | (u64)255 << shift;
            }
        }
        __syncthreads();
        threshold = order.prefix;
        if (order.done) break;
    }
    if (threadIdx.x == 0) order.count = 0;
    __syncthreads();
    for (u32 i = threadIdx.x; i < n; i += blockDim.x) {
        u64 key = order_key(y[i], i);
        if (key < upper && key >= threshold) order.keys[atomicAdd(&order.count, 1u)] = key;
    }
    __syncthreads();
    // Bitonic sort, descending, over the next power of two; 0 is below every key.
    u32 count = order.count, size = 1;
    while (size < count) size *= 2;
    for (u32 i = count + threadIdx.x; i < size; i += blockDim.x) order.keys[i] = 0;
    for (u32 length = 2; length <= size; length *= 2) {
        for (u32 stride = length / 2; stride > 0; stride /= 2) {
            __syncthreads();
            for (u32 i = threadIdx.x; i < size; i += blockDim.x) {
                u32 other = i ^ stride;
                if (other <= i) continue;
                u64 a = order.keys[i], b = order.keys[other];
                if ((a < b) == ((i & length) == 0)) {
                    order.keys[i] = b;
                    order.keys[other] = a;
                }
            }
        }
    }
    __syncthreads();
}
