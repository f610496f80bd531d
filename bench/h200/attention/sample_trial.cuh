// SPDX-License-Identifier: MIT OR Apache-2.0
// sample_split against a host reference of its spec (a full sort), tokens and bits; then times.
#pragma once

#include "harness.cuh"

extern "C" void sample_split(float*, u32*, float*, u32*, u32*, u32, const u32*, unsigned char*);

// core::numeric::math::exp.
inline float host_exp(float x) {
    if (std::isnan(x)) return x;
    if (x < -87.33654f) return 0.0f;
    if (x > 88.72283f) return INFINITY;
    float n = rintf(x * 1.44269504088896340736f);
    float r = fmaf(-n, 0.6933594f, x);
    r = fmaf(-n, -2.1219444e-4f, r);
    float p = 1.0f / 720.0f;
    for (float c : {1.0f / 120.0f, 1.0f / 24.0f, 1.0f / 6.0f, 0.5f, 1.0f, 1.0f}) p = fmaf(p, r, c);
    int i = (int)n, half = i >> 1;
    return p * ldexpf(1.0f, half) * ldexpf(1.0f, i - half);
}

inline float host_uniform(u32 seed_low, u32 seed_high, u32 choice, u32 position) {
    u32 c[4] = {position, choice, 0, 0}, k0 = seed_low, k1 = seed_high;
    for (int round = 0; round < 10; ++round) {
        if (round > 0) k0 += 0x9E3779B9u, k1 += 0xBB67AE85u;
        u64 p0 = (u64)0xD2511F53u * c[0], p1 = (u64)0xCD9E8D57u * c[2];
        u32 next[4] = {(u32)(p1 >> 32) ^ c[1] ^ k0, (u32)p1, (u32)(p0 >> 32) ^ c[3] ^ k1, (u32)p0};
        memcpy(c, next, sizeof c);
    }
    return (float)(c[0] >> 8) * (1.0f / 16777216.0f);
}

struct Answer {
    u32 token, status;
    float logprob;
    std::vector<u32> top;
};

inline u64 host_fixed(float w) { return (u64)llrint((double)w * 1099511627776.0); }

inline std::vector<u32> order_of(const std::vector<float>& y) {
    std::vector<u32> order(y.size());
    for (u32 i = 0; i < y.size(); ++i) order[i] = i;
    std::stable_sort(order.begin(), order.end(), [&](u32 a, u32 b) { return y[a] > y[b]; });
    return order;
}

inline Answer host_sample(const std::vector<float>& x, const u32* row, const std::vector<u32>& bias, const std::vector<u32>& history,
                          const std::vector<u32>& mask) {
    auto as_float = [](u32 w) {
        float f;
        memcpy(&f, &w, 4);
        return f;
    };
    u32 n = x.size();
    Answer a{0, 0, NAN, std::vector<u32>(40)};
    for (u32 i = 0; i < 40; ++i) a.top[i] = i % 2 ? 0 : 0xffffffffu;
    float max = -INFINITY;
    for (float v : x) {
        if (!std::isfinite(v)) return a.status = 1, a;
        max = std::max(max, v);
    }
    double z = 0;
    for (u32 begin = 0; begin < n; begin += 4096) {
        u32 end = std::min(n, begin + 4096);
        float m = *std::max_element(x.begin() + begin, x.begin() + end);
        u64 sum = 0;
        for (u32 i = begin; i < end; ++i) sum += host_fixed(host_exp(x[i] - m));
        z = fma((double)sum, (double)host_exp(m - max), z);
    }
    float lse = (float)log((double)(float)(z / 1099511627776.0));
    auto logprob = [&](u32 t) { return t < n ? (x[t] - max) - lse : NAN; };
    std::vector<u32> raw = order_of(x);
    for (u32 i = 0; i < std::min({row[12], 20u, n}); ++i) {
        float l = logprob(raw[i]);
        a.top[2 * i] = raw[i];
        memcpy(&a.top[2 * i + 1], &l, 4);
    }
    auto found = [&](u32 t) { return a.token = t, a.logprob = logprob(t), a; };
    if (row[11] != 0xffffffffu) return found(row[11]);
    float temperature = as_float(row[0]), top_p = as_float(row[1]), min_p = as_float(row[2]);
    std::vector<float> y = x;
    for (u32 i = 0; i + 1 < bias.size(); i += 2)
        if (bias[i] < n) y[bias[i]] += as_float(bias[i + 1]);
    for (u32 i = 0; i + 1 < history.size(); i += 2) {
        if (history[i] >= n) continue;
        float& v = y[history[i]];
        u32 count = history[i + 1] >> 1;
        if (history[i + 1]) v = v > 0 ? v / as_float(row[4]) : v * as_float(row[4]);
        if (count) v = (v - as_float(row[5])) - as_float(row[6]) * (float)count;
    }
    for (u32 i = 0; i < n && !mask.empty(); ++i)
        if (!(mask[i / 32] >> i % 32 & 1)) y[i] = -INFINITY;
    for (float v : y)
        if (!(v < INFINITY)) return a.status = 1, a;
    std::vector<u32> order = order_of(y);
    float top = y[order[0]];
    if (top == -INFINITY) return a.status = 2, a;
    if (temperature == 0) return found(order[0]);
    std::vector<float> w(n);
    for (u32 i = 0; i < n; ++i) w[i] = host_exp((y[order[i]] - top) / temperature);
    u32 limit = row[3] ? std::min(row[3], n) : n, kept = limit;
    auto first = [&](u32 k) {
        u64 sum = 0;
        for (u32 i = 0; i < k; ++i) sum += host_fixed(w[i]);
        return sum;
    };
    u64 total = first(limit);
    if (top_p < 1 || min_p > 0) {
        u64 before = 0;
        u32 i = 0;
        while (i < limit && (i == 0 || top_p >= 1 || (double)before < (double)top_p * (double)total) && (i == 0 || w[i] >= min_p)) {
            before += host_fixed(w[i++]);
        }
        kept = i;
        total = first(kept);
    }
    double target = (double)host_uniform(row[7], row[8], row[9], row[10]) * (double)total;
    u64 running = 0;
    for (u32 i = 0; i < kept; ++i) {
        running += host_fixed(w[i]);
        if ((double)running > target) return found(order[i]);
    }
    return found(order[0]);
}

inline u32 bits_of(float f) {
    u32 w;
    memcpy(&w, &f, 4);
    return w;
}

// A sampling row; history and bias ranges are filled in by the caller.
inline std::vector<u32> sample_row(float temperature, float top_p, float min_p, u32 top_k, u32 top, u32 position) {
    std::vector<u32> w(20, 0);
    w[0] = bits_of(temperature), w[1] = bits_of(top_p), w[2] = bits_of(min_p), w[3] = top_k;
    w[4] = bits_of(1.3f), w[5] = bits_of(0.5f), w[6] = bits_of(0.25f);
    w[7] = 77 + position, w[8] = 3, w[9] = 1, w[10] = position, w[11] = 0xffffffffu, w[12] = top, w[17] = 0xffffffffu;
    return w;
}

// A mask of some kind, with whatever bits beyond the vocabulary; empty: none. 0 allows all, 1 about a half, 2 a few, 3 one token,
// 4 nothing, 5 all but the best of the row, 6 the last word alone.
inline std::vector<u32> some_mask(u32 kind, u32 vocab, u32 seed, const float* x) {
    if (kind > 6) return {};
    u32 words = (vocab + 31) / 32;
    std::vector<u32> mask(words, kind == 0 || kind == 5 ? 0xffffffffu : 0);
    for (u32 w = 0; w < words; ++w) {
        u32 bits = hash32(w * 7 + seed);
        if (kind == 1) mask[w] = bits;
        if (kind == 2) mask[w] = bits & hash32(w * 11 + seed) & hash32(w * 13 + seed) & hash32(w * 17 + seed);
    }
    if (kind == 3) mask[hash32(seed) % vocab / 32] = 1u << hash32(seed) % vocab % 32;
    if (kind == 5) {
        u32 best = std::max_element(x, x + vocab) - x;
        mask[best / 32] &= ~(1u << best % 32);
    }
    if (kind == 6) mask[words - 1] = 0xffffffffu;
    if (vocab % 32) mask[words - 1] |= 0xffffffffu << vocab % 32;
    return mask;
}

// `masked`: rows of every kind of mask and rows of none; else none.
inline void check_sample(u32 vocab, u32 rows, float spread, bool masked = false) {
    int before = failures();
    u32 bucket = rows + 2;
    float* logits = random_device<float>((u64)bucket * vocab, vocab + rows, spread);
    std::vector<float> x = download(logits, (u64)bucket * vocab);
    StepWords words;
    words.run(0, 0, rows);
    std::vector<std::vector<u32>> biases(rows), histories(rows), masks(rows);
    words.mask_words = (vocab + 31) / 32;
    for (u32 r = 0; r < rows; ++r) {
        words.logits.push_back(r);
        float t[] = {0.0f, 0.7f, 1.0f, 0.0f, 1.5f, 0.2f, 1.0f, 0.9f};
        float p[] = {1.0f, 0.9f, 1.0f, 1.0f, 0.5f, 1.0f, 0.95f, 0.999f};
        float m[] = {0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.05f, 0.0f, 0.0f};
        u32 k[] = {0, 0, 0, 5, 50, 0, 40, 0};
        std::vector<u32> row = sample_row(t[r % 8], p[r % 8], m[r % 8], k[r % 8], r % 3 == 1 ? 20 : r % 3, r);
        if (r % 4 == 3) {
            for (u32 i = 0; i < 40; ++i) histories[r].insert(histories[r].end(), {hash32(i + r * 50) % vocab / 41 * 41 + i, (i % 5) << 1 | i % 2});
        }
        if (r % 5 == 4) {
            for (u32 i = 0; i < 30; ++i) biases[r].insert(biases[r].end(), {(hash32(i * 3 + r) % (vocab / 31)) * 31 + i, bits_of(i == 3 ? -INFINITY : 0.1f * i)});
        }
        if (r == 9) row[11] = 5;
        if (r == 10) x[(u64)r * vocab + vocab / 2] = NAN;
        if (r == 11) x[(u64)r * vocab + vocab - 1] = -INFINITY;
        if (r == 12) { // equal values
            for (u32 i = 0; i < vocab; ++i) x[(u64)r * vocab + i] = (float)(i % 7);
        }
        if (r == 16) {
            for (u32 i = 0; i < vocab; ++i) x[(u64)r * vocab + i] = (float)(i % 7);
            row[12] = 20;
        }
        if (r == 13) x[(u64)r * vocab + vocab - 1] = 50.0f, x[(u64)r * vocab + 3] = 50.0f;
        if (masked) masks[r] = some_mask((r * 5 + rows) % 9, vocab, r, &x[(u64)r * vocab]);
        if (!masks[r].empty()) row[17] = words.masks.size();
        words.masks.insert(words.masks.end(), masks[r].begin(), masks[r].end());
        row[13] = words.history.size() / 2, row[14] = histories[r].size() / 2;
        row[15] = words.bias.size() / 2, row[16] = biases[r].size() / 2;
        words.history.insert(words.history.end(), histories[r].begin(), histories[r].end());
        words.bias.insert(words.bias.end(), biases[r].begin(), biases[r].end());
        words.sampling.insert(words.sampling.end(), row.begin(), row.end());
    }
    CHECK(cudaMemcpy(logits, x.data(), x.size() * 4, cudaMemcpyHostToDevice));
    u32 chunks = (vocab + 4095) / 4096, *step = words.upload();
    u32 *token = device<u32>(bucket), *top = device<u32>(bucket * 40), *status = device<u32>(bucket);
    float* logprob = device<float>(bucket);
    unsigned char* scratch = device<unsigned char>(16384 + (u64)bucket * chunks * 24);
    CHECK(cudaMemset(scratch, 0, 16384));
    launch((void*)sample_split, {dim3(chunks, bucket), 512}, logits, token, logprob, top, status, vocab, (const u32*)step, scratch);
    std::vector<u32> tokens = download(token, bucket), tops = download(top, bucket * 40), statuses = download(status, bucket);
    std::vector<float> logprobs = download(logprob, bucket), after = download(logits, x.size());
    for (u32 r = 0; r < rows; ++r) {
        std::vector<float> one(x.begin() + (u64)r * vocab, x.begin() + (u64)(r + 1) * vocab);
        Answer a = host_sample(one, &words.sampling[20 * r], biases[r], histories[r], masks[r]);
        bool good = tokens[r] == a.token && statuses[r] == a.status && (bits_of(logprobs[r]) == bits_of(a.logprob) || (std::isnan(a.logprob) && std::isnan(logprobs[r])));
        good &= std::equal(a.top.begin(), a.top.end(), tops.begin() + r * 40);
        if (!good && failures()++ < 20) {
            printf("FAILED sample vocab %u row %u: token %u %u status %u %u logprob %.9g %.9g top %u %u\n", vocab, r, tokens[r], a.token,
                   statuses[r], a.status, logprobs[r], a.logprob, tops[r * 40], a.top[0]);
        }
    }
    verdict(memcmp(after.data(), x.data(), x.size() * 4) == 0, "logits were not restored");
    verdict(tokens[rows] == 0xffffffffu && statuses[rows + 1] == 0xffffffffu, "a dead row was sampled");
    printf("sample vocab %u rows %u spread %.0f%s: %d failures\n", vocab, rows, spread, masked ? " masked" : "", failures() - before);
    for (void* p : {(void*)logits, (void*)step, (void*)token, (void*)top, (void*)status, (void*)logprob, (void*)scratch}) CHECK(cudaFree(p));
}

extern "C" void sample_f32(float*, u32*, float*, u32*, u32*, u32, const u32*);

// The plain sampler where a band is shorter than the alternatives, and where tokens are banned.
inline void check_plain_sample() {
    const u32 VOCAB = 5000, ROWS = 5, FEW = 3;
    float infinity = INFINITY;
    std::vector<float> x((u64)ROWS * VOCAB, 1.0f);
    for (u32 r = 0; r < ROWS; ++r) {
        for (u32 i = 0; i < FEW; ++i) x[(u64)r * VOCAB + 4000 + i] = 10.0f;
    }
    x[4ull * VOCAB + 17] = NAN;
    StepWords words;
    words.run(0, 0, ROWS);
    for (u32 r = 0; r < ROWS; ++r) {
        words.logits.push_back(r);
        std::vector<u32> row = sample_row(r == 2 ? 0.7f : 0.0f, 1, 0, 0, 20, r);
        u32 banned = r == 1 || r == 2 ? FEW : r == 3 ? VOCAB : 0; // the best three; all
        row[15] = words.bias.size() / 2;
        row[16] = banned;
        for (u32 i = 0; i < banned; ++i) {
            words.bias.push_back(r == 3 ? i : 4000 + i);
            words.bias.push_back(bits_of(-infinity));
        }
        words.sampling.insert(words.sampling.end(), row.begin(), row.end());
    }
    float *logits = upload(x), *logprob = device<float>(ROWS);
    u32 *token = device<u32>(ROWS), *top = device<u32>(ROWS * 40), *status = device<u32>(ROWS), *step = words.upload();
    launch((void*)sample_f32, {dim3(ROWS), 1024, 0, false}, logits, token, logprob, top, status, VOCAB, (const u32*)step);
    std::vector<u32> t = download(token, ROWS), s = download(status, ROWS), a = download(top, ROWS * 40);
    std::vector<float> l = download(logprob, ROWS), after = download(logits, x.size());
    verdict(s == std::vector<u32>({0, 0, 0, 2, 1}), "plain sample: status");
    verdict(t[0] == 4000 && t[1] == 0 && (t[2] < 4000 || t[2] >= 4000 + FEW) && t[3] == 0 && t[4] == 0, "plain sample: tokens");
    bool good = std::isnan(l[3]) && std::isnan(l[4]) && l[1] < -8.0f && l[0] < -1.0f && l[0] > -2.5f;
    for (u32 r = 0; r < 4; ++r) {
        for (u32 i = 0; i < 20; ++i) good = good && a[r * 40 + 2 * i] == (i < FEW ? 4000 + i : i - FEW);
    }
    verdict(good, "plain sample: alternatives and log-probabilities");
    verdict(memcmp(after.data(), x.data(), x.size() * 4) == 0, "plain sample: logits as they were");
    for (void* p : {(void*)logits, (void*)logprob, (void*)token, (void*)top, (void*)status, (void*)step}) CHECK(cudaFree(p));
}

// The plain sampler under masks: greedy rows take the best that is allowed, drawn ones and those cut to one candidate likewise.
inline void check_plain_masks() {
    const u32 VOCAB = 5003, ROWS = 27;
    float* logits = random_device<float>((u64)ROWS * VOCAB, 31, 3.0f);
    std::vector<float> x = download(logits, (u64)ROWS * VOCAB);
    StepWords words;
    words.run(0, 0, ROWS);
    words.mask_words = (VOCAB + 31) / 32;
    std::vector<std::vector<u32>> masks(ROWS);
    for (u32 r = 0; r < ROWS; ++r) {
        words.logits.push_back(r);
        // Greedy; drawn; the first candidate alone.
        std::vector<u32> row = sample_row(r % 3 == 0 ? 0.0f : 1.0f, 1, 0, r % 3 == 2, 3, r);
        masks[r] = some_mask(r / 3, VOCAB, r, &x[(u64)r * VOCAB]);
        if (!masks[r].empty()) row[17] = words.masks.size();
        words.masks.insert(words.masks.end(), masks[r].begin(), masks[r].end());
        words.sampling.insert(words.sampling.end(), row.begin(), row.end());
    }
    float* logprob = device<float>(ROWS);
    u32 *token = device<u32>(ROWS), *top = device<u32>(ROWS * 40), *status = device<u32>(ROWS), *step = words.upload();
    launch((void*)sample_f32, {dim3(ROWS), 1024, 0, false}, logits, token, logprob, top, status, VOCAB, (const u32*)step);
    std::vector<u32> t = download(token, ROWS), s = download(status, ROWS), a = download(top, ROWS * 40);
    std::vector<float> after = download(logits, x.size());
    bool good = true;
    for (u32 r = 0; r < ROWS; ++r) {
        auto allowed = [&](u32 i) { return masks[r].empty() || (masks[r][i / 32] >> i % 32 & 1); };
        const float* y = &x[(u64)r * VOCAB];
        u32 best = VOCAB;
        for (u32 i = 0; i < VOCAB; ++i)
            if (allowed(i) && (best == VOCAB || y[i] > y[best])) best = i;
        bool ok = s[r] == (best == VOCAB ? 2 : 0);
        if (best < VOCAB) ok = ok && (r % 3 == 1 ? t[r] < VOCAB && allowed(t[r]) : t[r] == best);
        ok = ok && a[r * 40] == (u32)(std::max_element(y, y + VOCAB) - y); // raw, whatever the mask
        if (!ok) printf("FAILED plain mask row %u: token %u, best %u, status %u\n", r, t[r], best, s[r]);
        good = good && ok;
    }
    verdict(good, "plain sample: masks");
    verdict(memcmp(after.data(), x.data(), x.size() * 4) == 0, "plain sample: masked logits as they were");
    for (void* p : {(void*)logits, (void*)logprob, (void*)token, (void*)top, (void*)status, (void*)step}) CHECK(cudaFree(p));
}

inline void check_samples(bool small) {
    check_plain_sample();
    check_plain_masks();
    if (small) return check_sample(5000, 14, 3.0f), check_sample(5001, 14, 3.0f, true);
    for (u32 vocab : {151936u, 50257u, 4097u, 1000u}) check_sample(vocab, 24, 3.0f, true);
    check_sample(151936, 23, 0.3f, true);
    check_sample(151936, 24, 3.0f);
    check_sample(151936, 3, 0.3f);
    check_sample(49152, 17, 8.0f);
    check_sample(1000, 17, 3.0f);
    check_sample(4097, 17, 1.0f);
    check_sample(50257, 16, 3.0f);
}

inline void time_sample() {
    const u32 VOCAB = 151936, N = 8;
    float* logits = random_device<float>((u64)256 * VOCAB, 3, 3.0f);
    u32 *token = device<u32>(256), *top = device<u32>(256 * 40), *status = device<u32>(256), chunks = (VOCAB + 4095) / 4096;
    float* logprob = device<float>(256);
    unsigned char* scratch = device<unsigned char>(16384 + (u64)256 * chunks * 24);
    CHECK(cudaMemset(scratch, 0, 16384));
    for (u32 rows : {1u, 16u, 64u, 256u}) {
        printf("sample %3u rows:", rows);
        struct Way {
            const char* name;
            float temperature, top_p;
            u32 top_k, top;
            bool masked = false;
        };
        for (Way way : {Way{"greedy", 0, 1, 0, 0}, {"greedy+20", 0, 1, 0, 20}, {"t 0.8", 0.8f, 1, 0, 0}, {"top-p 0.9", 0.8f, 0.9f, 0, 0}, {"top-k 50", 0.8f, 1, 50, 0}, {"greedy masked", 0, 1, 0, 0, true}, {"top-p 0.9 masked", 0.8f, 0.9f, 0, 0, true}}) {
            StepWords words;
            words.run(0, 0, rows);
            for (u32 r = 0; r < rows; ++r) {
                words.logits.push_back(r);
                std::vector<u32> row = sample_row(way.temperature, way.top_p, 0, way.top_k, way.top, r);
                if (way.masked) {
                    row[17] = words.masks.size();
                    std::vector<u32> mask = some_mask(1, VOCAB, r, nullptr);
                    words.masks.insert(words.masks.end(), mask.begin(), mask.end());
                }
                words.sampling.insert(words.sampling.end(), row.begin(), row.end());
            }
            u32* step = words.upload();
            double us = time_us(N, [&] {
                for (u32 i = 0; i < N; ++i)
                    launch((void*)sample_split, {dim3(chunks, rows), 512}, logits, token, logprob, top, status, VOCAB, (const u32*)step, scratch);
            });
            printf(" %s %.1f", way.name, us);
            CHECK(cudaFree(step));
        }
        printf(" us\n");
    }
    for (void* p : {(void*)logits, (void*)token, (void*)top, (void*)status, (void*)logprob, (void*)scratch}) CHECK(cudaFree(p));
}
