/* Talkie: a llama whose norms have no weights, with gains that are one number each: of both parts of a layer, of each
 * head's queries and of the output matrix; a layer ends with the embedding once more. Heads turn the other way.
 * Reference: mlx_lm/models/talkie.py. */
#include "family/family.h"

/* The one element of a tensor. */
static float load_gain(Loader *ld, const char *name) {
    const float *gain = load_vector(ld, name, 1, 0);
    return gain ? *gain : 1;
}

static Component load_attention(Loader *ld, const Dims *d, const Rope *rope) {
    AttentionComponent attention = family_attention(ld, d, "o_proj", rope, false, false);
    attention.head_norm = load_rms(ld, NULL, d->head_dim, d->eps); /* it is the same before the rotation */
    const float *gains = load_vector(ld, "attn.head_gain.head_g", d->heads, 0);
    float *factors = load_floats(ld, (int64_t)d->heads * d->head_dim);
    for (int i = 0; gains && factors && i < d->heads * d->head_dim; i++) factors[i] = gains[i / d->head_dim];
    attention.q_factors = factors;
    return (Component){.kind = COMPONENT_ATTENTION, .attention = attention};
}

static void load(Loader *ld, Spec *spec) {
    static const LoadName names[] = {{"model.layers", "model.blocks"}, {"self_attn", "attn"}, {"q_proj", "attn_query"},
        {"k_proj", "attn_key"}, {"v_proj", "attn_value"}, {"o_proj", "attn_resid"}, {"gate_proj", "mlp_gate"},
        {"up_proj", "mlp_linear"}, {"down_proj", "mlp_resid"}, {0}};
    static const char *const gains[] = {"attn_gain.a_g", "mlp_gain.a_g", "embed_skip.a_g"};
    load_module_names(ld, names);
    const Sizes absent = {
        5120, 40, 40, 65540, 13696, .head_dim = 128, .positions = 2048, .eps = 1.1920928955078125e-07};
    const Dims d = family_sizes(ld, spec, &absent);
    const Rope *rope = load_rope(ld, &(RopeOptions){.head_dim = d.head_dim, .theta = 1e6, .backwards = true});
    load_skip(ld, "rotary");
    load_scope(ld, "%s", "");
    spec->embedding = load_linear(ld, "model.embed", spec->vocab, d.hidden, false);
    spec->head = load_linear(ld, "lm_head", spec->vocab, d.hidden, false);
    spec->logit_scale = load_gain(ld, "lm_head_gain.w_g");
    spec->embedding_norm = spec->final_norm = load_rms(ld, NULL, d.hidden, d.eps);
    spec->layer_inputs.width = d.hidden;
    load_layers(ld, spec);
    for (int i = 0; i < spec->layer_count; i++) {
        Layer *layer = family_layer(ld, spec, i);
        const GluComponent glu =
            family_glu(ld, "mlp", d.hidden, d.intermediate_size, (Activation){.kind = ACT_SILU}, false);
        const Component parts[] = {
            load_attention(ld, &d, rope), {.kind = COMPONENT_GLU, .glu = glu}, {.kind = COMPONENT_LAYER_INPUT}};
        for (int c = 0; c < 3; c++) {
            Component *own = family_add(spec, layer, &parts[c]);
            own->residual_scale = load_gain(ld, gains[c]);
            own->input_norm = c < 2 ? spec->final_norm : NULL;
        }
    }
}

const Family talkie_family = {.load = load};
