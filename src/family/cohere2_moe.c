/* Command A and North with experts (Cohere): Cohere 2's parallel block, whose network is a mixture beside shared
 * experts behind the first layers, which are dense; weights of the chosen experts alone. Layer norms, or RMS norms if
 * rms_norm_eps is there. Reference: transformers/models/cohere2_moe. */
#include "family/family.h"
#include "family/gguf/models.h"

typedef struct Cohere2Moe {
    Dims d;
    const Json *types, *kinds; /* layer_types, mlp_layer_types; NULL: from the numbers below */
    const Rope *rope;
    NormNames norms;
    Moe moe;
    int dense, dense_size, window, every, dense_every;
    bool bias, average;
} Cohere2Moe;

static Moe load_moe(Loader *ld, const Cohere2Moe *s) {
    Moe moe = family_moe_open(ld, &moe_usual, s->d.hidden, s->d.intermediate_size, load_int_or(ld, "num_experts", 8),
        load_int_or(ld, "num_experts_per_tok", 2));
    const bool sigmoid = load_text_is(ld, "expert_selection_fn", "sigmoid");
    if (!sigmoid) load_expect_text(ld, "expert_selection_fn", "softmax");
    moe.moe.score = sigmoid ? ROUTE_SIGMOID : ROUTE_TOP_SOFTMAX;
    moe.moe.norm_topk_prob = sigmoid && load_bool_or(ld, "norm_topk_prob", true);
    moe.shared = family_moe_shared(ld, s->d.intermediate_size, load_count_or(ld, "num_shared_experts", 0));
    return moe;
}

static Cohere2Moe load_fields(Loader *ld, Spec *spec) {
    const bool rms = load_has_field(ld, "rms_norm_eps");
    Cohere2Moe s = {
        .d = family_sizes(ld, spec, &(Sizes){.eps = 1e-5, .eps_field = rms ? "rms_norm_eps" : "layer_norm_eps"}),
        .norms = {rms ? load_rms : load_layer_norm, .attention_input = "input_layernorm"},
        .types = load_list(ld, "layer_types", spec->layer_count),
        .kinds = load_list(ld, "mlp_layer_types", spec->layer_count),
        .dense = load_count_or(ld, "first_k_dense_replace", 0),
        .window = load_int_or(ld, "sliding_window", 4096),
        .every = load_int_or(ld, "sliding_window_pattern", 4),
        .dense_every = load_int_or(ld, "prefix_dense_sliding_window_pattern", 1),
        .bias = load_bool_or(ld, "attention_bias", false)};
    s.dense_size = load_int_or(ld, "prefix_dense_intermediate_size", s.d.intermediate_size);
    s.rope = load_rope(ld, &(RopeOptions){.head_dim = s.d.head_dim, .theta = 10000, .interleaved = true});
    s.moe = load_moe(ld, &s);
    s.average = s.moe.shared > 0 && !load_text_is(ld, "shared_expert_combination_strategy", "sum");
    if (s.average) load_expect_text(ld, "shared_expert_combination_strategy", "average");
    spec->logit_scale = load_positive_or(ld, "logit_scale", 0.0625);
    load_expect_text(ld, "hidden_act", "silu");
    load_ignore(ld, "rms_norm_eps", "layer_norm_eps", "norm_topk_prob", "shared_expert_combination_strategy",
        "output_router_logits", "num_nextn_predict_layers", NULL);
    load_skip(ld, "model.layers.%d.", spec->layer_count);
    return s;
}

static void load(Loader *ld, Spec *spec) {
    const Cohere2Moe s = load_fields(ld, spec);
    family_ends_as(ld, spec, &s.d, "model.embed_tokens", "model.norm", s.norms.load,
        load_bool_or(ld, "tie_word_embeddings", true));
    load_layers(ld, spec);
    for (int i = 0; i < spec->layer_count; i++) {
        const bool prefix = i < s.dense;
        const bool experts = s.kinds ? family_kind(ld, "mlp_layer_types", s.kinds, i, "sparse", "dense") : !prefix;
        const int place = prefix ? i : i - s.dense;
        const bool slides = s.types ? family_kind(ld, "layer_types", s.types, i, "sliding_attention", "full_attention")
                                    : (place + 1) % (prefix ? s.dense_every : s.every) != 0;
        const bool rotates = slides || (!experts && s.dense_every == 1);
        family_layer(ld, spec, i);
        Component ffn = experts
            ? (Component){.kind = COMPONENT_MOE, .moe = family_moe(ld, &s.moe)}
            : (Component){.kind = COMPONENT_GLU,
                  .glu = family_glu(ld, "mlp", s.d.hidden, s.dense_size, (Activation){.kind = ACT_SILU}, false)};
        ffn.parallel = true;
        Layer *layer = family_block(ld, spec, i,
            &(Block){.dims = &s.d,
                .norms = &s.norms,
                .rope = rotates ? s.rope : NULL,
                .window = slides ? s.window : 0,
                .bias = s.bias,
                .out_bias = s.bias,
                .ffn = &ffn});
        if (experts && s.average) layer->components[1].residual_scale = 0.5f;
    }
}

const Family cohere2_moe_family = {.load = load, .gguf = &cohere2_moe_gguf};
