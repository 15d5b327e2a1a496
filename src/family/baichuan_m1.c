/* Baichuan-M1: keys and values are mixed with those of the token before, by two factors for each kv head; layers with a
 * window have their own numbers of heads; the rows of the output matrix are normalised. Reference:
 * mlx_lm/models/baichuan_m1.py. */
#include "backend/recurrent.h"
#include "family/family.h"

enum { TAPS = 2 };

typedef struct Geometry {
    Dims full, window;
    int width;          /* tokens of the window */
    const Json *layers; /* numbers of the layers with a window; NULL: there are none */
} Geometry;

static Geometry load_geometry(Loader *ld, Spec *spec) {
    Geometry g = {.full = family_dims(ld, spec)};
    g.window = g.full;
    g.window.heads = load_int_or(ld, "num_swa_attention_heads", g.full.heads);
    g.window.kv_heads = load_int_or(ld, "num_swa_key_value_heads", g.full.kv_heads);
    g.window.head_dim = 0;
    family_check(ld, &g.window);
    g.layers = load_list(ld, "sliding_window_layers", -1);
    g.width = load_int_or(ld, "sliding_window", 8192);
    return g;
}

/* The factors of a kv head, which all of its channels have. */
static ConvPart load_factors(Loader *ld, const char *name, const Dims *d) {
    ConvPart part = {.channels = (int64_t)d->kv_heads * d->head_dim};
    const float *each = load_array(ld, name, d->kv_heads, TAPS);
    float *all = each ? load_floats(ld, part.channels * TAPS) : NULL;
    for (int64_t i = 0; all && i < part.channels * TAPS; i++) all[i] = each[i / (d->head_dim * TAPS) * TAPS + i % TAPS];
    part.weight = all;
    return part;
}

static Component load_attention(Loader *ld, const Dims *d, int window) {
    const Rope *rope = load_rope(ld, &(RopeOptions){.head_dim = d->head_dim, .theta = 10000});
    Component component = {.kind = COMPONENT_ATTENTION,
        .attention = family_fused_attention(ld, d, "self_attn.W_pack", "self_attn.o_proj", rope, false, false)};
    AttentionComponent *attention = &component.attention;
    attention->op.window = window;
    attention->conv = (Conv){.taps = TAPS,
        .part_count = 2,
        .part = {load_factors(ld, "self_attn.conv_k", d), load_factors(ld, "self_attn.conv_v", d)}};
    return component;
}

static void load(Loader *ld, Spec *spec) {
    const Geometry g = load_geometry(ld, spec);
    load_expect_int(ld, "conv_window", TAPS);
    load_expect_text(ld, "hidden_act", "silu");
    load_scope(ld, "%s", "");
    spec->embedding = load_linear(ld, "model.embed_tokens", spec->vocab, g.full.hidden, false);
    spec->final_norm = load_rms(ld, "model.norm", g.full.hidden, g.full.eps);
    load_expect_bool(ld, "tie_word_embeddings", false);
    spec->head = load_unit_rows(ld, "lm_head", spec->vocab, g.full.hidden, 1e-7f);
    load_layers(ld, spec);
    for (int i = 0; i < spec->layer_count; i++) {
        const bool slides = family_listed(g.layers, i);
        const Dims *d = slides ? &g.window : &g.full;
        family_layer(ld, spec, i);
        const Component attention = load_attention(ld, d, slides ? g.width : 0);
        Layer *layer = family_block(ld, spec, i, &(Block){.dims = d, .attention = &attention});
        layer_add_state(spec, &layer->components[0]);
    }
}

const Family baichuan_m1_family = {.load = load};
