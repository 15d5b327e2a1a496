/* DeepSeek-V4's attention: compressors and the indexer before it (backend/compressed.h). ReLU cuts many of an indexer's
 * scores to 0, the more the fewer heads it has; of equal scores the earliest keys are chosen, where torch's topk takes
 * any: with two heads, 3 of 39 choices of a test differ from transformers', each between scores that are both 0, and no
 * logit by more than 2e-6 when the reference chooses so, too (tools/oracle). */
#include "family/deepseek_v4.h"

#include <math.h>
#include <stdio.h>

static void load_rates(Loader *ld, DeepseekV4 *s) {
    const LoadPlace here = load_place(ld);
    s->sparse_rate = load_int_or(ld, "compress_rate_csa", 4);
    s->heavy_rate = load_int_or(ld, "compress_rate_hca", 128);
    if (!load_has_field(ld, "compress_rates")) return;
    load_enter(ld, "compress_rates", "");
    s->sparse_rate = load_int_or(ld, "compressed_sparse_attention", s->sparse_rate);
    s->heavy_rate = load_int_or(ld, "heavily_compressed_attention", s->heavy_rate);
    load_return(ld, &here);
}

static const Rope *load_own_rope(Loader *ld, int dims, bool compress) {
    return load_rope(ld,
        &(RopeOptions){.head_dim = dims,
            .theta_field = compress ? "compress_rope_theta" : NULL,
            .theta = compress ? 160000 : 10000,
            .interleaved = true,
            .unscaled = !compress,
            .layer_type = compress ? "compress" : "main"});
}

void deepseek_v4_attention_fields(Loader *ld, const Spec *spec, DeepseekV4 *s) {
    s->q_rank = load_int_or(ld, "q_lora_rank", 1024);
    s->o_rank = load_int_or(ld, "o_lora_rank", 1024);
    s->groups = load_int_or(ld, "o_groups", 8);
    s->window = load_int_or(ld, "sliding_window", 128);
    s->types = load_list(ld, "layer_types", spec->layer_count);
    s->ratios = load_list(ld, "compress_ratios", -1);
    load_rates(ld, s);
    s->index.heads = load_int_or(ld, "index_n_heads", 64);
    s->index.top_k = load_int_or(ld, "index_topk", 512);
    s->index.kv.layout.head_dim = load_int_or(ld, "index_head_dim", 128);
    const int64_t packed = (int64_t)(s->index.heads + 15) * s->index.kv.layout.head_dim;
    load_require(ld, spec->positions / s->sparse_rate + KV_PAGE_TOKENS + packed <= INDEX_SCORES_MAX,
        "max_position_embeddings is %d, too much for an indexer of %d heads", spec->positions, s->index.heads);
    const double part = load_number_or(ld, "partial_rotary_factor", 0);
    const int dims = part > 0 ? (int)(s->d.head_dim * fmin(part, 1)) : load_int_or(ld, "qk_rope_head_dim", 64);
    s->main_rope = load_own_rope(ld, dims, false);
    s->compress_rope = s->index.rope = load_own_rope(ld, dims, true);
    load_require(ld, s->types || s->ratios, "layer_types is missing, and compress_ratios too");
    load_require(
        ld, s->d.heads % s->groups == 0, "o_groups is %d, which does not divide %d heads", s->groups, s->d.heads);
    load_require(ld, dims <= s->d.head_dim && dims <= s->index.kv.layout.head_dim && dims % 2 == 0,
        "qk_rope_head_dim is %d, must be even and at most head_dim and index_head_dim", dims);
}

/* compress_ratios have the published rates. */
Kind deepseek_v4_kind(Loader *ld, const DeepseekV4 *s, int i) {
    static const char *const names[] = {
        "sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention"};
    static const int ratios[] = {0, 4, 128};
    const Json *item = s->types ? family_item(s->types, i) : NULL;
    const double ratio = family_number(ld, "compress_ratios", s->ratios, i, -1);
    for (int kind = SLIDING; kind <= HEAVY; kind++)
        if (s->types ? item->type == JSON_STRING && slice_is(json_slice(item), names[kind]) : ratio == ratios[kind])
            return (Kind)kind;
    load_require(ld, false, "%s[%d] names no kind of attention", s->types ? "layer_types" : "compress_ratios", i);
    return SLIDING;
}

static int rate_of(const DeepseekV4 *s, Kind kind) {
    return kind == SLIDING ? 0 : kind == SPARSE ? s->sparse_rate : s->heavy_rate;
}

/* Adds the compressor under HOME, whose keys have this width. Returns its cache entry. */
static int add_compressor(
    Loader *ld, Spec *spec, Layer *layer, const DeepseekV4 *s, const char *home, int width, Kind kind) {
    const int rate = rate_of(s, kind), hidden = s->d.hidden, parts = kind == SPARSE ? 2 : 1;
    char values[64], gates[64], bias[64], norm[64];
    snprintf(values, sizeof values, "%s.wkv", home);
    snprintf(gates, sizeof gates, "%s.wgate", home);
    snprintf(bias, sizeof bias, "%s.ape", home);
    snprintf(norm, sizeof norm, "%s.norm", home);
    load_require(ld, KV_PAGE_TOKENS % rate == 0 && width % rate == 0,
        "a key of %d for each %d positions: %d must be a divisor of %d and of the key's width", width, rate, rate,
        KV_PAGE_TOKENS);
    Component *own = layer_add(spec, layer, COMPONENT_COMPRESSOR);
    layer_add_state(spec, own);
    own->compressor = (CompressorComponent){.values = load_linear(ld, values, (int64_t)parts * width, hidden, false),
        .gates = load_linear(ld, gates, (int64_t)parts * width, hidden, false),
        .op = {.rate = rate,
            .width = width,
            .overlap = kind == SPARSE,
            .position_bias = load_array(ld, bias, rate, (int64_t)parts * width),
            .norm = load_rms(ld, norm, width, s->d.eps),
            .rope = s->compress_rope}};
    own->input_norm = load_rms(ld, "attn_norm", hidden, s->d.eps);
    return own->cache_entry;
}

static void add_indexer(Loader *ld, Spec *spec, Layer *layer, const DeepseekV4 *s,
    const CompressedAttentionComponent *attention, Kind kind) {
    const int width = s->index.kv.layout.head_dim, heads = s->index.heads;
    const int keys = add_compressor(ld, spec, layer, s, "attn.indexer.compressor", width, kind);
    Component *own = layer_add(spec, layer, COMPONENT_INDEXER);
    own->cache_entry = keys;
    spec->cache_entries--;
    own->indexer = (IndexerComponent){.op = s->index,
        .q_a = attention->q_low,
        .low_rank_norm = attention->q_low_norm,
        .q = load_linear(ld, "attn.indexer.wq_b", (int64_t)heads * width, s->q_rank, false),
        .head_weights = load_linear(ld, "attn.indexer.weights_proj", heads, s->d.hidden, false),
        .compressed_rate = rate_of(s, kind)};
    own->input_norm = load_rms(ld, "attn_norm", s->d.hidden, s->d.eps);
}

CompressedAttentionComponent deepseek_v4_attention(Loader *ld, const DeepseekV4 *s, Kind kind) {
    const Dims *d = &s->d;
    const int64_t all = (int64_t)d->heads * d->head_dim, group = all / s->groups;
    CompressedAttentionComponent c = {.q_low = load_linear(ld, "attn.wq_a", s->q_rank, d->hidden, false),
        .q_low_norm = load_rms(ld, "attn.q_norm", s->q_rank, d->eps),
        .q = load_linear(ld, "attn.wq_b", all, s->q_rank, false),
        .k = load_linear(ld, "attn.wkv", d->head_dim, d->hidden, false),
        .o = load_linear(ld, "attn.wo_b", d->hidden, (int64_t)s->groups * s->o_rank, false),
        .op = {.heads = d->heads,
            .width = d->head_dim,
            .window = s->window,
            .groups = s->groups,
            .rate = rate_of(s, kind),
            .top_k = kind == SPARSE ? s->index.top_k : 0,
            .scale = 1 / sqrtf((float)d->head_dim),
            .q_norm = load_rms(ld, NULL, d->head_dim, d->eps),
            .k_norm =
                load_rms(ld, load_has(ld, "attn.norm.weight") ? "attn.norm" : "attn.kv_norm", d->head_dim, d->eps),
            .rope = kind == SLIDING ? s->main_rope : s->compress_rope,
            .sinks = load_vector(ld, "attn.attn_sink", d->heads, 0)}};
    if (s->mlx) {
        c.o_low = load_experts(ld, "attn.wo_a", NULL, s->groups, 0, s->o_rank, group, false);
    } else {
        const Weight low = load_linear(ld, "attn.wo_a", (int64_t)s->groups * s->o_rank, group, false);
        c.o_low = load_split(ld, &low, s->groups);
    }
    return c;
}

int deepseek_v4_compressors(Loader *ld, Spec *spec, Layer *layer, const DeepseekV4 *s,
    const CompressedAttentionComponent *attention, Kind kind) {
    if (kind == SLIDING) return -1;
    const int keys = add_compressor(ld, spec, layer, s, "attn.compressor", s->d.head_dim, kind);
    if (kind == SPARSE) add_indexer(ld, spec, layer, s, attention, kind);
    return keys;
}
