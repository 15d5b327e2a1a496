/* Operations of recurrent layers on every backend: against the plain recurrence in double, and the same bits however a
 * text is cut into steps, whatever else is in the step, after rows that were taken back, and on any number of threads.
 */
#include "backend/recurrent.h"
#include "backend/steps.h"
#include "ops.h"

enum { TEXT = 200, TEXT_LONG = 10000, ROWS_MAX = 256, THREADS_MAX = 3, INPUTS_MAX = 6 };
enum { C = RECURRENT_PAGE_TOKENS, TEXTS_MAX = 5 /* of a step */ };

/* One operation and the inputs of a text: rows of in[i] have width[i] floats. */
typedef struct Case {
    const char *name;
    int64_t anchor_width, row_width, work_width;
    int64_t out_width;
    bool aligned; /* the operation's parts of an anchor and of a row begin at multiples of 64 bytes */
    int64_t width[INPUTS_MAX];
    float *in[INPUTS_MAX];
    void (*run)(
        const struct Case *, Backend *, const RecurrentPart *, int rows, float *const *in, float *work, float *out);
    Recurrence recurrence;
    Conv conv;
    Mamba mamba;
    RgLru rg_lru;
    GatedNorm norm;
} Case;

/* ---- a sequence on a backend ---- */

typedef struct Text {
    Backend *backend;
    const Case *c;
    KvLayer kv;
    RecurrentPart place;
    int pages; /* TEXTS_MAX times as many as a text has */
    int which; /* the text's number among those that share the pages */
    int32_t *table;
} Text;

/* Offsets that are not 0, as behind the part of another operation. */
static Text text_open(Backend *backend, const Case *c, int tokens) {
    Text t = {.backend = backend, .c = c, .pages = TEXTS_MAX * (tokens / C + 2)};
    const int64_t anchor_at = c->aligned ? 16 : 5, anchor = c->anchor_width + anchor_at;
    const int64_t row_at = c->aligned ? 16 : 3, row = c->row_width + row_at;
    Error error;
    t.kv.layout = (KvLayout){
        .dtype = DTYPE_F32, .anchor_bytes = (size_t)anchor * sizeof(float), .row_bytes = (size_t)row * sizeof(float)};
    t.kv.page_tokens = C;
    t.kv.page_stride = (kv_canonical_bytes(&t.kv.layout, C) + 63) / 64 * 64 + 64;
    t.kv.layer_offset = 64;
    const size_t bytes = t.kv.page_stride * (size_t)t.pages;
    t.kv.base = backend->ops->alloc(backend, bytes, MEMORY_CACHE, &error);
    t.table = malloc((size_t)t.pages * sizeof *t.table);
    if (!t.kv.base || !t.table) abort();
    memset(t.kv.base, 0xff, bytes); /* NaN */
    t.place = (RecurrentPart){t.kv, anchor_at, row_at};
    return t;
}

static void text_close(Text *t) {
    t->backend->ops->release(t->backend, t->kv.base);
    free(t->table);
}

/* Pages of a step: that of the row before it and that of its last row; those between are not stored. */
static void set_table(Text *t, int begin, int rows) {
    for (int i = 0; i < t->pages; i++) t->table[i] = -1;
    const int first = begin > 0 ? (begin - 1) / C : -1, last = (begin + rows - 1) / C;
    if (first >= 0) t->table[first] = t->pages - 1 - TEXTS_MAX * first - t->which;
    t->table[last] = t->pages - 1 - TEXTS_MAX * last - t->which;
}

/* One step over some texts: rows [position, position + rows) of each, whose inputs are those of the case; results go to
 * out[i] + position rows. */
static void step(Text *const *texts, int count, const int *positions, const int *rows, float *const *out) {
    const Case *c = texts[0]->c;
    Backend *backend = texts[0]->backend;
    static const int32_t zeros[ROWS_MAX];
    StepSequence sequences[TEXTS_MAX];
    const int32_t *tables[TEXTS_MAX];
    int first[TEXTS_MAX], total = 0;
    for (int i = 0; i < count; i++) {
        set_table(texts[i], positions[i], rows[i]);
        tables[i] = texts[i]->table;
        sequences[i] = (StepSequence){.rows = rows[i], .position = positions[i], .tables = &tables[i], .tokens = zeros};
        first[i] = total;
        total += rows[i];
    }
    float *in[INPUTS_MAX] = {0};
    for (int i = 0; i < INPUTS_MAX; i++) {
        if (!c->in[i]) continue;
        in[i] = malloc((size_t)(total * c->width[i] + 1) * sizeof(float));
        for (int n = 0; n < count; n++)
            memcpy(in[i] + first[n] * c->width[i], c->in[i] + positions[n] * c->width[i],
                (size_t)(rows[n] * c->width[i]) * sizeof(float));
    }
    float *work = malloc((size_t)(total * c->work_width + 1) * sizeof(float));
    float *result = malloc((size_t)(total * c->out_width) * sizeof(float));
    backend->ops->begin(backend, step_of(count, sequences));
    /* All texts of a step lie in the pages of the first. */
    c->run(c, backend, &texts[0]->place, total, in, work, result);
    backend->ops->wait(backend, backend->ops->submit(backend), NULL);
    for (int n = 0; n < count; n++)
        memcpy(out[n] + positions[n] * c->out_width, result + first[n] * c->out_width,
            (size_t)(rows[n] * c->out_width) * sizeof(float));
    for (int i = 0; i < INPUTS_MAX; i++) free(in[i]);
    free(work);
    free(result);
}

/* The text from `begin` to `end` in steps of `cut` rows. */
static void read_text(Text *t, int begin, int end, int cut, float *out) {
    for (int rows; begin < end; begin += rows) {
        rows = end - begin < cut ? end - begin : cut;
        step(&t, 1, &begin, &rows, &out);
    }
}

/* ---- cases ---- */

static void run_recurrence(
    const Case *c, Backend *backend, const RecurrentPart *place, int rows, float *const *in, float *work, float *out) {
    Recurrence op = c->recurrence;
    op.place = *place;
    op.rows = rows;
    op.q = in[0];
    op.k = in[1];
    op.v = in[2];
    op.a = in[3];
    op.b = in[4];
    op.work = work;
    op.out = out;
    backend->ops->recurrence(backend, &op);
}

static void run_conv(
    const Case *c, Backend *backend, const RecurrentPart *place, int rows, float *const *in, float *work, float *out) {
    Conv op = c->conv;
    op.place = *place;
    op.rows = rows;
    float *to = op.part_count > 1 ? work : out;
    for (int i = 0; i < op.part_count; i++) {
        op.part[i].x = in[i];
        op.part[i].out = to;
        to += rows * op.part[i].channels;
    }
    op.in_gate = in[4];
    op.out_gate = in[5];
    backend->ops->conv(backend, &op);
    /* The parts' results side by side. */
    for (int64_t i = 0, first = 0; op.part_count > 1 && i < op.part_count; first += op.part[i++].channels)
        for (int row = 0; row < rows; row++)
            memcpy(out + row * c->out_width + first, op.part[i].out + row * op.part[i].channels,
                (size_t)op.part[i].channels * sizeof *out);
}

static void run_mamba(
    const Case *c, Backend *backend, const RecurrentPart *place, int rows, float *const *in, float *work, float *out) {
    Mamba op = c->mamba;
    op.place = *place;
    op.rows = rows;
    op.x = in[0];
    op.dt = in[1];
    op.b = in[2];
    op.c = in[3];
    op.out = out;
    backend->ops->mamba(backend, &op);
}

static void run_rg_lru(
    const Case *c, Backend *backend, const RecurrentPart *place, int rows, float *const *in, float *work, float *out) {
    RgLru op = c->rg_lru;
    op.place = *place;
    op.rows = rows;
    op.x = in[0];
    op.out = out;
    backend->ops->rg_lru(backend, &op);
}

/* A convolution, the recurrence and the gated norm of it, as one where the backend has that. in[5]: the gate. */
static void run_block(
    const Case *c, Backend *backend, const RecurrentPart *place, int rows, float *const *in, float *work, float *out) {
    Conv conv = c->conv;
    Recurrence op = c->recurrence;
    GatedNorm norm = c->norm;
    op.place = conv.place = *place;
    conv.place.anchor_at += recurrence_anchor_width(&op);
    conv.place.row_at += recurrence_row_width(&op);
    conv.rows = op.rows = norm.rows = rows;
    float *to[3], *next = work;
    for (int i = 0; i < 3; i++) {
        conv.part[i].x = in[i];
        conv.part[i].out = to[i] = next;
        next += rows * conv.part[i].channels;
    }
    op.q = to[0];
    op.k = to[1];
    op.v = to[2];
    op.a = in[3];
    op.b = in[4];
    op.work = next;
    op.out = out;
    norm.x = norm.out = out;
    norm.gate = in[5];
    const RecurrentBlock block = {&conv, &op, &norm};
    if (backend->ops->recurrent_block && backend->ops->recurrent_block(backend, &block)) return;
    backend->ops->conv(backend, &conv);
    backend->ops->recurrence(backend, &op);
    backend->ops->gated_norm(backend, &norm);
}

static void take_inputs(Case *c, int tokens) {
    for (int i = 0; i < INPUTS_MAX; i++)
        if (c->width[i]) c->in[i] = random_floats(tokens * c->width[i], 1);
}

static void close_case(Case *c) {
    for (int i = 0; i < INPUTS_MAX; i++) free(c->in[i]);
}

/* ---- the recurrences as their papers have them, in double ---- */

static double softplus_of(double x) { return x > 30 ? x : log1p(exp(x)); }
static double sigmoid_of(double x) { return 1 / (1 + exp(-x)); }

static void normal_head(
    const Recurrence *op, const float *x, const Norm *norm, float scale, int position, double *out) {
    double square = 0;
    const Rope *rope = op->rope;
    for (int i = 0; i < op->key_dim; i++) square += (double)x[i] * x[i];
    for (int i = 0; i < op->key_dim; i++)
        out[i] =
            norm ? x[i] / sqrt(square / op->key_dim + (double)norm->eps) * (norm->weight ? norm->weight[i] : 1) : x[i];
    for (int i = 0; rope && i < rope->dims / 2; i++) {
        const double angle = (double)((float)position * rope->frequencies[i]);
        double *one = &out[i], *other = &out[i + rope->dims / 2];
        const double x0 = *one, x1 = *other;
        *one = x0 * cos(angle) - x1 * sin(angle);
        *other = x0 * sin(angle) + x1 * cos(angle);
    }
    for (int i = 0; i < op->key_dim; i++) out[i] *= (double)scale;
}

static void plain_recurrence(const Case *c, int tokens, float *out) {
    const Recurrence *op = &c->recurrence;
    const int kd = op->key_dim, vd = op->value_dim, each = op->channel_decay ? kd : 1;
    double *s = calloc((size_t)(kd * vd), sizeof *s), q[RECURRENT_DIM_MAX], k[RECURRENT_DIM_MAX];
    if (!s) abort();
    for (int h = 0; h < op->value_heads; h++) {
        const int key_head = op->tiled ? h % op->key_heads : h / (op->value_heads / op->key_heads);
        memset(s, 0, (size_t)(kd * vd) * sizeof *s);
        for (int t = 0; t < tokens; t++) {
            const float *v = c->in[2] + t * c->width[2] + h * vd;
            double dt = 1;
            normal_head(op, c->in[0] + t * c->width[0] + key_head * kd, op->q_norm, op->q_scale, t, q);
            normal_head(op, c->in[1] + t * c->width[1] + key_head * kd, op->k_norm, op->k_scale, t, k);
            for (int i = 0; i < kd; i++) {
                const int at = h * each + (each > 1 ? i : 0);
                const double bias = op->dt_bias ? (double)op->dt_bias[at] : 0;
                if (op->dt_slope)
                    dt = sigmoid_of((double)op->dt_slope[h] * (c->in[3][t * c->width[3] + at] + bias));
                else if (c->in[3])
                    dt = softplus_of((double)op->dt_scale * c->in[3][t * c->width[3] + at] + bias);
                dt = fmin(fmax(dt, (double)op->dt_min), (double)op->dt_max);
                for (int j = 0; j < vd; j++) s[i * vd + j] *= exp((double)op->rate[h] * dt);
            }
            for (int j = 0; j < vd; j++) {
                double had = 0, y = 0, u = dt * v[j];
                for (int i = 0; i < kd; i++) had += s[i * vd + j] * k[i];
                if (op->kind == RECURRENCE_DELTA)
                    u = (c->in[4] ? sigmoid_of((double)c->in[4][t * c->width[4] + h]) : 1) * (v[j] - had);
                for (int i = 0; i < kd; i++) y += (s[i * vd + j] += k[i] * u) * q[i];
                out[t * c->out_width + h * vd + j] = (float)(y + (op->skip ? (double)op->skip[h] * v[j] : 0));
            }
        }
    }
    free(s);
}

static void plain_conv(const Case *c, int tokens, float *out) {
    const Conv *op = &c->conv;
    for (int64_t part = 0, first = 0; part < op->part_count; first += op->part[part++].channels)
        for (int t = 0; t < tokens; t++)
            for (int64_t i = 0; i < op->part[part].channels; i++) {
                const ConvPart *p = &op->part[part];
                double sum = p->bias ? (double)p->bias[i] : 0;
                for (int n = 0; n < op->taps; n++) {
                    const int from = t - op->taps + 1 + n;
                    if (from < 0) continue;
                    const int64_t at = from * p->channels + i;
                    sum +=
                        (double)p->weight[i * op->taps + n] * c->in[part][at] * (c->in[4] ? (double)c->in[4][at] : 1);
                }
                if (op->silu) sum *= sigmoid_of(sum);
                out[t * c->out_width + first + i] =
                    (float)(sum * (c->in[5] ? (double)c->in[5][t * p->channels + i] : 1));
            }
}

static void plain_mamba(const Case *c, int tokens, float *out) {
    const Mamba *op = &c->mamba;
    double h[RECURRENT_DIM_MAX];
    for (int64_t i = 0; i < op->channels; i++) {
        memset(h, 0, sizeof h);
        for (int t = 0; t < tokens; t++) {
            const double x = c->in[0][t * op->channels + i], dt = softplus_of(c->in[1][t * op->channels + i]);
            double y = (double)op->skip[i] * x;
            for (int n = 0; n < op->state; n++) {
                h[n] = exp((double)op->rate[i * op->state + n] * dt) * h[n] + dt * x * c->in[2][t * op->state + n];
                y += h[n] * c->in[3][t * op->state + n];
            }
            out[t * op->channels + i] = (float)y;
        }
    }
}

static double gate_of(const RgLru *op, const float *x, const float *weight, const float *bias, int64_t channel) {
    const int64_t width = op->channels / op->heads, first = channel / width * width;
    double sum = (double)bias[channel];
    for (int64_t i = 0; i < width; i++) sum += (double)x[first + i] * weight[(first + i) * width + channel - first];
    return sigmoid_of(sum);
}

static void plain_rg_lru(const Case *c, int tokens, float *out) {
    const RgLru *op = &c->rg_lru;
    for (int64_t i = 0; i < op->channels; i++) {
        double h = 0;
        for (int t = 0; t < tokens; t++) {
            const float *x = c->in[0] + t * op->channels;
            const double log_a = (double)op->rate[i] * gate_of(op, x, op->decay_gate, op->decay_bias, i);
            const double root = t == 0 ? 1 : sqrt(1 - exp(2 * log_a));
            h = exp(log_a) * h + root * gate_of(op, x, op->input_gate, op->input_bias, i) * (double)x[i];
            out[t * op->channels + i] = (float)h;
        }
    }
}

/* ---- checks ---- */

/* Largest error relative to the largest result. */
static double error_of(const float *got, const float *wanted, int64_t count) {
    double most = 0, error = 0;
    for (int64_t i = 0; i < count; i++) {
        most = fmax(most, fabs((double)wanted[i]));
        if (!isfinite(got[i])) return INFINITY;
        error = fmax(error, fabs((double)got[i] - wanted[i]));
    }
    return error / fmax(most, 1e-30);
}

/* All cuts into steps give the bits of `whole`; so do rows that were taken back and read again. */
static void check_cuts(Backend *backend, const Case *c, const float *whole, const char *name) {
    static const int cuts[] = {1, 2, 3, 31, 32, 33, 63, 64, 65, 127};
    const int64_t count = TEXT * c->out_width;
    float *out = malloc((size_t)count * sizeof *out);
    const bool sampled = is_device(name) && test_sampled(); /* perhaps emulated */
    for (size_t i = 0; i < COUNT_OF(cuts); i += sampled ? 5 : test_sampled() ? 2 : 1) {
        Text t = text_open(backend, c, TEXT);
        read_text(&t, 0, TEXT, cuts[i], out);
        TEST_MSG(same_bits(out, whole, count), "%s on %s: steps of %d", c->name, name, cuts[i]);
        text_close(&t);
    }
    for (int end = 1; end < TEXT; end += sampled ? 91 : 13) {
        Text t = text_open(backend, c, TEXT);
        /* A step across an anchor whose rows are not accepted; the text then goes on otherwise. */
        Case other = *c;
        for (int n = 0; n < INPUTS_MAX; n++)
            if (c->in[n]) other.in[n] = copy_floats(c->in[n], TEXT * c->width[n]);
        for (int n = 0; n < INPUTS_MAX; n++)
            for (int64_t at = end * c->width[n]; c->in[n] && at < TEXT * c->width[n]; at++) other.in[n][at] *= -0.5f;
        read_text(&t, 0, end, 50, out);
        t.c = &other;
        read_text(&t, end, end + 20 < TEXT ? end + 20 : TEXT, 20, out);
        t.c = c;
        read_text(&t, end, TEXT, 40, out);
        TEST_MSG(same_bits(out, whole, count), "%s on %s: taken back to %d", c->name, name, end);
        text_close(&t);
        close_case(&other);
    }
    free(out);
}

/* Two texts in one step, each at a position of its own. */
static void check_batch(Backend *backend, const Case *c, const float *whole, const char *name) {
    const int64_t count = TEXT * c->out_width;
    float *out[2] = {malloc((size_t)count * sizeof **out), malloc((size_t)count * sizeof **out)};
    Text one = text_open(backend, c, TEXT), other = one;
    other.which = 1;
    other.table = malloc((size_t)one.pages * sizeof *other.table);
    for (int at[2] = {0, 0}, rows[2]; at[0] < TEXT || at[1] < TEXT;) {
        Text *const texts[2] = {&one, &other};
        rows[0] = TEXT - at[0] < 37 ? TEXT - at[0] : 37;
        rows[1] = TEXT - at[1] < 11 ? TEXT - at[1] : 11;
        const bool both = rows[0] && rows[1];
        if (both) {
            step(texts, 2, at, rows, out);
        } else {
            const int n = rows[0] ? 0 : 1;
            step(&texts[n], 1, &at[n], &rows[n], &out[n]);
        }
        at[0] += rows[0];
        at[1] += rows[1];
    }
    for (int n = 0; n < 2; n++) TEST_MSG(same_bits(out[n], whole, count), "%s on %s: text %d of two", c->name, name, n);
    free(other.table);
    text_close(&one);
    free(out[0]);
    free(out[1]);
}

/* Texts in steps of single rows, each at a position of its own. */
static void check_single_rows(Backend *backend, const Case *c, const float *whole, const char *name) {
    const int64_t count = TEXT * c->out_width;
    Text text[TEXTS_MAX];
    float *out[TEXTS_MAX];
    int at[TEXTS_MAX];
    text[0] = text_open(backend, c, TEXT);
    for (int n = 0; n < TEXTS_MAX; n++) {
        if (n) text[n] = text[0];
        text[n].which = n;
        if (n) text[n].table = malloc((size_t)text[0].pages * sizeof *text[n].table);
        out[n] = malloc((size_t)count * sizeof *out[n]);
        at[n] = n * 23 % 70;
        read_text(&text[n], 0, at[n], ROWS_MAX, out[n]);
    }
    for (bool left = true; left;) {
        Text *texts[TEXTS_MAX];
        float *to[TEXTS_MAX];
        int positions[TEXTS_MAX], rows[TEXTS_MAX], all = 0;
        for (int n = 0; n < TEXTS_MAX; n++) {
            if (at[n] == TEXT) continue;
            texts[all] = &text[n];
            to[all] = out[n];
            positions[all] = at[n]++;
            rows[all++] = 1;
        }
        left = all > 0;
        if (left) step(texts, all, positions, rows, to);
    }
    for (int n = 0; n < TEXTS_MAX; n++) {
        TEST_MSG(same_bits(out[n], whole, count), "%s on %s: text %d of single rows", c->name, name, n);
        free(out[n]);
        if (n) free(text[n].table);
    }
    text_close(&text[0]);
}

typedef void Plain(const Case *, int tokens, float *out);

static void check_case(Case *c, Plain *plain) {
    const int64_t count = TEXT * c->out_width;
    float *wanted = malloc((size_t)count * sizeof *wanted), *whole = malloc((size_t)count * sizeof *whole);
    float *first = malloc((size_t)count * sizeof *first);
    plain(c, TEXT, wanted);
    for (size_t i = 0; i <= COUNT_OF(vector_names); i++) {
        const char *name = i ? vector_names[i - 1] : "ref";
        for (int threads = 1; threads <= (i && !is_device(name) ? THREADS_MAX : 1); threads++) {
            Backend *backend = open_backend(name, threads, false, ROWS_MAX);
            if (!backend) break;
            if (!backend->ops->recurrence) {
                test_skip("backend %s: no recurrent layers", name);
                backend_close(backend);
                break;
            }
            Text t = text_open(backend, c, TEXT);
            read_text(&t, 0, TEXT, TEXT, whole);
            text_close(&t);
            const double error = error_of(whole, wanted, count);
            TEST_MSG(error <= 1e-5, "%s on %s: %g of the largest", c->name, name, error);
            if (threads == 1) memcpy(first, whole, (size_t)count * sizeof *first);
            TEST_MSG(same_bits(first, whole, count), "%s on %s: %d threads", c->name, name, threads);
            if (threads == 1) {
                check_cuts(backend, c, whole, name);
                check_batch(backend, c, whole, name);
                if (c->aligned) check_single_rows(backend, c, whole, name);
            }
            backend_close(backend);
        }
    }
    free(wanted);
    free(whole);
    free(first);
}

/* ---- recurrences ---- */

typedef struct HeadShape {
    const char *name;
    RecurrenceKind kind;
    int key_heads, value_heads, key_dim, value_dim;
    bool channel_decay, norm, rope, steps, bounded, beta, skip, tiled, aligned;
} HeadShape;

static Case recurrence_case(const HeadShape *s, int tokens) {
    static Norm norm;
    static Rope rope;
    static float rates[64], slopes[64], biases[64 * RECURRENT_DIM_MAX], skips[64], frequencies[RECURRENT_DIM_MAX / 2];
    static float weights[RECURRENT_DIM_MAX];
    const int64_t keys = (int64_t)s->key_heads * s->key_dim, values = (int64_t)s->value_heads * s->value_dim;
    const int64_t decays = s->channel_decay ? s->key_dim : 1;
    norm = (Norm){
        .kind = NORM_RMS, .width = s->key_dim, .eps = 1e-6f / (float)s->key_dim, .weight = s->rope ? weights : NULL};
    rope = (Rope){.dims = s->key_dim / 2 / 2 * 2, .frequencies = frequencies, .scale = 1};
    for (int i = 0; i < RECURRENT_DIM_MAX / 2; i++) frequencies[i] = powf(100, -(float)i / (float)s->key_dim);
    for (int i = 0; i < RECURRENT_DIM_MAX; i++) weights[i] = 1 + 0.3f * test_uniform(&ops_seed);
    for (int i = 0; i < 64; i++) rates[i] = -expf(1.5f * test_uniform(&ops_seed)), skips[i] = test_uniform(&ops_seed);
    for (int i = 0; i < 64; i++) slopes[i] = 0.5f + 2 * (float)(i % 3);
    for (int i = 0; i < 64 * RECURRENT_DIM_MAX; i++) biases[i] = 2 * test_uniform(&ops_seed) - 1;
    Case c = {.name = s->name, .run = run_recurrence, .out_width = values, .aligned = s->aligned};
    const float scale = 1 / sqrtf((float)s->key_dim);
    c.recurrence = (Recurrence){.kind = s->kind,
        .key_heads = s->key_heads,
        .value_heads = s->value_heads,
        .key_dim = s->key_dim,
        .value_dim = s->value_dim,
        .tiled = s->tiled,
        .channel_decay = s->channel_decay,
        .q_norm = s->norm ? &norm : NULL,
        .k_norm = s->norm ? &norm : NULL,
        .rope = s->rope ? &rope : NULL,
        .q_scale = s->norm ? scale * scale : 1,
        .k_scale = s->kind == RECURRENCE_DELTA ? scale : 1,
        .rate = rates,
        .dt_bias = s->steps ? biases : NULL,
        .dt_slope = s->bounded ? slopes : NULL,
        .dt_scale = 0.75f,
        .dt_min = s->skip ? 0.01f : 0,
        .dt_max = s->skip ? 2 : INFINITY,
        .skip = s->skip ? skips : NULL};
    const int64_t widths[] = {keys, keys, values, s->steps ? s->value_heads * decays : 0, s->beta ? s->value_heads : 0};
    memcpy(c.width, widths, sizeof widths);
    c.anchor_width = recurrence_anchor_width(&c.recurrence);
    c.row_width = recurrence_row_width(&c.recurrence);
    c.work_width = recurrence_width(&c.recurrence);
    take_inputs(&c, tokens);
    return c;
}

static void check_recurrences(void) {
    static const HeadShape shapes[] = {
        {"delta", RECURRENCE_DELTA, 2, 4, 32, 48, .norm = true, .steps = true, .beta = true},
        {"delta 128", RECURRENCE_DELTA, 1, 2, 128, 128, .norm = true, .steps = true, .beta = true},
        {"delta odd", RECURRENCE_DELTA, 3, 3, 19, 21, .norm = true, .steps = true, .beta = true},
        {"delta without gates", RECURRENCE_DELTA, 2, 2, 16, 16, .norm = true},
        {"kda", RECURRENCE_DELTA, 2, 2, 40, 32, .channel_decay = true, .norm = true, .steps = true, .beta = true},
        {"kda bounded", RECURRENCE_DELTA, 3, 3, 24, 19, .channel_decay = true, .norm = true, .steps = true,
            .bounded = true, .beta = true},
        {"ssd", RECURRENCE_SSD, 2, 8, 32, 16, .steps = true, .skip = true},
        {"ssd 128", RECURRENCE_SSD, 1, 3, 128, 64, .steps = true, .skip = true},
        {"ssd odd", RECURRENCE_SSD, 1, 5, 7, 9, .steps = true, .skip = true},
        {"lightning", RECURRENCE_SSD, 4, 4, 32, 32, .norm = true, .rope = true},
        {"delta 128 aligned", RECURRENCE_DELTA, 1, 2, 128, 128, .norm = true, .steps = true, .beta = true,
            .aligned = true},
        {"delta of many heads", RECURRENCE_DELTA, 8, 48, 20, 28, .norm = true, .steps = true, .beta = true,
            .tiled = true, .aligned = true},
        {"ssd aligned", RECURRENCE_SSD, 2, 6, 128, 64, .steps = true, .skip = true, .aligned = true},
    };
    for (size_t i = 0; i < COUNT_OF(shapes); i++) {
        Case c = recurrence_case(&shapes[i], TEXT);
        check_case(&c, plain_recurrence);
        close_case(&c);
    }
}

/* Decays between 1e-22 and 1 − 1e-6 over a long text: nothing overflows, and the error does not grow. */
static void check_long(void) {
    static const HeadShape shapes[] = {
        {"delta", RECURRENCE_DELTA, 1, 3, 32, 32, .norm = true, .steps = true, .beta = true},
        {"ssd", RECURRENCE_SSD, 1, 3, 16, 16, .steps = true}};
    for (size_t i = 0; i < COUNT_OF(shapes); i++) {
        Case c = recurrence_case(&shapes[i], TEXT_LONG);
        for (int64_t at = 0; at < TEXT_LONG * c.width[3]; at++) {
            const uint64_t kind = test_random(&ops_seed) % 8;
            const int64_t head = at % c.width[3];
            c.in[3][at] = head == 0 || (head == 1 && kind) ? -18 + 2 * c.in[3][at] : kind < 2 ? 60 : 2 * c.in[3][at];
        }
        const int64_t count = TEXT_LONG * c.out_width, tenth = count / 10;
        float *wanted = malloc((size_t)count * sizeof *wanted), *out = malloc((size_t)count * sizeof *out);
        plain_recurrence(&c, TEXT_LONG, wanted);
        for (size_t n = 0; n <= COUNT_OF(vector_names); n++) {
            const char *name = n ? vector_names[n - 1] : "ref";
            Backend *backend = open_backend(name, 1, false, ROWS_MAX);
            const bool skipped = is_device(name) && test_sampled();
            if (backend && backend->ops->recurrence && !skipped) {
                Text t = text_open(backend, &c, TEXT_LONG);
                read_text(&t, 0, TEXT_LONG, ROWS_MAX, out);
                text_close(&t);
                const double begin = error_of(out, wanted, tenth);
                const double end = error_of(out + count - tenth, wanted + count - tenth, tenth);
                TEST_MSG(begin <= 1e-5 && end <= 1e-5, "%s on %s: %g, later %g", c.name, name, begin, end);
            }
            if (backend) backend_close(backend);
        }
        free(wanted);
        free(out);
        close_case(&c);
    }
}

/* ---- the others ---- */

static void check_convs(void) {
    static float weights[3][64 * CONV_TAPS_MAX], biases[3][64];
    for (int n = 0; n < 3; n++) {
        for (int i = 0; i < 64 * CONV_TAPS_MAX; i++) weights[n][i] = test_uniform(&ops_seed);
        for (int i = 0; i < 64; i++) biases[n][i] = test_uniform(&ops_seed);
    }
    static const struct {
        const char *name;
        int taps, parts;
        int channels[3];
        bool silu, bias, gates, aligned;
    } shapes[] = {{"conv of three", 4, 3, {32, 17, 48}, true, false, false, false},
        {"gated conv", 3, 1, {41}, false, true, true, false}, {"conv 8", 8, 1, {16}, true, true, false, false},
        {"conv 1", 1, 1, {16}, false, true, false, false},
        {"conv of three, aligned", 4, 3, {32, 64, 48}, true, false, false, true},
        {"gated conv, aligned", 3, 1, {44}, true, true, true, true}};
    for (size_t i = 0; i < COUNT_OF(shapes); i++) {
        Case c = {.name = shapes[i].name, .run = run_conv, .aligned = shapes[i].aligned};
        c.conv = (Conv){.taps = shapes[i].taps, .silu = shapes[i].silu, .part_count = shapes[i].parts};
        for (int n = 0; n < shapes[i].parts; n++) {
            c.conv.part[n] = (ConvPart){
                .channels = shapes[i].channels[n], .weight = weights[n], .bias = shapes[i].bias ? biases[n] : NULL};
            c.width[n] = shapes[i].channels[n];
        }
        if (shapes[i].gates) c.width[4] = c.width[5] = c.width[0];
        c.out_width = c.work_width = conv_channels(&c.conv);
        c.anchor_width = conv_anchor_width(&c.conv);
        c.row_width = conv_row_width(&c.conv);
        take_inputs(&c, TEXT);
        check_case(&c, plain_conv);
        close_case(&c);
    }
}

static void plain_gated_norm(const GatedNorm *op, float *out);
static void plain_block(const Case *c, int tokens, float *out) {
    Case conv = *c, then = *c;
    conv.in[4] = conv.in[5] = NULL;
    conv.out_width = conv_channels(&c->conv);
    float *all = malloc((size_t)(tokens * conv.out_width) * sizeof *all);
    plain_conv(&conv, tokens, all);
    for (int64_t part = 0, first = 0; part < 3; first += c->width[part++]) {
        then.in[part] = malloc((size_t)(tokens * c->width[part]) * sizeof(float));
        for (int t = 0; t < tokens; t++)
            memcpy(then.in[part] + t * c->width[part], all + t * conv.out_width + first,
                (size_t)c->width[part] * sizeof(float));
    }
    plain_recurrence(&then, tokens, out);
    GatedNorm norm = c->norm;
    norm.rows = tokens;
    norm.x = out;
    norm.gate = c->in[5];
    plain_gated_norm(&norm, out);
    for (int part = 0; part < 3; part++) free(then.in[part]);
    free(all);
}

/* Few single rows are one kernel where a backend has it; others, and more rows, are three operations. */
static void check_blocks(void) {
    enum { CHANNELS = 4 * 128 };
    static float weights[3][CHANNELS * 4], biases[CHANNELS], norms[CHANNELS];
    for (int n = 0; n < 3; n++)
        for (int i = 0; i < CHANNELS * 4; i++) weights[n][i] = test_uniform(&ops_seed);
    for (int i = 0; i < CHANNELS; i++)
        biases[i] = test_uniform(&ops_seed), norms[i] = 1 + 0.3f * test_uniform(&ops_seed);
    static const HeadShape shapes[] = {
        {"delta behind a conv", RECURRENCE_DELTA, 2, 4, 128, 128, .norm = true, .steps = true, .beta = true,
            .aligned = true},
        {"tiled delta behind a conv", RECURRENCE_DELTA, 2, 4, 128, 128, .norm = true, .rope = true, .tiled = true,
            .aligned = true},
        {"ssd behind a conv", RECURRENCE_SSD, 1, 3, 128, 128, .steps = true, .skip = true, .aligned = true},
    };
    for (size_t i = 0; i < COUNT_OF(shapes); i++) {
        const bool ssd = shapes[i].kind == RECURRENCE_SSD;
        Case c = recurrence_case(&shapes[i], TEXT);
        close_case(&c);
        c.run = run_block;
        c.conv = (Conv){.taps = 4, .silu = true, .part_count = 3};
        for (int n = 0; n < 3; n++)
            c.conv.part[n] = (ConvPart){.channels = c.width[n], .weight = weights[n], .bias = ssd ? biases : NULL};
        c.norm = (GatedNorm){.width = c.out_width,
            .group = 128,
            .eps = 1e-5f,
            .weight = norms,
            .gate_kind = shapes[i].tiled ? GATE_SIGMOID : GATE_SILU,
            .gate_first = ssd,
            .gate_scale = 0.7f};
        c.width[5] = c.out_width;
        c.work_width += conv_channels(&c.conv);
        c.anchor_width += conv_anchor_width(&c.conv);
        c.row_width += conv_row_width(&c.conv);
        take_inputs(&c, TEXT);
        check_case(&c, plain_block);
        close_case(&c);
    }
}

static void check_mambas(void) {
    static float rates[48 * 24], skips[48];
    for (int i = 0; i < 48 * 24; i++) rates[i] = -expf(2 * test_uniform(&ops_seed));
    for (int i = 0; i < 48; i++) skips[i] = test_uniform(&ops_seed);
    static const int states[] = {16, 5, 24};
    for (size_t i = 0; i < COUNT_OF(states); i++) {
        Case c = {.name = "mamba", .run = run_mamba, .out_width = 48, .width = {48, 48, states[i], states[i]}};
        c.mamba = (Mamba){.channels = 48, .state = states[i], .rate = rates, .skip = skips};
        c.anchor_width = mamba_anchor_width(&c.mamba);
        c.row_width = mamba_row_width(&c.mamba);
        take_inputs(&c, TEXT);
        check_case(&c, plain_mamba);
        close_case(&c);
    }
}

static void check_rg_lru(int heads) {
    enum { CHANNELS = 192 };
    const int gates_count = CHANNELS * CHANNELS / heads;
    float rates[CHANNELS];
    for (int i = 0; i < CHANNELS; i++) rates[i] = -8 * fabsf(test_uniform(&ops_seed)) - 0.01f;
    float *gates = random_floats(2 * gates_count, 1), *biases = random_floats(2 * CHANNELS, 1);
    Case c = {.name = "rg-lru", .run = run_rg_lru, .out_width = CHANNELS, .width = {CHANNELS}};
    c.rg_lru = (RgLru){.channels = CHANNELS,
        .rate = rates,
        .heads = heads,
        .decay_gate = gates,
        .decay_bias = biases,
        .input_gate = gates + gates_count,
        .input_bias = biases + CHANNELS};
    c.row_width = rg_lru_row_width(&c.rg_lru);
    take_inputs(&c, TEXT);
    check_case(&c, plain_rg_lru);
    close_case(&c);
    free(gates);
    free(biases);
}

static void plain_gated_norm(const GatedNorm *op, float *out) {
    const int64_t group = op->group ? op->group : op->width;
    for (int64_t first = 0; first < op->rows * op->width; first += group) {
        double square = 0;
        for (int64_t i = first; i < first + group; i++) {
            const double z = op->gate ? (double)op->gate_scale * op->gate[i] : 0;
            const double gate = op->gate_kind == GATE_SILU ? z * sigmoid_of(z) : op->gate ? sigmoid_of(z) : 1;
            const double x = op->gate_first ? op->x[i] * gate : op->x[i];
            square += x * x;
        }
        const double scale = op->group ? 1 / sqrt(square / (double)group + (double)op->eps) : 1;
        for (int64_t i = first; i < first + group; i++) {
            const double z = op->gate ? (double)op->gate_scale * op->gate[i] : 0;
            const double gate = op->gate_kind == GATE_SILU ? z * sigmoid_of(z) : op->gate ? sigmoid_of(z) : 1;
            out[i] =
                (float)(op->x[i] * gate * scale * (op->group && op->weight ? (double)op->weight[i % op->width] : 1));
        }
    }
}

/* In place and not, with each kind of gate; every row alone has the same bits. */
static void check_gated_norms(void) {
    enum { WIDTH = 150, ROWS = 5 };
    float *x = random_floats(ROWS * WIDTH, 2), *gate = random_floats(ROWS * WIDTH, 3),
          *weight = random_floats(WIDTH, 1);
    float wanted[ROWS * WIDTH], out[ROWS * WIDTH], alone[ROWS * WIDTH];
    for (size_t n = 0; n <= COUNT_OF(vector_names); n++) {
        const char *name = n ? vector_names[n - 1] : "ref";
        Backend *backend = open_backend(name, 2, false, ROWS_MAX);
        for (int i = 0; backend && backend->ops->gated_norm && i < 3 * 2 * 3 * 2; i++) {
            static const int groups[] = {0, 50, WIDTH};
            GatedNorm op = {.rows = ROWS, .width = WIDTH, .group = groups[i % 3], .eps = 1e-5f, .x = x, .out = out};
            op.gate_first = i / 3 % 2;
            op.gate_kind = (GateKind)(i / 6 % 3);
            op.weight = i / 18 ? weight : NULL;
            op.gate_scale = 0.7f;
            if (op.gate_kind != GATE_NONE) op.gate = gate;
            plain_gated_norm(&op, wanted);
            backend->ops->begin(backend, step_of_rows(ROWS, 0));
            backend->ops->gated_norm(backend, &op);
            TEST_MSG(distance(out, wanted, ROWS * WIDTH) <= 1e-5, "gated norm %d on %s", i, name);
            memcpy(alone, x, sizeof alone);
            for (int row = 0; row < ROWS; row++) {
                GatedNorm one = op;
                one.rows = 1;
                one.x = one.out = alone + row * WIDTH;
                if (one.gate) one.gate += row * WIDTH;
                backend->ops->gated_norm(backend, &one);
            }
            TEST_MSG(same_bits(out, alone, ROWS * WIDTH), "gated norm %d on %s: rows alone", i, name);
            backend->ops->wait(backend, backend->ops->submit(backend), NULL);
        }
        if (backend) backend_close(backend);
    }
    free(x);
    free(gate);
    free(weight);
}

int main(void) {
    check_convs();
    check_gated_norms();
    check_mambas();
    check_rg_lru(6);
    check_rg_lru(2);
    check_recurrences();
    check_blocks();
    check_long();
    return test_done();
}
