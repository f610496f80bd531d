// SPDX-License-Identifier: MIT OR Apache-2.0
// trial check | small | races | time | formats: checks of the attention, row and sampling kernels of class hopper, and their times. Exit status
// 1 if a check failed. README.md beside this says how to build and what was measured.
#define TILE_SHARED(dim) (7 * 256 * (dim) + 1024)
#include "attention_trial.cuh"
#include "rows_trial.cuh"
#include "sample_trial.cuh"

int main(int argc, char** argv) {
    const char* mode = argc > 1 ? argv[1] : "check";
    if (strcmp(mode, "time") == 0) {
        if (!getenv("ONLY_PREFILL")) {
            time_rows();
            time_sample();
        }
        time_attention();
        return 0;
    }
    if (strcmp(mode, "formats") == 0) {
        time_formats();
        return 0;
    }
    if (strcmp(mode, "races") == 0) {
        check_races();
        return failures() != 0;
    }
    bool small = strcmp(mode, "small") == 0;
    check_rows(small);
    if (small) {
        check_attention(8, 2, 128, 300, true);
        check_attention(4, 2, 64, 280, true);
        check_attention(4, 2, 128, 600, true, {100, 5.0f, true, false});
        check_attention(4, 2, 128, 300, true, {0, 0, false, true});
        check_attention(4, 1, 256, 300, true, {60, 0, false, true});
    } else {
        for (bool f8 : {false, true}) {
            check_attention(32, 8, 128, 4097, false, {0, 0, false, f8});
            check_attention(16, 8, 128, 700, false, {0, 0, false, f8});
            check_attention(14, 2, 64, 1300, false, {0, 0, false, f8});
            check_attention(20, 1, 128, 400, false, {0, 0, false, f8});
            check_attention(3, 3, 64, 600, false, {0, 0, false, f8});
            check_attention(8, 4, 256, 1100, false, {0, 0, false, f8});
            check_attention(8, 4, 128, 2500, false, {1000, 0, false, f8});
            check_attention(8, 2, 128, 1300, false, {37, 20.0f, true, f8});
            check_attention(8, 1, 64, 1300, false, {128, 0, true, f8});
            check_attention(6, 3, 64, 700, false, {0, 3.0f, false, f8});
            check_attention(8, 4, 256, 1100, false, {300, 50.0f, false, f8});
        }
    }
    if (!getenv("NO_SAMPLE")) check_samples(small);
    printf("%s: %d failures\n", mode, failures());
    return failures() != 0;
}
