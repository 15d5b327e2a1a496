/* Attention's kernels. Compiled once per instruction set; see attention.h for the order of the arithmetic. */
#include "backend/cpu/attention.h"
#include "backend/cpu/vec16.h"

#if defined(__AVX512F__)
enum { TILE_QUERIES = 8, TILE_BLOCKS = 2 };
#else
enum { TILE_QUERIES = 6, TILE_BLOCKS = 1 };
#endif

/* acc[query][block] += Σ_k x[query·x_stride + k] · y[k·y_stride + block·y_block …+16]: both products of attention. */
VEC_INLINE void accumulate(const int queries, const int blocks, int64_t count, const float *x, int64_t x_stride, const uint16_t *y,
    int64_t y_stride, int64_t y_block, Vec acc[TILE_QUERIES][TILE_BLOCKS]) {
    Vec sum[TILE_QUERIES][TILE_BLOCKS];
    for (int i = 0; i < queries; i++)
        for (int b = 0; b < blocks; b++) sum[i][b] = acc[i][b];
    for (int64_t k = 0; k < count; k++) {
        Vec right[TILE_BLOCKS];
        for (int b = 0; b < blocks; b++) right[b] = vec_load_f16(y + k * y_stride + b * y_block);
        if (queries == 1 || queries == TILE_QUERIES || blocks == TILE_BLOCKS) _mm_prefetch((const char *)(y + k * y_stride) + 4096, _MM_HINT_T0);
        for (int i = 0; i < queries; i++) {
            const Vec left = vec_set(x[i * x_stride + k]);
            for (int b = 0; b < blocks; b++) sum[i][b] = vec_fma(left, right[b], sum[i][b]);
        }
    }
    for (int i = 0; i < queries; i++)
        for (int b = 0; b < blocks; b++) acc[i][b] = sum[i][b];
}

typedef void Accumulate(int64_t count, const float *x, int64_t x_stride, const uint16_t *y, int64_t y_stride, int64_t y_block,
    Vec acc[TILE_QUERIES][TILE_BLOCKS]);

#define ACCUMULATE(queries, blocks)                                                                                          \
    static void accumulate_##queries##_##blocks(int64_t count, const float *x, int64_t x_stride, const uint16_t *y,          \
        int64_t y_stride, int64_t y_block, Vec acc[TILE_QUERIES][TILE_BLOCKS]) {                                             \
        accumulate(queries, blocks, count, x, x_stride, y, y_stride, y_block, acc);                                          \
    }
ACCUMULATE(1, 1)
ACCUMULATE(2, 1)
ACCUMULATE(3, 1)
ACCUMULATE(4, 1)
ACCUMULATE(5, 1)
ACCUMULATE(6, 1)
#if defined(__AVX512F__)
ACCUMULATE(7, 1)
ACCUMULATE(8, 1)
ACCUMULATE(1, 2)
ACCUMULATE(2, 2)
ACCUMULATE(3, 2)
ACCUMULATE(4, 2)
ACCUMULATE(5, 2)
ACCUMULATE(6, 2)
ACCUMULATE(7, 2)
ACCUMULATE(8, 2)
static Accumulate *const accumulators[TILE_BLOCKS][TILE_QUERIES] = {
    {accumulate_1_1, accumulate_2_1, accumulate_3_1, accumulate_4_1, accumulate_5_1, accumulate_6_1, accumulate_7_1, accumulate_8_1},
    {accumulate_1_2, accumulate_2_2, accumulate_3_2, accumulate_4_2, accumulate_5_2, accumulate_6_2, accumulate_7_2, accumulate_8_2}};
#else
static Accumulate *const accumulators[TILE_BLOCKS][TILE_QUERIES] = {
    {accumulate_1_1, accumulate_2_1, accumulate_3_1, accumulate_4_1, accumulate_5_1, accumulate_6_1}};
#endif

/* Scores of the blocks of 16 keys from block to end, for all queries, into tile->p. */
static void score_blocks(AttentionTile *t, const uint16_t *k, int block, int end) {
    const int64_t block_halfs = (int64_t)t->head_dim * 16;
    for (; block < end; block += TILE_BLOCKS) {
        const int blocks = end - block < TILE_BLOCKS ? end - block : TILE_BLOCKS;
        for (int i = 0; i < t->queries; i += TILE_QUERIES) {
            const int queries = t->queries - i < TILE_QUERIES ? t->queries - i : TILE_QUERIES;
            Vec acc[TILE_QUERIES][TILE_BLOCKS];
            for (int a = 0; a < TILE_QUERIES; a++)
                for (int b = 0; b < TILE_BLOCKS; b++) acc[a][b] = vec_set(0);
            accumulators[blocks - 1][queries - 1](t->head_dim, t->q + (int64_t)i * t->head_dim, t->head_dim, k + block * block_halfs,
                16, block_halfs, acc);
            for (int a = 0; a < queries; a++)
                for (int b = 0; b < blocks; b++) vec_store(t->p + (i + a) * KV_PAGE_TOKENS + (block + b) * 16, acc[a][b]);
        }
    }
}

/* Scores of one query to weights in place; gives the factor for what it had before. from, to: visible keys of the page. */
static float soften(AttentionTile *t, int query, int from, int to, int block, int end) {
    float *p = t->p + query * KV_PAGE_TOKENS;
    if (from >= to) {
        for (; block < end; block++) vec_store(p + block * 16, vec_set(0));
        return 1;
    }
    const Vec none = vec_set(-INFINITY);
    Vec most = none;
    for (int b = block; b < end; b++) {
        Vec s = vec_load(p + b * 16);
        if (t->softcap > 0) s = vec_mul(vec_set(t->softcap), vec_tanh(vec_mul(s, vec_set(1.0f / t->softcap))));
        s = vec_select(mask_range(from - b * 16, to - b * 16), s, none);
        vec_store(p + b * 16, s);
        most = vec_max(most, s);
    }
    const float before = t->m[query], page = vec_most(most), now = before > page ? before : page;
    Vec sum = vec_set(0);
    for (int b = block; b < end; b++) {
        const Vec e = vec_exp(vec_sub(vec_load(p + b * 16), vec_set(now)));
        vec_store(p + b * 16, e);
        sum = vec_add(sum, e);
    }
    float factor[16];
    vec_store(factor, vec_exp(vec_set(before - now)));
    t->m[query] = now;
    t->l[query] = fmaf(t->l[query], factor[0], vec_sum(sum));
    return factor[0];
}

static void add_values(AttentionTile *t, const uint16_t *v, const float *factors, int from, int to) {
    const int64_t stride = t->value_stride;
    for (int64_t dim = 0; dim < stride; dim += 16 * TILE_BLOCKS) {
        const int blocks = (int)(stride - dim) < 16 * TILE_BLOCKS ? (int)(stride - dim) / 16 : TILE_BLOCKS;
        for (int i = 0; i < t->queries; i += TILE_QUERIES) {
            const int queries = t->queries - i < TILE_QUERIES ? t->queries - i : TILE_QUERIES;
            Vec acc[TILE_QUERIES][TILE_BLOCKS];
            for (int a = 0; a < queries; a++)
                for (int b = 0; b < blocks; b++)
                    acc[a][b] = vec_mul(vec_load(t->o + (i + a) * stride + dim + b * 16), vec_set(factors[i + a]));
            accumulators[blocks - 1][queries - 1](to - from, t->p + i * KV_PAGE_TOKENS + from, KV_PAGE_TOKENS,
                v + from * stride + dim, stride, 16, acc);
            for (int a = 0; a < queries; a++)
                for (int b = 0; b < blocks; b++) vec_store(t->o + (i + a) * stride + dim + b * 16, acc[a][b]);
        }
    }
}

static int clamp_to_page(int position) { return position < 0 ? 0 : position > KV_PAGE_TOKENS ? KV_PAGE_TOKENS : position; }

static void attention_page(AttentionTile *t, const uint16_t *k, const uint16_t *v, int base) {
    int from = KV_PAGE_TOKENS, to = 0;
    for (int i = 0; i < t->queries; i++) {
        const int first = clamp_to_page(t->first[i] - base), last = clamp_to_page(t->last[i] - base);
        if (first >= last) continue;
        from = first < from ? first : from;
        to = last > to ? last : to;
    }
    if (from >= to) return;
    const int block = from / 16, end = (to + 15) / 16;
    score_blocks(t, k, block, end);
    float factors[ATTENTION_QUERIES];
    for (int i = 0; i < t->queries; i++)
        factors[i] = soften(t, i, clamp_to_page(t->first[i] - base), clamp_to_page(t->last[i] - base), block, end);
    add_values(t, v, factors, from, to);
}

static void rotate_row(const Rope *rope, const float *cosines, const float *sines, float *head) {
    const int half = rope->dims / 2;
    const Vec scale = vec_set(rope->scale);
    if (rope->interleaved) {
        for (int i = 0; i < half; i++) {
            const float a = head[2 * i] * rope->scale, b = head[2 * i + 1] * rope->scale;
            head[2 * i] = a * cosines[i] - b * sines[i];
            head[2 * i + 1] = a * sines[i] + b * cosines[i];
        }
        return;
    }
    for (int i = 0; i < half; i += 16) {
        const int n = half - i < 16 ? half - i : 16;
        const Vec a = vec_mul(vec_load_some(head + i, n), scale), b = vec_mul(vec_load_some(head + half + i, n), scale);
        const Vec c = vec_load_some(cosines + i, n), s = vec_load_some(sines + i, n);
        vec_store_some(head + i, vec_sub(vec_mul(a, c), vec_mul(b, s)), n);
        vec_store_some(head + half + i, vec_fma(a, s, vec_mul(b, c)), n);
    }
}

/* count f32 to f16. */
static void to_f16(const float *x, int count, uint16_t *out) {
    for (int i = 0; i < count; i += 16) {
        const int n = count - i < 16 ? count - i : 16;
        uint16_t lanes[16];
        vec_store_f16(lanes, vec_load_some(x + i, n));
        memcpy(out + i, lanes, (size_t)n * sizeof *lanes);
    }
}
