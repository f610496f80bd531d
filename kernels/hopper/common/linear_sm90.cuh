// SPDX-License-Identifier: MIT OR Apache-2.0
// What sm_90a offers beside arithmetic, one function an instruction: barriers in shared memory, bulk copies, tensor maps,
// clusters, and the two halves of programmatic dependent launch. PTX ISA 9.0 is the reference.
#pragma once

#include "step.cuh"

typedef unsigned char u8;
typedef unsigned short u16;

// A CUtensorMap, as the driver encodes it. A kernel takes it as `const __grid_constant__ TensorMap`.
struct alignas(64) TensorMap {
    u64 words[16];
};

__device__ inline u32 shared_address(const void* p) { return (u32)__cvta_generic_to_shared(p); }

// ---- barriers in shared memory: a phase ends when all arrivals and all announced bytes are in ----

__device__ inline void barrier_init(u32 barrier, u32 arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

// Makes initialised barriers known to the copy engine and to the other blocks of the cluster.
__device__ inline void barrier_init_fence() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

__device__ inline void barrier_expect(u32 barrier, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

__device__ inline void barrier_arrive(u32 barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// The same barrier of block `rank` of the cluster. Without .release.cluster, which was measured to halve a kernel's speed
// here; what it would order is the reading of a stage, which has ended (wgmma has been waited for) before the arrival.
__device__ inline void barrier_arrive_at(u32 barrier, u32 rank) {
    asm volatile("{\n.reg .b32 remote;\nmapa.shared::cluster.u32 remote, %0, %1;\n"
                 "mbarrier.arrive.shared::cluster.b64 _, [remote];\n}" ::"r"(barrier), "r"(rank) : "memory");
}

// A warp that has read a stage lets one lane arrive for all 32 (after __syncwarp, where lanes read it themselves): `arrives(lane)`
// says whether this one does. compute-sanitizer's racecheck follows an arrival for the arriving lane alone; with
// EVERY_LANE_ARRIVES (bench/h200/linear/README.md) each lane arrives for itself, which the tool can follow.
#ifdef EVERY_LANE_ARRIVES
constexpr u32 WARP_ARRIVALS = 32;
__device__ inline bool arrives(u32) { return true; }
#else
constexpr u32 WARP_ARRIVALS = 1;
__device__ inline bool arrives(u32 lane) { return threadIdx.x % 32 == lane; }
#endif

__device__ inline void barrier_wait(u32 barrier, u32 parity) {
    u32 done;
    do {
        asm volatile("{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}"
                     : "=r"(done) : "r"(barrier), "r"(parity) : "memory");
    } while (!done);
}

// ---- copies from global memory, completing on a barrier ----

// A policy for what is read once: weights leave the cache before activations and keys do.
__device__ inline u64 read_once() {
    u64 policy;
    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}

__device__ inline u64 read_again() {
    u64 policy;
    asm volatile("createpolicy.fractional.L2::evict_normal.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}

__device__ inline void copy_bulk(u32 to, const void* from, u32 bytes, u32 barrier, u64 policy) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;"
                 ::"r"(to), "l"(from), "r"(bytes), "r"(barrier), "l"(policy) : "memory");
}

__device__ inline void copy_bulk(u32 to, const void* from, u32 bytes, u32 barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                 ::"r"(to), "l"(from), "r"(bytes), "r"(barrier) : "memory");
}

__device__ inline void copy_box(u32 to, const TensorMap* map, u32 x, u32 y, u32 barrier) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];"
                 ::"r"(to), "l"(map), "r"(x), "r"(y), "r"(barrier) : "memory");
}

// To the same place of every block of the cluster whose bit is set, completing on the same barrier of each.
__device__ inline void copy_box_to(u32 to, const TensorMap* map, u32 x, u32 y, u32 barrier, u32 blocks) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
                 "[%0], [%1, {%2, %3}], [%4], %5;"
                 ::"r"(to), "l"(map), "r"(x), "r"(y), "r"(barrier), "h"((u16)blocks) : "memory");
}

__device__ inline void prefetch_map(const TensorMap* map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

// ---- clusters ----

__device__ inline u32 cluster_rank() {
    u32 rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

__device__ inline u32 cluster_blocks() {
    u32 blocks;
    asm volatile("mov.u32 %0, %%cluster_nctarank;" : "=r"(blocks));
    return blocks;
}

// All threads of the cluster that have not ended.
__device__ inline void cluster_arrive() { asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory"); }
__device__ inline void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }
__device__ inline void cluster_sync() {
    cluster_arrive();
    cluster_wait();
}

__device__ inline u32 address_at(u32 address, u32 rank) {
    u32 remote;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(address), "r"(rank));
    return remote;
}

// Two values to another block's shared memory, counted as 8 bytes by its barrier.
__device__ inline void send(u32 remote, float a, float b, u32 remote_barrier) {
    asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%1, %2}, [%3];"
                 ::"r"(remote), "f"(a), "f"(b), "r"(remote_barrier) : "memory");
}

// ---- programmatic dependent launch ----

// The next launch may put its blocks on the device as soon as every block of this one has said so.
__device__ inline void dependents_may_launch() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }

// Until all that earlier launches wrote is there. Every block must call it once before it ends: a launch that ends
// without it would let the one after next begin before the one before this is done.
__device__ inline void wait_for_earlier() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

// `threads` threads that name the same barrier (0 is __syncthreads).
__device__ inline void sync_threads(u32 name, u32 threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(name), "r"(threads) : "memory");
}
