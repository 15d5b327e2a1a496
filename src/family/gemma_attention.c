#include "family/gemma.h"

GemmaSharing gemma_sharing(Loader *ld, const Spec *spec, int absent) {
    const int shared = load_count_or(ld, "num_kv_shared_layers", absent);
    load_require(ld, shared < spec->layer_count, "num_kv_shared_layers must be less than num_hidden_layers");
    return (GemmaSharing){spec->layer_count - shared, {-1, -1}};
}

/* A layer without keys of its own. */
static void share(Loader *ld, Spec *spec, Component *component, int i, int entry) {
    component->cache_entry = entry;
    spec->cache_entries--;
    load_require(ld, entry >= 0, "layer %d has no earlier layer of its kind to share keys of", i);
    load_leave(ld, "self_attn.k_proj");
    load_leave(ld, "self_attn.v_proj");
    load_leave(ld, "self_attn.k_norm");
}

Component *gemma_attention(Loader *ld, Spec *spec, Layer *layer, int i, const Dims *d, const Rope *rope, int window,
    bool k_is_v, GemmaSharing *sharing) {
    const int64_t q = (int64_t)d->heads * d->head_dim, kv = (int64_t)d->kv_heads * d->head_dim;
    Component *component = layer_add(spec, layer, COMPONENT_ATTENTION);
    AttentionComponent attention = family_attention_op(d, rope);
    attention.op.scale = 1;
    attention.op.window = window;
    attention.q = load_linear(ld, "self_attn.q_proj", q, d->hidden, false);
    attention.o = load_linear(ld, "self_attn.o_proj", d->hidden, q, false);
    attention.op.q_norm = load_rms(ld, "self_attn.q_norm", d->head_dim, d->eps);
    if (i >= sharing->from) {
        share(ld, spec, component, i, sharing->entries[window > 0]);
    } else {
        sharing->entries[window > 0] = component->cache_entry;
        attention.k = load_linear(ld, "self_attn.k_proj", kv, d->hidden, false);
        if (!k_is_v) attention.v = load_linear(ld, "self_attn.v_proj", kv, d->hidden, false);
        attention.op.k_norm = load_rms(ld, "self_attn.k_norm", d->head_dim, d->eps);
        attention.v_norm = load_rms(ld, NULL, d->head_dim, d->eps);
    }
    component->attention = attention;
    component->input_norm = load_rms(ld, "input_layernorm", d->hidden, d->eps);
    component->output_norm = load_rms(ld, "post_attention_layernorm", d->hidden, d->eps);
    return component;
}
