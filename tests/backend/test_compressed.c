/* Attention to compressed keys and hyper-connections, on every backend that has them: against their definitions in
 * double, and the bits of a row depend on that row and those before it alone, not on how a text is cut into steps. */
#include <math.h>

#include "backend/compressed.h"
#include "backend/ops.h"

enum { POSITIONS = 300, PAGES = 3, WIDTH_MAX = 512, DIMS_MAX = 64, TOP_K_MAX = 32, GROUPS = 2 };

/* positions: of the text. each: positions of which one is compared with the definition; all are compared with other
 * cuts. */
typedef struct Shape {
    const char *name;
    int width, heads, rate, top_k, window, dims, positions, each;
    double tolerance;
} Shape;
/* Small ones, tails of vectors and of tiles, and DeepSeek-V4-Flash's attention and indexer. */
static const Shape shapes[] = {{"small", 16, 4, 4, 6, 10, 8, 300, 1, 2e-5}, {"odd", 44, 14, 4, 9, 70, 6, 300, 5, 2e-5},
    {"attention of V4-Flash", 512, 64, 4, 16, 128, 64, 160, 37, 2e-5},
    {"indexer of V4-Flash", 128, 64, 4, 32, 128, 64, 300, 13, 2e-5}};
static Shape s;

static const int32_t page_order[PAGES] = {2, 0, 1};
static float frequencies[DIMS_MAX / 2];
static Rope rope = {.interleaved = true, .frequencies = frequencies, .scale = 1};

static void take_shape(const Shape *shape) {
    s = *shape;
    rope.dims = s.dims;
    for (int i = 0; i < s.dims / 2; i++) frequencies[i] = (float)pow(0.01, 2.0 * i / s.dims);
}

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
    for (int i = 0; i < s.dims / 2; i++) {
        const double angle = (back ? -1 : 1) * (double)((float)position * frequencies[i]);
        double *pair = x + s.width - s.dims + 2 * i, a = pair[0], b = pair[1];
        pair[0] = a * cos(angle) - b * sin(angle);
        pair[1] = a * sin(angle) + b * cos(angle);
    }
}

static void normalise(double *x, const float *weight) {
    double square = 0;
    for (int i = 0; i < s.width; i++) square += x[i] * x[i] / s.width;
    for (int i = 0; i < s.width; i++) x[i] *= (weight ? weight[i] : 1) / sqrt(square + 1e-6);
}

static void define_key(int key, bool overlap, const float *values, const float *gates, const float *bias,
    const float *weight, double *out) {
    const int all = overlap ? 2 * s.width : s.width, before = overlap && key > 0 ? s.rate : 0;
    for (int e = 0; e < s.width; e++) {
        double sum = 0, value = 0;
        for (int i = -before; i < s.rate; i++) {
            const int at = (key * s.rate + i) * all + e + (overlap && i >= 0 ? s.width : 0);
            const int of = (i + s.rate) % s.rate * all + e + (overlap && i >= 0 ? s.width : 0);
            const double p = exp((double)gates[at] + bias[of]);
            sum += p;
            value += p * values[at];
        }
        out[e] = value / sum;
    }
    normalise(out, weight);
    rotate(out, key * s.rate, false);
}

/* ---- operations ---- */

static float *key_of(const KvLayer *keys, int key) {
    const int position = key * s.rate;
    return (float *)(void *)(keys->base + (size_t)page_order[position / KV_PAGE_TOKENS] * keys->page_stride +
        (size_t)(position % KV_PAGE_TOKENS) * keys->layout.row_bytes);
}

static void compress(Backend *backend, Compression op, int cut, const float *values, const float *gates) {
    const int64_t all = compression_width(&op);
    for (int at = 0; at < s.positions; at += op.rows) {
        op.rows = s.positions - at < cut ? s.positions - at : cut;
        op.values = values + at * all;
        op.gates = gates + at * all;
        begin(backend, at, op.rows);
        backend->ops->compress(backend, &op);
        end(backend);
    }
}

static void check_compression(Backend *backend, const char *name, bool overlap) {
    const int64_t all = overlap ? 2 * s.width : s.width;
    float *values = random_floats(s.positions * all, 1), *gates = random_floats(s.positions * all, 3);
    float *bias = random_floats(s.rate * all, 1), *weight = random_floats(s.width, 1);
    float *once = random_floats((int64_t)s.positions / s.rate * s.width, 1);
    const Norm norm = {.width = s.width, .eps = 1e-6f, .weight = weight};
    const Compression op = {.state = open_rows(backend, (int)(2 * all)),
        .keys = open_rows(backend, s.width / s.rate),
        .rate = s.rate,
        .width = s.width,
        .overlap = overlap,
        .position_bias = bias,
        .norm = &norm,
        .rope = &rope};
    compress(backend, op, s.positions, values, gates);
    for (int k = 0; k < s.positions / s.rate; k++) {
        double wanted[WIDTH_MAX];
        float rounded[WIDTH_MAX];
        define_key(k, overlap, values, gates, bias, weight, wanted);
        for (int e = 0; e < s.width; e++) rounded[e] = (float)wanted[e];
        memcpy(once + k * s.width, key_of(&op.keys, k), (size_t)s.width * sizeof *once);
        TEST_MSG(distance(once + k * s.width, rounded, s.width) <= s.tolerance, "key %d on %s, %s", k, name, s.name);
    }
    for (int cut = 1; cut < 9; cut += 6) {
        compress(backend, op, cut, values, gates);
        for (int k = 0; k < s.positions / s.rate; k++)
            TEST_MSG(same_bits(once + k * s.width, key_of(&op.keys, k), s.width), "key %d on %s, %s, steps of %d", k,
                name, s.name, cut);
    }
    backend->ops->release(backend, op.state.base);
    backend->ops->release(backend, op.keys.base);
    free(values);
    free(gates);
    free(bias);
    free(weight);
    free(once);
}

static void fill(const KvLayer *rows, float scale) {
    const int64_t count = PAGES * KV_PAGE_TOKENS * (int64_t)(rows->layout.row_bytes / sizeof(float));
    float *random = random_floats(count, scale);
    memcpy(rows->base, random, (size_t)count * sizeof *random);
    free(random);
}

static double score_of(const KvLayer *keys, const float *q, const float *weights, int position, int key) {
    double sum = 0;
    for (int h = 0; h < s.heads; h++) {
        double head[WIDTH_MAX], product = 0;
        for (int e = 0; e < s.width; e++) head[e] = q[h * s.width + e];
        rotate(head, position, false);
        for (int e = 0; e < s.width; e++) product += head[e] * key_of(keys, key)[e];
        sum += weights[h] * fmax(0, product);
    }
    return sum;
}

/* Each chosen key is at least as good as each that is not. */
static void check_selection(Backend *backend, const char *name, bool tail) {
    enum { ROWS = 40, FIRST = POSITIONS - ROWS };
    const KvLayer keys = open_rows(backend, s.width / s.rate);
    float *q = random_floats((int64_t)ROWS * s.heads * s.width, 1),
          *weights = random_floats((int64_t)ROWS * s.heads, 1);
    float *own = copy_floats(q, (int64_t)ROWS * s.heads * s.width),
          *work = random_floats((int64_t)ROWS * 2 * s.top_k, 1);
    const int each = s.top_k + tail;
    int32_t chosen[ROWS * (TOP_K_MAX + 1)], alone[TOP_K_MAX + 1];
    fill(&keys, 1);
    const CompressedSelect op = {.keys = keys,
        .rows = ROWS,
        .rate = s.rate,
        .width = s.width,
        .heads = s.heads,
        .top_k = s.top_k,
        .tail = tail,
        .rope = &rope,
        .q = own,
        .weights = weights,
        .work = work,
        .chosen = chosen};
    begin(backend, FIRST, ROWS);
    backend->ops->compressed_select(backend, &op);
    end(backend);
    for (int r = 0; r < ROWS; r++) {
        CompressedSelect one = op;
        float *own_row = copy_floats(q + (int64_t)r * s.heads * s.width, (int64_t)s.heads * s.width);
        one.rows = 1;
        one.q = own_row;
        one.weights += r * s.heads;
        one.chosen = alone;
        begin(backend, FIRST + r, 1);
        backend->ops->compressed_select(backend, &one);
        end(backend);
        free(own_row);
        TEST_MSG(!memcmp(alone, chosen + r * each, (size_t)each * sizeof *alone), "row %d alone on %s", r, name);
        const int last = FIRST + r, own_window = (last + 1) % s.rate ? (last + 1) / s.rate : -1;
        TEST_MSG(!tail || alone[s.top_k] == own_window, "window %d of row %d on %s", alone[s.top_k], r, name);
    }
    for (int r = 0; r < ROWS; r += s.each) {
        const int position = FIRST + r, seen = compressed_keys(s.rate, position);
        const float *row = q + (int64_t)r * s.heads * s.width, *of = weights + r * s.heads;
        double worst = INFINITY;
        for (int i = 0; i < s.top_k; i++) {
            const int32_t key = chosen[r * each + i];
            TEST_MSG(key >= 0 && key < seen && (i == 0 || key > chosen[r * each + i - 1]), "key %d on %s", key, name);
            worst = fmin(worst, score_of(&keys, row, of, position, key));
        }
        int better = 0;
        for (int k = 0; k < seen; k++) better += score_of(&keys, row, of, position, k) > worst + 1e-5 * s.width;
        TEST_MSG(better < s.top_k, "%d better keys on %s, %s", better, name, s.name);
    }
    begin(backend, 6, 2); /* positions with one key, and with two */
    const CompressedSelect few = {.keys = keys,
        .rows = 2,
        .rate = s.rate,
        .width = s.width,
        .heads = s.heads,
        .top_k = s.top_k,
        .tail = tail,
        .rope = &rope,
        .q = own,
        .weights = weights,
        .work = work,
        .chosen = chosen};
    backend->ops->compressed_select(backend, &few);
    end(backend);
    TEST(chosen[0] == 0 && chosen[1] == (tail ? 1 : -1) && chosen[each] == 0 && chosen[each + 1] == 1 &&
        chosen[each + 2] == -1);
    backend->ops->release(backend, keys.base);
    free(q);
    free(own);
    free(weights);
    free(work);
}

typedef struct Texts {
    float *q, *k, *sinks, *weight;
    int32_t *chosen; /* [s.positions, s.top_k] */
} Texts;

static void define_attention(const Texts *t, const CompressedAttention *op, int row, int head, double *out) {
    double q[WIDTH_MAX], sum = exp(t->sinks[head]);
    for (int e = 0; e < s.width; e++) q[e] = t->q[(row * s.heads + head) * s.width + e];
    normalise(q, NULL);
    rotate(q, row, false);
    memset(out, 0, s.width * sizeof *out);
    const int32_t *chosen = op->chosen ? t->chosen + row * s.top_k : NULL;
    const int latest = row + 1 < s.window ? row + 1 : s.window;
    int compressed = 0;
    while (op->rate && !chosen && compressed < compressed_keys(s.rate, row)) compressed++;
    while (op->rate && chosen && compressed < s.top_k && chosen[compressed] >= 0) compressed++;
    for (int i = 0; i < latest + compressed; i++) {
        const int position = row - latest + 1 + i;
        double key[WIDTH_MAX], product = 0;
        for (int e = 0; i < latest && e < s.width; e++) key[e] = t->k[position * s.width + e];
        if (i < latest) normalise(key, t->weight);
        if (i < latest) rotate(key, position, false);
        for (int e = 0; i >= latest && e < s.width; e++)
            key[e] = key_of(&op->keys, chosen ? chosen[i - latest] : i - latest)[e];
        for (int e = 0; e < s.width; e++) product += q[e] * key[e];
        const double p = exp(op->scale * product);
        sum += p;
        for (int e = 0; e < s.width; e++) out[e] += p * key[e];
    }
    for (int e = 0; e < s.width; e++) out[e] /= sum;
    rotate(out, row, true);
}

/* Results in the order of rows: [s.positions, s.heads, s.width]. */
static float *attend(Backend *backend, CompressedAttention op, const Texts *t, int cut) {
    float *out = random_floats((int64_t)s.positions * s.heads * s.width, 1);
    const int32_t *chosen = op.chosen;
    op.groups = GROUPS;
    for (int at = 0; at < s.positions; at += op.rows) {
        op.rows = s.positions - at < cut ? s.positions - at : cut;
        const int64_t count = (int64_t)op.rows * s.heads * s.width;
        float *q = copy_floats(t->q + (int64_t)at * s.heads * s.width, count - 1),
              *k = copy_floats(t->k + (int64_t)at * s.width, (int64_t)op.rows * s.width - 1),
              *own = random_floats(count, 1), *joined = random_floats(count, 1);
        op.q = q;
        op.k = k;
        op.out = own;
        op.chosen = chosen ? chosen + at * s.top_k : NULL;
        begin(backend, at, op.rows);
        backend->ops->compressed_attention(backend, &op);
        const GroupJoin join = {
            .rows = op.rows, .groups = GROUPS, .width = s.heads / GROUPS * s.width, .x = own, .out = joined};
        backend->ops->join_groups(backend, &join);
        end(backend);
        memcpy(out + (int64_t)at * s.heads * s.width, joined, (size_t)count * sizeof *out);
        free(q);
        free(k);
        free(own);
        free(joined);
    }
    return out;
}

static void check_attention(Backend *backend, const char *name, int rate, bool chooses) {
    Texts t = {.q = random_floats((int64_t)s.positions * s.heads * s.width, 1),
        .k = random_floats((int64_t)s.positions * s.width, 1),
        .sinks = random_floats(s.heads, 1),
        .weight = random_floats(s.width, 1),
        .chosen = malloc(sizeof *t.chosen * s.positions * s.top_k)};
    for (int i = 0; i < s.positions * s.top_k; i++)
        t.chosen[i] = 2 * (i % s.top_k) < compressed_keys(s.rate, i / s.top_k) ? 2 * (i % s.top_k) : -1;
    const Norm q_norm = {.width = s.width, .eps = 1e-6f}, k_norm = {.width = s.width, .eps = 1e-6f, .weight = t.weight};
    const CompressedAttention op = {.latest = open_rows(backend, s.width),
        .keys = open_rows(backend, s.width / s.rate),
        .heads = s.heads,
        .width = s.width,
        .window = s.window,
        .rate = rate,
        .top_k = s.top_k,
        .chosen = chooses ? t.chosen : NULL,
        .scale = 2 / sqrtf((float)s.width),
        .q_norm = &q_norm,
        .k_norm = &k_norm,
        .rope = &rope,
        .sinks = t.sinks};
    fill(&op.keys, 1);
    float *once = attend(backend, op, &t, s.positions), *steps = attend(backend, op, &t, 7);
    TEST_MSG(same_bits(once, steps, (int64_t)s.positions * s.heads * s.width), "attention on %s, %s, steps of 7", name,
        s.name);
    for (int i = 0; i < s.positions * s.heads; i++) {
        if (i / s.heads % s.each) continue;
        double wanted[WIDTH_MAX];
        float rounded[WIDTH_MAX];
        define_attention(&t, &op, i / s.heads, i % s.heads, wanted);
        for (int e = 0; e < s.width; e++) rounded[e] = (float)wanted[e];
        TEST_MSG(distance(once + (int64_t)i * s.width, rounded, s.width) <= s.tolerance,
            "attention of row %d on %s, %s", i / s.heads, name, s.name);
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

enum { STREAMS = 4, HYPER_WIDTH = 4096, ROWS = 5, ITERATIONS = 20 }; /* the largest of a case */

static double sigmoid(double x) { return 1 / (1 + exp(-x)); }

static void define_mix(const HyperConnection *op, const float *logits, double mix[STREAMS][STREAMS]) {
    const int n = op->streams;
    for (int i = 0; op->magnitude > 0 && i < n; i++)
        for (int j = 0; j < n; j++) mix[i][j] = i == j;
    if (op->magnitude > 0) return;
    for (int i = 0; i < n; i++) {
        double sum = 0;
        for (int j = 0; j < n; j++) {
            const int at = 2 * n + i * n + j;
            sum += mix[i][j] = exp((double)logits[at] * op->scale[2] + op->base[at]);
        }
        for (int j = 0; j < n; j++) mix[i][j] = mix[i][j] / sum + 1e-6;
    }
    for (int turn = 0; turn < 2 * op->iterations - 1; turn++) {
        double sums[STREAMS] = {0};
        for (int i = 0; i < n; i++)
            for (int j = 0; j < n; j++) sums[turn % 2 ? i : j] += mix[i][j];
        for (int i = 0; i < n; i++)
            for (int j = 0; j < n; j++) mix[i][j] /= sums[turn % 2 ? i : j] + 1e-6;
    }
}

/* What a row's streams become, and their sum before. */
static void define_hyper(const HyperConnection *op, int row, const float *old, float *wanted, float *summed) {
    const int n = op->streams, width = (int)op->width;
    const float *l = op->logits + row * hyper_logits(n, op->iterations, op->magnitude), *base = op->base;
    const double most = op->magnitude > 0 ? op->magnitude : 2, least = op->magnitude > 0 ? 1e-6 : 0;
    double mix[STREAMS][STREAMS];
    define_mix(op, l, mix);
    for (int e = 0; e < width; e++) {
        double all = 0;
        for (int i = 0; i < n; i++)
            all += (sigmoid((double)l[i] * op->scale[0] + base[i]) + 1e-6) * old[(row * n + i) * width + e];
        summed[row * width + e] = (float)all;
        for (int j = 0; j < n; j++) {
            const double gate = most * sigmoid((double)l[n + j] * op->scale[1] + base[n + j]) + least;
            double mixed = gate * op->y[row * width + e];
            for (int i = 0; i < n; i++) mixed += mix[i][j] * old[(row * n + i) * width + e];
            wanted[(row * n + j) * width + e] = (float)mixed;
        }
    }
}

static void check_hyper(Backend *backend, const char *name, int streams, int width, int iterations, float magnitude) {
    const int64_t all = (int64_t)ROWS * streams * width, each = hyper_logits(streams, iterations, magnitude);
    float *x = random_floats(all, 1), *logits = random_floats(ROWS * each, 2), *scale = random_floats(3, 1);
    float *base = random_floats(each, 1), *y = random_floats((int64_t)ROWS * width, 1), *old = copy_floats(x, all);
    float *alone = copy_floats(x, all), *sum = random_floats((int64_t)ROWS * width, 1);
    float *summed = random_floats((int64_t)ROWS * width, 1), *wanted = random_floats(all, 1);
    HyperConnection op = {.rows = ROWS,
        .streams = streams,
        .width = width,
        .iterations = iterations,
        .magnitude = magnitude,
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
        one.x = alone + r * streams * width;
        one.logits += r * each;
        one.y += r * width;
        backend->ops->hyper_connect(backend, &one);
    }
    end(backend);
    for (int r = 0; r < ROWS; r++) define_hyper(&op, r, old, wanted, summed);
    TEST_MSG(distance(sum, summed, (int64_t)ROWS * width) <= 1e-5, "a sum of %d streams on %s", streams, name);
    TEST_MSG(distance(x, wanted, all) <= 1e-5, "%d mixed streams on %s", streams, name);
    TEST_MSG(same_bits(x, alone, all), "%d mixed streams on %s: rows alone", streams, name);
    free(x);
    free(logits);
    free(scale);
    free(base);
    free(y);
    free(old);
    free(alone);
    free(sum);
    free(summed);
    free(wanted);
}

/* short: the small shape alone, for the emulated GPU. */
int main(int argc, char **argv) {
    const size_t count = argc > 1 && !strcmp(argv[1], "short") ? 1 : COUNT_OF(shapes);
    for (size_t n = 0; n <= COUNT_OF(vector_names); n++) {
        const char *name = n ? vector_names[n - 1] : "ref";
        Backend *backend = open_backend(name, 2, false, POSITIONS);
        if (!backend) continue;
        for (size_t i = 0; backend->ops->compress && i < count; i++) {
            take_shape(&shapes[i]);
            check_compression(backend, name, false);
            check_compression(backend, name, true);
            check_selection(backend, name, false);
            check_selection(backend, name, true);
            if (s.width == 128) continue; /* an indexer's */
            if (s.width < 512) check_attention(backend, name, 0, false);
            check_attention(backend, name, s.rate, false);
            check_attention(backend, name, s.rate, true);
        }
        if (backend->ops->compress) {
            check_hyper(backend, name, 3, 20, 4, 0);
            check_hyper(backend, name, 3, 20, 0, 1.5f);
            check_hyper(backend, name, STREAMS, HYPER_WIDTH, ITERATIONS, 0);
        }
        backend_close(backend);
    }
    return test_done();
}
