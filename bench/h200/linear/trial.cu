// SPDX-License-Identifier: MIT OR Apache-2.0
// Trial of the linear kernels of class hopper on a device: `trial check`, `trial tiny` (for compute-sanitizer), and times:
// `trial few`, `trial many`, `trial prefill`.
// README.md beside this says how to build and what was measured.
#include "check.cuh"
#include "times.cuh"

static const Model QWEN3_8B = {{{"qkv", 6144, 4096, false}, {"o", 4096, 4096, false}, {"gate_up", 24576, 4096, true}, {"down", 4096, 12288, false}},
                               {"head", 151936, 4096, false}, 36};
static const Model QWEN3_06B = {{{"qkv", 4096, 1024, false}, {"o", 1024, 2048, false}, {"gate_up", 6144, 1024, true}, {"down", 1024, 3072, false}},
                                {"head", 151936, 1024, false}, 28};

// The same with e4m3 layers; the head stays bf16.
static Model in_f8(Model m, Format format) {
    for (Shape& s : m.layer) s.format = format;
    return m;
}

static int run_checks() {
    std::vector<u32> rows = {1, 3, 8, 9, 16, 31, 32, 64, 100, 128, 200, 256, 257, 1000, 2048};
    int failed = 0;
    for (const Model* m : {&QWEN3_8B, &QWEN3_06B}) {
        for (const Shape& s : m->layer) failed += check({s, s.n == 6144, rows, 2048});
    }
    failed += check({{"odd n", 1000, 1088, false}, true, rows, 2048});
    failed += check({{"odd ffn", 2000, 320, true}, false, rows, 2048});
    failed += check({{"tiny", 40, 64, false}, true, {1, 5, 40, 70}, 70});
    failed += check({{"head", 30080, 1024, false}, false, {1, 31, 128, 257}, 300});
    failed += check({{"8192", 512, 1024, false}, false, {1, 8, 64, 256, 4099, 8192}, 8192});
    for (Format f : {F8_ROW, F8_BLOCK}) {
        for (const Shape& s : in_f8(QWEN3_8B, f).layer) failed += check({s, s.n == 6144, rows, 2048});
        failed += check({{"odd n", 1000, 1152, false, f}, true, rows, 2048});
        failed += check({{"odd ffn", 2000, 384, true, f}, false, rows, 2048});
    }
    printf("%d failed\n", failed);
    return failed != 0;
}

static int run_tiny() {
    int failed = check({{"tiny", 200, 576, false}, true, {1, 9, 70, 200}, 200});
    failed += check({{"tiny pair", 272, 576, true}, false, {3, 33, 200}, 200});
    failed += check({{"tiny S8", 256, 2112, false}, false, {8, 65}, 70});
    failed += check({{"tiny f8", 200, 1152, false, F8_ROW}, true, {9, 200}, 200});
    failed += check({{"tiny f8", 272, 1152, true, F8_BLOCK}, true, {9, 200}, 200});
    return failed != 0;
}

// Point and programmatic launch of each shape of a layer and of the head, found by trying every change of one until none helps.
static void search(Bench& b, const char* title, const Model& m, u32 rows, const std::vector<Point>& points) {
    double floor = bytes_of(m, true) / b.roofline * 1e3;
    std::vector<Shape> shapes = m.layer;
    shapes.push_back(m.head);
    std::vector<std::pair<Point, bool>> best(shapes.size(), {points[0], true});
    auto time = [&](const std::vector<std::pair<Point, bool>>& c, u32 runs) {
        auto index = [&](const Shape& s) {
            for (u32 i = 0; i < shapes.size(); ++i) {
                if (!strcmp(shapes[i].name, s.name)) return i;
            }
            return 0u;
        };
        return b.chain(m, {"", [&](const Shape& s, u32) { return c[index(s)].first; }, [&](const Shape& s, u32) { return c[index(s)].second; }},
                       rows, rows, runs);
    };
    printf("%s, %u rows: chain with head, ms:", title, rows);
    for (Point p : points) { // one for all
        double ms[2];
        bool all = true;
        for (const Shape& s : shapes) all = all && takes(p, s);
        if (!all) continue;
        for (int i = 0; i < 2; ++i) ms[i] = time(std::vector<std::pair<Point, bool>>(shapes.size(), {p, i == 0}), 9);
        printf(" %s %.3f (no pdl %.3f)", facts(p).name, ms[0], ms[1]);
    }
    double ms = time(best, 9);
    for (int pass = 0; pass < 3; ++pass) {
        double before = ms;
        for (u32 i = 0; i < shapes.size(); ++i) {
            for (Point p : points) {
                for (bool pdl : {true, false}) {
                    if (!takes(p, shapes[i])) continue;
                    auto other = best;
                    other[i] = {p, pdl};
                    double t = time(other, 5);
                    if (t < ms * 0.998) ms = t, best = other;
                }
            }
        }
        if (ms > before * 0.998) break;
    }
    ms = time(best, 15);
    printf("\n  best %.3f (%.0f%% of roofline; %.0f TFLOP/s):", ms, 100 * floor / ms, flops_of(m, rows, true) / ms * 1e-9);
    for (u32 i = 0; i < shapes.size(); ++i) printf(" %s %s%s", shapes[i].name, facts(best[i].first).name, best[i].second ? "" : " no pdl");
    printf("\n");
}

// What the manifests choose: the half tile for one segment, or few and long rows; else the whole tile.
static bool half_tile(const Shape& s) { return s.n > 12288 || (s.n <= 4096 && s.k >= 4096); }
static Policy few_rows(u32 rows) {
    Point whole = rows <= 8 ? P_n8 : rows <= 16 ? P_n16 : rows <= 32 ? P_n32 : P_n64;
    Point half = rows <= 8 ? P_n8h : rows <= 16 ? P_n16h : rows <= 32 ? P_n32h : P_n64h;
    return {"", [=](const Shape& s, u32) { return half_tile(s) ? half : whole; }, [](const Shape&, u32) { return true; }};
}

static void chosen(Bench& b, const char* title, const Model& m, const std::vector<u32>& rows) {
    double floor = bytes_of(m, true) / b.roofline * 1e3;
    printf("%s, points as chosen, ms (share of roofline), floor %.3f:", title, floor);
    for (u32 r : rows) {
        double ms = b.chain(m, few_rows(r), r, r, 15);
        printf(" %u: %.3f (%.0f%%)", r, ms, 100 * floor / ms);
    }
    printf("\n");
}

static void run_few(Bench& b) {
    chosen(b, "8B bf16", QWEN3_8B, {1, 2, 4, 8, 16, 32, 64});
    chosen(b, "0.6B bf16", QWEN3_06B, {1, 8, 16, 32, 64});
    for (Format f : {F8_ROW, F8_BLOCK}) chosen(b, FORMAT_NAMES[f], in_f8(QWEN3_8B, f), {1, 8, 16, 32, 64});
    search(b, "8B", QWEN3_8B, 64, {P_n64h, P_n64, P_t64k2});
    search(b, "0.6B", QWEN3_06B, 1, {P_n8, P_n8h});
}

static void run_many(Bench& b) {
    search(b, "8B", QWEN3_8B, 128, {P_n128, P_t64k2, P_t128k2, P_t128});
    search(b, "8B", QWEN3_8B, 256, {P_t128, P_t64k2, P_t128k2, P_wide});
    for (Format f : {F8_ROW, F8_BLOCK}) {
        Model m = in_f8(QWEN3_8B, f);
        for (u32 rows : {64u, 128u, 256u}) search(b, FORMAT_NAMES[f], m, rows, {P_t128, P_n64h, P_n64});
    }
    printf("one launch among copies, pdl, us (share of roofline)\n");
    std::vector<Shape> all = QWEN3_8B.layer;
    all.push_back(QWEN3_8B.head);
    for (auto [rows, p] : std::vector<std::pair<u32, Point>>{{1, P_n8}, {1, P_n8h}, {16, P_n16}, {16, P_n16h}, {32, P_n32}, {32, P_n32h},
             {64, P_n64}, {64, P_n64h}, {64, P_t64k2}, {128, P_n128}, {128, P_t64k2}, {128, P_t128k2}, {128, P_t128}, {256, P_t64k2},
             {256, P_t128k2}, {256, P_t128}, {256, P_wide}}) {
        printf("  %4u %-6s", rows, facts(p).name);
        for (const Shape& s : all) {
            if (!takes(p, s)) continue;
            double us = b.alone(s, p, rows, true, s.n > 100000 ? 2 : 36);
            printf(" %s S%u %.1f (%.0f%%)", s.name, s.segments(), us, s.packed_bytes() / b.roofline * 1e8 / us);
        }
        printf("\n");
    }
}

static void run_prefill(Bench& b) {
    auto row = [&](const Model& m, Point p, u32 rows) {
        double ms = b.chain(m, {"", [&](const Shape&, u32) { return p; }, [](const Shape&, u32) { return true; }}, rows, 0, 3);
        printf("  %u %s %s %.2f (%.0f):", rows, FORMAT_NAMES[m.layer[0].format], facts(p).name, ms, flops_of(m, rows, false) / ms * 1e-9);
        for (const Shape& s : m.layer) {
            double us = b.alone(s, p, rows, true, 4);
            printf(" %s %.0f us (%.0f)", s.name, us, 2.0 * s.n * s.k * rows / us * 1e-6);
        }
        printf("\n");
    };
    printf("prefill, Qwen3-8B layers without head, ms (TFLOP/s)\n");
    for (u32 rows : {512u, 2048u, 8192u}) {
        for (Point p : {P_wide, P_t128}) row(QWEN3_8B, p, rows);
        for (Format f : {F8_ROW, F8_BLOCK}) row(in_f8(QWEN3_8B, f), P_t128, rows);
    }
}

int main(int argc, char** argv) {
    std::string mode = argc > 1 ? argv[1] : "";
    cudaDeviceProp properties;
    CHECK(cudaGetDeviceProperties(&properties, 0));
    printf("%s, %d SMs, slots %d\n", properties.name, properties.multiProcessorCount, LINEAR_SLOTS);
    if (mode == "check") return run_checks();
    if (mode == "tiny") return run_tiny();
    if (mode == "few" || mode == "many" || mode == "prefill") {
        Bench b(15200000000ull);
        mode == "few" ? run_few(b) : mode == "many" ? run_many(b) : run_prefill(b);
        return 0;
    }
    printf("usage: trial check|tiny|few|many|prefill\n");
    return 2;
}
