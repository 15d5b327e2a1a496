/* Attention to compressed keys and hyper-connections of the reference backend. */
#include "backend/compressed.h"

#include <math.h>
#include <string.h>

#include "backend/cpu/hyper.h"
#include "backend/cpu/ref/ref_internal.h"

enum {
    SMALL_FLOATS = 1 << 15, /* below this threads are not worth waking */
    BLOCK_KEYS = 32,        /* keys whose scores are known before their values are added */
    SLOTS_MAX = 2 * KV_PAGE_TOKENS,
};

static void norm_row(const Norm *norm, float *x) {
    const float scale = 1 / sqrtf(ref_dot(x, x, norm->width) / (float)norm->width + norm->eps);
    for (int64_t i = 0; i < norm->width; i++) x[i] *= scale * (norm->weight ? norm->weight[i] : 1);
}

/* Rotates the pairs at the end of a head; back: by the negative angles. */
static void rotate_end(const Rope *rope, int position, int width, bool back, float *head) {
    float *end = head + width - rope->dims;
    for (int i = 0; i < rope->dims / 2; i++) {
        const float angle = (float)position * rope->frequencies[i], c = cosf(angle),
                    s = back ? -sinf(angle) : sinf(angle);
        const float a = end[2 * i], b = end[2 * i + 1];
        end[2 * i] = a * c - b * s;
        end[2 * i + 1] = a * s + b * c;
    }
}

/* ---- work on the pool ---- */

typedef struct Job {
    const void *op;
    const Step *step;
    int64_t items;
    void (*item)(const struct Job *job, int64_t item);
} Job;

static void run_task(void *argument, int index, int count) {
    const Job *job = argument;
    for (int64_t i = job->items * index / count; i < job->items * (index + 1) / count; i++) job->item(job, i);
}

/* Items are independent of each other. floats: what an item reads, about. */
static void run(Backend *backend, Job job, int64_t floats) {
    if (job.items < 2 || job.items * floats < SMALL_FLOATS)
        run_task(&job, 0, 1);
    else
        pool_run(ref_backend(backend)->pool, run_task, &job);
}

static const SequenceChunk *chunk_of(const Step *step, int64_t row) {
    const SequenceChunk *chunk = step->chunks;
    while (row >= chunk->row + chunk->rows) chunk++;
    return chunk;
}
static int position_of(const SequenceChunk *chunk, int64_t row) { return chunk->position + (int)(row - chunk->row); }

/* ---- compression ---- */

/* A slot of a key's softmax: the values and gates of a position, and the bias of its gates. */
typedef struct Slot {
    const float *value, *gate, *bias;
} Slot;

static int slots_of(const Compression *op, const SequenceChunk *chunk, int position, Slot *slots) {
    const int64_t all = compression_width(op);
    const int first = position + 1 - op->rate, before = op->overlap && first >= op->rate ? op->rate : 0;
    for (int i = 0; i < before + op->rate; i++) {
        const float *row = cache_row(&op->state, chunk, first - before + i);
        const int64_t part = op->overlap && i >= before ? op->width : 0;
        slots[i] =
            (Slot){row + part, row + all + part, op->position_bias + (first - before + i) % op->rate * all + part};
    }
    return before + op->rate;
}

static void compute_key(const Compression *op, const SequenceChunk *chunk, int position) {
    Slot slots[SLOTS_MAX];
    const int count = slots_of(op, chunk, position, slots), first = position + 1 - op->rate;
    float *key = cache_row(&op->keys, chunk, first);
    for (int e = 0; e < op->width; e++) {
        float most = -INFINITY, sum = 0, value = 0;
        for (int i = 0; i < count; i++) most = fmaxf(most, slots[i].gate[e] + slots[i].bias[e]);
        for (int i = 0; i < count; i++) {
            const float p = expf(slots[i].gate[e] + slots[i].bias[e] - most);
            sum += p;
            value += p * slots[i].value[e];
        }
        key[e] = value / sum;
    }
    if (op->norm) norm_row(op->norm, key);
    rotate_end(op->rope, first, op->width, false, key);
}

static void compress_row(const Job *job, int64_t row) {
    const Compression *op = job->op;
    const SequenceChunk *chunk = chunk_of(job->step, row);
    const int position = position_of(chunk, row);
    if ((position + 1) % op->rate == 0) compute_key(op, chunk, position);
}

void ref_compress(Backend *backend, const Compression *op) {
    const int64_t all = compression_width(op);
    for (int64_t row = 0; row < op->rows; row++) {
        const SequenceChunk *chunk = chunk_of(&ref_backend(backend)->step, row);
        float *to = cache_row(&op->state, chunk, position_of(chunk, row));
        memcpy(to, op->values + row * all, (size_t)all * sizeof *to);
        memcpy(to + all, op->gates + row * all, (size_t)all * sizeof *to);
    }
    run(backend, (Job){op, &ref_backend(backend)->step, op->rows, compress_row}, 2 * all);
}

/* ---- the choice of keys ---- */

typedef struct Candidate {
    float score;
    int32_t key;
} Candidate;

/* Whether a is to be dropped before b. */
static bool worse(Candidate a, Candidate b) { return a.score < b.score || (a.score == b.score && a.key > b.key); }

/* Restores the heap below i, whose root is the worst candidate. */
static void sift(Candidate *heap, int count, int i) {
    for (int child = 2 * i + 1; child < count; child = 2 * i + 1) {
        if (child + 1 < count && worse(heap[child + 1], heap[child])) child++;
        if (!worse(heap[child], heap[i])) return;
        const Candidate swap = heap[i];
        heap[i] = heap[child];
        heap[child] = swap;
        i = child;
    }
}

static int compare_keys(const void *a, const void *b) {
    const int32_t x = ((const Candidate *)a)->key, y = ((const Candidate *)b)->key;
    return (x > y) - (x < y);
}

/* Sorts by key: each is smaller than all before it in turn. */
static void sort_keys(Candidate *heap, int count) {
    for (int gap = count / 2; gap > 0; gap /= 2)
        for (int i = gap; i < count; i++)
            for (int j = i; j >= gap && compare_keys(&heap[j], &heap[j - gap]) < 0; j -= gap) {
                const Candidate swap = heap[j];
                heap[j] = heap[j - gap];
                heap[j - gap] = swap;
            }
}

static float score_key(const CompressedSelect *op, const float *q, const float *weights, const float *key) {
    float sum = 0;
    for (int h = 0; h < op->heads; h++)
        sum += weights[h] * fmaxf(0, ref_dot(q + (int64_t)h * op->width, key, op->width));
    return sum;
}

static void select_row(const Job *job, int64_t row) {
    const CompressedSelect *op = job->op;
    const SequenceChunk *chunk = chunk_of(job->step, row);
    const int position = position_of(chunk, row), seen = compressed_keys(op->rate, position);
    const int kept = seen < op->top_k ? seen : op->top_k;
    int32_t *chosen = op->chosen + row * compressed_chosen(op);
    for (int i = 0; i < compressed_chosen(op); i++) chosen[i] = i < kept ? i : -1;
    if (op->tail) chosen[kept] = compressed_tail(op->rate, position);
    if (seen <= op->top_k) return;
    float *q = op->q + row * op->heads * op->width;
    for (int h = 0; h < op->heads; h++) rotate_end(op->rope, position, op->width, false, q + (int64_t)h * op->width);
    Candidate *heap = (Candidate *)(void *)(op->work + 2 * row * op->top_k);
    for (int32_t i = 0; i < seen; i++) {
        const float *key = cache_row(&op->keys, chunk, i * op->rate);
        const Candidate one = {score_key(op, q, op->weights + row * op->heads, key), i};
        if (i < kept) heap[i] = one;
        if (i == kept - 1)
            for (int root = kept / 2 - 1; root >= 0; root--) sift(heap, kept, root);
        if (i < kept || !worse(heap[0], one)) continue;
        heap[0] = one;
        sift(heap, kept, 0);
    }
    sort_keys(heap, kept);
    for (int i = 0; i < kept; i++) chosen[i] = heap[i].key;
}

void ref_compressed_select(Backend *backend, const CompressedSelect *op) {
    run(backend, (Job){op, &ref_backend(backend)->step, op->rows, select_row},
        (int64_t)op->top_k * op->heads * op->width);
}

/* ---- attention ---- */

/* A softmax whose largest score may still grow. */
typedef struct Running {
    float most, sum;
    float *out; /* [width] Σ e^(score − most) · value */
    int width;
} Running;

/* Adds keys in their order. */
static void add_block(Running *r, const float *q, float scale, const float *const *keys, int count) {
    float scores[BLOCK_KEYS], most = r->most;
    for (int i = 0; i < count; i++) {
        scores[i] = scale * ref_dot(q, keys[i], r->width);
        most = fmaxf(most, scores[i]);
    }
    const float factor = expf(r->most - most);
    for (int e = 0; factor != 1 && e < r->width; e++) r->out[e] *= factor;
    r->sum *= factor;
    r->most = most;
    for (int i = 0; i < count; i++) {
        const float p = expf(scores[i] - most), *value = keys[i];
        r->sum += p;
        for (int e = 0; e < r->width; e++) r->out[e] += p * value[e];
    }
}

/* The i-th compressed key that a row reads. */
static const float *compressed_key(
    const CompressedAttention *op, const SequenceChunk *chunk, const int32_t *chosen, int i) {
    return cache_row(&op->keys, chunk, (chosen ? chosen[i] : i) * op->rate);
}

static int keys_read(const CompressedAttention *op, const int32_t *chosen, int position) {
    if (!op->rate) return 0;
    const int seen = compressed_keys(op->rate, position);
    if (!chosen) return seen;
    int count = 0;
    while (count < op->top_k && chosen[count] >= 0) count++;
    return count;
}

/* One head of one row. Blocks begin at the window's first key, and at the first compressed one. */
static void attend(const CompressedAttention *op, const SequenceChunk *chunk, int64_t row, int head) {
    const int position = position_of(chunk, row), each = op->heads / op->groups;
    const int first = position >= op->window ? position - op->window + 1 : 0;
    const int32_t *chosen = op->chosen ? op->chosen + row * op->top_k : NULL;
    const int compressed = keys_read(op, chosen, position);
    float *q = op->q + (row * op->heads + head) * op->width;
    Running r = {op->sinks[head], 1, op->out, op->width};
    r.out += ((int64_t)(head / each) * op->rows + row) * each * op->width + (int64_t)(head % each) * op->width;
    memset(r.out, 0, (size_t)op->width * sizeof *r.out);
    norm_row(op->q_norm, q);
    rotate_end(op->rope, position, op->width, false, q);
    const float *keys[BLOCK_KEYS];
    for (int at = first, count; at <= position; at += count) {
        for (count = 0; count < BLOCK_KEYS && at + count <= position; count++)
            keys[count] = cache_row(&op->latest, chunk, at + count);
        add_block(&r, q, op->scale, keys, count);
    }
    for (int at = 0, count; at < compressed; at += count) {
        for (count = 0; count < BLOCK_KEYS && at + count < compressed; count++)
            keys[count] = compressed_key(op, chunk, chosen, at + count);
        add_block(&r, q, op->scale, keys, count);
    }
    for (int e = 0; e < op->width; e++) r.out[e] /= r.sum;
    rotate_end(op->rope, position, op->width, true, r.out);
}

static void attend_item(const Job *job, int64_t item) {
    const CompressedAttention *op = job->op;
    const int64_t row = item / op->heads;
    attend(op, chunk_of(job->step, row), row, (int)(item % op->heads));
}

void ref_compressed_attention(Backend *backend, const CompressedAttention *op) {
    for (int64_t row = 0; row < op->rows; row++) {
        const SequenceChunk *chunk = chunk_of(&ref_backend(backend)->step, row);
        const int position = position_of(chunk, row);
        float *k = op->k + row * op->width;
        norm_row(op->k_norm, k);
        rotate_end(op->rope, position, op->width, false, k);
        memcpy(cache_row(&op->latest, chunk, position), k, (size_t)op->width * sizeof *k);
    }
    run(backend, (Job){op, &ref_backend(backend)->step, (int64_t)op->rows * op->heads, attend_item},
        (int64_t)op->window * op->width);
}

static void join_row(const Job *job, int64_t row) {
    const GroupJoin *op = job->op;
    for (int g = 0; g < op->groups; g++)
        memcpy(op->out + (row * op->groups + g) * op->width,
            op->x + ((op->repeated ? 0 : (int64_t)g * op->rows) + row) * op->width,
            (size_t)op->width * sizeof *op->out);
}

void ref_join_groups(Backend *backend, const GroupJoin *op) {
    run(backend, (Job){op, NULL, op->rows, join_row}, op->groups * op->width);
}

/* ---- hyper-connections ---- */

static void collapse_row(const HyperConnection *op, const HyperWeights *w, const float *x, float *out) {
    memset(out, 0, (size_t)op->width * sizeof *out);
    for (int i = 0; i < op->streams; i++)
        for (int64_t e = 0; e < op->width; e++) out[e] += w->pre[i] * x[i * op->width + e];
}

static void expand_row(const HyperConnection *op, const HyperWeights *w, const float *y, float *x) {
    const int n = op->streams;
    float old[STREAMS_MAX];
    for (int64_t e = 0; e < op->width; e++) {
        for (int i = 0; i < n; i++) old[i] = x[i * op->width + e];
        for (int j = 0; j < n; j++) {
            float sum = 0;
            for (int i = 0; i < n; i++) sum += w->mix[i][j] * old[i];
            x[j * op->width + e] = w->post[j] * y[e] + sum;
        }
    }
}

static void hyper_row(const Job *job, int64_t row) {
    const HyperConnection *op = job->op;
    float *x = op->x + row * op->streams * op->width;
    HyperWeights weights;
    hyper_weights(op, row, &weights);
    if (op->y)
        expand_row(op, &weights, op->y + row * op->width, x);
    else
        collapse_row(op, &weights, x, op->out + row * op->width);
}

void ref_hyper_connect(Backend *backend, const HyperConnection *op) {
    run(backend, (Job){op, NULL, op->rows, hyper_row}, op->streams * op->width);
}
