// SPDX-License-Identifier: MIT OR Apache-2.0
// sample: from raw logits to a token, its log-probability and the most likely alternatives; one block a row.
//
// Spec counter_f32 (exp of numeric.cuh; sum8 = eight f64 lanes by id mod 8, each ascending, folded as lanes8):
// 1. A NaN or an infinity among the raw logits x: status 1, token 0, log-probability NaN, no alternatives.
// 2. M = max x, Z = sum8(exp(x - M)), log-probability (x - M) - ln(f32(Z)). Alternatives: the largest raw logits, equal ones
//    by ascending id; unused entries are (2^32 - 1, 0).
// 3. A forced token is taken, masked or not, and nothing below happens.
// 4. y = x; each bias entry adds; then each history entry: tokens of prompt or output take the repetition penalty (y / r if
//    positive, else y * r; arXiv 1909.05858), tokens of the output then (y - presence) - frequency * count. Where the row has
//    a mask, a token whose bit is not set is minus infinity.
// 5. Y = max y. A NaN or plus infinity in y: status 1; Y minus infinity (every token is banned or masked): status 2. Temperature 0: the
//    token of Y, the lowest id of equals.
// 6. w = exp((y - Y) / temperature); order: descending y, then ascending id. Top-k keeps k; S = sum of the kept w (in order in
//    f64 after top-k, else sum8). Top-p keeps while the sum before the candidate is below top_p * S, min-p while w >= min_p;
//    if they dropped anything, S is summed again in order.
// 7. One draw u: the first candidate in order whose running sum exceeds u * S.
//
// y is made in place and undone: the raw values of the few changed logits wait in the step block's own entries, which the
// next submit brings again. The mask is read beside y wherever y is.
#include "numeric.cuh"
#include "order.cuh"
#include "philox.cuh"

constexpr u32 TOP_WORDS = 40;
constexpr u32 NO_TOKEN = 0xffffffffu;

struct Shared {
    Order order;
    float stage[2048];
    u64 best[32];
    double sum;
    u32 bad, banned, stop;
    // The walk's own state, of thread 0.
    double running;
    u32 index, last, found;
};

enum Values : u32 { FINITE, BANNED, NOT_NUMBERS }; // BANNED: some are minus infinity

// The largest value's key, and what the values are. Every thread gets both.
__device__ Values largest(Shared& s, Masked y, u32 n, u64* key) {
    if (threadIdx.x == 0) s.bad = s.banned = 0;
    __syncthreads();
    u64 best = 0;
    for (u32 i = threadIdx.x; i < n; i += blockDim.x) {
        float v = y[i];
        if (!(v < __int_as_float(0x7f800000))) {
            s.bad = 1;
        } else if (v == __int_as_float(0xff800000)) {
            s.banned = 1;
        }
        u64 k = order_key(v, i);
        best = k > best ? k : best;
    }
    for (int offset = 16; offset > 0; offset /= 2) {
        u64 other = __shfl_xor_sync(0xffffffffu, best, offset);
        best = other > best ? other : best;
    }
    if (threadIdx.x % 32 == 0) s.best[threadIdx.x / 32] = best;
    __syncthreads();
    best = 0;
    for (u32 i = 0; i < blockDim.x / 32; ++i) best = s.best[i] > best ? s.best[i] : best;
    *key = best;
    Values values = s.bad ? NOT_NUMBERS : s.banned ? BANNED : FINITE;
    __syncthreads();
    return values;
}

// sum8 of exp((y - top) / temperature); temperature 1 divides exactly.
__device__ double sum8(Shared& s, Masked y, u32 n, float top, float temperature) {
    double lane = 0.0;
    for (u32 begin = 0; begin < n; begin += 2048) {
        u32 count = min(2048u, n - begin);
        __syncthreads();
        for (u32 i = threadIdx.x; i < count; i += blockDim.x) {
            s.stage[i] = exp_f32((y[begin + i] - top) / temperature);
        }
        __syncthreads();
        if (threadIdx.x < 8) {
            for (u32 i = threadIdx.x; i < count; i += 8) lane += (double)s.stage[i];
        }
    }
    if (threadIdx.x < 32) {
        lane += __shfl_xor_sync(0xffffffffu, lane, 4);
        lane += __shfl_xor_sync(0xffffffffu, lane, 2);
        lane += __shfl_xor_sync(0xffffffffu, lane, 1);
        if (threadIdx.x == 0) s.sum = lane;
    }
    __syncthreads();
    return s.sum;
}

// Calls `visit(i, w, id)` on thread 0 for each candidate in order until it returns false.
template <typename Visit>
__device__ void walk(Shared& s, Masked y, u32 n, float top, float temperature, Visit visit) {
    u64 upper = ~(u64)0;
    for (u32 begin = 0; begin < n;) {
        next_band(s.order, y, n, upper);
        u32 count = s.order.count;
        if (count == 0) break;
        for (u32 i = threadIdx.x; i < count; i += blockDim.x) {
            s.order.weights[i] = exp_f32((y[order_id(s.order.keys[i])] - top) / temperature);
        }
        __syncthreads();
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
__device__ double sum_first(Shared& s, Masked y, u32 n, float top, float temperature, u32 kept) {
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
__device__ u32 draw(Shared& s, Masked y, u32 n, float top, const u32* row) {
    float temperature = __uint_as_float(row[0]), top_p = __uint_as_float(row[1]), min_p = __uint_as_float(row[2]);
    u32 limit = row[3] == 0 ? n : min(row[3], n);
    double total = limit < n ? sum_first(s, y, n, top, temperature, limit) : sum8(s, y, n, top, temperature);
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
        s.last = 0;
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
        s.last = id;
        return true;
    });
    u32 token = s.found != NO_TOKEN ? s.found : s.last;
    __syncthreads();
    return token;
}

// Step 4 in place; the raw values go where the entries' values stood. A token stands in each list at most once.
__device__ void adjust(float* y, u32 n, const u32* row, u32* bias, u32* history) {
    for (u32 i = threadIdx.x; i < row[16]; i += blockDim.x) {
        u32 token = bias[2 * i];
        if (token >= n) continue;
        float raw = y[token];
        y[token] = raw + __uint_as_float(bias[2 * i + 1]);
        bias[2 * i + 1] = __float_as_uint(raw);
    }
    __syncthreads();
    float repetition = __uint_as_float(row[4]), presence = __uint_as_float(row[5]), frequency = __uint_as_float(row[6]);
    for (u32 i = threadIdx.x; i < row[14]; i += blockDim.x) {
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
    for (u32 i = threadIdx.x; i < row[14]; i += blockDim.x) {
        if (history[2 * i] < n) y[history[2 * i]] = __uint_as_float(history[2 * i + 1]);
    }
    __syncthreads();
    for (u32 i = threadIdx.x; i < row[16]; i += blockDim.x) {
        if (bias[2 * i] < n) y[bias[2 * i]] = __uint_as_float(bias[2 * i + 1]);
    }
    __syncthreads();
}

extern "C" __global__ void __launch_bounds__(SAMPLE_THREADS)
    sample_f32(float* logits, u32* token, float* logprob, u32* top, u32* status, u32 vocab, const u32* step_words) {
    __shared__ Shared s;
    Step step{step_words};
    u32 index = blockIdx.x;
    if (index >= step.logits_rows()) return;
    const u32* row = step.sampling(index);
    float* x = logits + (u64)index * vocab;
    top += (u64)index * TOP_WORDS;
    for (u32 i = threadIdx.x; i < TOP_WORDS; i += blockDim.x) top[i] = i % 2 ? 0 : NO_TOKEN;

    u64 best;
    Masked raw{x, nullptr};
    u32 failed = largest(s, raw, vocab, &best) == FINITE ? 0 : 1; // the row's status
    u32 chosen = order_id(best);
    float max = 0.0f, lse = 0.0f;
    if (failed == 0) {
        max = x[chosen];
        lse = (float)log((double)(float)sum8(s, raw, vocab, max, 1.0f));
        u32 wanted = min(min(row[12], TOP_WORDS / 2), vocab);
        // A band has fewer where the next whole bucket would not fit.
        u64 upper = ~(u64)0;
        for (u32 have = 0, count; have < wanted; have += count) {
            next_band(s.order, x, vocab, upper);
            count = s.order.count;
            if (count == 0) break;
            u32 at = have + threadIdx.x;
            if (threadIdx.x < count && at < wanted) {
                u32 id = order_id(s.order.keys[threadIdx.x]);
                top[2 * at] = id;
                top[2 * at + 1] = __float_as_uint((x[id] - max) - lse);
            }
            upper = s.order.keys[count - 1];
            __syncthreads();
        }
        float temperature = __uint_as_float(row[0]);
        Masked y{x, step.mask(row)};
        if (row[11] != NO_TOKEN) {
            chosen = row[11];
        } else if (temperature != 0.0f || row[14] != 0 || row[16] != 0 || y.mask != nullptr) {
            u32* history = const_cast<u32*>(step.history()) + 2 * row[13];
            u32* bias = const_cast<u32*>(step.bias()) + 2 * row[15];
            adjust(x, vocab, row, bias, history);
            Values values = largest(s, y, vocab, &best);
            chosen = order_id(best);
            if (values == NOT_NUMBERS) {
                failed = 1;
            } else if (y[chosen] == __int_as_float(0xff800000)) {
                failed = 2;
            } else if (temperature != 0.0f) {
                chosen = draw(s, y, vocab, y[chosen], row);
            }
            undo(x, vocab, row, bias, history);
        }
    }
    if (threadIdx.x == 0) {
        float nan = __int_as_float(0x7fc00000);
        token[index] = failed == 0 ? chosen : 0;
        logprob[index] = failed == 0 && chosen < vocab ? (x[chosen] - max) - lse : nan;
        status[index] = failed;
    }
}
