#include "model/audio_encoder.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/math.h"

enum {
    TILE = 1024,    /* rows of a product */
    KERNEL = 3 * 3, /* elements of the convolutions' kernels */
    FFN_TIMES = 4,  /* widest row of a layer, in hidden sizes */
};

struct AudioEncoder {
    const AudioSpec *spec;
    Backend *backend;
    ConformerLayer *layers;                   /* [layer_count] bound */
    Weight conv[2], input, output, embedding; /* bound */
    Weight **bound;                           /* [bound_count] all of them */
    int bound_count;
    int rows_max;
    /* Host memory. */
    float *mel;                  /* [frames, bins] */
    float *convolved[2];         /* results of the convolutions */
    float *columns;              /* [TILE, widest input of a product] */
    float *hidden, *a, *b;       /* [rows_max, widest of hidden and the text model's] */
    float *wide;                 /* [rows_max, FFN_TIMES · hidden] */
    float *distances, *relative; /* [span, hidden] sines and cosines, and these projected */
    float *rows;                 /* [rows_max, hidden of the text model] */
    float *x, *y;                /* backend memory: inputs and results of a product, TILE rows */

    int count; /* rows of the clip */
    int part;  /* the next part of the layers */
};

int audio_rows(const AudioSpec *spec, int samples) {
    if (!spec->mel.bins) return (samples + spec->raw - 1) / spec->raw;
    int rows = mel_frames(&spec->mel, samples);
    for (size_t i = 0; i < COUNT_OF(spec->conv); i++) rows = (rows + 1) / 2;
    rows = (rows + spec->reduction - 1) / spec->reduction;
    return spec->fixed_rows && rows > 0 ? spec->fixed_rows + 1 : rows;
}

/* ---- arithmetic of rows ---- */

static void limit(int64_t count, float *x, float low, float high) {
    for (int64_t i = 0; i < count; i++) x[i] = x[i] < low ? low : x[i] > high ? high : x[i];
}

static void norm_rows(int rows, const Norm *norm, const float *x, float *out) {
    const int64_t width = norm->width;
    for (int r = 0; r < rows; r++, x += width, out += width) {
        double sum = 0;
        for (int64_t i = 0; i < width; i++) sum += (double)x[i] * x[i];
        const float factor = (float)(1 / sqrt(sum / (double)width + norm->eps));
        for (int64_t i = 0; i < width; i++) out[i] = x[i] * factor * (norm->weight ? norm->weight[i] : 1);
    }
}

/* A norm of x within ±clip. */
static void norm_clipped(const AudioEncoder *e, const Norm *norm, const float *x, float *out) {
    const int64_t count = (int64_t)e->count * norm->width;
    if (out != x) memcpy(out, x, (size_t)count * sizeof *out);
    limit(count, out, -e->spec->clip, e->spec->clip);
    norm_rows(e->count, norm, out, out);
}

static float sigmoid(float x) { return 1 / (1 + expf(-x)); }

static void silu(int64_t count, float *x) {
    for (int64_t i = 0; i < count; i++) x[i] *= sigmoid(x[i]);
}

static void add(int64_t count, float scale, const float *x, float *sum) {
    for (int64_t i = 0; i < count; i++) sum[i] += scale * x[i];
}

/* ---- products ---- */

/* out = weight · x for the rows of one tile, which lie in columns. */
static bool multiply_tile(const AudioEncoder *e, const Weight *weight, int rows, float *out, Error *error) {
    static const int32_t nothing[TILE]; /* products read neither tokens nor positions */
    const BackendOps *ops = e->backend->ops;
    const Step step = {.rows = rows, .tokens = nothing, .positions = nothing, .position_dims = 1};
    ops->upload(e->backend, e->x, e->columns, (size_t)(rows * weight->cols) * sizeof(float));
    ops->begin(e->backend, &step);
    ops->matmul(e->backend, &(Matmul){.rows = rows, .x = e->x, .count = 1, .weight = {weight}, .out = {e->y}});
    if (!ops->wait(e->backend, ops->submit(e->backend), error)) return false;
    ops->download(e->backend, out, e->y, (size_t)(rows * weight->rows) * sizeof(float));
    return true;
}

static bool multiply(const AudioEncoder *e, const Weight *weight, int rows, const float *x, float *out, Error *error) {
    for (int first = 0, count; first < rows; first += count) {
        count = min_int(rows - first, TILE);
        memcpy(e->columns, x + first * weight->cols, (size_t)(count * weight->cols) * sizeof *x);
        if (!multiply_tile(e, weight, count, out + first * weight->rows, error)) return false;
    }
    return true;
}

static bool project(const AudioEncoder *e, const ClippedLinear *l, const float *x, float *out, Error *error) {
    for (int first = 0, count; first < e->count; first += count) {
        count = min_int(e->count - first, TILE);
        const int64_t floats = count * l->weight.cols;
        memcpy(e->columns, x + first * l->weight.cols, (size_t)floats * sizeof *x);
        if (l->clip) limit(floats, e->columns, l->clip->in_low, l->clip->in_high);
        if (!multiply_tile(e, &l->weight, count, out + first * l->weight.rows, error)) return false;
    }
    if (l->clip) limit(e->count * l->weight.rows, out, l->clip->out_low, l->clip->out_high);
    return true;
}

/* ---- from samples to rows ---- */

/* What a convolution reads: [frames][bins][channels]. */
typedef struct Plane {
    const float *values;
    int frames, bins, channels;
} Plane;

/* The inputs of one result, [KERNEL][channels]; zeros beyond the plane. top: the first frame. */
static void gather(const Plane *in, int top, int left, float *out) {
    const size_t bytes = (size_t)in->channels * sizeof *out;
    for (int i = 0; i < KERNEL; i++, out += in->channels) {
        const int frame = top + i / 3, bin = left + i % 3;
        if (frame < 0 || frame >= in->frames || bin < 0 || bin >= in->bins)
            memset(out, 0, bytes);
        else
            memcpy(out, in->values + ((int64_t)frame * in->bins + bin) * in->channels, bytes);
    }
}

static void norm_channels(const AudioEncoder *e, const float *weight, const Plane *plane, float *x) {
    const int channels = plane->channels;
    for (int64_t i = 0; i < (int64_t)plane->frames * plane->bins; i++, x += channels) {
        double sum = 0, squares = 0;
        for (int c = 0; c < channels; c++) sum += x[c];
        const double mean = sum / channels;
        for (int c = 0; c < channels; c++) squares += (x[c] - mean) * (x[c] - mean);
        const double factor = 1 / sqrt(squares / channels + e->spec->conv_eps);
        for (int c = 0; c < channels; c++) x[c] = (float)((x[c] - mean) * factor) * weight[c];
    }
}

/* Statistics of all channels, bins and frames so far: the mean, and of each frame the squares of the distance from the
 * mean up to that frame. */
static void norm_so_far(const AudioEncoder *e, const float *weight, const Plane *plane, float *x) {
    const int64_t width = (int64_t)plane->bins * plane->channels;
    double sum = 0, squares = 0;
    for (int t = 0; t < plane->frames; t++, x += width) {
        const double count = (double)(t + 1) * (double)width;
        for (int64_t i = 0; i < width; i++) sum += x[i];
        const double mean = sum / count;
        for (int64_t i = 0; i < width; i++) squares += (x[i] - mean) * (x[i] - mean);
        const double factor = 1 / sqrt(squares / count + e->spec->conv_eps);
        for (int64_t i = 0; i < width; i++) x[i] = (float)((x[i] - mean) * factor) * weight[i % plane->channels];
    }
}

/* *plane becomes the results. */
static bool convolve(const AudioEncoder *e, int number, Plane *plane, Error *error) {
    const AudioConv *conv = &e->spec->conv[number];
    const Weight *weight = &e->conv[number];
    const Plane in = *plane;
    float *out = e->convolved[number];
    *plane = (Plane){out, (in.frames + 1) / 2, (in.bins + 1) / 2, (int)weight->rows};
    const int64_t all = (int64_t)plane->frames * plane->bins;
    for (int64_t first = 0, count; first < all; first += count) {
        count = min_i64(all - first, TILE);
        for (int64_t i = 0; i < count; i++) {
            const int frame = (int)((first + i) / plane->bins), bin = (int)((first + i) % plane->bins);
            gather(&in, 2 * frame - !e->spec->causal_conv, 2 * bin - 1, e->columns + i * weight->cols);
        }
        if (!multiply_tile(e, weight, (int)count, out + first * weight->rows, error)) return false;
    }
    (e->spec->causal_conv ? norm_so_far : norm_channels)(e, conv->norm, plane, out);
    limit(all * plane->channels, out, 0, INFINITY);
    return true;
}

static bool embed_mel(AudioEncoder *e, const Audio *audio, Error *error) {
    Plane plane = {e->mel, mel_frames(&e->spec->mel, audio->count), e->spec->mel.bins, 1};
    if (!mel_compute(&e->spec->mel, audio->samples, audio->count, e->mel, error)) return false;
    for (int i = 0; i < (int)COUNT_OF(e->conv); i++)
        if (!convolve(e, i, &plane, error)) return false;
    e->count = plane.frames;
    return multiply(e, &e->input, e->count, plane.values, e->hidden, error);
}

static void embed_raw(AudioEncoder *e, const Audio *audio) {
    e->count = audio_rows(e->spec, audio->count);
    memset(e->hidden, 0, (size_t)e->count * (size_t)e->spec->raw * sizeof *e->hidden);
    memcpy(e->hidden, audio->samples, (size_t)audio->count * sizeof *e->hidden);
}

/* ---- a layer ---- */

static bool feed_forward(const AudioEncoder *e, const ConformerFfn *ffn, Error *error) {
    norm_clipped(e, ffn->input_norm, e->hidden, e->a);
    if (!project(e, &ffn->up, e->a, e->wide, error)) return false;
    silu(e->count * ffn->up.weight.rows, e->wide);
    if (!project(e, &ffn->down, e->wide, e->a, error)) return false;
    norm_clipped(e, ffn->output_norm, e->a, e->a);
    add((int64_t)e->count * e->spec->hidden, e->spec->ffn_scale, e->a, e->hidden);
    return true;
}

static float dot(const float *x, const float *y, int count) {
    float sum = 0;
    for (int i = 0; i < count; i++) sum += x[i] * y[i];
    return sum;
}

/* One head of one row. q, k, v: of the head's first elements, in rows of `hidden`. */
static void attend(
    const AudioEncoder *e, int row, const float *q, const float *k, const float *v, const float *relative, float *out) {
    const int hidden = e->spec->hidden, head = hidden / e->spec->heads, seen = min_int(row + 1, e->spec->span);
    float scores[AUDIO_SPAN_MAX], largest = -INFINITY, sum = 0;
    for (int d = 0; d < seen; d++) {
        const float score =
            e->spec->k_scale * dot(q, k + (row - d) * hidden, head) + dot(q, relative + d * hidden, head);
        scores[d] = e->spec->softcap * tanhf(score / e->spec->softcap);
        largest = fmaxf(largest, scores[d]);
    }
    for (int d = 0; d < seen; d++) sum += scores[d] = expf(scores[d] - largest);
    memset(out, 0, (size_t)head * sizeof *out);
    for (int d = 0; d < seen; d++) add(head, scores[d] / sum, v + (row - d) * hidden, out);
}

static bool attention(const AudioEncoder *e, const ConformerLayer *layer, Error *error) {
    const int hidden = e->spec->hidden, head = hidden / e->spec->heads;
    const int64_t floats = (int64_t)e->count * hidden;
    float *q = e->wide, *k = q + floats, *v = k + floats;
    norm_clipped(e, layer->attention_norm, e->hidden, e->a);
    if (!project(e, &layer->q, e->a, q, error) || !project(e, &layer->k, e->a, k, error) ||
        !project(e, &layer->v, e->a, v, error) ||
        !multiply(e, &layer->relative, e->spec->span, e->distances, e->relative, error))
        return false;
    for (int64_t i = 0; i < floats; i++) q[i] *= layer->q_scale[i % head];
    for (int row = 0; row < e->count; row++)
        for (int at = 0; at < hidden; at += head)
            attend(e, row, q + row * hidden + at, k + at, v + at, e->relative + at, e->b + row * hidden + at);
    if (!project(e, &layer->o, e->b, e->a, error)) return false;
    norm_clipped(e, layer->attended_norm, e->a, e->a);
    add(floats, 1, e->a, e->hidden);
    return true;
}

/* a = taps over time of x, which has twice the width: values, then logits of their gates. */
static void convolve_time(const AudioEncoder *e, const ConformerLayer *layer, float *x, float *out) {
    const int hidden = e->spec->hidden, taps = e->spec->taps;
    for (int row = 0; row < e->count; row++)
        for (int i = 0; i < hidden; i++) x[2 * row * hidden + i] *= sigmoid(x[(2 * row + 1) * hidden + i]);
    for (int row = 0; row < e->count; row++)
        for (int i = 0; i < hidden; i++) {
            float sum = 0;
            for (int t = 0; t < taps; t++) {
                const int from = row - taps + 1 + t;
                if (from >= 0) sum += layer->taps[i * taps + t] * x[2 * from * hidden + i];
            }
            out[row * hidden + i] = sum;
        }
}

static bool convolution(const AudioEncoder *e, const ConformerLayer *layer, Error *error) {
    const int64_t floats = (int64_t)e->count * e->spec->hidden;
    norm_rows(e->count, layer->conv_input_norm, e->hidden, e->a);
    if (!project(e, &layer->conv_in, e->a, e->wide, error)) return false;
    convolve_time(e, layer, e->wide, e->a);
    norm_clipped(e, layer->conv_norm, e->a, e->a);
    silu(floats, e->a);
    if (!project(e, &layer->conv_out, e->a, e->b, error)) return false;
    add(floats, 1, e->b, e->hidden);
    return true;
}

enum { LAYER_PARTS = 4 };

static bool compute_part(const AudioEncoder *e, int part, Error *error) {
    const ConformerLayer *layer = &e->layers[part / LAYER_PARTS];
    switch (part % LAYER_PARTS) {
    case 0: return feed_forward(e, &layer->ffn[0], error);
    case 1: return attention(e, layer, error);
    case 2: return convolution(e, layer, error);
    default:
        if (!feed_forward(e, &layer->ffn[1], error)) return false;
        norm_clipped(e, layer->norm, e->hidden, e->hidden);
        return true;
    }
}

/* The rows that complete those of a clip: all paddings are computed as one. */
static bool finish_fixed(AudioEncoder *e, Error *error) {
    const AudioSpec *spec = e->spec;
    const int64_t width = e->embedding.rows;
    float both[2 * AUDIO_HIDDEN_MAX], *end = e->rows + spec->fixed_rows * width;
    memcpy(both, spec->padding, (size_t)spec->hidden * sizeof *both);
    memcpy(both + spec->hidden, spec->end, (size_t)spec->hidden * sizeof *both);
    if (!multiply(e, &e->embedding, 2, both, e->a, error)) return false;
    norm_rows(2, spec->row_norm, e->a, e->a);
    for (int i = e->count; i < spec->fixed_rows; i++) memcpy(e->rows + i * width, e->a, (size_t)width * sizeof *end);
    memcpy(end, e->a + width, (size_t)width * sizeof *end);
    e->count = spec->fixed_rows + 1;
    return true;
}

/* From the results of the last layer to rows of the text model. */
static bool finish(AudioEncoder *e, Error *error) {
    const AudioSpec *spec = e->spec;
    float *x = e->hidden;
    if (spec->reduction > 1) {
        const int kept = (e->count + spec->reduction - 1) / spec->reduction;
        for (int i = 1; i < kept; i++)
            memcpy(x + i * spec->hidden, x + i * spec->reduction * spec->hidden, (size_t)spec->hidden * sizeof *x);
        e->count = kept;
    }
    if (spec->output.rows) {
        if (!multiply(e, &e->output, e->count, x, e->a, error)) return false;
        x = e->a;
    }
    norm_rows(e->count, spec->embedding_norm, x, x);
    if (!multiply(e, &e->embedding, e->count, x, e->rows, error)) return false;
    if (spec->row_norm) norm_rows(e->count, spec->row_norm, e->rows, e->rows);
    return !spec->fixed_rows || finish_fixed(e, error);
}

/* ---- a clip ---- */

bool audio_encoder_begin(AudioEncoder *e, const Audio *audio, Error *error) {
    CHECK(audio_rows(e->spec, audio->count) > 0 && audio->count <= (int)(e->spec->seconds_max * AUDIO_RATE));
    e->part = 0;
    if (e->spec->mel.bins > 0) return embed_mel(e, audio, error);
    embed_raw(e, audio);
    return true;
}

bool audio_encoder_continue(AudioEncoder *e, int parts, bool *done, Error *error) {
    const int all = LAYER_PARTS * e->spec->layer_count, end = min_int(e->part + parts, all);
    bool ok = true;
    for (; ok && e->part < end; e->part++) ok = compute_part(e, e->part, error);
    *done = ok && end == all;
    return ok && (!*done || finish(e, error));
}

void audio_encoder_take(AudioEncoder *e, Backend *to, float *rows) {
    to->ops->upload(to, rows, e->rows, (size_t)(e->count * e->embedding.rows) * sizeof *rows);
}

/* ---- opening ---- */

enum { LAYER_WEIGHTS = 11, OTHER_WEIGHTS = 5 };

static bool bind(AudioEncoder *e, Weight *const *weights, size_t count, Error *error) {
    for (size_t i = 0; i < count; i++) {
        if (weights[i]->rows == 0) continue;
        if (!e->backend->ops->bind(e->backend, weights[i], error)) return false;
        e->bound[e->bound_count++] = weights[i];
    }
    return true;
}

static bool bind_layer(AudioEncoder *e, ConformerLayer *layer, Error *error) {
    Weight *const weights[LAYER_WEIGHTS] = {&layer->ffn[0].up.weight, &layer->ffn[0].down.weight,
        &layer->ffn[1].up.weight, &layer->ffn[1].down.weight, &layer->q.weight, &layer->k.weight, &layer->v.weight,
        &layer->o.weight, &layer->relative, &layer->conv_in.weight, &layer->conv_out.weight};
    return bind(e, weights, COUNT_OF(weights), error);
}

static bool bind_parts(AudioEncoder *e, Error *error) {
    const AudioSpec *spec = e->spec;
    e->conv[0] = spec->conv[0].weight;
    e->conv[1] = spec->conv[1].weight;
    e->input = spec->input;
    e->output = spec->output;
    e->embedding = spec->embedding;
    Weight *const weights[OTHER_WEIGHTS] = {&e->conv[0], &e->conv[1], &e->input, &e->output, &e->embedding};
    for (int i = 0; i < spec->layer_count; i++) {
        e->layers[i] = spec->layers[i];
        if (!bind_layer(e, &e->layers[i], error)) return false;
    }
    return bind(e, weights, COUNT_OF(weights), error);
}

static int64_t widest(const AudioEncoder *e, bool columns) {
    const AudioSpec *spec = e->spec;
    const Weight *const weights[] = {
        &spec->conv[0].weight, &spec->conv[1].weight, &spec->input, &spec->output, &spec->embedding};
    int64_t most = (int64_t)FFN_TIMES * spec->hidden;
    for (size_t i = 0; i < COUNT_OF(weights); i++) {
        const int64_t width = columns ? weights[i]->cols : weights[i]->rows;
        if (width > most) most = width;
    }
    return most;
}

static float *floats_of(int64_t count) { return malloc((size_t)(count > 0 ? count : 1) * sizeof(float)); }

/* [sin(d · s_k) ‖ cos(d · s_k)], s_k = 10000^(−k / (half − 1)), for distances d. */
static void fill_distances(const AudioEncoder *e) {
    const int half = e->spec->hidden / 2;
    for (int d = 0; d < e->spec->span; d++)
        for (int k = 0; k < half; k++) {
            const float angle = (float)d * expf((float)k * -(float)(log(1e4) / max_int(half - 1, 1)));
            e->distances[d * e->spec->hidden + k] = sinf(angle);
            e->distances[d * e->spec->hidden + half + k] = cosf(angle);
        }
}

static bool alloc_parts(AudioEncoder *e, Error *error) {
    const AudioSpec *spec = e->spec;
    const int samples = (int)(spec->seconds_max * AUDIO_RATE);
    const int64_t columns = widest(e, true), results = widest(e, false);
    int frames = spec->mel.bins ? mel_frames(&spec->mel, samples) : audio_rows(spec, samples);
    int bins = spec->mel.bins;
    e->mel = floats_of((int64_t)frames * bins);
    for (int i = 0; i < 2; i++) {
        frames = spec->mel.bins ? (frames + 1) / 2 : frames;
        bins = (bins + 1) / 2;
        e->convolved[i] = floats_of((int64_t)frames * bins * spec->conv[i].weight.rows);
    }
    e->rows_max = frames;
    const int64_t rows = max_int(frames, spec->fixed_rows + 1);
    const int64_t width =
        max_int(max_int((int)spec->output.rows, spec->hidden), max_int(spec->raw, (int)spec->embedding.rows));
    e->columns = floats_of(TILE * columns);
    e->hidden = floats_of(rows * width);
    e->a = floats_of(rows * width);
    e->b = floats_of(rows * width);
    e->wide = floats_of(rows * FFN_TIMES * spec->hidden);
    e->distances = floats_of((int64_t)spec->span * spec->hidden);
    e->relative = floats_of((int64_t)spec->span * spec->hidden);
    e->rows = floats_of(rows * spec->embedding.rows);
    if (!e->mel || !e->convolved[0] || !e->convolved[1] || !e->columns || !e->hidden || !e->a || !e->b || !e->wide ||
        !e->distances || !e->relative || !e->rows)
        return fail(error, ERROR_MEMORY, "no memory for audio of %g s", spec->seconds_max);
    fill_distances(e);
    const BackendOps *ops = e->backend->ops;
    return (e->x = ops->alloc(e->backend, (size_t)(TILE * columns) * sizeof(float), MEMORY_STEP, error)) != NULL &&
        (e->y = ops->alloc(e->backend, (size_t)(TILE * results) * sizeof(float), MEMORY_STEP, error)) != NULL;
}

AudioEncoder *audio_encoder_open(const Model *model, const BackendOptions *options, Error *error) {
    const AudioSpec *spec = model_spec(model)->audio;
    AudioEncoder *e = calloc(1, sizeof *e);
    BackendOptions own = *options;
    own.rows_max = TILE;
    own.scratch_bytes = 0;
    own.precise = true;
    if (e) {
        e->spec = spec;
        e->layers = calloc((size_t)spec->layer_count + 1, sizeof *e->layers);
        e->bound = calloc((size_t)spec->layer_count * LAYER_WEIGHTS + OTHER_WEIGHTS, sizeof(Weight *));
    }
    if (!e || !e->layers || !e->bound)
        fail(error, ERROR_MEMORY, "no memory for an encoder of audio");
    else if ((e->backend = backend_open(&own, error)) != NULL && bind_parts(e, error) && alloc_parts(e, error))
        return e;
    audio_encoder_close(e);
    return NULL;
}

void audio_encoder_close(AudioEncoder *e) {
    if (!e) return;
    float *const memory[] = {e->mel, e->convolved[0], e->convolved[1], e->columns, e->hidden, e->a, e->b, e->wide,
        e->distances, e->relative, e->rows};
    if (e->backend) {
        e->backend->ops->release(e->backend, e->x);
        e->backend->ops->release(e->backend, e->y);
    }
    for (int i = 0; i < e->bound_count; i++) e->backend->ops->unbind(e->backend, e->bound[i]);
    for (size_t i = 0; i < COUNT_OF(memory); i++) free(memory[i]);
    free(e->layers);
    free(e->bound);
    backend_close(e->backend);
    free(e);
}
