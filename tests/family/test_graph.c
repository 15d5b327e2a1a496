/* Decode steps that a GPU replays as CUDA graphs. Steps of the same shape, also with several decode rows of one
 * sequence, as the verification of drafts has them, are replayed from the third on; steps of different shapes do not
 * share a graph; and each row has the bits of a step with that row alone, in full-precision and quantised pages, with
 * and without uniform_matmul. Block operations have the bits of the operations in turn. Skipped without a GPU. */
#include "backend/plugin.h"
#include "fixture.h"

enum { CONTEXT = 1024, PROMPT = 600, PIECE = 200, ROWS_MAX = 16, SEQUENCES_MAX = 6, REPEATS = 4, VOCAB = 64 };

/* Counts steps that the backend replays (begin() returns false) and steps that are walked. In the place of the
 * backend's own table. */
typedef struct Counting {
    BackendOps ops;
    const BackendOps *inner;
    int walked, replayed;
} Counting;

static Counting *counting_of(Backend *backend) { return (Counting *)(uintptr_t)backend->ops; }

static bool counting_begin(Backend *backend, const Step *step) {
    Counting *counting = counting_of(backend);
    const bool walk = counting->inner->begin(backend, step);
    *(walk ? &counting->walked : &counting->replayed) += 1;
    return walk;
}

static void counting_close(Backend *backend) {
    Counting *counting = counting_of(backend);
    backend->ops = counting->inner;
    free(counting);
    backend_close(backend);
}

static Backend *counting_open(Backend *inner, Error *error) {
    Counting *counting = calloc(1, sizeof *counting);
    if (!counting) abort();
    counting->inner = inner->ops;
    counting->ops = *inner->ops;
    counting->ops.begin = counting_begin;
    counting->ops.close = counting_close;
    inner->ops = &counting->ops;
    return inner;
}

static Backend *in_turn_open(Backend *inner, Error *error) {
    Backend *backend = counting_open(inner, error);
    Counting *counting = counting_of(backend);
    TEST(counting->ops.attention_block && counting->ops.ffn_block);
    counting->ops.attention_block = NULL;
    counting->ops.ffn_block = NULL;
    return backend;
}

/* ---- models ---- */

typedef struct Shape {
    int heads, kv_heads, head_dim;
    int bits; /* of the weights; 0: bf16 */
} Shape;
static const Shape shapes[] = {{4, 2, 64, 4}, {5, 1, 128, 8}, {2, 2, 256, 4}, {4, 4, 80, 4}, {4, 2, 64, 0}};

/* A qwen3 of that shape as the fixtures describe models. */
static void shape_open(const Shape *shape, Fixture *f) {
    enum { HIDDEN = 128, INNER = 192, LAYERS = 2 };
    const int q = shape->heads * shape->head_dim, kv = shape->kv_heads * shape->head_dim;
    const struct {
        const char *name;
        int rows, cols; /* cols 0: a vector */
    } tensors[] = {{"self_attn.q_proj", q, HIDDEN}, {"self_attn.k_proj", kv, HIDDEN}, {"self_attn.v_proj", kv, HIDDEN},
        {"self_attn.o_proj", HIDDEN, q}, {"self_attn.q_norm", shape->head_dim, 0},
        {"self_attn.k_norm", shape->head_dim, 0}, {"mlp.gate_proj", INNER, HIDDEN}, {"mlp.up_proj", INNER, HIDDEN},
        {"mlp.down_proj", HIDDEN, INNER}, {"input_layernorm", HIDDEN, 0}, {"post_attention_layernorm", HIDDEN, 0}};
    Error error = {0};
    *f = (Fixture){.vocab = VOCAB};
    snprintf(f->name, sizeof f->name, "%d-bit, heads of %d", shape->bits, shape->head_dim);
    buffer_printf(&f->text,
        "{\"config\":{\"model_type\":\"qwen3\",\"hidden_size\":%d,\"num_hidden_layers\":%d,\"intermediate_size\":%d,"
        "\"num_attention_heads\":%d,\"num_key_value_heads\":%d,\"head_dim\":%d,\"rms_norm_eps\":1e-5,"
        "\"vocab_size\":%d,\"max_position_embeddings\":%d,\"tie_word_embeddings\":true,\"rope_theta\":10000.0},",
        HIDDEN, LAYERS, INNER, shape->heads, shape->kv_heads, shape->head_dim, VOCAB, CONTEXT);
    buffer_printf(&f->text,
        "\"norm_offset\":1.0,\"embedding_range\":2.0,\"tensors\":{\"model.embed_tokens.weight\":[%d,%d],"
        "\"model.norm.weight\":[%d]",
        VOCAB, HIDDEN, HIDDEN);
    for (int layer = 0; layer < LAYERS; layer++)
        for (size_t i = 0; i < COUNT_OF(tensors); i++) {
            buffer_printf(&f->text, ",\"model.layers.%d.%s.weight\":[%d", layer, tensors[i].name, tensors[i].rows);
            if (tensors[i].cols) buffer_printf(&f->text, ",%d", tensors[i].cols);
            buffer_text(&f->text, "]");
        }
    buffer_text(&f->text, "},\"variants\":[{\"dtype\":\"bf16\"");
    if (shape->bits)
        buffer_printf(&f->text, ",\"scales\":\"bf16\",\"quantization\":{\"group_size\":64,\"bits\":%d}", shape->bits);
    buffer_text(&f->text, "}]}");
    f->root = json_parse(&f->arena, buffer_view(&f->text), &error);
    TEST_MSG(f->root, "%s", error.text);
    if (f->root) f->variants = json_get(f->root, "variants");
}

/* ---- steps ---- */

/* A model on the GPU, and sequences behind the same prompt. */
typedef struct Bench {
    const char *label;
    FixtureRun run;
    KvCache *cache;
    KvSequence sequences[SEQUENCES_MAX];
    int32_t tokens[PROMPT + ROWS_MAX];
    bool uniform_matmul;
} Bench;

/* Puts rows[i] decode rows of sequence i, i < count, into one step, and forgets them. logits: [all rows, VOCAB]. */
static bool step_once(Bench *b, const int *rows, int count, float *logits) {
    StepBuilder builder;
    Error error = {0};
    float *out = NULL;
    bool ok = true;
    fixture_builder(&builder, ROWS_MAX);
    step_begin(&builder, b->uniform_matmul);
    for (int i = 0; i < count; i++) {
        ok = ok && kv_reserve(b->cache, &b->sequences[i], rows[i], &error);
        if (!ok) break;
        step_add_sequence(&builder,
            &(StepSequence){.rows = rows[i],
                .decode = true,
                .kv = &b->sequences[i],
                .tokens = b->tokens + b->sequences[i].length,
                .output_count = rows[i]});
    }
    const Step *step = ok ? step_end(&builder, &error) : NULL;
    ok = ok && runner_forward(b->run.runner, b->cache, step, &out, &error);
    if (ok) memcpy(logits, out, (size_t)step->rows * VOCAB * sizeof *logits);
    step_builder_close(&builder);
    for (int i = 0; ok && i < count; i++) {
        const int length = b->sequences[i].length;
        kv_advance(b->cache, &b->sequences[i], rows[i]);
        ok = kv_truncate(b->cache, &b->sequences[i], length);
    }
    TEST_MSG(ok, "%s: %s", b->label, error.text);
    return ok;
}

/* Logits of ROWS_MAX decode rows behind the prompt, each in a step of its own, in sequence 0. */
static bool single_rows(Bench *b, float *logits) {
    Error error = {0};
    const int one = 1;
    KvSequence *s = &b->sequences[0];
    bool ok = true;
    for (int i = 0; ok && i < ROWS_MAX; i++) {
        ok = step_once(b, &one, 1, logits + i * VOCAB) && kv_reserve(b->cache, s, 1, &error);
        if (ok) kv_advance(b->cache, s, 1);
    }
    return ok && kv_truncate(b->cache, s, PROMPT);
}

/* Rows of the sequences of a step; ends with 0. */
typedef struct Layout {
    int rows[SEQUENCES_MAX + 1];
} Layout;

/* Each layout is walked twice and then replayed; several have the same number of rows. */
static const Layout layouts[] = {{{1}}, {{2}}, {{3}}, {{4}}, {{5}}, {{8}}, {{16}}, {{6}}, {{3, 3}}, {{5, 1}}, {{1, 5}},
    {{1, 1, 1, 1, 1, 1}}, {{2, 4}}, {{2, 2, 2}}, {{1, 2, 3}}, {{4, 4, 4, 4}}, {{12, 4}}, {{4, 4, 8}}};

static void check_layout(Bench *b, const Layout *layout, const float *single, bool replays) {
    static float logits[ROWS_MAX * VOCAB];
    Counting *counting = counting_of(runner_backend(b->run.runner));
    char name[64] = "";
    int count = 0, row = 0;
    for (; layout->rows[count]; count++)
        snprintf(name + strlen(name), sizeof name - strlen(name), "%s%d", count ? "+" : "", layout->rows[count]);
    const int before = counting->replayed;
    if (!step_once(b, layout->rows, count, logits)) return;
    if (replays) TEST_MSG(counting->replayed == before + 1, "%s: a step of %s rows is not replayed", b->label, name);
    for (int i = 0; i < count; row += layout->rows[i++])
        TEST_MSG(!memcmp(logits + row * VOCAB, single, (size_t)layout->rows[i] * VOCAB * sizeof *logits),
            "%s: sequence %d of a step of %s rows", b->label, i, name);
}

static void check_steps(Bench *b, float *single) {
    if (!single_rows(b, single)) return;
    for (int again = 0; again < REPEATS; again++)
        for (size_t i = 0; i < COUNT_OF(layouts); i++) check_layout(b, &layouts[i], single, again >= 2);
}

static bool bench_open(
    Bench *b, const char *directory, const KvFormat *format, Backend *(*wrap)(Backend *, Error *), float *prompt) {
    Error error = {0};
    RunnerOptions options = {.backend = fixture_backend("cuda", 1, PIECE)};
    options.backend.wrap = wrap;
    if (!fixture_run_open(&b->run, directory, &(ModelOptions){.context = CONTEXT}, &options)) return false;
    const KvPlan *plan = runner_kv_plan(b->run.runner);
    b->cache = kv_open(plan, 2 * SEQUENCES_MAX * kv_bytes_for(plan, NULL, CONTEXT), &error);
    bool ok = b->cache;
    for (int i = 0; i < SEQUENCES_MAX; i++) {
        KvSequence *s = &b->sequences[i];
        ok = ok && kv_sequence_open(b->cache, format, s, &error);
        while (ok && s->length < PROMPT) {
            const int left = PROMPT - s->length, allowed = kv_step_rows(s), most = left < PIECE ? left : PIECE;
            ok = fixture_step(b->run.runner, b->cache, s, b->tokens + s->length, most < allowed ? most : allowed,
                prompt + s->length * VOCAB, &error);
        }
    }
    TEST_MSG(ok, "%s: %s", b->label, error.text);
    return ok;
}

static void bench_close(Bench *b) {
    for (int i = 0; b->cache && i < SEQUENCES_MAX; i++) kv_sequence_close(b->cache, &b->sequences[i]);
    kv_close(b->cache);
    fixture_run_close(&b->run);
}

static void check_model(const char *label, const char *directory, const KvFormat *format, bool uniform_matmul) {
    enum { ALL = (PROMPT + ROWS_MAX) * VOCAB };
    static float blocks[ALL], in_turn[ALL];
    uint64_t random = 11;
    Bench one = {.label = label, .uniform_matmul = uniform_matmul};
    for (int i = 0; i < PROMPT + ROWS_MAX; i++) one.tokens[i] = (int32_t)(test_random(&random) % VOCAB);
    Bench other = one;
    if (bench_open(&one, directory, format, counting_open, blocks)) check_steps(&one, blocks + PROMPT * VOCAB);
    bench_close(&one);
    if (bench_open(&other, directory, format, in_turn_open, in_turn))
        TEST(single_rows(&other, in_turn + PROMPT * VOCAB));
    bench_close(&other);
    TEST_MSG(!memcmp(blocks, in_turn, sizeof blocks), "%s: block operations", label);
}

/* test_graph [SHAPE]: that shape alone, for an emulator. */
int main(int argc, char **argv) {
    static const KvFormat quantised = {.k = KV_Q4, .v = KV_Q4, .after = 256, .hot = 128, .sink = 128};
    const size_t only = argc > 1 ? strtoul(argv[1], NULL, 10) : 0, count = argc > 1 ? only + 1 : COUNT_OF(shapes);
    const bool here = fixture_cpu_here("cuda");
    TEST(here == plugin_usable());
    for (size_t i = only; here && i < count && i < COUNT_OF(shapes); i++) {
        Fixture f;
        char directory[64], label[128];
        shape_open(&shapes[i], &f);
        if (!f.root || !fixture_write_variant(&f, 0, directory)) continue;
        for (int quant = 0; quant < 2; quant++)
            for (int uniform = 0; uniform < 2; uniform++) {
                snprintf(label, sizeof label, "%s%s%s", f.name, quant ? ", quantised pages" : "",
                    uniform ? ", uniform" : "");
                check_model(label, directory, quant ? &quantised : NULL, uniform);
            }
        fixture_remove(directory);
        fixture_close(&f);
    }
    return test_done();
}
