// SPDX-License-Identifier: MIT OR Apache-2.0
// sample: as the plain point (sample.cu of class gb10) says in steps 1 to 7, with sums that any partition gives the same bits:
//
// Spec counter_fixed40, where it differs from counter_f32 (exp of numeric.cuh):
// 2. The ids lie in chunks of 4096; chunk c has m_c = max x and s_c = the exact integer sum of round(exp(x - m_c) * 2^40), ties
//    to even. Z = 2^-40 times the ascending f64 chain z = fma(s_c, f64(exp(m_c - M)), z) from 0.
// 5. y may be minus infinity (a banned token): status 1 is for a NaN or plus infinity in y, status 2 for Y = minus infinity.
// 6. S without top-k = 2^-40 * f64(exact integer sum of round(w * 2^40)).
//
// A block takes a chunk of a row, 8 ids a thread; the last block of a row to arrive merges the chunks, and that is all for a
// greedy row. For the others it goes on alone: candidates come in sorted bands, found by a histogram of 2048 bins a 64th of a
// temperature wide, or by radix where that does not separate them.
//
// block 512; grid [tiles(vocab, 4096), logits_rows]; no dynamic shared memory; scratch 16384 + logits_rows *
// tiles(vocab, 4096) * 24 bytes, zeroed once (counters first, left at zero); logits_rows <= 4096. pdl = true.
#include "numeric.cuh"
#include "order.cuh"
#include "pdl.cuh"

constexpr u32 THREADS = 512;
constexpr u32 CHUNK = 4096;
constexpr u32 TOP_WORDS = 40;
constexpr u32 NO_TOKEN = 0xffffffffu;
constexpr u32 BINS = 2048; // over the band's weights, which come later
constexpr u32 FIRST_BAND = 512;
constexpr float FIXED = 1099511627776.0f; // 2^40
static_assert(BINS == BAND, "bins lie where the weights will");

struct Partial {
    u64 best, sum; // of the chunk: key of the largest, sum in fixed point
    u32 bad, unused;
};

struct Shared {
    Order order;
    u64 words[THREADS / 32];
    double terms[256];
    u64 best, sum;
    u32 bad, last, threshold, band_of; // band_of: whose candidates order holds; 0 none
    u32 begin, stop;
    // The walk's own state, of thread 0.
    double running;
    u32 index, final, found;
};

// The logit that a key was made from (a zero comes back as +0).
__device__ inline float key_value(u64 key) {
    u32 bits = key >> 32;
    return __uint_as_float(bits & 0x80000000u ? bits & 0x7fffffffu : ~bits);
}

// core::rng::uniform: Philox4x32-10.
__device__ float uniform(u32 seed_low, u32 seed_high, u32 choice, u32 position) {
    u32 c[4] = {position, choice, 0, 0}, k0 = seed_low, k1 = seed_high;
    for (int round = 0; round < 10; ++round) {
        if (round > 0) {
            k0 += 0x9E3779B9u;
            k1 += 0xBB67AE85u;
        }
        u64 p0 = (u64)0xD2511F53u * c[0], p1 = (u64)0xCD9E8D57u * c[2];
        u32 next[4] = {(u32)(p1 >> 32) ^ c[1] ^ k0, (u32)p1, (u32)(p0 >> 32) ^ c[3] ^ k1, (u32)p0};
        for (int i = 0; i < 4; ++i) c[i] = next[i];
    }
    return (float)(c[0] >> 8) * (1.0f / 16777216.0f);
}

// The block's largest key, in every thread.
__device__ u64 block_max(Shared& s, u64 key) {
    for (int offset = 16; offset > 0; offset /= 2) {
        u64 other = __shfl_xor_sync(0xffffffffu, key, offset);
        key = other > key ? other : key;
    }
    if (threadIdx.x % 32 == 0) s.words[threadIdx.x / 32] = key;
    __syncthreads();
    key = s.words[threadIdx.x % (THREADS / 32)];
    for (int offset = 8; offset > 0; offset /= 2) {
        u64 other = __shfl_xor_sync(0xffffffffu, key, offset);
        key = other > key ? other : key;
    }
    __syncthreads();
    return key;
}

__device__ u64 block_sum(Shared& s, u64 value) {
    for (int offset = 16; offset > 0; offset /= 2) value += __shfl_xor_sync(0xffffffffu, value, offset);
    if (threadIdx.x % 32 == 0) s.words[threadIdx.x / 32] = value;
    __syncthreads();
    value = s.words[threadIdx.x % (THREADS / 32)];
    for (int offset = 8; offset > 0; offset /= 2) value += __shfl_xor_sync(0xffffffffu, value, offset);
    __syncthreads();
    return value;
}

__device__ inline u64 fixed(float weight) { return __float2ull_rn(weight * FIXED); }

// Calls `f(value, id)` for each of the row's values, spread over the block.
template <typename F>
__device__ inline void each(const float* y, u32 n, F f) {
    if (n % 4 == 0 && ((u64)y & 15) == 0) {
#pragma unroll 4
        for (u32 i = threadIdx.x * 4; i < n; i += THREADS * 4) {
            float4 v = *(const float4*)(y + i);
            f(v.x, i);
            f(v.y, i + 1);
            f(v.z, i + 2);
            f(v.w, i + 3);
        }
    } else {
        for (u32 i = threadIdx.x; i < n; i += THREADS) f(y[i], i);
    }
}

// The largest value's key and whether no value is NaN or plus infinity.
__device__ bool largest(Shared& s, const float* y, u32 n, u64* key) {
    if (threadIdx.x == 0) s.bad = 0;
    __syncthreads();
    u64 best = 0;
    each(y, n, [&](float v, u32 i) {
        if (!(v < __int_as_float(0x7f800000))) s.bad = 1;
        u64 k = order_key(v, i);
        best = k > best ? k : best;
    });
    *key = block_max(s, best);
    return s.bad == 0;
}

// S without top-k. A weight below 2^-41 rounds to 0: most exponentials need not be made.
__device__ double sum_weights(Shared& s, const float* y, u32 n, float top, float temperature) {
    u64 sum = 0;
    each(y, n, [&](float v, u32) {
        float z = (v - top) / temperature;
        if (z >= -28.5f) sum += fixed(exp_f32(z));
    });
    return (double)block_sum(s, sum) * (double)(1.0f / FIXED);
}

// Sorts order.keys, descending.
__device__ void sort_keys(Order& order) {
    u32 count = order.count, size = 1;
    while (size < count) size *= 2;
    for (u32 i = count + threadIdx.x; i < size; i += THREADS) order.keys[i] = 0;
    for (u32 length = 2; length <= size; length *= 2) {
        for (u32 stride = length / 2; stride > 0; stride /= 2) {
            __syncthreads();
            for (u32 i = threadIdx.x; i < size / 2; i += THREADS) {
                u32 low = i / stride * 2 * stride + i % stride, high = low + stride;
                u64 a = order.keys[low], b = order.keys[high];
                if ((a < b) == ((low & length) == 0)) {
                    order.keys[low] = b;
                    order.keys[high] = a;
                }
            }
        }
    }
    __syncthreads();
}

// The next candidates below `upper` into order.keys, in order, and their number into order.count. `top` is the largest value.
__device__ void band(Shared& s, const float* y, u32 n, u64 upper, float top, float temperature) {
    Order& order = s.order;
    u32* bins = (u32*)order.weights;
    float per_bin = 64.0f / temperature; // a bin is a 64th of a temperature, whatever the rounding: the order of y stays
    auto bin_of = [&](float v) { return min(BINS - 1, __float2uint_rz((top - v) * per_bin)); };
    for (u32 i = threadIdx.x; i < BINS; i += THREADS) bins[i] = 0;
    if (threadIdx.x == 0) order.count = 0;
    __syncthreads();
    each(y, n, [&](float v, u32 i) {
        u32 bin = bin_of(v);
        if (bin < BINS - 1 && order_key(v, i) < upper) atomicAdd(&bins[bin], 1u);
    });
    __syncthreads();
    if (threadIdx.x < 32) {
        // The first bin that is not taken: whole bins up to FIRST_BAND candidates, or one bin of at most BAND.
        u32 lane = threadIdx.x, own = 0;
        for (u32 i = 0; i < BINS / 32; ++i) own += bins[lane * (BINS / 32) + i];
        u32 sum = own;
        for (u32 offset = 1; offset < 32; offset *= 2) {
            u32 other = __shfl_up_sync(0xffffffffu, sum, offset);
            if (lane >= offset) sum += other;
        }
        u32 over = __ballot_sync(0xffffffffu, sum > FIRST_BAND), owner = over ? __ffs(over) - 1 : 31;
        if (lane == owner) {
            u32 taken = sum - own, i = 0;
            while (i < BINS / 32 && taken + bins[lane * (BINS / 32) + i] <= FIRST_BAND) taken += bins[lane * (BINS / 32) + i++];
            if (taken == 0 && i < BINS / 32 && bins[lane * (BINS / 32) + i] <= BAND) taken += bins[lane * (BINS / 32) + i++];
            s.threshold = taken == 0 ? 0 : lane * (BINS / 32) + i;
        }
    }
    __syncthreads();
    u32 threshold = s.threshold;
    if (threshold == 0) {
        next_band(order, y, n, upper); // too many in one bin, or none but in the last
        return;
    }
    each(y, n, [&](float v, u32 i) {
        if (bin_of(v) >= threshold) return;
        u64 key = order_key(v, i);
        if (key < upper) order.keys[atomicAdd(&order.count, 1u)] = key;
    });
    __syncthreads();
    sort_keys(order);
}

// Calls `visit(i, w, id)` on thread 0 for each candidate in order until it returns false. The band that is at hand serves again
// if it is the first.
template <typename Visit>
__device__ void walk(Shared& s, const float* y, u32 n, float top, float temperature, Visit visit) {
    u64 upper = ~(u64)0;
    for (u32 begin = 0; begin < n;) {
        if (!(begin == 0 && s.band_of == 1)) {
            band(s, y, n, upper, top, temperature);
            for (u32 i = threadIdx.x; i < s.order.count; i += THREADS) {
                s.order.weights[i] = exp_f32((y[order_id(s.order.keys[i])] - top) / temperature);
            }
            if (threadIdx.x == 0) s.band_of = begin == 0;
            __syncthreads();
        }
        u32 count = s.order.count;
        if (count == 0) break;
        if (threadIdx.x == 0) {
            s.stop = 0;
            for (u32 i = 0; i < count && !s.stop; ++i) {
                s.stop = !visit(begin + i, s.order.weights[i], order_id(s.order.keys[i]));
            }
        }
        __syncthreads();
        if (s.stop) break;
        upper = s.order.keys[count - 1];
        begin += count;
        __syncthreads();
    }
    __syncthreads();
}

// The first `kept` weights, summed in order.
__device__ double sum_first(Shared& s, const float* y, u32 n, float top, float temperature, u32 kept) {
    if (threadIdx.x == 0) s.running = 0.0;
    walk(s, y, n, top, temperature, [&](u32 i, float w, u32) {
        if (i >= kept) return false;
        s.running += (double)w;
        return true;
    });
    double sum = s.running;
    __syncthreads(); // thread 0 is about to use `running` again
    return sum;
}

// Steps 6 and 7 on y; row is the SampleRow's words.
__device__ u32 draw(Shared& s, const float* y, u32 n, float top, const u32* row) {
    float temperature = __uint_as_float(row[0]), top_p = __uint_as_float(row[1]), min_p = __uint_as_float(row[2]);
    u32 limit = row[3] == 0 ? n : min(row[3], n);
    double total = limit < n ? sum_first(s, y, n, top, temperature, limit) : sum_weights(s, y, n, top, temperature);
    u32 kept = limit;
    if (top_p < 1.0f || min_p > 0.0f) {
        double nucleus = (double)top_p * total;
        if (threadIdx.x == 0) {
            s.running = 0.0;
            s.index = 0;
        }
        walk(s, y, n, top, temperature, [&](u32 i, float w, u32) {
            if (i >= limit || !(i == 0 || top_p >= 1.0f || s.running < nucleus) || !(w >= min_p)) return false;
            s.running += (double)w;
            s.index = i + 1;
            return true;
        });
        u32 passed = s.index;
        __syncthreads();
        if (passed < limit) {
            kept = max(passed, 1u);
            total = sum_first(s, y, n, top, temperature, kept);
        }
    }
    double target = (double)uniform(row[7], row[8], row[9], row[10]) * total;
    if (threadIdx.x == 0) {
        s.running = 0.0;
        s.found = NO_TOKEN;
        s.final = 0;
    }
    __syncthreads();
    walk(s, y, n, top, temperature, [&](u32 i, float w, u32 id) {
        if (i >= kept) return false;
        s.running += (double)w;
        if (s.running > target) {
            s.found = id;
            return false;
        }
        // A weight of 0 lets the sum grow no more; what stands is the last candidate before it.
        if (w == 0.0f) return false;
        s.final = id;
        return true;
    });
    u32 token = s.found != NO_TOKEN ? s.found : s.final;
    __syncthreads();
    return token;
}

// Step 4 in place; the raw values go where the entries' values stood. A token stands in each list at most once.
__device__ void adjust(float* y, u32 n, const u32* row, u32* bias, u32* history) {
    for (u32 i = threadIdx.x; i < row[16]; i += THREADS) {
        u32 token = bias[2 * i];
        if (token >= n) continue;
        float raw = y[token];
        y[token] = raw + __uint_as_float(bias[2 * i + 1]);
        bias[2 * i + 1] = __float_as_uint(raw);
    }
    __syncthreads();
    float repetition = __uint_as_float(row[4]), presence = __uint_as_float(row[5]), frequency = __uint_as_float(row[6]);
    for (u32 i = threadIdx.x; i < row[14]; i += THREADS) {
        u32 token = history[2 * i], word = history[2 * i + 1], count = word >> 1;
        if (token >= n) continue;
        float raw = y[token], value = raw;
        if (word != 0) value = value > 0.0f ? value / repetition : value * repetition;
        if (count > 0) value = (value - presence) - frequency * (float)count;
        y[token] = value;
        history[2 * i + 1] = __float_as_uint(raw);
    }
    __syncthreads();
}

__device__ void undo(float* y, u32 n, const u32* row, const u32* bias, const u32* history) {
    for (u32 i = threadIdx.x; i < row[14]; i += THREADS) {
        if (history[2 * i] < n) y[history[2 * i]] = __uint_as_float(history[2 * i + 1]);
    }
    __syncthreads();
    for (u32 i = threadIdx.x; i < row[16]; i += THREADS) {
        if (bias[2 * i] < n) y[bias[2 * i]] = __uint_as_float(bias[2 * i + 1]);
    }
    __syncthreads();
}

// The chunk of this block: its partial to scratch.
__device__ void chunk_of(Shared& s, const float* x, u32 vocab, Partial* to) {
    u32 first = blockIdx.x * CHUNK;
    float value[8];
    const float minus_inf = __int_as_float(0xff800000);
    bool wide = vocab % 4 == 0 && ((u64)x & 15) == 0;
    u64 best = 0;
    u32 bad = 0;
#pragma unroll
    for (u32 t = 0; t < 2; ++t) {
        u32 i = first + t * (CHUNK / 2) + threadIdx.x * 4;
        if (wide && i < vocab) {
            float4 v = *(const float4*)(x + i);
            value[4 * t] = v.x, value[4 * t + 1] = v.y, value[4 * t + 2] = v.z, value[4 * t + 3] = v.w;
        } else {
#pragma unroll
            for (u32 e = 0; e < 4; ++e) value[4 * t + e] = i + e < vocab ? x[i + e] : minus_inf;
        }
    }
#pragma unroll
    for (u32 j = 0; j < 8; ++j) {
        u32 id = first + j / 4 * (CHUNK / 2) + threadIdx.x * 4 + j % 4;
        if (id >= vocab) continue;
        if (!isfinite(value[j])) bad = 1;
        u64 key = order_key(value[j], id);
        best = key > best ? key : best;
    }
    best = block_max(s, best);
    bad = __syncthreads_or(bad);
    float m = key_value(best);
    u64 sum = 0;
#pragma unroll
    for (u32 j = 0; j < 8; ++j) {
        float z = value[j] - m;
        if (z >= -28.5f) sum += fixed(exp_f32(z));
    }
    sum = block_sum(s, sum);
    if (threadIdx.x == 0) *to = Partial{best, sum, bad, 0};
}

extern "C" __global__ void __launch_bounds__(THREADS)
    sample_split(float* logits, u32* token, float* logprob, u32* top, u32* status, u32 vocab, const u32* step_words,
                 unsigned char* scratch) {
    __shared__ Shared s;
    pdl_launch();
    Step step{step_words};
    u32 index = blockIdx.y, chunks = gridDim.x;
    bool live = index < step.logits_rows();
    pdl_wait();
    if (!live) return;
    float* x = logits + (u64)index * vocab;
    Partial* partials = (Partial*)(scratch + 16384) + (u64)index * chunks;
    chunk_of(s, x, vocab, partials + blockIdx.x);
    if (threadIdx.x == 0) {
        u32* counter = (u32*)scratch + index;
        __threadfence();
        u32 before = atomicAdd(counter, 1);
        s.last = before == chunks - 1;
        if (s.last) *counter = 0;
        __threadfence();
        s.band_of = 0;
    }
    __syncthreads();
    if (!s.last) return;

    // The chunks, merged.
    u64 best = 0;
    u32 bad = 0;
    for (u32 c = threadIdx.x; c < chunks; c += THREADS) {
        u64 key = __ldcg(&partials[c].best);
        best = key > best ? key : best;
        bad |= __ldcg(&partials[c].bad);
    }
    best = block_max(s, best);
    bad = __syncthreads_or(bad);
    u32 chosen = order_id(best), fault = bad ? 1 : 0;
    float max = key_value(best), lse = 0.0f;
    const u32* row = step.sampling(index);
    top += (u64)index * TOP_WORDS;
    for (u32 i = threadIdx.x; i < TOP_WORDS; i += THREADS) top[i] = i % 2 ? 0 : NO_TOKEN;
    if (!fault) {
        double z = 0.0;
        for (u32 begin = 0; begin < chunks; begin += 128) {
            u32 c = begin + threadIdx.x, n = min(128u, chunks - begin);
            if (threadIdx.x < n) {
                s.terms[2 * threadIdx.x] = (double)__ldcg(&partials[c].sum);
                s.terms[2 * threadIdx.x + 1] = (double)exp_f32(key_value(__ldcg(&partials[c].best)) - max);
            }
            __syncthreads();
            if (threadIdx.x == 0) {
                for (u32 i = 0; i < n; ++i) z = fma(s.terms[2 * i], s.terms[2 * i + 1], z);
            }
            __syncthreads();
        }
        if (threadIdx.x == 0) s.running = (double)(float)log((double)(float)(z * (double)(1.0f / FIXED)));
        __syncthreads();
        lse = (float)s.running;
        __syncthreads();
        u32 wanted = min(min(row[12], TOP_WORDS / 2), vocab);
        if (wanted > 0) {
            band(s, x, vocab, ~(u64)0, max, 1.0f);
            // A band may hold fewer than are wanted: the next ones follow.
            u32 have = 0;
            while (true) {
                u32 count = s.order.count;
                if (threadIdx.x < count && have + threadIdx.x < wanted) {
                    u32 id = order_id(s.order.keys[threadIdx.x]);
                    top[2 * (have + threadIdx.x)] = id;
                    top[2 * (have + threadIdx.x) + 1] = __float_as_uint((x[id] - max) - lse);
                }
                have += count;
                if (have >= wanted || count == 0) break;
                u64 upper = s.order.keys[count - 1];
                __syncthreads();
                band(s, x, vocab, upper, max, 1.0f);
            }
            __syncthreads();
        }
        float temperature = __uint_as_float(row[0]);
        if (row[11] != NO_TOKEN) {
            chosen = row[11];
        } else if (temperature != 0.0f || row[14] != 0 || row[16] != 0) {
            u32* history = const_cast<u32*>(step.history()) + 2 * row[13];
            u32* bias = const_cast<u32*>(step.bias()) + 2 * row[15];
            bool changed = row[14] != 0 || row[16] != 0;
            if (changed) {
                adjust(x, vocab, row, bias, history);
                if (!largest(s, x, vocab, &best)) fault = 1;
            }
            chosen = order_id(best);
            float y = x[chosen];
            if (!fault && y == __int_as_float(0xff800000)) fault = 2;
            if (!fault && temperature != 0.0f) chosen = draw(s, x, vocab, y, row);
            if (changed) {
                __syncthreads();
                undo(x, vocab, row, bias, history);
            }
        }
    }
    if (threadIdx.x == 0) {
        float nan = __int_as_float(0x7fc00000);
        token[index] = fault ? 0 : chosen;
        logprob[index] = !fault && chosen < vocab ? (x[chosen] - max) - lse : nan;
        status[index] = fault;
    }
}
