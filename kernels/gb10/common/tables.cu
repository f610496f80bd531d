// SPDX-License-Identifier: MIT OR Apache-2.0
// tables: applies the step's block-table deltas. Spec exact: integers; a table entry stands in at most one delta.
#include "step.cuh"

extern "C" __global__ void tables_u32(u32* tables, const u32* step_words) {
    Step step{step_words};
    const u32* deltas = step.table_deltas();
    u32 n = step.deltas();
    for (u32 i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
        tables[deltas[2 * i]] = deltas[2 * i + 1];
    }
}
