// SPDX-License-Identifier: MIT OR Apache-2.0
// Trial of the linear kernels of class hopper on a device: `trial check`, `trial tiny` (for compute-sanitizer), `trial few` and
// `trial many` (times).
// README.md beside this says how to build and what was measured.
#include "check.cuh"
#include "times.cuh"

static const Model QWEN3_8B = {{{"qkv", 6144, 4096, false}, {"o", 4096, 4096, false}, {"gate_up", 24576, 4096, true}, {"down", 4096, 12288, false}},
                               {"head", 151936, 4096, false}, 36};
static const Model QWEN3_06B = {{{"qkv", 4096, 1024, false}, {"o", 1024, 2048, false}, {"gate_up", 6144, 1024, true}, {"down", 1024, 3072, false}},
                                {"head", 151936, 1024, false}, 28};

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
    printf("%d failed\n", failed);
    return failed != 0;
}

static int run_tiny() {
    int failed = check({{"tiny", 200, 576, false}, true, {1, 9, 70, 200}, 200});
    failed += check({{"tiny pair", 272, 576, true}, false, {3, 33, 200}, 200});
    failed += check({{"tiny S8", 256, 2112, false}, false, {8, 65}, 70});
    return failed != 0;
}

static void ladder(Bench& b, const char* title, const Model& m, const std::vector<u32>& rows, const std::vector<Policy>& policies) {
    double floor = bytes_of(m, true) / b.roofline * 1e3;
    printf("%s: chain of %u layers and head, ms (share of roofline; TFLOP/s); floor %.3f\n", title, m.layers, floor);
    for (const Policy& p : policies) {
        printf("  %-22s", p.name.c_str());
        for (u32 r : rows) {
            double ms = b.chain(m, p, r, r, 9);
            printf(r <= 64 ? " %u: %.3f (%.0f%%)" : " %u: %.3f (%.0f%%; %.0f)", r, ms, 100 * floor / ms, flops_of(m, r, true) / ms * 1e-9);
        }
        printf("\n");
    }
}

static void run_few(Bench& b) {
    auto always = [](const Shape&, u32) { return true; };
    auto plain = [](const Shape& s, u32 r) { return by_rows(r); };
    std::vector<Policy> few = {
        {"pdl everywhere", plain, always},
        {"pdl where S > 1", plain, [](const Shape& s, u32) { return s.segments() > 1; }},
        {"pdl but head", plain, [](const Shape& s, u32) { return s.n < 100000; }},
        {"no pdl", plain, [](const Shape&, u32) { return false; }},
    };
    ladder(b, "Qwen3-8B", QWEN3_8B, {1, 8, 16, 32, 64, 128}, few);
    ladder(b, "Qwen3-0.6B", QWEN3_06B, {1, 8, 64}, few);
}

static void run_many(Bench& b) {
    auto always = [](const Shape&, u32) { return true; };
    auto mixed = [](const Shape& s, u32 r) { return s.segments() == 1 ? T128 : N256; };
    auto fixed = [](Point p) { return [p](const Shape&, u32) { return p; }; };
    ladder(b, "Qwen3-8B", QWEN3_8B, {128, 256},
           {{"t128", fixed(T128), always},
            {"n256", fixed(N256), always},
            {"wide", fixed(WIDE), always},
            {"S1 t128, else n256", mixed, always},
            {"S1 wide, else n256", [](const Shape& s, u32 r) { return s.segments() == 1 ? WIDE : N256; }, always},
            {"S1 t128, else n128", [](const Shape& s, u32 r) { return s.segments() == 1 ? T128 : N128; }, always},
            {"n128", fixed(N128), always},
            {"n64", fixed(N64), always}});

    printf("one launch among copies, us (share of roofline)\n");
    auto row = [&](u32 rows, Point p, bool pdl) {
        printf("  %4u %-4s %-6s", rows, POINT_NAMES[p], pdl ? "pdl" : "");
        std::vector<Shape> all = QWEN3_8B.layer;
        all.push_back(QWEN3_8B.head);
        for (const Shape& s : all) {
            double us = b.alone(s, p, rows, pdl, s.n > 100000 ? 2 : 36);
            printf(" %s S%u %.1f (%.0f%%)", s.name, s.segments(), us, s.packed_bytes() / b.roofline * 1e8 / us);
        }
        printf("\n");
    };
    for (bool pdl : {true, false}) {
        for (auto [rows, p] : std::vector<std::pair<u32, Point>>{{1, N8}, {8, N8}, {16, N16}, {32, N32}, {64, N64}, {128, N128}, {128, T128},
                                                                 {256, N256}, {256, T128}, {256, WIDE}, {256, N128}})
            row(rows, p, pdl);
    }

    printf("prefill, Qwen3-8B layers without head, ms (TFLOP/s)\n");
    for (u32 rows : {512u, 2048u, 8192u}) {
        printf("  %u:", rows);
        for (Point p : {WIDE, T128}) {
            double ms = b.chain(QWEN3_8B, {"", fixed(p), always}, rows, 0, 3);
            printf("  %s %.2f (%.0f)", POINT_NAMES[p], ms, flops_of(QWEN3_8B, rows, false) / ms * 1e-9);
        }
        for (const Shape& s : QWEN3_8B.layer) {
            double us = b.alone(s, WIDE, rows, true, 4);
            printf("  %s %.0f us (%.0f)", s.name, us, 2.0 * s.n * s.k * rows / us * 1e-6);
        }
        printf("\n");
    }
}

int main(int argc, char** argv) {
    std::string mode = argc > 1 ? argv[1] : "";
    cudaDeviceProp properties;
    CHECK(cudaGetDeviceProperties(&properties, 0));
    printf("%s, %d SMs, slots %d\n", properties.name, properties.multiProcessorCount, LINEAR_SLOTS);
    if (mode == "check") return run_checks();
    if (mode == "tiny") return run_tiny();
    if (mode == "few" || mode == "many") {
        Bench b(15200000000ull);
        mode == "few" ? run_few(b) : run_many(b);
        return 0;
    }
    printf("usage: trial check|tiny|few|many\n");
    return 2;
}
