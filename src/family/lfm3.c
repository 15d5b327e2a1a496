/* LFM3: gated short convolutions, attention with a window and without, whose rotary embeddings differ, with norms on q
 * and k and a gate for each head; sandwich norms. Reference: transformers/models/lfm3. */
#include "family/recurrent.h"

typedef struct Lfm3 {
    Dims d;
    const Rope *full, *sliding;
    const Json *types; /* NULL: layers 2, 6, 10 … are full, 4, 8, 12 … have a window, the others convolutions */
    int window, taps;
    bool bias, conv_bias, gated;
    NormNames norms;
} Lfm3;

static Lfm3 load_fields(Loader *ld, Spec *spec) {
    const bool outer = load_bool_or(ld, "use_sandwich_norm", true);
    Lfm3 m = {.d = family_sizes(ld, spec, &(Sizes){.positions = 128000, .eps = 1e-5, .eps_field = "norm_eps"}),
        .types = load_list(ld, "layer_types", spec->layer_count),
        .window = load_int_or(ld, "sliding_window", 256),
        .taps = load_int_or(ld, "conv_L_cache", 7),
        .bias = load_bool_or(ld, "attention_bias", false),
        .conv_bias = load_bool_or(ld, "conv_bias", false),
        .gated = load_bool_or(ld, "use_attention_gate", true),
        .norms = {load_rms, "operator_norm", outer ? "post_operator_norm" : NULL, "ffn_norm",
            outer ? "post_ffn_norm" : NULL}};
    family_check_taps(ld, m.taps);
    load_require(ld, load_has_field(ld, "rope_parameters"), "rope_parameters is missing");
    m.full = load_rope(
        ld, &(RopeOptions){.head_dim = m.d.head_dim, .theta = 1e6, .layer_type = "full_attention", .proportional = 1});
    m.sliding =
        load_rope(ld, &(RopeOptions){.head_dim = m.d.head_dim, .theta = 1e4, .layer_type = "sliding_attention"});
    load_expect_text(ld, "hidden_act", "silu");
    return m;
}

/* The window of layer i, 0: it sees everything; −1: the layer is a convolution. */
static int window_of(Loader *ld, const Lfm3 *m, int i) {
    if (!m->types) return i % 4 == 2 ? 0 : i % 4 == 0 && i > 0 ? m->window : -1;
    const Json *type = family_item(m->types, i);
    const Slice name = type->type == JSON_STRING ? json_slice(type) : (Slice){0};
    if (slice_is(name, "conv")) return -1;
    return family_kind(ld, "layer_types", m->types, i, "sliding_attention", "full_attention") ? m->window : 0;
}

static Component load_attention(Loader *ld, const Lfm3 *m, int window) {
    const Dims *d = &m->d;
    AttentionComponent a = family_attention(ld, d, "o_proj", window ? m->sliding : m->full, m->bias, m->bias);
    a.op.window = window;
    a.op.q_norm = load_rms(ld, "self_attn.q_norm", d->head_dim, d->eps);
    a.op.k_norm = load_rms(ld, "self_attn.k_norm", d->head_dim, d->eps);
    a.head_gate = m->gated;
    const bool published = load_has(ld, "self_attn.gate_proj.weight"); /* transformers renames it */
    const char *gate = published ? "self_attn.gate_proj" : "self_attn.g_proj";
    if (m->gated) a.gate = load_linear(ld, gate, d->heads, d->hidden, false);
    return (Component){.kind = COMPONENT_ATTENTION, .attention = a};
}

static void load(Loader *ld, Spec *spec) {
    const Lfm3 m = load_fields(ld, spec);
    const Dims *d = &m.d;
    family_ends_as(ld, spec, d, "model.embed_tokens", "model.embedding_norm", load_rms,
        load_bool_or(ld, "tie_word_embeddings", true));
    load_layers(ld, spec);
    for (int i = 0; i < spec->layer_count; i++) {
        const int window = window_of(ld, &m, i);
        family_layer(ld, spec, i);
        const Component mixer =
            window < 0 ? family_short_conv(ld, d->hidden, m.taps, m.conv_bias) : load_attention(ld, &m, window);
        const Component ffn = {.kind = COMPONENT_GLU,
            .glu = {.gate = load_linear(ld, "feed_forward.w1", d->intermediate_size, d->hidden, false),
                .up = load_linear(ld, "feed_forward.w3", d->intermediate_size, d->hidden, false),
                .down = load_linear(ld, "feed_forward.w2", d->hidden, d->intermediate_size, false),
                .activation = {.kind = ACT_SILU}}};
        family_block(ld, spec, i, &(Block){.dims = d, .norms = &m.norms, .attention = &mixer, .ffn = &ffn});
    }
}

const Family lfm3_family = {.load = load};
