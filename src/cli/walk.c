#include "cli/walk.h"

#include <stdlib.h>

bool walk_open(Walk *walk, const char *directory, const ModelOptions *options, const BackendOptions *backend,
    int tokens, Error *error) {
    *walk = (Walk){0};
    walk->positions = calloc(RUNNER_ROWS_MAX, sizeof *walk->positions);
    walk->outputs = calloc(RUNNER_ROWS_MAX, sizeof *walk->outputs);
    bool ok = walk->positions && walk->outputs;
    if (!ok) fail(error, ERROR_MEMORY, "no memory for the steps of a walk");
    ok = ok && (walk->model = model_open(directory, options, error));
    if (ok && tokens > model_context(walk->model))
        ok = fail(error, ERROR_LIMIT, "%d tokens do not fit the context of %d", tokens, model_context(walk->model));
    ok = ok && (walk->runner = runner_open(walk->model, &(RunnerOptions){.backend = *backend}, error));
    const KvPlan *plan = ok ? runner_kv_plan(walk->runner) : NULL;
    ok = ok && (walk->cache = kv_open(plan, kv_bytes_for(plan, NULL, tokens), error)) &&
        kv_sequence_open(walk->cache, NULL, &walk->sequence, error);
    if (!ok) walk_close(walk);
    return ok;
}

void walk_close(Walk *walk) {
    if (walk->cache) {
        kv_sequence_close(walk->cache, &walk->sequence);
        kv_close(walk->cache);
    }
    runner_close(walk->runner);
    model_close(walk->model);
    free(walk->positions);
    free(walk->outputs);
    *walk = (Walk){0};
}

bool walk_step(Walk *walk, const int32_t *tokens, int count, int outputs, float **logits, Error *error) {
    if (!kv_reserve(walk->cache, &walk->sequence, count, error)) return false;
    for (int i = 0; i < count; i++) walk->positions[i] = walk->sequence.length + i;
    for (int i = 0; i < outputs; i++) walk->outputs[i] = count - outputs + i;
    Run run = {.row = 0, .rows = count};
    kv_run(&walk->sequence, &run);
    const Step step = {
        .rows = count, .tokens = tokens, .positions = walk->positions, .run_count = 1, .runs = &run, .axes = 1};
    if (!runner_forward(walk->runner, walk->cache, &step, outputs, walk->outputs, logits, error)) return false;
    kv_advance(walk->cache, &walk->sequence, count);
    return true;
}

bool walk_rewind(Walk *walk, int length) {
    return length <= walk->sequence.length && kv_truncate(walk->cache, &walk->sequence, length);
}

void walk_restart(Walk *walk) {
    Error ignored;
    kv_sequence_close(walk->cache, &walk->sequence);
    CHECK(kv_sequence_open(walk->cache, NULL, &walk->sequence, &ignored)); /* what was just closed can be opened */
}
