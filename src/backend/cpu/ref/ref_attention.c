/* Attention of the reference backend: one query head after another, one key after another. Quantised pages are
 * dequantised to full precision first. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "backend/cpu/ref/ref_internal.h"

void ref_rotate(const Rope *rope, const float *angles, float *head) {
    const int half = rope->dims / 2;
    for (int i = 0; i < half; i++) {
        const float c = cosf(angles[i]), s = sinf(angles[i]);
        const int first = rope->interleaved ? 2 * i : i, second = rope->interleaved ? 2 * i + 1 : i + half;
        const float a = head[first] * rope->scale, b = head[second] * rope->scale;
        head[first] = a * c - b * s;
        head[second] = a * s + b * c;
    }
}

static void prepare_heads(
    const Attention *a, const float *x, int heads, const Norm *norm, const Step *step, int row, float *out) {
    const Rope *rope = a->rope;
    const int head_dim = a->kv.layout.head_dim;
    const bool full = a->norm_full;
    float angles[ATTENTION_HEAD_MAX / 2];
    if (rope) rope_angles(rope, step, row, angles);
    if (norm && full)
        ref_norm_row(x, norm, (int64_t)heads * head_dim, out);
    else
        memcpy(out, x, (size_t)heads * (size_t)head_dim * sizeof *out);
    for (int h = 0; h < heads; h++) {
        float *head = out + (int64_t)h * head_dim;
        if (norm && !full && !a->norm_last) ref_norm_row(head, norm, head_dim, head);
        if (rope) ref_rotate(rope, angles, head);
        if (norm && a->norm_last) ref_norm_row(head, norm, head_dim, head);
    }
}

static int32_t page_of(const Attention *a, const SequenceChunk *chunk, int position) {
    return chunk->tables[a->kv.group][position / KV_PAGE_TOKENS];
}

static float *key_at(const Attention *a, const SequenceChunk *chunk, int position, int head) {
    return ref_head(&a->kv, page_of(a, chunk, position), head) +
        (size_t)(position % KV_PAGE_TOKENS) * (size_t)a->kv.layout.head_dim;
}

static float *value_at(const Attention *a, const SequenceChunk *chunk, int position, int head) {
    const KvLayout *l = &a->kv.layout;
    return ref_head(&a->kv, page_of(a, chunk, position), head) + (size_t)KV_PAGE_TOKENS * (size_t)l->head_dim +
        (size_t)(position % KV_PAGE_TOKENS) * (size_t)l->value_dim;
}

/* The dequantised pages of a chunk: heads as in full-precision pages, [page][kv_head], from page `first` on. */
typedef struct Decoded {
    float *heads; /* NULL: no quantised page */
    int first, count;
} Decoded;

typedef struct Attending {
    const Attention *a;
    const Step *step;
    Decoded *decoded; /* [chunk] */
    float *spare;     /* [threads]: scores, then the heads of a row */
    int longest;
} Attending;

/* A kv head's key and value of token j for a row at `position`. */
typedef struct Token {
    const float *key, *value;
} Token;

static Token token_at(const Attending *work, int run_index, int position, int j, int head) {
    const Attention *a = work->a;
    const KvLayout *l = &a->kv.layout;
    const SequenceChunk *chunk = &work->step->chunks[run_index];
    const Decoded *decoded = &work->decoded[run_index];
    const bool coded = decoded->heads && j >= chunk->quant->sink && j < kv_cold_end(chunk->quant, position);
    const size_t index = (size_t)((j / KV_PAGE_TOKENS - decoded->first) * l->kv_heads + head);
    const float *memory =
        coded ? decoded->heads + index * ref_head_floats(l) : ref_head(&a->kv, page_of(a, chunk, j), head);
    const size_t t = (size_t)(j % KV_PAGE_TOKENS);
    return (Token){
        memory + t * (size_t)l->head_dim, memory + KV_PAGE_TOKENS * (size_t)l->head_dim + t * (size_t)l->value_dim};
}

/* Whether a head reads key j, the keys of a row being asked for in order; *mask is kept for those of a page. */
static bool reads(const Attention *a, int row, int head, int position, int j, bool first, KeyMask *mask) {
    if (!a->selection.block) return true;
    if (first || j % KV_PAGE_TOKENS == 0)
        *mask = key_mask(&a->selection, row, head, head / (a->heads / a->kv.layout.kv_heads), position,
            j / KV_PAGE_TOKENS * KV_PAGE_TOKENS);
    return key_mask_has(mask, j % KV_PAGE_TOKENS);
}

/* One query head: softmax over the visible keys that it reads, in order of position. */
static void attend(const Attending *work, int run_index, int position, int head, const float *q, const float *q_latent,
    float *scores, float *out) {
    const Attention *a = work->a;
    const SequenceChunk *chunk = &work->step->chunks[run_index];
    const KvLayout *l = &a->kv.layout;
    const int kv_head = head / (a->heads / l->kv_heads);
    const AttentionRange seen = attention_range(chunk, a->window, a->chunked, a->span_rule, position);
    const int row = chunk->row + position - chunk->position;
    float most = a->sinks ? a->sinks[head] : -INFINITY;
    KeyMask mask;
    for (int j = seen.first; j < seen.end; j++) {
        scores[j - seen.first] = -INFINITY;
        if (!reads(a, row, head, position, j, j == seen.first, &mask)) continue;
        const Token token = token_at(work, run_index, position, j, kv_head);
        float s = ref_dot(q, token.key, l->head_dim);
        if (q_latent) s += ref_dot(q_latent, token.value, l->value_dim);
        s *= a->scale;
        if (a->softcap > 0) s = a->softcap * tanhf(s / a->softcap);
        if (a->slopes) s += alibi_bias(a->slopes[head], a->slopes_bf16, j, position);
        scores[j - seen.first] = s;
        most = fmaxf(most, s);
    }
    float sum = a->sinks ? expf(a->sinks[head] - most) : 0;
    memset(out, 0, (size_t)l->value_dim * sizeof *out);
    for (int j = seen.first; j < seen.end; j++) {
        const float p = expf(scores[j - seen.first] - most);
        const float *v = token_at(work, run_index, position, j, kv_head).value;
        sum += p;
        for (int i = 0; i < l->value_dim; i++) out[i] += p * v[i];
    }
    for (int i = 0; i < l->value_dim; i++) out[i] /= sum;
}

/* Stores the energy of the queries of each row beside its key: heads [heads][each]. */
static void store_energies(const Attention *a, const SequenceChunk *chunk, int position, const float *heads, int each) {
    const KvLayout *l = &a->kv.layout;
    const int group = a->heads / l->kv_heads, width = group * each;
    for (int h = 0; h < l->kv_heads; h++) {
        const float *q = heads + (int64_t)h * width;
        ref_energies(&a->kv, page_of(a, chunk, position), h)[position % KV_PAGE_TOKENS] =
            ref_dot(q, q, width) * a->scale * a->scale / (float)group;
    }
}

/* Rows of all chunks in turn; each head of each row is computed alone. */
static void attend_task(void *argument, int index, int count) {
    const Attending *work = argument;
    const Attention *a = work->a;
    const KvLayout *l = &a->kv.layout;
    const int64_t width = (int64_t)a->heads * l->head_dim;
    float *scores = work->spare + index * (work->longest + width), *heads = scores + work->longest;
    for (int i = 0; i < work->step->chunk_count; i++) {
        const SequenceChunk *chunk = &work->step->chunks[i];
        for (int t = index; t < chunk->rows; t += count) {
            const int64_t row = chunk->row + t;
            prepare_heads(a, a->q + row * width, a->heads, a->q_norm, work->step, (int)row, heads);
            const float *latents = a->q_latent ? a->q_latent + row * a->heads * l->value_dim : NULL;
            if (a->k)
                store_energies(
                    a, chunk, chunk->position + t, latents ? latents : heads, latents ? l->value_dim : l->head_dim);
            for (int h = 0; h < a->heads; h++) {
                const int64_t at = (row * a->heads + h) * l->value_dim;
                attend(work, i, chunk->position + t, h, heads + (int64_t)h * l->head_dim,
                    latents ? latents + (int64_t)h * l->value_dim : NULL, scores, a->out + at);
            }
            const int64_t first = row * a->heads * l->value_dim;
            for (int64_t j = first; a->gate && j < first + (int64_t)a->heads * l->value_dim; j++)
                a->out[j] /= 1.0f + expf(-a->gate[j]);
        }
    }
}

void ref_store_head(float *out, const float *head, int count, DType dtype) {
    uint16_t narrow[KV_PAGE_TOKENS];
    for (int i = 0; i < count; i += KV_PAGE_TOKENS) {
        const int n = count - i < KV_PAGE_TOKENS ? count - i : KV_PAGE_TOKENS;
        if (dtype == DTYPE_F32) {
            memcpy(out + i, head + i, (size_t)n * sizeof *out);
            continue;
        }
        floats_from_f32(narrow, dtype, head + i, n);
        floats_to_f32(out + i, narrow, dtype, n);
    }
}

static void append(const Attention *a, const Step *step, float *heads) {
    const KvLayout *l = &a->kv.layout;
    for (int i = 0; i < step->chunk_count; i++) {
        const SequenceChunk *chunk = &step->chunks[i];
        for (int t = 0; t < chunk->rows; t++) {
            const int64_t row = chunk->row + t;
            const int position = chunk->position + t;
            prepare_heads(a, a->k + row * l->kv_heads * l->head_dim, l->kv_heads, a->k_norm, step, (int)row, heads);
            for (int h = 0; h < l->kv_heads; h++) {
                ref_store_head(key_at(a, chunk, position, h), heads + (int64_t)h * l->head_dim, l->head_dim, l->dtype);
                ref_store_head(value_at(a, chunk, position, h), a->v + (row * l->kv_heads + h) * l->value_dim,
                    l->value_dim, l->dtype);
            }
        }
    }
}

/* Dequantises the pages that rows of a chunk read; false: no memory. */
static bool decode_run(RefBackend *r, const Attention *a, const SequenceChunk *chunk, Decoded *out) {
    const KvLayer *kv = &a->kv;
    *out = (Decoded){0};
    if (!chunk->quant || chunk->quant->layers[kv->index].k == KV_FULL) return true;
    out->first = chunk->quant->sink / KV_PAGE_TOKENS;
    out->count = kv_cold_end(chunk->quant, chunk->position + chunk->rows - 1) / KV_PAGE_TOKENS - out->first;
    if (out->count == 0) return true;
    const size_t head_floats = ref_head_floats(&kv->layout);
    out->heads = ref_take(r, (int64_t)out->count * kv->layout.kv_heads * (int64_t)head_floats);
    for (int i = 0; out->heads && i < out->count * kv->layout.kv_heads; i++) {
        const int page = out->first + i / kv->layout.kv_heads, head = i % kv->layout.kv_heads;
        ref_decode_head(kv, &chunk->quant->layers[kv->index], head, page * KV_PAGE_TOKENS,
            chunk->quant->k_pages[kv->index][page], chunk->quant->v_pages[kv->index][page],
            out->heads + (size_t)i * head_floats);
    }
    return out->heads;
}

void ref_attention(Backend *backend, const Attention *a) {
    RefBackend *r = ref_backend(backend);
    const int chunks = r->step.chunk_count;
    Attending work = {.a = a, .step = &r->step, .decoded = calloc((size_t)chunks, sizeof *work.decoded)};
    bool ready = work.decoded;
    for (int i = 0; ready && i < chunks; i++) {
        const SequenceChunk *chunk = &r->step.chunks[i];
        const int last = chunk->position + chunk->rows - 1;
        const int end = attention_range(chunk, a->window, a->chunked, a->span_rule, last).end;
        work.longest = end > work.longest ? end : work.longest;
        ready = decode_run(r, a, chunk, &work.decoded[i]);
    }
    if (ready)
        work.spare = ref_take(r, pool_threads(r->pool) * (work.longest + (int64_t)a->heads * a->kv.layout.head_dim));
    if (work.spare) {
        if (a->k) append(a, &r->step, work.spare);
        if (a->q) pool_run(r->pool, attend_task, &work);
    }
    r->starved = r->starved || !work.spare;
    for (int i = 0; work.decoded && i < chunks; i++) free(work.decoded[i].heads);
    free(work.decoded);
    free(work.spare);
}
