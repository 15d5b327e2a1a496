/* Attention to compressed keys and hyper-connections, on every backend that has them: against their definitions in
 * double, and the bits of a row depend on that row and those before it alone, not on how a text is cut into steps. */
#include <math.h>

#include "backend/compressed.h"
#include "backend/ops.h"

enum { POSITIONS = 300, PAGES = 3, WIDTH = 16, HEADS = 4, RATE = 4, TOP_K = 6, WINDOW = 10, DIMS = 8 };

static const int32_t page_order[PAGES] = {2, 0, 1};
static const float frequencies[DIMS / 2] = {1, 0.3f, 0.07f, 0.01f};
static const Rope rope = {.dims = DIMS, .interleaved = true, .frequencies = frequencies, .scale = 1};

/* A cache entry of `width` floats for each position. */
static KvLayer open_rows(Backend *backend, int width) {
    const size_t row = (size_t)width * sizeof(float);
    Error error = {0};
    uint8_t *memory = backend->ops->alloc(backend, PAGES * KV_PAGE_TOKENS * row, MEMORY_CACHE, &error);
    if (!memory) abort();
    return (KvLayer){.layout = {.dtype = DTYPE_F32, .row_bytes = row},
        .base = memory,
        .page_stride = KV_PAGE_TOKENS * row,
        .page_tokens = KV_PAGE_TOKENS};
}

static void begin(Backend *backend, int position, int rows) {
    static const int32_t *const tables[] = {page_order};
    static int32_t numbers[POSITIONS];
    static SequenceChunk chunk;
    chunk = (SequenceChunk){.rows = rows, .position = position, .tables = tables};
    for (int i = 0; i < rows; i++) numbers[i] = position + i;
    const Step step = {
        .rows = rows, .tokens = numbers, .positions = numbers, .position_dims = 1, .chunk_count = 1, .chunks = &chunk};
    backend->ops->begin(backend, &step);
}

static void end(Backend *backend) { TEST(backend->ops->wait(backend, backend->ops->submit(backend), NULL)); }

/* ---- definitions ---- */

static void rotate(double *x, int position, bool back) {
    for (int i = 0; i < DIMS / 2; i++) {
        const double angle = (back ? -1 : 1) * (double)((float)position * frequencies[i]);
        double *pair = x + WIDTH - DIMS + 2 * i, a = pair[0], b = pair[1];
        pair[0] = a * cos(angle) - b * sin(angle);
        pair[1] = a * sin(angle) + b * cos(angle);
    }
}

static void normalise(double *x, const float *weight) {
    double square = 0;
    for (int i = 0; i < WIDTH; i++) square += x[i] * x[i] / WIDTH;
    for (int i = 0; i < WIDTH; i++) x[i] *= (weight ? weight[i] : 1) / sqrt(square + 1e-6);
}

static void define_key(int key, bool overlap, const float *values, const float *gates, const float *bias,
    const float *weight, double *out) {
    const int all = overlap ? 2 * WIDTH : WIDTH, before = overlap && key > 0 ? RATE : 0;
    for (int e = 0; e < WIDTH; e++) {
        double sum = 0, value = 0;
        for (int i = -before; i < RATE; i++) {
            const int at = (key * RATE + i) * all + e + (overlap && i >= 0 ? WIDTH : 0);
            const int of = (i + RATE) % RATE * all + e + (overlap && i >= 0 ? WIDTH : 0);
            const double p = exp((double)gates[at] + bias[of]);
            sum += p;
            value += p * values[at];
        }
        out[e] = value / sum;
    }
    normalise(out, weight);
    rotate(out, key * RATE, false);
}

/* ---- operations ---- */

static float *key_of(const KvLayer *keys, int key) {
    const int position = key * RATE;
    return (float *)(void *)(keys->base + (size_t)page_order[position / KV_PAGE_TOKENS] * keys->page_stride +
        (size_t)(position % KV_PAGE_TOKENS) * keys->layout.row_bytes);
}

static void compress(Backend *backend, Compression op, int cut, const float *values, const float *gates) {
    const int64_t all = compression_width(&op);
    for (int at = 0; at < POSITIONS; at += op.rows) {
        op.rows = POSITIONS - at < cut ? POSITIONS - at : cut;
        op.values = values + at * all;
        op.gates = gates + at * all;
        begin(backend, at, op.rows);
        backend->ops->compress(backend, &op);
        end(backend);
    }
}

static void check_compression(Backend *backend, const char *name, bool overlap) {
    const int64_t all = overlap ? 2 * WIDTH : WIDTH;
    float *values = random_floats(POSITIONS * all, 1), *gates = random_floats(POSITIONS * all, 3);
    float *bias = random_floats(RATE * all, 1), *weight = random_floats(WIDTH, 1), once[POSITIONS / RATE][WIDTH];
    const Norm norm = {.width = WIDTH, .eps = 1e-6f, .weight = weight};
    const Compression op = {.state = open_rows(backend, (int)(2 * all)),
        .keys = open_rows(backend, WIDTH / RATE),
        .rate = RATE,
        .width = WIDTH,
        .overlap = overlap,
        .position_bias = bias,
        .norm = &norm,
        .rope = &rope};
    compress(backend, op, POSITIONS, values, gates);
    for (int k = 0; k < POSITIONS / RATE; k++) {
        double wanted[WIDTH];
        float rounded[WIDTH];
        define_key(k, overlap, values, gates, bias, weight, wanted);
        for (int e = 0; e < WIDTH; e++) rounded[e] = (float)wanted[e];
        memcpy(once[k], key_of(&op.keys, k), sizeof once[k]);
        TEST_MSG(distance(once[k], rounded, WIDTH) <= 2e-5, "key %d on %s", k, name);
    }
    for (int cut = 1; cut < 9; cut += 6) {
        compress(backend, op, cut, values, gates);
        for (int k = 0; k < POSITIONS / RATE; k++)
            TEST_MSG(same_bits(once[k], key_of(&op.keys, k), WIDTH), "key %d on %s, steps of %d", k, name, cut);
    }
    backend->ops->release(backend, op.state.base);
    backend->ops->release(backend, op.keys.base);
    free(values);
    free(gates);
    free(bias);
    free(weight);
}

static void fill(const KvLayer *rows, float scale) {
    const int64_t count = PAGES * KV_PAGE_TOKENS * (int64_t)(rows->layout.row_bytes / sizeof(float));
    float *random = random_floats(count, scale);
    memcpy(rows->base, random, (size_t)count * sizeof *random);
    free(random);
}

static double score_of(const KvLayer *keys, const float *q, const float *weights, int position, int key) {
    double sum = 0;
    for (int h = 0; h < HEADS; h++) {
        double head[WIDTH], product = 0;
        for (int e = 0; e < WIDTH; e++) head[e] = q[h * WIDTH + e];
        rotate(head, position, false);
        for (int e = 0; e < WIDTH; e++) product += head[e] * key_of(keys, key)[e];
        sum += weights[h] * fmax(0, product);
    }
    return sum;
}

/* Each chosen key is at least as good as each that is not. */
static void check_selection(Backend *backend, const char *name) {
    enum { ROWS = 40, FIRST = POSITIONS - ROWS };
    const KvLayer keys = open_rows(backend, WIDTH / RATE);
    float *q = random_floats((int64_t)ROWS * HEADS * WIDTH, 1), *weights = random_floats((int64_t)ROWS * HEADS, 1);
    float *own = copy_floats(q, (int64_t)ROWS * HEADS * WIDTH), work[ROWS * 2 * TOP_K];
    int32_t chosen[ROWS * TOP_K];
    fill(&keys, 1);
    const CompressedSelect op = {.keys = keys,
        .rows = ROWS,
        .rate = RATE,
        .width = WIDTH,
        .heads = HEADS,
        .top_k = TOP_K,
        .rope = &rope,
        .q = own,
        .weights = weights,
        .work = work,
        .chosen = chosen};
    begin(backend, FIRST, ROWS);
    backend->ops->compressed_select(backend, &op);
    end(backend);
    for (int r = 0; r < ROWS; r++) {
        const int position = FIRST + r, seen = compressed_keys(RATE, position);
        const float *row = q + (int64_t)r * HEADS * WIDTH, *of = weights + r * HEADS;
        double worst = INFINITY;
        for (int i = 0; i < TOP_K; i++) {
            const int32_t key = chosen[r * TOP_K + i];
            TEST_MSG(key >= 0 && key < seen && (i == 0 || key > chosen[r * TOP_K + i - 1]), "key %d on %s", key, name);
            worst = fmin(worst, score_of(&keys, row, of, position, key));
        }
        int better = 0;
        for (int k = 0; k < seen; k++) better += score_of(&keys, row, of, position, k) > worst + 1e-5;
        TEST_MSG(better < TOP_K, "%d better keys on %s", better, name);
    }
    begin(backend, 6, 2); /* positions with one key, and with two */
    const CompressedSelect few = {.keys = keys,
        .rows = 2,
        .rate = RATE,
        .width = WIDTH,
        .heads = HEADS,
        .top_k = TOP_K,
        .rope = &rope,
        .q = own,
        .weights = weights,
        .work = work,
        .chosen = chosen};
    backend->ops->compressed_select(backend, &few);
    end(backend);
    TEST(chosen[0] == 0 && chosen[1] == -1 && chosen[TOP_K] == 0 && chosen[TOP_K + 1] == 1 && chosen[TOP_K + 2] == -1);
    backend->ops->release(backend, keys.base);
    free(q);
    free(own);
    free(weights);
}

typedef struct Texts {
    float *q, *k, *sinks, *weight;
    int32_t *chosen; /* [POSITIONS, TOP_K] */
} Texts;

static void define_attention(const Texts *t, const CompressedAttention *op, int row, int head, double *out) {
    double q[WIDTH], sum = exp(t->sinks[head]);
    for (int e = 0; e < WIDTH; e++) q[e] = t->q[(row * HEADS + head) * WIDTH + e];
    normalise(q, NULL);
    rotate(q, row, false);
    memset(out, 0, WIDTH * sizeof *out);
    const int32_t *chosen = op->chosen ? t->chosen + row * TOP_K : NULL;
    const int latest = row + 1 < WINDOW ? row + 1 : WINDOW;
    int compressed = 0;
    while (op->rate && !chosen && compressed < compressed_keys(RATE, row)) compressed++;
    while (op->rate && chosen && compressed < TOP_K && chosen[compressed] >= 0) compressed++;
    for (int i = 0; i < latest + compressed; i++) {
        const int position = row - latest + 1 + i;
        double key[WIDTH], product = 0;
        for (int e = 0; i < latest && e < WIDTH; e++) key[e] = t->k[position * WIDTH + e];
        if (i < latest) normalise(key, t->weight);
        if (i < latest) rotate(key, position, false);
        for (int e = 0; i >= latest && e < WIDTH; e++)
            key[e] = key_of(&op->keys, chosen ? chosen[i - latest] : i - latest)[e];
        for (int e = 0; e < WIDTH; e++) product += q[e] * key[e];
        const double p = exp(op->scale * product);
        sum += p;
        for (int e = 0; e < WIDTH; e++) out[e] += p * key[e];
    }
    for (int e = 0; e < WIDTH; e++) out[e] /= sum;
    rotate(out, row, true);
}

/* Results in the order of rows: [POSITIONS, HEADS, WIDTH]. */
static float *attend(Backend *backend, CompressedAttention op, const Texts *t, int cut) {
    enum { GROUPS = 2, EACH = HEADS / GROUPS * WIDTH };
    float *out = random_floats((int64_t)POSITIONS * HEADS * WIDTH, 1);
    const int32_t *chosen = op.chosen;
    op.groups = GROUPS;
    for (int at = 0; at < POSITIONS; at += op.rows) {
        op.rows = POSITIONS - at < cut ? POSITIONS - at : cut;
        const int64_t count = (int64_t)op.rows * HEADS * WIDTH;
        float *q = copy_floats(t->q + (int64_t)at * HEADS * WIDTH, count - 1),
              *k = copy_floats(t->k + (int64_t)at * WIDTH, (int64_t)op.rows * WIDTH - 1),
              *own = random_floats(count, 1), *joined = random_floats(count, 1);
        op.q = q;
        op.k = k;
        op.out = own;
        op.chosen = chosen ? chosen + at * TOP_K : NULL;
        begin(backend, at, op.rows);
        backend->ops->compressed_attention(backend, &op);
        const GroupJoin join = {.rows = op.rows, .groups = GROUPS, .width = EACH, .x = own, .out = joined};
        backend->ops->join_groups(backend, &join);
        end(backend);
        memcpy(out + (int64_t)at * HEADS * WIDTH, joined, (size_t)count * sizeof *out);
        free(q);
        free(k);
        free(own);
        free(joined);
    }
    return out;
}

static void check_attention(Backend *backend, const char *name, int rate, bool chooses) {
    Texts t = {.q = random_floats((int64_t)POSITIONS * HEADS * WIDTH, 1),
        .k = random_floats((int64_t)POSITIONS * WIDTH, 1),
        .sinks = random_floats(HEADS, 1),
        .weight = random_floats(WIDTH, 1),
        .chosen = malloc(sizeof *t.chosen * POSITIONS * TOP_K)};
    for (int i = 0; i < POSITIONS * TOP_K; i++)
        t.chosen[i] = 2 * (i % TOP_K) < compressed_keys(RATE, i / TOP_K) ? 2 * (i % TOP_K) : -1;
    const Norm q_norm = {.width = WIDTH, .eps = 1e-6f}, k_norm = {.width = WIDTH, .eps = 1e-6f, .weight = t.weight};
    const CompressedAttention op = {.latest = open_rows(backend, WIDTH),
        .keys = open_rows(backend, WIDTH / RATE),
        .heads = HEADS,
        .width = WIDTH,
        .window = WINDOW,
        .rate = rate,
        .top_k = TOP_K,
        .chosen = chooses ? t.chosen : NULL,
        .scale = 0.5f,
        .q_norm = &q_norm,
        .k_norm = &k_norm,
        .rope = &rope,
        .sinks = t.sinks};
    fill(&op.keys, 1);
    float *once = attend(backend, op, &t, POSITIONS), *steps = attend(backend, op, &t, 7);
    TEST_MSG(same_bits(once, steps, (int64_t)POSITIONS * HEADS * WIDTH), "attention on %s, steps of 7", name);
    for (int i = 0; i < POSITIONS * HEADS; i++) {
        double wanted[WIDTH];
        float rounded[WIDTH];
        define_attention(&t, &op, i / HEADS, i % HEADS, wanted);
        for (int e = 0; e < WIDTH; e++) rounded[e] = (float)wanted[e];
        TEST_MSG(
            distance(once + (int64_t)i * WIDTH, rounded, WIDTH) <= 2e-5, "attention of row %d on %s", i / HEADS, name);
    }
    backend->ops->release(backend, op.latest.base);
    backend->ops->release(backend, op.keys.base);
    free(once);
    free(steps);
    free(t.q);
    free(t.k);
    free(t.sinks);
    free(t.weight);
    free(t.chosen);
}

/* ---- hyper-connections ---- */

enum { STREAMS = 3, LOGITS = STREAMS * (STREAMS + 2), ROWS = 5, ITERATIONS = 4 };

static double sigmoid(double x) { return 1 / (1 + exp(-x)); }

static void define_mix(const float *logits, const float *scale, const float *base, double mix[STREAMS][STREAMS]) {
    for (int i = 0; i < STREAMS; i++) {
        double sum = 0;
        for (int j = 0; j < STREAMS; j++) {
            const int at = 2 * STREAMS + i * STREAMS + j;
            sum += mix[i][j] = exp((double)logits[at] * scale[2] + base[at]);
        }
        for (int j = 0; j < STREAMS; j++) mix[i][j] = mix[i][j] / sum + 1e-6;
    }
    for (int turn = 0; turn < 2 * ITERATIONS - 1; turn++) {
        double sums[STREAMS] = {0};
        for (int i = 0; i < STREAMS; i++)
            for (int j = 0; j < STREAMS; j++) sums[turn % 2 ? i : j] += mix[i][j];
        for (int i = 0; i < STREAMS; i++)
            for (int j = 0; j < STREAMS; j++) mix[i][j] /= sums[turn % 2 ? i : j] + 1e-6;
    }
}

static void check_hyper(Backend *backend, const char *name) {
    enum { ALL = ROWS * STREAMS * WIDTH };
    float *x = random_floats(ALL, 1), *logits = random_floats((int64_t)ROWS * LOGITS, 2), *scale = random_floats(3, 1);
    float *base = random_floats(LOGITS, 1), *y = random_floats((int64_t)ROWS * WIDTH, 1), *old = copy_floats(x, ALL);
    float *alone = copy_floats(x, ALL), sum[ROWS * WIDTH], summed[ROWS * WIDTH], wanted[ALL];
    HyperConnection op = {.rows = ROWS,
        .streams = STREAMS,
        .width = WIDTH,
        .iterations = ITERATIONS,
        .eps = 1e-6f,
        .x = x,
        .logits = logits,
        .scale = scale,
        .base = base,
        .out = sum};
    begin(backend, 0, ROWS);
    backend->ops->hyper_connect(backend, &op);
    op.out = NULL;
    op.y = y;
    backend->ops->hyper_connect(backend, &op);
    for (int r = 0; r < ROWS; r++) {
        HyperConnection one = op;
        one.rows = 1;
        one.x = alone + r * STREAMS * WIDTH;
        one.logits += r * LOGITS;
        one.y += r * WIDTH;
        backend->ops->hyper_connect(backend, &one);
    }
    end(backend);
    for (int r = 0; r < ROWS; r++) {
        double mix[STREAMS][STREAMS];
        const float *l = logits + r * LOGITS;
        define_mix(l, scale, base, mix);
        for (int e = 0; e < WIDTH; e++) {
            double all = 0;
            for (int i = 0; i < STREAMS; i++)
                all += (sigmoid((double)l[i] * scale[0] + base[i]) + 1e-6) * old[(r * STREAMS + i) * WIDTH + e];
            summed[r * WIDTH + e] = (float)all;
            for (int j = 0; j < STREAMS; j++) {
                double mixed = 2 * sigmoid((double)l[STREAMS + j] * scale[1] + base[STREAMS + j]) * y[r * WIDTH + e];
                for (int i = 0; i < STREAMS; i++) mixed += mix[i][j] * old[(r * STREAMS + i) * WIDTH + e];
                wanted[(r * STREAMS + j) * WIDTH + e] = (float)mixed;
            }
        }
    }
    TEST_MSG(distance(sum, summed, ROWS * WIDTH) <= 1e-5, "a sum of streams on %s", name);
    TEST_MSG(distance(x, wanted, ALL) <= 1e-5, "mixed streams on %s", name);
    TEST_MSG(same_bits(x, alone, ALL), "mixed streams on %s: rows alone", name);
    free(x);
    free(logits);
    free(scale);
    free(base);
    free(y);
    free(old);
    free(alone);
}

int main(void) {
    for (size_t n = 0; n <= COUNT_OF(vector_names); n++) {
        const char *name = n ? vector_names[n - 1] : "ref";
        Backend *backend = open_backend(name, 2, false, POSITIONS);
        if (!backend) continue;
        if (backend->ops->compress) {
            check_compression(backend, name, false);
            check_compression(backend, name, true);
            check_selection(backend, name);
            check_attention(backend, name, 0, false);
            check_attention(backend, name, RATE, false);
            check_attention(backend, name, RATE, true);
            check_hyper(backend, name);
        }
        backend_close(backend);
    }
    return test_done();
}
