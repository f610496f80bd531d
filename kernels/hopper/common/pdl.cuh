// SPDX-License-Identifier: MIT OR Apache-2.0
// Programmatic dependent launch. A kernel of class hopper may start while the one before it still runs: it calls
// `pdl_launch` first (the next may start, too) and `pdl_wait` before it touches what an earlier launch wrote or still reads.
// Every block calls `pdl_wait`, a block without work too: else this launch could be over before the one before it. Weights,
// constants and the step block are not written by a program's launches and may be read earlier; so may the block tables, and
// keys and values of earlier steps, because the launch that writes the tables (tables/u32) comes first and does not call
// `pdl_launch`.
#pragma once

__device__ inline void pdl_launch() { asm volatile("griddepcontrol.launch_dependents;"); }
__device__ inline void pdl_wait() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
