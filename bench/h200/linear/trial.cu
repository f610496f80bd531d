// SPDX-License-Identifier: MIT OR Apache-2.0
// Trial of the linear kernels of class hopper on a device: `trial check`, `trial tiny` (for compute-sanitizer), and times:
// `trial few`, `trial many`, `trial f8`, `trial prefill`, `trial add`.
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
    for (Format f : {BF16, F8_ROW, F8_BLOCK}) { // into the residual
        for (const Shape& s : {QWEN3_8B.layer[1], QWEN3_8B.layer[3], QWEN3_06B.layer[3]}) failed += check({{s.name, s.n, s.k, false, f, true}, false, rows, 2048});
        failed += check({{"S 2", 8192, 1024, false, f, true}, true, rows, 2048});
        failed += check({{"odd n", 1000, 1152, false, f, true}, true, rows, 2048});
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
    failed += check({{"tiny f8 S", 256, 2304, false, F8_BLOCK}, true, {9, 70, 200}, 200});
    for (Format f : {BF16, F8_ROW, F8_BLOCK}) failed += check({{"tiny add", 200, 1152, false, f, true}, true, {9, 70, 200}, 200});
    failed += check({{"tiny S4", 4096, 2048, false, F8_ROW, true}, true, {9, 200}, 200});
    return failed != 0;
}

// What the manifests choose (KERNEL_FAMILIES.toml), and with `halves` what clusters of K halves would do for few rows of bf16.
static Point e4m3_point(const Shape& s, u32 rows) {
    bool halves = s.n > 3072 && s.n <= 6144 && s.k >= 2048 && !s.paired;
    if (rows > 1024 && s.n > 12288 && s.format == F8_ROW) return P_t192;
    if (rows > 128) return rows <= 256 && halves && s.n <= 4096 ? P_t128k1 : P_t128;
    if (rows > 64 && s.n > 12288) return P_t128;
    if (rows > 32 && halves) return rows > 64 && s.n > 4096 ? P_t128k1 : P_t64k1;
    bool half_tile = s.n > 12288 || (s.n <= 4096 && s.k >= 4096);
    if (rows <= 64 && half_tile) return rows <= 8 ? P_n8h : rows <= 16 ? P_n16h : rows <= 32 ? P_n32h : P_n64h;
    return rows <= 8 ? P_n8 : rows <= 16 ? P_n16 : rows <= 32 ? P_n32 : P_n64;
}

static Policy as_chosen(u32 rows, int halves) {
    return {"", [=](const Shape& s, u32) {
                if (s.format != BF16) return e4m3_point(s, rows);
                bool half_tile = s.n > 12288 || (s.n <= 4096 && s.k >= 4096);
                bool few = s.n > 3072 && s.n <= 6144 && s.k >= 1024 && !s.paired;
                if (rows > 128 && s.n > 12288 && (rows > 1024 || s.n <= 65536)) return P_tall;
                if (rows > 1024) return P_wide;
                if (rows > 128) return few && s.n <= 4096 ? P_t128k1 : s.n > 65536 ? P_wide : P_t128;
                if (rows > 64) return few ? (s.n <= 4096 && s.k < 8192 ? P_t64k1 : P_t128k2) : s.n > 12288 ? P_t128 : P_n64;
                bool by_halves = few && (halves == 1 ? s.k >= 8192 : halves == 2 ? s.k >= 8192 || rows > 32 : halves == 3);
                if (by_halves) return rows <= 16 ? P_t16k1 : rows <= 32 ? P_t32k1 : P_t64k1;
                Point whole = rows <= 8 ? P_n8 : rows <= 16 ? P_n16 : rows <= 32 ? P_n32 : P_n64;
                Point half = rows <= 8 ? P_n8h : rows <= 16 ? P_n16h : rows <= 32 ? P_n32h : P_n64h;
                return half_tile ? half : whole;
            },
            [](const Shape&, u32) { return true; }};
}

static void chosen(Bench& b, const char* title, const Model& m, const std::vector<u32>& rows, int halves) {
    double floor = bytes_of(m, true) / b.roofline * 1e3;
    printf("%s, points as chosen (halves %d), ms (share of roofline), floor %.3f:", title, halves, floor);
    for (u32 r : rows) {
        double ms = b.chain(m, as_chosen(r, halves), r, r, 15);
        printf(" %u: %.3f (%.0f%%)", r, ms, 100 * floor / ms);
    }
    printf("\n");
}

static void run_few(Bench& b) {
    for (int h : {0, 1, 2, 3}) {
        chosen(b, "8B bf16", QWEN3_8B, {1, 8, 16, 32, 64}, h);
        chosen(b, "0.6B bf16", QWEN3_06B, {1, 16, 32, 64}, h);
    }
    chosen(b, "8B bf16", QWEN3_8B, {128, 256}, 0);
    for (Format f : {F8_ROW, F8_BLOCK}) chosen(b, FORMAT_NAMES[f], in_f8(QWEN3_8B, f), {1, 8, 16, 32, 64, 128, 256}, 0);
}

static void run_many(Bench& b) {
    printf("clusters held at a time:");
    for (Point p : {P_n8h, P_n8, P_n128, P_t128k2, P_wide}) {
        printf(" %s", facts(p).name);
        for (u32 blocks : {1u, 2u, 4u, 8u}) printf(" %u:%d", blocks, clusters_held(p, blocks));
    }
    printf("\n");
    printf("one launch among copies, pdl, us (share of roofline)\n");
    std::vector<Shape> all = QWEN3_8B.layer;
    all.push_back(QWEN3_8B.head);
    for (auto [rows, p] : std::vector<std::pair<u32, Point>>{{1, P_n8}, {1, P_n8h}, {1, P_t16k1}, {16, P_n16}, {16, P_n16h}, {16, P_t16k1},
             {32, P_n32}, {32, P_n32h}, {32, P_t32k1}, {64, P_n64}, {64, P_n64h}, {64, P_t64k1}, {128, P_n128}, {128, P_t64k1},
             {128, P_t128k2}, {128, P_t128}, {256, P_t128k1}, {256, P_t128}, {256, P_wide}, {256, P_tall}, {2048, P_wide}, {2048, P_tall}}) {
        printf("  %4u %-6s", rows, facts(p).name);
        for (const Shape& s : all) {
            if (!takes(p, s)) continue;
            double us = b.alone(s, p, rows, true, s.n > 100000 ? 2 : 36);
            printf(" %s S%u %.1f (%.0f%%)", s.name, s.segments(), us, s.packed_bytes() / b.roofline * 1e8 / us);
        }
        printf("\n");
    }
}

// e4m3 at many rows: each shape alone, by point.
static void run_f8(Bench& b) {
    for (Format format : {F8_ROW, F8_BLOCK}) {
        for (u32 rows : {64u, 128u, 256u, 512u, 2048u, 8192u}) {
            printf("%s, %u rows, alone, us:", FORMAT_NAMES[format], rows);
            for (const Shape& s : in_f8(QWEN3_8B, format).layer) {
                printf(" %s", s.name);
                for (Point p : {P_n64, P_n64h, P_t64k1, P_t128k1, P_t128k2, P_t128, P_t192})
                    if (takes(p, s)) printf(" %s %.1f", facts(p).name, b.alone(s, p, rows, true, 36));
            }
            printf("\n");
        }
    }
}

// What adding into the residual gives: o and down alone, and each with the norm behind it, the sum in the norm or in the linear.
static void run_add(Bench& b) {
    float *res = device_alloc<float>(8192ull * 4096), *weight = device_alloc<float>(4096);
    u8* normed = device_alloc<u8>(8192ull * 8192);
    CHECK(cudaMemset(res, 0, 8192ull * 4096 * 4));
    CHECK(cudaMemset(weight, 0, 4096 * 4));
    auto norm = [&](Format f, bool add, u32 rows) {
        const void* kernels[3][2] = {{(void*)rmsnorm_bf16, (void*)add_rmsnorm_bf16}, {(void*)rmsnorm_f8_row, (void*)add_rmsnorm_f8_row},
                                     {(void*)rmsnorm_f8_block, (void*)add_rmsnorm_f8_block}};
        float* y = b.y;
        u32 cols = 4096, unit = 0;
        float eps = 1e-6f;
        cudaLaunchConfig_t config = {};
        config.gridDim = dim3(rows), config.blockDim = dim3(512), config.stream = b.stream;
        cudaLaunchAttribute attribute = {};
        attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
        attribute.val.programmaticStreamSerializationAllowed = 1;
        config.attrs = &attribute, config.numAttrs = 1;
        void* adding[] = {&res, &y, &weight, &normed, &cols, &eps, &b.step};
        void* plain[] = {&res, &weight, &normed, &cols, &eps, &unit, &b.step};
        CHECK(cudaLaunchKernelExC(&config, kernels[f][add], add ? adding : plain));
    };
    for (Format f : {BF16, F8_ROW, F8_BLOCK}) {
        for (u32 rows : {1u, 8u, 16u, 32u, 64u, 128u, 256u, 512u, 2048u, 8192u}) {
            printf("%-8s %4u rows, us:", FORMAT_NAMES[f], rows);
            Policy policy = as_chosen(rows, 0);
            set_rows(b.step, rows);
            for (u32 i : {1u, 3u}) {
                Shape s = QWEN3_8B.layer[i];
                s.format = f;
                Point p = policy.point(s, rows);
                u32 copies = rows > 512 ? 8 : 36;
                printf(" %s %s", s.name, facts(p).name);
                for (int with_norm = 0; with_norm < 2; ++with_norm) {
                    for (bool add : {false, true}) {
                        s.add = add;
                        double us = 1e9;
                        for (int again = 0; again < 2; ++again) { // in turns
                            u64 offset = 0;
                            us = std::min(us, 1e3 / copies * replay(b.stream, 7, [&] {
                                for (u32 c = 0; c < copies; ++c) {
                                    if (offset + s.packed_bytes() > b.weight_bytes) offset = 0;
                                    void* to = add ? res : b.y;
                                    launch(b.stream, p, s, Call{b.x, (u8*)b.weights + offset, nullptr, to, 0, s.n, rows, rows, b.step}, true);
                                    offset += (s.packed_bytes() + 1023) / 1024 * 1024;
                                    if (with_norm) norm(f, !add, rows);
                                }
                            }));
                        }
                        printf(" %.1f%s", us, with_norm ? " (norm)" : "");
                    }
                }
            }
            printf("\n");
        }
    }
}

static void run_prefill(Bench& b) {
    printf("prefill, Qwen3-8B layers without head, ms (TFLOP/s)\n");
    for (u32 rows : {512u, 2048u, 8192u}) {
        for (Format f : {BF16, F8_ROW, F8_BLOCK}) {
            Model m = in_f8(QWEN3_8B, f);
            Policy policy = as_chosen(rows, 0);
            double ms = b.chain(m, policy, rows, 0, 3);
            printf("  %u %s %.2f (%.0f):", rows, FORMAT_NAMES[f], ms, flops_of(m, rows, false) / ms * 1e-9);
            for (const Shape& s : m.layer) {
                double us = b.alone(s, policy.point(s, rows), rows, true, 4);
                printf(" %s %s %.0f us (%.0f)", s.name, facts(policy.point(s, rows)).name, us, 2.0 * s.n * s.k * rows / us * 1e-6);
            }
            printf("\n");
        }
    }
}

int main(int argc, char** argv) {
    std::string mode = argc > 1 ? argv[1] : "";
    cudaDeviceProp properties;
    CHECK(cudaGetDeviceProperties(&properties, 0));
    printf("%s, %d SMs, slots %d\n", properties.name, properties.multiProcessorCount, LINEAR_SLOTS);
    if (mode == "check") return run_checks();
    if (mode == "tiny") return run_tiny();
    if (mode == "few" || mode == "many" || mode == "prefill" || mode == "f8" || mode == "add") {
        Bench b(15200000000ull);
        mode == "few" ? run_few(b) : mode == "many" ? run_many(b) : mode == "f8" ? run_f8(b) : mode == "add" ? run_add(b) : run_prefill(b);
        return 0;
    }
    if (mode == "one" && argc == 6) { // SHAPE FORMAT POINT ROWS, for a profiler: the second launch is warm
        Bench b(4200000000ull);
        Shape shape = QWEN3_8B.layer[atoi(argv[2])];
        shape.format = (Format)atoi(argv[3]);
        Point p = (Point)0;
        for (u32 i = 0; i < POINTS; ++i)
            if (std::string(facts((Point)i).name) == argv[4]) p = (Point)i;
        u64 offset = 0;
        set_rows(b.step, atoi(argv[5]));
        for (int i = 0; i < 2; ++i) b.enqueue(shape, p, offset, atoi(argv[5]), false);
        CHECK(cudaDeviceSynchronize());
        return 0;
    }
    printf("usage: trial check|tiny|few|many|f8|prefill|add|one SHAPE FORMAT POINT ROWS\n");
    return 2;
}
