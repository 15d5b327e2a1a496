#include "model/conv_encoder.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "backend/cpu/pool.h"
#include "base/math.h"

enum { TILE = 512 /* rows of a product */ };

struct ConvEncoder {
    const VisionSpec *spec;
    Backend *backend;
    Pool *pool;        /* shared with the backend */
    Pool *own_pool;    /* the same, where no other is given; NULL: one is */
    ConvLayer *layers; /* [layer_count] bound */
    int bound_count;   /* weights that are bound: first and second of all layers, in turn */
    /* Host memory: planes of [pixels][channels], one with the results so far, the other one for work. */
    float *planes[2];
    float *columns; /* [TILE, widest row of a product] */
    float *x, *y;   /* backend memory of the same size */

    int side; /* pixels of the plane's side */
    int at;   /* the plane with the results */
    int next; /* layer */
};

/* Floats of what an encoder needs. */
typedef struct ConvSizes {
    int64_t planes[2], widest;
} ConvSizes;

static int64_t widest_of(const Weight *weight) { return weight->rows > weight->cols ? weight->rows : weight->cols; }

static int side_behind(const ConvLayer *layer, int side) { return (side + layer->stride - 1) / layer->stride; }

/* Floats of the other plane while a layer of attention works: queries, keys and values, keys by element, the results of
 * all heads, and scores of one row of each head. */
static int64_t attention_floats(const ConvLayer *layer, int64_t pixels) {
    return pixels * (5 * (int64_t)layer->out + layer->out / layer->head);
}

static ConvSizes sizes_of(const VisionSpec *spec) {
    ConvSizes sizes = {{(int64_t)spec->rule.side * spec->rule.side * 3, 0}, 1};
    int side = spec->rule.side, at = 0;
    for (int i = 0; i < spec->conv->layer_count; i++) {
        const ConvLayer *layer = &spec->conv->layers[i];
        const bool moves = layer->kind == CONV_DENSE || layer->kind == CONV_DEPTHWISE;
        side = side_behind(layer, side);
        const int64_t pixels = (int64_t)side * side, floats = pixels * layer->out;
        const int64_t need = layer->kind == CONV_ATTENTION ? attention_floats(layer, pixels) : floats;
        if (need > sizes.planes[1 - at]) sizes.planes[1 - at] = need;
        if (moves) at = 1 - at;
        const int64_t first = widest_of(&layer->first), second = widest_of(&layer->second);
        sizes.widest = first > sizes.widest ? first : sizes.widest;
        sizes.widest = second > sizes.widest ? second : sizes.widest;
        sizes.widest = layer->out > sizes.widest ? layer->out : sizes.widest;
    }
    return sizes;
}

uint64_t conv_encoder_bytes(const VisionSpec *spec) {
    const ConvSizes sizes = sizes_of(spec);
    return (uint64_t)(sizes.planes[0] + sizes.planes[1] + 3 * TILE * sizes.widest) * sizeof(float);
}

/* ---- on the backend ---- */

/* out = second · activation(first · x) for rows that lie in columns; second rows 0: activation(first · x). */
static bool multiply_tile(const ConvEncoder *e, int rows, const Weight *first, ActivationKind activation,
    const Weight *second, float *out, Error *error) {
    static const int32_t nothing[TILE]; /* products read neither tokens nor positions */
    const BackendOps *ops = e->backend->ops;
    const Step step = {.rows = rows, .tokens = nothing, .positions = nothing, .position_dims = 1};
    const Activation function = {.kind = activation};
    ops->upload(e->backend, e->x, e->columns, (size_t)(rows * first->cols) * sizeof(float));
    ops->begin(e->backend, &step);
    ops->matmul(e->backend, &(Matmul){.rows = rows, .x = e->x, .count = 1, .weight = {first}, .out = {e->y}});
    if (activation != ACT_NONE) ops->activate(e->backend, rows * first->rows, e->y, function, e->y);
    if (second->rows)
        ops->matmul(e->backend, &(Matmul){.rows = rows, .x = e->y, .count = 1, .weight = {second}, .out = {e->x}});
    if (!ops->wait(e->backend, ops->submit(e->backend), error)) return false;
    const int64_t width = second->rows ? second->rows : first->rows;
    ops->download(e->backend, out, second->rows ? e->x : e->y, (size_t)(rows * width) * sizeof(float));
    return true;
}

static bool gelu(const ConvEncoder *e, int64_t pixels, int channels, float *x, Error *error) {
    static const int32_t nothing[TILE];
    const BackendOps *ops = e->backend->ops;
    const Activation function = {.kind = ACT_GELU};
    for (int64_t first = 0, count; first < pixels; first += count) {
        count = min_i64(pixels - first, TILE);
        const Step step = {.rows = (int)count, .tokens = nothing, .positions = nothing, .position_dims = 1};
        float *at = x + first * channels;
        ops->upload(e->backend, e->x, at, (size_t)(count * channels) * sizeof *at);
        ops->begin(e->backend, &step);
        ops->activate(e->backend, count * channels, e->x, function, e->x);
        if (!ops->wait(e->backend, ops->submit(e->backend), error)) return false;
        ops->download(e->backend, at, e->x, (size_t)(count * channels) * sizeof *at);
    }
    return true;
}

/* ---- on the pool's threads ---- */

typedef struct Job {
    void (*compute)(const struct Job *job, int64_t item);
    Pool *pool;
    const ConvLayer *layer;
    int side;    /* pixels of the inputs' side */
    float *from; /* inputs */
    float *to;   /* results; of attention all of its work */
} Job;

static void take_items(void *argument, int index, int count) {
    const Job *job = argument;
    int64_t first, items;
    while (pool_next(job->pool, 0, index, 1, &first, &items))
        for (int64_t i = first; i < first + items; i++) job->compute(job, i);
}

static void run_job(Job *job, int64_t items) {
    pool_share(job->pool, 0, items);
    pool_run(job->pool, take_items, job);
}

/* to[i] += taps[i] · from[i / times] */
static void add_products(
    int count, int times, const float *restrict taps, const float *restrict from, float *restrict to) {
    if (times == 1)
        for (int i = 0; i < count; i++) to[i] += taps[i] * from[i];
    else
        for (int i = 0; i < count; i++) to[i] += taps[i] * from[i / times];
}

static void add_scaled(int64_t count, float scale, const float *restrict x, float *restrict sum) {
    for (int64_t i = 0; i < count; i++) sum[i] += scale * x[i];
}

/* A row of the results of a convolution of single channels. */
static void depthwise_row(const Job *job, int64_t y) {
    const ConvLayer *l = job->layer;
    const int columns = side_behind(l, job->side), before = l->size / 2;
    for (int x = 0; x < columns; x++) {
        float *out = job->to + (y * columns + x) * l->out;
        for (int c = 0; c < l->out; c++) out[c] = l->bias[c];
        for (int k = 0; k < l->size * l->size; k++) {
            const int64_t row = y * l->stride + k / l->size - before;
            const int column = x * l->stride + k % l->size - before;
            if (row < 0 || row >= job->side || column < 0 || column >= job->side) continue;
            add_products(
                l->out, l->out / l->in, l->taps + k * l->out, job->from + (row * job->side + column) * l->in, out);
        }
    }
}

/* One head: all pixels see each other. to: [pixels][3 · width] queries, keys and values, then the heads' parts of keys
 * by element, [pixels][width] results, and scores. */
static void attend_head(const Job *job, int64_t number) {
    const ConvLayer *l = job->layer;
    const int head = l->head, width = l->out;
    const int64_t pixels = (int64_t)job->side * job->side, row = 3 * width;
    const float *qkv = job->to + number * head, scale = 1 / sqrtf((float)head);
    float *keys = job->to + pixels * row, *results = keys + pixels * width;
    float *scores = results + pixels * width + number * pixels;
    keys += number * head * pixels;
    results += number * head;
    for (int64_t i = 0; i < pixels; i++)
        for (int d = 0; d < head; d++) keys[d * pixels + i] = qkv[i * row + width + d];
    for (int64_t i = 0; i < pixels; i++, results += width) {
        float largest = -INFINITY, sum = 0;
        memset(scores, 0, (size_t)pixels * sizeof *scores);
        for (int d = 0; d < head; d++) add_scaled(pixels, scale * qkv[i * row + d], keys + d * pixels, scores);
        for (int64_t k = 0; k < pixels; k++) largest = scores[k] > largest ? scores[k] : largest;
        for (int64_t k = 0; k < pixels; k++) sum += scores[k] = expf(scores[k] - largest);
        memset(results, 0, (size_t)head * sizeof *results);
        for (int64_t k = 0; k < pixels; k++) add_scaled(head, scores[k] / sum, qkv + k * row + 2 * width, results);
    }
}

/* ---- layers ---- */

/* The inputs of one result of a dense convolution, [size²][in]; zeros around the plane. */
static void gather(const ConvLayer *l, const float *from, int side, int64_t pixel, float *out) {
    const int columns = side_behind(l, side), top = (int)(pixel / columns) * l->stride - l->size / 2;
    const int left = (int)(pixel % columns) * l->stride - l->size / 2;
    for (int k = 0; k < l->size * l->size; k++, out += l->in) {
        const int row = top + k / l->size, column = left + k % l->size;
        if (row < 0 || row >= side || column < 0 || column >= side)
            memset(out, 0, (size_t)l->in * sizeof *out);
        else
            memcpy(out, from + ((int64_t)row * side + column) * l->in, (size_t)l->in * sizeof *out);
    }
}

static bool compute_dense(ConvEncoder *e, const ConvLayer *l, Error *error) {
    static const Weight none;
    const int side = side_behind(l, e->side);
    const int64_t pixels = (int64_t)side * side;
    const float *from = e->planes[e->at];
    float *to = e->planes[1 - e->at];
    for (int64_t first = 0, count; first < pixels; first += count) {
        count = min_i64(pixels - first, TILE);
        for (int64_t i = 0; i < count; i++) gather(l, from, e->side, first + i, e->columns + i * l->first.cols);
        if (!multiply_tile(e, (int)count, &l->first, l->gelu ? ACT_GELU : ACT_NONE, &none, to + first * l->out, error))
            return false;
    }
    e->side = side;
    e->at = 1 - e->at;
    return true;
}

/* Multiplies each channel by a factor that all of them tell by their means. */
static bool excite(const ConvEncoder *e, const ConvLayer *l, float *x, Error *error) {
    const int64_t pixels = (int64_t)e->side * e->side;
    float *means = e->columns, *factors = e->columns;
    memset(means, 0, (size_t)l->out * sizeof *means);
    for (int64_t i = 0; i < pixels; i++) add_scaled(l->out, 1, x + i * l->out, means);
    for (int c = 0; c < l->out; c++) means[c] /= (float)pixels;
    if (!multiply_tile(e, 1, &l->first, ACT_RELU, &l->second, factors, error)) return false;
    for (int c = 0; c < l->out; c++) factors[c] = 1 / (1 + expf(-factors[c]));
    for (int64_t i = 0; i < pixels; i++)
        for (int c = 0; c < l->out; c++) x[i * l->out + c] *= factors[c];
    return true;
}

static void compute_rows(const ConvEncoder *e, const ConvLayer *l) {
    Job job = {depthwise_row, e->pool, l, e->side, e->planes[e->at], e->planes[1 - e->at]};
    run_job(&job, side_behind(l, e->side));
}

static bool compute_depthwise(ConvEncoder *e, const ConvLayer *l, Error *error) {
    compute_rows(e, l);
    e->side = side_behind(l, e->side);
    e->at = 1 - e->at;
    float *x = e->planes[e->at];
    if (l->first.rows && !excite(e, l, x, error)) return false;
    return !l->gelu || gelu(e, (int64_t)e->side * e->side, l->out, x, error);
}

/* x += scale · product of `from`. */
static bool add_product(const ConvEncoder *e, const ConvLayer *l, const float *from, const Weight *first,
    ActivationKind activation, const Weight *second, Error *error) {
    const int64_t pixels = (int64_t)e->side * e->side;
    for (int64_t at = 0, count; at < pixels; at += count) {
        count = min_i64(pixels - at, TILE);
        memcpy(e->columns, from + at * l->out, (size_t)(count * l->out) * sizeof *from);
        if (!multiply_tile(e, (int)count, first, activation, second, e->columns, error)) return false;
        float *x = e->planes[e->at] + at * l->out;
        for (int64_t i = 0; i < count; i++) add_products(l->out, 1, l->scale, e->columns + i * l->out, x + i * l->out);
    }
    return true;
}

static bool compute_ffn(ConvEncoder *e, const ConvLayer *l, Error *error) {
    compute_rows(e, l);
    return add_product(e, l, e->planes[1 - e->at], &l->first, ACT_GELU, &l->second, error);
}

static void norm_row(const ConvLayer *l, const float *x, float *out) {
    double sum = 0, squares = 0;
    for (int c = 0; c < l->out; c++) sum += x[c];
    const double mean = sum / l->out;
    for (int c = 0; c < l->out; c++) squares += (x[c] - mean) * (x[c] - mean);
    const double factor = 1 / sqrt(squares / l->out + l->eps);
    for (int c = 0; c < l->out; c++) out[c] = (float)((x[c] - mean) * factor) * l->norm_weight[c] + l->norm_bias[c];
}

static bool compute_attention(ConvEncoder *e, const ConvLayer *l, Error *error) {
    static const Weight none;
    const int64_t pixels = (int64_t)e->side * e->side;
    const float *x = e->planes[e->at];
    float *work = e->planes[1 - e->at];
    for (int64_t first = 0, count; first < pixels; first += count) {
        count = min_i64(pixels - first, TILE);
        for (int64_t i = 0; i < count; i++) norm_row(l, x + (first + i) * l->out, e->columns + i * l->out);
        if (!multiply_tile(e, (int)count, &l->first, ACT_NONE, &none, work + first * 3 * l->out, error)) return false;
    }
    Job job = {attend_head, e->pool, l, e->side, NULL, work};
    run_job(&job, l->out / l->head);
    return add_product(e, l, work + 4 * pixels * l->out, &l->second, ACT_NONE, &none, error);
}

static bool compute_layer(ConvEncoder *e, const ConvLayer *layer, Error *error) {
    switch (layer->kind) {
    case CONV_DENSE: return compute_dense(e, layer, error);
    case CONV_DEPTHWISE: return compute_depthwise(e, layer, error);
    case CONV_FFN: return compute_ffn(e, layer, error);
    default: return compute_attention(e, layer, error);
    }
}

/* ---- an image ---- */

void conv_encoder_begin(ConvEncoder *e, const Image *image) {
    const ImageRule *rule = &e->spec->rule;
    const int64_t values = (int64_t)rule->side * rule->side * 3;
    CHECK(image->width == rule->side && image->height == rule->side);
    for (int64_t i = 0; i < values; i++)
        e->planes[0][i] = ((float)image->rgb[i] * (float)(1.0 / 255) - rule->mean[i % 3]) / rule->std[i % 3];
    e->side = rule->side;
    e->at = e->next = 0;
}

bool conv_encoder_continue(ConvEncoder *e, int layers, bool *done, Error *error) {
    const int all = e->spec->conv->layer_count, end = min_int(e->next + layers, all);
    for (; e->next < end; e->next++)
        if (!compute_layer(e, &e->layers[e->next], error)) return false;
    *done = end == all;
    return true;
}

const float *conv_encoder_rows(const ConvEncoder *e) { return e->planes[e->at]; }

/* ---- opening ---- */

static bool bind(ConvEncoder *e, Error *error) {
    for (int i = 0; i < e->spec->conv->layer_count; i++) {
        Weight *const weights[] = {&e->layers[i].first, &e->layers[i].second};
        for (size_t k = 0; k < COUNT_OF(weights); k++, e->bound_count++)
            if (weights[k]->rows && !e->backend->ops->bind(e->backend, weights[k], error)) return false;
    }
    return true;
}

static bool alloc_parts(ConvEncoder *e, Error *error) {
    const ConvSizes sizes = sizes_of(e->spec);
    const size_t bytes = (size_t)(TILE * sizes.widest) * sizeof(float);
    for (int i = 0; i < 2; i++) e->planes[i] = malloc((size_t)sizes.planes[i] * sizeof(float));
    e->columns = malloc(bytes);
    if (!e->planes[0] || !e->planes[1] || !e->columns)
        return fail(error, ERROR_MEMORY, "no memory for images of %d pixels", e->spec->rule.side);
    return (e->x = e->backend->ops->alloc(e->backend, bytes, MEMORY_STEP, error)) != NULL &&
        (e->y = e->backend->ops->alloc(e->backend, bytes, MEMORY_STEP, error)) != NULL;
}

ConvEncoder *conv_encoder_open(const VisionSpec *spec, const BackendOptions *options, Error *error) {
    const ConvSpec *conv = spec->conv;
    ConvEncoder *e = calloc(1, sizeof *e);
    BackendOptions own = *options;
    own.rows_max = TILE;
    own.scratch_bytes = 0;
    own.precise = true;
    if (e) e->layers = calloc((size_t)conv->layer_count + 1, sizeof *e->layers);
    if (!e || !e->layers) {
        fail(error, ERROR_MEMORY, "no memory for an encoder of images");
    } else {
        e->spec = spec;
        memcpy(e->layers, conv->layers, (size_t)conv->layer_count * sizeof *e->layers);
        if (!own.pool) own.pool = e->own_pool = pool_open(options->threads, error);
        e->pool = own.pool;
        if (e->pool && (e->backend = backend_open(&own, error)) != NULL && bind(e, error) && alloc_parts(e, error))
            return e;
    }
    conv_encoder_close(e);
    return NULL;
}

void conv_encoder_close(ConvEncoder *e) {
    if (!e) return;
    for (int i = 0; i < e->bound_count; i++) {
        const ConvLayer *layer = &e->layers[i / 2];
        const Weight *weight = i % 2 ? &layer->second : &layer->first;
        if (weight->rows) e->backend->ops->unbind(e->backend, weight);
    }
    if (e->backend) {
        e->backend->ops->release(e->backend, e->x);
        e->backend->ops->release(e->backend, e->y);
    }
    backend_close(e->backend);
    pool_close(e->own_pool);
    for (int i = 0; i < 2; i++) free(e->planes[i]);
    free(e->columns);
    free(e->layers);
    free(e);
}
