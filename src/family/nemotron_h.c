/* Nemotron-H: one component a layer, which hybrid_override_pattern names: Mamba-2 (M), attention without positions (*),
 * a network with squared ReLU (-), experts with the same (E), which may work in a smaller space. References:
 * mlx_lm/models/nemotron_h.py; the time step has the limits of time_step_limit alone: transformers/models/nemotron_h
 * applies time_step_min, too, which the model was initialised with, not trained. Whether projections of Mamba-2 and of
 * attention have biases is seen in the file: the references read different fields. */
#include "family/gguf/models.h"
#include "family/recurrent.h"

#include <string.h>

typedef struct Nemotron {
    Dims d;
    Mamba2 mamba;
    Moe moe;
    int latent, shared; /* widths; 0: experts read the residual; there is no shared expert */
    bool mlp_bias;
} Nemotron;

/* M, *, - or E of layer i. */
static char kind_of(Loader *ld, Slice pattern, const Json *types, int i) {
    static const struct {
        const char *name;
        char kind;
    } names[] = {{"mamba", 'M'}, {"linear_attention", 'M'}, {"attention", '*'}, {"full_attention", '*'}, {"mlp", '-'},
        {"moe", 'E'}};
    const Json *item = types ? family_item(types, i) : NULL;
    const Slice name = item && item->type == JSON_STRING ? json_slice(item) : (Slice){0};
    for (size_t n = 0; n < COUNT_OF(names); n++)
        if (slice_is(name, names[n].name)) return names[n].kind;
    const Slice own = item ? name : (Slice){pattern.data + i, 1};
    const bool known = own.size == 1 && memchr("M*-E", own.data[0], 4);
    load_require(ld, known, "layer %d is \"%.*s\", must be M, *, - or E", i, SLICE_SHOWN(own));
    return known ? own.data[0] : '-';
}

static Component load_attention(Loader *ld, const Nemotron *m) {
    const Dims *d = &m->d;
    const int64_t q = (int64_t)d->heads * d->head_dim, kv = (int64_t)d->kv_heads * d->head_dim;
    const bool bias = load_has(ld, "mixer.q_proj.bias");
    AttentionComponent a = family_attention_op(d, NULL);
    a.q = load_linear(ld, "mixer.q_proj", q, d->hidden, bias);
    a.k = load_linear(ld, "mixer.k_proj", kv, d->hidden, bias);
    a.v = load_linear(ld, "mixer.v_proj", kv, d->hidden, bias);
    a.o = load_linear(ld, "mixer.o_proj", d->hidden, q, bias);
    return (Component){.kind = COMPONENT_ATTENTION, .attention = a};
}

static Component load_mlp(Loader *ld, const Nemotron *m, const char *up, const char *down, int width) {
    return family_mlp(ld, up, down, m->d.hidden, width, (Activation){.kind = ACT_RELU2}, m->mlp_bias);
}

/* The experts; the shared one reads the residual and is a network of its own beside them. */
static Component load_mixture(Loader *ld, const Nemotron *m) {
    MoeComponent moe = m->moe.moe;
    const int experts = moe.experts, hidden = m->d.hidden, in = m->latent ? m->latent : hidden;
    moe.router = load_linear(ld, "mixer.gate", experts, hidden, false);
    moe.correction_bias = load_vector(ld, "mixer.gate.e_score_correction_bias", experts, 0);
    moe.up = load_experts(
        ld, "mixer.switch_mlp.fc1", "mixer.experts.%d.up_proj", experts, 0, m->moe.intermediate_size, in, false);
    moe.down = load_experts(
        ld, "mixer.switch_mlp.fc2", "mixer.experts.%d.down_proj", experts, 0, in, m->moe.intermediate_size, false);
    moe.gate = moe.up; /* relu(up · x) ∘ (up · x) is the square */
    if (m->latent) {
        moe.latent_in = load_linear(ld, "mixer.fc1_latent_proj", m->latent, hidden, m->mlp_bias);
        moe.latent_out = load_linear(ld, "mixer.fc2_latent_proj", hidden, m->latent, m->mlp_bias);
    }
    return (Component){.kind = COMPONENT_MOE, .moe = moe};
}

static Nemotron load_fields(Loader *ld, Spec *spec) {
    const Sizes absent = {.head_dim = load_int_or(ld, "attention_head_dim", 0),
        .intermediate_size = 1,
        .layers = 1,
        .positions = 4096,
        .eps = 1e-5,
        .eps_field = "layer_norm_epsilon"};
    Nemotron m = {.d = family_sizes(ld, spec, &absent), .mlp_bias = load_bool_or(ld, "mlp_bias", false)};
    m.mamba = (Mamba2){.hidden = m.d.hidden,
        .heads = load_int(ld, "mamba_num_heads"),
        .head_dim = load_int(ld, "mamba_head_dim"),
        .state = load_int(ld, "ssm_state_size"),
        .groups = load_int_or(ld, "n_groups", 8),
        .taps = load_int_or(ld, "conv_kernel", 4),
        .conv_bias = load_bool_or(ld, "use_conv_bias", true),
        .eps = m.d.eps};
    family_mamba2_check(ld, &m.mamba);
    m.mamba.norm_group = (int64_t)m.mamba.heads * m.mamba.head_dim / m.mamba.groups;
    const int experts = load_count_or(ld, "n_routed_experts", 0), inner = load_int_or(ld, "moe_intermediate_size", 1);
    if (experts) {
        m.moe =
            family_moe_open(ld, &moe_deepseek, m.d.hidden, inner, experts, load_int_or(ld, "num_experts_per_tok", 1));
        family_moe_sigmoid(ld, &m.moe);
        m.moe.moe.activation.kind = ACT_RELU;
        m.latent = load_count_or(ld, "moe_latent_size", 0);
        if (load_count_or(ld, "n_shared_experts", 0)) m.shared = load_int(ld, "moe_shared_expert_intermediate_size");
    }
    load_expect_text(ld, "mlp_hidden_act", "relu2");
    load_expect_text(ld, "mamba_hidden_act", "silu");
    load_ignore(ld, "attention_bias", "mamba_proj_bias", "chunk_size", "expand", "mamba_ssm_cache_dtype",
        "moe_shared_expert_overlap", "num_logits_to_keep", "num_nextn_predict_layers", "mtp_layers_block_type",
        "mtp_hybrid_override_pattern", "rescale_prenorm_residual", "residual_in_fp32", "rms_norm_eps", "rope_theta",
        "sliding_window", "time_step_floor", "time_step_max", "time_step_min", "use_bias", "use_mamba_kernels",
        "output_router_logits", "partial_rotary_factor", "norm_eps", NULL);
    load_skip(ld, "mtp.");
    return m;
}

static Component load_component(Loader *ld, const Nemotron *m, char kind) {
    if (kind == 'M') {
        Mamba2 mamba = m->mamba;
        mamba.bias = mamba.out_bias = load_has(ld, "mixer.in_proj.bias");
        return family_mamba2(ld, "mixer", &mamba);
    }
    if (kind == '*') return load_attention(ld, m);
    if (kind == 'E') return load_mixture(ld, m);
    return load_mlp(ld, m, "mixer.up_proj", "mixer.down_proj", m->d.intermediate_size);
}

static void load(Loader *ld, Spec *spec) {
    const Nemotron m = load_fields(ld, spec);
    Slice pattern = load_string(ld, "hybrid_override_pattern");
    const Json *types = load_list(ld, pattern.size ? "layers_block_type" : "hybrid_override_pattern", -1);
    types = types ? types : load_list(ld, "layers_block_type", -1);
    types = types ? types : load_list(ld, "layer_types", -1);
    const int layers = types ? (int)types->size : (int)pattern.size;
    spec->layer_count = load_int_or(ld, "num_hidden_layers", layers ? layers : 1);
    load_require(ld, layers == spec->layer_count, "num_hidden_layers is %d, but the layers' kinds are %d",
        spec->layer_count, layers);
    load_body(ld, "backbone.");
    family_ends_named(ld, spec, &m.d, "model.embeddings", "model.norm_f");
    load_scope(ld, "%s", "");
    /* transformers never ties */
    if (spec->tied && load_has(ld, "lm_head.weight")) family_head(ld, spec, &m.d, false);
    load_layers(ld, spec);
    for (int i = 0; layers == spec->layer_count && i < layers; i++) {
        Layer *layer = family_layer(ld, spec, i);
        const char kind = kind_of(ld, pattern, types, i);
        const Component loaded = load_component(ld, &m, kind);
        family_add(spec, layer, &loaded)->input_norm = load_rms(ld, "norm", m.d.hidden, m.d.eps);
        if (kind != 'E' || !m.shared) continue;
        const Component shared =
            load_mlp(ld, &m, "mixer.shared_experts.up_proj", "mixer.shared_experts.down_proj", m.shared);
        family_add(spec, layer, &shared)->parallel = true;
    }
}

const Family nemotron_h_family = {.load = load, .gguf = &nemotron_h_gguf};
