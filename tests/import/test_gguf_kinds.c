/* A small model whose matrices all are of one block type, as a GGUF file and as a checkpoint of the numbers that the
 * gguf package reads in the same blocks (tests/tensor/data/blocks.bin): the same logits bit for bit, or nearly where
 * docs/formats.md says so. */
#include "family/fixture.h"

#include <unistd.h>

#include "import/gguf_builder.h"

enum { SIZE = 256, VOCAB = 48, HEADS = 4, KV_HEADS = 2, BLOCKS_ROWS = 2, TOKENS = 12 };

/* Rows of the model are those of the record, one after the other, with the sign bits of the scales as they are. */
typedef struct Kind {
    const GgufType *info;
    uint32_t type;
    const uint8_t *blocks, *values; /* of BLOCKS_ROWS rows */
} Kind;

static void matrix_build(Builder *b, const char *name, const Kind *kind, int64_t rows, bool floats) {
    const size_t blocks = (size_t)(SIZE / kind->info->elements * kind->info->bytes),
                 row_bytes = floats ? SIZE * sizeof(float) : blocks;
    const uint8_t *from = floats ? kind->values : kind->blocks;
    uint8_t *bytes = malloc((size_t)rows * row_bytes);
    for (int64_t row = 0; row < rows; row++) /* so that no two matrices are alike */
        memcpy(bytes + (size_t)row * row_bytes,
            from + (size_t)((row * row + (int64_t)strlen(name)) / 3 % BLOCKS_ROWS) * row_bytes, row_bytes);
    build_tensor(b, name, floats ? 0 : kind->type, SIZE, rows, bytes);
    free(bytes);
}

static void model_build(Builder *b, const Kind *kind, bool floats) {
    float norm[SIZE];
    for (int i = 0; i < SIZE; i++) norm[i] = 0.5f + (float)i / SIZE;
    build_string(b, "general.architecture", "llama");
    build_u32(b, "llama.block_count", 1);
    build_u32(b, "llama.context_length", 64);
    build_u32(b, "llama.embedding_length", SIZE);
    build_u32(b, "llama.feed_forward_length", SIZE);
    build_u32(b, "llama.attention.head_count", HEADS);
    build_u32(b, "llama.attention.head_count_kv", KV_HEADS);
    build_f32(b, "llama.attention.layer_norm_rms_epsilon", 1e-5f);
    build_tensor(b, "output_norm.weight", 0, SIZE, 0, norm);
    build_tensor(b, "blk.0.attn_norm.weight", 0, SIZE, 0, norm);
    build_tensor(b, "blk.0.ffn_norm.weight", 0, SIZE, 0, norm);
    matrix_build(b, "token_embd.weight", kind, VOCAB, floats);
    matrix_build(b, "blk.0.attn_q.weight", kind, SIZE, floats);
    matrix_build(b, "blk.0.attn_k.weight", kind, SIZE / HEADS * KV_HEADS, floats);
    matrix_build(b, "blk.0.attn_v.weight", kind, SIZE / HEADS * KV_HEADS, floats);
    matrix_build(b, "blk.0.attn_output.weight", kind, SIZE, floats);
    matrix_build(b, "blk.0.ffn_gate.weight", kind, SIZE, floats);
    matrix_build(b, "blk.0.ffn_up.weight", kind, SIZE, floats);
    matrix_build(b, "blk.0.ffn_down.weight", kind, SIZE, floats);
}

static bool logits_of(const char *directory, const char *cpu, float logits[TOKENS * VOCAB]) {
    static const int32_t tokens[TOKENS] = {3, 1, 4, 1, 5, 9, 2, 6, 5, 35, 8, 47};
    const ModelOptions options = {.context = TOKENS, .strict_config = true};
    const RunnerOptions runs = {.backend = {.cpu = cpu, .threads = 1, .rows_max = FIXTURE_TOKENS_MAX}};
    FixtureRun run;
    if (!fixture_run_open(&run, directory, &options, &runs)) return false;
    TEST(run.vocab == VOCAB);
    const bool ok = run.vocab == VOCAB && fixture_walk(run.runner, tokens, TOKENS, TOKENS, 2, logits);
    fixture_run_close(&run);
    return ok;
}

/* The root of the mean square of the differences over that of b. */
static double difference(const float *a, const float *b) {
    double error = 0, all = 0;
    for (int i = 0; i < TOKENS * VOCAB; i++) {
        error += pow((double)a[i] - (double)b[i], 2);
        all += pow((double)b[i], 2);
    }
    return sqrt(error / all);
}

static bool convert(const Kind *kind, bool floats, bool compact, const char *root, char target[64]) {
    char source[64];
    Builder b = {0};
    Buffer bytes = {0};
    Error error = {0};
    model_build(&b, kind, floats);
    build_file(&b, &bytes);
    snprintf(source, sizeof source, "%s/model.gguf", root);
    snprintf(target, 64, "%s/model", root);
    bool ok = fixture_write_text(root, "model.gguf", buffer_view(&bytes)) &&
        gguf_convert(source, target, &(GgufOptions){.compact = compact}, &error);
    TEST_MSG(ok, "%s: %s", kind->info->name, error.text);
    unlink(source);
    buffer_free(&bytes);
    return ok;
}

static void target_remove(const char *target) {
    char marker[96];
    snprintf(marker, sizeof marker, "%s/gguf-source.json", target);
    unlink(marker);
    fixture_remove(target);
}

/* How far the logits may be off. Exact types: not at all. The nearest ones add to each weight about the part of its own
 * rounding that docs/formats.md states, which three products one after the other carry to the logits. */
static double limit_of(const Kind *kind, bool compact) {
    switch (kind->type) {
    case TYPE_Q2_K: return 0.15;
    case TYPE_IQ2_XS:
    case TYPE_IQ2_S: return compact ? 0.05 : 0.02;
    case TYPE_Q6_K:
    case TYPE_IQ1_M: return compact ? 0 : 0.02;
    default: return 0;
    }
}

static void test_kind(const Kind *kind) {
    char root[] = "/tmp/apus-kinds-XXXXXX", target[64];
    float expected[TOKENS * VOCAB], logits[TOKENS * VOCAB];
    TEST(mkdtemp(root));
    bool ok = convert(kind, true, false, root, target) && logits_of(target, "ref", expected);
    target_remove(target);
    for (int compact = 0; ok && compact < 2; compact++) {
        ok = convert(kind, false, compact, root, target) && logits_of(target, "ref", logits);
        const double off = ok ? difference(logits, expected) : NAN, limit = limit_of(kind, compact);
        TEST_MSG(off <= limit, "%s, compact %d: logits off by %g", kind->info->name, compact, off);
        /* the kernels round activations to eight bits */
        ok = ok && logits_of(target, "auto", logits);
        const double fast = ok ? difference(logits, expected) : NAN;
        TEST_MSG(
            fast <= limit + 0.03, "%s, compact %d: logits off by %g by the kernels", kind->info->name, compact, fast);
        target_remove(target);
    }
    TEST(rmdir(root) == 0);
}

int main(void) {
    FileMap map;
    Error error;
    bool mapped = file_map(&map, "tests/tensor/data/blocks.bin", &error);
    TEST_MSG(mapped, "%s", error.text);
    uint32_t last = UINT32_MAX;
    int kinds = 0;
    for (size_t at = 0; mapped && at < map.size;) {
        uint32_t head[2];
        memcpy(head, map.data + at, sizeof head);
        Kind kind = {.info = gguf_type(head[0]), .type = head[0], .blocks = map.data + at + sizeof head};
        TEST(kind.info && head[1] == BLOCKS_ROWS * SIZE);
        if (!kind.info || head[1] != BLOCKS_ROWS * SIZE) break;
        kind.values = kind.blocks + BLOCKS_ROWS * SIZE / kind.info->elements * kind.info->bytes;
        if (head[0] != last) { /* the second record of a type has extreme scales */
            test_kind(&kind);
            kinds++;
        }
        last = head[0];
        at = (size_t)(kind.values - map.data) + BLOCKS_ROWS * SIZE * sizeof(float);
    }
    TEST(kinds == 22);
    file_unmap(&map);
    return test_done();
}
