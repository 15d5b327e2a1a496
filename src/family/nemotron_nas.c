/* Llama-Nemotron (Super, Ultra, 51B): a llama whose layers were changed one by one: attention with fewer kv heads, a
 * wider or narrower feed-forward network, one linear layer in place of either, or nothing.
 * Reference: mlx_lm/models/nemotron-nas.py. */
#include "family/family.h"
#include "family/gguf/models.h"

#include <stdio.h>

typedef struct Part {
    bool none, linear;
    int kv_group;  /* attention: query heads for each kv head */
    double factor; /* feed-forward network: of its width */
} Part;

/* block_configs[i].NAME; number: the field of its size. */
static Part part_of(Loader *ld, const Json *config, int i, const char *name, const char *number) {
    const Json *part = config && config->type == JSON_OBJECT ? json_get(config, name) : NULL;
    const bool good = part && part->type == JSON_OBJECT;
    load_require(ld, good, "block_configs[%d] lacks %s", i, name);
    if (!good) return (Part){.none = true};
    const Json *none = json_get(part, "no_op"), *linear = json_get(part, "replace_with_linear"),
               *size = json_get(part, number);
    Part out = {.none = none && none->type == JSON_BOOL && none->boolean,
        .linear = linear && linear->type == JSON_BOOL && linear->boolean};
    if (out.none || out.linear) return out;
    static const char *const unknown[] = {"window_length", "num_sink_tokens"}; /* no published model has them */
    for (size_t u = 0; u < COUNT_OF(unknown); u++) {
        const Json *value = json_get(part, unknown[u]);
        load_require(
            ld, !value || value->type == JSON_NULL, "block_configs[%d].%s.%s is not supported", i, name, unknown[u]);
    }
    out.factor = json_is_number(size) ? json_number(size) : 0;
    load_require(
        ld, out.factor > 0 && out.factor <= 1024, "block_configs[%d].%s.%s must be from 0 to 1024", i, name, number);
    out.factor = out.factor > 0 && out.factor <= 1024 ? out.factor : 1;
    out.kv_group = (int)out.factor;
    return out;
}

static int width_of(double factor, int hidden) {
    enum { MULTIPLE = 256 };
    const int64_t width = (int64_t)(2 * factor * hidden / 3);
    return (int)((width + MULTIPLE - 1) / MULTIPLE * MULTIPLE);
}

/* The linear layer in place of a part: the first of the names that the file has, or the last. */
static Component load_replacement(Loader *ld, const Dims *d, const char *const names[3], bool bias) {
    int own = 0;
    for (char weight[64]; own < 2; own++) {
        snprintf(weight, sizeof weight, "%s.weight", names[own]);
        if (load_has(ld, weight)) break;
    }
    return (Component){.kind = COMPONENT_LINEAR, .linear = load_linear(ld, names[own], d->hidden, d->hidden, bias)};
}

static void add(Loader *ld, Spec *spec, Layer *layer, const Dims *d, const Component *part, const char *norm) {
    family_add(spec, layer, part)->input_norm = load_rms(ld, norm, d->hidden, d->eps);
}

static void load(Loader *ld, Spec *spec) {
    static const LoadName fields[] = {{"intermediate_size", "hidden_size"}, {0}}; /* each layer has its own */
    /* As published, as in GGUF files, as in mlx-lm. */
    static const char *const linear_attention[] = {"self_attn.linear_attn", "self_attn.o_proj", "self_attn.linear"},
                             *const linear_ffn[] = {"mlp.linear_mlp", "mlp.down_proj", "mlp.linear"};
    load_field_names(ld, fields);
    Dims d = family_dims(ld, spec);
    const Json *blocks = load_list(ld, "block_configs", spec->layer_count);
    const bool bias = load_bool_or(ld, "attention_bias", false), mlp_bias = load_bool_or(ld, "mlp_bias", false);
    const Rope *rope = load_rope(ld, &(RopeOptions){.head_dim = d.head_dim, .theta = 500000});
    load_require(ld, blocks, "block_configs is missing");
    load_expect_text(ld, "hidden_act", "silu");
    load_ignore(ld, "block_configs", "num_key_value_heads", NULL);
    family_ends(ld, spec, &d);
    load_layers(ld, spec);
    for (int i = 0; i < spec->layer_count; i++) {
        const Json *config = blocks ? family_item(blocks, i) : NULL;
        const Part attention = part_of(ld, config, i, "attention", "n_heads_in_group");
        const Part ffn = part_of(ld, config, i, "ffn", "ffn_mult");
        Layer *layer = family_layer(ld, spec, i);
        Component own = {.kind = COMPONENT_ATTENTION};
        if (attention.linear) {
            own = load_replacement(ld, &d, linear_attention, bias);
        } else if (!attention.none) {
            load_require(ld, d.heads % attention.kv_group == 0, "block_configs[%d]: %d heads in groups of %d", i,
                d.heads, attention.kv_group);
            d.kv_heads = d.heads / attention.kv_group;
            own.attention = family_attention(ld, &d, "o_proj", rope, bias, bias);
        }
        if (!attention.none) add(ld, spec, layer, &d, &own, "input_layernorm");
        Component second = {.kind = COMPONENT_GLU};
        if (ffn.linear)
            second = load_replacement(ld, &d, linear_ffn, mlp_bias);
        else if (!ffn.none)
            second.glu = family_glu(
                ld, "mlp", d.hidden, width_of(ffn.factor, d.hidden), (Activation){.kind = ACT_SILU}, mlp_bias);
        if (!ffn.none) add(ld, spec, layer, &d, &second, "post_attention_layernorm");
    }
}

const Family nemotron_nas_family = {.load = load, .gguf = &nemotron_nas_gguf};
