/* Granite 3 MoE: embeddings, attention, residuals and logits each with a factor of the config; experts in every layer,
 * used with the softmax over the best, in granitemoeshared beside a network that every token passes. Granite SWA, dense
 * (granite_swa) and with experts (granitemoe_swa): windows in most layers, a sink for each head, a rotary embedding of
 * its own theta, or none, in each layer. References: mlx_lm/models/granitemoe.py, transformers/models/granitemoeshared,
 * granite_swa, granitemoe_swa. */
#include "family/granite.h"
#include "family/gguf/models.h"

const MoeNames moe_granite = {"block_sparse_moe", "router.layer", "switch_mlp", "gate_proj", "up_proj", "down_proj",
    .fused = "input_linear", .fused_down = "output_linear"};
static const MoeNames moe_swa = {
    "block_sparse_moe", "router", "experts.switch_glu", "gate_proj", "up_proj", "down_proj", .shared = NULL};

typedef struct Granite {
    Dims d;
    Moe moe; /* experts 0: the family is dense */
    float scale, residual;
    bool bias, mlp_bias;
    const Rope *rope;
    /* Granite SWA. */
    bool sinks;
    Windows windows;
    const Json *thetas; /* layer_rope_theta; NULL: all layers have `rope` */
} Granite;

GluComponent granite_shared(Loader *ld, int hidden, int width) {
    const Activation silu = {.kind = ACT_SILU};
    if (!load_has(ld, "shared_mlp.gate_proj.weight"))
        return family_fused_glu(ld, "shared_mlp.input_linear", "shared_mlp.output_linear", hidden, width, silu, false);
    return (GluComponent){.gate = load_linear(ld, "shared_mlp.gate_proj", width, hidden, false),
        .up = load_linear(ld, "shared_mlp.up_proj", width, hidden, false),
        .down = load_linear(ld, "shared_mlp.output_linear", hidden, width, false),
        .activation = silu};
}

Component granite_mixture(Loader *ld, const Moe *family) {
    MoeComponent moe = family_moe(ld, family);
    if (!family->shared) return (Component){.kind = COMPONENT_MOE, .moe = moe};
    const GluComponent shared = granite_shared(ld, family->hidden, family->shared);
    if (!moe.gate || !moe.up || !moe.down) return (Component){.kind = COMPONENT_MOE}; /* loading has failed */
    moe.shared = 1;
    moe.gate[moe.experts] = shared.gate;
    moe.up[moe.experts] = shared.up;
    moe.down[moe.experts] = shared.down;
    return (Component){.kind = COMPONENT_MOE, .moe = moe};
}

/* The rotary embedding of layer i; NULL: it has none. */
static const Rope *rope_of(Loader *ld, const Granite *g, int i) {
    const double theta = family_number(ld, "layer_rope_theta", g->thetas, i, 0);
    if (!g->thetas) return g->rope;
    return theta > 0 ? load_rope(ld, &(RopeOptions){.head_dim = g->d.head_dim, .own_theta = theta}) : NULL;
}

static Granite load_fields(Loader *ld, Spec *spec, double eps) {
    Granite g = {.d = family_sizes(ld, spec, &(Sizes){.eps = eps}),
        .scale = load_positive_or(ld, "attention_multiplier", 1),
        .residual = load_positive_or(ld, "residual_multiplier", 1),
        .bias = load_bool_or(ld, "attention_bias", false)};
    g.rope = load_rope(ld, &(RopeOptions){.head_dim = g.d.head_dim, .theta = 10000});
    spec->embedding_scale = load_positive_or(ld, "embedding_multiplier", 1);
    spec->logit_scale = 1 / load_positive_or(ld, "logits_scaling", 1);
    load_expect_text(ld, "hidden_act", "silu");
    load_ignore(ld, "output_router_logits", "router_aux_loss_coef", NULL);
    return g;
}

static void load_swa_fields(Loader *ld, const Spec *spec, Granite *g) {
    g->sinks = true;
    g->windows = (Windows){.types = load_list(ld, "layer_types", spec->layer_count),
        .width = load_null(ld, "sliding_window") ? 0 : load_int_or(ld, "sliding_window", 128),
        .pattern = SLICE("GLLL")};
    g->thetas = load_list(ld, "layer_rope_theta", spec->layer_count);
}

static void load_moe(Loader *ld, Granite *g) {
    const bool swa = load_has(ld, "model.layers.0.block_sparse_moe.router.weight");
    g->moe = family_moe_open(ld, swa ? &moe_swa : &moe_granite, g->d.hidden, g->d.intermediate_size,
        load_int(ld, "num_local_experts"), load_int(ld, "num_experts_per_tok"));
    g->moe.moe.score = ROUTE_TOP_SOFTMAX;
    g->moe.shared = load_count_or(ld, "shared_intermediate_size", 0);
}

static void load_layers_of(Loader *ld, Spec *spec, const Granite *g) {
    family_ends(ld, spec, &g->d);
    load_layers(ld, spec);
    for (int i = 0; i < spec->layer_count; i++) {
        family_layer(ld, spec, i);
        Component attention = {.kind = COMPONENT_ATTENTION,
            .attention = family_attention(ld, &g->d, "o_proj", rope_of(ld, g, i), g->bias, g->bias)};
        attention.attention.op.scale = g->scale;
        if (g->sinks) {
            attention.attention.op.window = family_window(ld, &g->windows, i);
            attention.attention.op.sinks = load_vector(ld, "self_attn.sinks", g->d.heads, 0);
        }
        Block block = {.dims = &g->d, .attention = &attention, .mlp_bias = g->mlp_bias, .residual_scale = g->residual};
        const Component mixture = g->moe.hidden ? granite_mixture(ld, &g->moe) : (Component){0};
        if (g->moe.hidden) block.ffn = &mixture;
        family_block(ld, spec, i, &block);
    }
}

static void load_mixture(Loader *ld, Spec *spec) {
    Granite g = load_fields(ld, spec, 1e-6);
    load_moe(ld, &g);
    load_layers_of(ld, spec, &g);
}

static void load_mixture_swa(Loader *ld, Spec *spec) {
    Granite g = load_fields(ld, spec, 1e-6);
    load_swa_fields(ld, spec, &g);
    load_moe(ld, &g);
    load_layers_of(ld, spec, &g);
}

static void load_swa(Loader *ld, Spec *spec) {
    Granite g = load_fields(ld, spec, 1e-5);
    load_swa_fields(ld, spec, &g);
    g.mlp_bias = load_bool_or(ld, "mlp_bias", false);
    load_layers_of(ld, spec, &g);
}

const Family granitemoe_family = {.load = load_mixture, .gguf = &granitemoe_gguf};
const Family granitemoeshared_family = {.load = load_mixture, .gguf = &granitemoeshared_gguf};
const Family granitemoe_swa_family = {.load = load_mixture_swa, .gguf = &granitemoe_swa_gguf};
const Family granite_swa_family = {.load = load_swa, .gguf = &granite_swa_gguf};
