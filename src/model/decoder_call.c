/* The arguments of components. */
#include "model/decoder_internal.h"

/* The number of the norm that component c reads through, among those of its group. */
static int group_norm(const Layer *layer, int c) {
    int number = 0;
    for (; c > 0 && layer->components[c].parallel; c--) number += layer->components[c].input_norm != NULL;
    return number;
}

/* Normalises the inputs of the group that begins with component c. */
static void normalise_group(const Stage *stage, const Layer *layer, int c, const Rows *rows) {
    const int64_t hidden = stage->bound->spec->hidden, at = (int64_t)rows->first * hidden;
    const int64_t each = (int64_t)stage->rows * hidden;
    const float *residual = layer->components[c].reads ? stage->kept : stage->residual;
    for (int i = c; i < layer->component_count && (i == c || layer->components[i].parallel); i++)
        if (layer->components[i].input_norm)
            stage->backend->ops->norm(stage->backend, rows->rows, residual + at, layer->components[i].input_norm,
                stage->normed + group_norm(layer, i) * each + at);
}

/* Keeps the residual before component c, if a later component of the layer reads it. */
static void keep_residual(const Stage *stage, const Layer *layer, int c, const Rows *rows) {
    const int64_t hidden = stage->bound->spec->hidden, at = (int64_t)rows->first * hidden;
    for (int i = c + 1; i < layer->component_count; i++)
        if (layer->components[i].reads == c && c > 0)
            stage->backend->ops->activate(stage->backend, rows->rows * hidden, stage->residual + at,
                (Activation){.kind = ACT_NONE}, stage->kept + at);
}

ComponentCall decoder_call(const Stage *stage, int i, int c, const Rows *rows) {
    const Layer *layer = &stage->bound->layers[i];
    const Component *component = &layer->components[c];
    const Spec *spec = stage->bound->spec;
    const HyperConnections *hyper = &stage->bound->hyper;
    const int64_t at = (int64_t)rows->first * spec->hidden, inputs = layer_inputs_stride(&spec->layer_inputs);
    const int64_t group_at = group_norm(layer, c) * (int64_t)stage->rows * spec->hidden + at;
    const bool grouped = is_grouped(layer, c);
    const float *residual = component->reads ? stage->kept : stage->residual;
    if (stage->kept) keep_residual(stage, layer, c, rows);
    if (grouped && !component->parallel) normalise_group(stage, layer, c, rows);
    return (ComponentCall){.backend = stage->backend,
        .entry = component->cache_entry < 0 ? NULL : &stage->entries[component->cache_entry],
        .state = component->state_entry < 0 ? NULL : &stage->entries[component->state_entry],
        .chosen = stage->chosen ? stage->chosen + (int64_t)rows->first * stage->bound->chosen_width : NULL,
        .rows = rows->rows,
        .decode_rows = rows->decode_rows,
        .x = grouped ? stage->normed + group_at : residual + at,
        .norm = grouped ? NULL : component->input_norm,
        .normed = grouped ? stage->normed + group_at : NULL,
        .work = stage->work,
        .residual = stage->residual + at,
        .aside = stage->kept ? stage->kept + at : NULL,
        .hidden = spec->hidden,
        .layer_inputs = stage->layer_inputs ? stage->layer_inputs + rows->first * inputs : NULL,
        .layer_inputs_stride = inputs,
        .altup = &stage->bound->altup,
        .hyper = hyper,
        .streams = stage->streams ? stage->streams + (hyper->streams ? hyper->streams : 1) * at : NULL,
        .mix_logits = stage->mix_logits
            ? stage->mix_logits + rows->first * hyper_logits(hyper->streams, hyper->iterations, hyper->magnitude)
            : NULL,
        .stream_stride = (int64_t)stage->rows * spec->hidden,
        .output_norm = component->output_norm,
        .scale = component->residual_scale,
        .micro_batch = rows->micro_batch,
        .adapted = stage->adapted,
        .first = rows->first,
        .tokens = stage->tokens + rows->first,
        .low_rank = stage->work + rows->rows * component_ops(component->kind)->width(component)};
}
