// SPDX-License-Identifier: MIT OR Apache-2.0
// Right: sampled outputs against float64, every output against the widest run bit by bit, untouched memory around them.
#pragma once

#include "launch.cuh"

// Sum in float64 and the sum of magnitudes, of sampled (row, out) from row-major weights. For swiglu: [gate; up] by row.
__device__ double term(const u8* rows, Format format, u32 row, u32 j, u32 k) {
    const u8* at = rows + (u64)row * row_pitch(format, k);
    if (format == BF16) return to_f32(((const bf16*)at)[j]);
    double scale = *(const float*)(at + k + (format == F8_ROW ? 0 : j / 128 * 4));
    return scale * __half2float(__half(__nv_cvt_fp8_to_halfraw(at[j], __NV_E4M3)));
}
__global__ void reference(const u8* x, const u8* w, Format format, u32 k, const u32* at, double* sums, u32 samples) {
    u32 i = blockIdx.x, row = at[2 * i], out = at[2 * i + 1];
    double sum = 0, size = 0;
    for (u32 j = threadIdx.x; j < k; j += 32) {
        double v = term(x, format, row, j, k) * term(w, format, out, j, k);
        sum += v;
        size += fabs(v);
    }
    for (int d = 16; d; d /= 2) {
        sum += __shfl_xor_sync(~0u, sum, d);
        size += __shfl_xor_sync(~0u, size, d);
    }
    if (threadIdx.x == 0) sums[2 * i] = sum, sums[2 * i + 1] = size;
}

// counts[0]: outputs of live rows that differ from `expected`; counts[1]: elements outside of them that are not what they were:
// `before`, or poison.
template <class T>
__global__ void compare(const T* y, const T* expected, const T* before, u64 total, u32 ld, u32 col, u32 n, u32 rows, u64* counts) {
    for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < total; i += (u64)gridDim.x * blockDim.x) {
        u64 row = i / ld, c = i % ld;
        bool live = row < rows && c >= col && c < col + n;
        if (live && y[i] != expected[i]) atomicAdd((unsigned long long*)&counts[0], 1ull);
        if (!live && y[i] != (before != nullptr ? before[i] : (T)~(T)0)) atomicAdd((unsigned long long*)&counts[1], 1ull);
    }
}

// A residual: values of deviation 1, some -0, some too small to be normal; and what the spec makes of it: those count as zeros.
__global__ void fill_residual(float* to, u64 count) {
    for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += (u64)gridDim.x * blockDim.x) {
        u64 h = (i + 1) * 0x9e3779b97f4a7c15ull;
        h = (h ^ h >> 29) * 0xbf58476d1ce4e5b9ull;
        h ^= h >> 32;
        float v = (float)(h & 0xffff) / 65536.0f + (float)(h >> 16 & 0xffff) / 65536.0f - 1.0f;
        to[i] = h >> 32 & 7 ? v : h >> 40 & 1 ? -0.0f : __uint_as_float((u32)h & 0x807fffffu);
    }
}
__device__ u32 normal(float v) {
    u32 bits = __float_as_uint(v);
    return bits & 0x7f800000u ? bits : bits & 0x80000000u;
}
__global__ void add_to(float* y, const float* before, u64 count, u64 live) {
    for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += (u64)gridDim.x * blockDim.x)
        y[i] = i < live ? __uint_as_float(normal(__uint_as_float(normal(before[i])) + __uint_as_float(normal(y[i])))) : before[i];
}

struct Trial {
    Shape shape;
    bool bias;
    std::vector<u32> rows;
    u32 limit;
};

// Returns the number of failures.
static int check(const Trial& t) {
    const Shape& s = t.shape;
    const u32 samples = 4096;
    u32 out_n = s.paired ? s.n / 2 : s.n, col = s.end() ? 0 : 24, ld = s.end() ? out_n : s.n + 40, guard_rows = 2;
    u64 total = (u64)(t.limit + guard_rows) * ld, element = s.paired ? 2 : 4;
    u32 pitch = s.pitch();
    u8 *plain = device_alloc<u8>((u64)s.n * pitch), *x = device_alloc<u8>((u64)t.limit * pitch);
    u8* cut = device_alloc<u8>((u64)t.limit * pitch);
    u8 *packed = device_alloc<u8>(s.packed_bytes()), *y = device_alloc<u8>(total * element);
    u8* expected = device_alloc<u8>(total * element);
    float *bias = device_alloc<float>(s.n), *before = device_alloc<float>(total);
    u32* step = device_alloc<u32>(64);
    u64* counts = device_alloc<u64>(2);
    bool f8 = s.format != BF16;
    if (f8) {
        fill_f8_rows<<<512, 256>>>(plain, s.format, s.n, s.k, 0.02f, s.n + s.k, s.format == F8_BLOCK);
        fill_f8_rows<<<512, 256>>>(x, s.format, t.limit, s.k, 1.0f, 77, false);
    } else {
        fill_random<<<512, 256>>>((bf16*)plain, (u64)s.n * s.k, 0.02f, s.n + s.k, false);
        fill_random<<<512, 256>>>((bf16*)x, (u64)t.limit * s.k, 1.0f, 77, true);
    }
    fill_residual<<<512, 256>>>(before, total);
    for (u32 row = 5; row < t.limit; row += 16) CHECK(cudaMemset(x + (u64)row * pitch, 0, pitch)); // products that are 0
    std::vector<float> host_bias(s.n, 0.0f);
    for (u32 i = 0; i < s.n; ++i) host_bias[i] = t.bias ? (float)(i % 13) - 6.0f : 0.0f;
    CHECK(cudaMemcpy(bias, host_bias.data(), s.n * 4, cudaMemcpyHostToDevice));

    // Packed in two calls a tensor, as a loader would; paired: gate, then up.
    CHECK(cudaMemset(packed, 0xff, s.packed_bytes()));
    if (f8) pack_f8<<<512, 256>>>(plain, packed, s.format, s.n, s.k, s.paired);
    for (u32 part = 0; !f8 && part < (s.paired ? 4u : 2u); ++part) {
        u32 half = s.paired ? s.n / 2 : s.n, cut = half / 3;
        u32 first = part / 2 * half + (part % 2 ? cut : 0), count = part % 2 ? half - cut : cut;
        auto kernel = s.paired ? pack_bf16_paired : pack_bf16_tiles;
        kernel<<<128, 256>>>((const u16*)plain + (u64)first * s.k, packed, count, s.k, first, s.n);
    }
    CHECK(cudaDeviceSynchronize());

    auto run = [&](Point p, u32 rows, u8* to, const Shape& s) {
        CHECK(cudaMemset(to, 0xff, total * element));
        if (s.add) CHECK(cudaMemcpy(to, before, total * 4, cudaMemcpyDeviceToDevice));
        CHECK(cudaMemcpy(cut, x, (u64)rows * pitch, cudaMemcpyDeviceToDevice));
        if (rows < t.limit) CHECK(cudaMemset(cut + (u64)rows * pitch, 0xff, (u64)(t.limit - rows) * pitch)); // NaN
        set_rows(step, rows);
        u32 bucket = 8;
        while (bucket < rows) bucket *= 2;
        Call c{cut, packed, t.bias ? bias : nullptr, to, col, ld, t.limit, bucket, step};
        launch(0, p, s, c, false);
        CHECK(cudaDeviceSynchronize());
    };
    int failed = 0;
    std::string line;
    Shape plainly = s; // a residual is expected to be what linear and add make of it
    plainly.add = false;
    run(f8 ? P_t128 : P_wide, t.limit, expected, plainly);
    if (s.add) add_to<<<512, 256>>>((float*)expected, before, total, (u64)t.limit * ld);
    std::vector<float> host_before(s.add ? total : 0);
    if (s.add) CHECK(cudaMemcpy(host_before.data(), before, total * 4, cudaMemcpyDeviceToHost));

    std::vector<u32> at(2 * samples);
    u32 lanes = s.paired ? 2 : 1;
    for (u32 i = 0; i < samples; i += lanes) {
        u32 row = rand() % t.limit, out = i < 64 ? out_n - 1 - i % 8 : rand() % out_n;
        for (u32 j = 0; j < lanes; ++j) at[2 * (i + j)] = row, at[2 * (i + j) + 1] = out + j * out_n;
    }
    u32* device_at = device_alloc<u32>(2 * samples);
    double* device_sums = device_alloc<double>(2 * samples);
    CHECK(cudaMemcpy(device_at, at.data(), at.size() * 4, cudaMemcpyHostToDevice));
    reference<<<samples, 32>>>(x, plain, s.format, s.k, device_at, device_sums, samples);
    std::vector<double> sums(2 * samples);
    CHECK(cudaMemcpy(sums.data(), device_sums, sums.size() * 8, cudaMemcpyDeviceToHost));
    std::vector<u8> host(total * element);
    CHECK(cudaMemcpy(host.data(), expected, host.size(), cudaMemcpyDeviceToHost));
    // A chain of k/16 + S steps, each off by at most 2^-22 of the running magnitude (truncation at alignment, twice over).
    // e4m3: four steps of a chain, each off by at most 2^-13 of it (alignment to 14 bits), and f32 sums.
    double step_bound = f8 ? 4 * exp2(-13) + s.k / 128 * exp2(-24) : (s.k / 16 + 8) * exp2(-22), error = 0, norm = 0, worst = 0;
    for (u32 i = 0; i < samples; i += lanes) {
        u64 index = (u64)at[2 * i] * ld + col + at[2 * i + 1];
        double value, want, bound;
        if (s.paired) {
            double g = sums[2 * i], u = sums[2 * i + 2], silu = g / (1 + exp(-g));
            u32 bits = (u32)((u16*)host.data())[index] << 16;
            value = *(float*)&bits;
            want = silu * u;
            // |silu'| <= 1.1; approximations 2^-20; output rounding to 8 bits 2^-8.
            bound = 1.1 * step_bound * (sums[2 * i + 1] * fabs(u) + sums[2 * i + 3] * fabs(silu)) + fabs(want) * (exp2(-8) + exp2(-20)) + 1e-30;
        } else {
            value = ((float*)host.data())[index];
            want = sums[2 * i] + host_bias[at[2 * i + 1]] + (s.add ? host_before[index] : 0);
            bound = (s.add ? (fabs(want) + fabs(host_before[index])) * exp2(-23) : 0) + exp2(-125) + step_bound * sums[2 * i + 1] + fabs(want) * exp2(-23);
        }
        error += (value - want) * (value - want);
        norm += want * want;
        double share = fabs(value - want) / bound;
        if (!(share <= worst)) worst = share;
    }
    bool right = worst <= 1;
    failed += !right;

    u64 differ = 0, outside = 0;
    u32 runs = 0;
    for (u32 rows : t.rows) {
        for (int p = 0; p < POINTS; ++p) {
            u32 tokens = facts((Point)p).tokens;
            if (!takes((Point)p, s)) continue;
            if (facts((Point)p).schedule == SPLIT_K && rows > 16 * tokens) continue; // right, but long
            run((Point)p, rows, y, s);
            u64 host_counts[2] = {};
            CHECK(cudaMemset(counts, 0, 16));
            if (s.paired) {
                compare<<<512, 256>>>((u16*)y, (u16*)expected, (const u16*)nullptr, total, ld, col, out_n, rows, counts);
            } else {
                compare<<<512, 256>>>((u32*)y, (u32*)expected, s.add ? (const u32*)before : nullptr, total, ld, col, out_n, rows, counts);
            }
            CHECK(cudaMemcpy(host_counts, counts, 16, cudaMemcpyDeviceToHost));
            if (host_counts[0] || host_counts[1]) {
                ++failed;
                line += std::string(" [") + facts((Point)p).name + " rows " + std::to_string(rows) + ": " + std::to_string(host_counts[0]) +
                        " differ, " + std::to_string(host_counts[1]) + " outside]";
            }
            differ += host_counts[0], outside += host_counts[1], ++runs;
        }
    }
    if (line.size() > 300) line.resize(300);
    printf("%s%s %-9s n %6u k %5u S %u: rel. error %.2e, worst %.3f of its bound; %u runs: %llu differ, %llu outside%s%s\n", FORMAT_NAMES[s.format], s.add ? " add" : "", s.name, s.n, s.k,
           s.segments(), sqrt(error / norm), worst, runs, differ, outside, right ? "" : " WRONG", line.c_str());
    for (void* p : {(void*)plain, (void*)x, (void*)cut, (void*)packed, (void*)y, (void*)expected, (void*)bias, (void*)before, (void*)step, (void*)counts,
                    (void*)device_at, (void*)device_sums})
        CHECK(cudaFree(p));
    return failed;
}
