/* What families share: sizes, ends, layers, windows, GGUF rows. */
#include "family/family.h"

#include <math.h>
#include <stdio.h>

static int size_or(Loader *ld, const char *field, int absent) {
    return absent ? load_int_or(ld, field, absent) : load_int(ld, field);
}

Dims family_sizes(Loader *ld, Spec *spec, const Sizes *absent) {
    const char *eps = absent->eps_field ? absent->eps_field : "rms_norm_eps";
    Dims d = {.hidden = size_or(ld, "hidden_size", absent->hidden),
        .heads = size_or(ld, "num_attention_heads", absent->heads),
        .head_dim = load_int_or(ld, "head_dim", absent->head_dim),
        .eps = absent->eps > 0 ? load_positive_or(ld, eps, absent->eps) : load_positive(ld, eps)};
    d.kv_heads = load_int_or(ld, "num_key_value_heads", absent->kv_heads ? absent->kv_heads : d.heads);
    if (absent->intermediate_size != SIZE_OWN)
        d.intermediate_size = size_or(ld, "intermediate_size", absent->intermediate_size);
    family_check(ld, &d);
    if (!spec) return d;
    spec->hidden = d.hidden;
    spec->layer_count = size_or(ld, "num_hidden_layers", absent->layers);
    spec->vocab = size_or(ld, "vocab_size", absent->vocab);
    spec->positions = load_int_or(ld, "max_position_embeddings", absent->positions ? absent->positions : 32768);
    return d;
}

Dims family_dims(Loader *ld, Spec *spec) { return family_sizes(ld, spec, &(Sizes){0}); }

void family_check(Loader *ld, Dims *d) {
    enum { HEAD_DIM_MAX = 1024 };
    if (d->head_dim == 0) {
        load_require(ld, d->hidden % d->heads == 0, "hidden_size is %d, not a multiple of num_attention_heads %d",
            d->hidden, d->heads);
        d->head_dim = d->hidden / d->heads;
    }
    load_require(ld, d->heads % d->kv_heads == 0, "num_attention_heads is %d, not a multiple of num_key_value_heads %d",
        d->heads, d->kv_heads);
    load_require(ld, d->head_dim >= 1 && d->head_dim <= HEAD_DIM_MAX, "head_dim is %d, must be 1 to %d", d->head_dim,
        HEAD_DIM_MAX);
}

void family_head(Loader *ld, Spec *spec, const Dims *d, bool tied) {
    spec->tied = tied;
    if (tied) {
        spec->head = spec->embedding;
        load_skip(ld, "lm_head.");
    } else {
        spec->head = load_linear(ld, "lm_head", spec->vocab, d->hidden, false);
    }
}

void family_ends_as(
    Loader *ld, Spec *spec, const Dims *d, const char *embedding, const char *norm, LoadNorm *load_norm, bool tied) {
    load_scope(ld, "%s", "");
    spec->embedding = load_linear(ld, embedding, spec->vocab, d->hidden, false);
    spec->final_norm = load_norm(ld, norm, d->hidden, d->eps);
    family_head(ld, spec, d, tied);
}

void family_ends_named(Loader *ld, Spec *spec, const Dims *d, const char *embedding, const char *norm) {
    load_scope(ld, "%s", "");
    const bool tied = load_bool_or(ld, "tie_word_embeddings", !load_has(ld, "lm_head.weight"));
    family_ends_as(ld, spec, d, embedding, norm, load_rms, tied);
}

void family_ends(Loader *ld, Spec *spec, const Dims *d) {
    family_ends_named(ld, spec, d, "model.embed_tokens", "model.norm");
}

AttentionComponent family_attention_op(const Dims *d, const Rope *rope) {
    const KvLayout layout = {.kv_heads = d->kv_heads, .head_dim = d->head_dim, .value_dim = d->head_dim};
    return (AttentionComponent){
        .op = {.heads = d->heads, .kv.layout = layout, .scale = 1 / sqrtf((float)d->head_dim), .rope = rope},
        .value_scale = 1};
}

AttentionComponent family_attention(
    Loader *ld, const Dims *d, const char *out, const Rope *rope, bool bias, bool out_bias) {
    const int64_t q = (int64_t)d->heads * d->head_dim, kv = (int64_t)d->kv_heads * d->head_dim;
    char name[64];
    snprintf(name, sizeof name, "self_attn.%s", out);
    AttentionComponent attention = family_attention_op(d, rope);
    attention.q = load_linear(ld, "self_attn.q_proj", q, d->hidden, bias);
    attention.k = load_linear(ld, "self_attn.k_proj", kv, d->hidden, bias);
    attention.v = load_linear(ld, "self_attn.v_proj", kv, d->hidden, bias);
    attention.o = load_linear(ld, name, d->hidden, q, out_bias);
    return attention;
}

AttentionComponent family_fused_attention(
    Loader *ld, const Dims *d, const char *name, const char *out, const Rope *rope, bool bias, bool out_bias) {
    const int64_t q = (int64_t)d->heads * d->head_dim, kv = (int64_t)d->kv_heads * d->head_dim;
    const Weight qkv = load_linear(ld, name, q + 2 * kv, d->hidden, bias);
    AttentionComponent attention = family_attention_op(d, rope);
    attention.q = load_part(&qkv, 0, q);
    attention.k = load_part(&qkv, q, kv);
    attention.v = load_part(&qkv, q + kv, kv);
    attention.o = load_linear(ld, out, d->hidden, q, out_bias);
    return attention;
}

GluComponent family_glu(
    Loader *ld, const char *home, int hidden, int intermediate_size, Activation activation, bool bias) {
    char gate[64], up[64], down[64];
    snprintf(gate, sizeof gate, "%s.gate_proj", home);
    snprintf(up, sizeof up, "%s.up_proj", home);
    snprintf(down, sizeof down, "%s.down_proj", home);
    return (GluComponent){
        .gate = load_linear(ld, gate, intermediate_size, hidden, bias),
        .up = load_linear(ld, up, intermediate_size, hidden, bias),
        .down = load_linear(ld, down, hidden, intermediate_size, bias),
        .activation = activation,
    };
}

void family_divide_bias(Loader *ld, Weight *weight, float factor) {
    const float *from = weight->bias;
    float *to = from && factor != 1 ? load_floats(ld, weight->rows) : NULL;
    for (int64_t i = 0; to && i < weight->rows; i++) to[i] = from[i] / factor;
    if (to) weight->bias = to;
}

GluComponent family_fused_glu(Loader *ld, const char *both, const char *down, int hidden, int intermediate_size,
    Activation activation, bool bias) {
    const Weight rows = load_linear(ld, both, 2 * (int64_t)intermediate_size, hidden, bias);
    return (GluComponent){
        .gate = load_part(&rows, 0, intermediate_size),
        .up = load_part(&rows, intermediate_size, intermediate_size),
        .down = load_linear(ld, down, hidden, intermediate_size, bias),
        .activation = activation,
    };
}

Component family_mlp(
    Loader *ld, const char *up, const char *down, int hidden, int intermediate_size, Activation activation, bool bias) {
    return (Component){.kind = COMPONENT_MLP,
        .mlp = {.up = load_linear(ld, up, intermediate_size, hidden, bias),
            .down = load_linear(ld, down, hidden, intermediate_size, bias),
            .activation = activation}};
}

/* SiLU's result is limited, which is as well a limit of its argument. */
Activation family_limited_silu(double limit) {
    if (!(limit > 0)) return (Activation){.kind = ACT_SILU};
    double x = limit + 1;
    for (int i = 0; i < 50; i++) {
        const double sigmoid = 1 / (1 + exp(-x));
        x -= (x * sigmoid - limit) / (sigmoid * (1 + x * (1 - sigmoid)));
    }
    return (Activation){.kind = ACT_SILU_LIMITED, .a = (float)x, .b = (float)limit};
}

/* ---- windows ---- */

Windows family_windows_switched(Loader *ld, const Spec *spec) {
    Windows windows = {.types = load_list(ld, "layer_types", spec->layer_count)};
    if (load_bool_or(ld, "use_sliding_window", false)) {
        windows.width = load_int_or(ld, "sliding_window", 0);
        windows.first = load_count_or(ld, "max_window_layers", 28);
    } else {
        load_ignore(ld, "sliding_window", "max_window_layers", NULL);
    }
    return windows;
}

const Json *family_item(const Json *list, int i) {
    const Json *item = json_first(list);
    while (i-- > 0) {
        item = json_next(item);
    }
    return item;
}

bool family_flag(Loader *ld, const char *field, const Json *list, int i) {
    const Json *item = list ? family_item(list, i) : NULL;
    const bool known = item && item->type == JSON_INTEGER && (item->integer == 0 || item->integer == 1);
    load_require(ld, known, "%s[%d] must be 0 or 1", field, i);
    return known && item->integer == 1;
}

double family_number(Loader *ld, const char *field, const Json *list, int i, double absent) {
    if (!list) return absent;
    load_require(ld, list->type == JSON_ARRAY && list->size > (uint32_t)i, "%s has no element for layer %d", field, i);
    if (list->type != JSON_ARRAY || list->size <= (uint32_t)i) return absent;
    const Json *item = family_item(list, i);
    if (item->type == JSON_NULL) return absent;
    const double number = json_is_number(item) ? json_number(item) : -1;
    load_require(ld, number >= 0 && number < 1e15, "%s[%d] must be a number from 0 on", field, i);
    return number >= 0 && number < 1e15 ? number : absent;
}

bool family_kind(Loader *ld, const char *field, const Json *list, int i, const char *kind, const char *other) {
    const Json *item = list->size > (uint32_t)i ? family_item(list, i) : NULL;
    const Slice text = item && item->type == JSON_STRING ? json_slice(item) : (Slice){0};
    load_require(ld, slice_is(text, kind) || slice_is(text, other), "%s[%d] must be %s or %s", field, i, kind, other);
    return slice_is(text, kind);
}

bool family_has_text(const Json *list, const char *text) {
    for (JSON_EACH(item, list))
        if (item->type == JSON_STRING && slice_is(json_slice(item), text)) return true;
    return false;
}

bool family_text_has(Slice text, long number) {
    long own = -1;
    for (size_t i = 0; i <= text.size; i++) {
        const char c = i < text.size ? text.data[i] : ',';
        if (c >= '0' && c <= '9' && own < 1 << 20) own = (own < 0 ? 0 : 10 * own) + (c - '0');
        if (c == ',' && own == number) return true;
        if (c == ',') own = -1;
    }
    return false;
}

bool family_listed(const Json *list, int number) {
    if (!list) return false;
    for (JSON_EACH(item, list))
        if (item->type == JSON_INTEGER && item->integer == number) return true;
    return false;
}

static bool type_slides(Loader *ld, const Windows *windows, int i) {
    const Json *type = family_item(windows->types, i);
    const Slice name = type->type == JSON_STRING ? json_slice(type) : (Slice){0};
    const bool sliding = slice_is(name, "sliding_attention");
    load_require(ld, sliding || slice_is(name, "full_attention"),
        "layer_types[%d] is \"%.*s\", must be full_attention or sliding_attention", i, SLICE_SHOWN(name));
    load_require(ld, !sliding || windows->width > 0,
        "layer_types[%d] is sliding_attention, but there is no sliding_window, or it is not used", i);
    return sliding;
}

int family_window(Loader *ld, const Windows *windows, int i) {
    const bool last = windows->full_every && (i + 1) % windows->full_every == 0;
    const size_t letter = windows->pattern.size ? (size_t)i % windows->pattern.size : 0;
    const bool local = windows->pattern.size ? windows->pattern.data[letter] == 'L' : i >= windows->first && !last;
    const bool slides = windows->types ? type_slides(ld, windows, i) : local;
    return slides ? windows->width : 0;
}
