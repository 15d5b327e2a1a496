/* The attention of GLM-5.3-Flash, and its fields. */
#include "family/glm5_next.h"

#include <math.h>

enum { IDLE = 8 }; /* elements of a key that is 0, as latent attention has a rotary one */

/* The angle of its pair is always 0. */
static const float zero[1];
static const Rope still = {.dims = 2, .interleaved = true, .frequencies = zero, .scale = 1};

static void load_delta_fields(Loader *ld, Glm5 *s) {
    const LoadPlace here = load_place(ld);
    s->delta = (DeltaAttention){.hidden = s->mla.d.hidden, .eps = s->mla.d.eps};
    if (load_has_field(ld, "linear_attn_config")) {
        static const LoadName names[] = {{"linear_num_heads", "num_heads"}, {"linear_head_dim", "head_dim"},
            {"linear_conv_kernel_dim", "short_conv_kernel_size"}, {"linear_lower_bound", "gate_lower_bound"}, {0}};
        load_enter(ld, "linear_attn_config", "");
        load_field_names(ld, names);
        load_expect_bool(ld, "safe_gate", true);
        load_ignore(ld, "kda_layers", "full_attn_layers", NULL);
    }
    s->delta.heads = load_int_or(ld, "linear_num_heads", 64);
    s->delta.head_dim = load_int_or(ld, "linear_head_dim", 128);
    s->delta.taps = load_int_or(ld, "linear_conv_kernel_dim", 4);
    s->delta.bound = -load_negative_or(ld, "linear_lower_bound", -5);
    load_field_names(ld, NULL);
    load_return(ld, &here);
    family_check_recurrence(
        ld, "delta attention", s->delta.heads, s->delta.heads, s->delta.head_dim, s->delta.head_dim);
    family_check_taps(ld, s->delta.taps);
}

static void load_index_fields(Loader *ld, const Spec *spec, Glm5 *s) {
    const int top_k = load_int_or(ld, "index_topk", 2048), context = load_context(ld);
    s->pool = load_int_or(ld, "index_kpool", 16);
    s->index_heads = load_int_or(ld, "index_n_heads", 32);
    s->index_width = load_int_or(ld, "index_head_dim", 128);
    s->mla.index_types = load_list(ld, "indexer_types", spec->layer_count);
    load_require(ld, s->pool > 1 && KV_PAGE_TOKENS % s->pool == 0 && s->index_width % s->pool == 0,
        "index_kpool is %d: it must be a divisor of %d and of index_head_dim, and more than 1", s->pool,
        KV_PAGE_TOKENS);
    load_require(ld, top_k % s->pool == 0, "index_topk is %d, which index_kpool does not divide", top_k);
    load_require(ld, s->mla.index_types || !load_has_field(ld, "index_topk_pattern"),
        "index_topk_pattern is not supported without indexer_types");
    if (!s->mla.index_types) load_expect_int(ld, "index_topk_freq", 1);
    load_expect_bool(ld, "index_kpool_always_select_tail", true);
    load_ignore(
        ld, "index_topk_pattern", "index_topk_freq", "index_skip_topk_offset", "index_share_for_mtp_iteration", NULL);
    if (context > 0 && context <= top_k)
        load_skip(ld, ".self_attn.indexer.");
    else
        s->index_top_k = s->pool ? top_k / s->pool : 0;
}

Glm5 glm5_next_fields(Loader *ld, Spec *spec) {
    Glm5 s = {.mla = mla_load_unrotated(ld, spec, 256)};
    MoeComponent *moe = &s.mla.moe.moe;
    const float limit = load_positive_or(ld, "swiglu_limit", 10);
    s.types = load_list(ld, "layer_types", spec->layer_count);
    load_require(ld, s.mla.q_rank && s.mla.mixed, "q_lora_rank and n_routed_experts must be there");
    if (!load_has_field(ld, "first_k_dense_replace") && !load_has_field(ld, "mlp_layer_types")) s.mla.dense = 3;
    s.mla.latent_eps = s.mla.d.eps;
    s.mla.moe.names = moe_deepseek;
    family_moe_sigmoid(ld, &s.mla.moe);
    moe->norm_topk_prob = load_bool_or(ld, "norm_topk_prob", true); /* even where one expert is chosen */
    moe->scale = load_positive_or(ld, "routed_scaling_factor", 2.5);
    moe->activation = (Activation){ACT_SILU_LIMITED, .a = limit, .b = limit};
    load_expect_text(ld, "scoring_func", "sigmoid");
    load_delta_fields(ld, &s);
    load_index_fields(ld, spec, &s);
    spec->hyper.streams = load_int_or(ld, "hc_mult", 4);
    spec->hyper.iterations = load_int_or(ld, "hc_sinkhorn_iters", 20);
    spec->hyper.eps = load_positive_or(ld, "hc_eps", 1e-6);
    load_require(
        ld, spec->hyper.streams <= STREAMS_MAX, "hc_mult is %d, at most %d can be", spec->hyper.streams, STREAMS_MAX);
    return s;
}

/* Queries have, in place of elements for a rotary key, rows of other heads: their key is 0. */
MlaComponent glm5_next_latent(Loader *ld, const Glm5 *s) {
    const HeadSizes *n = &s->mla.sizes;
    const KvLayout layout = {.kv_heads = 1, .head_dim = IDLE, .value_dim = n->latent, .latent = true};
    const int64_t hidden = s->mla.d.hidden, rows = (int64_t)n->heads * n->nope_dim;
    MlaComponent mla = {.op = {.heads = n->heads, .kv.layout = layout, .scale = s->mla.scale},
        .q_a = load_linear(ld, "self_attn.q_a_proj", s->mla.q_rank, hidden, s->mla.bias),
        .q_norm = load_rms(ld, "self_attn.q_a_layernorm", s->mla.q_rank, s->mla.latent_eps),
        .q = load_row_blocks(ld, "self_attn.q_b_proj", rows, s->mla.q_rank, false,
            (RowBlocks){.size = n->nope_dim + IDLE, .stride = n->nope_dim, .count = n->heads}),
        .k = {.rows = IDLE, .cols = hidden, .dtype = DTYPE_F32, .data = load_floats(ld, IDLE * hidden)},
        .latent = load_linear(ld, "self_attn.kv_a_proj_with_mqa", n->latent, hidden, s->mla.bias),
        .latent_norm = load_rms(ld, "self_attn.kv_a_layernorm", n->latent, s->mla.latent_eps),
        .o = load_linear(ld, "self_attn.o_proj", hidden, (int64_t)n->heads * n->width, s->mla.bias)};
    load_mla_heads(ld, "self_attn", n, &mla.w_uk, &mla.w_uv);
    if (s->index_top_k) mla.op.selection = (KeySelection){.block = s->pool, .groups = 1, .top_k = s->index_top_k + 1};
    return mla;
}

void glm5_next_indexer(Loader *ld, Spec *spec, Layer *layer, const Glm5 *s, const MlaComponent *mla) {
    const int width = s->index_width, hidden = s->mla.d.hidden;
    const Norm *norm = load_rms(ld, "input_layernorm", hidden, s->mla.d.eps);
    Component *keys = layer_add(spec, layer, COMPONENT_COMPRESSOR);
    layer_add_state(spec, keys);
    keys->input_norm = norm;
    keys->compressor = (CompressorComponent){.values = load_linear(ld, "self_attn.indexer.wk", width, hidden, false),
        .gates = load_linear(ld, "self_attn.indexer.index_kpool_compress_gate", width, hidden, false),
        .value_norm = load_layer_norm(ld, "self_attn.indexer.k_norm", width, 1e-6f),
        .op = {.rate = s->pool,
            .width = width,
            .position_bias = load_array(ld, "self_attn.indexer.index_kpool_compress_ape", s->pool, width),
            .rope = &still}};
    const int entry = keys->cache_entry;
    Component *own = layer_add(spec, layer, COMPONENT_INDEXER);
    own->cache_entry = entry;
    spec->cache_entries--;
    own->input_norm = norm;
    own->indexer = (IndexerComponent){.op = {.kv.layout = {.kv_heads = 1, .head_dim = width},
                                          .heads = s->index_heads,
                                          .top_k = s->index_top_k,
                                          .rope = &still},
        .q_a = mla->q_a,
        .low_rank_norm = mla->q_norm,
        .q = load_linear(ld, "self_attn.indexer.wq_b", (int64_t)s->index_heads * width, s->mla.q_rank, false),
        .head_weights = load_linear(ld, "self_attn.indexer.weights_proj", s->index_heads, hidden, false),
        .compressed_rate = s->pool,
        .tail = true};
}
