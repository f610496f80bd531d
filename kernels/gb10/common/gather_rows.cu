// SPDX-License-Identifier: MIT OR Apache-2.0
// gather_rows: the rows whose logits are wanted, res + delta (spec f32: one rounding; res alone without a delta).
#include "step.cuh"

extern "C" __global__ void gather_rows_f32(const float* res, const float* delta, float* r, u32 cols, u32 has_delta,
                                           const u32* step_words) {
    Step step{step_words};
    u32 index = blockIdx.x;
    u32 col = blockIdx.y * blockDim.x + threadIdx.x;
    if (index >= step.logits_rows() || col >= cols) return;
    u32 row = step.logits_row()[index];
    float value = 0.0f;
    if (row < step.rows()) {
        u64 at = (u64)row * cols + col;
        value = has_delta ? res[at] + delta[at] : res[at];
    } else if (col == 0) {
        report(step, FAULT_LOGITS_ROW, index, row, step.rows());
    }
    r[(u64)index * cols + col] = value;
}
