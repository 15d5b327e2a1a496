/* Gemma 4's assistants: draft models of a few layers of Gemma 4, without keys and values of their own. They read the
 * model that they draft for: its embedding, the final hidden state of the position before, and the keys and values of
 * its last layers that have some. Reference: transformers/models/gemma4_assistant. */
#include "family/gemma.h"
#include "family/gguf/models.h"

/* The attention of the target's last layers with keys of their own: [0] of full layers, [1] of those with a window;
 * NULL: there is none. */
static void find_keys(const Spec *target, const Component *keys[2]) {
    keys[0] = keys[1] = NULL;
    for (int i = 0; i < target->layer_count; i++)
        for (int c = 0; c < target->layers[i].component_count; c++) {
            const Component *component = &target->layers[i].components[c];
            if (component->kind == COMPONENT_ATTENTION && component->attention.k.rows)
                keys[component->attention.op.window > 0] = component;
        }
}

static bool same_heads(const Component *own, const Component *keys) {
    const KvLayout *a = &own->attention.op.kv.layout, *b = &keys->attention.op.kv.layout;
    return a->kv_heads == b->kv_heads && a->head_dim == b->head_dim && a->value_dim == b->value_dim;
}

/* Layers are those of Gemma 4, all of which share keys and values. A row stands for the position behind its place in
 * the cache, so its window has one position less. */
static void load_assistant_layers(Loader *ld, Spec *spec, Gemma4 *s, const Spec *target) {
    const Component *keys[2];
    find_keys(target, keys);
    s->sharing = (GemmaSharing){0, {keys[0] ? keys[0]->cache_entry : -1, keys[1] ? keys[1]->cache_entry : -1}};
    load_layers(ld, spec);
    for (int i = 0; i < spec->layer_count; i++) {
        gemma4_layer(ld, spec, s, i);
        Component *own = spec->layers ? &spec->layers[i].components[0] : NULL;
        if (!own || own->cache_entry < 0) return;
        Attention *op = &own->attention.op;
        const Component *of = keys[op->window > 0];
        load_require(ld, same_heads(own, of) && (op->window == 0 || op->window <= of->attention.op.window),
            "layer %d has other heads, or a wider window, than the model that it drafts for", i);
        load_require(ld, op->window != 1, "sliding_window 1 is not supported");
        if (op->window) op->window--;
    }
    spec->cache_entries = target->cache_entries;
}

/* Its tokens' clusters, which would shorten the output matrix, are not used. */
static void load_assistant(Loader *ld, Spec *spec) {
    const Spec *target = load_target(ld);
    load_require(
        ld, target, "this is an assistant, which drafts for another model: --draft-model names it beside that one");
    if (!target) return;
    const int width = load_int_or(ld, "backbone_hidden_size", 1536);
    const bool tied = load_bool_or(ld, "tie_word_embeddings", true);
    load_ignore(ld, "use_ordered_embeddings", "num_centroids", "centroid_intermediate_top_k", "pad_token_id", NULL);
    load_skip(ld, "masked_embedding.");
    const LoadPlace root = load_place(ld);
    load_text_part(ld);
    load_ignore(ld, "num_kv_shared_layers", "vocab_size_per_layer_input", "final_logit_softcapping",
        "tie_word_embeddings", "pad_token_id", NULL);
    load_expect_bool(ld, "use_double_wide_mlp", false);
    Gemma4 s = gemma4_config(ld, spec);
    s.double_wide = false;
    load_require(ld, s.input_width == 0 && s.experts.count == 0,
        "hidden_size_per_layer_input must be 0 and enable_moe_block false: an assistant has neither");
    load_require(ld, spec->vocab == target->vocab && width == target->hidden,
        "vocab_size is %d and backbone_hidden_size %d, but the model that it drafts for has %d and %d", spec->vocab,
        width, target->vocab, target->hidden);
    spec->precise = target->precise;
    spec->embedding = target->embedding;
    spec->embedding_scale = target->embedding_scale;
    load_scope(ld, "%s", "");
    spec->head = load_linear(ld, tied ? "model.embed_tokens" : "lm_head", spec->vocab, s.d.hidden, false);
    load_leave(ld, tied ? "lm_head" : "model.embed_tokens");
    spec->final_norm = load_rms(ld, "model.norm", s.d.hidden, s.d.eps);
    load_assistant_layers(ld, spec, &s, target);
    load_return(ld, &root);
    load_state_input(ld, spec, "pre_projection", width, false);
    spec->state_output = load_linear(ld, "post_projection", width, s.d.hidden, false);
}

const Family gemma4_assistant_family = {.load = load_assistant, .gguf = &gemma4_assistant_gguf};
