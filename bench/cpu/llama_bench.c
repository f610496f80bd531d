// SPDX-License-Identifier: MIT OR Apache-2.0
// The peer's side of measure.py: llama.cpp through its public library interface, asked for the same work.
//
//   llama_bench MODEL.gguf BACKEND_DIR THREADS [wall|cpu]
//
// Requests, one per line of stdin; each answer is one line with seconds (with `cpu`: of processor time, all threads):
//   decode TOKENS LENGTH SEED          one sequence after a prompt of LENGTH tokens, greedy; from its first token to its last
//   streams COUNT TOKENS LENGTH SEED   so many sequences in one batch a step; the time of their prompts is included
//   prefill TOKENS SEED                one prompt in one batch, up to its last row's logits
// Everything is the library's default (KV in f16, flash attention as it chooses, weights repacked as it chooses).
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "llama.h"

enum { SEQUENCES = 8, CONTEXT = 8192, BATCH = 2048 };

static struct llama_context *ctx;
static int vocabulary;
static clockid_t clock_id = CLOCK_MONOTONIC;

static void log_line(enum ggml_log_level level, const char *text, void *user) {
    (void)user;
    // The one line that says which of its processor variants was chosen.
    if (level >= GGML_LOG_LEVEL_ERROR || strstr(text, "loaded CPU backend")) fputs(text, stderr);
}

static double now(void) {
    struct timespec t;
    clock_gettime(clock_id, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

// The same ids as served.py's prompt().
static void prompt(llama_token *ids, int length, long seed) {
    unsigned long state = (unsigned long)seed * 7919 + 12345;
    for (int i = 0; i < length; i++) {
        state = (state * 1103515245 + 12345) % (1ul << 31);
        ids[i] = (llama_token)(100 + (state >> 8) % 40000);
    }
}

static void decode(struct llama_batch *b) {
    if (llama_decode(ctx, *b) != 0) { fputs("llama_decode failed\n", stderr); exit(4); }
    b->n_tokens = 0;
}

static void put(struct llama_batch *b, llama_token id, int position, int sequence, int logits) {
    int i = b->n_tokens++;
    b->token[i] = id;
    b->pos[i] = position;
    b->n_seq_id[i] = 1;
    b->seq_id[i][0] = sequence;
    b->logits[i] = (int8_t)logits;
}

static llama_token best(int row) {
    const float *l = llama_get_logits_ith(ctx, row);
    llama_token best = 0;
    for (int i = 1; i < vocabulary; i++) if (l[i] > l[best]) best = i;
    return best;
}

// Greedy tokens of `count` sequences; the seconds from the start, or from the first token if `decode_only`.
static double generate(struct llama_batch *b, int count, int tokens, int length, long seed, int decode_only) {
    static llama_token ids[CONTEXT];
    llama_token last[SEQUENCES];
    double begun = now();
    for (int s = 0; s < count; s++) {
        prompt(ids, length, seed + s);
        for (int i = 0; i < length; i++) put(b, ids[i], i, s, i == length - 1);
    }
    decode(b);
    for (int s = 0; s < count; s++) last[s] = best(s * length + length - 1);
    if (decode_only) begun = now();
    for (int t = 0; t + 1 < tokens; t++) {
        for (int s = 0; s < count; s++) put(b, last[s], length + t, s, 1);
        decode(b);
        for (int s = 0; s < count; s++) last[s] = best(s);
    }
    return now() - begun;
}

static double prefill(struct llama_batch *b, int tokens, long seed) {
    llama_token *ids = malloc(sizeof *ids * (size_t)tokens);
    if (!ids) exit(5);
    double begun = now();
    prompt(ids, tokens, seed);
    for (int i = 0; i < tokens; i++) put(b, ids[i], i, 0, i == tokens - 1);
    decode(b);
    best(tokens - 1);
    free(ids);
    return now() - begun;
}

int main(int argc, char **argv) {
    if (argc < 4) { fputs("usage: llama_bench MODEL.gguf BACKEND_DIR THREADS [wall|cpu]\n", stderr); return 2; }
    if (argc > 4 && strcmp(argv[4], "cpu") == 0) clock_id = CLOCK_PROCESS_CPUTIME_ID;
    llama_log_set(log_line, NULL);
    ggml_backend_load_all_from_path(argv[2]);
    llama_backend_init();
    struct llama_model *model = llama_model_load_from_file(argv[1], llama_model_default_params());
    if (!model) return 5;
    struct llama_context_params cp = llama_context_default_params();
    cp.n_ctx = SEQUENCES * CONTEXT;
    cp.n_seq_max = SEQUENCES;
    cp.n_batch = CONTEXT;
    cp.n_ubatch = BATCH;
    cp.n_threads = cp.n_threads_batch = atoi(argv[3]);
    ctx = llama_init_from_model(model, cp);
    if (!ctx) return 6;
    vocabulary = llama_vocab_n_tokens(llama_model_get_vocab(model));
    struct llama_batch b = llama_batch_init(CONTEXT, 0, 1);

    char line[128];
    while (fgets(line, sizeof line, stdin)) {
        int count, tokens, length;
        long seed;
        double seconds;
        llama_memory_clear(llama_get_memory(ctx), true);
        if (sscanf(line, "decode %d %d %ld", &tokens, &length, &seed) == 3 && tokens + length <= CONTEXT)
            seconds = generate(&b, 1, tokens, length, seed, 1);
        else if (sscanf(line, "streams %d %d %d %ld", &count, &tokens, &length, &seed) == 4 && count <= SEQUENCES
                 && count * length <= CONTEXT && tokens + length <= CONTEXT)
            seconds = generate(&b, count, tokens, length, seed, 0);
        else if (sscanf(line, "prefill %d %ld", &tokens, &seed) == 2 && tokens <= CONTEXT)
            seconds = prefill(&b, tokens, seed);
        else return 7;
        printf("%.9f\n", seconds);
        fflush(stdout);
    }
    llama_batch_free(b);
    llama_free(ctx);
    llama_model_free(model);
    return 0;
}
