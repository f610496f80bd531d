// SPDX-License-Identifier: MIT OR Apache-2.0
// tables: applies the step's block-table deltas to the tables of one KV group, whose entries are first..first + entries.
// Spec exact: integers; a table entry stands in at most one delta.
#include "step.cuh"

extern "C" __global__ void tables_u32(u32* tables, u32 first, u32 entries, const u32* step_words) {
    Step step{step_words};
    const u32* deltas = step.table_deltas();
    u32 n = step.deltas();
    for (u32 i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
        u32 index = deltas[2 * i] - first; // Wraps below `first`, beyond `entries`.
        if (index < entries) tables[index] = deltas[2 * i + 1];
    }
}
