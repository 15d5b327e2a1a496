/* Decoding of llama.cpp at a depth, without minutes of reading a prompt: the state of a short text is written many
 * times over into the cache, as values do not change how long attention takes. Prints llama-bench's JSON, so that `apus
 * bench --against` takes it.
 *
 *   bench/peers.sh DIR builds it: DIR/peer_depth MODEL.gguf f16|q8_0|q4_0 DEPTH TOKENS THREADS */
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "llama.h"

enum { SEED_TOKENS = 1024 };

static void fail(const char *what) {
    fprintf(stderr, "peer_depth: %s\n", what);
    exit(1);
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void decode(struct llama_context *context, llama_token *tokens, int count) {
    if (llama_decode(context, llama_batch_get_one(tokens, count))) fail("llama_decode failed");
}

/* llama-kv-cache.cpp, state_write: a magic number and the sequence, streams, cells, for each cell its position and
 * sequences; whether values are transposed, layers; for each layer its keys (type, bytes of a cell, cells), then for
 * each layer its values. */
static uint8_t *copy(uint8_t *out, const uint8_t **in, size_t size) {
    memcpy(out, *in, size);
    *in += size;
    return out + size;
}

static uint8_t *repeat_layers(uint8_t *out, const uint8_t **in, uint32_t layers, int times) {
    for (uint32_t i = 0; i < layers; i++) {
        uint64_t row;
        memcpy(&row, *in + 4, sizeof row);
        out = copy(out, in, 4 + sizeof row);
        for (int n = 0; n < times; n++, out += SEED_TOKENS * row) memcpy(out, *in, SEED_TOKENS * row);
        *in += SEED_TOKENS * row;
    }
    return out;
}

static size_t repeat(uint8_t *out, const uint8_t *in, int times) {
    const uint8_t *begin = out;
    uint32_t head[4], cell[3], values[2];
    memcpy(head, in, sizeof head);
    if (head[2] != 1 || head[3] != SEED_TOKENS) fail("a state of another form than this program knows");
    head[3] *= (uint32_t)times;
    memcpy(out, head, sizeof head);
    in += sizeof head;
    out += sizeof head;
    for (int n = 0; n < times; n++)
        for (uint32_t t = 0; t < SEED_TOKENS; t++, out += sizeof cell) {
            memcpy(cell, in + t * sizeof cell, sizeof cell);
            if (cell[1] != 1) fail("a cell of another form than this program knows");
            cell[0] += (uint32_t)n * SEED_TOKENS;
            memcpy(out, cell, sizeof cell);
        }
    in += SEED_TOKENS * sizeof cell;
    memcpy(values, in, sizeof values);
    if (values[0]) fail("transposed values");
    out = copy(out, &in, sizeof values);
    out = repeat_layers(out, &in, values[1], times);
    out = repeat_layers(out, &in, values[1], times);
    return (size_t)(out - begin);
}

static void fill(struct llama_context *context, int depth) {
    static llama_token tokens[SEED_TOKENS];
    for (int i = 0; i < SEED_TOKENS; i++) tokens[i] = 1000 + i * 37 % 20000;
    decode(context, tokens, SEED_TOKENS);
    const size_t size = llama_state_seq_get_size(context, 0);
    const int times = depth / SEED_TOKENS;
    uint8_t *state = malloc(size), *deep = malloc(size * (size_t)times + 4096);
    if (!state || !deep || !llama_state_seq_get_data(context, state, size, 0)) fail("no state");
    llama_memory_clear(llama_get_memory(context), true);
    if (!llama_state_seq_set_data(context, deep, repeat(deep, state, times), 0)) fail("the repeated state is refused");
    if (llama_memory_seq_pos_max(llama_get_memory(context), 0) != depth - 1)
        fail("the cache is not as deep as was asked");
    free(deep);
    free(state);
}

static int number(const char *text) {
    char *end;
    const long value = strtol(text, &end, 10);
    if (end == text || *end || value < 0 || value > INT_MAX) fail("DEPTH, TOKENS and THREADS are numbers");
    return (int)value;
}

int main(int argc, char **argv) {
    if (argc != 6) fail("usage: peer_depth MODEL.gguf f16|q8_0|q4_0 DEPTH TOKENS THREADS");
    const int depth = number(argv[3]) / SEED_TOKENS * SEED_TOKENS, count = number(argv[4]), threads = number(argv[5]);
    const enum ggml_type type = !strcmp(argv[2], "q8_0") ? GGML_TYPE_Q8_0
        : !strcmp(argv[2], "q4_0")                       ? GGML_TYPE_Q4_0
                                                         : GGML_TYPE_F16;
    llama_backend_init();
    struct llama_model *model = llama_model_load_from_file(argv[1], llama_model_default_params());
    struct llama_context_params params = llama_context_default_params();
    params.n_ctx = (uint32_t)(depth + count + 256);
    params.n_batch = SEED_TOKENS;
    params.n_ubatch = 512;
    params.n_threads = params.n_threads_batch = threads;
    params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_ENABLED;
    params.type_k = params.type_v = type;
    struct llama_context *context = model ? llama_init_from_model(model, params) : NULL;
    if (!context) fail("cannot open the model");
    if (depth) fill(context, depth);
    llama_token token = 1234;
    decode(context, &token, 1);
    const double start = now();
    for (int i = 0; i < count; i++, token += 7) {
        decode(context, &token, 1);
        llama_synchronize(context);
    }
    const double seconds = now() - start;
    printf("[{\"n_prompt\": 0, \"n_gen\": %d, \"n_depth\": %d, \"avg_ts\": %.4f}]\n", count, depth, count / seconds);
    llama_free(context);
    llama_model_free(model);
}
