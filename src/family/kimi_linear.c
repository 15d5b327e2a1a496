/* Kimi-Linear: Kimi delta attention, a delta net whose decay each element of a key has for itself, and multi-head
 * latent attention without positions; experts behind the first layers. References: mlx_lm/models/kimi_linear.py; the
 * epsilon of the latent's norm: transformers/models/kimi_linear. */
#include "family/recurrent.h"
#include "family/gguf/models.h"

#include <math.h>
#include <stdio.h>

/* MLX's names are moe_usual's; these are the publisher's. */
static const MoeNames published = {"block_sparse_moe", "gate", "switch_mlp", "w1", "w3", "w2", "shared_experts",
    .bias = "gate.e_score_correction_bias"};

typedef struct Kimi {
    Dims d;
    HeadSizes sizes;
    int extra; /* elements of a head's query that all heads compare with one key */
    DeltaAttention delta;
    const Json *delta_layers, *types; /* numbers from 1 on; or names */
} Kimi;

static Component load_latent(Loader *ld, const Kimi *k) {
    const HeadSizes *n = &k->sizes;
    const KvLayout layout = {.kv_heads = 1, .head_dim = k->extra, .value_dim = n->latent, .latent = true};
    const Weight kv = load_linear(ld, "self_attn.kv_a_proj_with_mqa", n->latent + k->extra, k->d.hidden, false);
    MlaComponent mla = {
        .op = {.heads = n->heads, .kv.layout = layout, .scale = 1 / sqrtf((float)(n->nope_dim + k->extra))},
        .q = load_linear(ld, "self_attn.q_proj", (int64_t)n->heads * (n->nope_dim + k->extra), k->d.hidden, false),
        .latent = load_part(&kv, 0, n->latent),
        .k = load_part(&kv, n->latent, k->extra),
        .o = load_linear(ld, "self_attn.o_proj", k->d.hidden, (int64_t)n->heads * n->width, false),
        .latent_norm = load_rms(ld, "self_attn.kv_a_layernorm", n->latent, 1e-6f)};
    load_mla_heads(ld, "self_attn", n, &mla.w_uk, &mla.w_uv);
    return (Component){.kind = COMPONENT_MLA, .mla = mla};
}

/* Publishers have the sizes in an object of their own, transformers saves them beside the others. */
static void load_delta_fields(Loader *ld, Kimi *k) {
    const LoadPlace place = load_place(ld);
    if (load_has_field(ld, "linear_attn_config")) {
        load_enter(ld, "linear_attn_config", "");
        k->delta.heads = load_int(ld, "num_heads");
        k->delta.head_dim = load_int(ld, "head_dim");
        k->delta.taps = load_int_or(ld, "short_conv_kernel_size", 4);
        k->delta_layers = load_list(ld, "kda_layers", -1);
        load_ignore(ld, "full_attn_layers", NULL);
        load_return(ld, &place);
    } else {
        k->delta.heads = load_int(ld, "linear_num_heads");
        k->delta.head_dim = load_int(ld, "linear_head_dim");
        k->delta.taps = load_int_or(ld, "linear_conv_kernel_dim", 4);
    }
    load_require(ld, k->delta_layers || k->types, "kda_layers is missing, and layer_types too");
    family_check_recurrence(
        ld, "delta attention", k->delta.heads, k->delta.heads, k->delta.head_dim, k->delta.head_dim);
    family_check_taps(ld, k->delta.taps);
}

static Kimi load_fields(Loader *ld, Spec *spec) {
    Kimi k = {.d = {.hidden = load_int(ld, "hidden_size"),
                  .intermediate_size = load_int(ld, "intermediate_size"),
                  .eps = load_positive_or(ld, "rms_norm_eps", 1e-5)},
        .extra = load_int_or(ld, "qk_rope_head_dim", 64)};
    k.delta = (DeltaAttention){.hidden = k.d.hidden, .eps = k.d.eps};
    const int head_dim = load_int_or(ld, "head_dim", 128);
    k.sizes = (HeadSizes){.heads = load_int(ld, "num_attention_heads"),
        .nope_dim = load_int_or(ld, "qk_nope_head_dim", head_dim),
        .width = load_int_or(ld, "v_head_dim", head_dim),
        .latent = load_int(ld, "kv_lora_rank")};
    spec->hidden = k.d.hidden;
    spec->layer_count = load_int(ld, "num_hidden_layers");
    spec->vocab = load_int(ld, "vocab_size");
    spec->positions = load_int_or(ld, "model_max_length", load_int_or(ld, "max_position_embeddings", 1 << 20));
    k.types = load_list(ld, "layer_types", spec->layer_count);
    load_delta_fields(ld, &k);
    load_expect_text(ld, "hidden_act", "silu");
    load_expect_bool(ld, "mla_use_nope", true);
    load_require(ld, load_count_or(ld, "q_lora_rank", 0) == 0, "q_lora_rank is not supported");
    load_ignore(ld, "num_key_value_heads", "rope_theta", "rope_scaling", "moe_layer_freq", "use_grouped_topk",
        "first_k_dense_replace", "num_nextn_predict_layers", "q_lora_rank", "linear_num_heads", "linear_head_dim",
        "linear_conv_kernel_dim", "qk_head_dim", "output_router_logits", NULL);
    load_expect_bool(ld, "attention_bias", false);
    load_skip(ld, "model.mtp");
    return k;
}

static Moe load_moe(Loader *ld, const Kimi *k) {
    static const LoadName fields[] = {{"n_group", "num_expert_group"}, {"norm_topk_prob", "moe_renormalize"}, {0}};
    load_field_names(ld, fields);
    Moe moe = family_moe_open(ld, &moe_usual, k->d.hidden, load_int(ld, "moe_intermediate_size"),
        load_int(ld, "num_experts"), load_int_or(ld, "num_experts_per_token", 1));
    const bool softmax = load_text_is(ld, "moe_router_activation_func", "softmax");
    if (!softmax) load_expect_text(ld, "moe_router_activation_func", "sigmoid");
    family_moe_sigmoid(ld, &moe);
    if (softmax) moe.moe.score = ROUTE_SOFTMAX;
    moe.shared = family_moe_shared(ld, moe.intermediate_size, load_count_or(ld, "num_shared_experts", 0));
    return moe;
}

/* transformers saves it with the name that the publisher's files have for experts. */
static Component load_dense(Loader *ld, const Kimi *k) {
    const char *home = load_has(ld, "block_sparse_moe.gate_proj.weight") ? "block_sparse_moe" : "mlp";
    return (Component){.kind = COMPONENT_GLU,
        .glu = family_glu(ld, home, k->d.hidden, k->d.intermediate_size, (Activation){.kind = ACT_SILU}, false)};
}

static void load(Loader *ld, Spec *spec) {
    const Kimi k = load_fields(ld, spec);
    Moe moe = load_moe(ld, &k);
    const int dense = load_count_or(ld, "first_k_dense_replace", 0), every = load_int_or(ld, "moe_layer_freq", 1);
    const Json *mlps = load_list(ld, "mlp_layer_types", spec->layer_count);
    family_ends(ld, spec, &k.d);
    /* transformers never ties */
    if (spec->tied && load_has(ld, "lm_head.weight")) family_head(ld, spec, &k.d, false);
    load_layers(ld, spec);
    for (int i = 0; i < spec->layer_count; i++) {
        family_layer(ld, spec, i);
        const bool delta = k.delta_layers
            ? family_listed(k.delta_layers, i + 1)
            : k.types && family_is_recurrent(ld, "layer_types", k.types, i, "linear_attention", "full_attention");
        const bool mixture =
            mlps ? family_kind(ld, "mlp_layer_types", mlps, i, "sparse", "dense") : i >= dense && i % every == 0;
        const Component mixer = delta ? family_delta_attention(ld, &k.delta) : load_latent(ld, &k);
        moe.names = load_has(ld, "block_sparse_moe.gate.weight") ? published : moe_usual;
        if (!moe.names.bias) moe.names.bias = "e_score_correction_bias";
        const Component dense_ffn = mixture ? (Component){0} : load_dense(ld, &k);
        family_block(ld, spec, i,
            &(Block){
                .dims = &k.d, .attention = &mixer, .ffn = mixture ? NULL : &dense_ffn, .moe = mixture ? &moe : NULL});
    }
}

const Family kimi_linear_family = {.load = load, .gguf = &kimi_linear_gguf};
