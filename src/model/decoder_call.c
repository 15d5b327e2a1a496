/* The arguments of components. */
#include "model/decoder_internal.h"

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
        .scale = component->residual_scale,
        .micro_batch = rows->micro_batch};
}
