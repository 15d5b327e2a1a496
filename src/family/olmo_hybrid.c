/* OLMo Hybrid: gated delta nets with pre-norms, whose β is up to 2, and in every fourth layer OLMo 2's attention, which
 * published models have without positions. References: mlx_lm/models/olmo_hybrid.py, transformers/models/olmo_hybrid;
 * the sizes of delta nets that the config leaves out: transformers. */
#include "family/recurrent.h"

#include <math.h>
#include <stdio.h>

static const NormNames published_norms = {
    load_rms, .attention_input = "attention_layer_norm", .ffn_input = "feedforward_layer_norm"};
static const NormNames attention_norms = {
    load_rms, .attention_output = "post_attention_layernorm", .ffn_output = "post_feedforward_layernorm"};

typedef struct Hybrid {
    Dims d;
    DeltaNet net;
    const Rope *rope;   /* NULL: no rotary embedding */
    const Json *types;  /* NULL: every fourth layer has attention */
    bool bias, doubled; /* β = 2σ(b) */
} Hybrid;

/* A theta of null switches positions off. */
static const Rope *rope_of(Loader *ld, int head_dim) {
    const LoadPlace place = load_place(ld);
    bool none = load_null(ld, "rope_theta");
    if (load_has_field(ld, "rope_parameters")) {
        load_enter(ld, "rope_parameters", "");
        none = !load_has_field(ld, "rope_theta");
        load_ignore(ld, "rope_type", NULL);
    }
    load_return(ld, &place);
    return none ? NULL : load_rope(ld, &(RopeOptions){.head_dim = head_dim, .theta = 10000});
}

static ConvPart load_part_conv(Loader *ld, const Hybrid *h, const char *of, int64_t width) {
    char name[48];
    snprintf(name, sizeof name, "linear_attn.%s_conv1d", of);
    return family_conv(ld, name, h->net.taps, false, &width, 1).part[0];
}

/* S = w·S + 2σ·k(v − Sᵀk)ᵀ is √2 times what the recurrence makes of σ and √2·k; q makes up for it. */
static Component load_delta(Loader *ld, const Hybrid *h) {
    const DeltaNet *n = &h->net;
    const int64_t keys = (int64_t)n->key_heads * n->key_dim, values = (int64_t)n->value_heads * n->value_dim;
    const float size = (float)n->key_dim, factor = h->doubled ? sqrtf(2) : 1;
    const Norm *l2 = load_rms(ld, NULL, n->key_dim, 1e-6f / size);
    RecurrentComponent c = {.op = {.kind = RECURRENCE_DELTA,
                                .key_heads = n->key_heads,
                                .value_heads = n->value_heads,
                                .key_dim = n->key_dim,
                                .value_dim = n->value_dim,
                                .q_norm = l2,
                                .k_norm = l2,
                                .q_scale = factor / size,
                                .k_scale = factor / sqrtf(size),
                                .dt_scale = 1,
                                .dt_max = INFINITY},
        .conv = {.taps = n->taps,
            .silu = true,
            .part = {load_part_conv(ld, h, "q", keys), load_part_conv(ld, h, "k", keys),
                load_part_conv(ld, h, "v", values)}},
        .gated_norm = {.group = n->value_dim, .eps = 1e-5f, .gate_kind = GATE_SILU, .gate_scale = 1},
        .q = load_linear(ld, "linear_attn.q_proj", keys, n->hidden, false),
        .k = load_linear(ld, "linear_attn.k_proj", keys, n->hidden, false),
        .v = load_linear(ld, "linear_attn.v_proj", values, n->hidden, false),
        .gate = load_linear(ld, "linear_attn.g_proj", values, n->hidden, false),
        .a = load_linear(ld, "linear_attn.a_proj", n->value_heads, n->hidden, false),
        .b = load_linear(ld, "linear_attn.b_proj", n->value_heads, n->hidden, false),
        .o = load_linear(ld, "linear_attn.o_proj", n->hidden, values, false)};
    c.op.rate = load_rate(ld, "linear_attn.", n->value_heads, 1);
    c.op.dt_bias = load_vector(ld, "linear_attn.dt_bias", n->value_heads, 0);
    c.gated_norm.weight = load_repeated(ld, "linear_attn.o_norm.weight", n->value_dim, n->value_heads);
    return (Component){.kind = COMPONENT_RECURRENT, .recurrent = c};
}

static DeltaNet load_net(Loader *ld, const Dims *d) {
    const int key_heads = load_int_or(ld, "linear_num_key_heads", d->heads);
    const int key_dim = load_int_or(ld, "linear_key_head_dim", (int)(0.75 * d->hidden / key_heads));
    const DeltaNet net = {.hidden = d->hidden,
        .key_heads = key_heads,
        .value_heads = load_int_or(ld, "linear_num_value_heads", d->heads),
        .key_dim = key_dim,
        .value_dim = load_int_or(ld, "linear_value_head_dim", 2 * key_dim),
        .taps = load_int_or(ld, "linear_conv_kernel_dim", 4)};
    load_require(ld, key_dim > 0, "linear_key_head_dim is missing, and hidden_size is too small for its default");
    family_check_recurrence(ld, "linear attention", net.key_heads, net.value_heads, net.key_dim, net.value_dim);
    family_check_taps(ld, net.taps);
    return net;
}

static void load(Loader *ld, Spec *spec) {
    Hybrid h = {.d = family_sizes(ld, spec, &(Sizes){.eps = 1e-6}),
        .types = load_list(ld, "layer_types", spec->layer_count),
        .bias = load_bool_or(ld, "attention_bias", false),
        .doubled = load_bool_or(ld, "linear_allow_neg_eigval", true)};
    h.net = load_net(ld, &h.d);
    h.rope = rope_of(ld, h.d.head_dim);
    load_expect_text(ld, "hidden_act", "silu");
    load_expect_bool(ld, "linear_use_gate", true);
    load_ignore(ld, "linear_a_log_min", "linear_a_log_max", "linear_dt_min", "linear_dt_max", "linear_dt_init_floor",
        "layer_norm_epsilon", "rope_theta", NULL);
    family_ends(ld, spec, &h.d);
    load_layers(ld, spec);
    for (int i = 0; i < spec->layer_count; i++) {
        const bool delta = h.types
            ? family_is_recurrent(ld, "layer_types", h.types, i, "linear_attention", "full_attention")
            : i % 4 != 3;
        family_layer(ld, spec, i);
        const NormNames *pre = load_has(ld, "attention_layer_norm.weight") ? &published_norms : &norms_usual;
        Block block = {.dims = &h.d,
            .norms = delta ? pre : &attention_norms,
            .rope = h.rope,
            .bias = h.bias,
            .out_bias = h.bias,
            .q_norm = "q_norm",
            .k_norm = "k_norm",
            .norm_full = true};
        const Component net = delta ? load_delta(ld, &h) : (Component){0};
        if (delta) block.attention = &net;
        family_block(ld, spec, i, &block);
    }
}

const Family olmo_hybrid_family = {.load = load};
