// SPDX-License-Identifier: MIT OR Apache-2.0
// A pipe around libllama: the goldens' scripts ask, it answers on stdout in binary (little endian).
//
//   llama_ref MODEL.gguf BACKEND_DIR [N_CTX]
//
// Requests, one per line of stdin:
//   T <parse_special 0|1> <hex bytes>   tokenize (no bos added) -> i32 n, n x i32 ids
//   A <id> <id> ...                     logits at every position -> i32 n, n x V x f32
//   G <steps> <id> <id> ...             greedy: for each step the last row -> V x f32; the next id is its arg max
// The KV cache is f32, flash attention off, one thread, the whole prompt in one batch: llama.cpp's most exact setting.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "llama.h"

static void quiet(enum ggml_log_level level, const char *text, void *user) {
    (void)user;
    if (level >= GGML_LOG_LEVEL_ERROR) fputs(text, stderr);
}

static void put(const void *p, size_t n) {
    if (fwrite(p, 1, n, stdout) != n) exit(3);
}

// Decode n ids from position pos; want: 1 = logits at every one, 0 = at the last only.
static void decode(struct llama_context *ctx, const llama_token *ids, int n, int pos, int want) {
    struct llama_batch b = llama_batch_init(n, 0, 1);
    b.n_tokens = n;
    for (int i = 0; i < n; i++) {
        b.token[i] = ids[i];
        b.pos[i] = pos + i;
        b.n_seq_id[i] = 1;
        b.seq_id[i][0] = 0;
        b.logits[i] = want || i == n - 1;
    }
    if (llama_decode(ctx, b) != 0) { fputs("llama_decode failed\n", stderr); exit(4); }
    llama_batch_free(b);
}

int main(int argc, char **argv) {
    if (argc < 3) { fputs("usage: llama_ref MODEL.gguf BACKEND_DIR [N_CTX]\n", stderr); return 2; }
    llama_log_set(quiet, NULL);
    ggml_backend_load_all_from_path(argv[2]);
    llama_backend_init();
    struct llama_model_params mp = llama_model_default_params();
    mp.use_extra_bufts = false; // no repacked weights: the plain kernels of each format
    struct llama_model *model = llama_model_load_from_file(argv[1], mp);
    if (!model) return 5;
    struct llama_context_params cp = llama_context_default_params();
    cp.n_ctx = cp.n_batch = cp.n_ubatch = argc > 3 ? atoi(argv[3]) : 512;
    cp.n_threads = cp.n_threads_batch = 1;
    cp.type_k = cp.type_v = GGML_TYPE_F32;
    cp.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_DISABLED;
    struct llama_context *ctx = llama_init_from_model(model, cp);
    if (!ctx) return 6;
    const struct llama_vocab *vocab = llama_model_get_vocab(model);
    const int V = llama_vocab_n_tokens(vocab);

    char *line = NULL;
    size_t cap = 0;
    static llama_token ids[1 << 16];
    while (getline(&line, &cap, stdin) > 0) {
        char *p = line + 1;
        if (line[0] == 'T') {
            int special = (int)strtol(p, &p, 10), n = 0;
            while (*p == ' ') p++;
            for (char *h = p; h[0] > ' ' && h[1] > ' '; h += 2, n++) {
                char two[3] = {h[0], h[1], 0};
                line[n] = (char)strtol(two, NULL, 16); // writes behind what is read
            }
            int32_t k = llama_tokenize(vocab, line, n, ids, 1 << 16, false, special != 0);
            put(&k, 4);
            put(ids, 4 * (size_t)k);
        } else {
            int steps = line[0] == 'G' ? (int)strtol(p, &p, 10) : 0, n = 0;
            for (char *e = p; ; p = e) {
                long v = strtol(p, &e, 10);
                if (e == p) break;
                ids[n++] = (llama_token)v;
            }
            llama_memory_clear(llama_get_memory(ctx), true);
            decode(ctx, ids, n, 0, line[0] == 'A');
            if (line[0] == 'A') {
                int32_t k = n;
                put(&k, 4);
                for (int i = 0; i < n; i++) put(llama_get_logits_ith(ctx, i), 4 * (size_t)V);
            }
            for (int s = 0; s < steps; s++) {
                const float *l = llama_get_logits_ith(ctx, -1);
                put(l, 4 * (size_t)V);
                llama_token best = 0;
                for (int i = 1; i < V; i++) if (l[i] > l[best]) best = i;
                if (s + 1 < steps) decode(ctx, &best, 1, n + s, 0);
            }
        }
        fflush(stdout);
    }
    llama_free(ctx);
    llama_model_free(model);
    return 0;
}
