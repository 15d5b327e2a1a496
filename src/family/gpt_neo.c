/* GPT-Neo: learned positions, layer norms, biases of all matrices but q, k and v, scores without a scale, and layers
 * with a window in turn with others. Reference: transformers/models/gpt_neo. */
#include "family/family.h"

/* Whether layer i has a window: attention_types is a list of [kinds, times], whose kinds repeat so often. */
static bool is_local(Loader *ld, const Json *types, int i, int layers) {
    int64_t at = 0;
    bool local = false;
    for (JSON_EACH(entry, types)) {
        const bool pair = entry->type == JSON_ARRAY && entry->size == 2;
        const Json *kinds = pair ? json_first(entry) : NULL, *times = pair ? json_next(kinds) : NULL;
        const bool known = pair && kinds->type == JSON_ARRAY && kinds->size > 0 && times->type == JSON_INTEGER &&
            times->integer >= 0 && times->integer <= layers;
        load_require(ld, known, "attention_types must be a list of lists of kinds and a number");
        if (!known) return false;
        const int64_t count = kinds->size * times->integer;
        if (i >= at && i < at + count)
            local = family_kind(ld, "attention_types", kinds, (int)((i - at) % kinds->size), "local", "global");
        at += count;
    }
    load_require(ld, at == layers, "attention_types has %lld layers, num_layers is %d", (long long)at, layers);
    return local;
}

static void load(Loader *ld, Spec *spec) {
    static const LoadName fields[] = {{"num_hidden_layers", "num_layers"}, {"num_attention_heads", "num_heads"}, {0}};
    static const LoadName names[] = {{"model.embed_tokens", "transformer.wte"}, {"model.norm", "transformer.ln_f"},
        {"model.layers", "transformer.h"}, {"self_attn", "attn.attention"}, {0}};
    static const NormNames norms = {load_layer_norm, .attention_input = "ln_1", .ffn_input = "ln_2"};
    load_field_names(ld, fields);
    load_module_names(ld, names);
    Dims d = family_sizes(ld, spec,
        &(Sizes){.intermediate_size = SIZE_OWN, .positions = 2048, .eps = 1e-5, .eps_field = "layer_norm_epsilon"});
    d.intermediate_size = load_int_or(ld, "intermediate_size", 4 * d.hidden);
    const Json *types = load_list(ld, "attention_types", -1);
    const int window = load_int_or(ld, "window_size", 256);
    const bool erf = load_text_is(ld, "activation_function", "gelu");
    if (!erf) load_expect_text(ld, "activation_function", "gelu_new");
    load_ignore(ld, "attention_layers", "resid_dropout", "embed_dropout", "classifier_dropout", "summary_activation",
        "summary_first_dropout", "summary_proj_to_labels", "summary_type", "summary_use_proj", NULL);
    load_skip(ld, ".attn.attention.bias");
    load_skip(ld, ".attn.attention.masked_bias");
    family_ends_as(ld, spec, &d, "model.embed_tokens", "model.norm", load_layer_norm,
        load_bool_or(ld, "tie_word_embeddings", true));
    spec->position_embedding = load_linear(ld, "transformer.wpe", spec->positions, d.hidden, false);
    load_layers(ld, spec);
    for (int i = 0; i < spec->layer_count; i++) {
        family_layer(ld, spec, i);
        const bool local = types ? is_local(ld, types, i, spec->layer_count) : i % 2 == 1;
        Component attention = {
            .kind = COMPONENT_ATTENTION, .attention = family_attention(ld, &d, "out_proj", NULL, false, true)};
        attention.attention.op.scale = 1;
        attention.attention.op.window = local ? window : 0;
        const Component mlp = family_mlp(ld, "mlp.c_fc", "mlp.c_proj", d.hidden, d.intermediate_size,
            (Activation){.kind = erf ? ACT_GELU : ACT_GELU_TANH}, true);
        family_block(ld, spec, i, &(Block){.dims = &d, .norms = &norms, .attention = &attention, .ffn = &mlp});
    }
}

const Family gpt_neo_family = {.load = load};
