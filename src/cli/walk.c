#include "cli/walk.h"

#include <math.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/memory.h"
#include "engine/placement.h"

enum { SPARE_TOKENS = 4096 }; /* that a mark keeps exactly while the sequence goes on, and pages that are copied */

static bool open_sequence(Walk *walk, KvSequence *sequence, Error *error) {
    return kv_sequence_open(walk->cache, &walk->sequence[walk->chosen].format, sequence, error);
}

static bool open_cache(Walk *walk, const KvFormat *formats, int count, int tokens, Error *error) {
    const KvPlan *plan = runner_kv_plan(walk->runner);
    const KvFormat exact = {.k = KV_FULL};
    size_t bytes = 0;
    walk->format_count = count ? count : 1;
    CHECK(walk->format_count <= WALK_FORMATS_MAX);
    for (int i = 0; i < walk->format_count; i++) {
        walk->sequence[i].format = count ? formats[i] : exact;
        bytes += kv_bytes_for(plan, &walk->sequence[i].format, tokens) +
            kv_bytes_for(plan, NULL, tokens < SPARE_TOKENS ? tokens : SPARE_TOKENS);
    }
    uint64_t left;
    if (model_experts(walk->model) &&
        (!runner_budget_left(walk->runner, bytes, memory_available(), &left, error) ||
            !model_hold_experts(walk->model, left - bytes, error)))
        return false;
    walk->cache = kv_open(plan, bytes, error);
    bool ok = walk->cache;
    for (int i = walk->format_count - 1; ok && i >= 0; i--) {
        walk_choose(walk, i);
        ok = open_sequence(walk, &walk->sequence[i].now, error);
    }
    return ok;
}

bool walk_open(Walk *walk, const char *directory, const ModelOptions *options, const BackendOptions *backend,
    int gpu_layers, const KvFormat *formats, int count, int tokens, Error *error) {
    *walk = (Walk){0};
    const StepCapacity largest = {.rows = RUNNER_ROWS_MAX, .sequences = WALK_FORMATS_MAX, .outputs = RUNNER_ROWS_MAX};
    const StepCapacity lookahead = {
        .rows = WALK_FORMATS_MAX, .sequences = WALK_FORMATS_MAX, .outputs = WALK_FORMATS_MAX};
    bool ok =
        step_builder_open(&walk->steps[0], &largest, error) && step_builder_open(&walk->steps[1], &lookahead, error);
    const EngineOptions placed = {.backend = *backend, .gpu_layers = gpu_layers};
    ModelOptions own = *options;
    RunnerOptions chunks = {.backend = *backend};
    own.device_layers = gpu_layers;
    ok = ok && (walk->model = model_open(directory, &own, error));
    if (ok) placement_runner(&placed, walk->model, &chunks);
    if (ok && tokens > model_context(walk->model))
        ok = fail(error, ERROR_LIMIT, "%d tokens do not fit the context of %d", tokens, model_context(walk->model));
    ok = ok && (walk->runner = runner_open(walk->model, &chunks, error)) &&
        open_cache(walk, formats, count, tokens, error);
    if (!ok) walk_close(walk);
    return ok;
}

void walk_close(Walk *walk) {
    for (int i = 0; walk->cache && i < walk->format_count; i++) {
        kv_sequence_close(walk->cache, &walk->sequence[i].now);
        kv_sequence_close(walk->cache, &walk->sequence[i].mark);
    }
    kv_close(walk->cache);
    runner_close(walk->runner);
    model_close(walk->model);
    for (int i = 0; i < 2; i++) step_builder_close(&walk->steps[i]);
    *walk = (Walk){0};
}

void walk_choose(Walk *walk, int sequence) { walk->chosen = sequence; }

static KvSequence *now(Walk *walk) { return &walk->sequence[walk->chosen].now; }
static KvSequence *mark(Walk *walk) { return &walk->sequence[walk->chosen].mark; }

int walk_length(const Walk *walk) { return walk->sequence[walk->chosen].now.length; }

size_t walk_kv_bytes(const Walk *walk, int sequence, bool *quantised) {
    KvUse use = {0};
    size_t bytes = 0;
    kv_sequence_use(walk->cache, &walk->sequence[sequence].now, &use);
    for (int form = 0; form < KV_FORMS; form++) bytes += use.bytes[form];
    *quantised = bytes > use.bytes[KV_FULL];
    return bytes;
}

int walk_rows(const Walk *walk, int wanted) {
    const int most = kv_step_rows(&walk->sequence[walk->chosen].now);
    return wanted < most ? wanted : most;
}

/* Whether rows that follow a prompt have an arithmetic of their own, and whether so many of them share the prompt's in
 * matrix products. */
static bool has_decode_rows(const Walk *walk) { return runner_decode_rows_max(walk->runner) > 0; }
static bool uniform_matmul(const Walk *walk, int count) { return count > runner_decode_rows_max(walk->runner); }

static bool one_step(
    Walk *walk, const int32_t *tokens, int count, bool decode, int outputs, float **logits, Error *error) {
    KvSequence *sequence = now(walk);
    StepBuilder *step = &walk->steps[0];
    if (!kv_reserve(walk->cache, sequence, count, error)) return false;
    step_begin(step, false);
    step_add_sequence(step,
        &(StepSequence){.rows = count, .decode = decode, .kv = sequence, .tokens = tokens, .output_count = outputs});
    if (!runner_forward(walk->runner, walk->cache, step_end(step, error), logits, error)) return false;
    kv_advance(walk->cache, sequence, count);
    return true;
}

bool walk_step(Walk *walk, const int32_t *tokens, int count, int outputs, float **logits, Error *error) {
    return one_step(walk, tokens, count, false, outputs, logits, error);
}

bool walk_step_on(Walk *walk, int32_t token, float **logits, Error *error) {
    return one_step(walk, &token, 1, has_decode_rows(walk), 1, logits, error);
}

bool walk_step_together(Walk *walk, const int32_t *tokens, int count, float **logits, Error *error) {
    StepBuilder *step = &walk->steps[0];
    CHECK(count <= walk->format_count);
    step_begin(step, uniform_matmul(walk, count));
    for (int i = 0; i < count; i++) {
        KvSequence *sequence = &walk->sequence[i].now;
        if (!kv_reserve(walk->cache, sequence, 1, error)) return false;
        step_add_sequence(step,
            &(StepSequence){
                .rows = 1, .decode = has_decode_rows(walk), .kv = sequence, .tokens = &tokens[i], .output_count = 1});
    }
    if (!runner_forward(walk->runner, walk->cache, step_end(step, error), logits, error)) return false;
    for (int i = 0; i < count; i++) kv_advance(walk->cache, &walk->sequence[i].now, 1);
    return true;
}

/* ---- steps that sample ---- */

/* Begins a step after `lookahead` others that have not ended. tokens: of the first step; NULL: the step before samples
 * them. */
static bool begin_sample(Walk *walk, int first, int count, const int32_t *tokens, int lookahead, float scale,
    StepBuilder *step, RunnerStep *begun, Error *error) {
    step_begin(step, uniform_matmul(walk, count));
    for (int i = 0; i < count; i++) {
        KvSequence *sequence = &walk->sequence[first + i].now;
        if (!kv_reserve(walk->cache, sequence, lookahead + 1, error)) return false;
        walk->random = walk->random * 1664525u + 1013904223u;
        const SampleParams sample = {
            .uniform = (walk->random + 0.5) * 0x1p-32, .scale = scale, .top_p = 1, .min_p_log = -INFINITY};
        const int32_t token = tokens ? tokens[i] : token_from_output(i);
        step_add_sequence(step,
            &(StepSequence){.rows = 1,
                .decode = has_decode_rows(walk),
                .kv = sequence,
                .lookahead = lookahead,
                .tokens = &token,
                .output_count = 1,
                .sample_params = &sample});
    }
    const Step *complete = step_end(step, error);
    if (complete) runner_begin(walk->runner, walk->cache, complete, begun);
    return complete != NULL;
}

static bool end_sample(Walk *walk, int first, int count, const RunnerStep *begun, Error *error) {
    float *none;
    if (!runner_end(walk->runner, begun, &none, error)) return false;
    for (int i = 0; i < count; i++) kv_advance(walk->cache, &walk->sequence[first + i].now, 1);
    return true;
}

/* Whether every sequence can take so many tokens before one of its steps has ended. */
static bool can_go(const Walk *walk, int first, int count, int tokens) {
    bool can = true;
    for (int i = 0; i < count; i++) can = can && kv_step_rows(&walk->sequence[first + i].now) >= tokens;
    return can;
}

bool walk_sample(Walk *walk, int first, int count, const int32_t *tokens, int steps, float temperature, double *ended,
    Error *error) {
    const float scale = temperature > 0 ? 1 / temperature : 0;
    RunnerStep both[2];
    int done = 0;
    bool ok = true;
    for (int begun = 0; ok && done < steps;) {
        const int lookahead = begun - done;
        const bool more = begun < steps && lookahead < 2 && can_go(walk, first, count, lookahead + 1);
        ok = more ? begin_sample(walk, first, count, begun ? NULL : tokens, lookahead, scale, &walk->steps[begun % 2],
                        &both[begun % 2], error)
                  : end_sample(walk, first, count, &both[done % 2], error);
        begun += more && ok;
        if (!more && ok) ended[done++] = clock_seconds();
        if (!ok && more && begun > done) (void)end_sample(walk, first, count, &both[done % 2], &(Error){0});
    }
    return ok;
}

bool walk_mark(Walk *walk, Error *error) {
    kv_sequence_close(walk->cache, mark(walk));
    if (!open_sequence(walk, mark(walk), error)) return false;
    kv_fork(walk->cache, now(walk), mark(walk));
    return true;
}

bool walk_return(Walk *walk, int length, bool *there, Error *error) {
    *there = mark(walk)->tables && mark(walk)->length == length;
    kv_sequence_close(walk->cache, *there ? now(walk) : mark(walk));
    if (!*there) return true;
    if (!open_sequence(walk, now(walk), error)) return false;
    kv_fork(walk->cache, mark(walk), now(walk));
    return true;
}

bool walk_restart(Walk *walk, Error *error) {
    kv_sequence_close(walk->cache, now(walk));
    kv_sequence_close(walk->cache, mark(walk));
    return open_sequence(walk, now(walk), error);
}
