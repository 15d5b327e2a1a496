#include "model/encoder.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/math.h"
#include "cache/kv_cache.h"
#include "model/decoder_internal.h"
#include "model/model_internal.h"
#include "model/positions.h"
#include "model/step_builder.h"

enum {
    PATCH_TILE = 512,     /* patches whose values are in memory at once */
    WINDOW_PAGES_MAX = 8, /* pages of a window */
};

struct Encoder {
    const VisionSpec *spec;
    Backend *backend;
    Bound bound;
    Weight patch, pair;                                   /* bound; pair rows 0: there is none */
    const Norm *pixel_norm, *embedding_norm, *patch_norm; /* bound; NULL: none */
    Merger mergers[1 + DEEPSTACK_MAX];                    /* bound; the first gives the rows of the first layer */
    int patches_max, tokens_max;
    KvPlan plan;
    KvCache *kv; /* NULL on the plan backend, and without layers */
    KvSequence sequence;
    StepBuilder builder, window_builder;
    int windows_max;            /* 0: no layer has windows */
    BidirectionalSpan *windows; /* [windows_max] */
    const int32_t **tables;     /* [windows_max] page tables of the windows, parts of the sequence's */
    int32_t *positions;         /* [POSITION_DIMS_MAX][patches] */
    float *values, *places;     /* host memory: patches of a tile, and their learned positions */
    float *pixels, *residual;   /* backend memory: [PATCH_TILE, columns of pair or patch], [patches_max, hidden] */
    float *rows;                /* backend memory: [1 + deepstack_count][tokens_max, width] */
    float *staging;             /* [2][tokens_max, width] host memory */
    int32_t *zeros;             /* [tokens_max] */

    ImageLayout layout; /* layout of the image that was begun */
    BidirectionalSpan span;
    const Step *step;        /* all of its patches as one sequence */
    const Step *window_step; /* each window as a sequence; NULL: no layer has windows */
    int layer;               /* the next layer */
};

/* Elements of a row for the text model. */
static int64_t row_width(const VisionSpec *spec) {
    const Merger *merger = &spec->merger;
    return merger->stages[merger->stage_count - 1].weight.rows;
}

int64_t encoder_row_floats(const VisionSpec *spec, const ImageLayout *layout) {
    return (1 + spec->deepstack_count) * layout->tokens * row_width(spec);
}

/* ---- computing: the plan backend counts the scratch of the same calls ---- */

static void walk_layers(const Encoder *e, const Step *step, int from, int to) {
    const BackendOps *ops = e->backend->ops;
    ops->begin(e->backend, step);
    const Stage stage = {.bound = &e->bound,
        .entries = e->kv ? kv_entries(e->kv) : e->plan.entries,
        .backend = e->backend,
        .rows = step->rows,
        .residual = e->residual,
        .work = ops->scratch(e->backend, step->rows * e->bound.width)};
    const Rows rows = {.rows = step->rows};
    for (int i = from; i < to; i++)
        for (int c = 0; c < e->bound.layers[i].component_count; c++) {
            const Component *component = &e->bound.layers[i].components[c];
            const ComponentCall call = decoder_call(&stage, i, c, &rows);
            component_ops(component->kind)->forward(component, &call);
        }
}

/* The mean of each group's rows, in their place: the first rows of all groups lie together, then the second ones … */
static void average_rows(const Encoder *e, const Merger *merger, float *rows) {
    const BackendOps *ops = e->backend->ops;
    const int64_t hidden = e->spec->tower.hidden, block = e->layout.tokens * hidden;
    const int each = e->layout.patches / e->layout.tokens;
    for (int i = 1; i < each; i++) ops->add(e->backend, e->layout.tokens, hidden, rows, rows + i * block, 1, NULL);
    ops->logits(e->backend, block, rows, merger->average / (float)each, 0);
}

/* (rows − shift) · factors. */
static void standardise(const Encoder *e, const Merger *merger, float *rows) {
    const BackendOps *ops = e->backend->ops;
    const int64_t hidden = e->spec->tower.hidden;
    float *shifts = ops->scratch(e->backend, e->layout.tokens * hidden);
    const Multiply product = {.rows = e->layout.tokens,
        .width = hidden,
        .x = rows,
        .activation = {.kind = ACT_NONE},
        .y = merger->factors.data,
        .out = rows};
    ops->gather(e->backend, e->layout.tokens, e->zeros, merger->shift.data, hidden, shifts);
    ops->add(e->backend, e->layout.tokens, hidden, rows, shifts, -1, NULL);
    ops->multiply(e->backend, &product);
}

static void compute_stage(const Encoder *e, const MergerStage *stage, const float *x, float *out) {
    const BackendOps *ops = e->backend->ops;
    const int rows = e->layout.tokens;
    if (stage->gate.rows) {
        const Glu glu = {.rows = rows,
            .x = x,
            .norm = stage->norm,
            .gate = &stage->gate,
            .up = &stage->weight,
            .activation = stage->activation,
            .out = out};
        ops->glu(e->backend, &glu);
        return;
    }
    const Matmul product = {
        .rows = rows, .x = x, .norm = stage->norm, .count = 1, .weight = {&stage->weight}, .out = {out}};
    ops->matmul(e->backend, &product);
    if (stage->output_norm) ops->norm(e->backend, rows, out, stage->output_norm, out);
    const Activation activation = stage->activation;
    if (activation.kind != ACT_NONE) ops->activate(e->backend, rows * stage->weight.rows, out, activation, out);
}

static void merge(const Encoder *e, int number) {
    const Merger *merger = &e->mergers[number];
    const BackendOps *ops = e->backend->ops;
    const int64_t hidden = e->spec->tower.hidden;
    ops->begin(e->backend, e->step);
    float *x = e->residual;
    if (merger->norm) {
        x = ops->scratch(e->backend, e->layout.patches * hidden);
        ops->norm(e->backend, e->layout.patches, e->residual, merger->norm, x);
    }
    if (merger->average != 0) average_rows(e, merger, x);
    if (merger->shift.rows) standardise(e, merger, x);
    for (int i = 0; i < merger->stage_count; i++) {
        const MergerStage *stage = &merger->stages[i];
        const int64_t floats = e->layout.tokens * stage->weight.rows;
        float *out = i + 1 < merger->stage_count ? ops->scratch(e->backend, floats)
                                                 : e->rows + number * e->tokens_max * row_width(e->spec);
        compute_stage(e, stage, x, out);
        x = out;
    }
}

/* Adds the embedded patches of a tile to their positions; then their norm. weight: patch or pair. */
static void embed_tile(const Encoder *e, const Weight *weight, int first, int count) {
    e->backend->ops->begin(e->backend, e->step);
    if (e->pixel_norm) e->backend->ops->norm(e->backend, count, e->pixels, e->pixel_norm, e->pixels);
    const MatmulAdd product = {.rows = count,
        .x = e->pixels,
        .weight = weight,
        .norm = e->embedding_norm,
        .scale = 1,
        .residual = e->residual + first * e->spec->tower.hidden};
    e->backend->ops->matmul_add(e->backend, &product);
    if (e->patch_norm) e->backend->ops->norm(e->backend, count, product.residual, e->patch_norm, product.residual);
}

static bool submit(const Encoder *e, Error *error) {
    return e->backend->ops->wait(e->backend, e->backend->ops->submit(e->backend), error);
}

/* ---- windows ---- */

static bool is_windowed(const Encoder *e, int layer) { return e->windows_max > 0 && e->spec->windowed[layer]; }

/* Pages that the patches of a window take. */
static int window_pages(const ImageRule *rule) {
    const int side = rule->window * rule->merge;
    return (side * side + KV_PAGE_TOKENS - 1) / KV_PAGE_TOKENS;
}

/* No image of so many tokens has more windows: beside whole ones, those along two edges. */
static int windows_of(const ImageRule *rule, int tokens) {
    const double edges = (sqrt(IMAGE_RATIO_MAX) + 2) * sqrt(tokens) / rule->window;
    return tokens / (rule->window * rule->window) + (int)edges + 4;
}

/* A sequence of the next window, whose keys lie in pages of its own. */
static void add_window(Encoder *e, int number, int first, int patches) {
    int32_t positions[POSITION_DIMS_MAX * KV_PAGE_TOKENS * WINDOW_PAGES_MAX];
    for (int dim = 0; dim < POSITION_DIMS_MAX; dim++)
        memcpy(positions + dim * patches, e->positions + dim * e->layout.patches + first,
            (size_t)patches * sizeof *positions);
    const float *values = e->residual + first * e->spec->tower.hidden;
    const EmbeddingRange all = {.rows = patches, .values = values, .in_backend = true};
    e->windows[number] = (BidirectionalSpan){0, patches};
    e->tables[number] = e->sequence.tables[0] + number * window_pages(&e->spec->rule);
    step_add_sequence(&e->window_builder,
        &(StepSequence){.rows = patches,
            .tables = &e->tables[number],
            .embedding_count = 1,
            .embeddings = &all,
            .positions = positions,
            .span_count = 1,
            .spans = &e->windows[number]});
}

static bool make_window_step(Encoder *e, Error *error) {
    const ImageRule *rule = &e->spec->rule;
    const ImageLayout *layout = &e->layout;
    const int side = rule->window, each = rule->merge * rule->merge;
    int count = 0, first = 0;
    step_begin(&e->window_builder, false);
    for (int row = 0; row < layout->grid_rows; row += side)
        for (int column = 0; column < layout->grid_columns; column += side) {
            const int height = min_int(side, layout->grid_rows - row);
            const int patches = each * height * min_int(side, layout->grid_columns - column);
            CHECK(count < e->windows_max);
            add_window(e, count++, first, patches);
            first += patches;
        }
    e->window_step = step_end(&e->window_builder, error);
    return e->window_step != NULL;
}

/* ---- an image ---- */

/* A step of all patches: one sequence whose rows see each other. */
static bool make_step(Encoder *e, Error *error) {
    const int patches = e->layout.patches;
    for (int i = 0; i < patches; i++) {
        int row, column;
        image_patch_place(&e->spec->rule, &e->layout, i, &row, &column);
        e->positions[i] = 0;
        e->positions[patches + i] = row;
        e->positions[2 * patches + i] = column;
    }
    e->span = (BidirectionalSpan){0, patches};
    const EmbeddingRange all = {.rows = patches, .values = e->residual, .in_backend = true};
    step_begin(&e->builder, false);
    step_add_sequence(&e->builder,
        &(StepSequence){.rows = patches,
            .kv = e->kv ? &e->sequence : NULL,
            .embedding_count = 1,
            .embeddings = &all,
            .positions = e->positions,
            .span_count = 1,
            .spans = &e->span});
    e->step = step_end(&e->builder, error);
    return e->step != NULL;
}

static bool embed_patches(Encoder *e, const Image *image, const Image *second, Error *error) {
    const BackendOps *ops = e->backend->ops;
    const Weight *weight = second ? &e->pair : &e->patch;
    const size_t values = (size_t)weight->cols, hidden = (size_t)e->spec->tower.hidden;
    const ImageRule *rule = &e->spec->rule;
    bool ok = true;
    for (int first = 0, count; ok && first < e->layout.patches; first += count) {
        count = min_int(e->layout.patches - first, PATCH_TILE);
        image_patch_values(rule, &e->layout, image, first, count, values, e->values);
        if (second) image_patch_values(rule, &e->layout, second, first, count, values, e->values + e->patch.cols);
        for (int i = 0; i < count; i++) {
            int row, column;
            image_patch_place(rule, &e->layout, first + i, &row, &column);
            position_read(
                &e->spec->positions, &e->layout, row, column, e->spec->tower.hidden, e->places + (size_t)i * hidden);
        }
        ops->upload(e->backend, e->pixels, e->values, (size_t)count * values * sizeof(float));
        ops->upload(
            e->backend, e->residual + (size_t)first * hidden, e->places, (size_t)count * hidden * sizeof(float));
        embed_tile(e, weight, first, count);
        ok = submit(e, error);
    }
    return ok;
}

bool encoder_begin(Encoder *e, const Image *image, const Image *second, const ImageLayout *layout, Error *error) {
    CHECK(image->width == layout->width && image->height == layout->height);
    CHECK(!second || (e->pair.rows && second->width == layout->width && second->height == layout->height));
    CHECK(layout->patches <= e->patches_max && layout->tokens <= e->tokens_max);
    e->layout = *layout;
    e->layer = 0;
    kv_sequence_close(e->kv, &e->sequence);
    const int reserved = e->windows_max ? e->plan.context : layout->patches;
    if (e->kv &&
        (!kv_sequence_open(e->kv, NULL, &e->sequence, error) || !kv_reserve(e->kv, &e->sequence, reserved, error)))
        return false;
    return make_step(e, error) && (!e->windows_max || make_window_step(e, error)) &&
        embed_patches(e, image, second, error);
}

/* Whether merger `number` takes the results of the layers before layer `end`. */
static bool merges_before(const VisionSpec *spec, int number, int end) {
    return end == (number ? spec->deepstack[number - 1].layer + 1 : spec->tower.layer_count);
}

bool encoder_continue(Encoder *e, int layers, bool *done, Error *error) {
    const int all = e->spec->tower.layer_count, mergers = 1 + e->spec->deepstack_count;
    const int end = min_int(e->layer + layers, all);
    bool ok = true;
    if (all == 0) { /* patches are merged as they are embedded */
        merge(e, 0);
        ok = submit(e, error);
    }
    while (ok && e->layer < end) {
        int to = end;
        for (int i = 1; i < mergers; i++) {
            const int merged = e->spec->deepstack[i - 1].layer + 1;
            if (merged > e->layer) to = min_int(to, merged);
        }
        for (int i = e->layer; i < to; i++) /* layers that attend alike */
            if (is_windowed(e, i) != is_windowed(e, e->layer)) to = i;
        walk_layers(e, is_windowed(e, e->layer) ? e->window_step : e->step, e->layer, to);
        ok = submit(e, error);
        e->layer = to;
        for (int i = 0; ok && i < mergers; i++) {
            if (!merges_before(e->spec, i, to)) continue;
            merge(e, i);
            ok = submit(e, error);
        }
    }
    *done = ok && e->layer == all;
    return ok;
}

/* The staged rows in the order of the grid. */
static const float *in_grid_order(Encoder *e, int64_t width) {
    if (e->spec->rule.order != PATCHES_WINDOWED) return e->staging;
    float *sorted = e->staging + e->tokens_max * width;
    for (int i = 0; i < e->layout.tokens; i++) {
        int row, column;
        image_group_place(&e->spec->rule, &e->layout, i, &row, &column);
        memcpy(sorted + (row * e->layout.grid_columns + column) * width, e->staging + i * width,
            (size_t)width * sizeof *sorted);
    }
    return sorted;
}

void encoder_take(Encoder *e, Backend *to, float *rows) {
    const int64_t width = row_width(e->spec), block = e->layout.tokens * width;
    for (int i = 0; i <= e->spec->deepstack_count; i++) {
        const float *from = e->rows + i * e->tokens_max * width;
        e->backend->ops->download(e->backend, e->staging, from, (size_t)block * sizeof *from);
        to->ops->upload(to, rows + i * block, in_grid_order(e, width), (size_t)block * sizeof *from);
    }
}

/* ---- opening ---- */

static bool bind_merger(Encoder *e, int number, Error *error) {
    Merger *merger = &e->mergers[number];
    *merger = number ? e->spec->deepstack[number - 1].merger : e->spec->merger;
    bool ok = (!merger->norm || bound_norm(&e->bound, &merger->norm, error)) &&
        (!merger->shift.rows ||
            (bound_weight(&e->bound, &merger->shift, error) && bound_weight(&e->bound, &merger->factors, error)));
    for (int i = 0; ok && i < merger->stage_count; i++) {
        MergerStage *stage = &merger->stages[i];
        ok = bound_activation(e->backend, stage->activation, "the encoder's merger", error) &&
            (!stage->norm || bound_norm(&e->bound, &stage->norm, error)) &&
            (!stage->output_norm || bound_norm(&e->bound, &stage->output_norm, error)) &&
            (!stage->gate.rows || bound_weight(&e->bound, &stage->gate, error)) &&
            bound_weight(&e->bound, &stage->weight, error);
    }
    return ok;
}

static bool bind_parts(Encoder *e, Error *error) {
    e->patch = e->spec->patch;
    e->pair = e->spec->pair;
    e->pixel_norm = e->spec->pixel_norm;
    e->embedding_norm = e->spec->embedding_norm;
    e->patch_norm = e->spec->patch_norm;
    const Norm **norms[] = {&e->pixel_norm, &e->embedding_norm, &e->patch_norm};
    if (!bound_open(&e->bound, &e->spec->tower, &e->backend, 1, 0, error) ||
        !bound_weight(&e->bound, &e->patch, error) || (e->pair.rows && !bound_weight(&e->bound, &e->pair, error)))
        return false;
    for (size_t i = 0; i < COUNT_OF(norms); i++)
        if (*norms[i] && !bound_norm(&e->bound, norms[i], error)) return false;
    for (int i = 0; i <= e->spec->deepstack_count; i++)
        if (!bind_merger(e, i, error)) return false;
    if (e->spec->tower.layer_count == 0) return true;
    const Component *first = &e->bound.layers[0].components[0]; /* its entry is that of all layers */
    CHECK(first->kind == COMPONENT_ATTENTION && e->spec->tower.cache_entries == 1);
    const CacheSpec entry = component_ops(first->kind)->cache_spec(first);
    const int pages = e->windows_max ? e->windows_max * window_pages(&e->spec->rule) : 0;
    const int context = max_int(pages * KV_PAGE_TOKENS, e->patches_max);
    return kv_plan_make(&e->plan, &entry, &e->backend, 1, context, error);
}

static bool alloc_parts(Encoder *e, Error *error) {
    const BackendOps *ops = e->backend->ops;
    const size_t patches = (size_t)e->patches_max, hidden = (size_t)e->spec->tower.hidden;
    const size_t columns = (size_t)(e->pair.rows ? e->pair.cols : e->patch.cols);
    const size_t values = columns * PATCH_TILE, places = hidden * PATCH_TILE;
    const size_t rows = (size_t)(1 + e->spec->deepstack_count) * (size_t)e->tokens_max * (size_t)row_width(e->spec);
    const StepCapacity capacity = {.rows = e->patches_max, .sequences = 1, .embeddings = 1};
    e->positions = calloc(patches * POSITION_DIMS_MAX, sizeof *e->positions);
    e->values = malloc(values * sizeof *e->values);
    e->places = malloc(places * sizeof *e->places);
    e->staging = malloc(2 * (size_t)e->tokens_max * (size_t)row_width(e->spec) * sizeof *e->staging);
    e->windows = calloc((size_t)e->windows_max + 1, sizeof *e->windows);
    e->tables = calloc((size_t)e->windows_max + 1, sizeof *e->tables);
    e->zeros = calloc((size_t)e->tokens_max, sizeof *e->zeros);
    if (!e->zeros || !e->windows || !e->tables || !e->positions || !e->values || !e->places || !e->staging)
        return fail(error, ERROR_MEMORY, "no memory for images of %zu patches", patches);
    const StepCapacity windows = {.rows = e->patches_max, .sequences = e->windows_max, .embeddings = e->windows_max};
    return step_builder_open(&e->builder, &capacity, error) &&
        (!e->windows_max || step_builder_open(&e->window_builder, &windows, error)) &&
        (e->pixels = ops->alloc(e->backend, values * sizeof(float), MEMORY_STEP, error)) != NULL &&
        (e->residual = ops->alloc(e->backend, patches * hidden * sizeof(float), MEMORY_STEP, error)) != NULL &&
        (e->rows = ops->alloc(e->backend, rows * sizeof(float), MEMORY_STEP, error)) != NULL;
}

static void close_parts(Encoder *e) {
    if (e->kv) kv_sequence_close(e->kv, &e->sequence);
    kv_close(e->kv);
    if (e->backend) {
        e->backend->ops->release(e->backend, e->pixels);
        e->backend->ops->release(e->backend, e->residual);
        e->backend->ops->release(e->backend, e->rows);
    }
    kv_plan_free(&e->plan);
    bound_close(&e->bound);
    step_builder_close(&e->builder);
    step_builder_close(&e->window_builder);
    free(e->windows);
    free(e->tables);
    free(e->positions);
    free(e->values);
    free(e->places);
    free(e->staging);
    free(e->zeros);
    backend_close(e->backend);
}

/* Scratch of one of the steps, the largest of which all fit the same memory. number < 0: a walk. kv_bytes: gets the
 * memory of keys and values of all patches. */
static bool plan_step(Encoder *e, int number, size_t *scratch_bytes, size_t *kv_bytes, Error *error) {
    size_t bytes = 0;
    Encoder planned = {.spec = e->spec, .patches_max = e->patches_max, .tokens_max = e->tokens_max};
    planned.backend = plan_open(e->patches_max, error);
    bool ok = planned.backend && bind_parts(&planned, error) && alloc_parts(&planned, error);
    if (ok) {
        const int merge2 = e->spec->rule.merge * e->spec->rule.merge;
        planned.layout = (ImageLayout){.rows = e->spec->rule.merge,
            .columns = e->patches_max / e->spec->rule.merge,
            .grid_rows = 1,
            .grid_columns = e->patches_max / merge2,
            .patches = e->patches_max,
            .tokens = e->patches_max / merge2};
        ok = make_step(&planned, error);
    }
    if (ok) {
        embed_tile(
            &planned, planned.pair.rows ? &planned.pair : &planned.patch, 0, min_int(e->patches_max, PATCH_TILE));
        if (number < 0)
            walk_layers(&planned, planned.step, 0, e->spec->tower.layer_count);
        else
            merge(&planned, number);
        ok = plan_result(planned.backend, &bytes, error);
    }
    *scratch_bytes = bytes > *scratch_bytes ? bytes : *scratch_bytes;
    *kv_bytes = ok && e->spec->tower.layer_count ? kv_bytes_for(&planned.plan, NULL, e->patches_max) : 0;
    close_parts(&planned);
    return ok;
}

static bool plan_steps(Encoder *e, size_t *scratch_bytes, size_t *kv_bytes, Error *error) {
    *scratch_bytes = *kv_bytes = 0;
    for (int i = -1; i <= e->spec->deepstack_count; i++)
        if (!plan_step(e, i, scratch_bytes, kv_bytes, error)) return false;
    return true;
}

static void set_sizes(Encoder *e, const VisionSpec *spec, int tokens_max) {
    e->spec = spec;
    e->tokens_max = encoder_tokens_max(spec, tokens_max);
    e->patches_max = e->tokens_max * spec->rule.merge * spec->rule.merge;
    if (spec->rule.window > 0) e->windows_max = windows_of(&spec->rule, e->tokens_max);
}

int encoder_tokens_max(const VisionSpec *spec, int tokens_max) {
    const int each = spec->rule.merge * spec->rule.merge;
    const int64_t image = image_patches_max(&spec->rule);
    const int64_t frame = spec->video.rule.together ? image_patches_max(&spec->video.rule.frame) : 0;
    return (int)min_i64((frame > image ? frame : image) / each, tokens_max);
}

bool encoder_bytes(const VisionSpec *spec, int tokens_max, uint64_t *bytes, Error *error) {
    Encoder e = {0};
    size_t scratch, kv;
    set_sizes(&e, spec, tokens_max);
    if (!plan_steps(&e, &scratch, &kv, error)) return false;
    const uint64_t columns = (uint64_t)(spec->pair.rows ? spec->pair.cols : spec->patch.cols);
    const uint64_t hidden = (uint64_t)spec->tower.hidden, width = (uint64_t)row_width(spec);
    const uint64_t tile = PATCH_TILE * (2 * columns + hidden);
    const uint64_t rows = (uint64_t)e.tokens_max * width * (uint64_t)(3 + spec->deepstack_count);
    const uint64_t patches = (uint64_t)e.patches_max * (hidden + POSITION_DIMS_MAX);
    *bytes = scratch + kv + (tile + rows + patches) * sizeof(float);
    return true;
}

static bool open_parts(Encoder *e, const BackendOptions *options, Error *error) {
    BackendOptions own = *options;
    own.rows_max = e->patches_max;
    size_t kv_bytes;
    own.precise = true; /* patches differ by little, and a tower's results are read by every later token */
    if (!plan_steps(e, &own.scratch_bytes, &kv_bytes, error)) return false;
    e->backend = backend_open(&own, error);
    return e->backend && bind_parts(e, error) && alloc_parts(e, error) &&
        (e->spec->tower.layer_count == 0 ||
            (e->kv = kv_open(&e->plan, kv_bytes_for(&e->plan, NULL, e->plan.context), error)) != NULL);
}

Encoder *encoder_open(const Model *model, const BackendOptions *options, int tokens_max, Error *error) {
    const VisionSpec *spec = model_spec(model)->vision;
    Encoder *e = calloc(1, sizeof *e);
    if (!e) {
        fail(error, ERROR_MEMORY, "no memory for an encoder");
        return NULL;
    }
    set_sizes(e, spec, tokens_max);
    if (open_parts(e, options, error)) return e;
    encoder_close(e);
    return NULL;
}

void encoder_close(Encoder *e) {
    if (!e) return;
    close_parts(e);
    free(e);
}
