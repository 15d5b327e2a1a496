#include "backend/mirror.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/compressed.h"
#include "backend/recurrent.h"

enum { MIRROR_BLOCKS_MAX = 16, MIRROR_FETCHES_MAX = 8 };
static const size_t mirror_room_bytes = (size_t)1 << 28; /* for the operands of one operation */

typedef struct MirrorBlock {
    uint8_t *host, *device;
    size_t bytes;
    bool taken_over;
} MirrorBlock;

typedef struct Mirror {
    Backend base;
    Backend *inner;
    uint8_t *room;
    size_t used;
    MirrorBlock blocks[MIRROR_BLOCKS_MAX];
    struct {
        void *to;
        const void *from;
        size_t bytes;
    } fetches[MIRROR_FETCHES_MAX];
    int fetch_count;
    Weight bound[MATMUL_MAX];
    int bound_count;
    int rows; /* of the step */
} Mirror;

static Mirror *mirror_of(Backend *backend) { return (Mirror *)backend; }

static void mirror_expect(bool good, const char *what) {
    if (good) return;
    fprintf(stderr, "mirror: %s\n", what);
    abort();
}

/* ---- operands ---- */

static void *mirror_place(Mirror *m, size_t bytes) {
    void *place = m->room + m->used;
    m->used += (bytes + 63) / 64 * 64;
    mirror_expect(m->used <= mirror_room_bytes, "an operation's operands are too large");
    return place;
}
static void *mirror_bring_bytes(Mirror *m, const void *from, size_t bytes) {
    if (!from) return NULL;
    void *place = mirror_place(m, bytes);
    m->inner->ops->upload(m->inner, place, from, bytes);
    return place;
}
static float *mirror_bring(Mirror *m, const float *from, int64_t count) {
    return mirror_bring_bytes(m, from, (size_t)count * sizeof *from);
}
/* What the operation writes: brought, as it may be read as well, and fetched when it is done. */
static float *mirror_share(Mirror *m, float *host, int64_t count) {
    float *place = mirror_bring(m, host, count);
    m->fetches[m->fetch_count].to = host;
    m->fetches[m->fetch_count].from = place;
    m->fetches[m->fetch_count++].bytes = (size_t)count * sizeof *host;
    return place;
}
static Norm mirror_norm(Mirror *m, const Norm *norm) {
    Norm there = *norm;
    there.weight = mirror_bring(m, norm->weight, norm->width);
    there.bias = mirror_bring(m, norm->bias, norm->width);
    return there;
}
static const Weight *mirror_weight(Mirror *m, const Weight *weight) {
    Error error;
    Weight *bound = &m->bound[m->bound_count++];
    *bound = *weight;
    if (!m->inner->ops->bind(m->inner, bound, &error)) mirror_expect(false, error.text);
    return bound;
}
static void mirror_done(Mirror *m) {
    for (int i = 0; i < m->fetch_count; i++)
        m->inner->ops->download(m->inner, m->fetches[i].to, m->fetches[i].from, m->fetches[i].bytes);
    for (int i = 0; i < m->bound_count; i++) m->inner->ops->unbind(m->inner, &m->bound[i]);
    m->fetch_count = m->bound_count = 0;
    m->used = 0;
    Error error = {0};
    if (!m->inner->ops->wait(m->inner, 0, &error)) mirror_expect(false, error.text);
}

/* ---- memory ---- */

static void *mirror_alloc(Backend *backend, size_t bytes, MemoryOwner owner, Error *error) {
    Mirror *m = mirror_of(backend);
    MirrorBlock *block = m->blocks;
    while (block < m->blocks + MIRROR_BLOCKS_MAX && block->host) block++;
    mirror_expect(block < m->blocks + MIRROR_BLOCKS_MAX, "too many blocks of memory");
    *block = (MirrorBlock){
        .host = calloc(1, bytes), .device = m->inner->ops->alloc(m->inner, bytes, owner, error), .bytes = bytes};
    mirror_expect(block->host && block->device, "no memory");
    if (owner == MEMORY_CACHE && m->inner->ops->commit)
        mirror_expect(m->inner->ops->commit(m->inner, block->device, bytes), "no memory to commit");
    return block->host;
}
/* The device's address of a place in a block. */
static uint8_t *mirror_twin(Mirror *m, const void *host) {
    const uint8_t *at = host;
    for (int i = 0; i < MIRROR_BLOCKS_MAX; i++) {
        MirrorBlock *block = &m->blocks[i];
        if (!block->host || at < block->host || at >= block->host + block->bytes) continue;
        if (!block->taken_over) m->inner->ops->upload(m->inner, block->device, block->host, block->bytes);
        block->taken_over = true;
        return block->device + (at - block->host);
    }
    mirror_expect(false, "memory of somebody else");
    return NULL;
}
static void mirror_release(Backend *backend, void *memory) {
    Mirror *m = mirror_of(backend);
    for (int i = 0; memory && i < MIRROR_BLOCKS_MAX; i++) {
        if (m->blocks[i].host != memory) continue;
        m->inner->ops->release(m->inner, m->blocks[i].device);
        free(memory);
        m->blocks[i] = (MirrorBlock){0};
        return;
    }
}
static void mirror_decommit(Backend *backend, void *memory, size_t bytes) {}
static bool mirror_bind(Backend *backend, Weight *weight, Error *error) { return true; }
static void mirror_unbind(Backend *backend, const Weight *weight) {}
static void mirror_upload(Backend *backend, void *to, const void *from, size_t bytes) {
    Mirror *m = mirror_of(backend);
    m->inner->ops->upload(m->inner, mirror_twin(m, to), from, bytes);
}
static void mirror_download(Backend *backend, void *to, const void *from, size_t bytes) {
    Mirror *m = mirror_of(backend);
    m->inner->ops->download(m->inner, to, mirror_twin(m, from), bytes);
}
static void mirror_copy(Backend *backend, void *to, const void *from, size_t bytes) {
    Mirror *m = mirror_of(backend);
    m->inner->ops->copy(m->inner, mirror_twin(m, to), mirror_twin(m, from), bytes);
}
static size_t mirror_kv_layer_bytes(Backend *backend, const KvLayout *layout) {
    Mirror *m = mirror_of(backend);
    return m->inner->ops->kv_layer_bytes(m->inner, layout);
}
static KvLayer mirror_layer(Mirror *m, const KvLayer *layer) {
    KvLayer there = *layer;
    there.base = mirror_twin(m, layer->base);
    return there;
}
static bool mirror_page_read(Backend *backend, const KvLayer *layer, int32_t page, int tokens, void *out) {
    Mirror *m = mirror_of(backend);
    const KvLayer there = mirror_layer(m, layer);
    return m->inner->ops->page_read(m->inner, &there, page, tokens, out);
}
static bool mirror_page_write(Backend *backend, const KvLayer *layer, int32_t page, int tokens, const void *from) {
    Mirror *m = mirror_of(backend);
    const KvLayer there = mirror_layer(m, layer);
    return m->inner->ops->page_write(m->inner, &there, page, tokens, from);
}
static size_t mirror_kv_quant_bytes(Backend *backend, const KvLayout *layout, KvForm form, bool values) {
    Mirror *m = mirror_of(backend);
    return m->inner->ops->kv_quant_bytes(m->inner, layout, form, values);
}
static Rope mirror_rope(Mirror *m, const Rope *rope) {
    Rope there = *rope;
    there.frequencies = mirror_bring(m, rope->frequencies, rope->dims / 2);
    return there;
}
/* With what codes need; rope: a place for the layer's. */
static KvLayer mirror_coded_layer(Mirror *m, const KvLayer *layer, Rope *rope) {
    KvLayer there = mirror_layer(m, layer);
    for (int form = 0; form < KV_FORMS; form++) {
        if (layer->k_quant[form].base) there.k_quant[form].base = mirror_twin(m, layer->k_quant[form].base);
        if (layer->v_quant[form].base) there.v_quant[form].base = mirror_twin(m, layer->v_quant[form].base);
    }
    there.k_bias = mirror_bring(m, layer->k_bias, (int64_t)layer->layout.kv_heads * layer->layout.head_dim);
    if (layer->rope) {
        *rope = mirror_rope(m, layer->rope);
        there.rope = rope;
    }
    return there;
}
static void mirror_kv_calibrate(Backend *backend, int count, const KvCalibration *surveys) {
    Mirror *m = mirror_of(backend);
    for (int i = 0; i < count; i++) {
        Rope rope;
        const KvLayer layer = mirror_coded_layer(m, surveys[i].layer, &rope);
        KvCalibration there = surveys[i];
        there.layer = &layer;
        m->inner->ops->kv_calibrate(m->inner, 1, &there);
        mirror_done(m);
    }
}
static void mirror_kv_quantise(Backend *backend, int count, const KvQuantise *pages) {
    Mirror *m = mirror_of(backend);
    for (int i = 0; i < count; i++) {
        Rope rope;
        const KvLayer layer = mirror_coded_layer(m, pages[i].layer, &rope);
        KvQuantise there = pages[i];
        there.layer = &layer;
        m->inner->ops->kv_quantise(m->inner, 1, &there);
        mirror_done(m);
    }
}

/* ---- the step ---- */

static bool mirror_begin(Backend *backend, const Step *step) {
    Mirror *m = mirror_of(backend);
    m->rows = step->rows;
    return m->inner->ops->begin(m->inner, step);
}
static uint64_t mirror_submit(Backend *backend) {
    Mirror *m = mirror_of(backend);
    return m->inner->ops->submit(m->inner);
}
static bool mirror_wait(Backend *backend, uint64_t ticket, Error *error) {
    Mirror *m = mirror_of(backend);
    return m->inner->ops->wait(m->inner, ticket, error);
}
static float *mirror_scratch(Backend *backend, int64_t count) {
    mirror_expect(false, "scratch is of no use here");
    return NULL;
}
static float *mirror_read_logits(Backend *backend, float *logits, int64_t count) { return logits; }

static void mirror_embed(Backend *backend, const Embed *op) {
    Mirror *m = mirror_of(backend);
    Embed there = *op;
    there.table = mirror_weight(m, op->table);
    there.out = mirror_share(m, op->out, op->rows * op->table->cols);
    m->inner->ops->embed(m->inner, &there);
    mirror_done(m);
}
static void mirror_norm_rows(Backend *backend, int rows, const float *x, const Norm *norm, float *out) {
    Mirror *m = mirror_of(backend);
    const Norm there = mirror_norm(m, norm);
    const float *in = mirror_bring(m, x, rows * norm->width);
    m->inner->ops->norm(m->inner, rows, in, &there, mirror_share(m, out, rows * norm->width));
    mirror_done(m);
}
static void mirror_matmul(Backend *backend, const Matmul *op) {
    Mirror *m = mirror_of(backend);
    Matmul there = *op;
    Norm norm;
    if (op->norm) {
        norm = mirror_norm(m, op->norm);
        there.norm = &norm;
    }
    there.x = mirror_bring(m, op->x, op->rows * op->weight[0]->cols);
    for (int i = 0; i < op->count; i++) {
        there.weight[i] = mirror_weight(m, op->weight[i]);
        there.out[i] = mirror_share(m, op->out[i], op->rows * op->weight[i]->rows);
    }
    m->inner->ops->matmul(m->inner, &there);
    mirror_done(m);
}
static void mirror_glu(Backend *backend, const Glu *op) {
    Mirror *m = mirror_of(backend);
    Glu there = *op;
    Norm norm;
    if (op->norm) {
        norm = mirror_norm(m, op->norm);
        there.norm = &norm;
    }
    there.x = mirror_bring(m, op->x, op->rows * op->gate->cols);
    there.gate = mirror_weight(m, op->gate);
    there.up = mirror_weight(m, op->up);
    there.out = mirror_share(m, op->out, op->rows * op->gate->rows);
    m->inner->ops->glu(m->inner, &there);
    mirror_done(m);
}
static void mirror_matmul_add(Backend *backend, const MatmulAdd *op) {
    Mirror *m = mirror_of(backend);
    MatmulAdd there = *op;
    Norm norm;
    if (op->norm) {
        norm = mirror_norm(m, op->norm);
        there.norm = &norm;
    }
    there.x = mirror_bring(m, op->x, op->rows * op->weight->cols);
    there.weight = mirror_weight(m, op->weight);
    there.residual = mirror_share(m, op->residual, op->rows * op->weight->rows);
    m->inner->ops->matmul_add(m->inner, &there);
    mirror_done(m);
}
static void mirror_attention(Backend *backend, const Attention *op) {
    Mirror *m = mirror_of(backend);
    Attention there = *op;
    Norm q_norm, k_norm;
    Rope rope, layer_rope;
    const int rows = m->rows;
    const KvLayout *l = &op->kv.layout;
    there.kv = mirror_coded_layer(m, &op->kv, &layer_rope);
    if (op->q_norm) {
        q_norm = mirror_norm(m, op->q_norm);
        there.q_norm = &q_norm;
    }
    if (op->k_norm) {
        k_norm = mirror_norm(m, op->k_norm);
        there.k_norm = &k_norm;
    }
    if (op->rope) {
        rope = mirror_rope(m, op->rope);
        there.rope = &rope;
    }
    there.sinks = mirror_bring(m, op->sinks, op->heads);
    there.slopes = mirror_bring(m, op->slopes, op->heads);
    there.q = mirror_bring(m, op->q, (int64_t)rows * op->heads * l->head_dim);
    there.k = mirror_bring(m, op->k, (int64_t)rows * l->kv_heads * l->head_dim);
    there.v = mirror_bring(m, op->v, (int64_t)rows * l->kv_heads * l->value_dim);
    there.q_latent = mirror_bring(m, op->q_latent, (int64_t)rows * op->heads * l->value_dim);
    if (op->selection.chosen) {
        const size_t count = (size_t)rows * (size_t)(op->selection.groups * op->selection.top_k);
        there.selection.chosen = mirror_bring_bytes(m, op->selection.chosen, count * sizeof *op->selection.chosen);
    }
    there.out = mirror_share(m, op->out, (int64_t)rows * op->heads * l->value_dim);
    m->inner->ops->attention(m->inner, &there);
    mirror_done(m);
}
static void mirror_index_select(Backend *backend, const IndexSelect *op) {
    Mirror *m = mirror_of(backend);
    IndexSelect there = *op;
    Rope rope;
    const int64_t rows = m->rows, width = op->kv.layout.head_dim;
    const int64_t chosen = rows * (op->weights ? 1 : op->heads) * op->top_k;
    there.kv = mirror_layer(m, &op->kv);
    if (op->rope) {
        rope = mirror_rope(m, op->rope);
        there.rope = &rope;
    }
    there.q = mirror_bring(m, op->q, rows * op->heads * width);
    there.k = mirror_bring(m, op->k, rows * width);
    there.weights = mirror_bring(m, op->weights, rows * op->heads);
    there.chosen = mirror_place(m, (size_t)chosen * sizeof *op->chosen);
    m->fetches[m->fetch_count].to = op->chosen;
    m->fetches[m->fetch_count].from = there.chosen;
    m->fetches[m->fetch_count++].bytes = (size_t)chosen * sizeof *op->chosen;
    m->inner->ops->index_select(m->inner, &there);
    mirror_done(m);
}
static RecurrentPart mirror_place_of(Mirror *m, const RecurrentPart *place) {
    RecurrentPart there = *place;
    there.kv = mirror_layer(m, &place->kv);
    return there;
}
/* Plain rows, which the test reads in host memory afterwards. */
static KvLayer mirror_rows(Mirror *m, const KvLayer *layer) {
    const KvLayer there = mirror_layer(m, layer);
    for (int i = 0; i < MIRROR_BLOCKS_MAX; i++) {
        const MirrorBlock *block = &m->blocks[i];
        if (block->host != layer->base) continue;
        m->fetches[m->fetch_count].to = block->host;
        m->fetches[m->fetch_count].from = block->device;
        m->fetches[m->fetch_count++].bytes = block->bytes;
    }
    return there;
}
static void mirror_compress(Backend *backend, const Compression *op) {
    Mirror *m = mirror_of(backend);
    const int64_t all = compression_width(op);
    const Norm norm = op->norm ? mirror_norm(m, op->norm) : (Norm){0};
    const Rope rope = mirror_rope(m, op->rope);
    Compression there = *op;
    there.state = mirror_rows(m, &op->state);
    there.keys = mirror_rows(m, &op->keys);
    there.position_bias = mirror_bring(m, op->position_bias, op->rate * all);
    there.norm = op->norm ? &norm : NULL;
    there.rope = &rope;
    there.values = mirror_bring(m, op->values, op->rows * all);
    there.gates = mirror_bring(m, op->gates, op->rows * all);
    m->inner->ops->compress(m->inner, &there);
    mirror_done(m);
}
static void mirror_compressed_select(Backend *backend, const CompressedSelect *op) {
    Mirror *m = mirror_of(backend);
    const Rope rope = mirror_rope(m, op->rope);
    CompressedSelect there = *op;
    there.keys = mirror_rows(m, &op->keys);
    there.rope = &rope;
    there.q = mirror_bring(m, op->q, (int64_t)op->rows * op->heads * op->width);
    there.weights = mirror_bring(m, op->weights, (int64_t)op->rows * op->heads);
    there.work = mirror_bring(m, op->work, (int64_t)op->rows * 2 * op->top_k);
    const size_t chosen = (size_t)(op->rows * compressed_chosen(op)) * sizeof *op->chosen;
    there.chosen = mirror_place(m, chosen);
    m->fetches[m->fetch_count].to = op->chosen;
    m->fetches[m->fetch_count].from = there.chosen;
    m->fetches[m->fetch_count++].bytes = chosen;
    m->inner->ops->compressed_select(m->inner, &there);
    mirror_done(m);
}
static void mirror_compressed_attention(Backend *backend, const CompressedAttention *op) {
    Mirror *m = mirror_of(backend);
    const int64_t heads = (int64_t)op->rows * op->heads * op->width;
    const Norm q_norm = mirror_norm(m, op->q_norm), k_norm = mirror_norm(m, op->k_norm);
    const Rope rope = mirror_rope(m, op->rope);
    CompressedAttention there = *op;
    there.latest = mirror_rows(m, &op->latest);
    if (op->rate) there.keys = mirror_rows(m, &op->keys);
    there.chosen = mirror_bring_bytes(m, op->chosen, (size_t)(op->rows * op->top_k) * sizeof *op->chosen);
    there.q_norm = &q_norm;
    there.k_norm = &k_norm;
    there.rope = &rope;
    there.sinks = mirror_bring(m, op->sinks, op->heads);
    there.q = mirror_bring(m, op->q, heads);
    there.k = mirror_bring(m, op->k, op->rows * op->width);
    there.out = mirror_share(m, op->out, heads);
    m->inner->ops->compressed_attention(m->inner, &there);
    mirror_done(m);
}
static void mirror_join_groups(Backend *backend, const GroupJoin *op) {
    Mirror *m = mirror_of(backend);
    GroupJoin there = *op;
    there.x = mirror_bring(m, op->x, op->rows * (op->repeated ? 1 : op->groups) * op->width);
    there.out = mirror_share(m, op->out, op->rows * op->groups * op->width);
    m->inner->ops->join_groups(m->inner, &there);
    mirror_done(m);
}
static void mirror_hyper_connect(Backend *backend, const HyperConnection *op) {
    Mirror *m = mirror_of(backend);
    const int64_t logits = hyper_logits(op->streams, op->iterations, op->magnitude);
    HyperConnection there = *op;
    there.x = mirror_share(m, op->x, op->rows * op->streams * op->width);
    there.logits = mirror_bring(m, op->logits, op->rows * logits);
    there.scale = mirror_bring(m, op->scale, hyper_scales(op->iterations, op->magnitude));
    there.base = mirror_bring(m, op->base, logits);
    there.y = mirror_bring(m, op->y, op->rows * op->width);
    if (op->out) there.out = mirror_share(m, op->out, op->rows * op->width);
    m->inner->ops->hyper_connect(m->inner, &there);
    mirror_done(m);
}
static void mirror_conv(Backend *backend, const Conv *op) {
    Mirror *m = mirror_of(backend);
    Conv there = *op;
    there.place = mirror_place_of(m, &op->place);
    for (int i = 0; i < op->part_count; i++) {
        const ConvPart *part = &op->part[i];
        there.part[i].weight = mirror_bring(m, part->weight, part->channels * op->taps);
        there.part[i].bias = mirror_bring(m, part->bias, part->channels);
        there.part[i].x = mirror_bring(m, part->x, op->rows * part->channels);
        there.part[i].out = mirror_share(m, part->out, op->rows * part->channels);
    }
    there.in_gate = mirror_bring(m, op->in_gate, op->rows * op->part[0].channels);
    there.out_gate = mirror_bring(m, op->out_gate, op->rows * op->part[0].channels);
    m->inner->ops->conv(m->inner, &there);
    mirror_done(m);
}
static void mirror_recurrence(Backend *backend, const Recurrence *op) {
    Mirror *m = mirror_of(backend);
    const int64_t keys = (int64_t)op->rows * op->key_heads * op->key_dim, heads = (int64_t)op->rows * op->value_heads;
    const int64_t decays = op->channel_decay ? op->key_dim : 1;
    Recurrence there = *op;
    Norm q_norm, k_norm;
    Rope rope;
    there.place = mirror_place_of(m, &op->place);
    if (op->q_norm) {
        q_norm = mirror_norm(m, op->q_norm);
        there.q_norm = &q_norm;
    }
    if (op->k_norm) {
        k_norm = mirror_norm(m, op->k_norm);
        there.k_norm = &k_norm;
    }
    if (op->rope) {
        rope = mirror_rope(m, op->rope);
        there.rope = &rope;
    }
    there.rate = mirror_bring(m, op->rate, op->value_heads);
    there.dt_bias = mirror_bring(m, op->dt_bias, op->value_heads * decays);
    there.dt_slope = mirror_bring(m, op->dt_slope, op->value_heads);
    there.skip = mirror_bring(m, op->skip, op->value_heads);
    there.q = mirror_bring(m, op->q, keys);
    there.k = mirror_bring(m, op->k, keys);
    there.v = mirror_bring(m, op->v, heads * op->value_dim);
    there.a = mirror_bring(m, op->a, heads * decays);
    there.b = mirror_bring(m, op->b, heads);
    there.work = mirror_bring(m, op->work, op->rows * recurrence_width(op));
    there.out = mirror_share(m, op->out, heads * op->value_dim);
    m->inner->ops->recurrence(m->inner, &there);
    mirror_done(m);
}
static void mirror_mamba(Backend *backend, const Mamba *op) {
    Mirror *m = mirror_of(backend);
    Mamba there = *op;
    there.place = mirror_place_of(m, &op->place);
    there.rate = mirror_bring(m, op->rate, op->channels * op->state);
    there.skip = mirror_bring(m, op->skip, op->channels);
    there.x = mirror_bring(m, op->x, op->rows * op->channels);
    there.dt = mirror_bring(m, op->dt, op->rows * op->channels);
    there.b = mirror_bring(m, op->b, (int64_t)op->rows * op->state);
    there.c = mirror_bring(m, op->c, (int64_t)op->rows * op->state);
    there.out = mirror_share(m, op->out, op->rows * op->channels);
    m->inner->ops->mamba(m->inner, &there);
    mirror_done(m);
}
static void mirror_rg_lru(Backend *backend, const RgLru *op) {
    Mirror *m = mirror_of(backend);
    const int64_t gates = op->channels * (op->channels / op->heads);
    RgLru there = *op;
    there.place = mirror_place_of(m, &op->place);
    there.rate = mirror_bring(m, op->rate, op->channels);
    there.decay_gate = mirror_bring(m, op->decay_gate, gates);
    there.decay_bias = mirror_bring(m, op->decay_bias, op->channels);
    there.input_gate = mirror_bring(m, op->input_gate, gates);
    there.input_bias = mirror_bring(m, op->input_bias, op->channels);
    there.x = mirror_bring(m, op->x, op->rows * op->channels);
    there.out = mirror_share(m, op->out, op->rows * op->channels);
    m->inner->ops->rg_lru(m->inner, &there);
    mirror_done(m);
}
static void mirror_gated_norm(Backend *backend, const GatedNorm *op) {
    Mirror *m = mirror_of(backend);
    GatedNorm there = *op;
    there.weight = mirror_bring(m, op->weight, op->width);
    there.x = mirror_bring(m, op->x, op->rows * op->width);
    there.gate = mirror_bring(m, op->gate, op->rows * op->width);
    there.out = mirror_share(m, op->out, op->rows * op->width);
    m->inner->ops->gated_norm(m->inner, &there);
    mirror_done(m);
}
static void mirror_activate(Backend *backend, int64_t count, const float *x, Activation activation, float *out) {
    Mirror *m = mirror_of(backend);
    const float *in = mirror_bring(m, x, count);
    m->inner->ops->activate(m->inner, count, in, activation, mirror_share(m, out, count));
    mirror_done(m);
}
static void mirror_multiply(Backend *backend, const Multiply *op) {
    Mirror *m = mirror_of(backend);
    Multiply there = *op;
    there.x = mirror_bring(m, op->x, op->rows * op->width);
    there.y = mirror_bring(m, op->y, (op->rows - 1) * op->y_stride + op->width);
    there.out = mirror_share(m, op->out, op->rows * op->width);
    m->inner->ops->multiply(m->inner, &there);
    mirror_done(m);
}
static void mirror_route(Backend *backend, const Routing *op) {
    Mirror *m = mirror_of(backend);
    const int64_t slots = (int64_t)op->rows * (op->top_k + op->shared);
    Routing there = *op;
    there.logits = mirror_bring(m, op->logits, (int64_t)op->rows * op->experts);
    there.bias = mirror_bring(m, op->bias, op->experts);
    there.shared_logits = mirror_bring(m, op->shared_logits, (int64_t)op->rows * (1 + op->shared_pair));
    there.expert_scale = mirror_bring(m, op->expert_scale, op->experts);
    there.index = (int32_t *)(void *)mirror_share(m, (float *)(void *)op->index, slots);
    there.weight = mirror_share(m, op->weight, slots);
    m->inner->ops->route(m->inner, &there);
    mirror_done(m);
}
static void mirror_mix_streams(Backend *backend, const StreamMix *op) {
    Mirror *m = mirror_of(backend);
    const int64_t pairs = (int64_t)op->rows * op->streams;
    StreamMix there = *op;
    there.x = mirror_share(m, op->x, (op->streams - 1) * op->stride + op->rows * op->width);
    there.mix = mirror_bring(m, op->mix, pairs * op->streams);
    there.gain = mirror_bring(m, op->gain, pairs);
    there.y = mirror_bring(m, op->y, op->rows * op->width);
    m->inner->ops->mix_streams(m->inner, &there);
    mirror_done(m);
}
static void mirror_match_rms(Backend *backend, const MatchRms *op) {
    Mirror *m = mirror_of(backend);
    MatchRms there = *op;
    there.target = mirror_bring(m, op->target, op->rows * op->width);
    there.x = mirror_share(m, op->x, op->rows * op->width);
    m->inner->ops->match_rms(m->inner, &there);
    mirror_done(m);
}
static void mirror_sparsify(Backend *backend, const Sparsify *op) {
    Mirror *m = mirror_of(backend);
    Sparsify there = *op;
    there.x = mirror_share(m, op->x, op->rows * op->width);
    m->inner->ops->sparsify(m->inner, &there);
    mirror_done(m);
}
static void mirror_gate_heads(Backend *backend, const HeadGate *op) {
    Mirror *m = mirror_of(backend);
    HeadGate there = *op;
    there.gate = mirror_bring(m, op->gate, (int64_t)op->rows * op->heads);
    there.x = mirror_share(m, op->x, op->rows * op->heads * op->width);
    m->inner->ops->gate_heads(m->inner, &there);
    mirror_done(m);
}
static void mirror_scale_queries(Backend *backend, int rows, int64_t width, const QueryScaling *scaling, float *x) {
    Mirror *m = mirror_of(backend);
    m->inner->ops->scale_queries(m->inner, rows, width, scaling, mirror_share(m, x, rows * width));
    mirror_done(m);
}
static void mirror_gather(
    Backend *backend, int count, const int32_t *index, const float *x, int64_t width, float *out) {
    Mirror *m = mirror_of(backend);
    int rows = 0;
    for (int i = 0; i < count; i++) rows = index[i] >= rows ? index[i] + 1 : rows;
    const float *in = mirror_bring(m, x, rows * width);
    m->inner->ops->gather(m->inner, count, index, in, width, mirror_share(m, out, count * width));
    mirror_done(m);
}
static void mirror_logits(Backend *backend, int64_t count, float *x, float scale, float cap) {
    Mirror *m = mirror_of(backend);
    m->inner->ops->logits(m->inner, count, mirror_share(m, x, count), scale, cap);
    mirror_done(m);
}
static void mirror_add(
    Backend *backend, int rows, int64_t width, float *residual, const float *y, float scale, const Norm *norm) {
    Mirror *m = mirror_of(backend);
    Norm there;
    if (norm) there = mirror_norm(m, norm);
    const float *in = mirror_bring(m, y, rows * width);
    float *sum = mirror_share(m, residual, rows * width);
    m->inner->ops->add(m->inner, rows, width, sum, in, scale, norm ? &there : NULL);
    mirror_done(m);
}
static void mirror_close(Backend *backend) {
    Mirror *m = mirror_of(backend);
    if (m->room) m->inner->ops->release(m->inner, m->room);
    backend_close(m->inner);
    free(m);
}

static const BackendOps mirror_ops = {
    .name = "cuda",
    .alloc = mirror_alloc,
    .release = mirror_release,
    .decommit = mirror_decommit,
    .bind = mirror_bind,
    .unbind = mirror_unbind,
    .upload = mirror_upload,
    .download = mirror_download,
    .copy = mirror_copy,
    .kv_layer_bytes = mirror_kv_layer_bytes,
    .page_read = mirror_page_read,
    .page_write = mirror_page_write,
    .kv_quant_bytes = mirror_kv_quant_bytes,
    .kv_calibrate = mirror_kv_calibrate,
    .kv_quantise = mirror_kv_quantise,
    .begin = mirror_begin,
    .submit = mirror_submit,
    .wait = mirror_wait,
    .scratch = mirror_scratch,
    .read_logits = mirror_read_logits,
    .embed = mirror_embed,
    .norm = mirror_norm_rows,
    .matmul = mirror_matmul,
    .glu = mirror_glu,
    .matmul_add = mirror_matmul_add,
    .attention = mirror_attention,
    .index_select = mirror_index_select,
    .conv = mirror_conv,
    .recurrence = mirror_recurrence,
    .mamba = mirror_mamba,
    .rg_lru = mirror_rg_lru,
    .gated_norm = mirror_gated_norm,
    .activate = mirror_activate,
    .multiply = mirror_multiply,
    .route = mirror_route,
    .mix_streams = mirror_mix_streams,
    .match_rms = mirror_match_rms,
    .sparsify = mirror_sparsify,
    .gate_heads = mirror_gate_heads,
    .compress = mirror_compress,
    .compressed_select = mirror_compressed_select,
    .compressed_attention = mirror_compressed_attention,
    .join_groups = mirror_join_groups,
    .hyper_connect = mirror_hyper_connect,
    .scale_queries = mirror_scale_queries,
    .gather = mirror_gather,
    .logits = mirror_logits,
    .add = mirror_add,
    .close = mirror_close,
};

Backend *mirror_open(Backend *inner, Error *error) {
    Mirror *m = calloc(1, sizeof *m);
    mirror_expect(m != NULL, "no memory");
    m->base = *inner;
    m->base.ops = &mirror_ops;
    m->inner = inner;
    m->room = inner->ops->alloc(inner, mirror_room_bytes, MEMORY_STEP, error);
    if (m->room) return &m->base;
    mirror_close(&m->base);
    return NULL;
}
