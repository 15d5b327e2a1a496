/* Kernels of recurrent layers, compiled once per instruction set. */
#include "backend/cpu/recurrent/recurrent.h"
#include "backend/cpu/vec16.h"
#include "base/math.h"

enum { C = RECURRENT_PAGE_TOKENS, D = RECURRENT_DIM_MAX, LANES = 16 };

/* Tiles that fit the registers: columns by vectors; and vectors of one column or two. Blocks of rows that are read one
 * after the other where a row does not fit the registers. */
enum { BLOCK_VECS = 2, BLOCK_DEPTH = 8, AHEAD = 2048 };
#if defined(__AVX512F__)
enum { TILE_COLS = 12, TILE_VECS = 2, FEW_VECS = 8 };
#elif defined(__aarch64__)
enum { TILE_COLS = 6, TILE_VECS = 1, FEW_VECS = 2 };
#else
enum { TILE_COLS = 6, TILE_VECS = 1, FEW_VECS = 2 };
#endif

VEC_INLINE Vec vec_sigmoid(Vec x) { return vec_swish(vec_set(1), x); }

/* max(x, 0) + log(1 + e^−|x|); the logarithm as 2·atanh(y / (2 + y)), a series that ends below 1e-8. */
VEC_INLINE Vec vec_softplus(Vec x) {
    const Vec minus = vec_sub(vec_set(0), x), y = vec_exp_falling(vec_sub(vec_set(0), vec_max(x, minus)));
    const Vec s = vec_div(y, vec_add(vec_set(2), y)), s2 = vec_mul(s, s);
    Vec p = vec_set(2.0f / 15);
    for (int i = 13; i >= 1; i -= 2) p = vec_fma(p, s2, vec_set(2.0f / (float)i));
    return vec_fma(p, s, vec_max(x, vec_set(0)));
}

static float dot(const float *a, const float *b, int count) {
    Vec sum = vec_set(0);
    int i = 0;
    for (; i + LANES <= count; i += LANES) sum = vec_fma(vec_load(a + i), vec_load(b + i), sum);
    if (i < count) sum = vec_fma(vec_load_some(a + i, count - i), vec_load_some(b + i, count - i), sum);
    return vec_sum(sum);
}

/* ---- small matrix products ---- */

/* out[c][v] = scale[c]·in[c][v] + Σ_k x[c][k]·m[k][v], k ascending. */
typedef struct SmallProduct {
    int cols, depth, width;
    const float *x, *m, *in, *scale; /* in NULL: zeros */
    float *out;
    int64_t x_stride, m_stride, in_stride, out_stride;
    int scale_stride; /* 0: one scale for all */
} SmallProduct;

VEC_INLINE void product_tile(const SmallProduct *p, int c0, int cols, int v, int vecs, int lanes) {
    Vec sum[TILE_COLS > FEW_VECS ? TILE_COLS : FEW_VECS][FEW_VECS > TILE_VECS ? FEW_VECS : TILE_VECS];
    for (int c = 0; c < cols; c++)
        for (int i = 0; i < vecs; i++)
            sum[c][i] = p->in ? vec_mul(vec_set(p->scale[(c0 + c) * p->scale_stride]),
                                    load_lanes(p->in + (c0 + c) * p->in_stride + v + i * LANES, lanes))
                              : vec_set(0);
    const float *x = p->x + c0 * p->x_stride, *m = p->m + v;
    for (int k = 0; k < p->depth; k++, m += p->m_stride) {
        Vec row[FEW_VECS > TILE_VECS ? FEW_VECS : TILE_VECS];
        for (int i = 0; i < vecs; i++) {
            row[i] = load_lanes(m + i * LANES, lanes);
            if (cols <= 2) __builtin_prefetch(m + i * LANES + AHEAD);
        }
        for (int c = 0; c < cols; c++) {
            const Vec factor = vec_set(x[c * p->x_stride + k]);
            for (int i = 0; i < vecs; i++) sum[c][i] = vec_fma(factor, row[i], sum[c][i]);
        }
    }
    for (int c = 0; c < cols; c++)
        for (int i = 0; i < vecs; i++) store_lanes(p->out + (c0 + c) * p->out_stride + v + i * LANES, sum[c][i], lanes);
}

/* All columns for some vectors. */
VEC_INLINE void product_columns(const SmallProduct *p, int v, int vecs, int lanes) {
    int c = 0;
    for (; c + TILE_COLS <= p->cols; c += TILE_COLS) product_tile(p, c, TILE_COLS, v, vecs, lanes);
    for (; c + 4 <= p->cols; c += 4) product_tile(p, c, 4, v, vecs, lanes);
    for (; c + 2 <= p->cols; c += 2) product_tile(p, c, 2, v, vecs, lanes);
    for (; c < p->cols; c++) product_tile(p, c, 1, v, vecs, lanes);
}

/* Rows k0 … of m into the sums in p->out; the first block begins them. */
VEC_INLINE void product_block(const SmallProduct *p, int cols, int k0, int v) {
    Vec sum[2][BLOCK_VECS];
    for (int c = 0; c < cols; c++)
        for (int i = 0; i < BLOCK_VECS; i++) {
            const int at = v + i * LANES;
            if (k0 > 0)
                sum[c][i] = vec_load(p->out + c * p->out_stride + at);
            else
                sum[c][i] = p->in
                    ? vec_mul(vec_set(p->scale[c * p->scale_stride]), vec_load(p->in + c * p->in_stride + at))
                    : vec_set(0);
        }
    const float *x = p->x + k0, *m = p->m + k0 * p->m_stride + v;
    for (int k = 0; k < min_int(p->depth - k0, BLOCK_DEPTH); k++, m += p->m_stride)
        for (int i = 0; i < BLOCK_VECS; i++) {
            const Vec row = vec_load(m + i * LANES);
            __builtin_prefetch(m + i * LANES + AHEAD);
            for (int c = 0; c < cols; c++) sum[c][i] = vec_fma(vec_set(x[c * p->x_stride + k]), row, sum[c][i]);
        }
    for (int c = 0; c < cols; c++)
        for (int i = 0; i < BLOCK_VECS; i++) vec_store(p->out + c * p->out_stride + v + i * LANES, sum[c][i]);
}

VEC_INLINE void product_blocks(const SmallProduct *p, int cols, int width) {
    int k0 = 0;
    do {
        for (int v = 0; v < width; v += BLOCK_VECS * LANES) product_block(p, cols, k0, v);
        k0 += BLOCK_DEPTH;
    } while (k0 < p->depth);
}

/* Two columns at most, m being read in the order of memory: with the sums of whole rows in registers, or by blocks of
 * rows. Returns the elements of a row that are done. */
static int product_few(const SmallProduct *p) {
    const bool whole = p->width == FEW_VECS * LANES;
    const int width = whole ? p->width : p->width / (BLOCK_VECS * LANES) * (BLOCK_VECS * LANES);
    if (whole && p->cols == 2)
        product_tile(p, 0, 2, 0, FEW_VECS, LANES);
    else if (whole)
        product_tile(p, 0, 1, 0, FEW_VECS, LANES);
    else if (p->cols == 2)
        product_blocks(p, 2, width);
    else
        product_blocks(p, 1, width);
    return width;
}

static void product(const SmallProduct *p) {
    int v = p->cols <= 2 ? product_few(p) : 0;
    for (; v + TILE_VECS * LANES <= p->width; v += TILE_VECS * LANES) product_columns(p, v, TILE_VECS, LANES);
    for (; v + LANES <= p->width; v += LANES) product_columns(p, v, 1, LANES);
    if (v < p->width) product_columns(p, v, 1, p->width - v);
}

/* ---- convolution ---- */

/* The inputs of a row's taps, and their gates; NULL: zeros, no gate. */
typedef struct Taps {
    const float *input[CONV_TAPS_MAX], *gate[CONV_TAPS_MAX];
} Taps;

VEC_INLINE void conv_row(const Conv *op, const Taps *t, const float (*weight)[CONV_ITEM], const float *bias,
    const float *out_gate, int taps, int count, float *out) {
    for (int c = 0; c < count; c += LANES) {
        const int lanes = count - c;
        Vec sum = bias ? load_lanes(bias + c, lanes) : vec_set(0);
        for (int i = 0; i < taps; i++) {
            if (!t->input[i]) continue;
            Vec input = load_lanes(t->input[i] + c, lanes);
            if (t->gate[i]) input = vec_mul(input, load_lanes(t->gate[i] + c, lanes));
            sum = vec_fma(vec_load(weight[i] + c), input, sum);
        }
        if (op->silu) sum = vec_swish(sum, sum);
        if (out_gate) sum = vec_mul(sum, load_lanes(out_gate + c, lanes));
        store_lanes(out + c, sum, lanes);
    }
}

enum { CONV_AHEAD = 3 }; /* rows; they lie too far apart for hardware prefetchers */

VEC_INLINE void prefetch_row(const float *x, int64_t count) {
    for (int64_t c = 0; c < count; c += LANES) __builtin_prefetch(x + c);
}

/* Lanes behind the last channel become zero. */
VEC_INLINE void turn_weights(const float *from, int taps, int count, float (*weight)[CONV_ITEM]) {
    for (int i = 0; i < taps; i++) {
        for (int c = 0; c < count; c++) weight[i][c] = from[c * taps + i];
        for (int c = count; c < (count + LANES - 1) / LANES * LANES; c++) weight[i][c] = 0;
    }
}

static void conv(const Conv *op, const SequenceChunk *chunk, int part, int64_t at, int64_t first, int64_t count) {
    const ConvPart *p = &op->part[part];
    const ConvHistory history = conv_history(op, chunk);
    const float *bias = p->bias ? p->bias + first : NULL;
    float weight[CONV_TAPS_MAX][CONV_ITEM]; /* tap by tap */
    if (op->taps == 4)
        turn_weights(p->weight + first * 4, 4, (int)count, weight);
    else
        turn_weights(p->weight + first * op->taps, op->taps, (int)count, weight);
    for (int row = 0; row < chunk->rows; row++) {
        const int64_t place = (chunk->row + row) * p->channels + first;
        Taps t = {{NULL}, {NULL}};
        for (int i = 0; i < op->taps; i++) {
            const int from = row - op->taps + 1 + i;
            const float *before = from < 0 ? history.input[op->taps - 1 + from] : NULL;
            t.input[i] = from >= 0 ? p->x + place + (from - row) * p->channels : before ? before + at + first : NULL;
            t.gate[i] = from >= 0 && op->in_gate ? op->in_gate + place + (from - row) * p->channels : NULL;
        }
        const float *out_gate = op->out_gate ? op->out_gate + place : NULL;
        if (row + CONV_AHEAD < chunk->rows) prefetch_row(p->x + place + CONV_AHEAD * p->channels, count);
        if (op->taps == 4)
            conv_row(op, &t, (const float(*)[CONV_ITEM])weight, bias, out_gate, 4, (int)count, p->out + place);
        else
            conv_row(op, &t, (const float(*)[CONV_ITEM])weight, bias, out_gate, op->taps, (int)count, p->out + place);
    }
}

/* ---- recurrences with a matrix state ---- */

/* Parts of a row of the tail. */
VEC_INLINE int64_t decay_width(const Recurrence *op) { return op->channel_decay ? op->key_dim : 1; }
VEC_INLINE float *row_decays(const Recurrence *op, float *row, int head) { return row + head * decay_width(op); }
VEC_INLINE float *row_key(const Recurrence *op, float *row, int key_head) {
    return row + op->value_heads * decay_width(op) + key_head * op->key_dim;
}
VEC_INLINE float *row_update(const Recurrence *op, float *row, int head) {
    return row + op->value_heads * decay_width(op) + (int64_t)op->key_heads * op->key_dim +
        (int64_t)head * op->value_dim;
}

VEC_INLINE float *query_at(const Recurrence *op, float *x, int64_t row, int key_head) {
    return x + (row * op->key_heads + key_head) * op->key_dim;
}

/* Products of a row with the keys of its page: [q·k, then k·k][C]. */
VEC_INLINE float *products_at(const Recurrence *op, int64_t row, int key_head) {
    return op->work + row * recurrence_width(op) + key_head * (recurrence_width(op) / op->key_heads);
}

static void prepare_head(
    const RecurrentJob *job, const Rope *rope, const float *turns, float *head, const Norm *norm, float scale) {
    const int count = job->recurrence->key_dim;
    const Vec factor = vec_set(scale);
    if (norm) job->cpu->kernels->norm_row(head, norm, head);
    if (rope) job->cpu->kernels->attention->rotate(rope, turns, turns + D / 2, head);
    for (int i = 0; i < count; i += LANES)
        store_lanes(head + i, vec_mul(load_lanes(head + i, count - i), factor), count - i);
}

/* cos, then sin, of the row's rotations. */
static void load_turns(const Rope *rope, const Step *step, int64_t row, float *turns) {
    float angles[D / 2];
    rope_angles(rope, step, (int)row, angles);
    for (int i = 0; i < rope->dims / 2; i++) {
        turns[i] = cosf(angles[i]);
        turns[D / 2 + i] = sinf(angles[i]);
    }
}

static void products(const RecurrentJob *job, const SequenceChunk *chunk, int first_row, int key_head) {
    const Recurrence *op = job->recurrence;
    const PageRows run = page_rows(&op->place, chunk, first_row);
    const bool delta = op->kind == RECURRENCE_DELTA;
    const float *keys[C];
    for (int j = 0; j < run.begin; j++) {
        keys[j] = row_key(op, recurrent_row(&op->place, run.page, j), key_head);
        for (int i = 0; i < op->key_dim; i += LANES) __builtin_prefetch(keys[j] + op->key_dim + i);
    }
    for (int i = 0; i < run.rows; i++) {
        const int64_t row = chunk->row + first_row + i;
        float *q = query_at(op, op->q, row, key_head), *k = query_at(op, op->k, row, key_head), turns[D];
        if (op->rope) load_turns(op->rope, &job->cpu->step, row, turns);
        prepare_head(job, op->rope, turns, q, op->q_norm, op->q_scale);
        prepare_head(job, op->rope, turns, k, op->k_norm, op->k_scale);
        keys[run.begin + i] = k;
        if (run.page >= 0)
            memcpy(row_key(op, recurrent_row(&op->place, run.page, run.begin + i), key_head), k,
                (size_t)op->key_dim * sizeof *k);
        if (op->channel_decay) continue; /* the decay stands inside the products */
        float *out = products_at(op, row, key_head);
        for (int j = 0; j <= run.begin + i; j++) {
            out[j] = dot(keys[j], q, op->key_dim);
            if (delta) out[C + j] = dot(keys[j], k, op->key_dim);
        }
    }
}

/* One value head between its anchor and a position. */
typedef struct Head {
    const Recurrence *op;
    int head, key_head;
    int tail;          /* rows since the anchor */
    const float *s;    /* [key_dim, value_dim] the anchor; NULL: zero */
    const float *k[C]; /* keys of the tail */
    float *own;        /* [key_dim · value_dim] a state that is not in a page */
    float *x;          /* [2C, key_dim] columns: k, then q */
    float *y;          /* [2C, D] their products with the anchor */
    float *u;          /* [C, D] updates of the tail */
    float *f;          /* [key_dim, C] weights of the updates in the next anchor */
    float *g;          /* [C, key_dim] log decays of the tail, with channel_decay */
    float *total;      /* [key_dim] sums of these, and a row of exponentials behind */
    /* Σ of log decays behind row j up to the last row; behind the rows, from the anchor on. */
    float sums[C + LANES];
} Head;

static Head head_of(const Recurrence *op, int head, float *scratch) {
    Head h = {.op = op, .head = head, .key_head = recurrence_key_head(op, head)};
    h.own = scratch;
    h.x = h.own + D * D;
    h.y = h.x + 2 * C * D;
    h.u = h.y + 2 * C * D;
    h.f = h.u + C * D;
    h.g = h.f + C * D;
    h.total = h.g + C * D;
    return h;
}

static void clear_sums(Head *h) {
    h->tail = 0;
    memset(h->sums, 0, sizeof h->sums);
    if (h->op->channel_decay) memset(h->total, 0, (size_t)h->op->key_dim * sizeof *h->total);
}

/* One more row, with this log decay. */
VEC_INLINE void extend(Head *h, float log_decay) {
    const Vec one = vec_set(log_decay);
    for (int j = 0; j < h->tail; j += LANES) /* the rows behind are set when they come */
        vec_store(h->sums + j, vec_add(vec_load(h->sums + j), one));
    h->sums[C] += log_decay;
    h->sums[h->tail++] = 0;
}

/* The same with a decay per channel: row j of g is in place. */
static void extend_channels(Head *h) {
    const float *g = h->g + h->tail++ * h->op->key_dim;
    for (int i = 0; i < h->op->key_dim; i++) h->total[i] += g[i];
}

static void load_tail(Head *h, const SequenceChunk *chunk) {
    const Recurrence *op = h->op;
    clear_sums(h);
    h->s = NULL;
    if (chunk->position == 0) return;
    const int32_t page = page_before(&op->place, chunk);
    h->s = recurrent_anchor(&op->place, page) + (int64_t)h->head * op->key_dim * op->value_dim;
    for (int j = 0, rows = (chunk->position - 1) % C + 1; j < rows; j++) {
        float *row = recurrent_row(&op->place, page, j);
        h->k[j] = row_key(op, row, h->key_head);
        for (int i = 0; i < op->value_dim; i += LANES) /* the next head is likely next */
            __builtin_prefetch(row_update(op, row, h->head + 1) + i);
        memcpy(h->u + j * D, row_update(op, row, h->head), (size_t)op->value_dim * sizeof *h->u);
        if (op->channel_decay) {
            memcpy(h->g + j * op->key_dim, row_decays(op, row, h->head), (size_t)op->key_dim * sizeof *h->g);
            extend_channels(h);
        } else {
            extend(h, *row_decays(op, row, h->head));
        }
    }
}

VEC_INLINE void exponentials(const float *x, int count, float *out) {
    for (int i = 0; i < count; i += LANES)
        store_lanes(out + i, vec_exp_falling(load_lanes(x + i, count - i)), count - i);
}

/* The state behind a full page, in `to`: e^G·S0 + Σ_j (e^(G − G_j) k_j) u_jᵀ. */
static void make_anchor(Head *h, float *to) {
    const Recurrence *op = h->op;
    float scale[C + LANES];
    exponentials(h->sums, C + LANES, scale);
    if (op->channel_decay) {
        float *sum = h->total + D; /* log decays behind row j */
        memset(sum, 0, (size_t)op->key_dim * sizeof *sum);
        for (int j = C - 1; j >= 0; j--)
            for (int i = 0; i < op->key_dim; i += LANES) {
                const int lanes = op->key_dim - i;
                float weights[LANES];
                const Vec before = load_lanes(sum + i, lanes);
                vec_store(weights, vec_mul(load_lanes(h->k[j] + i, lanes), vec_exp_falling(before)));
                for (int n = 0; n < min_int(lanes, LANES); n++) h->f[(i + n) * C + j] = weights[n];
                store_lanes(sum + i, vec_add(before, load_lanes(h->g + j * op->key_dim + i, lanes)), lanes);
            }
        exponentials(h->total, op->key_dim, sum);
    } else {
        for (int j = 0; j < C; j++)
            for (int i = 0; i < op->key_dim; i++) h->f[i * C + j] = h->k[j][i] * scale[j];
    }
    const SmallProduct p = {.cols = op->key_dim,
        .depth = C,
        .width = op->value_dim,
        .x = h->f,
        .x_stride = C,
        .m = h->u,
        .m_stride = D,
        .in = h->s,
        .in_stride = op->value_dim,
        .scale = op->channel_decay ? h->total + D : &scale[C],
        .scale_stride = op->channel_decay ? 1 : 0,
        .out = to,
        .out_stride = op->value_dim};
    product(&p);
    h->s = to;
    clear_sums(h);
}

/* dt, log decays and β of rows of one page, lane by lane. */
typedef struct Steps {
    float dt[C], log_decay[C], beta[C];
} Steps;

VEC_INLINE Vec time_steps(const Recurrence *op, Vec a, Vec bias) {
    const Vec dt = vec_softplus(vec_fma(vec_set(op->dt_scale), a, bias));
    const Vec most = vec_set(-op->dt_max), limited = vec_max(dt, vec_set(op->dt_min));
    return vec_sub(vec_set(0), vec_max(vec_sub(vec_set(0), limited), most));
}

static void load_steps(const Head *h, int64_t row, int rows, Steps *out) {
    const Recurrence *op = h->op;
    const bool each = op->a && !op->channel_decay;
    memset(out, 0, sizeof *out);
    for (int i = 0; i < rows; i++) {
        if (each) out->dt[i] = op->a[(row + i) * op->value_heads + h->head];
        if (op->b) out->beta[i] = op->b[(row + i) * op->value_heads + h->head];
    }
    const Vec bias = vec_set(each && op->dt_bias ? op->dt_bias[h->head] : 0), rate = vec_set(op->rate[h->head]);
    for (int i = 0; i < rows; i += LANES) {
        const Vec dt = each ? time_steps(op, vec_load(out->dt + i), bias) : vec_set(1);
        vec_store(out->dt + i, dt);
        vec_store(out->log_decay + i, vec_mul(rate, dt));
        vec_store(out->beta + i, op->b ? vec_sigmoid(vec_load(out->beta + i)) : vec_set(1));
    }
}

/* Log decays of the channels of a row, into g. */
static void load_channels(Head *h, int64_t row) {
    const Recurrence *op = h->op;
    const Vec rate = vec_set(op->rate[h->head]), slope = vec_set(op->dt_slope ? op->dt_slope[h->head] : 0);
    const int64_t at = (int64_t)h->head * op->key_dim;
    for (int i = 0; i < op->key_dim; i += LANES) {
        const int lanes = op->key_dim - i;
        const Vec bias = op->dt_bias ? load_lanes(op->dt_bias + at + i, lanes) : vec_set(0);
        const Vec a = op->a ? load_lanes(op->a + row * op->value_heads * op->key_dim + at + i, lanes) : vec_set(0);
        const Vec dt = !op->a ? vec_set(1)
            : op->dt_slope    ? vec_sigmoid(vec_mul(slope, vec_add(a, bias)))
                              : time_steps(op, a, bias);
        store_lanes(h->g + h->tail * op->key_dim + i, vec_mul(rate, dt), lanes);
    }
}

/* Factors of the tail's updates in k and q of row `tail − 1`. */
static void load_factors(const Head *h, const float *products, float *of_k, float *of_q) {
    const bool delta = h->op->kind == RECURRENCE_DELTA;
    for (int j = 0; j < h->tail; j += LANES) {
        const Vec decay = vec_exp_falling(vec_load(h->sums + j));
        vec_store(of_q + j, vec_mul(decay, vec_load(products + j)));
        if (delta) vec_store(of_k + j, vec_mul(decay, vec_load(products + C + j)));
    }
}

/* The same with a decay per channel: Σ_i k_j[i]·x[i]·e^(log decays behind j). */
static void load_channel_factors(const Head *h, const float *k, const float *q, float *of_k, float *of_q) {
    const Recurrence *op = h->op;
    float *sum = h->total + D;
    memset(sum, 0, (size_t)op->key_dim * sizeof *sum);
    for (int j = h->tail - 1; j >= 0; j--) {
        Vec with_k = vec_set(0), with_q = vec_set(0);
        for (int i = 0; i < op->key_dim; i += LANES) {
            const int lanes = op->key_dim - i;
            const Vec before = load_lanes(sum + i, lanes);
            const Vec key = vec_mul(load_lanes(h->k[j] + i, lanes), vec_exp_falling(before));
            with_k = vec_fma(key, load_lanes(k + i, lanes), with_k);
            with_q = vec_fma(key, load_lanes(q + i, lanes), with_q);
            store_lanes(sum + i, vec_add(before, load_lanes(h->g + j * op->key_dim + i, lanes)), lanes);
        }
        of_k[j] = vec_sum(with_k);
        of_q[j] = vec_sum(with_q);
    }
}

/* What a row gives for some elements of the value. */
typedef struct RowValues {
    int tail;                            /* rows, this one included */
    const float *of_k, *of_q, *of_state; /* of_state: factors of the anchor's products with k and q */
    const float *state_k, *state_q;      /* these products; state_k NULL: not the delta rule */
    float *u;                            /* [tail, D] */
    const float *v;
    float *out;
    float beta, dt, skip;
} RowValues;

VEC_INLINE void row_values(const RowValues *r, bool delta, int at, int vecs, int lanes) {
    Vec d[FEW_VECS], y[FEW_VECS];
    const Vec state_k = vec_set(r->of_state[0]), state_q = vec_set(r->of_state[1]);
    for (int i = 0; i < vecs; i++) {
        d[i] = delta ? vec_mul(state_k, load_lanes(r->state_k + at + i * LANES, lanes)) : vec_set(0);
        y[i] = vec_mul(state_q, load_lanes(r->state_q + at + i * LANES, lanes));
    }
    const float *u = r->u + at;
    for (int j = 0; j < r->tail - 1; j++, u += D) {
        const Vec of_q = vec_set(r->of_q[j]);
        if (delta) {
            const Vec of_k = vec_set(r->of_k[j]);
            for (int i = 0; i < vecs; i++) {
                const Vec update = load_lanes(u + i * LANES, lanes);
                d[i] = vec_fma(of_k, update, d[i]);
                y[i] = vec_fma(of_q, update, y[i]);
            }
        } else {
            for (int i = 0; i < vecs; i++) y[i] = vec_fma(of_q, load_lanes(u + i * LANES, lanes), y[i]);
        }
    }
    const Vec last = vec_set(r->of_q[r->tail - 1]), factor = vec_set(delta ? r->beta : r->dt), skip = vec_set(r->skip);
    float *own = r->u + (r->tail - 1) * D + at;
    for (int i = 0; i < vecs; i++) {
        const Vec v = load_lanes(r->v + at + i * LANES, lanes);
        const Vec update = vec_mul(factor, delta ? vec_sub(v, d[i]) : v);
        store_lanes(own + i * LANES, update, lanes);
        y[i] = vec_fma(last, update, y[i]);
        store_lanes(r->out + at + i * LANES, vec_fma(skip, v, y[i]), lanes);
    }
}

VEC_INLINE void all_values(const RowValues *r, bool delta, int width) {
    int at = 0;
    for (; at + FEW_VECS * LANES <= width; at += FEW_VECS * LANES) row_values(r, delta, at, FEW_VECS, LANES);
    for (; at + LANES <= width; at += LANES) row_values(r, delta, at, 1, LANES);
    if (at < width) row_values(r, delta, at, 1, width - at);
}

/* One row of a head: the update of the tail's last row and the result. */
static void head_row(const RowValues *r, int width) {
    if (r->state_k)
        all_values(r, true, width);
    else
        all_values(r, false, width);
}

/* Products of the anchor with k and q of rows: y[row] and y[rows + row]. With channel_decay the columns are decayed up
 * to their row first, which extends the tail. */
static void state_products(Head *h, int64_t row, int rows) {
    const Recurrence *op = h->op;
    const bool delta = op->kind == RECURRENCE_DELTA;
    const size_t bytes = (size_t)op->key_dim * sizeof(float);
    const int q_first = delta ? rows : 0;
    for (int i = 0; i < rows; i++) {
        const float *q = query_at(op, op->q, row + i, h->key_head), *k = query_at(op, op->k, row + i, h->key_head);
        h->k[h->tail + (op->channel_decay ? 0 : i)] = k;
        if (delta) memcpy(h->x + i * op->key_dim, k, bytes);
        memcpy(h->x + (q_first + i) * op->key_dim, q, bytes);
        if (!op->channel_decay) continue;
        load_channels(h, row + i);
        extend_channels(h);
        for (int n = 0; n < op->key_dim; n += LANES) {
            const int lanes = op->key_dim - n;
            const Vec decay = vec_exp_falling(load_lanes(h->total + n, lanes));
            for (int column = i; column <= q_first + i; column += rows) {
                float *x = h->x + column * op->key_dim + n;
                store_lanes(x, vec_mul(load_lanes(x, lanes), decay), lanes);
            }
        }
    }
    if (op->channel_decay) h->tail -= rows;
    const SmallProduct p = {.cols = q_first + rows,
        .depth = h->s ? op->key_dim : 0,
        .width = op->value_dim,
        .x = h->x,
        .x_stride = op->key_dim,
        .m = h->s ? h->s : h->x,
        .m_stride = op->value_dim,
        .out = h->y,
        .out_stride = D};
    product(&p);
}

static void head_rows(Head *h, int64_t row, int rows, const Steps *steps) {
    const Recurrence *op = h->op;
    const bool delta = op->kind == RECURRENCE_DELTA;
    state_products(h, row, rows);
    for (int i = 0; i < rows; i++) {
        float of_k[C], of_q[C], of_state[LANES] = {1, 1};
        if (op->channel_decay) {
            h->tail++;
            load_channel_factors(h, h->k[h->tail - 1], query_at(op, op->q, row + i, h->key_head), of_k, of_q);
        } else {
            extend(h, steps->log_decay[i]);
            load_factors(h, products_at(op, row + i, h->key_head), of_k, of_q);
            exponentials(h->sums + C, 1, of_state);
            of_state[1] = of_state[0];
        }
        const int64_t at = ((row + i) * op->value_heads + h->head) * op->value_dim;
        const RowValues values = {.tail = h->tail,
            .of_k = of_k,
            .of_q = of_q,
            .of_state = of_state,
            .state_k = delta ? h->y + i * D : NULL,
            .state_q = h->y + ((delta ? rows : 0) + i) * D,
            .u = h->u,
            .v = op->v + at,
            .out = op->out + at,
            .beta = steps->beta[i],
            .dt = steps->dt[i],
            .skip = op->skip ? op->skip[h->head] : 0};
        head_row(&values, op->value_dim);
    }
}

/* Writes rows of the tail. */
static void store_rows(const Head *h, const PageRows *run, const float *log_decays) {
    const Recurrence *op = h->op;
    for (int i = run->begin; i < run->begin + run->rows; i++) {
        float *row = recurrent_row(&op->place, run->page, i);
        memcpy(row_update(op, row, h->head), h->u + i * D, (size_t)op->value_dim * sizeof *row);
        if (op->channel_decay)
            memcpy(row_decays(op, row, h->head), h->g + i * op->key_dim, (size_t)op->key_dim * sizeof *row);
        else
            *row_decays(op, row, h->head) = log_decays[i - run->begin];
    }
}

static void head(const RecurrentJob *job, const SequenceChunk *chunk, int number, float *scratch) {
    const Recurrence *op = job->recurrence;
    const int64_t state = (int64_t)op->key_dim * op->value_dim;
    Head h = head_of(op, number, scratch);
    load_tail(&h, chunk);
    for (int row = 0; row < chunk->rows;) {
        const PageRows run = page_rows(&op->place, chunk, row);
        if (run.begin == 0) {
            float *anchor = run.page >= 0 ? recurrent_anchor(&op->place, run.page) + number * state : NULL;
            if (h.tail == C) make_anchor(&h, anchor ? anchor : h.own);
            if (anchor && !h.s) memset(anchor, 0, (size_t)state * sizeof *anchor);
        }
        Steps steps;
        load_steps(&h, chunk->row + row, run.rows, &steps);
        head_rows(&h, chunk->row + row, run.rows, &steps);
        if (run.page >= 0) store_rows(&h, &run, steps.log_decay);
        row += run.rows;
    }
}

/* ---- Mamba-1 ---- */

VEC_INLINE float *slice_of(const Mamba *op, float *row) { return row + 2 * op->channels + op->state; }

/* One channel takes a row of the tail; Σ h ∘ c if there is a c. */
VEC_INLINE float advance(const float *rate, float dt, float dt_x, const float *b, const float *c, int state, float *h) {
    const Vec step = vec_set(dt), input = vec_set(dt_x);
    Vec sum = vec_set(0);
    for (int n = 0; n < state; n += LANES) {
        const int lanes = state - n;
        const Vec decay = vec_exp_falling(vec_mul(load_lanes(rate + n, lanes), step));
        const Vec next = vec_fma(decay, load_lanes(h + n, lanes), vec_mul(input, load_lanes(b + n, lanes)));
        store_lanes(h + n, next, lanes);
        if (c) sum = vec_fma(next, load_lanes(c + n, lanes), sum);
    }
    return c ? vec_sum(sum) : 0;
}

/* The address in a page of an element of the state behind the slice that begins at a row. */
VEC_INLINE float *slice_at(const Mamba *op, int32_t page, int first_row, int64_t element) {
    const int64_t slice = op->channels * op->state / MAMBA_SLICE_TOKENS;
    return slice_of(op, recurrent_row(&op->place, page, first_row + (int)(element / slice))) + element % slice;
}

/* State of channels [first, first + count), copied to or from the slices of rows from first_row on. */
static void copy_slices(const Mamba *op, int32_t page, int first_row, int64_t first, int64_t count, float *h, bool in) {
    for (int64_t at = first * op->state, end = (first + count) * op->state; at < end;) {
        const int64_t slice = op->channels * op->state / MAMBA_SLICE_TOKENS,
                      run = min_i64(end - at, slice - at % slice);
        float *there = slice_at(op, page, first_row, at), *here = h + (at - first * op->state);
        memcpy(in ? there : here, in ? here : there, (size_t)run * sizeof *h);
        at += run;
    }
}

/* The state before the chunk: from the anchor or the last whole slice on. */
static void load_state(const Mamba *op, const SequenceChunk *chunk, int64_t first, int64_t count, float *h) {
    memset(h, 0, (size_t)(count * op->state) * sizeof *h);
    if (chunk->position == 0) return;
    const int32_t page = page_before(&op->place, chunk);
    const int rows = (chunk->position - 1) % C + 1, whole = rows / MAMBA_SLICE_TOKENS * MAMBA_SLICE_TOKENS;
    if (whole)
        copy_slices(op, page, whole - MAMBA_SLICE_TOKENS, first, count, h, false);
    else
        memcpy(h, recurrent_anchor(&op->place, page) + first * op->state, (size_t)(count * op->state) * sizeof *h);
    for (int i = whole; i < rows; i++) {
        const float *row = recurrent_row(&op->place, page, i);
        for (int64_t c = first; c < first + count; c++)
            advance(op->rate + c * op->state, row[c], row[op->channels + c], row + 2 * op->channels, NULL, op->state,
                h + (c - first) * op->state);
    }
}

/* Writes the parts of a row of the tail. */
static void store_inputs_at(
    const Mamba *op, float *to, int64_t row, int64_t first, int count, const float *dt, const float *dt_x) {
    memcpy(to + first, dt, (size_t)count * sizeof *to);
    memcpy(to + op->channels + first, dt_x, (size_t)count * sizeof *to);
    if (first == 0) memcpy(to + 2 * op->channels, op->b + row * op->state, (size_t)op->state * sizeof *to);
}

static void mamba(const RecurrentJob *job, const SequenceChunk *chunk, int64_t first, float *scratch) {
    const Mamba *op = job->mamba;
    const int count = (int)min_i64(op->channels - first, MAMBA_ITEM), state = op->state;
    const Vec skip = load_lanes(op->skip + first, count);
    float *h = scratch;
    load_state(op, chunk, first, count, h);
    for (int t = 0; t < chunk->rows; t++) {
        const int64_t row = chunk->row + t, at = row * op->channels + first;
        const PageRows run = page_rows(&op->place, chunk, t);
        float dt[LANES], dt_x[LANES], sums[LANES] = {0};
        const Vec x = load_lanes(op->x + at, count), steps = vec_softplus(load_lanes(op->dt + at, count));
        vec_store(dt, steps);
        vec_store(dt_x, vec_mul(steps, x));
        if (run.page >= 0 && run.begin == 0)
            memcpy(recurrent_anchor(&op->place, run.page) + first * state, h, (size_t)(count * state) * sizeof *h);
        for (int c = 0; c < count; c++)
            sums[c] = advance(op->rate + (first + c) * state, dt[c], dt_x[c], op->b + row * state, op->c + row * state,
                state, h + c * state);
        store_lanes(op->out + at, vec_fma(skip, x, vec_load(sums)), count);
        if (run.page < 0) continue;
        store_inputs_at(op, recurrent_row(&op->place, run.page, run.begin), row, first, count, dt, dt_x);
        if ((run.begin + 1) % MAMBA_SLICE_TOKENS == 0)
            copy_slices(op, run.page, run.begin + 1 - MAMBA_SLICE_TOKENS, first, count, h, true);
    }
}

/* ---- RG-LRU ---- */

/* Gates of RG_LRU_UNIT channels of one head. */
VEC_INLINE Vec gates(const RgLru *op, const float *x, const float *weight, const float *bias, int64_t first) {
    const int64_t width = op->channels / op->heads, head = first / width * width;
    Vec sum = vec_load(bias + first);
    for (int64_t i = 0; i < width; i++)
        sum = vec_fma(vec_set(x[head + i]), vec_load(weight + (head + i) * width + first - head), sum);
    return vec_sigmoid(sum);
}

static void rg_lru(const RgLru *op, const SequenceChunk *chunk, int64_t first) {
    _Static_assert((int)RG_LRU_UNIT == (int)LANES, "a unit is a vector");
    const Vec rate = vec_load(op->rate + first);
    Vec h = vec_set(0);
    if (chunk->position > 0)
        h = load_lanes(
            recurrent_row(&op->place, page_before(&op->place, chunk), (chunk->position - 1) % C) + first, LANES);
    for (int t = 0; t < chunk->rows; t++) {
        const float *x = op->x + (chunk->row + t) * op->channels;
        const PageRows run = page_rows(&op->place, chunk, t);
        const Vec log_a = vec_mul(rate, gates(op, x, op->decay_gate, op->decay_bias, first));
        const Vec input = vec_mul(gates(op, x, op->input_gate, op->input_bias, first), vec_load(x + first));
        float roots[LANES];
        vec_store(roots, vec_exp_falling(vec_add(log_a, log_a)));
        for (int i = 0; i < LANES; i++) roots[i] = chunk->position + t ? sqrtf(1 - roots[i]) : 1;
        h = vec_fma(vec_exp_falling(log_a), h, vec_mul(vec_load(roots), input));
        vec_store(op->out + (chunk->row + t) * op->channels + first, h);
        if (run.page >= 0) store_lanes(recurrent_row(&op->place, run.page, run.begin) + first, h, LANES);
    }
}

/* ---- gated norm ---- */

VEC_INLINE Vec gate_of(const GatedNorm *op, const float *gate, int lanes) {
    const Vec x = vec_mul(vec_set(op->gate_scale), load_lanes(gate, lanes));
    return op->gate_kind == GATE_SILU ? vec_swish(x, x) : vec_sigmoid(x);
}

static void gated_norm(const GatedNorm *op, int64_t row) {
    const int64_t group = op->group ? op->group : op->width;
    const bool before = op->gate && op->gate_first, after = op->gate && !op->gate_first;
    for (int64_t first = 0; first < op->width; first += group) {
        const float *x = op->x + row * op->width + first, *gate = op->gate ? op->gate + row * op->width + first : NULL;
        float *out = op->out + row * op->width + first;
        Vec squares = vec_set(0);
        for (int64_t i = 0; i < group; i += LANES) {
            const int lanes = (int)min_i64(group - i, LANES);
            Vec v = load_lanes(x + i, lanes);
            if (before) v = vec_mul(v, gate_of(op, gate + i, lanes));
            squares = vec_fma(v, v, squares); /* lanes behind the end are zero */
            store_lanes(out + i, v, lanes);
        }
        const float mean = vec_sum(squares) / (float)group;
        const Vec scale = vec_set(op->group ? 1.0f / sqrtf(mean + op->eps) : 1);
        for (int64_t i = 0; i < group && (op->group || after); i += LANES) {
            const int lanes = (int)min_i64(group - i, LANES);
            Vec v = vec_mul(load_lanes(out + i, lanes), scale);
            if (op->group && op->weight) v = vec_mul(v, load_lanes(op->weight + first + i, lanes));
            if (after) v = vec_mul(v, gate_of(op, gate + i, lanes));
            store_lanes(out + i, v, lanes);
        }
    }
}

#define RECURRENT_KERNELS                                                                                              \
    { .conv = conv, .products = products, .head = head, .mamba = mamba, .rg_lru = rg_lru, .gated_norm = gated_norm }
