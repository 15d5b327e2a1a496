/* Kernels of attention to compressed keys and of hyper-connections, compiled once per instruction set. */
#include "backend/cpu/compressed/compressed.h"
#include "backend/cpu/vec16.h"
#include "base/math.h"

/* Tiles that fit the registers: heads by keys of scores, heads by vectors of values, vectors of heads by keys of an
 * indexer. */
enum { LANES = 16, BLOCK = COMPRESSED_BLOCK, HEADS = COMPRESSED_HEADS };
#if defined(__AVX512F__)
enum { SCORE_HEADS = 4, SCORE_KEYS = 4, VALUE_VECS = 4, INDEX_VECS = 4, INDEX_KEYS = 4 };
#else
enum { SCORE_HEADS = 2, SCORE_KEYS = 2, VALUE_VECS = 1, INDEX_VECS = 1, INDEX_KEYS = 4 };
#endif
_Static_assert(HEADS % SCORE_HEADS == 0 && BLOCK == 2 * LANES, "tiles of scores");

/* ---- compression ---- */

VEC_INLINE Vec gate_of(const CompressedSlot *slot, int at, int lanes) {
    return vec_add(load_lanes(slot->gate + at, lanes), load_lanes(slot->bias + at, lanes));
}

static void pool(int width, const CompressedSlot *slots, int count, float *key) {
    for (int at = 0; at < width; at += LANES) {
        const int lanes = width - at;
        Vec most = gate_of(slots, at, lanes), sum = vec_set(0), value = vec_set(0);
        for (int i = 1; i < count; i++) most = vec_max(most, gate_of(slots + i, at, lanes));
        for (int i = 0; i < count; i++) {
            const Vec p = vec_exp_falling(vec_sub(gate_of(slots + i, at, lanes), most));
            sum = vec_add(sum, p);
            value = vec_fma(p, load_lanes(slots[i].value + at, lanes), value);
        }
        store_lanes(key + at, vec_div(value, sum), lanes);
    }
}

static void rotate(int dims, const float *cosines, const float *sines, bool back, float *end) {
    const float sign = back ? -1 : 1;
    for (int i = 0; i < dims / 2; i++) {
        const float a = end[2 * i], b = end[2 * i + 1], s = sign * sines[i];
        end[2 * i] = a * cosines[i] - b * s;
        end[2 * i + 1] = a * s + b * cosines[i];
    }
}

/* ---- the indexer: lanes are heads ---- */

VEC_INLINE void index_tile(
    const CompressedIndex *index, const float *keys, int count, int first, int vecs, Vec total[INDEX_KEYS]) {
    const int stride = compressed_lanes(index->heads);
    const float *q = index->q + first;
    Vec sum[INDEX_KEYS][INDEX_VECS];
    for (int k = 0; k < count; k++)
        for (int v = 0; v < vecs; v++) sum[k][v] = vec_set(0);
    for (int e = 0; e < index->width; e++, q += stride)
        for (int v = 0; v < vecs; v++) {
            const Vec heads = vec_load(q + v * LANES);
            for (int k = 0; k < count; k++) sum[k][v] = vec_fma(heads, vec_set(keys[k * index->width + e]), sum[k][v]);
        }
    for (int v = 0; v < vecs; v++) {
        const int at = first + v * LANES;
        const Vec weights = load_lanes(index->weights + at, index->heads - at);
        for (int k = 0; k < count; k++) total[k] = vec_fma(weights, vec_max(sum[k][v], vec_set(0)), total[k]);
    }
}

VEC_INLINE void score_keys(const CompressedIndex *index, const float *keys, int count, float *scores) {
    const int lanes = compressed_lanes(index->heads);
    Vec total[INDEX_KEYS];
    int first = 0;
    for (int k = 0; k < count; k++) total[k] = vec_set(0);
    for (; first + INDEX_VECS * LANES <= lanes; first += INDEX_VECS * LANES)
        index_tile(index, keys, count, first, INDEX_VECS, total);
    for (; first < lanes; first += LANES) index_tile(index, keys, count, first, 1, total);
    for (int k = 0; k < count; k++) scores[k] = vec_sum(total[k]);
}

static void score(const CompressedIndex *index, const float *keys, int count, float *scores) {
    int k = 0;
    for (; k + INDEX_KEYS <= count; k += INDEX_KEYS)
        score_keys(index, keys + (int64_t)k * index->width, INDEX_KEYS, scores + k);
    for (; k < count; k++) score_keys(index, keys + (int64_t)k * index->width, 1, scores + k);
}

/* ---- attention ---- */

VEC_INLINE void score_lanes(const float *q, int width, int heads, const float *const *keys, int count, int at,
    int lanes, Vec sum[SCORE_HEADS][SCORE_KEYS]) {
    Vec key[SCORE_KEYS];
    for (int k = 0; k < count; k++) key[k] = load_lanes(keys[k] + at, lanes);
    for (int h = 0; h < heads; h++) {
        const Vec own = load_lanes(q + (int64_t)h * width + at, lanes);
        for (int k = 0; k < count; k++) sum[h][k] = vec_fma(own, key[k], sum[h][k]);
    }
}

/* scores[h][k] = scale · q_h·key_k */
VEC_INLINE void score_tile(
    const CompressedTile *tile, int head, int heads, const float *const *keys, int count, float *scores) {
    const int width = tile->width;
    const float *q = tile->q + (int64_t)head * width;
    Vec sum[SCORE_HEADS][SCORE_KEYS];
    int at = 0;
    for (int h = 0; h < heads; h++)
        for (int k = 0; k < count; k++) sum[h][k] = vec_set(0);
    for (; at + LANES <= width; at += LANES) score_lanes(q, width, heads, keys, count, at, LANES, sum);
    if (at < width) score_lanes(q, width, heads, keys, count, at, width - at, sum);
    for (int h = 0; h < heads; h++)
        for (int k = 0; k < count; k++) scores[h * BLOCK + k] = tile->scale * vec_sum(sum[h][k]);
}

VEC_INLINE void score_heads(
    const CompressedTile *tile, int head, int heads, const float *const *keys, int count, float *scores) {
    int k = 0;
    for (; k + SCORE_KEYS <= count; k += SCORE_KEYS) score_tile(tile, head, heads, keys + k, SCORE_KEYS, scores + k);
    for (; k < count; k++) score_tile(tile, head, heads, keys + k, 1, scores + k);
}

/* out = factor · out + Σ p · key, keys ascending */
VEC_INLINE void value_tile(const CompressedTile *tile, int heads, const float *const *keys, int count,
    const float *factors, const float *p, int at, int vecs, int lanes) {
    Vec sum[HEADS][VALUE_VECS];
    float *out = tile->out + at;
    for (int h = 0; h < heads; h++)
        for (int v = 0; v < vecs; v++)
            sum[h][v] = vec_mul(vec_set(factors[h]), load_lanes(out + (int64_t)h * tile->width + v * LANES, lanes));
    for (int k = 0; k < count; k++)
        for (int v = 0; v < vecs; v++) {
            const Vec key = load_lanes(keys[k] + at + v * LANES, lanes);
            for (int h = 0; h < heads; h++) sum[h][v] = vec_fma(vec_set(p[h * BLOCK + k]), key, sum[h][v]);
        }
    for (int h = 0; h < heads; h++)
        for (int v = 0; v < vecs; v++) store_lanes(out + (int64_t)h * tile->width + v * LANES, sum[h][v], lanes);
}

VEC_INLINE void attend_heads(CompressedTile *tile, int heads, const float *const *keys, int count) {
    float p[HEADS * BLOCK], factors[HEADS];
    int head = 0, at = 0;
    for (; head + SCORE_HEADS <= heads; head += SCORE_HEADS)
        score_heads(tile, head, SCORE_HEADS, keys, count, p + head * BLOCK);
    for (; head < heads; head++) score_heads(tile, head, 1, keys, count, p + head * BLOCK);
    for (int h = 0; h < heads; h++) {
        float *own = p + h * BLOCK;
        for (int k = count; k < BLOCK; k++) own[k] = -INFINITY;
        const float before = tile->most[h],
                    most = fmaxf(before, vec_most(vec_max(vec_load(own), vec_load(own + LANES))));
        const Vec low = vec_exp_falling(vec_sub(vec_load(own), vec_set(most))),
                  high = vec_exp_falling(vec_sub(vec_load(own + LANES), vec_set(most)));
        factors[h] = expf(before - most);
        vec_store(own, low);
        vec_store(own + LANES, high);
        tile->most[h] = most;
        tile->sum[h] = tile->sum[h] * factors[h] + vec_sum(vec_add(low, high));
    }
    for (; at + VALUE_VECS * LANES <= tile->width; at += VALUE_VECS * LANES)
        value_tile(tile, heads, keys, count, factors, p, at, VALUE_VECS, LANES);
    for (; at + LANES <= tile->width; at += LANES) value_tile(tile, heads, keys, count, factors, p, at, 1, LANES);
    if (at < tile->width) value_tile(tile, heads, keys, count, factors, p, at, 1, tile->width - at);
}

static void attend(CompressedTile *tile, const float *const *keys, int count) {
    switch (tile->heads) {
    case HEADS: attend_heads(tile, HEADS, keys, count); break;
    case 3: attend_heads(tile, 3, keys, count); break;
    case 2: attend_heads(tile, 2, keys, count); break;
    default: attend_heads(tile, 1, keys, count);
    }
}

static void divide(int width, float sum, float *x) {
    for (int at = 0; at < width; at += LANES)
        store_lanes(x + at, vec_div(load_lanes(x + at, width - at), vec_set(sum)), width - at);
}

/* ---- hyper-connections ---- */

VEC_INLINE void collapse(int n, const HyperWeights *w, int64_t width, const float *x, float *out) {
    for (int64_t at = 0; at < width; at += LANES) {
        const int lanes = (int)min_i64(width - at, LANES);
        Vec sum = vec_set(0);
        for (int i = 0; i < n; i++) sum = vec_fma(vec_set(w->pre[i]), load_lanes(x + i * width + at, lanes), sum);
        store_lanes(out + at, sum, lanes);
    }
}

VEC_INLINE void expand(int n, const HyperWeights *w, int64_t width, const float *y, float *x) {
    for (int64_t at = 0; at < width; at += LANES) {
        const int lanes = (int)min_i64(width - at, LANES);
        const Vec own = load_lanes(y + at, lanes);
        Vec old[STREAMS_MAX];
        for (int i = 0; i < n; i++) old[i] = load_lanes(x + i * width + at, lanes);
        for (int j = 0; j < n; j++) {
            Vec sum = vec_mul(vec_set(w->post[j]), own);
            for (int i = 0; i < n; i++) sum = vec_fma(vec_set(w->mix[i][j]), old[i], sum);
            store_lanes(x + j * width + at, sum, lanes);
        }
    }
}

VEC_INLINE void connect(int n, const HyperConnection *op, const HyperWeights *weights, int64_t row) {
    float *x = op->x + row * n * op->width;
    if (op->y)
        expand(n, weights, op->width, op->y + row * op->width, x);
    else
        collapse(n, weights, op->width, x, op->out + row * op->width);
}

static void hyper(const HyperConnection *op, const HyperWeights *weights, int64_t row) {
    if (op->streams == 4)
        connect(4, op, weights, row);
    else
        connect(op->streams, op, weights, row);
}

#define COMPRESSED_KERNELS                                                                                             \
    { .pool = pool, .rotate = rotate, .score = score, .attend = attend, .divide = divide, .hyper = hyper }
