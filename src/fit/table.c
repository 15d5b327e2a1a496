/* What a model needs, from its Spec and its runner. */
#include <string.h>

#include "backend/plugin.h"
#include "fit/fit.h"
#include "model/component.h"

/* ---- weights by kind ---- */

typedef struct Counting {
    FitModel *model;
    const MoeComponent *moe; /* MoE block of the visited layer; NULL: none */
    uint64_t routed_bytes;
    int moe_layers;
    double dense_step, routed_step; /* bytes of the layers that a token goes through */
} Counting;

static FitKind *kind_of(FitModel *model, const Weight *w, bool routed, double share) {
    for (int i = 0; i < model->kind_count; i++) {
        FitKind *kind = &model->kind[i];
        const bool alike = kind->like.quant == w->quant && kind->like.bits == w->bits && kind->like.group == w->group &&
            kind->like.dtype == w->dtype && kind->routed == routed;
        if (alike || (i == FIT_KINDS_MAX - 1 && kind->routed == routed)) return kind;
    }
    if (model->kind_count == FIT_KINDS_MAX) return &model->kind[0];
    FitKind *kind = &model->kind[model->kind_count++];
    *kind = (FitKind){.like = {.quant = w->quant, .bits = w->bits, .group = w->group, .dtype = w->dtype},
        .routed = routed,
        .share = share};
    return kind;
}

/* A token goes through it `times` times, less than once on average where a router chooses. */
static FitKind *add(Counting *counting, const Weight *w, double times, bool routed) {
    FitKind *kind = kind_of(counting->model, w, routed, routed ? times : 1);
    const Weight *like = &kind->like;
    if (w->rows * w->cols > like->rows * like->cols) {
        kind->like.rows = w->rows;
        kind->like.cols = w->cols;
    }
    kind->bytes += times * (double)weight_bytes(w);
    return kind;
}

static void add_layer(Counting *counting, const Weight *w, double times, bool routed) {
    if (w->rows * w->cols == 0) return;
    FitKind *kind = add(counting, w, times, routed);
    kind->operations += times * 2 * (double)w->rows * (double)w->cols;
    *(routed ? &counting->routed_step : &counting->dense_step) += times * (double)weight_bytes(w);
}

static void add_weight(void *context, Weight *w) { add_layer(context, w, 1, false); }

static void add_bank(void *context, Weight **weights, int count, Split split) {
    Counting *counting = context;
    const MoeComponent *moe = counting->moe;
    const Weight *bank = *weights;
    const bool routed = moe && (bank == moe->gate || bank == moe->up || bank == moe->down);
    for (int i = 0; i < count; i++) {
        const bool chosen = routed && i < moe->experts;
        add_layer(counting, &bank[i], chosen ? (double)moe->top_k / moe->experts : 1, chosen);
        if (!chosen) continue;
        counting->routed_bytes += weight_bytes(&bank[i]);
    }
}

static void count_weights(Counting *counting, const Spec *spec) {
    const Visitor visitor = {.weight = add_weight, .bank = add_bank, .context = counting};
    for (int i = 0; i < spec->layer_count; i++) {
        Layer layer = spec->layers[i];
        counting->moe = layer_moe(&spec->layers[i]);
        layer_visit(&layer, &visitor);
        if (!counting->moe) continue;
        const int top_k = counting->moe->top_k;
        counting->moe_layers++;
        counting->model->experts += counting->moe->experts;
        counting->model->cycle += top_k;
        if (top_k > counting->model->layer_cycle) counting->model->layer_cycle = top_k;
    }
}

/* In a layer four runs of the threads go through its dense weights (q, k, v; o; gate, up; down), two through its
 * experts'; one goes through the output matrix. Those of a kind are taken to be alike, of the mean of its bytes. */
static void count_runs(Counting *counting, const Weight *head) {
    FitModel *model = counting->model;
    const double bytes = (double)weight_bytes(head), dense = counting->dense_step / model->layers / 4;
    const FitKind *of_head = add(counting, head, 1, false);
    for (int k = 0; k < model->kind_count; k++) {
        FitKind *kind = &model->kind[k];
        const double part = kind == of_head ? bytes / kind->bytes : 0;
        kind->run_bytes =
            kind->routed ? counting->routed_step / counting->moe_layers / 2 : (1 - part) * dense + part * bytes;
    }
}

/* ---- all together ---- */

/* An expert is read as its codes, its scales and its biases of three matrices. */
static int parts_of(const FitModel *model) {
    for (int i = 0; i < model->kind_count; i++) {
        const FitKind *kind = &model->kind[i];
        if (kind->routed) return 3 * (kind->like.quant == QUANT_NONE ? 1 : kind->like.quant == QUANT_AFFINE ? 3 : 2);
    }
    return 0;
}

/* What a reader takes in for so many bytes: whole blocks, in which they begin anywhere. A mapped file begins with one.
 */
static uint64_t blocks_of(const void *data, size_t bytes) {
    if (!data) return 0;
    const size_t before = (uintptr_t)data % EXPERT_CACHE_ALIGN;
    return (before + bytes + EXPERT_CACHE_ALIGN - 1) / EXPERT_CACHE_ALIGN * EXPERT_CACHE_ALIGN;
}

static uint64_t blocks_of_weight(const Weight *w) {
    const size_t rows = (size_t)w->rows, scales = weight_scale_bytes(w) * rows;
    return blocks_of(w->data, weight_row_bytes(w) * rows) + blocks_of(w->scales, scales) + blocks_of(w->biases, scales);
}

/* Bytes of the largest expert: every slot of the cache has its size. */
static uint64_t largest_expert(const Spec *spec) {
    uint64_t most = 0;
    for (int i = 0; i < spec->layer_count; i++) {
        const MoeComponent *moe = layer_moe(&spec->layers[i]);
        for (int e = 0; moe && e < moe->experts; e++) {
            const uint64_t bytes = (moe->gate == moe->up ? 0 : blocks_of_weight(&moe->gate[e])) +
                blocks_of_weight(&moe->up[e]) + blocks_of_weight(&moe->down[e]);
            if (bytes > most) most = bytes;
        }
    }
    return most;
}

/* Quantised KV bytes of one sequence of the full context; 0: no layer can be quantised. */
static uint64_t quantised_bytes(const KvPlan *kv) {
    KvFormat turbo;
    CHECK(kv_format_parse("turbo", &turbo, NULL));
    for (int g = 0; g < kv->group_count; g++)
        if (kv->group[g].quantised) return kv_bytes_for(kv, &turbo, kv->context);
    return 0;
}

void fit_model(const Runner *runner, FitModel *out) {
    const Model *model = runner_model(runner);
    const Spec *spec = model_spec(model);
    const KvPlan *kv = runner_kv_plan(runner);
    Counting counting = {.model = out};
    *out = (FitModel){.layers = spec->layer_count, .context = model_context(model)};
    out->precise = spec->precise;
    out->weight_bytes = model_weight_bytes(model);
    count_weights(&counting, spec);
    count_runs(&counting, &spec->head);
    uint64_t resident;
    out->besides_bytes = runner_besides_bytes(runner, &resident);
    out->dense_bytes = model_experts(model) ? resident : resident - counting.routed_bytes;
    out->parts = parts_of(out);
    if (out->experts) out->expert_bytes = largest_expert(spec);
    if (model_experts(model)) out->expert_bytes = model_expert_bytes(model) / (uint64_t)out->experts;
    const Backend *backend = runner_backend(runner);
    out->can_stream = backend->sources && backend->ops->set_rows;
    out->kv_least = kv_bytes_for(kv, NULL, KV_PAGE_TOKENS);
    out->kv_full = kv_bytes_for(kv, NULL, kv->context);
    out->kv_quantised = quantised_bytes(kv);
    out->embedding_bytes = weight_bytes(&spec->embedding);
    out->kv_token_bytes =
        (double)(runner_kv_bytes(runner, KV_PAGE_TOKENS) - runner_kv_bytes(runner, 0)) / KV_PAGE_TOKENS;
}

/* ---- on a GPU ---- */

typedef struct GpuCounting {
    const Plugin *plugin;
    uint64_t bytes;
    int64_t cols_max;
} GpuCounting;

static void add_gpu_weight(void *context, Weight *w) {
    GpuCounting *c = context;
    c->bytes += c->plugin->weight_bytes(w);
    c->cols_max = w->cols > c->cols_max ? w->cols : c->cols_max;
}

static void add_gpu_vector(void *context, const float **vector, int64_t count, Split split) {
    Weight row = {.rows = 1, .cols = count, .dtype = DTYPE_F32};
    add_gpu_weight(context, &row);
}

static void add_gpu_norm(void *context, const Norm **norm) {
    if ((*norm)->weight) add_gpu_vector(context, NULL, (*norm)->width, SPLIT_NONE);
    if ((*norm)->bias) add_gpu_vector(context, NULL, (*norm)->width, SPLIT_NONE);
}

static void add_gpu_rope(void *context, const Rope **rope) {
    add_gpu_vector(context, NULL, (*rope)->dims / 2, SPLIT_NONE);
}

/* As quantised_bytes(), where it has layers. */
static uint64_t gpu_quantised_bytes(const KvPlan *kv, const Plugin *plugin) {
    KvPlan own = *kv;
    for (int i = 0; i < own.entry_count; i++) {
        const KvLayer *entry = &own.entries[i];
        if (own.group[entry->group].quantised && !plugin->code_bytes(&entry->layout, KV_Q4, false))
            own.group[entry->group].quantised = false;
    }
    return quantised_bytes(&own);
}

void fit_model_gpu(const Runner *runner, const Plugin *plugin, FitModel *out) {
    const Spec *spec = model_spec(runner_model(runner));
    GpuCounting c = {.plugin = plugin};
    const Visitor visitor = {
        .weight = add_gpu_weight, .norm = add_gpu_norm, .rope = add_gpu_rope, .vector = add_gpu_vector, .context = &c};
    for (int i = 0; i < spec->layer_count; i++) {
        Layer layer = spec->layers[i];
        c.bytes = 0;
        layer_visit(&layer, &visitor);
        if (c.bytes > out->gpu_layer_bytes) out->gpu_layer_bytes = c.bytes;
    }
    Weight head = spec->head, embedding = spec->embedding;
    c.bytes = 0;
    add_gpu_weight(&c, &head);
    out->gpu_head_bytes = c.bytes;
    out->gpu_embedding_bytes = spec->tied ? 0 : plugin->weight_bytes(&embedding);
    const int rows = runner_backend(runner)->rows_max;
    const uint64_t arrival = (uint64_t)rows * (uint64_t)spec->hidden * sizeof(float);
    out->gpu_kv_quantised = gpu_quantised_bytes(runner_kv_plan(runner), plugin);
    out->gpu_work_bytes = runner_scratch_bytes(runner) + arrival + plugin->work_bytes(rows, c.cols_max);
}
