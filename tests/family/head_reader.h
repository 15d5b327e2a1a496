/* Reads a text with a model, or with its multi-token prediction head, and keeps logits and final hidden states. */
#pragma once
#include "fixture.h"

static const char *const head_fixtures[] = {"mtp/deepseek-v3", "mtp/ernie4-5-moe", "mtp/glm4-moe", "mtp/mimo",
    "mtp/qwen3-5", "mtp/qwen3-5-moe", "mtp/qwen3-next"};

/* A runner and the sequence that it reads. */
typedef struct Reader {
    Runner *runner;
    KvCache *kv;
    KvSequence sequence;
    StepBuilder builder;
} Reader;

static inline bool reader_open(Reader *r, const Model *model, const char *cpu, bool mtp, int rows, Error *error) {
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

static inline void reader_close(Reader *r) {
    step_builder_close(&r->builder);
    if (r->kv) kv_sequence_close(r->kv, &r->sequence);
    kv_close(r->kv);
    runner_close(r->runner);
}

/* Reads rows; states: [rows, hidden] for a head, NULL for the model. logits: [rows, vocab]; hidden: [rows, hidden]. */
static inline bool read_rows(
    Reader *r, const int32_t *tokens, const float *states, int rows, float *logits, float *hidden) {
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
