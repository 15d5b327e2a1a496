#include "engine/assistant.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/math.h"
#include "engine/resources.h"
#include "model/step_builder.h"

struct Assistant {
    Model *model;
    Runner *runner;
    KvCache *cache; /* the target's */
    Resources *resources;
    StepBuilder builder;
    SamplerScratch scratch;
    float *chain;    /* [rows, width] its own states behind the last draft tokens */
    int rows, vocab; /* rows: texts of a step */
    size_t width;    /* width of the target's states */
    DraftPace pace;
};

static bool open_parts(Assistant *a, const EngineOptions *options, const Runner *target, Error *error) {
    const RunnerOptions runner = {
        .backend.rows_max = a->rows, .target = target, .outputs_max = a->rows, .hidden_rows_max = a->rows};
    a->runner = runner_open(a->model, &runner, error);
    if (!a->runner) return false;
    const StepCapacity capacity = {
        .rows = a->rows, .sequences = a->rows, .outputs = a->rows, .hidden_rows = a->rows, .embeddings = a->rows};
    a->chain = calloc((size_t)a->rows * a->width, sizeof *a->chain);
    if (!a->chain) return fail(error, ERROR_MEMORY, "no memory for a step of %d rows", a->rows);
    return step_builder_open(&a->builder, &capacity, error) && sampler_scratch_open(&a->scratch, a->vocab, error);
}

Assistant *assistant_open(
    const EngineOptions *options, Model *model, const Runner *target, KvCache *cache, Error *error) {
    uint64_t own, bytes, operations;
    Assistant *a = calloc(1, sizeof *a);
    if (!a) {
        fail(error, ERROR_MEMORY, "no memory for an assistant");
        model_close(model);
        return NULL;
    }
    model_step_cost(model, &own, &operations);
    model_step_cost(runner_model(target), &bytes, &operations);
    *a = (Assistant){.model = model,
        .cache = cache,
        .resources = options->resources,
        .rows = min_int(options->slots, DRAFT_TOKENS_MAX),
        .vocab = model_vocab(model),
        .width = (size_t)model_hidden(runner_model(target)),
        .pace.weight_share = (double)own / (double)(bytes + 1)};
    if (options->backend.tensor_parallel > 1)
        fail(error, ERROR_UNSUPPORTED, "--tensor-parallel: an assistant cannot be divided");
    else if (open_parts(a, options, target, error))
        return a;
    fail_while(error, "--draft-model");
    assistant_close(a);
    return NULL;
}

void assistant_close(Assistant *a) {
    if (!a) return;
    step_builder_close(&a->builder);
    sampler_scratch_close(&a->scratch);
    runner_close(a->runner);
    model_close(a->model);
    free(a->chain);
    free(a);
}

double assistant_seconds(Assistant *a, double target_step_s) { return draft_pace_seconds(&a->pace, target_step_s); }

/* ---- sequences ---- */

void assistant_sequence_close(DraftSequence *s) {
    free(s->states);
    *s = (DraftSequence){0};
}

void assistant_read(Assistant *a, DraftSequence *s, int position, const float *state) {
    if (!s->states && !(s->states = malloc(a->width * sizeof *state))) return; /* it drafts nothing for this text */
    memcpy(s->states, state, a->width * sizeof *state);
    s->state_count = 1;
    s->base = position;
}

void assistant_fork(Assistant *a, const DraftSequence *from, DraftSequence *to) {
    if (from->state_count > 0) assistant_read(a, to, from->base, from->states);
}

/* ---- drafting ---- */

/* The state of the position before the last token is known, and so is the cache. A row at that place stands for the
 * last token; the quantised pages that both read must be the same, since others are gone. */
static bool is_ready(const DraftText *t) {
    const DraftSequence *s = t->sequence;
    const int last = t->tokens - 1;
    if (s->state_count == 0 || s->base != last - 1 || t->cache->length != last) return false;
    SequenceChunk chunk = {.rows = 1};
    kv_run(t->cache, &chunk);
    return kv_cold_end(chunk.quant, last - 1) == kv_cold_end(chunk.quant, last);
}

static void add_row(Assistant *a, const DraftText *t, int drafted, const float *state) {
    const int last = t->tokens - 1;
    SequenceChunk chunk = {.rows = 1};
    int32_t token, positions[POSITION_DIMS_MAX];
    if (drafted > 0)
        token = t->out[drafted - 1];
    else
        t->read(t, last, 1, &token);
    for (int dim = 0; dim < POSITION_DIMS_MAX; dim++)
        positions[dim] = last < t->prompt_count && t->positions
            ? t->positions[(size_t)dim * (size_t)t->prompt_count + (size_t)last]
            : last + t->position_offset;
    kv_run(t->cache, &chunk);
    step_add_sequence(&a->builder,
        &(StepSequence){.rows = 1,
            .position = last - 1,
            .tables = chunk.tables,
            .quant = chunk.quant,
            .tokens = &token,
            .embedding_count = 1,
            .embeddings = &(EmbeddingRange){.rows = 1, .values = state},
            .states = true,
            .positions = positions,
            .output_count = 1,
            .hidden_row_count = 1});
}

/* A token of each text that wants more than it has. */
static bool draft_token(Assistant *a, DraftText *texts, int count, int drafted, Error *error) {
    float *logits;
    int output = 0;
    step_begin(&a->builder, true);
    for (int i = 0; i < count; i++)
        if (texts[i].wanted > drafted)
            add_row(a, &texts[i], drafted, drafted > 0 ? a->chain + (size_t)i * a->width : texts[i].sequence->states);
    const Step *step = step_end(&a->builder, error);
    if (!step || !runner_forward(a->runner, a->cache, step, &logits, error)) return false;
    const float *states = runner_hidden_rows(a->runner);
    for (int i = 0; i < count; i++) {
        DraftText *t = &texts[i];
        if (t->wanted <= drafted) continue;
        memcpy(a->chain + (size_t)i * a->width, states + (size_t)output * a->width, a->width * sizeof *states);
        const SampleParams sample = sampler_device_params(t->sampling, t->number, t->tokens + drafted);
        const int32_t id = sampler_sample(&a->scratch, logits + (size_t)output++ * (size_t)a->vocab, &sample);
        if (id < 0)
            t->wanted = drafted;
        else
            t->out[drafted] = id;
    }
    return true;
}

bool assistant_continue(Assistant *a, DraftText *texts, int count, Error *error) {
    int most = 0;
    bool ok = true;
    CHECK(count <= a->rows);
    for (int i = 0; i < count; i++) {
        if (!is_ready(&texts[i])) texts[i].wanted = 0;
        most = max_int(most, texts[i].wanted);
    }
    if (a->resources) resources_begin_step(a->resources);
    for (int drafted = 0; ok && drafted < most; drafted++) {
        const int64_t start_ns = clock_ns();
        ok = draft_token(a, texts, count, drafted, error);
        draft_pace_note(&a->pace, (double)(clock_ns() - start_ns) * 1e-9);
        most = 0;
        for (int i = 0; i < count; i++) most = max_int(most, texts[i].wanted);
    }
    if (a->resources) resources_end_step(a->resources);
    return ok;
}
