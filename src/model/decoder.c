#include "base/digest.h"
#include "model/decoder_internal.h"

static void walk_layer(const Stage *stage, int i, const Rows *rows) {
    const Layer *layer = &stage->bound->layers[i];
    for (int c = 0; c < layer->component_count; c++) {
        const ComponentCall call = decoder_call(stage, i, c, rows);
        component_ops(layer->components[c].kind)->forward(&layer->components[c], &call);
    }
}

/* ---- stages ---- */

static void stage_begin(Stage *stage, int number, const Step *step) {
    const Bound *bound = stage->bound;
    const StreamSchedule *schedule = stage->schedule;
    Backend *backend = bound->backends[number];
    const int64_t rows = step->rows, hidden = bound->spec->hidden;
    stage->backend = backend;
    stage->number = number;
    stage->walk = backend->ops->begin(backend, step);
    stage->tile_rows =
        number == 0 && schedule->tile_rows && schedule->tile_rows < rows ? schedule->tile_rows : step->rows;
    stage->rows = step->rows;
    stage->tokens = step->tokens;
    stage->residual = number ? bound->arrival : backend->ops->scratch(backend, rows * bound_residual_width(bound));
    stage->layer_inputs = bound->layer_inputs.width ? stage->residual + rows * hidden : NULL;
    stage->streams =
        bound_streams(bound) ? stage->residual + rows * (hidden + layer_inputs_stride(&bound->layer_inputs)) : NULL;
    const int64_t tile = stage->tile_rows * bound->width, recurrent = rows * bound->recurrent_width;
    stage->work = backend->ops->scratch(backend, tile > recurrent ? tile : recurrent);
    stage->normed = backend->ops->scratch(backend, bound->group_norms * rows * hidden);
    stage->chosen =
        bound->chosen_width ? (int32_t *)(void *)backend->ops->scratch(backend, rows * bound->chosen_width) : NULL;
    const HyperConnections *hyper = &bound->hyper;
    stage->mix_logits = hyper->streams
        ? backend->ops->scratch(backend, rows * hyper_logits(hyper->streams, hyper->iterations, hyper->magnitude))
        : NULL;
    stage->kept = bound->keeps ? backend->ops->scratch(backend, rows * hidden) : NULL;
    stage->prefetch_work = schedule->can_prefetch ? backend->ops->scratch(backend, bound->width) : NULL;
}

/* Moves the residual to the next backend before that one's step begins, into memory that stays: so it may repeat an
 * earlier walk without computing what came before. */
static void stage_follow(Stage *stage, const Step *step, uint64_t *ticket) {
    const Bound *bound = stage->bound;
    const size_t bytes = (size_t)step->rows * (size_t)bound_residual_width(bound) * sizeof(float);
    *ticket = stage->backend->ops->submit(stage->backend);
    backend_move(
        stage->backend, stage->residual, bound->backends[stage->number + 1], bound->arrival, bytes, bound->staging);
    stage_begin(stage, stage->number + 1, step);
}

/* ---- the step ---- */

/* The input of a multi-token prediction head or an assistant. */
static void combine_states(const Stage *stage, const Step *step) {
    const Bound *bound = stage->bound;
    const StateInput *input = &bound->input;
    const BackendOps *ops = stage->backend->ops;
    const int64_t hidden = bound->spec->hidden, width = input->token.cols;
    float *product = ops->scratch(stage->backend, step->rows * hidden);
    float *embedded = width > hidden ? ops->scratch(stage->backend, step->rows * width) : stage->normed;
    if (!stage->walk) return;
    Embed embed = {.rows = step->rows,
        .tokens = step->tokens,
        .table = &bound->embedding,
        .scale = bound->spec->embedding_scale,
        .out = embedded};
    Matmul project = {.rows = step->rows,
        .decode_rows = decode_rows_for_matmul(step),
        .x = embedded,
        .norm = input->token_norm,
        .count = 1,
        .weight = {&input->token},
        .out = {stage->residual}};
    ops->embed(stage->backend, &embed);
    ops->matmul(stage->backend, &project);
    embed.tokens = bound->given_tokens;
    embed.given_count = step->embedding_count;
    embed.given = step->embeddings;
    project.norm = input->state_norm;
    project.weight[0] = &input->state;
    project.out[0] = product;
    ops->embed(stage->backend, &embed);
    ops->matmul(stage->backend, &project);
    ops->add(stage->backend, step->rows, hidden, stage->residual, product, 1, NULL);
}

static void embed(const Stage *stage, const Step *step) {
    const Embed op = {.rows = step->rows,
        .tokens = step->tokens,
        .table = &stage->bound->embedding,
        .scale = stage->bound->spec->embedding_scale,
        .given_count = step->embedding_count,
        .given = step->embeddings,
        .out = stage->residual};
    stage->backend->ops->embed(stage->backend, &op);
}

/* Adds what the step gives for the rows behind layer i. */
static void add_deepstack(const Stage *stage, int i, const Step *step) {
    const int64_t hidden = stage->bound->spec->hidden;
    for (int r = 0; r < step->embedding_count; r++) {
        const EmbeddingRange *range = &step->embeddings[r];
        if (i >= range->deepstack_layers) continue;
        CHECK(stage->number == 0);
        stage->backend->ops->add(stage->backend, range->rows, hidden, stage->residual + range->row * hidden,
            range->deepstack + i * range->deepstack_stride, 1, NULL);
    }
}

static void add_positions(const Stage *stage, const Step *step) {
    const Bound *bound = stage->bound;
    float *rows = stage->normed;
    /* Sequences keep to the table; a step that is planned or measured may have more rows than it. */
    const Embed op = {.rows = step->rows,
        .tokens = step->positions,
        .table = &bound->position_embedding,
        .scale = 1,
        .placeholder = true,
        .out = rows};
    stage->backend->ops->embed(stage->backend, &op);
    stage->backend->ops->add(stage->backend, step->rows, bound->spec->hidden, stage->residual, rows, 1, NULL);
}

static void compute_layer_inputs(const Stage *stage, const Step *step) {
    const LayerInputs *inputs = &stage->bound->layer_inputs;
    const BackendOps *ops = stage->backend->ops;
    const int64_t width = layer_inputs_stride(inputs);
    if (!inputs->embedding.rows) {
        if (stage->walk)
            ops->activate(stage->backend, step->rows * width, stage->residual, (Activation){.kind = ACT_NONE},
                stage->layer_inputs);
        return;
    }
    float *projected = ops->scratch(stage->backend, step->rows * width);
    if (!stage->walk) return;
    const Embed embed = {.rows = step->rows,
        .tokens = step->tokens,
        .table = &inputs->embedding,
        .scale = inputs->scale * inputs->embedding_scale,
        .placeholder = true,
        .out = stage->layer_inputs};
    const Matmul project = {.rows = step->rows,
        .decode_rows = decode_rows_for_matmul(step),
        .x = stage->residual,
        .count = 1,
        .weight = {&inputs->projection},
        .out = {projected}};
    ops->embed(stage->backend, &embed);
    ops->matmul(stage->backend, &project);
    ops->add(stage->backend, (int)(step->rows * width / inputs->width), inputs->width, stage->layer_inputs, projected,
        inputs->scale, inputs->norm);
}

/* A number of where the pages of all entries lie, and of the model, as an assistant uses those of another one; never 0.
 */
static uint64_t cache_number(const Spec *spec, const KvLayer *entries) {
    uint64_t hash = (uintptr_t)spec;
    for (int i = 0; i < spec->cache_entries; i++) {
        const uint64_t parts[] = {(uintptr_t)entries[i].base, entries[i].page_stride, entries[i].layer_offset};
        hash = checksum64_seeded(hash, parts, sizeof parts);
    }
    return hash | 1;
}

static bool has_adapters(const Step *step) {
    for (int i = 0; i < step->chunk_count; i++)
        if (step->chunks[i].adapter > 0) return true;
    return false;
}

/* A backend whose arithmetic is the same for all rows is told of no decode rows. */
static int decode_rows_on(const Backend *backend, const Step *step) {
    return backend->decode_rows_max ? step->decode_rows : 0;
}

float *decoder_forward(
    const Bound *bound, const StreamSchedule *schedule, const KvLayer *entries, const Step *given, uint64_t *tickets) {
    Step step = *given;
    Stage stage = {.bound = bound, .schedule = schedule, .entries = entries};
    const bool combines = bound->input.state.rows > 0;
    step.cache = cache_number(bound->spec, entries);
    step.decode_rows = decode_rows_on(bound->backends[0], given);
    if (bound->spec->adapter_count > 0 && has_adapters(given)) stage.adapted = given;
    stage_begin(&stage, 0, &step);
    if (combines)
        combine_states(&stage, &step);
    else if (stage.walk)
        embed(&stage, &step);
    if (stage.walk && bound->position_embedding.rows) add_positions(&stage, &step);
    const Norm *norm = bound->embedding_norm;
    if (stage.walk && norm) stage.backend->ops->norm(stage.backend, step.rows, stage.residual, norm, stage.residual);
    if (stage.layer_inputs) compute_layer_inputs(&stage, &step);
    if (stage.walk && stage.streams) streams_expand(&stage, &step);
    const bool walked = stage.walk && stream_two_batches(&stage, &step);
    for (int i = 0; i < bound->spec->layer_count && !walked; i++) {
        if (bound->place[i] != stage.number) {
            step.decode_rows = decode_rows_on(bound->backends[stage.number + 1], given);
            stage_follow(&stage, &step, &tickets[stage.number]);
        }
        if (!stage.walk) continue;
        if (stage.number == 0 && schedule->tile_rows)
            stream_layer(&stage, i, &step);
        else
            walk_layer(&stage, i, &(Rows){.rows = step.rows, .decode_rows = decode_rows_for_matmul(&step)});
        if (!combines) add_deepstack(&stage, i, &step);
    }
    float *results = decoder_outputs(&stage, &step);
    tickets[stage.number] = stage.backend->ops->submit(stage.backend);
    return results;
}
