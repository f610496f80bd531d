// SPDX-License-Identifier: MIT OR Apache-2.0
// The step block, as crates/core/src/step.rs lays it out: a header of 32 words, then the fields at the word offsets that
// the header names. A kernel takes one pointer and knows the live counts from it; its grid is that of the bucket.
#pragma once

typedef unsigned int u32;
typedef unsigned long long u64;

// Tokens in a KV block: core's KV_BLOCK.
constexpr u32 KV_BLOCK = 16;

struct Step {
    const u32* w;
    __device__ u32 rows() const { return w[0]; }
    __device__ u32 logits_rows() const { return w[1]; }
    __device__ u32 items() const { return w[2]; }
    __device__ u32 deltas() const { return w[3]; }
    // Rows of a launch that runs over rows (unit 0) or logits rows (unit 1).
    __device__ u32 unit_rows(u32 unit) const { return unit == 0 ? rows() : logits_rows(); }

    __device__ const u32* ids() const { return w + w[8]; }
    __device__ const u32* positions() const { return w + w[9]; }
    __device__ const u32* slots() const { return w + w[10]; }
    // The runs of rows, one a sequence: slot, first row, rows, first position.
    __device__ const u32* item(u32 index) const { return w + w[11] + 4 * index; }
    __device__ const u32* logits_row() const { return w + w[12]; }
    // Pairs: entry of the block tables, block.
    __device__ const u32* table_deltas() const { return w + w[13]; }
    // 20 words a row: core's SampleRow.
    __device__ const u32* sampling(u32 row) const { return w + w[14] + 20 * row; }
    __device__ const u32* history() const { return w + w[15]; }
    __device__ const u32* bias() const { return w + w[16]; }
    // The mask of a SampleRow's words: bit id % 32 of word id / 32 is set where a token is allowed. Null: all are.
    __device__ const u32* mask(const u32* row) const { return row[17] == 0xffffffffu ? nullptr : w + w[17] + row[17]; }
};

// What a kernel found wrong in a step block; the codes are those of gpu-runtime's cuda/fault.rs.
enum Fault : u32 { FAULT_TOKEN = 1, FAULT_POSITION = 2, FAULT_LOGITS_ROW = 3 };

// Reports a fault. The record lies in host memory: code, then three values; the first fault stays. The launch goes on
// with values that can do no harm, and the host refuses the step when its fence passes.
__device__ inline void report(Step step, Fault code, u32 a, u32 b, u32 c) {
    u64 address = (u64)step.w[24] | (u64)step.w[25] << 32;
    if (address == 0) return;
    volatile u32* record = (volatile u32*)address;
    if (record[0] != 0) return;
    record[1] = a;
    record[2] = b;
    record[3] = c;
    __threadfence_system();
    record[0] = code;
}

// The block of the pool that holds `position` of `slot`; false (and a report) where the slot's table ends before it.
__device__ inline bool block_of(Step step, const u32* tables, u32 blocks_per_slot, u32 slot, u32 position, u32* block) {
    u32 index = position / KV_BLOCK;
    if (index >= blocks_per_slot) {
        report(step, FAULT_POSITION, slot, position, blocks_per_slot);
        return false;
    }
    *block = tables[(u64)slot * blocks_per_slot + index];
    return true;
}
