/* A backend that computes nothing: checks the shapes of every operation and counts scratch. The decoder walks it once
 * at load, so a step never allocates and a wrong model stops there, with names and shapes. */
#include <stdlib.h>

#include "backend/compressed.h"
#include "backend/recurrent.h"
#include "base/checked.h"

typedef struct PlanBackend {
    Backend base;
    Error error; /* the first error */
    size_t floats;
} PlanBackend;

static PlanBackend *plan(Backend *backend) { return (PlanBackend *)backend; }

enum { SCRATCH_ALIGN = 16 };
/* Result of scratch(): never read or written, but it must not be NULL, and pointers into it are computed. */
static float plan_memory[1];

static bool expect(Backend *backend, bool good, const char *what, int64_t got, int64_t wanted) {
    if (!good && plan(backend)->error.code == ERROR_NONE)
        fail(&plan(backend)->error, ERROR_FORMAT, "%s: %lld, expected %lld", what, (long long)got, (long long)wanted);
    return good;
}

static bool equal(Backend *backend, const char *what, int64_t got, int64_t wanted) {
    return expect(backend, got == wanted, what, got, wanted);
}

static void check_rows(Backend *backend, const char *what, int rows) {
    expect(backend, rows > 0 && rows <= backend->rows_max, what, rows, backend->rows_max);
}

/* Decode rows are 0 or more, at most all rows. */
static void check_decode_rows(Backend *backend, int decode_rows, int rows) {
    expect(backend, decode_rows >= 0 && decode_rows <= rows && decode_rows <= backend->decode_rows_max, "decode rows",
        decode_rows, rows);
}

static void check_width(Backend *backend, const char *what, int64_t width, int64_t most) {
    expect(backend, width > 0, what, width, 1);
    if (width > most && plan(backend)->error.code == ERROR_NONE)
        fail(&plan(backend)->error, ERROR_LIMIT, "%s: %lld, at most %lld are possible", what, (long long)width,
            (long long)most);
}

/* Activations are quantised in the weight's groups, so its columns must be whole groups. */
static void check_weight(Backend *backend, const Weight *w) {
    check_width(backend, "rows of a matrix", w->rows, INT32_MAX);
    check_width(backend, "columns of a matrix", w->cols, MATRIX_COLS_MAX);
    if (w->quant != QUANT_NONE) equal(backend, "columns left over by groups", w->group > 0 ? w->cols % w->group : 1, 0);
}

static void check_norm(Backend *backend, const char *what, const Norm *norm, int64_t width) {
    if (!norm) return;
    equal(backend, what, norm->width, width);
    check_width(backend, what, norm->width, NORM_WIDTH_MAX);
}

/* Nothing is computed, so no memory is taken. */
static void *plan_alloc(Backend *backend, size_t bytes, MemoryOwner owner, Error *error) { return plan_memory; }
static void plan_release(Backend *backend, void *memory) {}
static void plan_decommit(Backend *backend, void *memory, size_t bytes) {}
static bool plan_bind(Backend *backend, Weight *weight, Error *error) { return true; }
static void plan_unbind(Backend *backend, const Weight *weight) {}
static void plan_transfer(Backend *backend, void *to, const void *from, size_t bytes) {}
static size_t plan_kv_layer_bytes(Backend *backend, const KvLayout *layout) {
    return kv_canonical_bytes(layout, KV_PAGE_TOKENS);
}
static bool plan_page_read(Backend *backend, const KvLayer *layer, int32_t page, int tokens, void *out) { return true; }
static bool plan_page_write(Backend *backend, const KvLayer *layer, int32_t page, int tokens, const void *from) {
    return true;
}
static size_t plan_kv_quant_bytes(Backend *backend, const KvLayout *layout, KvForm form, bool values) { return 0; }
static void plan_kv_calibrate(Backend *backend, int count, const KvCalibration *calibrations) {}
static void plan_kv_quantise(Backend *backend, int count, const KvQuantise *pages) {}

static bool plan_begin(Backend *backend, const Step *step) {
    check_rows(backend, "rows of a step", step->rows);
    expect(backend, step->decode_rows >= 0 && step->decode_rows <= step->rows, "generated rows", step->decode_rows,
        step->rows);
    return true;
}
static void plan_set_rows(Backend *backend, const Step *rows) {
    check_rows(backend, "rows of a part of a step", rows->rows);
    expect(backend, rows->decode_rows >= 0 && rows->decode_rows <= rows->rows, "generated rows", rows->decode_rows,
        rows->rows);
}
static uint64_t plan_submit(Backend *backend) { return 0; }
static bool plan_wait(Backend *backend, uint64_t ticket, Error *error) { return true; }
static float *plan_read_logits(Backend *backend, float *logits, int64_t count) { return logits; }

static float *plan_scratch(Backend *backend, int64_t count) {
    const size_t rounded = ((size_t)count + SCRATCH_ALIGN - 1) / SCRATCH_ALIGN * SCRATCH_ALIGN;
    if (count < 0 || !size_add(plan(backend)->floats, rounded, &plan(backend)->floats))
        expect(backend, false, "scratch", count, 0);
    return plan_memory;
}

static void plan_sum_logits(Backend *backend, const LogitSums *op) { check_rows(backend, "rows of logits", op->rows); }

static void plan_embed(Backend *backend, const Embed *e) {
    check_rows(backend, "rows of an embedding", e->rows);
    for (int i = 0; i < e->rows; i++)
        expect(backend,
            e->placeholder || (e->tokens[i] >= (e->given_count ? TOKEN_GIVEN : 0) && e->tokens[i] < e->table->rows),
            "token id", e->tokens[i], e->table->rows);
}

static void plan_norm(Backend *backend, int rows, const float *x, const Norm *norm, float *out) {
    expect(backend, rows > 0, "rows of a norm", rows, 1); /* a head may be a row */
    check_width(backend, "width of a norm", norm->width, NORM_WIDTH_MAX);
}

static void plan_matmul(Backend *backend, const Matmul *m) {
    check_rows(backend, "rows of a product", m->rows);
    check_decode_rows(backend, m->decode_rows, m->rows);
    expect(backend, m->count > 0 && m->count <= MATMUL_MAX, "matrices of a product", m->count, MATMUL_MAX);
    for (int i = 0; i < m->count; i++) {
        check_weight(backend, m->weight[i]);
        equal(backend, "columns of matrices with one input", m->weight[i]->cols, m->weight[0]->cols);
    }
    check_norm(backend, "width of the norm before a product", m->norm, m->weight[0]->cols);
}

static void plan_glu(Backend *backend, const Glu *g) {
    check_rows(backend, "rows of a gated product", g->rows);
    check_decode_rows(backend, g->decode_rows, g->rows);
    check_weight(backend, g->gate);
    check_weight(backend, g->up);
    equal(backend, "rows of gate and up", g->gate->rows, g->up->rows);
    equal(backend, "columns of gate and up", g->gate->cols, g->up->cols);
    check_norm(backend, "width of the norm before gate and up", g->norm, g->gate->cols);
}

static void plan_matmul_add(Backend *backend, const MatmulAdd *m) {
    check_rows(backend, "rows of a product", m->rows);
    check_decode_rows(backend, m->decode_rows, m->rows);
    check_weight(backend, m->weight);
    check_norm(backend, "width of the norm after a product", m->norm, m->weight->rows);
}

static void plan_route(Backend *backend, const Routing *r) {
    check_rows(backend, "rows of a router", r->rows);
    check_width(backend, "experts of a layer", r->experts, EXPERTS_MAX);
    check_width(
        backend, "experts used by a row", r->top_k, r->experts < EXPERTS_USED_MAX ? r->experts : EXPERTS_USED_MAX);
    if (!r->groups) return;
    check_width(backend, "groups of experts", r->groups, EXPERT_GROUPS_MAX);
    check_width(backend, "groups of experts used", r->topk_group, r->groups);
    if (r->groups > 0) equal(backend, "experts left over by groups", r->experts % r->groups, 0);
}

static void plan_experts(Backend *backend, const Experts *e) {
    check_rows(backend, "rows of experts", e->rows);
    check_decode_rows(backend, e->decode_rows, e->rows);
    for (int i = 0; i < e->count; i++) {
        check_weight(backend, &e->gate[i]);
        check_weight(backend, &e->up[i]);
        check_weight(backend, &e->down[i]);
        equal(backend, "rows of an expert's gate and up", e->gate[i].rows, e->up[i].rows);
        equal(backend, "columns of an expert's gate and up", e->gate[i].cols, e->up[i].cols);
        equal(backend, "columns of an expert's gate", e->gate[i].cols, e->gate[0].cols);
        equal(backend, "columns of an expert's down", e->down[i].cols, e->gate[i].rows);
        equal(backend, "rows of an expert's down", e->down[i].rows, e->gate[0].cols);
    }
}

static void check_selection(Backend *backend, const Attention *a) {
    const KeySelection *s = &a->selection;
    if (!s->block) return;
    check_width(backend, "positions of a block of keys", s->block, MATRIX_COLS_MAX);
    expect(backend, a->softcap == 0, "parts of attention to chosen keys", 1, 0);
    if (s->stride) {
        check_width(backend, "period of blocks of keys", s->stride, MATRIX_COLS_MAX);
        check_width(backend, "latest blocks that are read", s->local, MATRIX_COLS_MAX);
    } else {
        check_width(backend, "blocks of keys that are chosen", s->top_k, MATRIX_COLS_MAX);
        expect(backend, s->groups == 1 || s->groups == a->kv.layout.kv_heads, "groups that choose keys", s->groups, 1);
        expect(backend, s->chosen != NULL, "chosen keys", 0, 1);
    }
}

static void plan_attention(Backend *backend, const Attention *a) {
    const KvLayout *l = &a->kv.layout;
    expect(backend, a->heads > 0 && l->kv_heads > 0, "attention heads", a->heads, l->kv_heads);
    check_width(backend, "head width", l->head_dim, ATTENTION_HEAD_MAX);
    check_width(backend, "head width of values", l->value_dim, ATTENTION_HEAD_MAX);
    if (l->kv_heads > 0) equal(backend, "query heads left over by kv heads", a->heads % l->kv_heads, 0);
    check_norm(
        backend, "width of the query norm", a->q_norm, a->norm_full ? (int64_t)a->heads * l->head_dim : l->head_dim);
    check_norm(
        backend, "width of the key norm", a->k_norm, a->norm_full ? (int64_t)l->kv_heads * l->head_dim : l->head_dim);
    if (a->rope) {
        equal(backend, "odd rotated width", a->rope->dims % 2, 0);
        expect(backend, a->rope->dims <= l->head_dim, "rotated width", a->rope->dims, l->head_dim);
        int64_t pairs = 0;
        for (int axis = 0; axis < POSITION_DIMS_MAX; axis++) {
            const int section = a->rope->mrope_section[axis];
            expect(backend, section >= 0, "pairs of one of the rope's sections", section, 0);
            pairs += section;
        }
        expect(backend, pairs <= a->rope->dims / 2, "pairs of the rope's sections", pairs, a->rope->dims / 2);
    }
    expect(backend, a->window >= 0, "attention window", a->window, 0);
    expect(backend, !a->norm_full || !a->norm_last, "norms of whole projections after the rotation", 1, 0);
    equal(backend, "ALiBi beside a softcap, latents or chosen keys",
        a->slopes && (a->softcap != 0 || a->q_latent || a->selection.block), 0);
    equal(backend, "keys without values", a->k == NULL, a->v == NULL);
    equal(backend, "queries without results", a->q == NULL, a->out == NULL);
    check_selection(backend, a);
}

static void plan_index_select(Backend *backend, const IndexSelect *op) {
    const KvLayout *l = &op->kv.layout;
    check_width(backend, "heads of an indexer", op->heads, MATRIX_COLS_MAX);
    check_width(backend, "head width of an indexer", l->head_dim, ATTENTION_HEAD_MAX);
    equal(backend, "key heads of an indexer", l->kv_heads, 1);
    equal(backend, "head width of an indexer's values", l->value_dim, 0);
    check_width(backend, "positions of a block of keys", op->block, MATRIX_COLS_MAX);
    check_width(backend, "blocks of keys that are chosen", op->top_k, MATRIX_COLS_MAX);
    expect(backend, op->local >= 0 && op->local <= op->top_k, "latest blocks that are chosen", op->local, op->top_k);
    if (op->rope) expect(backend, op->rope->dims <= l->head_dim, "rotated width", op->rope->dims, l->head_dim);
}

static void plan_mla(Backend *backend, const Mla *op) {
    const Attention *a = &op->attention;
    const KvLayout *l = &a->kv.layout;
    Attention inner = *a;
    check_rows(backend, "rows of latent attention", op->rows);
    check_decode_rows(backend, op->decode_rows, op->rows);
    plan_attention(backend, &inner);
    equal(backend, "kv heads of latent attention", l->kv_heads, 1);
    check_width(backend, "width of a latent with its key", l->head_dim + l->value_dim + 16, ATTENTION_HEAD_MAX);
    expect(backend, l->latent && !a->q_norm && !a->k_norm && !a->gate, "parts of latent attention", 1, 0);
    for (int h = 0; h < a->heads; h++) {
        check_weight(backend, &op->w_uk[h]);
        check_weight(backend, &op->w_uv[h]);
        equal(backend, "rows of a query's way to the latent", op->w_uk[h].rows, l->value_dim);
        equal(backend, "columns of a query's way to the latent", op->w_uk[h].cols, op->nope_dim);
        equal(backend, "columns of the way from the latent", op->w_uv[h].cols, l->value_dim);
        equal(backend, "rows of the way from the latent", op->w_uv[h].rows, op->w_uv[0].rows);
    }
}

static void check_place(Backend *backend, const RecurrentPart *place, int64_t anchor, int64_t row) {
    const KvLayout *l = &place->kv.layout;
    const int64_t anchors = (int64_t)(l->anchor_bytes / sizeof(float)),
                  row_width = (int64_t)(l->row_bytes / sizeof(float));
    equal(backend, "positions of a page of recurrent states", place->kv.page_tokens, RECURRENT_PAGE_TOKENS);
    expect(backend, place->anchor_at + anchor <= anchors, "state in an anchor", place->anchor_at + anchor, anchors);
    expect(backend, place->row_at + row <= row_width, "state in a row", place->row_at + row, row_width);
}

static void plan_conv(Backend *backend, const Conv *op) {
    check_rows(backend, "rows of a convolution", op->rows);
    check_width(backend, "taps of a convolution", op->taps, CONV_TAPS_MAX);
    check_width(backend, "parts of a convolution", op->part_count, CONV_PARTS_MAX);
    for (int i = 0; i < op->part_count; i++) {
        check_width(backend, "channels of a convolution", op->part[i].channels, INT32_MAX);
        expect(backend, op->part[i].weight != NULL, "weights of a convolution", 0, 1);
    }
    expect(backend, op->part_count == 1 || (!op->in_gate && !op->out_gate), "parts of a gated convolution",
        op->part_count, 1);
    check_place(backend, &op->place, conv_anchor_width(op), conv_row_width(op));
}

static void plan_recurrence(Backend *backend, const Recurrence *op) {
    check_rows(backend, "rows of a recurrence", op->rows);
    check_width(backend, "key heads of a recurrence", op->key_heads, MATRIX_COLS_MAX);
    check_width(backend, "value heads of a recurrence", op->value_heads, MATRIX_COLS_MAX);
    check_width(backend, "key width of a recurrence", op->key_dim, RECURRENT_DIM_MAX);
    check_width(backend, "value width of a recurrence", op->value_dim, RECURRENT_DIM_MAX);
    if (op->key_heads > 0) equal(backend, "value heads left over by key heads", op->value_heads % op->key_heads, 0);
    if (op->channel_decay) {
        equal(backend, "key heads of a decay per channel", op->key_heads, op->value_heads);
        expect(backend, op->kind == RECURRENCE_DELTA, "kind of a decay per channel", op->kind, RECURRENCE_DELTA);
    }
    expect(backend, op->kind == RECURRENCE_DELTA || !op->b, "β outside of the delta rule", 1, 0);
    expect(backend, op->rate != NULL, "rates of decay", 0, 1);
    check_norm(backend, "width of the query norm", op->q_norm, op->key_dim);
    check_norm(backend, "width of the key norm", op->k_norm, op->key_dim);
    if (op->rope) expect(backend, op->rope->dims <= op->key_dim, "rotated width", op->rope->dims, op->key_dim);
    check_place(backend, &op->place, recurrence_anchor_width(op), recurrence_row_width(op));
}

static void plan_mamba(Backend *backend, const Mamba *op) {
    check_rows(backend, "rows of a mamba", op->rows);
    check_width(backend, "channels of a mamba", op->channels, INT32_MAX);
    check_width(backend, "state of a mamba", op->state, RECURRENT_DIM_MAX);
    equal(backend, "channels left over by slices", op->channels % MAMBA_SLICE_TOKENS, 0);
    expect(backend, op->rate && op->skip, "rates of decay", 0, 1);
    check_place(backend, &op->place, mamba_anchor_width(op), mamba_row_width(op));
}

static void plan_rg_lru(Backend *backend, const RgLru *op) {
    check_rows(backend, "rows of an RG-LRU", op->rows);
    check_width(backend, "channels of an RG-LRU", op->channels, INT32_MAX);
    check_width(backend, "heads of an RG-LRU", op->heads, op->channels);
    if (op->heads > 0)
        equal(backend, "channels left over by heads", op->channels % ((int64_t)op->heads * RG_LRU_UNIT), 0);
    expect(backend, op->rate && op->decay_gate && op->input_gate, "rates and gates", 0, 1);
    check_place(backend, &op->place, 0, rg_lru_row_width(op));
}

static void plan_gated_norm(Backend *backend, const GatedNorm *op) {
    check_rows(backend, "rows of a gated norm", op->rows);
    check_width(backend, "width of a gated norm", op->width, NORM_WIDTH_MAX);
    if (op->group > 0) equal(backend, "width left over by groups", op->width % op->group, 0);
    expect(backend, op->group >= 0, "group of a gated norm", op->group, 0);
    equal(backend, "gates", op->gate != NULL, op->gate_kind != GATE_NONE);
}

static void plan_activate(Backend *backend, int64_t count, const float *x, Activation activation, float *out) {
    expect(backend, count > 0, "elements of an activation", count, 1);
}

static void plan_multiply(Backend *backend, const Multiply *op) {
    check_rows(backend, "rows of a product of elements", op->rows);
    check_width(backend, "width of a product of elements", op->width, MATRIX_COLS_MAX);
    expect(backend, op->activation.kind <= ACT_SILU_CLAMPED || op->activation.kind == ACT_SILU_LIMITED,
        "activation of a product", op->activation.kind, ACT_NONE);
}

static void plan_scale_queries(Backend *backend, int rows, int64_t width, const QueryScaling *scaling, float *x) {
    check_rows(backend, "rows of scaled queries", rows);
    expect(backend, scaling->length > 0, "length of a query scaling", scaling->length, 1);
}

static void plan_gather(Backend *backend, int count, const int32_t *index, const float *x, int64_t width, float *out) {
    for (int i = 0; i < count; i++)
        expect(backend, index[i] >= 0 && index[i] < backend->rows_max, "row to gather", index[i], backend->rows_max);
}

static void plan_logits(Backend *backend, int64_t count, float *x, float scale, float cap) {
    expect(backend, count > 0, "logits", count, 1);
}

static void plan_add(
    Backend *backend, int rows, int64_t width, float *residual, const float *y, float scale, const Norm *norm) {
    expect(backend, rows > 0, "rows of a sum", rows, 1);
    check_norm(backend, "width of the norm before a sum", norm, width);
}

static void plan_mix_streams(Backend *backend, const StreamMix *op) {
    check_rows(backend, "rows of streams", op->rows);
    check_width(backend, "streams", op->streams, STREAMS_MAX);
    check_width(backend, "width of a stream", op->width, NORM_WIDTH_MAX);
    equal(backend, "gains of streams without their input", op->gain == NULL, op->y == NULL);
}

static void plan_match_rms(Backend *backend, const MatchRms *op) {
    check_rows(backend, "rows to be scaled", op->rows);
    check_width(backend, "width of rows to be scaled", op->width, NORM_WIDTH_MAX);
}

static void plan_sparsify(Backend *backend, const Sparsify *op) {
    check_rows(backend, "rows to be made sparse", op->rows);
    check_width(backend, "width of rows to be made sparse", op->width, INT32_MAX);
}

static void plan_gate_heads(Backend *backend, const HeadGate *op) {
    check_rows(backend, "rows of gated heads", op->rows);
    check_width(backend, "gated heads", op->heads, INT32_MAX);
    check_width(backend, "width of gated heads", op->width, ATTENTION_HEAD_MAX);
}

static void check_rate(Backend *backend, int rate, int width) {
    check_width(backend, "positions of a compressed key", rate, KV_PAGE_TOKENS);
    if (rate <= 0) return;
    equal(backend, "positions of a page left over by compressed keys", KV_PAGE_TOKENS % rate, 0);
    equal(backend, "width of a key left over by its positions", width % rate, 0);
}

static void check_cache_rows(Backend *backend, const char *what, const KvLayer *kv, int64_t width) {
    equal(backend, what, (int64_t)(kv->layout.row_bytes / sizeof(float)), width);
    equal(backend, "positions of a page of rows", kv->page_tokens, KV_PAGE_TOKENS);
}

static void check_end(Backend *backend, const Rope *rope, int width) {
    expect(backend, rope && rope->dims <= width, "rotated width", rope ? rope->dims : 0, width);
}

static void plan_compress(Backend *backend, const Compression *op) {
    check_rows(backend, "rows to be compressed", op->rows);
    check_width(backend, "width of a compressed key", op->width, ATTENTION_HEAD_MAX);
    check_rate(backend, op->rate, op->width);
    check_norm(backend, "width of a compressed key's norm", op->norm, op->width);
    check_end(backend, op->rope, op->width);
    check_cache_rows(backend, "width of rows to be compressed", &op->state, 2 * compression_width(op));
    if (op->rate > 0) check_cache_rows(backend, "width of rows of compressed keys", &op->keys, op->width / op->rate);
}

static void plan_compressed_select(Backend *backend, const CompressedSelect *op) {
    check_rows(backend, "rows that choose keys", op->rows);
    check_width(backend, "heads of an indexer", op->heads, MATRIX_COLS_MAX);
    check_width(backend, "head width of an indexer", op->width, ATTENTION_HEAD_MAX);
    check_width(backend, "keys that are chosen", op->top_k, MATRIX_COLS_MAX);
    check_rate(backend, op->rate, op->width);
    check_end(backend, op->rope, op->width);
    if (op->rate > 0) check_cache_rows(backend, "width of rows of compressed keys", &op->keys, op->width / op->rate);
}

static void plan_compressed_attention(Backend *backend, const CompressedAttention *op) {
    check_rows(backend, "rows of attention to compressed keys", op->rows);
    check_width(backend, "heads", op->heads, MATRIX_COLS_MAX);
    check_width(backend, "head width", op->width, ATTENTION_HEAD_MAX);
    check_width(backend, "window of keys", op->window, INT32_MAX);
    check_width(backend, "groups of heads", op->groups, op->heads);
    if (op->groups > 0) equal(backend, "heads left over by groups", op->heads % op->groups, 0);
    check_norm(backend, "width of the query norm", op->q_norm, op->width);
    check_norm(backend, "width of the key norm", op->k_norm, op->width);
    check_end(backend, op->rope, op->width);
    expect(backend, op->sinks != NULL, "sinks", 0, 1);
    check_cache_rows(backend, "width of rows of keys", &op->latest, op->width);
    if (!op->rate) return;
    check_rate(backend, op->rate, op->width);
    check_cache_rows(backend, "width of rows of compressed keys", &op->keys, op->width / op->rate);
}

static void plan_join_groups(Backend *backend, const GroupJoin *op) {
    check_rows(backend, "rows of groups", op->rows);
    check_width(backend, "groups", op->groups, MATRIX_COLS_MAX);
    check_width(backend, "width of a group", op->width, MATRIX_COLS_MAX);
}

static void plan_hyper_connect(Backend *backend, const HyperConnection *op) {
    check_rows(backend, "rows of streams", op->rows);
    check_width(backend, "streams", op->streams, STREAMS_MAX);
    check_width(backend, "width of all streams", op->streams * op->width, NORM_WIDTH_MAX);
    expect(backend, op->iterations > 0 || op->magnitude > 0 || !op->y, "iterations of a mix of streams", op->iterations,
        1);
    expect(backend, op->iterations == 0 || op->magnitude == 0, "independent streams' iterations", op->iterations, 0);
    equal(backend, "results of streams", op->out != NULL, op->y == NULL);
}

static void plan_close(Backend *backend) { free(backend); }

static const BackendOps plan_ops = {
    .name = "plan",
    .alloc = plan_alloc,
    .release = plan_release,
    .decommit = plan_decommit,
    .bind = plan_bind,
    .unbind = plan_unbind,
    .upload = plan_transfer,
    .download = plan_transfer,
    .copy = plan_transfer,
    .kv_layer_bytes = plan_kv_layer_bytes,
    .page_read = plan_page_read,
    .page_write = plan_page_write,
    .kv_quant_bytes = plan_kv_quant_bytes,
    .kv_calibrate = plan_kv_calibrate,
    .kv_quantise = plan_kv_quantise,
    .begin = plan_begin,
    .set_rows = plan_set_rows,
    .submit = plan_submit,
    .wait = plan_wait,
    .scratch = plan_scratch,
    .read_logits = plan_read_logits,
    .embed = plan_embed,
    .norm = plan_norm,
    .matmul = plan_matmul,
    .glu = plan_glu,
    .matmul_add = plan_matmul_add,
    .attention = plan_attention,
    .mla = plan_mla,
    .index_select = plan_index_select,
    .conv = plan_conv,
    .recurrence = plan_recurrence,
    .mamba = plan_mamba,
    .rg_lru = plan_rg_lru,
    .gated_norm = plan_gated_norm,
    .route = plan_route,
    .experts = plan_experts,
    .activate = plan_activate,
    .multiply = plan_multiply,
    .scale_queries = plan_scale_queries,
    .gather = plan_gather,
    .logits = plan_logits,
    .sum_logits = plan_sum_logits,
    .add = plan_add,
    .mix_streams = plan_mix_streams,
    .match_rms = plan_match_rms,
    .sparsify = plan_sparsify,
    .gate_heads = plan_gate_heads,
    .compress = plan_compress,
    .compressed_select = plan_compressed_select,
    .compressed_attention = plan_compressed_attention,
    .join_groups = plan_join_groups,
    .hyper_connect = plan_hyper_connect,
    .close = plan_close,
};

Backend *plan_open(int rows_max, Error *error) {
    PlanBackend *p = calloc(1, sizeof *p);
    if (!p) {
        fail(error, ERROR_MEMORY, "no memory for the plan of a step");
        return NULL;
    }
    p->base = (Backend){.ops = &plan_ops, .rows_max = rows_max, .decode_rows_max = rows_max, .description = "plan"};
    return &p->base;
}

bool plan_result(Backend *backend, size_t *scratch_bytes, Error *error) {
    const PlanBackend *p = plan(backend);
    if (p->error.code != ERROR_NONE) {
        if (error) *error = p->error;
        return false;
    }
    return size_mul(p->floats, sizeof(float), scratch_bytes) || fail(error, ERROR_LIMIT, "scratch memory overflows");
}
