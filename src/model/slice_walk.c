#include "model/slice_walk.h"

#include "base/math.h"
#include "model/decoder_internal.h"

static const Component *component_at(const SliceWalk *walk, const SlicePlace *at) {
    return &walk->bound->layers[at->layer].components[at->component];
}

SliceKind slice_kind(const SliceWalk *walk, const SlicePlace *at) {
    if (component_at(walk, at)->kind != COMPONENT_ATTENTION) return SLICE_ROWS;
    return at->has_keys ? SLICE_QUERIES : SLICE_KEYS;
}

/* Rows that see no keys but their own need no second pass. */
static AttentionPart part_of(SliceKind kind, bool whole) {
    if (kind == SLICE_ROWS || (kind == SLICE_KEYS && whole)) return ATTENTION_ALL;
    return kind == SLICE_KEYS ? ATTENTION_KEYS : ATTENTION_QUERIES;
}

static void move_on(const SliceWalk *walk, AttentionPart part, SlicePlace *at) {
    at->row = 0;
    at->has_keys = part == ATTENTION_KEYS;
    if (at->has_keys) return;
    if (++at->component < walk->bound->layers[at->layer].component_count) return;
    at->component = 0;
    at->layer++;
}

int slice_forward(const SliceWalk *walk, const Step *step, int rows, SlicePlace *at) {
    const BackendOps *ops = walk->backend->ops;
    rows = min_int(min_int(rows, SLICE_ROWS_MAX), step->rows - at->row);
    const Step own = step_rows(step, at->row, rows, walk->memory);
    ops->begin(walk->backend, &own);
    const Stage stage = {.bound = walk->bound,
        .entries = walk->entries,
        .backend = walk->backend,
        .rows = step->rows,
        .residual = walk->residual,
        .work = ops->scratch(walk->backend, rows * walk->bound->width)};
    const Component *component = component_at(walk, at);
    ComponentCall call = decoder_call(&stage, at->layer, at->component, &(Rows){.first = at->row, .rows = rows});
    call.part = part_of(slice_kind(walk, at), rows == step->rows);
    component_ops(component->kind)->forward(component, &call);
    at->row += rows;
    if (at->row == step->rows) move_on(walk, call.part, at);
    return rows;
}
