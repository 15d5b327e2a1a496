#include "family/mla.h"

#include <math.h>
#include <stdio.h>

static Dims load_dims(Loader *ld, Spec *spec) {
    const Dims d = {.hidden = load_int(ld, "hidden_size"),
        .intermediate_size = load_int(ld, "intermediate_size"),
        .eps = load_positive_or(ld, "rms_norm_eps", 1e-6)};
    spec->hidden = d.hidden;
    spec->layer_count = load_int(ld, "num_hidden_layers");
    spec->vocab = load_int(ld, "vocab_size");
    spec->positions = load_int_or(ld, "max_position_embeddings", 2048);
    return d;
}

/* The number of the first layers, which have no experts. */
static int load_dense(Loader *ld, int layers) {
    const Json *kinds = load_list(ld, "mlp_layer_types", layers);
    int dense = load_count_or(ld, "first_k_dense_replace", 0);
    if (!kinds) return dense;
    dense = 0;
    for (int i = 0; i < layers; i++) {
        const bool experts = family_kind(ld, "mlp_layer_types", kinds, i, "sparse", "dense");
        load_require(ld, experts || dense == i, "mlp_layer_types[%d] is dense behind layers that are sparse", i);
        dense += !experts;
    }
    return dense;
}

static MlaFamily load_fields(Loader *ld, Spec *spec, int value_width, bool rotated) {
    MlaFamily s = {.d = load_dims(ld, spec),
        .q_rank = load_count_or(ld, "q_lora_rank", 0),
        .rope_dim = rotated ? load_int_or(ld, "qk_rope_head_dim", 64) : 0,
        .every = load_is_list(ld, "moe_layer_freq") ? 1 : load_int_or(ld, "moe_layer_freq", 1),
        .bias = load_bool_or(ld, "attention_bias", false),
        .latent_eps = 1e-6f};
    s.dense = load_dense(ld, spec->layer_count);
    s.sizes = (HeadSizes){.heads = load_int(ld, "num_attention_heads"),
        .nope_dim = load_int_or(ld, "qk_nope_head_dim", 128),
        .width = load_int_or(ld, "v_head_dim", value_width),
        .latent = load_int_or(ld, "kv_lora_rank", 512)};
    load_require(
        ld, s.sizes.heads <= EXPERTS_MAX, "num_attention_heads is %d, at most %d can be", s.sizes.heads, EXPERTS_MAX);
    if (rotated)
        s.rope = load_rope(ld,
            &(RopeOptions){
                .head_dim = s.rope_dim, .theta = 10000, .interleaved = load_bool_or(ld, "rope_interleave", true)});
    s.scale = load_yarn_attention(ld) / sqrtf((float)(s.sizes.nope_dim + s.rope_dim));
    const int experts = load_count_or(ld, "n_routed_experts", 0), shared = load_count_or(ld, "n_shared_experts", 0);
    s.mixed = experts > 0;
    if (s.mixed)
        s.moe = family_moe_open(ld, &moe_usual, s.d.hidden, load_int(ld, "moe_intermediate_size"), experts,
            load_int_or(ld, "num_experts_per_tok", 1));
    s.moe.shared = family_moe_shared(ld, s.moe.intermediate_size, shared);
    load_expect_text(ld, "hidden_act", "silu");
    load_ignore(ld, "num_key_value_heads", "aux_loss_alpha", "seq_aux", "ep_size", "num_nextn_predict_layers",
        "head_dim", "qk_head_dim", "router_aux_loss_coef", "output_router_logits", NULL);
    load_skip(ld, "model.layers.%d.", spec->layer_count);
    family_ends(ld, spec, &s.d);
    load_layers(ld, spec);
    return s;
}

MlaFamily mla_load_fields(Loader *ld, Spec *spec, int value_width) { return load_fields(ld, spec, value_width, true); }

MlaFamily mla_load_unrotated(Loader *ld, Spec *spec, int value_width) {
    load_require(ld, load_count_or(ld, "qk_rope_head_dim", 0) == 0, "qk_rope_head_dim must be 0");
    return load_fields(ld, spec, value_width, false);
}

void mla_expect_indexed(Loader *ld, const Spec *spec) {
    const Json *types = load_list(ld, "layer_types", spec->layer_count);
    for (int i = 0; types && i < spec->layer_count; i++)
        family_kind(ld, "layer_types", types, i, "indexed_attention", "deepseek_sparse_attention");
}

void mla_load_index(Loader *ld, const Spec *spec, MlaFamily *s, int heads, bool interleaved) {
    const int top_k = load_int_or(ld, "index_topk", 2048), width = load_int_or(ld, "index_head_dim", 128);
    const RopeOptions options = {.head_dim = width, .dims = s->rope_dim, .theta = 10000, .interleaved = interleaved};
    s->index_types = load_list(ld, "indexer_types", spec->layer_count);
    s->index.heads = load_int_or(ld, "index_n_heads", heads);
    load_expect_int(ld, "index_topk_freq", 1);
    load_require(ld, s->q_rank && s->rope_dim <= width && width <= INDEX_WIDTH_MAX,
        "the indexer needs q_lora_rank, and index_head_dim from %d to %d", s->rope_dim, INDEX_WIDTH_MAX);
    const int context = load_context(ld);
    if (context > 0 && context <= top_k) {
        load_skip(ld, ".self_attn.indexer.");
        return;
    }
    s->index.kv.layout = (KvLayout){.kv_heads = 1, .head_dim = width};
    s->index.block = 1;
    s->index.top_k = top_k;
    s->index.rope = load_rope(ld, &options);
}

/* A norm of a low-rank space, with the factor that some models put behind it. */
static const Norm *load_low_rank_norm(Loader *ld, const MlaFamily *s, const char *name, int width, float factor) {
    char weight[64];
    snprintf(weight, sizeof weight, "%s.weight", name);
    return factor > 0 ? load_rms_times(ld, weight, width, s->latent_eps, factor)
                      : load_rms(ld, name, width, s->latent_eps);
}

MlaComponent mla_load_attention(Loader *ld, const MlaFamily *s) {
    const HeadSizes *n = &s->sizes;
    const int64_t q = (int64_t)n->heads * (n->nope_dim + s->rope_dim);
    const KvLayout layout = {.kv_heads = 1, .head_dim = s->rope_dim, .value_dim = n->latent, .latent = true};
    const Weight kv = load_linear(ld, "self_attn.kv_a_proj_with_mqa", n->latent + s->rope_dim, s->d.hidden, s->bias);
    MlaComponent mla = {.op = {.heads = n->heads, .kv.layout = layout, .scale = s->scale, .rope = s->rope},
        .latent = load_part(&kv, 0, n->latent),
        .k = load_part(&kv, n->latent, s->rope_dim),
        .o = load_linear(ld, "self_attn.o_proj", s->d.hidden, (int64_t)n->heads * n->width, s->bias),
        .latent_norm = load_low_rank_norm(ld, s, "self_attn.kv_a_layernorm", n->latent, s->latent_factor)};
    if (s->q_rank) {
        mla.q_a = load_linear(ld, "self_attn.q_a_proj", s->q_rank, s->d.hidden, s->bias);
        mla.q_norm = load_low_rank_norm(ld, s, "self_attn.q_a_layernorm", s->q_rank, s->q_factor);
        mla.joined = s->joined;
        if (!s->joined) mla.q = load_linear(ld, "self_attn.q_b_proj", q, s->q_rank, false);
    } else {
        mla.q = load_linear(ld, "self_attn.q_proj", q, s->d.hidden, false);
    }
    load_mla_heads(ld, "self_attn", n, &mla.w_uk, &mla.w_uv);
    return mla;
}

/* The indexer of the layer in scope, which projects queries from the same low-rank space as the attention. */
static IndexerComponent load_indexer(Loader *ld, const MlaFamily *s, const MlaComponent *mla) {
    const char *q = "self_attn.indexer.wq_b", *k = "self_attn.indexer.wk", *norm = "self_attn.indexer.k_norm";
    const int width = s->index.kv.layout.head_dim, hidden = s->d.hidden;
    const int64_t all = (int64_t)s->index.heads * width;
    const float eps = s->index_eps > 0 ? s->index_eps : 1e-6f;
    IndexerComponent indexer = {.op = s->index, .q_a = mla->q_a, .low_rank_norm = mla->q_norm};
    indexer.head_weights = load_linear(ld, "self_attn.indexer.weights_proj", s->index.heads, hidden, false);
    if (s->index_rope_last) { /* elements change places, the rotated ones first */
        int order[INDEX_WIDTH_MAX];
        for (int i = 0; i < width; i++) order[i] = (i + width - s->rope_dim) % width;
        indexer.q = load_reordered(ld, q, all, s->q_rank, false, order, width);
        indexer.k = load_reordered(ld, k, width, hidden, false, order, width);
        indexer.k_norm = load_layer_norm_reordered(ld, norm, width, eps, order);
    } else {
        indexer.q = load_linear(ld, q, all, s->q_rank, false);
        indexer.k = load_linear(ld, k, width, hidden, false);
        indexer.k_norm = load_layer_norm(ld, norm, width, eps);
    }
    return indexer;
}

Component mla_load_indexed(Loader *ld, Spec *spec, Layer *layer, const MlaFamily *s, int i) {
    Component attention = {.kind = COMPONENT_MLA, .mla = mla_load_attention(ld, s)};
    const bool own = !s->index_types || family_kind(ld, "indexer_types", s->index_types, i, "full", "shared");
    load_require(ld, own || i > 0, "indexer_types[0] must be full");
    if (!s->index.top_k) return attention;
    attention.mla.op.selection = (KeySelection){.block = 1, .groups = 1, .top_k = s->index.top_k};
    if (!own) return attention;
    const Component indexer = {.kind = COMPONENT_INDEXER, .indexer = load_indexer(ld, s, &attention.mla)};
    Component *added = family_add(spec, layer, &indexer);
    if (!s->joined) added->input_norm = load_rms(ld, "input_layernorm", s->d.hidden, s->d.eps);
    return attention;
}

void mla_load_blocks(Loader *ld, Spec *spec, const MlaFamily *s) {
    for (int i = 0; i < spec->layer_count; i++) {
        const bool experts = s->mixed && i >= s->dense && i % s->every == 0;
        Layer *layer = family_layer(ld, spec, i);
        const Component attention = mla_load_indexed(ld, spec, layer, s, i);
        family_block(ld, spec, i,
            &(Block){.dims = &s->d,
                .attention = &attention,
                .moe = experts ? &s->moe : NULL,
                .residual_scale = s->residual_scale});
        if (!s->moe_norm) continue;
        if (experts)
            layer->components[layer->component_count - 1].output_norm =
                load_rms(ld, "post_mlp_layernorm", s->d.hidden, s->d.eps);
        else
            load_leave(ld, "post_mlp_layernorm");
    }
    Spec *mtp = family_nextn(ld, spec, s->d.eps);
    if (!mtp) return;
    MlaFamily own = *s;
    if (!load_has(ld, "self_attn.indexer.wk.weight")) own.index.top_k = 0; /* drafts read all keys */
    own.index_types = NULL;
    const Component attention = mla_load_indexed(ld, mtp, mtp->layers, &own, 0);
    family_block_here(
        ld, mtp, mtp->layers, &(Block){.dims = &s->d, .attention = &attention, .moe = s->mixed ? &s->moe : NULL});
}
