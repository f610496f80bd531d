// SPDX-License-Identifier: MIT OR Apache-2.0
// trial check | small | time: checks of the attention, row and sampling kernels of class hopper, and their times. Exit status
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
    bool small = strcmp(mode, "small") == 0;
    check_rows(small);
    if (small) {
        check_attention(8, 2, 128, 300, true);
        check_attention(4, 2, 64, 280, true);
    } else {
        check_attention(32, 8, 128, 4097, false);
        check_attention(16, 8, 128, 700, false);
        check_attention(14, 2, 64, 1300, false);
        check_attention(20, 1, 128, 400, false);
        check_attention(3, 3, 64, 600, false);
    }
    if (!getenv("NO_SAMPLE")) check_samples(small);
    printf("%s: %d failures\n", mode, failures());
    return failures() != 0;
}
