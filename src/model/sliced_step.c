#include "model/sliced_step.h"

#include <stdlib.h>

#include "base/math.h"
#include "model/runner_internal.h"

struct SlicedStep {
    Runner *runner;
    Backend *backend;
    float *residual; /* [rows_max of the backend, hidden] backend memory */
    const KvLayer *entries;
    const Step *step;
    SlicePlace place;
    StepRows memory;
};

static bool component_possible(const Component *component) {
    const AttentionComponent *attention = &component->attention;
    if (component->parallel || component->reads != 0) return false;
    switch (component->kind) {
    case COMPONENT_ATTENTION: return !attention->conv.taps && !attention->op.selection.block;
    case COMPONENT_GLU:
    case COMPONENT_MLP:
    case COMPONENT_MOE:
    case COMPONENT_SCALE: return true;
    default: return false;
    }
}

bool sliced_step_possible(const Runner *runner) {
    const Bound *bound = &runner->bound;
    bool possible = runner->backend_count == 1 && runner->backends[0]->ops->set_rows && !runner->bank &&
        !runner->schedule.tile_rows && !bound->position_embedding.rows && !bound->layer_inputs.width &&
        !bound->input.state.rows && !bound->altup.streams && runner->spec->adapter_count == 0;
    for (int i = 0; i < bound->spec->layer_count; i++)
        for (int c = 0; c < bound->layers[i].component_count; c++)
            possible = possible && component_possible(&bound->layers[i].components[c]);
    return possible;
}

SlicedStep *sliced_step_open(Runner *runner, Error *error) {
    SlicedStep *s = calloc(1, sizeof *s);
    if (!s) {
        fail(error, ERROR_MEMORY, "no memory for steps in slices");
        return NULL;
    }
    s->runner = runner;
    s->backend = runner->backends[0];
    const size_t floats = (size_t)s->backend->rows_max * (size_t)runner->spec->hidden;
    s->residual = s->backend->ops->alloc(s->backend, floats * sizeof(float), MEMORY_STEP, error);
    if (s->residual) return s;
    free(s);
    return NULL;
}

void sliced_step_close(SlicedStep *s) {
    if (!s) return;
    s->backend->ops->release(s->backend, s->residual);
    free(s);
}

static bool submit(const SlicedStep *s, Error *error) {
    return s->backend->ops->wait(s->backend, s->backend->ops->submit(s->backend), error);
}

bool sliced_step_begin(SlicedStep *s, KvCache *cache, const Step *step, Error *error) {
    const Bound *bound = &s->runner->bound;
    const BackendOps *ops = s->backend->ops;
    CHECK(step->rows <= s->backend->rows_max && step->output_count == 0 && step->hidden_row_count == 0);
    const Embed op = {.rows = step->rows,
        .tokens = step->tokens,
        .table = &bound->embedding,
        .scale = bound->spec->embedding_scale,
        .given_count = step->embedding_count,
        .given = step->embeddings,
        .out = s->residual};
    s->entries = kv_entries(cache);
    s->step = step;
    s->place = (SlicePlace){0};
    ops->begin(s->backend, step);
    ops->embed(s->backend, &op);
    if (bound->embedding_norm) ops->norm(s->backend, step->rows, s->residual, bound->embedding_norm, s->residual);
    return submit(s, error);
}

static SliceWalk walk_of(SlicedStep *s) {
    return (SliceWalk){.bound = &s->runner->bound,
        .entries = s->entries,
        .backend = s->backend,
        .residual = s->residual,
        .memory = &s->memory};
}

SliceKind sliced_step_next(const SlicedStep *s) {
    const SliceWalk walk = {.bound = &s->runner->bound};
    return slice_kind(&walk, &s->place);
}

bool sliced_step_continue(SlicedStep *s, int *rows, bool *done, Error *error) {
    const SliceWalk walk = walk_of(s);
    *rows = slice_forward(&walk, s->step, max_int(*rows, 1), &s->place);
    *done = s->place.layer == s->runner->spec->layer_count;
    const char *damaged = model_damaged(s->runner->model);
    if (damaged) return fail(error, ERROR_IO, "%s shrank while it was in use", damaged);
    return submit(s, error);
}
