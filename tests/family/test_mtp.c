/* Multi-token prediction heads against their definition (tools/oracle/mtp_reference.py): logits for every position, and
 * of a second draft token; read at once, in pieces and in single rows, with the same bits. Where the backend samples,
 * steps that begin ahead, with the tokens and states of the step before, sample what steps that are waited for do, also
 * when a GPU replays them. A file without a head is refused. */
#include <math.h>

#include "compare.h"
#include "head_reader.h"

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

/* ---- steps ahead ---- */

enum { CHAIN = 4, REPEATS = 4 /* the third and later ones of a step are replayed by a GPU */ };

static const BackendOps *inner;
static int replayed;
static bool counting_begin(Backend *backend, const Step *step) {
    const bool walk = inner->begin(backend, step);
    replayed += !walk;
    return walk;
}

/* Begins a step of one row, `before` rows behind the sequence. there: the state is memory of the backend. */
static void begin_row(Reader *r, StepBuilder *builder, int before, int32_t token, const float *state, bool there,
    bool sample, RunnerStep *begun) {
    static const SampleParams largest = {.uniform = 0.5, .top_p = 1, .min_p_log = -INFINITY};
    Error error = {0};
    step_begin(builder, false);
    step_add_sequence(builder,
        &(StepSequence){.rows = 1,
            .decode = true,
            .kv = &r->sequence,
            .lookahead = before,
            .tokens = &token,
            .embedding_count = 1,
            .embeddings = &(EmbeddingRange){.rows = 1, .values = state, .in_backend = there},
            .states = true,
            .output_count = 1,
            .sample_params = sample ? &largest : NULL,
            .hidden_row_count = 1});
    const Step *step = step_end(builder, &error);
    TEST_MSG(step, "%s", error.text);
    if (step) runner_begin(r->runner, r->kv, step, begun);
}

/* Tokens that follow, each the likeliest, from the states that the head gives; state: in: that of the first row; out:
 * that behind the last one. */
static bool chain_waited(Reader *r, int32_t token, float *state, int32_t *tokens) {
    const Model *model = runner_model(r->runner);
    const size_t bytes = (size_t)model_hidden(model) * sizeof *state;
    for (int i = 0; i < CHAIN; i++) {
        Error error = {0};
        RunnerStep begun;
        float *logits, lead;
        begin_row(r, &r->builder, i, i ? tokens[i - 1] : token, state, false, false, &begun);
        if (!runner_end(r->runner, &begun, &logits, &error)) return false;
        tokens[i] = argmax(logits, model_vocab(model), &lead);
        memcpy(state, runner_hidden_rows(r->runner), bytes);
    }
    return true;
}

static bool chain_ahead(Reader *r, StepBuilder *other, int32_t token, float *state, int32_t *tokens) {
    StepBuilder *builders[] = {&r->builder, other};
    RunnerStep begun[2];
    Error error = {0};
    float *logits;
    bool ok = true;
    begin_row(r, builders[0], 0, token, state, false, true, &begun[0]);
    for (int i = 1; i <= CHAIN && ok; i++) {
        const float *there = runner_hidden_rows_there(r->runner, &begun[(i - 1) % 2]);
        if (i < CHAIN) begin_row(r, builders[i % 2], i, token_from_output(0), there, true, true, &begun[i % 2]);
        ok = runner_end(r->runner, &begun[(i - 1) % 2], &logits, &error) && !logits;
        if (ok) tokens[i - 1] = runner_sampled(r->runner)[0];
    }
    if (ok) memcpy(state, runner_hidden_rows(r->runner), (size_t)model_hidden(runner_model(r->runner)) * sizeof *state);
    return ok;
}

/* states: [count, hidden], those of the model. */
static void check_ahead(const Fixture *f, const Model *model, const char *cpu, const float *states) {
    Reader r;
    StepBuilder other;
    Error error = {0};
    const int hidden = model_hidden(model), first = f->count - 1 - CHAIN;
    const StepCapacity one = {.rows = 1, .sequences = 1, .outputs = 1, .hidden_rows = 1, .embeddings = 1};
    float *logits = calloc((size_t)(f->count * f->vocab), sizeof *logits);
    float *state = calloc((size_t)(f->count * hidden), sizeof *state), *own = calloc((size_t)hidden, sizeof *own);
    CHECK(logits && state && own && first > 0);
    bool ok = reader_open(&r, model, cpu, true, f->count, &error) && step_builder_open(&other, &one, &error);
    TEST_MSG(ok, "%s on %s: %s", f->name, cpu, error.text);
    ok = ok && read_rows(&r, f->tokens + 1, states, first, logits, state) &&
        kv_reserve(r.kv, &r.sequence, CHAIN, &error);
    Backend *backend = ok ? runner_backend(r.runner) : NULL;
    BackendOps counting;
    if (backend) {
        inner = backend->ops;
        counting = *inner;
        counting.begin = counting_begin;
        backend->ops = &counting;
    }
    int32_t waited[CHAIN], ahead[CHAIN];
    replayed = 0;
    for (int i = 0; ok && i < REPEATS; i++) {
        memcpy(state, states + first * hidden, (size_t)hidden * sizeof *state);
        memcpy(own, state, (size_t)hidden * sizeof *state);
        ok = chain_waited(&r, f->tokens[first + 1], state, waited) &&
            chain_ahead(&r, &other, f->tokens[first + 1], own, ahead);
        TEST_MSG(ok && !memcmp(waited, ahead, sizeof waited) && !memcmp(state, own, (size_t)hidden * sizeof *own),
            "%s on %s: steps ahead, round %d", f->name, cpu, i);
    }
    if (backend) backend->ops = inner;
    TEST_MSG(replayed > 0, "%s on %s: no step was replayed", f->name, cpu);
    step_builder_close(&other);
    reader_close(&r);
    free(logits);
    free(state);
    free(own);
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
    if (ok && runner_can_lookahead(target.runner)) check_ahead(f, model, cpu, states);
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
    for (size_t i = 0; i < COUNT_OF(head_fixtures); i++) {
        Fixture f;
        if (!fixture_open(&f, head_fixtures[i])) continue;
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
