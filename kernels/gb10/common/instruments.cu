// SPDX-License-Identifier: MIT OR Apache-2.0
// What the runtime launches beside a plan: stamps that say when a program began and ended, and faults to be injected.
#include "step.cuh"

// Programs that the ring holds; the oldest are written over. The host's reader is gpu-runtime's cuda/stamps.rs.
static const u32 STAMPS = 16384;

// One lane works. ring[0] counts programs; entry i begins at word 3 + 3 * (i % STAMPS): begin and end in nanoseconds of the
// device's clock, and rows of the step with its logits rows in the high half. Programs of one stream do not overlap.
extern "C" __global__ void stamp_clock(u64* ring, u32 end, const u32* step_words) {
    if (threadIdx.x != 0) return;
    u64 now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
    u64 count = ring[0];
    u64* entry = ring + 3 + 3 * (count % STAMPS);
    entry[end] = now;
    if (end == 0) return;
    Step step{step_words};
    entry[2] = (u64)step.rows() | (u64)step.logits_rows() << 32;
    ring[0] = count + 1;
}

// Loses the context: what an illegal access or a failed assertion of a kernel does.
extern "C" __global__ void trap_now() { __trap(); }

// Ends when the host sets the flag, which nobody does.
extern "C" __global__ void spin_flag(const u32* flag) {
    while (*(const volatile u32*)flag == 0) __nanosleep(1000);
}
