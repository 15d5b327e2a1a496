/* Multi-token prediction heads against their definition (tools/oracle/mtp_reference.py): logits for every position, and
 * of a second draft token; read at once, in pieces and in single rows, with the same bits. A file without a head is
 * refused. */
#include "compare.h"

static const char *const names[] = {"mtp/deepseek-v3", "mtp/ernie4-5-moe", "mtp/glm4-moe", "mtp/mimo", "mtp/qwen3-5",
    "mtp/qwen3-5-moe", "mtp/qwen3-next"};

/* A runner and the sequence that it reads. */
typedef struct Reader {
    Runner *runner;
    KvCache *kv;
    KvSequence sequence;
    StepBuilder builder;
} Reader;

static bool reader_open(Reader *r, const Model *model, const char *cpu, bool mtp, int rows, Error *error) {
    const RunnerOptions options = {
        .backend = fixture_backend(cpu, 2, rows), .mtp = mtp, .outputs_max = rows, .hidden_rows_max = rows};
    const StepCapacity capacity = {.rows = rows, .sequences = 1, .outputs = rows, .hidden_rows = rows, .embeddings = 1};
    *r = (Reader){.runner = runner_open(model, &options, error)};
    if (!r->runner) return false;
    const KvPlan *plan = runner_kv_plan(r->runner);
    r->kv = kv_open(plan, kv_bytes_for(plan, NULL, rows), error);
    return r->kv && kv_sequence_open(r->kv, NULL, &r->sequence, error) &&
        step_builder_open(&r->builder, &capacity, error);
}

static void reader_close(Reader *r) {
    step_builder_close(&r->builder);
    if (r->kv) kv_sequence_close(r->kv, &r->sequence);
    kv_close(r->kv);
    runner_close(r->runner);
}

/* Reads rows; states: [rows, hidden] for a head, NULL for the model. logits: [rows, vocab]; hidden: [rows, hidden]. */
static bool read_rows(Reader *r, const int32_t *tokens, const float *states, int rows, float *logits, float *hidden) {
    Error error = {0};
    float *out;
    const Model *model = runner_model(r->runner);
    const EmbeddingRange range = {.rows = rows, .values = states};
    bool ok = kv_reserve(r->kv, &r->sequence, rows, &error);
    step_begin(&r->builder, true);
    step_add_sequence(&r->builder,
        &(StepSequence){.rows = rows,
            .kv = &r->sequence,
            .tokens = tokens,
            .embedding_count = states != NULL,
            .embeddings = &range,
            .states = states != NULL,
            .output_count = rows,
            .hidden_row_count = rows});
    ok = ok && runner_forward(r->runner, r->kv, step_end(&r->builder, &error), &out, &error);
    TEST_MSG(ok, "%s", error.text);
    if (!ok) return false;
    memcpy(logits, out, (size_t)(rows * model_vocab(model)) * sizeof *out);
    memcpy(hidden, runner_hidden_rows(r->runner), (size_t)(rows * model_hidden(model)) * sizeof *out);
    kv_advance(r->kv, &r->sequence, rows);
    return true;
}

/* All rows of the golden logits, read in pieces. states: [count, hidden], those of the model. */
static bool read_head(const Fixture *f, const float *golden, const Model *model, const char *cpu, int piece,
    const float *states, float *logits) {
    Reader r;
    Error error = {0};
    const int hidden = model_hidden(model), known = f->count - 1;
    float *own = calloc((size_t)(f->count * hidden), sizeof *own), lead;
    bool ok = reader_open(&r, model, cpu, true, f->count, &error);
    TEST_MSG(ok, "%s on %s: %s", f->name, cpu, error.text);
    for (int at = 0; ok && at < known; at += piece)
        ok = read_rows(&r, f->tokens + at + 1, states + at * hidden, known - at < piece ? known - at : piece,
            logits + at * f->vocab, own + at * hidden);
    const int32_t next = argmax(golden + (known - 1) * f->vocab, f->vocab, &lead);
    ok = ok && read_rows(&r, &next, own + (known - 1) * hidden, 1, logits + known * f->vocab, own + known * hidden);
    reader_close(&r);
    free(own);
    return ok;
}

static void check_backend(Fixture *f, int variant, const char *directory, const char *cpu) {
    static const int pieces[] = {FIXTURE_TOKENS_MAX, 7, 1};
    Error error = {0};
    Reader target;
    const ModelOptions options = {.context = f->count, .strict_config = true, .mtp = true};
    Model *model = model_open(directory, &options, &error);
    bool ok = model && reader_open(&target, model, cpu, false, f->count, &error);
    TEST_MSG(ok, "%s on %s: %s", f->name, cpu, error.text);
    if (!ok) return;
    const size_t size = (size_t)(f->count * f->vocab);
    float *states = calloc((size_t)(f->count * model_hidden(model)), sizeof *states);
    float *first = calloc(size, sizeof *first), *logits = calloc(size, sizeof *logits);
    CHECK(states && first && logits);
    ok = read_rows(&target, f->tokens, NULL, f->count, logits, states);
    for (size_t i = 0; ok && i < COUNT_OF(pieces); i++) {
        if (!read_head(f, fixture_golden(f, variant), model, cpu, pieces[i], states, i ? logits : first)) break;
        if (i > 0)
            TEST_MSG(!memcmp(first, logits, size * sizeof *first), "%s on %s: pieces of %d", f->name, cpu, pieces[i]);
        else if (runner_backend(target.runner)->exact)
            check_exact(f, variant, first);
        else
            check_fast(f, variant, cpu, first);
    }
    free(states);
    free(first);
    free(logits);
    reader_close(&target);
    model_close(model);
}

static void check_refusals(void) {
    static const char *const without[] = {"llama", "glm4-moe"};
    for (size_t i = 0; i < COUNT_OF(without); i++) {
        Fixture f;
        Error error = {0};
        char directory[64];
        if (!fixture_open(&f, without[i]) || !fixture_write_variant(&f, 0, directory)) continue;
        Model *model = model_open(directory, &(ModelOptions){.mtp = true}, &error);
        TEST_MSG(!model && error.code == ERROR_UNSUPPORTED && strstr(error.text, "--mtp"), "%s", error.text);
        model_close(model);
        fixture_remove(directory);
        fixture_close(&f);
    }
}

int main(void) {
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        Fixture f;
        if (!fixture_open(&f, names[i])) continue;
        for (int v = 0; v < (int)f.variants->size; v++) {
            char directory[64];
            if (!fixture_write_variant(&f, v, directory)) continue;
            for (size_t c = 0; c < COUNT_OF(fixture_cpus); c++)
                if (fixture_cpu_due(fixture_cpus[c])) check_backend(&f, v, directory, fixture_cpus[c]);
            fixture_remove(directory);
        }
        fixture_close(&f);
    }
    check_refusals();
    return test_done();
}
