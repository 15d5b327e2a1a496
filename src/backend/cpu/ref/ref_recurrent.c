/* Recurrent layers of the reference backend: one value head, or channel, after another, one position after another. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "backend/cpu/ref/ref_internal.h"

enum { C = RECURRENT_PAGE_TOKENS };

static float sigmoid(float x) { return 1 / (1 + expf(-x)); }
static float softplus(float x) { return x > 20 ? x : log1pf(expf(x)); }

static int32_t page_of(const RecurrentPart *place, const SequenceChunk *chunk, int position) {
    return chunk->tables[place->kv.group][position / C];
}

/* ---- convolution ---- */

static float gated_input(const Conv *op, int part, int64_t row, int64_t channel) {
    const int64_t at = row * op->part[part].channels + channel;
    return op->in_gate ? op->in_gate[at] * op->part[part].x[at] : op->part[part].x[at];
}

/* The input of a channel at a position before the chunk's end; first: the part's first channel in pages. */
static float input_at(
    const Conv *op, const SequenceChunk *chunk, int part, int64_t first, int64_t channel, int position) {
    const int64_t channels = conv_channels(op);
    const int begin = chunk->position;
    if (position >= begin) return gated_input(op, part, chunk->row + position - begin, channel);
    if (begin == 0) return 0;
    const int32_t page = page_of(&op->place, chunk, begin - 1);
    const int page_begin = (begin - 1) / C * C;
    if (position >= page_begin) return recurrent_row(&op->place, page, position - page_begin)[first + channel];
    return recurrent_anchor(&op->place, page)[(position - page_begin + op->taps - 1) * channels + first + channel];
}

/* Writes the page of a position: its row and, at the first position of the page, the anchor. */
static void store_inputs(
    const Conv *op, const SequenceChunk *chunk, int part, int64_t first, int64_t channel, int position) {
    const int32_t page = page_of(&op->place, chunk, position);
    if (page < 0 || op->taps < 2) return;
    float *anchor = recurrent_anchor(&op->place, page);
    for (int i = 0; position % C == 0 && i < op->taps - 1; i++)
        anchor[i * conv_channels(op) + first + channel] =
            input_at(op, chunk, part, first, channel, position - op->taps + 1 + i);
    recurrent_row(&op->place, page, position % C)[first + channel] =
        input_at(op, chunk, part, first, channel, position);
}

static void convolve(const Conv *op, const SequenceChunk *chunk, int part, int64_t first) {
    const ConvPart *p = &op->part[part];
    for (int position = chunk->position; position < chunk->position + chunk->rows; position++)
        for (int64_t c = 0; c < p->channels; c++) {
            const int64_t at = (chunk->row + position - chunk->position) * p->channels + c;
            float sum = p->bias ? p->bias[c] : 0;
            for (int i = 0; i < op->taps; i++)
                sum += p->weight[c * op->taps + i] * input_at(op, chunk, part, first, c, position - op->taps + 1 + i);
            if (op->silu) sum *= sigmoid(sum);
            p->out[at] = op->out_gate ? op->out_gate[at] * sum : sum;
            store_inputs(op, chunk, part, first, c, position);
        }
}

void ref_conv(Backend *backend, const Conv *op) {
    const Step *step = &ref_backend(backend)->step;
    for (int i = 0; i < step->chunk_count; i++) {
        int64_t first = 0;
        for (int part = 0; part < op->part_count; first += op->part[part++].channels)
            convolve(op, &step->chunks[i], part, first);
    }
}

/* ---- recurrences with a matrix state ---- */

/* One value head between its anchor and a position: the anchor's state and what the tail has of the head. */
typedef struct HeadState {
    const Recurrence *op;
    int head, decays; /* decays: 1, or key_dim with a decay per channel */
    int tail;         /* rows since the anchor */
    double *sum;      /* [C + 1, decays] log decay from the anchor up to each row; sum[0] is 0 */
    float *log_decay; /* [C, decays] */
    float *k, *u;     /* [C, key_dim], [C, value_dim] */
    float *s;         /* [key_dim, value_dim] */
} HeadState;

/* Floats of a HeadState; even, so that the sums of the next one are aligned. */
static int64_t head_stride(const Recurrence *op) {
    const int64_t decays = op->channel_decay ? op->key_dim : 1;
    const int64_t floats =
        (2 * (C + 1) + C) * decays + (int64_t)C * (op->key_dim + op->value_dim) + (int64_t)op->key_dim * op->value_dim;
    return (floats + 1) / 2 * 2;
}

static HeadState head_state(const Recurrence *op, int head, float *memory) {
    HeadState h = {.op = op, .head = head, .decays = op->channel_decay ? op->key_dim : 1};
    h.sum = (double *)(void *)memory;
    h.log_decay = memory + (int64_t)2 * (C + 1) * h.decays;
    h.k = h.log_decay + C * h.decays;
    h.u = h.k + C * op->key_dim;
    h.s = h.u + C * op->value_dim;
    return h;
}

/* The head's parts of a row of the tail. */
typedef struct HeadRow {
    float *log_decay, *k, *u;
} HeadRow;

static HeadRow row_of(const HeadState *h, float *row) {
    const Recurrence *op = h->op;
    const int key_head = recurrence_key_head(op, h->head);
    float *keys = row + op->value_heads * h->decays;
    return (HeadRow){row + h->head * h->decays, keys + key_head * op->key_dim,
        keys + op->key_heads * op->key_dim + h->head * op->value_dim};
}

/* Takes one more row, whose decays, key and update are in place. */
static void extend(HeadState *h) {
    for (int i = 0; i < h->decays; i++)
        h->sum[(h->tail + 1) * h->decays + i] =
            h->sum[h->tail * h->decays + i] + (double)h->log_decay[h->tail * h->decays + i];
    h->tail++;
}

/* e^(log decay behind row j up to row t), rows counted from 1, for element i of the key. */
static float decay(const HeadState *h, int j, int t, int i) {
    const int at = h->decays > 1 ? i : 0;
    return expf((float)(h->sum[t * h->decays + at] - h->sum[j * h->decays + at]));
}

/* The state behind the tail becomes the anchor. */
static void make_anchor(HeadState *h) {
    const Recurrence *op = h->op;
    for (int j = -1; j < h->tail; j++) {
        const float all = decay(h, j + 1, h->tail, 0);
        for (int i = 0; i < op->key_dim; i++) {
            const float factor = h->decays > 1 ? decay(h, j + 1, h->tail, i) : all;
            float *s = h->s + i * op->value_dim;
            for (int v = 0; j < 0 && v < op->value_dim; v++) s[v] *= factor;
            for (int v = 0; j >= 0 && v < op->value_dim; v++)
                s[v] += factor * h->k[j * op->key_dim + i] * h->u[j * op->value_dim + v];
        }
    }
    h->tail = 0;
}

/* out = Sᵀx for the state behind the first `rows` rows of the tail, decayed up to row t (counted from 1). */
static void apply(const HeadState *h, int rows, int t, const float *x, float *out) {
    const Recurrence *op = h->op;
    const bool each = h->decays > 1;
    const float all = each ? 1 : decay(h, 0, t, 0);
    memset(out, 0, (size_t)op->value_dim * sizeof *out);
    for (int i = 0; i < op->key_dim; i++) {
        const float factor = (each ? decay(h, 0, t, i) : all) * x[i];
        for (int v = 0; v < op->value_dim; v++) out[v] += factor * h->s[i * op->value_dim + v];
    }
    for (int j = 0; j < rows; j++) {
        const float *k = h->k + j * op->key_dim;
        float factor = each ? 0 : decay(h, j + 1, t, 0) * ref_dot(k, x, op->key_dim);
        for (int i = 0; each && i < op->key_dim; i++) factor += decay(h, j + 1, t, i) * k[i] * x[i];
        for (int v = 0; v < op->value_dim; v++) out[v] += factor * h->u[j * op->value_dim + v];
    }
}

static float time_step(const Recurrence *op, int head, int64_t row, int64_t index, int64_t count) {
    if (!op->a) return 1;
    const float a = op->a[row * count + index], bias = op->dt_bias ? op->dt_bias[index] : 0;
    if (op->dt_slope) return sigmoid(op->dt_slope[head] * (a + bias));
    const float dt = softplus(op->dt_scale * a + bias);
    return fminf(fmaxf(dt, op->dt_min), op->dt_max);
}

/* Computes one row: u into the tail, y into the result. */
static void compute_row(HeadState *h, int64_t row) {
    const Recurrence *op = h->op;
    const int key_head = recurrence_key_head(op, h->head);
    const int64_t at = row * op->value_heads + h->head, key_at = row * op->key_heads + key_head;
    const float *q = op->q + key_at * op->key_dim, *v = op->v + at * op->value_dim;
    float *out = op->out + at * op->value_dim, *u = h->u + h->tail * op->value_dim;
    float dt = 1;
    for (int i = 0; i < h->decays; i++) {
        dt = time_step(op, h->head, row, (int64_t)h->head * h->decays + i, (int64_t)op->value_heads * h->decays);
        h->log_decay[h->tail * h->decays + i] = op->rate[h->head] * dt;
    }
    memcpy(h->k + h->tail * op->key_dim, op->k + key_at * op->key_dim, (size_t)op->key_dim * sizeof *h->k);
    extend(h);
    if (op->kind == RECURRENCE_DELTA) {
        const float beta = op->b ? sigmoid(op->b[at]) : 1;
        apply(h, h->tail - 1, h->tail, h->k + (h->tail - 1) * op->key_dim, out);
        for (int i = 0; i < op->value_dim; i++) u[i] = beta * (v[i] - out[i]);
    } else {
        for (int i = 0; i < op->value_dim; i++) u[i] = dt * v[i];
    }
    apply(h, h->tail, h->tail, q, out);
    for (int i = 0; op->skip && i < op->value_dim; i++) out[i] += op->skip[h->head] * v[i];
}

static void load_tail(HeadState *h, const SequenceChunk *chunk) {
    const Recurrence *op = h->op;
    const size_t state = (size_t)op->key_dim * (size_t)op->value_dim;
    h->tail = 0;
    memset(h->sum, 0, (size_t)h->decays * sizeof *h->sum);
    memset(h->s, 0, state * sizeof *h->s);
    if (chunk->position == 0) return;
    const int32_t page = page_of(&op->place, chunk, chunk->position - 1);
    memcpy(h->s, recurrent_anchor(&op->place, page) + (size_t)h->head * state, state * sizeof *h->s);
    for (int j = 0; j <= (chunk->position - 1) % C; j++) {
        const HeadRow row = row_of(h, recurrent_row(&op->place, page, j));
        memcpy(h->log_decay + j * h->decays, row.log_decay, (size_t)h->decays * sizeof *row.log_decay);
        memcpy(h->k + j * op->key_dim, row.k, (size_t)op->key_dim * sizeof *row.k);
        memcpy(h->u + j * op->value_dim, row.u, (size_t)op->value_dim * sizeof *row.u);
        extend(h);
    }
}

static void store_row(const HeadState *h, const SequenceChunk *chunk, int position) {
    const Recurrence *op = h->op;
    const int32_t page = page_of(&op->place, chunk, position);
    const size_t state = (size_t)op->key_dim * (size_t)op->value_dim;
    if (page < 0) return;
    if (position % C == 0)
        memcpy(recurrent_anchor(&op->place, page) + (size_t)h->head * state, h->s, state * sizeof *h->s);
    const int j = position % C;
    const HeadRow row = row_of(h, recurrent_row(&op->place, page, j));
    memcpy(row.log_decay, h->log_decay + j * h->decays, (size_t)h->decays * sizeof *row.log_decay);
    if (h->head == 0 || recurrence_key_head(op, h->head - 1) != recurrence_key_head(op, h->head))
        memcpy(row.k, h->k + j * op->key_dim, (size_t)op->key_dim * sizeof *row.k);
    memcpy(row.u, h->u + j * op->value_dim, (size_t)op->value_dim * sizeof *row.u);
}

/* Normalises, rotates and scales the heads of all rows in place. */
static void prepare(const Recurrence *op, const Step *step, float *x, const Norm *norm, float scale) {
    float angles[RECURRENT_DIM_MAX / 2];
    for (int64_t row = 0; row < op->rows; row++) {
        if (op->rope) rope_angles(op->rope, step, (int)row, angles);
        for (int h = 0; h < op->key_heads; h++) {
            float *head = x + (row * op->key_heads + h) * op->key_dim;
            if (norm) ref_norm_row(head, norm, op->key_dim, head);
            if (op->rope) ref_rotate(op->rope, angles, head);
            for (int i = 0; i < op->key_dim; i++) head[i] *= scale;
        }
    }
}

typedef struct Heads {
    const Recurrence *op;
    const Step *step;
    float *memory; /* [threads, head_stride()] */
} Heads;

static void heads_task(void *argument, int index, int count) {
    const Heads *work = argument;
    const Recurrence *op = work->op;
    for (int head = index; head < op->value_heads; head += count)
        for (int i = 0; i < work->step->chunk_count; i++) {
            const SequenceChunk *chunk = &work->step->chunks[i];
            HeadState h = head_state(op, head, work->memory + index * head_stride(op));
            load_tail(&h, chunk);
            for (int row = 0; row < chunk->rows; row++) {
                if (h.tail == C) make_anchor(&h);
                compute_row(&h, chunk->row + row);
                store_row(&h, chunk, chunk->position + row);
            }
        }
}

void ref_recurrence(Backend *backend, const Recurrence *op) {
    RefBackend *r = ref_backend(backend);
    Heads work = {op, &r->step, ref_take(r, head_stride(op) * pool_threads(r->pool))};
    prepare(op, &r->step, op->q, op->q_norm, op->q_scale);
    prepare(op, &r->step, op->k, op->k_norm, op->k_scale);
    if (work.memory) pool_run(r->pool, heads_task, &work);
    free(work.memory);
}

/* ---- Mamba-1 ---- */

/* A state's slice in a row of the tail. */
static float *slice_of(const Mamba *op, float *row) { return row + 2 * op->channels + op->state; }

/* h takes a row of the tail. */
static void advance(const Mamba *op, const float *row, float *h) {
    const float *dt = row, *dt_x = row + op->channels, *b = row + 2 * op->channels;
    for (int64_t c = 0; c < op->channels; c++)
        for (int n = 0; n < op->state; n++) {
            const int64_t at = c * op->state + n;
            h[at] = expf(op->rate[at] * dt[c]) * h[at] + dt_x[c] * b[n];
        }
}

/* The state before the chunk: from the anchor or the last whole slice on. */
static void load_state(const Mamba *op, const SequenceChunk *chunk, float *h) {
    const int64_t state = op->channels * op->state, slice = state / MAMBA_SLICE_TOKENS;
    memset(h, 0, (size_t)state * sizeof *h);
    if (chunk->position == 0) return;
    const int32_t page = page_of(&op->place, chunk, chunk->position - 1);
    const int rows = (chunk->position - 1) % C + 1, whole = rows / MAMBA_SLICE_TOKENS * MAMBA_SLICE_TOKENS;
    if (whole == 0) memcpy(h, recurrent_anchor(&op->place, page), (size_t)state * sizeof *h);
    for (int i = 0; whole > 0 && i < MAMBA_SLICE_TOKENS; i++)
        memcpy(h + i * slice, slice_of(op, recurrent_row(&op->place, page, whole - MAMBA_SLICE_TOKENS + i)),
            (size_t)slice * sizeof *h);
    for (int row = whole; row < rows; row++) advance(op, recurrent_row(&op->place, page, row), h);
}

static void fill_row(const Mamba *op, int64_t row, float *to) {
    for (int64_t c = 0; c < op->channels; c++) {
        to[c] = softplus(op->dt[row * op->channels + c]);
        to[op->channels + c] = to[c] * op->x[row * op->channels + c];
    }
    memcpy(to + 2 * op->channels, op->b + row * op->state, (size_t)op->state * sizeof *to);
}

/* Writes row `position` of the tail, before it the anchor, behind the last row of a slice the state h. */
static void store_mamba(
    const Mamba *op, const SequenceChunk *chunk, int position, const float *row, const float *before, const float *h) {
    const int64_t state = op->channels * op->state, slice = state / MAMBA_SLICE_TOKENS;
    const int32_t page = page_of(&op->place, chunk, position);
    const int j = position % C;
    if (page < 0) return;
    if (j == 0) memcpy(recurrent_anchor(&op->place, page), before, (size_t)state * sizeof *before);
    memcpy(recurrent_row(&op->place, page, j), row, (size_t)(2 * op->channels + op->state) * sizeof *row);
    for (int i = 0; (j + 1) % MAMBA_SLICE_TOKENS == 0 && i < MAMBA_SLICE_TOKENS; i++)
        memcpy(slice_of(op, recurrent_row(&op->place, page, j + 1 - MAMBA_SLICE_TOKENS + i)), h + i * slice,
            (size_t)slice * sizeof *h);
}

void ref_mamba(Backend *backend, const Mamba *op) {
    RefBackend *r = ref_backend(backend);
    const int64_t state = op->channels * op->state;
    float *h = ref_take(r, 2 * state + 2 * op->channels + op->state);
    for (int i = 0; h && i < r->step.chunk_count; i++) {
        const SequenceChunk *chunk = &r->step.chunks[i];
        float *before = h + state, *row = before + state;
        load_state(op, chunk, h);
        for (int t = 0; t < chunk->rows; t++) {
            const int64_t at = chunk->row + t;
            memcpy(before, h, (size_t)state * sizeof *h);
            fill_row(op, at, row);
            advance(op, row, h);
            for (int64_t channel = 0; channel < op->channels; channel++) {
                float y = 0;
                for (int n = 0; n < op->state; n++) y += h[channel * op->state + n] * op->c[at * op->state + n];
                op->out[at * op->channels + channel] = y + op->skip[channel] * op->x[at * op->channels + channel];
            }
            store_mamba(op, chunk, chunk->position + t, row, before, h);
        }
    }
    free(h);
}

/* ---- RG-LRU ---- */

static float gate_at(const RgLru *op, const float *x, const float *weight, const float *bias, int64_t channel) {
    const int64_t width = op->channels / op->heads, first = channel / width * width;
    float sum = bias[channel];
    for (int64_t i = 0; i < width; i++) sum += x[first + i] * weight[(first + i) * width + channel - first];
    return sigmoid(sum);
}

/* The state behind a row; before: NULL at the beginning of a text. */
static void rg_lru_row(const RgLru *op, const float *x, const float *before, float *h) {
    for (int64_t c = 0; c < op->channels; c++) {
        const float log_a = op->rate[c] * gate_at(op, x, op->decay_gate, op->decay_bias, c);
        const float root = before ? sqrtf(1 - expf(2 * log_a)) : 1;
        h[c] = expf(log_a) * (before ? before[c] : 0) + root * gate_at(op, x, op->input_gate, op->input_bias, c) * x[c];
    }
}

void ref_rg_lru(Backend *backend, const RgLru *op) {
    const RefBackend *r = ref_backend(backend);
    for (int i = 0; i < r->step.chunk_count; i++) {
        const SequenceChunk *chunk = &r->step.chunks[i];
        for (int t = 0; t < chunk->rows; t++) {
            const int position = chunk->position + t;
            float *h = op->out + (chunk->row + t) * op->channels;
            const float *before = NULL;
            if (t > 0) before = h - op->channels;
            if (t == 0 && position > 0)
                before = recurrent_row(&op->place, page_of(&op->place, chunk, position - 1), (position - 1) % C);
            rg_lru_row(op, op->x + (chunk->row + t) * op->channels, before, h);
            const int32_t page = page_of(&op->place, chunk, position);
            if (page >= 0) memcpy(recurrent_row(&op->place, page, position % C), h, (size_t)op->channels * sizeof *h);
        }
    }
}

/* ---- gated norm ---- */

static float gate_of(const GatedNorm *op, int64_t at) {
    if (op->gate_kind == GATE_NONE) return 1;
    const float x = op->gate_scale * op->gate[at];
    return op->gate_kind == GATE_SILU ? x * sigmoid(x) : sigmoid(x);
}

void ref_gated_norm(Backend *backend, const GatedNorm *op) {
    const int64_t group = op->group ? op->group : op->width;
    const Norm norm = {.kind = NORM_RMS, .width = group, .eps = op->eps};
    for (int64_t first = 0; first < op->rows * op->width; first += group) {
        float *out = op->out + first;
        for (int64_t i = 0; i < group; i++) out[i] = op->x[first + i] * (op->gate_first ? gate_of(op, first + i) : 1);
        if (op->group) ref_norm_row(out, &norm, group, out);
        for (int64_t i = 0; i < group; i++) {
            if (op->group && op->weight) out[i] *= op->weight[(first + i) % op->width];
            if (!op->gate_first) out[i] *= gate_of(op, first + i);
        }
    }
}
