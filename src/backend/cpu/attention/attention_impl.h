/* Attention's kernels, compiled once per instruction set; attention.h has the order of the arithmetic.
 * Both products are register tiles of queries × 16 lanes: lanes are positions for q·K, columns for p·V, and each sum
 * goes over its index in order, so the result does not depend on the shape of a tile. */
#include "backend/cpu/attention/attention.h"
#include "backend/cpu/vec16.h"

/* Tile heights, and how many registers beside each other fill the register file for a tile of `queries`. */
#if defined(__AVX512F__)
enum { TILE = 12, TILE_USUAL = 12, REGISTERS = 32 };
VEC_INLINE int tile_regs(int queries) { return queries <= 6 ? 4 : 2; }
#else
enum { TILE = 7, TILE_USUAL = 6, REGISTERS = 16 };
VEC_INLINE int tile_regs(int queries) { return queries == 1 ? 8 : queries <= 3 ? 4 : 2; }
#endif
enum { PAGE = KV_PAGE_TOKENS, REGS_MAX = 64 / REG_LANES, COLUMN_REGS = 16 / REG_LANES };

VEC_INLINE Reg load_kv(const uint8_t *p, int64_t index, DType dtype) {
    if (dtype == DTYPE_F16) return reg_load_f16((const uint16_t *)(const void *)p + index);
    if (dtype == DTYPE_BF16) return reg_load_bf16((const uint16_t *)(const void *)p + index);
    return reg_load((const float *)(const void *)p + index);
}

/* sum[i][r] += left[i·stride] · right[r] */
VEC_INLINE void tile_step(const int queries, const int regs, const float *left, int64_t stride, const uint8_t *right,
    const int64_t offset[REGS_MAX], DType dtype, Reg sum[TILE][REGS_MAX]) {
    if (queries * regs + regs + 1 <= REGISTERS) {
        Reg loaded[REGS_MAX];
        for (int r = 0; r < regs; r++) loaded[r] = load_kv(right, offset[r], dtype);
        for (int i = 0; i < queries; i++) {
            const Reg x = reg_set(left[i * stride]);
            for (int r = 0; r < regs; r++) sum[i][r] = reg_fma(x, loaded[r], sum[i][r]);
        }
        return;
    }
    for (int r = 0; r < regs; r++) {
        const Reg loaded = load_kv(right, offset[r], dtype);
        for (int i = 0; i < queries; i++) sum[i][r] = reg_fma(reg_set(left[i * stride]), loaded, sum[i][r]);
        __asm__("" ::: "memory"); /* forces left to be reloaded: no register is free for it */
    }
}

/* Scores of a tile with the keys from `from` to `to` and some around them: p[query][position]. ahead: bytes from a key
 * to the data needed after the keys, for prefetching. */
VEC_INLINE void score_tile(const int queries, const DType dtype, int head_dim, const float *q, const uint8_t *k,
    int64_t ahead, int from, int to, float *p) {
    const int regs = tile_regs(queries), width = REG_LANES * regs;
    const int64_t size = dtype == DTYPE_F32 ? 4 : 2;
    int64_t offset[REGS_MAX];
    for (int r = 0; r < regs; r++) offset[r] = (int64_t)(r / COLUMN_REGS) * head_dim * 16 + r % COLUMN_REGS * REG_LANES;
    for (int at = from / width * width; at < to; at += width) {
        Reg sum[TILE][REGS_MAX];
        const uint8_t *keys = k + (int64_t)at * head_dim * size;
        for (int i = 0; i < queries; i++)
            for (int r = 0; r < regs; r++) sum[i][r] = reg_zero();
        for (int64_t d = 0; d < head_dim; d++) {
            for (int64_t line = 0; line < width * size; line += 64) prefetch(keys + d * width * size + line + ahead);
            tile_step(queries, regs, q + d * queries, 1, keys + d * 16 * size, offset, dtype, sum);
        }
        for (int i = 0; i < queries; i++)
            for (int r = 0; r < regs; r++) reg_store(p + i * PAGE + at + r * REG_LANES, sum[i][r]);
    }
}

VEC_INLINE void add_columns(const int queries, const int regs, const DType dtype, int64_t stride, const float *p,
    const uint8_t *v, int64_t column, const uint8_t *next, int from, int to, float *o) {
    const int64_t size = dtype == DTYPE_F32 ? 4 : 2, width = REG_LANES * regs;
    int64_t offset[REGS_MAX];
    Reg sum[TILE][REGS_MAX];
    for (int r = 0; r < regs; r++) offset[r] = r * REG_LANES;
    for (int i = 0; i < queries; i++)
        for (int r = 0; r < regs; r++) sum[i][r] = reg_load(o + i * stride + column + r * REG_LANES);
    for (int64_t j = from; j < to; j++) {
        for (int64_t line = 0; line < width * size; line += 64)
            prefetch(next + (column * PAGE + j * width) * size + line);
        tile_step(queries, regs, p + j, PAGE, v + (j * stride + column) * size, offset, dtype, sum);
    }
    for (int i = 0; i < queries; i++)
        for (int r = 0; r < regs; r++) reg_store(o + i * stride + column + r * REG_LANES, sum[i][r]);
}

/* o[query] += Σ p·v over positions from ≤ j < to. */
VEC_INLINE void add_tile(const int queries, const DType dtype, int stride, const float *p, const uint8_t *v,
    const uint8_t *next, int from, int to, float *o) {
    const int regs = tile_regs(queries);
    int column = 0;
    for (; column + REG_LANES * regs <= stride; column += REG_LANES * regs)
        add_columns(queries, regs, dtype, stride, p, v, column, next, from, to, o);
    for (; regs > COLUMN_REGS && column < stride; column += 16)
        add_columns(queries, COLUMN_REGS, dtype, stride, p, v, column, next, from, to, o);
}

/* Latent queries and values that are multiplied together: enough sums to hide the latency of an addition. */
#if defined(__AVX512F__)
enum { LATENT_QUERIES = 6, LATENT_KEYS = 4 };
#else
enum { LATENT_QUERIES = 4, LATENT_KEYS = 1 };
#endif

/* Lanes whose sum is the product of a latent query and the value of a position: [query][position of a block][lane]. */
typedef float LatentLanes[16][16];

/* lanes of adjacent queries and values. */
VEC_INLINE void multiply_latents(const int queries, const int keys, const DType dtype, int64_t stride,
    const float *latent, const uint8_t *value, LatentLanes *lanes, int key) {
    const int64_t size = dtype == DTYPE_F32 ? 4 : 2;
    Reg sum[LATENT_KEYS][LATENT_QUERIES][COLUMN_REGS];
    for (int j = 0; j < keys; j++)
        for (int i = 0; i < queries; i++)
            for (int r = 0; r < COLUMN_REGS; r++) sum[j][i][r] = reg_zero();
    for (int64_t column = 0; column < stride; column += 16)
        for (int r = 0; r < COLUMN_REGS; r++) {
            Reg v[LATENT_KEYS];
            for (int j = 0; j < keys; j++) v[j] = load_kv(value + j * stride * size, column + r * REG_LANES, dtype);
            for (int i = 0; i < queries; i++) {
                const Reg x = reg_load(latent + i * stride + column + r * REG_LANES);
                for (int j = 0; j < keys; j++) sum[j][i][r] = reg_fma(x, v[j], sum[j][i][r]);
            }
        }
    for (int i = 0; i < queries; i++)
        for (int j = 0; j < keys; j++)
            for (int r = 0; r < COLUMN_REGS; r++) reg_store(lanes[i][key + j] + r * REG_LANES, sum[j][i][r]);
}

VEC_INLINE void multiply_tile(const int keys, const DType dtype, int queries, int64_t stride, const float *latent,
    const uint8_t *value, LatentLanes *lanes, int key) {
    const int parts = (queries + LATENT_QUERIES - 1) / LATENT_QUERIES;
    for (int part = 0; part < parts; part++) {
        const int first = queries * part / parts, count = queries * (part + 1) / parts - first;
        const float *own = latent + first * stride;
        LatentLanes *to = lanes + first;
        if (count == 1) multiply_latents(1, keys, dtype, stride, own, value, to, key);
        if (count == 2) multiply_latents(2, keys, dtype, stride, own, value, to, key);
        if (count == 3) multiply_latents(3, keys, dtype, stride, own, value, to, key);
        if (count == 4) multiply_latents(4, keys, dtype, stride, own, value, to, key);
#if defined(__AVX512F__)
        if (count == 5) multiply_latents(5, keys, dtype, stride, own, value, to, key);
        if (count == 6) multiply_latents(6, keys, dtype, stride, own, value, to, key);
#endif
    }
}

/* p[query][j] += latent query · value of j for from ≤ j < to. */
VEC_INLINE void latent_tile(
    const DType dtype, int queries, int64_t stride, const float *latent, const uint8_t *v, int from, int to, float *p) {
    const int64_t size = dtype == DTYPE_F32 ? 4 : 2;
    _Alignas(64) LatentLanes lanes[TILE];
    for (int at = from; at < to; at += 16) {
        const int count = to - at < 16 ? to - at : 16;
        const uint8_t *values = v + at * stride * size;
        int key = 0;
        for (; key + LATENT_KEYS <= count; key += LATENT_KEYS)
            multiply_tile(LATENT_KEYS, dtype, queries, stride, latent, values + key * stride * size, lanes, key);
        for (; LATENT_KEYS > 1 && key < count; key++)
            multiply_tile(1, dtype, queries, stride, latent, values + key * stride * size, lanes, key);
        for (int i = 0; i < queries; i++) {
            float *to_add = p + i * PAGE + at;
            if (count == 16)
                vec_store(to_add, vec_add(vec_load(to_add), vec_sums(lanes[i])));
            else
                for (int j = 0; j < count; j++) to_add[j] += vec_sum(vec_load(lanes[i][j]));
        }
    }
}

static void add_latent_scores(
    DType dtype, int queries, int64_t stride, const float *latent, const uint8_t *v, int from, int to, float *p) {
    if (dtype == DTYPE_F16) latent_tile(DTYPE_F16, queries, stride, latent, v, from, to, p);
    if (dtype == DTYPE_BF16) latent_tile(DTYPE_BF16, queries, stride, latent, v, from, to, p);
    if (dtype == DTYPE_F32) latent_tile(DTYPE_F32, queries, stride, latent, v, from, to, p);
}

typedef void ScoreTile(int head_dim, const float *q, const uint8_t *k, int64_t ahead, int from, int to, float *p);
typedef void AddTile(int stride, const float *p, const uint8_t *v, const uint8_t *next, int from, int to, float *o);

#define TILE_FUNCTIONS(queries, dtype)                                                                                 \
    static void score_##queries##_##dtype(                                                                             \
        int head_dim, const float *q, const uint8_t *k, int64_t ahead, int from, int to, float *p) {                   \
        score_tile(queries, DTYPE_##dtype, head_dim, q, k, ahead, from, to, p);                                        \
    }                                                                                                                  \
    static void add_##queries##_##dtype(                                                                               \
        int stride, const float *p, const uint8_t *v, const uint8_t *next, int from, int to, float *o) {               \
        add_tile(queries, DTYPE_##dtype, stride, p, v, next, from, to, o);                                             \
    }
#define TILE_FUNCTIONS_OF(queries)                                                                                     \
    TILE_FUNCTIONS(queries, F16) TILE_FUNCTIONS(queries, BF16) TILE_FUNCTIONS(queries, F32)
TILE_FUNCTIONS_OF(1)
TILE_FUNCTIONS_OF(2)
TILE_FUNCTIONS_OF(3)
TILE_FUNCTIONS_OF(4)
TILE_FUNCTIONS_OF(5)
TILE_FUNCTIONS_OF(6)
TILE_FUNCTIONS_OF(7)
#if defined(__AVX512F__)
TILE_FUNCTIONS_OF(8)
TILE_FUNCTIONS_OF(9)
TILE_FUNCTIONS_OF(10)
TILE_FUNCTIONS_OF(11)
TILE_FUNCTIONS_OF(12)
#define EACH_HEIGHT(f, dtype)                                                                                          \
    {                                                                                                                  \
        f##_1_##dtype, f##_2_##dtype, f##_3_##dtype, f##_4_##dtype, f##_5_##dtype, f##_6_##dtype, f##_7_##dtype,       \
            f##_8_##dtype, f##_9_##dtype, f##_10_##dtype, f##_11_##dtype, f##_12_##dtype                               \
    }
#else
#define EACH_HEIGHT(f, dtype)                                                                                          \
    { f##_1_##dtype, f##_2_##dtype, f##_3_##dtype, f##_4_##dtype, f##_5_##dtype, f##_6_##dtype, f##_7_##dtype }
#endif
enum { KIND_F16, KIND_BF16, KIND_F32, KINDS };
static ScoreTile *const score_tiles[KINDS][TILE] = {
    EACH_HEIGHT(score, F16), EACH_HEIGHT(score, BF16), EACH_HEIGHT(score, F32)};
static AddTile *const add_tiles[KINDS][TILE] = {EACH_HEIGHT(add, F16), EACH_HEIGHT(add, BF16), EACH_HEIGHT(add, F32)};

static int kind_of(DType dtype) { return dtype == DTYPE_F16 ? KIND_F16 : dtype == DTYPE_BF16 ? KIND_BF16 : KIND_F32; }

/* Register tiles of even heights: where tile i of a tile of queries begins. */
static int tile_count(int queries) { return queries <= TILE ? 1 : (queries + TILE_USUAL - 1) / TILE_USUAL; }
static int tile_start(int queries, int i) { return queries * i / tile_count(queries); }

static void attention_pack(int queries, int head_dim, const float *const *q, float *out) {
    for (int t = 0; t < tile_count(queries); t++) {
        const int start = tile_start(queries, t), height = tile_start(queries, t + 1) - start;
        for (int i = 0; i < height; i++)
            for (int d = 0; d < head_dim; d++) out[d * height + i] = q[start + i][d];
        out += height * head_dim;
    }
}

/* ALiBi of keys from ≤ j < to of the page. */
static void add_slope(const AttentionTile *t, int query, int from, int to, float *p) {
    const float slope = t->slopes[t->heads[query]];
    const int position = t->positions[query];
    for (int j = from; j < to; j++) p[j] += alibi_bias(slope, t->slopes_bf16, t->base + j, position);
}

/* Hides the scores of keys from ≤ j < to that the query does not read. False: it reads none. */
static bool hide(const KeyMask *reads, int from, int to, float *p) {
    bool any = false;
    for (int j = from; j < to; j++) {
        const bool read = key_mask_has(reads, j);
        any = any || read;
        if (!read) p[j] = -INFINITY;
    }
    return any;
}

/* Turns scores of one query into softmax weights in place, for its visible keys from ≤ j < to of the page; returns the
 * factor for its earlier sums. */
static float soften(AttentionTile *t, int query, int from, int to, float *p) {
    const int begin = from / 16 * 16;
    const Vec none = vec_set(-INFINITY);
    Vec most = none;
    if (t->slopes) add_slope(t, query, from, to, p);
    if (t->reads && !hide(&t->reads[query], from, to, p)) {
        for (int j = begin; j < to; j += 16) vec_store(p + j, vec_set(0));
        return 1;
    }
    for (int j = begin; j < to; j += 16) {
        Vec s = vec_load(p + j);
        if (t->softcap > 0) s = vec_mul(vec_set(t->softcap), vec_tanh(vec_mul(s, vec_set(1.0f / t->softcap))));
        if (j < from || j + 16 > to) s = vec_select(mask_range(from - j, to - j), s, none);
        vec_store(p + j, s);
        most = vec_max(most, s);
    }
    const float before = t->m[query], page = vec_most(most), now = before > page ? before : page;
    Vec sum = vec_set(0);
    for (int j = begin; j < to; j += 16) {
        const Vec e = vec_exp_falling(vec_sub(vec_load(p + j), vec_set(now)));
        vec_store(p + j, e);
        sum = vec_add(sum, e);
    }
    const float factor = before == now ? 1 : vec_first(vec_exp_falling(vec_set(before - now)));
    t->m[query] = now;
    t->l[query] = fmaf(t->l[query], factor, vec_sum(sum));
    return factor;
}

static void scale_row(int count, float factor, float *o) {
    for (int i = 0; i < count; i += 16) vec_store(o + i, vec_mul(vec_load(o + i), vec_set(factor)));
}

/* Scales the sums of a query so far. */
static void scale_both(AttentionTile *t, int query, float factor) {
    const int64_t at = (int64_t)query * t->value_stride;
    scale_row(t->value_stride, factor, t->o + at);
    if (t->quantised) scale_row(t->value_stride, factor, t->quantised + at);
}

static int clamp_to_page(int position) { return position < 0 ? 0 : position > PAGE ? PAGE : position; }

static void attention_page(AttentionTile *t, const uint8_t *k, const uint8_t *v, const uint8_t *next, int base) {
    const int kind = kind_of(t->dtype), stride = t->value_stride;
    const float *q = t->q;
    t->base = base;
    for (int part = 0; part < tile_count(t->queries); part++) {
        const int start = tile_start(t->queries, part), end = tile_start(t->queries, part + 1), height = end - start;
        _Alignas(64) float p[TILE * PAGE];
        int from[TILE], to[TILE];
        for (int i = 0; i < height; i++) {
            from[i] = clamp_to_page(t->first[start + i] - base);
            to[i] = clamp_to_page(t->last[start + i] - base);
        }
        const float *tile_q = q;
        q += height * t->head_dim;
        if (from[0] >= to[height - 1]) continue;
        score_tiles[kind][height - 1](t->head_dim, tile_q, k, v - k, from[0], to[height - 1], p);
        if (t->latent)
            add_latent_scores(
                t->dtype, height, stride, t->latent + (int64_t)start * stride, v, from[0], to[height - 1], p);
        float *o = t->o + (int64_t)start * stride;
        for (int i = 0; i < height; i++) {
            if (from[i] >= to[i]) continue;
            const float factor = soften(t, start + i, from[i], to[i], p + i * PAGE);
            if (factor != 1) scale_both(t, start + i, factor);
        }
        /* Keys visible to all queries are processed together; the rest per query, so that no query reads an invisible
         * key. */
        int common = from[height - 1], common_end = to[0];
        if (common >= common_end) common = common_end = PAGE;
        for (int i = 0; i < height && from[i] < common; i++)
            add_tiles[kind][0](
                stride, p + i * PAGE, v, v, from[i], to[i] < common ? to[i] : common, o + (int64_t)i * stride);
        if (common < common_end) add_tiles[kind][height - 1](stride, p, v, next, common, common_end, o);
        for (int i = 0; i < height; i++)
            if (to[i] > common_end)
                add_tiles[kind][0](stride, p + i * PAGE, v, v, from[i] > common_end ? from[i] : common_end, to[i],
                    o + (int64_t)i * stride);
    }
}

/* Products of up to 4 heads with the 16 keys of a block: lanes[head]. */
VEC_INLINE void index_block(
    const int heads, const DType dtype, int64_t head_dim, const float *q, const uint8_t *k, float lanes[4][16]) {
    Reg sum[4][COLUMN_REGS];
    for (int h = 0; h < heads; h++)
        for (int r = 0; r < COLUMN_REGS; r++) sum[h][r] = reg_zero();
    for (int64_t d = 0; d < head_dim; d++)
        for (int r = 0; r < COLUMN_REGS; r++) {
            const Reg key = load_kv(k, d * 16 + r * REG_LANES, dtype);
            for (int h = 0; h < heads; h++) sum[h][r] = reg_fma(reg_set(q[h * head_dim + d]), key, sum[h][r]);
        }
    for (int h = 0; h < heads; h++)
        for (int r = 0; r < COLUMN_REGS; r++) reg_store(lanes[h] + r * REG_LANES, sum[h][r]);
}

VEC_INLINE void index_blocks(
    const DType dtype, const IndexSelect *op, int row, const uint8_t *k, int64_t stride, float *scores) {
    const int64_t width = op->kv.layout.head_dim, size = dtype == DTYPE_F32 ? 4 : 2;
    const float *q = op->q + (int64_t)row * op->heads * width;
    for (int at = 0; at < PAGE; at += 16) {
        const uint8_t *keys = k + at * width * size;
        Vec total = vec_set(0);
        for (int h = 0; h < op->heads; h += 4) {
            float lanes[4][16];
            const int left = op->heads - h, count = left < 4 ? left : 4;
            if (count == 4)
                index_block(4, dtype, width, q + h * width, keys, lanes);
            else
                for (int i = 0; i < count; i++) index_block(1, dtype, width, q + (h + i) * width, keys, lanes + i);
            for (int i = 0; i < count; i++) {
                const Vec own = vec_load(lanes[i]);
                if (op->weights)
                    total = vec_fma(
                        vec_set(op->weights[(int64_t)row * op->heads + h + i]), vec_max(own, vec_set(0)), total);
                else
                    vec_store(scores + (h + i) * stride + at, own);
            }
        }
        if (op->weights) vec_store(scores + at, total);
    }
}

static void attention_index_page(const IndexSelect *op, int row, const uint8_t *k, int64_t stride, float *scores) {
    const DType dtype = op->kv.layout.dtype;
    if (dtype == DTYPE_F16) index_blocks(DTYPE_F16, op, row, k, stride, scores);
    if (dtype == DTYPE_BF16) index_blocks(DTYPE_BF16, op, row, k, stride, scores);
    if (dtype == DTYPE_F32) index_blocks(DTYPE_F32, op, row, k, stride, scores);
}

static void attention_mix(int count, float *total, float a, const float *part, float b) {
    for (int i = 0; i < count; i += 16)
        vec_store(total + i, vec_fma(vec_load(total + i), vec_set(a), vec_mul(vec_load(part + i), vec_set(b))));
}

static void attention_rotate(const Rope *rope, const float *cosines, const float *sines, float *head) {
    const int half = rope->dims / 2;
    if (rope->interleaved) {
        for (int i = 0; i < half; i++) {
            const float a = head[2 * i] * rope->scale, b = head[2 * i + 1] * rope->scale;
            head[2 * i] = a * cosines[i] - b * sines[i];
            head[2 * i + 1] = a * sines[i] + b * cosines[i];
        }
        return;
    }
    for (int i = 0; i < half; i++) {
        const float a = head[i] * rope->scale, b = head[half + i] * rope->scale;
        head[i] = a * cosines[i] - b * sines[i];
        head[half + i] = a * sines[i] + b * cosines[i];
    }
}

static void to_f16(const float *x, int count, uint16_t *out) {
    for (int i = 0; i < count; i += 16) {
        uint16_t lanes[16];
        const int n = count - i < 16 ? count - i : 16;
        vec_store_f16(lanes, vec_load_some(x + i, n));
        memcpy(out + i, lanes, (size_t)n * sizeof *lanes);
    }
}

static float attention_square(const float *x, int count) {
    Vec sum = vec_set(0);
    for (int i = 0; i < count; i += 16) {
        const Vec v = vec_load_some(x + i, count - i);
        sum = vec_fma(v, v, sum);
    }
    return vec_sum(sum);
}
