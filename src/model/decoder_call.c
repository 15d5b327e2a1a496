/* The arguments of components. */
#include "model/decoder_internal.h"

/* The norm through which the first component from layer i on reads the residual; NULL: another backend's, or none. */
static const Norm *norm_from(const Bound *bound, int i, int place) {
    const int count = bound->spec->layer_count;
    for (; i < count && bound->place[i] == place; i++)
        if (bound->layers[i].component_count > 0) return bound->layers[i].components[0].input_norm;
    return i == count ? bound->final_norm : NULL;
}

static const Norm *norm_after(const Bound *bound, int i, int c) {
    const Layer *layer = &bound->layers[i];
    return c + 1 < layer->component_count ? layer->components[c + 1].input_norm
                                          : norm_from(bound, i + 1, bound->place[i]);
}

ComponentCall decoder_call(const Stage *stage, int i, int c, const Rows *rows) {
    const Layer *layer = &stage->bound->layers[i];
    const Component *component = &layer->components[c];
    const int64_t at = (int64_t)rows->first * stage->bound->spec->hidden;
    const bool grouped = is_grouped(layer, c);
    if (grouped && !component->parallel)
        stage->backend->ops->norm(
            stage->backend, rows->rows, stage->residual + at, component->input_norm, stage->normed + at);
    return (ComponentCall){.backend = stage->backend,
        .entry = component->cache_entry < 0 ? NULL : &stage->entries[component->cache_entry],
        .rows = rows->rows,
        .decode_rows = rows->decode_rows,
        .x = grouped ? stage->normed + at : stage->residual + at,
        .norm = grouped ? NULL : component->input_norm,
        .work = stage->work,
        .residual = stage->residual + at,
        .output_norm = component->output_norm,
        .next = norm_after(stage->bound, i, c),
        .scale = component->residual_scale,
        .micro_batch = rows->micro_batch};
}
