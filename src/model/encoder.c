#include "model/encoder.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/math.h"
#include "cache/kv_cache.h"
#include "model/conv_encoder.h"
#include "model/decoder_internal.h"
#include "model/model_internal.h"
#include "model/positions.h"
#include "model/slice_walk.h"
#include "model/step_builder.h"

enum {
    PATCH_TILE = SLICE_ROWS_MAX, /* patches whose values are in memory at once */
    WINDOW_PAGES_MAX = 8,        /* pages of a window */
};

struct Encoder {
    const VisionSpec *spec;
    ConvEncoder *conv; /* NULL: the tower has no convolutions */
    Backend *backend;
    bool sliced;  /* it computes rows of components; otherwise whole layers */
    int rows_max; /* rows of a step: SLICE_ROWS_MAX or all patches */
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

    /* The image that was begun. */
    const Image *image, *second; /* borrowed; second NULL: none */
    ImageLayout layout;
    BidirectionalSpan span;
    const Step *step;        /* all of its patches as one sequence */
    const Step *window_step; /* each window as a sequence; NULL: no layer has windows */
    StepRows slice;          /* memory of a slice's step */
    int embedded;            /* patches */
    SlicePlace place;        /* the next rows of a layer */
    int merger, merged;      /* the merger whose turn it is, and rows that it has made; merger −1: a layer's turn */
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

/* Begins a step for operations that read neither positions nor the cache. */
static void begin_rows(Encoder *e, int rows) {
    const Step own = e->sliced ? step_rows(e->step, 0, min_int(rows, e->step->rows), &e->slice) : *e->step;
    e->backend->ops->begin(e->backend, &own);
}

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

/* Some of the groups whose patches are merged: x has their rows, `each` blocks of `count` rows that are `stride` floats
 * apart, or one group's rows behind the other's. */
typedef struct Groups {
    int first, count;
    float *x;
    int64_t stride;
} Groups;

static Groups groups_at(const Encoder *e, int first, int count) {
    const int64_t hidden = e->spec->tower.hidden, each = e->layout.patches / e->layout.tokens;
    const bool spread = e->spec->rule.order == PATCHES_SPREAD;
    return (Groups){.first = first,
        .count = count,
        .x = e->residual + (spread ? first : first * each) * hidden,
        .stride = (spread ? e->layout.tokens : count) * hidden};
}

/* Moves on to their normed rows, which lie close together. */
static void norm_groups(const Encoder *e, const Norm *norm, Groups *groups) {
    const BackendOps *ops = e->backend->ops;
    const int each = e->layout.patches / e->layout.tokens;
    const int64_t block = groups->count * (int64_t)e->spec->tower.hidden;
    float *normed = ops->scratch(e->backend, each * block);
    for (int i = 0; i < each; i++)
        ops->norm(e->backend, groups->count, groups->x + i * groups->stride, norm, normed + i * block);
    groups->x = normed;
    groups->stride = block;
}

/* The mean of each group's rows, in the place of the first block. */
static void average_groups(const Encoder *e, const Merger *merger, const Groups *groups) {
    const BackendOps *ops = e->backend->ops;
    const int64_t hidden = e->spec->tower.hidden;
    const int each = e->layout.patches / e->layout.tokens;
    for (int i = 1; i < each; i++)
        ops->add(e->backend, groups->count, hidden, groups->x, groups->x + i * groups->stride, 1, NULL);
    ops->logits(e->backend, groups->count * hidden, groups->x, merger->average / (float)each, 0);
}

/* (rows − shift) · factors. */
static void standardise(const Encoder *e, const Merger *merger, const Groups *groups) {
    const BackendOps *ops = e->backend->ops;
    const int64_t hidden = e->spec->tower.hidden;
    float *shifts = ops->scratch(e->backend, groups->count * hidden);
    const Multiply product = {.rows = groups->count,
        .width = hidden,
        .x = groups->x,
        .activation = {.kind = ACT_NONE},
        .y = merger->factors.data,
        .out = groups->x};
    ops->gather(e->backend, groups->count, e->zeros, merger->shift.data, hidden, shifts);
    ops->add(e->backend, groups->count, hidden, groups->x, shifts, -1, NULL);
    ops->multiply(e->backend, &product);
}

static void compute_stage(const Encoder *e, const MergerStage *stage, int rows, const float *x, float *out) {
    const BackendOps *ops = e->backend->ops;
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

/* The most groups that are merged at once. */
static int groups_max(const Encoder *e) {
    return max_int(e->rows_max / (e->spec->rule.merge * e->spec->rule.merge), 1);
}

/* Makes the rows of `count` groups. */
static void merge(Encoder *e, int number, int first, int count) {
    const Merger *merger = &e->mergers[number];
    const BackendOps *ops = e->backend->ops;
    begin_rows(e, count);
    Groups groups = groups_at(e, first, count);
    if (merger->norm) norm_groups(e, merger->norm, &groups);
    if (merger->average != 0) average_groups(e, merger, &groups);
    if (merger->shift.rows) standardise(e, merger, &groups);
    const float *x = groups.x;
    for (int i = 0; i < merger->stage_count; i++) {
        const MergerStage *stage = &merger->stages[i];
        float *out = i + 1 < merger->stage_count
            ? ops->scratch(e->backend, count * stage->weight.rows)
            : e->rows + (number * (int64_t)e->tokens_max + first) * row_width(e->spec);
        compute_stage(e, stage, count, x, out);
        x = out;
    }
}

/* Adds the embedded patches of a tile to their positions; then their norm. weight: patch or pair. */
static void embed_tile(Encoder *e, const Weight *weight, int first, int count) {
    begin_rows(e, count);
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

/* Embeds the next patches; returns their number. */
static int embed_patches(Encoder *e, int most) {
    const BackendOps *ops = e->backend->ops;
    const Weight *weight = e->second ? &e->pair : &e->patch;
    const size_t values = (size_t)weight->cols, hidden = (size_t)e->spec->tower.hidden;
    const ImageRule *rule = &e->spec->rule;
    const int first = e->embedded, count = min_int(most, e->layout.patches - first);
    image_patch_values(rule, &e->layout, e->image, first, count, values, e->values);
    if (e->second) image_patch_values(rule, &e->layout, e->second, first, count, values, e->values + e->patch.cols);
    for (int i = 0; i < count; i++) {
        int row, column;
        image_patch_place(rule, &e->layout, first + i, &row, &column);
        position_read(
            &e->spec->positions, &e->layout, row, column, e->spec->tower.hidden, e->places + (size_t)i * hidden);
    }
    ops->upload(e->backend, e->pixels, e->values, (size_t)count * values * sizeof(float));
    ops->upload(e->backend, e->residual + (size_t)first * hidden, e->places, (size_t)count * hidden * sizeof(float));
    embed_tile(e, weight, first, count);
    e->embedded += count;
    return count;
}

bool encoder_begin(Encoder *e, const Image *image, const Image *second, const ImageLayout *layout, Error *error) {
    CHECK(image->width == layout->width && image->height == layout->height);
    CHECK(!second || (e->pair.rows && second->width == layout->width && second->height == layout->height));
    CHECK(layout->patches <= e->patches_max && layout->tokens <= e->tokens_max);
    e->image = image;
    e->second = second;
    e->layout = *layout;
    e->embedded = e->merged = 0;
    e->place = (SlicePlace){0};
    if (e->conv) conv_encoder_begin(e->conv, image);
    e->merger = e->spec->tower.layer_count > 0 ? -1 : 0; /* without layers patches are merged as they are embedded */
    kv_sequence_close(e->kv, &e->sequence);
    const int reserved = e->windows_max ? e->plan.context : layout->patches;
    if (e->kv &&
        (!kv_sequence_open(e->kv, NULL, &e->sequence, error) || !kv_reserve(e->kv, &e->sequence, reserved, error)))
        return false;
    return make_step(e, error) && (!e->windows_max || make_window_step(e, error));
}

/* Whether merger `number` takes the results of the layers before layer `end`. */
static bool merges_before(const VisionSpec *spec, int number, int end) {
    return end == (number ? spec->deepstack[number - 1].layer + 1 : spec->tower.layer_count);
}

/* The first merger from `number` on that takes the results of the layers before layer `end`; −1: none does. */
static int merger_before(const Encoder *e, int number, int end) {
    for (int i = number; i <= e->spec->deepstack_count; i++)
        if (merges_before(e->spec, i, end)) return i;
    return -1;
}

static SliceWalk slice_walk_of(Encoder *e) {
    return (SliceWalk){.bound = &e->bound,
        .entries = e->kv ? kv_entries(e->kv) : e->plan.entries,
        .backend = e->backend,
        .residual = e->residual,
        .memory = &e->slice};
}

EncoderWork encoder_next(const Encoder *e) {
    if (e->embedded < e->layout.patches) return e->conv ? ENCODE_LAYERS : ENCODE_PATCHES;
    if (e->merger >= 0) return ENCODE_TOKENS;
    if (!e->sliced) return ENCODE_LAYERS;
    const SliceWalk walk = {.bound = &e->bound};
    switch (slice_kind(&walk, &e->place)) {
    case SLICE_KEYS: return ENCODE_KEYS;
    case SLICE_QUERIES: return is_windowed(e, e->place.layer) ? ENCODE_WINDOWS : ENCODE_ATTENTION;
    default: return ENCODE_ROWS;
    }
}

/* Computes whole layers, up to one behind which rows are merged, and as long as they attend alike. */
static void compute_layers(Encoder *e, int layers) {
    const int from = e->place.layer;
    int to = from;
    do to++;
    while (to - from < layers && is_windowed(e, to) == is_windowed(e, from) && merger_before(e, 0, to) < 0);
    walk_layers(e, is_windowed(e, from) ? e->window_step : e->step, from, to);
    e->place.layer = to;
}

/* Computes rows of a component, or whole layers; returns their number. */
static int compute_slice(Encoder *e, int rows) {
    const int layer = e->place.layer;
    if (e->sliced) {
        const SliceWalk walk = slice_walk_of(e);
        rows = slice_forward(&walk, is_windowed(e, layer) ? e->window_step : e->step, rows, &e->place);
    } else {
        compute_layers(e, rows / e->layout.patches);
        rows = (e->place.layer - layer) * e->layout.patches;
    }
    if (e->place.layer > layer) e->merger = merger_before(e, 0, e->place.layer);
    return rows;
}

static int merge_slice(Encoder *e, int rows) {
    const int count = min_int(min_int(rows, groups_max(e)), e->layout.tokens - e->merged);
    merge(e, e->merger, e->merged, count);
    e->merged += count;
    if (e->merged == e->layout.tokens) {
        e->merger = merger_before(e, e->merger + 1, e->place.layer);
        e->merged = 0;
    }
    return count;
}

/* Computes whole layers of convolutions; behind the last one all patches are embedded. rows: as those of
 * encoder_continue(). */
static bool convolve(Encoder *e, int *rows, Error *error) {
    const int layers = max_int(*rows / e->layout.patches, 1);
    bool done;
    if (!conv_encoder_continue(e->conv, layers, &done, error)) return false;
    *rows = layers * e->layout.patches;
    if (!done) return true;
    const size_t floats = (size_t)e->layout.patches * (size_t)e->spec->tower.hidden;
    e->backend->ops->upload(e->backend, e->residual, conv_encoder_rows(e->conv), floats * sizeof(float));
    e->embedded = e->layout.patches;
    return true;
}

bool encoder_continue(Encoder *e, int *rows, bool *done, Error *error) {
    const int most = max_int(*rows, 1);
    *done = false;
    if (e->conv && e->embedded < e->layout.patches) return convolve(e, rows, error);
    if (e->embedded < e->layout.patches)
        *rows = embed_patches(e, min_int(most, PATCH_TILE));
    else if (e->merger >= 0)
        *rows = merge_slice(e, most);
    else
        *rows = compute_slice(e, most);
    *done = e->embedded == e->layout.patches && e->merger < 0 && e->place.layer == e->spec->tower.layer_count;
    return e->backend->ops->wait(e->backend, e->backend->ops->submit(e->backend), error);
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
        (e->patch.rows && !bound_weight(&e->bound, &e->patch, error)) ||
        (e->pair.rows && !bound_weight(&e->bound, &e->pair, error)))
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
    const size_t columns = (size_t)max_int((int)(e->pair.rows ? e->pair.cols : e->patch.cols), 1);
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
    conv_encoder_close(e->conv);
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
    Encoder *planned = calloc(1, sizeof *planned);
    if (!planned) return fail(error, ERROR_MEMORY, "no memory for an encoder");
    planned->spec = e->spec;
    planned->patches_max = e->patches_max;
    planned->tokens_max = e->tokens_max;
    planned->rows_max = e->rows_max;
    planned->sliced = e->sliced;
    planned->backend = plan_open(e->rows_max, error);
    bool ok = planned->backend && bind_parts(planned, error) && alloc_parts(planned, error);
    if (ok) {
        const int merge2 = e->spec->rule.merge * e->spec->rule.merge;
        planned->layout = (ImageLayout){.rows = e->spec->rule.merge,
            .columns = e->patches_max / e->spec->rule.merge,
            .grid_rows = 1,
            .grid_columns = e->patches_max / merge2,
            .patches = e->patches_max,
            .tokens = e->patches_max / merge2};
        ok = make_step(planned, error);
    }
    if (ok) {
        const Step rows = e->sliced ? step_rows(planned->step, 0, e->rows_max, &planned->slice) : *planned->step;
        if (number < 0)
            walk_layers(planned, &rows, 0, e->spec->tower.layer_count);
        else
            merge(planned, number, 0, min_int(groups_max(e), planned->layout.tokens));
        if (!e->spec->conv)
            embed_tile(
                planned, planned->pair.rows ? &planned->pair : &planned->patch, 0, min_int(e->patches_max, PATCH_TILE));
        ok = plan_result(planned->backend, &bytes, error);
    }
    *scratch_bytes = bytes > *scratch_bytes ? bytes : *scratch_bytes;
    *kv_bytes = ok && e->spec->tower.layer_count ? kv_bytes_for(&planned->plan, NULL, e->patches_max) : 0;
    encoder_close(planned);
    return ok;
}

static bool plan_steps(Encoder *e, size_t *scratch_bytes, size_t *kv_bytes, Error *error) {
    *scratch_bytes = *kv_bytes = 0;
    for (int i = -1; i <= e->spec->deepstack_count; i++)
        if (!plan_step(e, i, scratch_bytes, kv_bytes, error)) return false;
    return true;
}

static void set_sizes(Encoder *e, const VisionSpec *spec, int tokens_max, bool device) {
    e->spec = spec;
    e->tokens_max = encoder_tokens_max(spec, tokens_max);
    e->patches_max = e->tokens_max * spec->rule.merge * spec->rule.merge;
    e->sliced = !device;
    e->rows_max = device ? e->patches_max : min_int(e->patches_max, SLICE_ROWS_MAX);
    if (spec->rule.window > 0) e->windows_max = windows_of(&spec->rule, e->tokens_max);
}

int encoder_tokens_max(const VisionSpec *spec, int tokens_max) {
    const int each = spec->rule.merge * spec->rule.merge;
    const int64_t image = image_patches_max(&spec->rule);
    const int64_t frame = spec->video.rule.together ? image_patches_max(&spec->video.rule.frame) : 0;
    return (int)min_i64((frame > image ? frame : image) / each, tokens_max);
}

static Encoder *encoder_new(const VisionSpec *spec, int tokens_max, bool device, Error *error) {
    Encoder *e = calloc(1, sizeof *e);
    if (e)
        set_sizes(e, spec, tokens_max, device);
    else
        fail(error, ERROR_MEMORY, "no memory for an encoder");
    return e;
}

bool encoder_bytes(const VisionSpec *spec, int tokens_max, bool device, uint64_t *bytes, Error *error) {
    Encoder *e = encoder_new(spec, tokens_max, device, error);
    size_t scratch, kv;
    const bool ok = e && plan_steps(e, &scratch, &kv, error);
    if (ok) {
        const uint64_t columns = (uint64_t)(spec->pair.rows ? spec->pair.cols : spec->patch.cols);
        const uint64_t hidden = (uint64_t)spec->tower.hidden, width = (uint64_t)row_width(spec);
        const uint64_t tile = PATCH_TILE * (2 * columns + hidden);
        const uint64_t rows = (uint64_t)e->tokens_max * width * (uint64_t)(3 + spec->deepstack_count);
        const uint64_t patches = (uint64_t)e->patches_max * (hidden + POSITION_DIMS_MAX);
        *bytes = scratch + kv + (tile + rows + patches) * sizeof(float) + (spec->conv ? conv_encoder_bytes(spec) : 0);
    }
    encoder_close(e);
    return ok;
}

static bool open_parts(Encoder *e, const BackendOptions *options, Error *error) {
    BackendOptions own = *options;
    own.rows_max = e->rows_max;
    size_t kv_bytes;
    own.precise = true; /* patches differ by little, and a tower's results are read by every later token */
    if (!plan_steps(e, &own.scratch_bytes, &kv_bytes, error)) return false;
    if (e->spec->conv && !(e->conv = conv_encoder_open(e->spec, options, error))) return false;
    e->backend = backend_open(&own, error);
    CHECK(!e->backend || !e->sliced || e->backend->ops->set_rows);
    return e->backend && bind_parts(e, error) && alloc_parts(e, error) &&
        (e->spec->tower.layer_count == 0 ||
            (e->kv = kv_open(&e->plan, kv_bytes_for(&e->plan, NULL, e->plan.context), error)) != NULL);
}

Encoder *encoder_open(const Model *model, const BackendOptions *options, int tokens_max, Error *error) {
    const bool device = backend_on_device(options->device);
    Encoder *e = encoder_new(model_spec(model)->vision, tokens_max, device, error);
    if (!e || open_parts(e, options, error)) return e;
    encoder_close(e);
    return NULL;
}

void encoder_close(Encoder *e) {
    if (!e) return;
    close_parts(e);
    free(e);
}
