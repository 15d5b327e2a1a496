/* GLM-5.3-Flash (its language model): between hyper-connections, Kimi delta attention, and latent attention without
 * positions to the blocks of positions that an indexer chooses by compressed keys. Reference:
 * transformers/models/glm5_next. */
#include "family/glm5_next.h"

static Component load_mixer(Loader *ld, Spec *spec, Layer *layer, const Glm5 *s, int i) {
    const bool delta = s->types
        ? family_is_recurrent(ld, "layer_types", s->types, i, "linear_attention", "indexed_attention")
        : i % 4 != 3;
    if (delta) return family_delta_attention(ld, &s->delta);
    const Json *kinds = s->mla.index_types;
    const Component latent = {.kind = COMPONENT_MLA, .mla = glm5_next_latent(ld, s)};
    if (s->index_top_k && (!kinds || family_kind(ld, "indexer_types", kinds, i, "full", "shared")))
        glm5_next_indexer(ld, spec, layer, s, &latent.mla);
    return latent;
}

static void load_layer(Loader *ld, Spec *spec, const Glm5 *s, int i) {
    const Dims *d = &s->mla.d;
    const bool experts = i >= s->mla.dense && i % s->mla.every == 0;
    Layer *layer = family_layer(ld, spec, i);
    const HyperMix around = family_hyper(ld, spec, d->eps, "hc_attn_%s"),
                   behind = family_hyper(ld, spec, d->eps, "hc_ffn_%s");
    layer_add(spec, layer, COMPONENT_HYPER_COLLAPSE)->hyper = around;
    const Component mixer = load_mixer(ld, spec, layer, s, i);
    family_between(spec, layer, &around, &mixer, load_rms(ld, "input_layernorm", d->hidden, d->eps), NULL);
    Component ffn = {.kind = experts ? COMPONENT_MOE : COMPONENT_GLU};
    if (experts)
        ffn.moe = family_moe(ld, &s->mla.moe);
    else
        ffn.glu = family_glu(ld, "mlp", d->hidden, d->intermediate_size, s->mla.moe.moe.activation, false);
    layer_add(spec, layer, COMPONENT_HYPER_COLLAPSE)->hyper = behind;
    family_between(spec, layer, &behind, &ffn, load_rms(ld, "post_attention_layernorm", d->hidden, d->eps), NULL);
}

static void load(Loader *ld, Spec *spec) {
    load_text_part(ld);
    const Glm5 s = glm5_next_fields(ld, spec);
    spec->hyper.head = family_hyper_mean(ld, spec);
    for (int i = 0; i < spec->layer_count; i++) load_layer(ld, spec, &s, i);
}

const Family glm5_next_family = {.load = load};
