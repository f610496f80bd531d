// SPDX-License-Identifier: MIT OR Apache-2.0
// The kernels of class hopper (and the plain class) that make e4m3 rows and pack e4m3 weights, bit by bit against the host: `trial`
// prints a line a kind and how many bytes differ. Outputs are poisoned before; rows past the live count must stay so.
// build.sh beside this builds it; check with compute-sanitizer, too.
#include <cuda_fp8.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "f8_out.cuh"
#include "linear_tiles.cuh"
#include "numeric.cuh"
#include "pdl.cuh"
#include "plain_rows.cuh"

namespace quantize_file {
#include "quantize_f8.cu"
}
namespace norm_file {
#include "norm.cu"
}
namespace tiles_file {
#include "pack_tiles_fp8.cu"
}
#undef PACK
namespace plain_file {
#include "pack_f8.cu"
}

#define CHECK(call)                                                                              \
    do {                                                                                         \
        cudaError_t e = (call);                                                                  \
        if (e != cudaSuccess) printf("%s:%d: %s\n", __FILE__, __LINE__, cudaGetErrorString(e)), exit(1); \
    } while (0)

typedef std::vector<u8> Bytes;
enum Plain { F32, BF16, F16 };
static int failed = 0;

static float random_value() {
    float u = 0.0f;
    for (int i = 0; i < 4; ++i) u += (float)(rand() % 65536) / 65536.0f - 0.5f;
    return u;
}
static u32 bits_of(float v) { u32 b; memcpy(&b, &v, 4); return b; }

// Values as they lie in a plain format, and what they are in f32.
static Bytes stored(std::vector<float>& v, Plain p) {
    Bytes out(v.size() * (p == F32 ? 4 : 2));
    for (size_t i = 0; i < v.size(); ++i) {
        if (p == F32) memcpy(&out[4 * i], &v[i], 4);
        if (p == BF16) { bf16 b = __float2bfloat16_rn(v[i]); memcpy(&out[2 * i], &b, 2); v[i] = __bfloat162float(b); }
        if (p == F16) { f16 b = __float2half_rn(v[i]); memcpy(&out[2 * i], &b, 2); v[i] = __half2float(b); }
    }
    return out;
}

struct Scale { float scale, inverse; };
static Scale host_scale(u32 top) {
    float m; memcpy(&m, &top, 4);
    float s = m / 448.0f, r = 1.0f / s;
    if (!(top < 0x7f800000u)) { u32 nan = 0x7fc00000u; memcpy(&s, &nan, 4); return {s, 0.0f}; }
    return {s, std::isfinite(r) ? r : 0.0f};
}
static u32 host_top(const float* v, size_t n, u32 top = 0) {
    for (size_t i = 0; i < n; ++i) top = std::max(top, bits_of(v[i]) & 0x7fffffffu);
    return top;
}
static u8 host_q(float v, float inverse) {
    return inverse == 0.0f ? 0 : __nv_cvt_float_to_fp8(v * inverse, __NV_SATFINITE, __NV_E4M3);
}

// A row of the format.
static void host_row(const float* x, u32 cols, bool block, u8* to) {
    u32 per = block ? 128 : cols, scales = block ? (cols + 127) / 128 : 1;
    memset(to, 0, f8_pitch(cols, scales));
    for (u32 b = 0; b * per < cols; ++b) {
        u32 end = std::min(cols, (b + 1) * per);
        Scale s = host_scale(host_top(x + b * per, end - b * per));
        for (u32 i = b * per; i < end; ++i) to[i] = host_q(x[i], s.inverse);
        memcpy(to + f8_scales_at(cols) + 4 * b, &s.scale, 4);
    }
}

template <class T>
static T* device(const std::vector<T>& v) {
    T* p;
    CHECK(cudaMalloc(&p, v.size() * sizeof(T) + 256));
    CHECK(cudaMemcpy(p, v.data(), v.size() * sizeof(T), cudaMemcpyHostToDevice));
    return p;
}
static void compare(const char* what, u32 a, u32 b, const u8* got_at, const Bytes& want) {
    CHECK(cudaDeviceSynchronize());
    Bytes got(want.size());
    CHECK(cudaMemcpy(got.data(), got_at, got.size(), cudaMemcpyDeviceToHost));
    size_t differ = 0, first = 0;
    for (size_t i = got.size(); i-- > 0;)
        if (got[i] != want[i]) ++differ, first = i;
    if (differ) printf("%s %u x %u: %zu of %zu bytes differ, the first at %zu: %02x, not %02x\n", what, a, b, differ, got.size(), first, got[first], want[first]), ++failed;
}

// Random rows, some of them special.
static std::vector<float> rows_of(u32 rows, u32 cols, Plain p) {
    std::vector<float> x((size_t)rows * cols);
    for (float& v : x) v = random_value() * (rand() % 7 == 0 ? 30.0f : 1.0f);
    if (rows > 5) {
        for (u32 i = 0; i < cols; ++i) x[cols + i] = 0.0f, x[2 * cols + i] = p == F16 ? 1e-7f : 1e-40f;
        x[3 * cols + cols / 2] = NAN;
        x[4 * cols + cols - 1] = -INFINITY;
    }
    return x;
}

static void quantize(u32 rows, u32 cols, bool block, Plain p) {
    std::vector<float> x = rows_of(rows, cols, p);
    Bytes raw = stored(x, p);
    u64 pitch = f8_pitch(cols, block ? cols / 128 : 1);
    Bytes want((rows + 2) * pitch, 0xa5);
    for (u32 r = 0; r < rows; ++r) host_row(&x[(size_t)r * cols], cols, block, &want[r * pitch]);
    Bytes poison(want.size(), 0xa5);
    std::vector<u32> step(32, 0);
    step[0] = rows;
    u32* s = device(step);
    u8 *from = device(raw), *to = device(poison);
    dim3 grid(rows + 2, block ? (cols + 2047) / 2048 : 1);
    bool wide = cols > 4096;
#define Q(NAME, T) quantize_file::NAME<<<grid, block ? 256 : 512>>>((const T*)from, to, cols, 0, s)
    if (block) p == F32 ? Q(quantize_f8_block_f32, float) : Q(quantize_f8_block_bf16, bf16);
    else if (wide) p == F32 ? Q(quantize_f8_row_f32_wide, float) : Q(quantize_f8_row_bf16_wide, bf16);
    else p == F32 ? Q(quantize_f8_row_f32, float) : Q(quantize_f8_row_bf16, bf16);
    compare(block ? "quantize_f8_block" : "quantize_f8_row", rows, cols, to, want);
    CHECK(cudaFree(from)); CHECK(cudaFree(to)); CHECK(cudaFree(s));
}

static float fold(const float* v, u32 n) { // sums with l xor n / 2 .. 1, of lane 0
    std::vector<float> a(v, v + n), b(n);
    for (u32 o = n / 2; o > 0; o /= 2, a = b)
        for (u32 l = 0; l < n; ++l) b[l] = a[l] + a[l ^ o];
    return a[0];
}

static void norm(u32 rows, u32 cols, bool block, bool add) {
    std::vector<float> x = rows_of(rows, cols, F32), d = rows_of(rows, cols, F32), w(cols);
    for (size_t i = 0; i < x.size(); ++i) // a NaN's bits are the machine's own; inf comes to one at its end
        if (std::isnan(x[i])) x[i] = d[i] = INFINITY;
    for (float& v : w) v = 1.0f + 0.3f * random_value();
    u64 pitch = f8_pitch(cols, block ? cols / 128 : 1);
    Bytes want((rows + 1) * pitch, 0xa5);
    std::vector<float> sum = x, y(cols);
    for (u32 r = 0; r < rows; ++r) {
        float* v = &sum[(size_t)r * cols];
        float lanes[512] = {}, warps[16];
        for (u32 i = 0; add && i < cols; ++i) v[i] = v[i] + d[(size_t)r * cols + i];
        for (u32 i = 0; i < cols; ++i) lanes[i / 8 % 512] = fmaf(v[i], v[i], lanes[i / 8 % 512]);
        for (u32 i = 0; i < 16; ++i) warps[i] = fold(lanes + 32 * i, 32);
        float scale = 1.0f / sqrtf(fold(warps, 16) / (float)cols + 1e-6f);
        for (u32 i = 0; i < cols; ++i) y[i] = v[i] * scale * w[i];
        host_row(y.data(), cols, block, &want[r * pitch]);
    }
    std::vector<u32> step(32, 0);
    step[0] = rows;
    u32* s = device(step);
    float *xs = device(x), *ds = device(d), *ws = device(w);
    u8* to = device(Bytes(want.size(), 0xa5));
#define N(NAME) (add ? norm_file::add_##NAME<<<rows + 1, 512>>>(xs, ds, ws, to, cols, 1e-6f, s) : norm_file::NAME<<<rows + 1, 512>>>(xs, ws, to, cols, 1e-6f, 0, s))
    if (cols > 4096) block ? N(rmsnorm_f8_block_wide) : N(rmsnorm_f8_row_wide);
    else block ? N(rmsnorm_f8_block) : N(rmsnorm_f8_row);
    compare(block ? "rmsnorm_f8_block" : "rmsnorm_f8_row", rows, cols, to, want);
    Bytes residual(x.size() * 4);
    memcpy(residual.data(), sum.data(), residual.size());
    compare("the residual", rows, cols, (u8*)xs, residual);
    CHECK(cudaFree(xs)); CHECK(cudaFree(ds)); CHECK(cudaFree(ws)); CHECK(cudaFree(to)); CHECK(cudaFree(s));
}

// Packs `total` rows in calls of `each`; `from` < 0: rows of the format itself.
typedef void (*Pack)(const u8*, u8*, u32, u32, u32, u32);
static void pack(const char* what, Pack kernel, u32 total, u32 cols, u32 each, bool block, int from, int layout) {
    std::vector<float> x = rows_of(total, cols, from < 0 ? F32 : (Plain)from);
    Bytes raw;
    u32 scales = block ? (cols + 127) / 128 : 1, blocks = cols / 128;
    u64 pitch = f8_pitch(cols, scales), padded = (total + 127) / 128 * 128;
    if (from >= 0) raw = stored(x, (Plain)from);
    Bytes rows(total * pitch); // as the format says, each row by itself
    for (u32 r = 0; r < total; ++r) host_row(&x[(size_t)r * cols], cols, block, &rows[r * pitch]);
    if (from < 0) {
        for (u32 r = 0; block && r < total; ++r) memcpy(&rows[r * pitch + cols], &rows[r / 8 * 8 * pitch + cols], 4 * blocks);
        raw = rows;
    }
    Bytes want;
    if (layout == 0) want = rows;
    else {
        want.assign(padded * cols + (block ? padded / 128 * blocks * 64 : padded * 4), 0);
        float* tail = (float*)&want[padded * cols];
        for (u32 r = 0; r < total; ++r) {
            u32 place = layout == 2 ? paired_row(r, total / 2) : r;
            Bytes row(&rows[r * pitch], &rows[r * pitch] + pitch);
            if (block && from >= 0) // one scale for 8 rows x 128
                for (u32 b = 0; b < blocks; ++b) {
                    u32 top = 0, first = r / 8 * 8;
                    for (u32 i = first; i < std::min(first + 8, total); ++i) top = host_top(&x[(size_t)i * cols + b * 128], 128, top);
                    Scale s = host_scale(top);
                    for (u32 i = b * 128; i < b * 128 + 128; ++i) row[i] = host_q(x[(size_t)r * cols + i], s.inverse);
                    memcpy(&row[cols + 4 * b], &s.scale, 4);
                }
            for (u32 c = 0; c < cols / 16; ++c) memcpy(&want[packed_chunk(place, c, blocks)], &row[16 * c], 16);
            if (!block) memcpy(&tail[place], &row[cols], 4);
            for (u32 b = 0; block && b < blocks; ++b) memcpy(&tail[((size_t)(place / 128) * blocks + b) * 16 + place % 128 / 8], &row[cols + 4 * b], 4);
        }
    }
    u8* to = device(Bytes(want.size(), 0xa5));
    size_t row_bytes = raw.size() / total;
    for (u32 at = 0; at < total; at += each) {
        u32 n = std::min(each, total - at);
        u8* src = device(Bytes(raw.begin() + at * row_bytes, raw.begin() + (at + n) * row_bytes));
        kernel<<<132, 256>>>(src, to, n, cols, at, total);
        CHECK(cudaDeviceSynchronize());
        CHECK(cudaFree(src));
    }
    compare(what, total, cols, to, want);
    CHECK(cudaFree(to));
}

int main() {
    srand(1);
    for (u32 rows : {1u, 9u, 300u})
        for (u32 cols : {128u, 384u, 4096u, 12288u, 28672u})
            for (bool block : {false, true})
                for (Plain p : {F32, BF16}) quantize(rows, cols, block, p);
    for (u32 rows : {1u, 9u})
        for (u32 cols : {128u, 1152u, 4096u, 5120u, 16384u})
            for (bool block : {false, true})
                for (bool add : {false, true}) norm(rows, cols, block, add);
#define TILES(FROM, NAME)                                                                          \
    for (auto [total, cols, each] : {std::array<u32, 3>{272, 1152, 272}, {1008, 384, 504}, {16, 128, 8}}) { \
        pack("tiles row " #NAME, tiles_file::pack_##NAME##f8_row_tiles, total, cols, each, false, FROM, 1);   \
        pack("pairs row " #NAME, tiles_file::pack_##NAME##f8_row_paired, total, cols, each, false, FROM, 2);  \
        pack("tiles block " #NAME, tiles_file::pack_##NAME##f8_block_tiles, total, cols, each, true, FROM, 1); \
        pack("pairs block " #NAME, tiles_file::pack_##NAME##f8_block_paired, total, cols, each, true, FROM, 2); \
        pack("plain row " #NAME, plain_file::pack_##NAME##f8_row, total, cols - 24, each, false, FROM, 0);    \
        pack("plain block " #NAME, plain_file::pack_##NAME##f8_block, total, cols - 24, each, true, FROM, 0); \
    }
    TILES(-1, )
    TILES(F32, f32_)
    TILES(BF16, bf16_)
    TILES(F16, f16_)
    pack("odd", tiles_file::pack_f8_row_tiles, 1003, 256, 1003, false, -1, 1);
    pack("odd block", tiles_file::pack_bf16_f8_block_tiles, 1003, 256, 504, true, BF16, 1);
    printf("e4m3 rows and packs: %d failed\n", failed);
    return failed != 0;
}
