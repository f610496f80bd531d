// SPDX-License-Identifier: MIT OR Apache-2.0
// sample: as the plain point (sample.cu of class gb10) says in steps 1 to 7, with sums that any partition gives the same bits:
//
// Spec counter_fixed40, where it differs from counter_f32 (exp of numeric.cuh; fixed(w) = the integer round(w * 2^40), ties to
// even; sums of such integers are exact):
// 2. The ids lie in chunks of 4096; chunk c has m_c = max x and s_c = the sum of fixed(exp(x - m_c)). Z = 2^-40 times the
//    ascending f64 chain z = fma(s_c, f64(exp(m_c - M)), z) from 0.
// 5. y may be minus infinity (a banned or masked token): status 1 is for a NaN or plus infinity in y, status 2 for Y = minus infinity.
// 6. w = exp((y - Y) / temperature), order and filters as there, but every sum is of fixed(w), and compared as f64: top-p keeps
//    while f64(sum before the candidate) < f64(top_p) * f64(S), min-p while w >= min_p, the first candidate always; S is the
//    sum of what is kept.
// 7. One draw u: the first candidate in order whose f64(running sum) exceeds f64(u) * f64(S).
//
// A block takes a chunk of a row, 8 ids a thread; the last block of a row to arrive merges the chunks, and that is all for a
// greedy row. For the others it goes on alone. The sums need no order of adding, so nothing is sorted but the candidates of one
// bin: a histogram of counts and weights over 2048 bins of a 64th of a temperature says where a sum is reached; should that bin
// hold too many candidates, digits of the order's keys divide it further. From 32 temperatures below the best on fixed(w) is 0.
//
// block 512; grid [tiles(vocab, 4096), logits_rows]; no dynamic shared memory; scratch 16384 + logits_rows *
// tiles(vocab, 4096) * 24 bytes, zeroed once (counters first, left at zero); logits_rows <= 4096. pdl = true.
#include "numeric.cuh"
#include "order.cuh"
#include "pdl.cuh"
#include "philox.cuh"

constexpr u32 THREADS = 512;
constexpr u32 CHUNK = 4096;
constexpr u32 TOP_WORDS = 40;
constexpr u32 NO_TOKEN = 0xffffffffu;
constexpr u32 BINS = 2048;
constexpr u32 MOST = 2048;             // candidates that are sorted at a time
constexpr float FIXED = 1099511627776.0f; // 2^40

struct Partial {
    u64 best, sum; // of the chunk: key of the largest, sum in fixed point
    u32 bad, unused;
};

struct Bins {
    u64 keys[MOST];
    u64 sum[BINS];
    u32 count[BINS]; // the top bit: a weight below min_p stands in it
};

struct Shared {
    union {
        Bins bins;
        Order order; // the plain bands, where the alternatives do not fit
        double terms[256];
    };
    u64 words[THREADS / 32];
    u64 before; // what lies above the bin that was found: sum and count
    u32 counts[THREADS / 32];
    u32 above, found, size, last, bad;
    float lse;
    u64 answer;
};

// The logit that a key was made from (a zero comes back as +0).
__device__ inline float key_value(u64 key) {
    u32 bits = key >> 32;
    return __uint_as_float(bits & 0x80000000u ? bits & 0x7fffffffu : ~bits);
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

// Calls `f(value, id)` for each of the row's values, spread over the block. What the mask does not allow is minus infinity.
template <typename F>
__device__ inline void each(Masked row, u32 n, F f) {
    const float* y = row.y;
    if (n % 4 != 0 || ((u64)y & 15) != 0) {
        for (u32 i = threadIdx.x; i < n; i += THREADS) f(row[i], i);
    } else if (row.mask == nullptr) {
#pragma unroll 4
        for (u32 i = threadIdx.x * 4; i < n; i += THREADS * 4) {
            float4 v = *(const float4*)(y + i);
            f(v.x, i);
            f(v.y, i + 1);
            f(v.z, i + 2);
            f(v.w, i + 3);
        }
    } else {
        for (u32 i = threadIdx.x * 4; i < n; i += THREADS * 4) {
            float4 v = *(const float4*)(y + i);
            // Four ids from a multiple of 4 on: bits of one word.
            u32 bits = row.mask[i / 32] >> i % 32;
            const float banned = __int_as_float(0xff800000);
            f(bits & 1 ? v.x : banned, i);
            f(bits & 2 ? v.y : banned, i + 1);
            f(bits & 4 ? v.z : banned, i + 2);
            f(bits & 8 ? v.w : banned, i + 3);
        }
    }
}

// The largest value's key and whether no value is NaN or plus infinity.
__device__ bool largest(Shared& s, Masked y, u32 n, u64* key) {
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

// Sorts the first `count` keys, descending.
__device__ void sort_keys(u64* keys, u32 count) {
    u32 size = 1;
    while (size < count) size *= 2;
    for (u32 i = count + threadIdx.x; i < size; i += THREADS) keys[i] = 0;
    for (u32 length = 2; length <= size; length *= 2) {
        for (u32 stride = length / 2; stride > 0; stride /= 2) {
            __syncthreads();
            for (u32 i = threadIdx.x; i < size / 2; i += THREADS) {
                u32 low = i / stride * 2 * stride + i % stride, high = low + stride;
                u64 a = keys[low], b = keys[high];
                if ((a < b) == ((low & length) == 0)) {
                    keys[low] = b;
                    keys[high] = a;
                }
            }
        }
    }
    __syncthreads();
}

// A row's candidates and what their order is cut by.
struct Row {
    Masked y;
    u32 n;
    float top, temperature, min_p;

    __device__ float weight(float v) const { return exp_f32((v - top) / temperature); }
    // Falls with v; the last bin takes all that is too far down to count.
    __device__ u32 bin(float v) const { return min(BINS - 1, __float2uint_rz((top - v) * (64.0f / temperature))); }
};

__device__ void clear_bins(Bins& bins) {
    __syncthreads();
    for (u32 i = threadIdx.x; i < BINS; i += THREADS) {
        bins.count[i] = 0;
        bins.sum[i] = 0;
    }
    __syncthreads();
}

__device__ inline void add_to(Bins& bins, u32 bin, const Row& r, float v) {
    float w = r.weight(v);
    atomicAdd(&bins.count[bin], 1u);
    u64 fixed_w = fixed(w);
    if (fixed_w != 0) {
        // By halves with a carry: shared memory adds 32 bits at once, 64 only in a loop.
        u32 *halves = (u32*)&bins.sum[bin], low = (u32)fixed_w;
        u32 before = atomicAdd(halves, low), high = (u32)(fixed_w >> 32) + (before + low < before ? 1 : 0);
        if (high != 0) atomicAdd(halves + 1, high);
    }
    if (w < r.min_p) atomicOr(&bins.count[bin], 1u << 31);
}

// Counts and sums of the bins; the last stays empty.
__device__ void fill_bins(Bins& bins, const Row& r) {
    clear_bins(bins);
    each(r.y, r.n, [&](float v, u32) {
        u32 bin = r.bin(v);
        if (bin < BINS - 1) add_to(bins, bin, r, v);
    });
    __syncthreads();
}

// The first of `n` bins with `reached(count through it, sum through it, flag)`, the count and sum before it added to s.above
// and s.before, its count in s.size; n if there is none.
template <typename Reached>
__device__ u32 find_bin(Shared& s, u32 n, Reached reached) {
    Bins& bins = s.bins;
    u32 each = max(1u, n / THREADS), first = threadIdx.x * each, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    u32 own_count = 0;
    u64 own_sum = 0;
    for (u32 i = first; i < min(n, first + each); ++i) {
        own_count += bins.count[i] & 0x7fffffffu;
        own_sum += bins.sum[i];
    }
    u32 count = own_count;
    u64 sum = own_sum;
    for (u32 offset = 1; offset < 32; offset *= 2) {
        u32 other = __shfl_up_sync(0xffffffffu, count, offset);
        u64 others = __shfl_up_sync(0xffffffffu, sum, offset);
        if (lane >= offset) {
            count += other;
            sum += others;
        }
    }
    if (lane == 31) {
        s.counts[warp] = count;
        s.words[warp] = sum;
    }
    if (threadIdx.x == 0) s.found = n;
    __syncthreads();
    count += s.above - own_count;
    sum += s.before - own_sum;
    for (u32 i = 0; i < warp; ++i) {
        count += s.counts[i];
        sum += s.words[i];
    }
    u32 at = first, here = 0;
    for (; at < min(n, first + each); ++at) {
        u32 c = bins.count[at];
        here = c & 0x7fffffffu;
        if (c != 0 && reached(count + here, sum + bins.sum[at], c >> 31 != 0)) {
            atomicMin(&s.found, at);
            break;
        }
        count += here;
        sum += bins.sum[at];
    }
    __syncthreads();
    if (s.found == at && at < n && at < first + each) {
        s.above = count;
        s.before = sum;
        s.size = here;
    }
    __syncthreads();
    return s.found;
}

// Goes to where `reached` first holds in the order and calls `visit(count before, sum before, key, w)` on thread 0 for the
// candidates of that bin, in order, until it returns true. True if it did; s.above and s.before are then of what lies above.
// `level` says whether the bins are still those of fill_bins.
template <typename Reached, typename Visit>
__device__ bool walk(Shared& s, const Row& r, bool& level, Reached reached, Visit visit) {
    Bins& bins = s.bins;
    if (!level) fill_bins(bins, r);
    level = true;
    if (threadIdx.x == 0) {
        s.above = 0;
        s.before = 0;
    }
    __syncthreads();
    u32 bin = find_bin(s, BINS, reached);
    if (bin >= BINS - 1) return false;
    u64 prefix = 0, mask = 0;
    for (int shift = 56; s.size > MOST; shift -= 8) {
        // Too many for a sort: by the next eight bits of the keys, the largest digit first.
        level = false;
        clear_bins(bins);
        each(r.y, r.n, [&](float v, u32 i) {
            u64 key = order_key(v, i);
            if (r.bin(v) == bin && (key & mask) == prefix) add_to(bins, 255 - (u32)(key >> shift & 255), r, v);
        });
        __syncthreads();
        u32 digit = find_bin(s, 256, reached);
        if (digit == 256) return false; // cannot be: the bin above it reached
        prefix |= (u64)(255 - digit) << shift;
        mask |= (u64)255 << shift;
    }
    __syncthreads();
    if (threadIdx.x == 0) s.found = 0;
    __syncthreads();
    each(r.y, r.n, [&](float v, u32 i) {
        if (r.bin(v) != bin) return;
        u64 key = order_key(v, i);
        if ((key & mask) == prefix) bins.keys[atomicAdd(&s.found, 1u)] = key;
    });
    __syncthreads();
    u32 count = s.found;
    sort_keys(bins.keys, count);
    if (threadIdx.x == 0) {
        bool stop = false;
        u32 above = s.above;
        u64 before = s.before;
        for (u32 i = 0; i < count && !stop; ++i) {
            float w = r.weight(key_value(bins.keys[i]));
            stop = visit(above, before, bins.keys[i], w);
            if (stop) break;
            ++above;
            before += fixed(w);
        }
        s.above = above;
        s.before = before;
    }
    __syncthreads();
    return true;
}

// Steps 6 and 7 on y; words is the SampleRow's, `best` the key of the largest.
__device__ u32 draw(Shared& s, Masked y, u32 n, u64 best, const u32* words) {
    float top_p = __uint_as_float(words[1]);
    Row r{y, n, key_value(best), __uint_as_float(words[0]), __uint_as_float(words[2])};
    bool level = true;
    fill_bins(s.bins, r);
    u64 total = 0;
    for (u32 i = threadIdx.x; i < BINS; i += THREADS) total += s.bins.sum[i];
    total = block_sum(s, total);
    u32 limit = words[3];
    if (limit != 0 && limit < n) {
        auto reached = [&](u32 count, u64, bool) { return count >= limit; };
        if (walk(s, r, level, reached, [&](u32 above, u64, u64, float) { return above == limit; })) total = s.before;
        __syncthreads();
    }
    if (top_p < 1.0f || r.min_p > 0.0f) {
        double nucleus = top_p < 1.0f ? (double)top_p * (double)total : __longlong_as_double(0x7ff0000000000000ll);
        float min_p = r.min_p;
        auto reached = [&](u32, u64 sum, bool low) { return (double)sum >= nucleus || low; };
        auto dropped = [&](u32 above, u64 before, u64, float w) {
            return above > 0 && ((double)before >= nucleus || !(w >= min_p));
        };
        if (walk(s, r, level, reached, dropped)) total = s.before < total ? s.before : total;
        __syncthreads();
    }
    double target = (double)uniform(words[7], words[8], words[9], words[10]) * (double)total;
    if (threadIdx.x == 0) s.answer = best;
    auto reached = [&](u32, u64 sum, bool) { return (double)sum > target; };
    walk(s, r, level, reached, [&](u32, u64 before, u64 key, float w) {
        s.answer = key;
        return (double)(before + fixed(w)) > target;
    });
    return order_id(s.answer);
}

// The `wanted` largest logits and their log-probabilities.
__device__ void alternatives(Shared& s, const float* x, u32 n, float max, float lse, u32 wanted, u32* top) {
    Masked raw{x, nullptr};
    Row r{raw, n, max, 1.0f, 0.0f};
    fill_bins(s.bins, r);
    if (threadIdx.x == 0) {
        s.above = 0;
        s.before = 0;
    }
    __syncthreads();
    u32 bin = find_bin(s, BINS, [&](u32 count, u64, bool) { return count >= wanted; });
    u32 count = s.above + s.size;
    auto put = [&](u32 at, u64 key) {
        u32 id = order_id(key);
        top[2 * at] = id;
        top[2 * at + 1] = __float_as_uint((x[id] - max) - lse);
    };
    __syncthreads();
    if (bin < BINS - 1 && count <= MOST) {
        if (threadIdx.x == 0) s.found = 0;
        __syncthreads();
        each(raw, n, [&](float v, u32 i) {
            if (r.bin(v) <= bin) s.bins.keys[atomicAdd(&s.found, 1u)] = order_key(v, i);
        });
        __syncthreads();
        sort_keys(s.bins.keys, count);
        if (threadIdx.x < min(wanted, count)) put(threadIdx.x, s.bins.keys[threadIdx.x]);
        __syncthreads();
    } else {
        // Many equal or close ones: by radix, as many bands as it takes.
        u64 upper = ~(u64)0;
        for (u32 have = 0; have < wanted; have += count) {
            next_band(s.order, x, n, upper);
            count = s.order.count;
            if (count == 0) break;
            if (threadIdx.x < count && have + threadIdx.x < wanted) put(have + threadIdx.x, s.order.keys[threadIdx.x]);
            upper = s.order.keys[count - 1];
            __syncthreads();
        }
    }
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
        if (threadIdx.x == 0) s.lse = (float)log((double)(float)(z * (double)(1.0f / FIXED)));
        __syncthreads();
        lse = s.lse;
        u32 wanted = min(min(row[12], TOP_WORDS / 2), vocab);
        if (wanted > 0) alternatives(s, x, vocab, max, lse, wanted, top);
        float temperature = __uint_as_float(row[0]);
        Masked y{x, step.mask(row)};
        if (row[11] != NO_TOKEN) {
            chosen = row[11];
        } else if (temperature != 0.0f || row[14] != 0 || row[16] != 0 || y.mask != nullptr) {
            u32* history = const_cast<u32*>(step.history()) + 2 * row[13];
            u32* bias = const_cast<u32*>(step.bias()) + 2 * row[15];
            bool changed = row[14] != 0 || row[16] != 0;
            if (changed) adjust(x, vocab, row, bias, history);
            if ((changed || y.mask != nullptr) && !largest(s, y, vocab, &best)) fault = 1;
            chosen = order_id(best);
            if (!fault && key_value(best) == __int_as_float(0xff800000)) fault = 2;
            if (!fault && temperature != 0.0f) chosen = draw(s, y, vocab, best, row);
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
