// SPDX-License-Identifier: MIT OR Apache-2.0
// The small kernels, bit for bit against the specs on the host, with poisoned outputs and dead rows; then times.
#pragma once

#include "harness.cuh"

extern "C" {
void rmsnorm_bf16(const float*, const float*, bf16*, u32, float, u32, const u32*);
void rmsnorm_bf16_wide(const float*, const float*, bf16*, u32, float, u32, const u32*);
void add_rmsnorm_bf16_wide(float*, const float*, const float*, bf16*, u32, float, const u32*);
void add_rmsnorm_bf16(float*, const float*, const float*, bf16*, u32, float, const u32*);
#define ROPE_KV_WRITE(SUFFIX)                                                                                             \
    void qk_norm_rope_kv_write##SUFFIX(float*, const float*, const float*, const float*, void*, void*, const u32*, u32, u32, u32, \
                                       u32, float, u32, const u32*);                                                      \
    void rope_kv_write##SUFFIX(float*, const float*, void*, void*, const u32*, u32, u32, u32, u32, u32, const u32*);
ROPE_KV_WRITE() ROPE_KV_WRITE(_wide) ROPE_KV_WRITE(_f8) ROPE_KV_WRITE(_f8_wide)
void embed_bf16_packed(const bf16*, float*, u32, u32, float, const u32*);
void gather_rows_vec(const float*, const float*, float*, u32, u32, const u32*);
void to_bf16(const float*, bf16*, u32, u32, const u32*);
}

inline uint16_t to_bits(float f) { return __bfloat16_as_ushort(__float2bfloat16_rn(f)); }

// Folds n values by sums with l xor n / 2, ..., 1.
inline float fold_xor(std::vector<float> v) {
    for (size_t offset = v.size() / 2; offset > 0; offset /= 2) {
        std::vector<float> w(v.size());
        for (size_t i = 0; i < v.size(); ++i) w[i] = v[i] + v[i ^ offset];
        v = w;
    }
    return v[0];
}

inline float inverse_rms512(const float* x, u32 cols, float eps) {
    std::vector<float> lanes(512, 0.0f), warps;
    for (u32 i = 0; i < cols; ++i) lanes[i / 8 % 512] = fmaf(x[i], x[i], lanes[i / 8 % 512]);
    for (u32 w = 0; w < 16; ++w) warps.push_back(fold_xor({lanes.begin() + 32 * w, lanes.begin() + 32 * w + 32}));
    float mean = fold_xor(warps) / (float)cols;
    return 1.0f / sqrtf(mean + eps);
}

template <typename T>
bool same(const std::vector<T>& a, const std::vector<T>& b) {
    return a.size() == b.size() && memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

inline void check_norm(u32 cols, u32 rows) {
    u32 bucket = rows + 2;
    float *x = random_device<float>((u64)bucket * cols, cols, 2.0f), *d = random_device<float>((u64)bucket * cols, cols + 1);
    float* w = random_device<float>(cols, cols + 2);
    bf16 *y = device<bf16>((u64)bucket * cols), *z = device<bf16>((u64)bucket * cols);
    StepWords words;
    words.run(0, 0, rows);
    words.logits.assign(rows, 0);
    u32* step = words.upload();
    float eps = 1e-6f;
    std::vector<float> hx = download(x, (u64)bucket * cols), hd = download(d, (u64)bucket * cols), hw = download(w, cols);
    bool wide = cols > 4096;
    launch(wide ? (void*)rmsnorm_bf16_wide : (void*)rmsnorm_bf16, {dim3(bucket), 512}, (const float*)x, (const float*)w, y, cols, eps, 1u, (const u32*)step);
    launch(wide ? (void*)add_rmsnorm_bf16_wide : (void*)add_rmsnorm_bf16, {dim3(bucket), 512}, x, (const float*)d, (const float*)w, z, cols, eps, (const u32*)step);
    std::vector<uint16_t> ey((u64)bucket * cols, 0xffff), ez = ey;
    std::vector<float> sum = hx;
    for (u32 r = 0; r < rows; ++r) {
        float a = inverse_rms512(&hx[(u64)r * cols], cols, eps);
        for (u32 i = 0; i < cols; ++i) {
            u64 at = (u64)r * cols + i;
            ey[at] = to_bits(hx[at] * a * hw[i]);
            sum[at] = hx[at] + hd[at];
        }
        float b = inverse_rms512(&sum[(u64)r * cols], cols, eps);
        for (u32 i = 0; i < cols; ++i) ez[(u64)r * cols + i] = to_bits(sum[(u64)r * cols + i] * b * hw[i]);
    }
    verdict(same(ey, download((uint16_t*)y, ey.size())), "rmsnorm_bf16");
    verdict(same(ez, download((uint16_t*)z, ez.size())), "add_rmsnorm_bf16");
    verdict(same(sum, download(x, sum.size())), "add_rmsnorm_bf16's residual");
    for (void* p : {(void*)x, (void*)d, (void*)w, (void*)y, (void*)z, (void*)step}) CHECK(cudaFree(p));
}

inline void check_rope(bool norm, u32 heads, u32 kv_heads, u32 dim, u32 rot, u32 rows, bool f8 = false) {
    u32 all = heads + 2 * kv_heads, blocks = 40, slots = 3, per = 12;
    StepWords words;
    words.run(2, 5, rows / 2);
    words.run(0, 30, rows - rows / 2 - 1);
    words.run(1, 0, 1);
    u32 bucket = rows + 1, *step = words.upload();
    float* qkv = random_device<float>((u64)bucket * all * dim, dim + rows, 2.0f);
    float *qw = random_device<float>(dim, 8), *kw = random_device<float>(dim, 9), *cs = random_device<float>((u64)bucket * rot, 10);
    u64 pool = (u64)blocks * kv_heads * 16 * (f8 ? dim + 4 : 2 * dim);
    unsigned char *k = device<unsigned char>(pool), *v = device<unsigned char>(pool);
    // One value of a token's last head is no number, one of another's is too large for the format.
    float bad[2] = {NAN, 3.4e38f};
    for (u32 i = 0; i < 2; ++i) {
        float* at = qkv + ((u64)(i + 1) * all + all - 1 - i * (kv_heads - 1)) * dim + 3 + i;
        CHECK(cudaMemcpy(at, bad + i, 4, cudaMemcpyHostToDevice));
    }
    std::vector<u32> tables(slots * per);
    for (u32 i = 0; i < tables.size(); ++i) tables[i] = (i * 7 + 3) % blocks;
    u32* table = upload(tables);
    std::vector<float> x = download(qkv, (u64)bucket * all * dim), hq = download(qw, dim), hk = download(kw, dim), hc = download(cs, (u64)bucket * rot);
    float eps = 1e-6f;
    Where where{dim3(bucket, ((heads + 1) / 2 + kv_heads + 7) / 8), 256};
    if (norm) {
        const void* f = dim == 256 ? f8 ? (void*)qk_norm_rope_kv_write_f8_wide : (void*)qk_norm_rope_kv_write_wide
                        : f8       ? (void*)qk_norm_rope_kv_write_f8
                                   : (void*)qk_norm_rope_kv_write;
        launch(f, where, qkv, (const float*)qw, (const float*)kw, (const float*)cs, k, v, (const u32*)table,
               heads, kv_heads, dim, rot, eps, per, (const u32*)step);
    } else {
        const void* f = dim == 256 ? f8 ? (void*)rope_kv_write_f8_wide : (void*)rope_kv_write_wide
                        : f8       ? (void*)rope_kv_write_f8
                                   : (void*)rope_kv_write;
        launch(f, where, qkv, (const float*)cs, k, v, (const u32*)table, heads, kv_heads, dim, rot, per, (const u32*)step);
    }
    std::vector<float> eq = x;
    std::vector<unsigned char> ek(pool, 0xff), ev(pool, 0xff);
    std::vector<std::vector<float>> rotated(all);
    for (u32 r = 0; r < rows; ++r) {
        u32 position = words.positions[r], block = tables[words.slots[r] * per + position / 16], t = position % 16;
        for (u32 h = 0; h < all; ++h) {
            float* at = &x[((u64)r * all + h) * dim];
            if (h < heads + kv_heads) {
                if (norm) {
                    std::vector<float> lanes(32, 0.0f);
                    for (u32 i = 0; i < dim; ++i) lanes[i / (dim / 32)] = fmaf(at[i], at[i], lanes[i / (dim / 32)]);
                    float mean = fold_xor(lanes) / (float)dim;
                    float s = 1.0f / sqrtf(mean + eps);
                    for (u32 i = 0; i < dim; ++i) at[i] = at[i] * s * (h < heads ? hq : hk)[i];
                }
                for (u32 j = 0; j < rot / 2; ++j) {
                    float a = at[j], b = at[j + rot / 2], c = hc[(u64)r * rot + j], s = hc[(u64)r * rot + rot / 2 + j];
                    float ac = a * c, bs = b * s, bc = b * c, as = a * s;
                    at[j] = ac - bs;
                    at[j + rot / 2] = bc + as;
                }
            }
            if (h < heads) memcpy(&eq[((u64)r * all + h) * dim], at, dim * 4);
            rotated[h].assign(at, at + dim);
        }
        for (u32 head = 0; head < kv_heads; ++head) {
            bool poison = false;
            for (float x : rotated[heads + kv_heads + head]) poison = poison || (to_bits(x) & 0x7fff) >= 0x7f80;
            for (bool keys : {true, false}) {
                const std::vector<float>& x = rotated[heads + (keys ? 0 : kv_heads) + head];
                unsigned char* to = (keys ? ek : ev).data();
                if (f8) {
                    to += ((u64)block * kv_heads + head) * 16 * (dim + 4);
                    float top = 0.0f;
                    bool good = true;
                    for (float v : x) good = good && std::isfinite(v), top = std::max(top, fabsf(v));
                    float scale = good ? top / 448.0f : NAN, inverse = good ? 1.0f / scale : 0.0f;
                    u32 bits = 0x7fc00000;
                    if (good) memcpy(&bits, &scale, 4);
                    memcpy(to + 16 * dim + 4 * t, &bits, 4);
                    for (u32 d = 0; d < dim; ++d) {
                        u32 turn = dim == 64 ? t / 2 % 4 : t % 8;
                        to[t * dim + (d / 16 ^ turn) * 16 + d % 16] =
                            good ? __nv_cvt_float_to_fp8(x[d] * inverse, __NV_SATFINITE, __NV_E4M3) : 0;
                    }
                    continue;
                }
                for (u32 d = 0; d < dim; ++d) {
                    u64 atom = (((u64)block * kv_heads + head) * 2 + t / 8) * (dim / 64) + d / 64;
                    u64 at = atom * 512 + t % 8 * 64 + (d % 64 / 8 ^ t % 8) * 8 + d % 8;
                    uint16_t value = poison ? keys ? 0x7fff : 0 : to_bits(x[d]);
                    memcpy(to + 2 * at, &value, 2);
                }
            }
        }
    }
    verdict(same(eq, download(qkv, eq.size())), norm ? "qk_norm_rope_kv_write: queries" : "rope_kv_write: queries");
    verdict(same(ek, download(k, pool)), norm ? "qk_norm_rope_kv_write: keys" : "rope_kv_write: keys");
    verdict(same(ev, download(v, pool)), norm ? "qk_norm_rope_kv_write: values" : "rope_kv_write: values");
    for (void* p : {(void*)qkv, (void*)qw, (void*)kw, (void*)cs, (void*)k, (void*)v, (void*)table, (void*)step}) CHECK(cudaFree(p));
}

inline void check_moves(u32 cols, u32 rows) {
    u32 vocab = 300, bucket = rows + 1;
    StepWords words;
    words.run(0, 3, rows);
    for (u32& id : words.ids) id %= vocab;
    for (u32 i = 0; i < rows; i += 2) words.logits.push_back(rows - 1 - i);
    u32 *step = words.upload(), logits = words.logits.size();
    bf16* table = random_device<bf16>((u64)384 * cols, 11);
    std::vector<uint16_t> plain = download((uint16_t*)table, (u64)384 * cols), packed(plain.size());
    for (u32 r = 0; r < 384; ++r) {
        for (u32 c = 0; c < cols; ++c) {
            u64 tile = (u64)(r / 128) * (cols / 64) + c / 64;
            packed[tile * 8192 + r % 128 * 64 + (c % 64 / 8 ^ r % 8) * 8 + c % 8] = plain[(u64)r * cols + c];
        }
    }
    uint16_t* packed_table = upload(packed);
    float *b = device<float>((u64)bucket * cols), *r = device<float>((u64)bucket * cols);
    float *x = random_device<float>((u64)bucket * cols, 12), *d = random_device<float>((u64)bucket * cols, 13);
    bf16* y = device<bf16>((u64)bucket * cols);
    launch((void*)embed_bf16_packed, {dim3(bucket, (cols + 2047) / 2048), 256}, (const bf16*)packed_table, b, cols, vocab, 0.7f, (const u32*)step);
    launch((void*)gather_rows_vec, {dim3(bucket, (cols + 1023) / 1024), 256}, (const float*)x, (const float*)d, r, cols, 1u, (const u32*)step);
    launch((void*)to_bf16, {dim3(bucket, (cols + 2047) / 2048), 256}, (const float*)x, y, cols, 0u, (const u32*)step);
    std::vector<float> ea((u64)bucket * cols), er, hx = download(x, ea.size()), hd = download(d, ea.size());
    memset(ea.data(), 0xff, ea.size() * 4);
    er = ea;
    std::vector<uint16_t> ey(ea.size(), 0xffff);
    for (u32 i = 0; i < rows; ++i) {
        for (u32 c = 0; c < cols; ++c) {
            u32 bits = (u32)plain[(u64)words.ids[i] * cols + c] << 16;
            float f;
            memcpy(&f, &bits, 4);
            ea[(u64)i * cols + c] = f * 0.7f;
            ey[(u64)i * cols + c] = to_bits(hx[(u64)i * cols + c]);
            if (i < logits) {
                u64 at = (u64)words.logits[i] * cols + c;
                er[(u64)i * cols + c] = hx[at] + hd[at];
            }
        }
    }
    verdict(same(ea, download(b, ea.size())), "embed_bf16_packed");
    verdict(same(er, download(r, er.size())), "gather_rows_vec");
    verdict(same(ey, download((uint16_t*)y, ey.size())), "to_bf16");
    for (void* p : {(void*)step, (void*)table, (void*)packed_table, (void*)b, (void*)r, (void*)x, (void*)d, (void*)y}) CHECK(cudaFree(p));
}

inline void check_rows(bool small) {
    int before = failures();
    for (u32 cols : small ? std::vector<u32>{1024} : std::vector<u32>{64, 1000, 1024, 4096, 5120, 12288, 16384}) {
        for (u32 rows : {1u, 3u, 17u}) check_norm(cols, rows);
    }
    for (u32 dim : {64u, 128u, 256u}) {
        for (bool norm : {false, true}) {
            for (bool f8 : {false, true}) {
                check_rope(norm, 8, 2, dim, dim, 17, f8);
                check_rope(norm, 6, 1, dim, dim / 2, 3, f8);
                check_rope(norm, 5, 5, dim, dim, 9, f8);
            }
        }
    }
    check_moves(4096, 17);
    check_moves(192, 3);
    printf("norms, rope, rows: %d failures\n", failures() - before);
}

inline void time_rows() {
    const u32 N = 36, COLS = 4096;
    for (u32 rows : {1u, 16u, 256u, 8192u}) {
        u64 n = (u64)rows * COLS;
        float *res = random_device<float>(n, 1), *delta = random_device<float>(n, 2), *w = random_device<float>(COLS, 3);
        float *qkv = random_device<float>((u64)rows * 48 * 128, 4), *cs = random_device<float>((u64)rows * 128, 5);
        u32 blocks = std::max(512u, rows);
        bf16 *y = device<bf16>(n), *k = device<bf16>((u64)blocks * 8 * 2048), *v = device<bf16>((u64)blocks * 8 * 2048);
        StepWords words;
        std::vector<u32> tables;
        if (rows > 256) words.run(0, 0, rows);
        else
            for (u32 i = 0; i < rows; ++i) words.run(i, 17 * i % 380, 1);
        for (u32 i = 0; i < 256 * 512; ++i) tables.push_back(i % blocks);
        u32 *step = words.upload(), *table = upload(tables);
        double norm = time_us(N, [&] {
            for (u32 i = 0; i < N; ++i) launch((void*)add_rmsnorm_bf16, {dim3(rows), 512}, res, (const float*)delta, (const float*)w, y, COLS, 1e-6f, (const u32*)step);
        });
        double rope = time_us(N, [&] {
            for (u32 i = 0; i < N; ++i)
                launch((void*)qk_norm_rope_kv_write, {dim3(rows, 3), 256}, qkv, (const float*)w, (const float*)w, (const float*)cs, (void*)k, (void*)v,
                       (const u32*)table, 32u, 8u, 128u, 128u, 1e-6f, 512u, (const u32*)step);
        });
        double convert = time_us(N, [&] {
            for (u32 i = 0; i < N; ++i) launch((void*)to_bf16, {dim3(rows, 2), 256}, (const float*)res, y, COLS, 0u, (const u32*)step);
        });
        printf("rows %4u: add_rmsnorm_bf16 %.2f us, qk_norm_rope_kv_write %.2f us, to_bf16 %.2f us\n", rows, norm, rope, convert);
        for (void* p : {(void*)res, (void*)delta, (void*)w, (void*)qkv, (void*)cs, (void*)y, (void*)k, (void*)v, (void*)step, (void*)table}) CHECK(cudaFree(p));
    }
}
