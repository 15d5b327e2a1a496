/* The fields of dots3 note: sizes of layers with a window under names of their own, or, as transformers saves them, for
 * each layer. */
#include "family/dots3_note.h"

#include <math.h>
#include <stdio.h>

static void scale_norms(MlaFamily *s) {
    s->scale = 1 / sqrtf((float)(s->sizes.nope_dim + s->rope_dim));
    s->q_factor = sqrtf((float)s->d.hidden / (float)s->q_rank);
    s->latent_factor = sqrtf((float)s->d.hidden / (float)s->sizes.latent);
}

static const Rope *rope_of(Loader *ld, int dims, const char *type, const char *theta_field, double theta) {
    return load_rope(ld,
        &(RopeOptions){
            .head_dim = dims, .layer_type = type, .theta_field = theta_field, .theta = theta, .interleaved = true});
}

/* Sizes of layers with a window, whose names begin so; absent: as the others'. */
static void load_sliding(Loader *ld, MlaFamily *s, const char *prefix, const MlaFamily *absent) {
    const struct {
        const char *name;
        int *to, absent;
    } fields[] = {{"num_attention_heads", &s->sizes.heads, absent ? absent->sizes.heads : 64},
        {"q_lora_rank", &s->q_rank, absent ? absent->q_rank : 1024},
        {"kv_lora_rank", &s->sizes.latent, absent ? absent->sizes.latent : 1024},
        {"qk_nope_head_dim", &s->sizes.nope_dim, absent ? absent->sizes.nope_dim : 192},
        {"v_head_dim", &s->sizes.width, absent ? absent->sizes.width : 128}};
    char name[64], heads[64], head_dim[64];
    for (size_t i = 0; i < COUNT_OF(fields); i++) {
        snprintf(name, sizeof name, "%s%s", prefix, fields[i].name);
        *fields[i].to = load_int_or(ld, name, fields[i].absent);
    }
    snprintf(name, sizeof name, "%sqk_rope_head_dim", prefix);
    snprintf(heads, sizeof heads, "%snum_key_value_heads", prefix);
    snprintf(head_dim, sizeof head_dim, "%shead_dim", prefix);
    const int width = absent ? 0 : load_int_or(ld, head_dim, 256);
    s->rope_dim = load_int_or(ld, name, absent ? absent->rope_dim : width - s->sizes.nope_dim);
    load_ignore(ld, heads, head_dim, NULL);
    load_require(ld, s->rope_dim > 0 && s->sizes.heads <= EXPERTS_MAX,
        "%sqk_rope_head_dim is %d, and there are %d heads", prefix, s->rope_dim, s->sizes.heads);
}

static void load_indexer(Loader *ld, const Spec *spec, Dots3 *s) {
    const bool said = load_has_field(ld, "use_dsa");
    s->literal = !said && s->saved;
    s->indexed = load_bool_or(ld, "use_dsa", true);
    mla_load_index(ld, spec, &s->full, 64, load_bool_or(ld, "indexer_rope_interleave", true));
    if (!s->full.index.top_k) return;
    const RopeOptions options = {.head_dim = s->full.index.kv.layout.head_dim,
        .dims = s->full.rope_dim,
        .layer_type = "indexed_attention",
        .theta = 8e7,
        .interleaved = load_bool_or(ld, "indexer_rope_interleave", true)};
    s->full.index.rope = load_rope(ld, &options);
}

Dots3 dots3_note_fields(Loader *ld, Spec *spec) {
    Dots3 s = {.full = mla_load_fields(ld, spec, 128), .saved = load_has_field(ld, "per_layer_config")};
    MlaFamily *full = &s.full;
    const int shared = load_int_or(ld, "shared_experts_intermediate_size", 1536);
    load_require(ld, full->q_rank > 0 && full->mixed, "q_lora_rank and n_routed_experts must be there");
    s.types = load_list(ld, "layer_types", spec->layer_count);
    s.windows = load_bool_or(ld, "use_sliding_window", true);
    s.window = load_int_or(ld, "sliding_window", load_int_or(ld, "sliding_window_size", 512));
    if (load_is_list(ld, "moe_layer_freq")) s.experts = load_list(ld, "moe_layer_freq", spec->layer_count);
    if (!load_has_field(ld, "first_k_dense_replace") && !load_has_field(ld, "mlp_layer_types")) full->dense = 1;
    full->latent_eps = full->d.eps;
    full->moe.names = moe_deepseek;
    family_moe_sigmoid(ld, &full->moe);
    full->moe.moe.norm_topk_prob = load_bool_or(ld, "norm_topk_prob", true); /* even where one expert is chosen */
    full->moe.shared = family_moe_shared(
        ld, load_int_or(ld, "moe_shared_expert_intermediate_size", shared), load_int_or(ld, "n_shared_experts", 1));
    load_expect_bool(ld, "mlp_bias", false);
    load_expect_text(ld, "scoring_func", "sigmoid");
    load_indexer(ld, spec, &s);
    if (full->q_rank) scale_norms(full);
    s.sliding = *full;
    s.sliding.index.top_k = 0;
    if (!s.saved) load_sliding(ld, &s.sliding, "swa_", NULL);
    return s;
}

bool dots3_note_sliding(Loader *ld, const Dots3 *s, int i) {
    if (!s->types) return s->windows && i >= 2 && i % 4 != 1;
    const Json *type = family_item(s->types, i);
    return type->type == JSON_STRING && slice_is(json_slice(type), "sliding_attention");
}

MlaFamily dots3_note_layer(Loader *ld, const Dots3 *s, int i) {
    if (!dots3_note_sliding(ld, s, i)) {
        const bool named =
            s->types && family_kind(ld, "layer_types", s->types, i, "full_attention", "indexed_attention");
        const bool indexed = s->literal ? !named : s->indexed;
        MlaFamily own = s->full;
        own.rope = rope_of(ld, own.rope_dim, indexed ? "indexed_attention" : "full_attention", NULL, 8e7);
        if (!indexed) own.index.top_k = 0;
        return own;
    }
    MlaFamily own = s->sliding;
    if (s->saved) {
        const LoadPlace here = load_place(ld);
        char number[16];
        snprintf(number, sizeof number, "%d", i);
        load_enter(ld, "per_layer_config", "");
        if (load_has_field(ld, number)) {
            load_enter(ld, number, "");
            load_sliding(ld, &own, "", &s->full);
        }
        load_return(ld, &here);
    }
    own.rope = rope_of(ld, own.rope_dim, "sliding_attention", "swa_rope_theta", 50000);
    scale_norms(&own);
    return own;
}
