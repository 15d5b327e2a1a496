/* Llama 4: most layers rotate and see the keys of their own chunk of the text; the others see all, with queries that
 * grow with the position. Experts beside a shared one, whose inputs are weighed. The dense text models (MobileLLM-R1)
 * have no experts and no chunks. References: transformers/models/llama4 (what it was trained as: the norm of q and k
 * has the model's eps); mlx_lm/models/llama4_text.py for dense models. */
#include "family/family.h"
#include "family/gguf/models.h"

typedef struct Llama4 {
    Dims d;
    const Rope *rope;
    QueryScaling scaling; /* in layers that do not rotate */
    const Json *rotates;  /* for each layer; NULL: all but every `plain_every`th */
    const Json *types;    /* the same with names; NULL: those that rotate have chunks */
    const Json *experts;  /* numbers of layers; NULL: every `every`th */
    int plain_every, every, chunk, dense_size;
    bool norms, bias, mixed;
    Moe moe;
} Llama4;

static void load_ends(Loader *ld, Spec *spec, const Dims *d, bool tied) {
    load_scope(ld, "%s", "");
    spec->embedding = load_linear(ld, "model.embed_tokens", spec->vocab, d->hidden, false);
    spec->final_norm = load_rms(ld, "model.norm", d->hidden, d->eps);
    spec->tied = load_bool_or(ld, "tie_word_embeddings", tied);
    const char *head = load_has(ld, "lm_head.weight") ? "lm_head" : "output"; /* before and after MLX */
    spec->head = spec->tied ? spec->embedding : load_linear(ld, head, spec->vocab, d->hidden, false);
}

static Llama4 load_fields(Loader *ld, Spec *spec) {
    Llama4 s = {.d = family_sizes(ld, spec, &(Sizes){.eps = 1e-5}),
        .rotates = load_list(ld, "no_rope_layers", -1),
        .types = load_list(ld, "layer_types", spec->layer_count),
        .experts = load_list(ld, "moe_layers", -1),
        .plain_every = load_int_or(ld, "no_rope_layer_interval", 4),
        .every = load_int_or(ld, "interleave_moe_layer_step", 1),
        .dense_size = load_int(ld, "intermediate_size_mlp"),
        .norms = load_bool_or(ld, "use_qk_norm", true),
        .bias = load_bool_or(ld, "attention_bias", false)};
    const int experts = load_count_or(ld, "num_local_experts", 0);
    s.mixed = experts > 0;
    if (s.rotates && !s.rotates->size) s.rotates = NULL;
    if (s.rotates) s.rotates = load_list(ld, "no_rope_layers", spec->layer_count);
    s.chunk = load_null(ld, "attention_chunk_size") ? 0 : load_count_or(ld, "attention_chunk_size", s.mixed ? 8192 : 0);
    s.rope = load_rope(ld, &(RopeOptions){.head_dim = s.d.head_dim, .theta = 500000, .interleaved = true});
    const float scale = load_positive_or(ld, "attn_scale", 0.1);
    const int length = load_int_or(ld, "floor_scale", 8192);
    if (load_truth_or(ld, "attn_temperature_tuning", s.mixed)) s.scaling = (QueryScaling){scale, length, 1};
    load_expect_text(ld, "hidden_act", "silu");
    load_ignore(ld, "router_aux_loss_coef", "router_jitter_noise", "output_router_logits", "for_llm_compressor", NULL);
    if (!s.mixed) return s;
    static const MoeNames names = {"feed_forward", "router", "experts", "gate_proj", "up_proj", "down_proj",
        "shared_expert", .fused_transposed = true};
    s.moe = family_moe_open(
        ld, &names, s.d.hidden, s.d.intermediate_size, experts, load_int_or(ld, "num_experts_per_tok", 1));
    s.moe.moe.score = ROUTE_SIGMOID;
    s.moe.moe.weigh_inputs = true;
    s.moe.shared = s.d.intermediate_size;
    return s;
}

static bool is_chunked(Loader *ld, const Llama4 *s, int i, bool rotates) {
    if (!s->types) return rotates && s->chunk > 0;
    const bool chunked = family_kind(ld, "layer_types", s->types, i, "chunked_attention", "full_attention");
    load_require(ld, !chunked || s->chunk > 0, "layer_types[%d] is chunked_attention without attention_chunk_size", i);
    return chunked;
}

static void load_layer(Loader *ld, Spec *spec, const Llama4 *s, int i) {
    const bool rotates = s->rotates ? family_flag(ld, "no_rope_layers", s->rotates, i) : (i + 1) % s->plain_every != 0;
    const bool experts = s->mixed && (s->experts ? family_listed(s->experts, i) : (i + 1) % s->every == 0);
    family_layer(ld, spec, i);
    Component attention = {.kind = COMPONENT_ATTENTION,
        .attention = family_attention(ld, &s->d, "o_proj", rotates ? s->rope : NULL, s->bias, s->bias)};
    AttentionComponent *own = &attention.attention;
    if (s->norms && (rotates || (!s->mixed && s->scaling.scale == 0)))
        own->op.q_norm = own->op.k_norm = load_rms(ld, NULL, s->d.head_dim, s->d.eps);
    if (!rotates) own->query_scaling = s->scaling;
    own->op.chunked = is_chunked(ld, s, i, rotates);
    own->op.window = own->op.chunked ? s->chunk : 0;
    const Component ffn = experts
        ? (Component){.kind = COMPONENT_MOE, .moe = family_moe(ld, &s->moe)}
        : (Component){.kind = COMPONENT_GLU,
              .glu = family_glu(ld, "feed_forward", s->d.hidden, s->dense_size, (Activation){.kind = ACT_SILU}, false)};
    family_block(ld, spec, i, &(Block){.dims = &s->d, .attention = &attention, .ffn = &ffn});
}

static void load(Loader *ld, Spec *spec) {
    load_text_part(ld);
    const Llama4 s = load_fields(ld, spec);
    load_ends(ld, spec, &s.d, !s.mixed);
    load_layers(ld, spec);
    for (int i = 0; i < spec->layer_count; i++) load_layer(ld, spec, &s, i);
}

const Family llama4_family = {.load = load, .gguf = &llama4_gguf};
