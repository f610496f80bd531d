// SPDX-License-Identifier: MIT OR Apache-2.0
// What the tensor-core attention kernels share: the spec's arithmetic, and the copies that bring K and V.
//
// Spec cut256_step128_bf16. q rounded to bf16, ties to even; k and v as stored (bf16). Keys 0..=position are cut at absolute
// multiples of 256; a cut starts fresh (m = -inf, l = 0, o = 0) and takes ascending steps of 128 keys. In a step:
//   s = q . k, one ascending k16 tensor-core chain in f32 from 0; keys past the position have s = -inf;
//   m' = max(m, s); t = scale * 1.44269504 in f32; p = ex2(fma(s, t, -(m' * t))), c = ex2((m - m') * t), ex2 = the class's
//   ex2.approx.ftz.f32; a row that has seen no key yet (m' = -inf) has p = 0, c = 1;
//   l by 4 lanes: key j of the step belongs to lane (j mod 8) / 2; a lane adds its 8 keys of each run of 32 keys, ascending,
//   to a sum; the 4 runs fold (r0 + r1) + (r2 + r3); l = fma(l, c, fold);
//   o = o * c, then the ascending k16 chain of bf16(p) . v in f32 goes on from it (the first step of a cut starts at 0).
// At its end a cut's l is (l0 + l1) + (l2 + l3). Cuts merge ascending from M = -inf, L = 0, O = 0: M' = max(M, m),
// a = ex2((M - M') * t), b = ex2((m - M') * t), each 1 where the difference is of equals; L = fma(l, b, L * a),
// O = fma(o, b, O * a). The result is O * (1 / L), rounded to bf16.
// attention_ext_bf16 (same spec name, stated in FAMILIES.toml) adds: keys before max(0, position + 1 - window) have s = -inf, too;
// with a cap c > 0 a score becomes fma(-2 c, rcp(1 + ex2(s * r)), c), r = scale * 2.88539008 / c, rcp = rcp.approx.ftz.f32, and
// t = 1.44269504: c * tanh of the scaled score; a sink z ends it: L = L + ex2(fma(M, -t, z * 1.44269504)).
// Spec cut256_step128_f8, of pools in e4m3 with a scale per token and head: q is rounded to f16 instead; a score is the chain over q
// and the e4m3 key, both in f16, times the key's scale, rounded to f32; of each 16 dims the chain's step takes 0, 1, 4, 5, 8, 9, 12, 13, then the others; the
// weight that multiplies a value is bf16(p * the value's scale), the product rounded to f32; the rest is the same.
// Keys past the position are never loaded unless they stand in the block of one that is; their values never count. A step
// or a cut without a key of the row is an exact identity, so any tile of rows gives the bits of a row alone. Blocks before the
// reach of a tile's first row are not loaded.
// After Milakov and Gimelshein, "Online normalizer calculation for softmax", arXiv 1805.02867, and Dao, "FlashAttention-2",
// arXiv 2307.08691.
#pragma once

#include "kv_layout.cuh"
#include "numeric.cuh"
#include "pdl.cuh"

constexpr u32 CUT_KEYS = 256;
constexpr u32 STEP_KEYS = 128;
constexpr u32 STEP_BLOCKS = STEP_KEYS / KV_BLOCK;
constexpr float LOG2_E_F32 = 1.44269504f;

// Shared memory of a step of K or V: the blocks of its keys as in the pool.
template <u32 DIM, bool F8 = false>
constexpr u32 BLOCK_BYTES = F8 ? f8_block_bytes(DIM) : KV_BLOCK * DIM * 2;
template <u32 DIM, bool F8 = false>
constexpr u32 STEP_BYTES = STEP_BLOCKS * BLOCK_BYTES<DIM, F8>;
// Bytes between groups of 8 keys.
template <u32 DIM>
constexpr u32 GROUP_BYTES = DIM / PANEL_DIMS * ATOM_BYTES;

__device__ inline float minus_infinity() { return __int_as_float(0xff800000); }

__device__ inline float ex2(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// ex2((m - larger) * t) with larger >= m; 1 for equals, also where both are -inf.
__device__ inline float rescale(float m, float larger, float t) { return m == larger ? 1.0f : ex2((m - larger) * t); }

// m' * t, or 0 where no key was seen: p is then ex2(-inf) = 0.
__device__ inline float offset_of(float m, float t) { return m == minus_infinity() ? 0.0f : m * t; }

__device__ inline float reciprocal(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// What attention_ext_bf16 adds to attention_bf16, ready for use.
struct Extension {
    u32 window = 0;               // keys in reach; 0: all
    const float* sinks = nullptr; // a logit for each query head
    float cap = 0.0f, rate = 0.0f; // 0: none; what a score is multiplied by before ex2

    // The first key in reach of the row at `position`.
    __device__ u32 reach(u32 position) const { return window == 0 || window > position ? 0 : position + 1 - window; }
    __device__ float capped(float score) const { return fmaf(-2.0f * cap, reciprocal(1.0f + ex2(score * rate)), cap); }
    // What a head's sink adds to its sum.
    __device__ float sink(u32 head, float m, float t) const {
        return sinks == nullptr ? 0.0f : ex2(fmaf(m, -t, sinks[head] * LOG2_E_F32));
    }
};

__device__ inline Extension extension(u32 window, const float* sinks, u32 has_sinks, float scale, float softcap) {
    Extension e;
    e.window = window;
    if (has_sinks) e.sinks = sinks;
    if (softcap > 0.0f) {
        e.cap = softcap;
        e.rate = scale * 2.88539008f / softcap;
    }
    return e;
}

// The factor of scores in exponents of 2.
__device__ inline float exponent_of(const Extension& e, float scale) { return e.cap > 0.0f ? LOG2_E_F32 : scale * LOG2_E_F32; }

__device__ inline u32 pack_bf16(float low, float high) {
    __nv_bfloat162 both = __floats2bfloat162_rn(low, high);
    return *(u32*)&both;
}

__device__ inline u32 shared_address(const void* p) { return (u32)__cvta_generic_to_shared(p); }

__device__ inline void barrier_init(u32 barrier, u32 arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
__device__ inline void barrier_init_fence() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
__device__ inline void barrier_expect(u32 barrier, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
__device__ inline void barrier_arrive(u32 barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
// The warp has read what `barrier` guards against the next copy: its lanes meet, then one arrives, which releases what the lanes
// did before they met. compute-sanitizer's racecheck follows an arrival for the arriving lane alone and reports the reads of the
// other 31 as hazards. With EVERY_LANE_ARRIVES (bench/h200/attention/build.sh) each lane arrives for itself: the same order,
// which the tool can follow.
#ifdef EVERY_LANE_ARRIVES
constexpr u32 WARP_ARRIVALS = 32;
__device__ inline void warp_arrive(u32 barrier) { barrier_arrive(barrier); }
#else
constexpr u32 WARP_ARRIVALS = 1;
__device__ inline void warp_arrive(u32 barrier) {
    __syncwarp();
    if (threadIdx.x % 32 == 0) barrier_arrive(barrier);
}
#endif
__device__ inline void barrier_wait(u32 barrier, u32 parity) {
    asm volatile("{\n"
                 ".reg .pred done;\n"
                 "again:\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
                 "@done bra finished;\n"
                 "bra again;\n"
                 "finished:\n"
                 "}" ::"r"(barrier),
                 "r"(parity)
                 : "memory");
}

// Ordinary stores to shared memory before it are seen by the copy engine and the tensor cores after it.
__device__ inline void async_fence() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

__device__ inline void bulk_load(u32 to, const void* from, u32 bytes, u32 barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
                 "l"(from), "r"(bytes), "r"(barrier)
                 : "memory");
}

// One warp brings blocks `first` to `end` of a step into `to`, a lane a block of the pool (`block` is the lane's).
template <u32 DIM, bool F8 = false>
__device__ inline void load_step(u32 to, const void* pool, u32 kv_heads, u32 head, u32 block, u32 first, u32 end, u32 barrier) {
    constexpr u32 BYTES = BLOCK_BYTES<DIM, F8>;
    u32 lane = threadIdx.x % 32;
    if (lane == 0) barrier_expect(barrier, (end - first) * BYTES);
    __syncwarp();
    if (lane >= first && lane < end) {
        bulk_load(to + lane * BYTES, (const unsigned char*)pool + ((u64)block * kv_heads + head) * BYTES, BYTES, barrier);
    }
}

// Zeroes the values of keys from `keys` on up to `end`, in a step at `memory`: `threads` threads, this one's index `thread`.
template <u32 DIM>
__device__ inline void clear_values(unsigned char* memory, u32 keys, u32 end, u32 thread, u32 threads) {
    for (u32 j = thread; j < (end - keys) * (DIM / 8); j += threads) {
        *(uint4*)(memory + atom_offset(DIM, keys + j / (DIM / 8), j % (DIM / 8) * 8)) = make_uint4(0, 0, 0, 0);
    }
}

// Two e4m3 as bf16, exactly: those in the high bytes of the halves. What e4m3 calls NaN becomes 480; the pool has none.
__device__ inline u32 widen(u32 halves) {
    u32 bits = (halves >> 4 & 0x07f007f0u) | (halves & 0x80008000u), y; // 2^-120 times the value
    asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(y) : "r"(bits), "r"(0x7b807b80u));
    return y;
}
// Bytes 0 and 1, bytes 2 and 3.
__device__ inline u32 widen_low(u32 bytes) { return widen(__byte_perm(bytes, 0, 0x1404)); }
__device__ inline u32 widen_high(u32 bytes) { return widen(__byte_perm(bytes, 0, 0x3424)); }

// The same two pairs as f16: one instruction, but f16 has not the range that weights times scales need.
__device__ inline u32 half_pair(unsigned short bytes) {
    u32 y;
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(y) : "h"(bytes));
    return y;
}
__device__ inline u32 half_low(u32 bytes) { return half_pair((unsigned short)bytes); }
__device__ inline u32 half_high(u32 bytes) { return half_pair((unsigned short)(bytes >> 16)); }
__device__ inline u32 pack_f16(float low, float high) {
    __half2 both = __floats2half2_rn(low, high);
    return *(u32*)&both;
}

// Byte offset of key `key`'s scale in a step of e4m3.
template <u32 DIM>
__device__ inline u32 scale_offset(u32 key) {
    return key / KV_BLOCK * BLOCK_BYTES<DIM, true> + KV_BLOCK * DIM + key % KV_BLOCK * 4;
}
