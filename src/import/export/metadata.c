/* The metadata of a model: the family's rows of fields backwards, what llama.cpp wants beside them, and rotary
 * embeddings. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "import/export/internal.h"

/* --- Keys ------------------------------------------------------------------------------------------------------- */

static void put(Export *e, const void *bytes, size_t size) { buffer_append(&e->keys, bytes, size); }

static void put_text(Export *e, Slice text) {
    const uint64_t size = text.size;
    put(e, &size, sizeof size);
    buffer_slice(&e->keys, text);
}

static void put_key(Export *e, const char *key, uint32_t kind) {
    char full[96];
    snprintf(full, sizeof full, "%s%s", key[0] == '.' ? e->model->architecture : "", key);
    put_text(e, slice_of(full));
    put(e, &kind, sizeof kind);
    e->key_count++;
}

void export_u32(Export *e, const char *key, uint32_t value) {
    put_key(e, key, GGUF_U32);
    put(e, &value, sizeof value);
}

void export_f32(Export *e, const char *key, float value) {
    put_key(e, key, GGUF_F32);
    put(e, &value, sizeof value);
}

void export_bool(Export *e, const char *key, bool value) {
    put_key(e, key, GGUF_BOOL);
    buffer_byte(&e->keys, (char)value);
}

void export_string(Export *e, const char *key, Slice value) {
    put_key(e, key, GGUF_STRING);
    put_text(e, value);
}

void export_array(Export *e, const char *key, GgufKind kind, uint64_t count) {
    const uint32_t type = kind;
    put_key(e, key, GGUF_ARRAY);
    put(e, &type, sizeof type);
    put(e, &count, sizeof count);
}

/* --- Fields ----------------------------------------------------------------------------------------------------- */

static const Json *value_of(const Json *object, const char *name) {
    const Json *value = json_get(object, name);
    return value && value->type != JSON_NULL ? value : NULL;
}

static bool refuse(Export *e, const char *name, const char *why) {
    return fail(e->error, ERROR_UNSUPPORTED, "config.json: %s %s", name, why);
}

static int64_t integer_of(const Export *e, const char *name) {
    const Json *value = value_of(e->config, name);
    return value && value->type == JSON_INTEGER && value->integer > 0 && value->integer <= INT32_MAX ? value->integer
                                                                                                     : 0;
}

static int64_t head_dim(const Export *e) {
    const int64_t own = integer_of(e, "head_dim"), heads = integer_of(e, "num_attention_heads");
    return own ? own : heads ? integer_of(e, "hidden_size") / heads : 0;
}

static int64_t rotary_dims(const Export *e) {
    const Json *parameters = value_of(e->config, "rope_parameters");
    const Json *factor = value_of(parameters, "partial_rotary_factor");
    factor = factor ? factor : value_of(e->config, "partial_rotary_factor");
    return json_is_number(factor) ? (int64_t)(json_number(factor) * (double)head_dim(e)) : head_dim(e);
}

/* Fields without a key say what all GGUF files of the architecture mean. */
static bool check_constant(Export *e, const GgufField *field) {
    const Json *value = value_of(e->config, field->name);
    char why[96];
    if (field->kind == GGUF_FIELD_TEXT) {
        snprintf(why, sizeof why, "must be %s", field->text);
        return !value || (value->type == JSON_STRING && slice_is(json_slice(value), field->text)) ||
            refuse(e, field->name, why);
    }
    if (field->kind != GGUF_FIELD_BOOL) return true; /* computed: export_check() compares */
    const bool is = value && value->type == JSON_BOOL && value->boolean;
    return is == (field->absent != 0) || refuse(e, field->name, field->absent != 0 ? "must be true" : "must be false");
}

static bool put_field(Export *e, const GgufField *field) {
    const bool number = field->kind == GGUF_FIELD_NUMBER, integer = field->kind == GGUF_FIELD_INTEGER;
    if (field->kind == GGUF_FIELD_HAS || field->kind == GGUF_FIELD_LACKS) return true;
    if (!field->key || field->kind == GGUF_FIELD_TEXT) return check_constant(e, field);
    if (!number && !integer) return refuse(e, field->name, "cannot be written into a GGUF file");
    /* Written for every model, below. */
    if (strcmp(field->key, ".attention.key_length") == 0 || strcmp(field->key, ".rope.dimension_count") == 0)
        return true;
    const Json *value = value_of(e->config, field->name);
    if (!value) {
        const bool tells = e->model->with_key && strcmp(field->key, e->model->with_key) == 0; /* Mistral's window */
        const bool needed = !field->compute && !field->or_key && field->absent == 0 && !field->optional && !tells;
        return !needed || refuse(e, field->name, "is missing");
    }
    if (number && json_is_number(value)) {
        export_f32(e, field->key, (float)json_number(value));
        return true;
    }
    if (value->type != JSON_INTEGER || value->integer < 0 || value->integer > INT32_MAX)
        return refuse(e, field->name, "is not one whole number");
    /* Gemma 3's pattern has no key in llama.cpp's files: it is a constant there. */
    if (strcmp(field->key, ".attention.sliding_window_pattern") == 0) return true;
    export_u32(e, field->key, (uint32_t)value->integer);
    return true;
}

/* --- Rotary embeddings ------------------------------------------------------------------------------------------ */

static double scaling_number(const Json *rope, const char *name, double absent) {
    const Json *value = value_of(rope, name);
    return json_is_number(value) ? json_number(value) : absent;
}

/* Llama 3's factors, one for each frequency. Reference: convert_hf_to_gguf's rope_freqs. */
static bool put_llama3(Export *e, const Json *rope, double theta) {
    const double factor = scaling_number(rope, "factor", 8), low = scaling_number(rope, "low_freq_factor", 1),
                 high = scaling_number(rope, "high_freq_factor", 4),
                 context = scaling_number(rope, "original_max_position_embeddings", 8192);
    const int64_t count = e->factor_count = head_dim(e) / 2;
    e->factors[0] = arena_alloc(&e->arena, (size_t)count, sizeof(float));
    if (!e->factors[0]) return fail(e->error, ERROR_MEMORY, "no memory for the rotary embedding's factors");
    for (int64_t i = 0; i < count; i++) {
        const double wave = 2 * M_PI * pow(theta, (double)i / (double)count);
        double own = factor;
        if (wave < context / high)
            own = 1;
        else if (wave <= context / low) {
            const double smooth = (context / wave - low) / (high - low);
            own = 1 / ((1 - smooth) / factor + smooth);
        }
        e->factors[0][i] = (float)own;
    }
    return true;
}

static bool put_longrope(Export *e, const Json *rope) {
    static const char *const names[2] = {"long_factor", "short_factor"};
    const int64_t original = integer_of(e, "original_max_position_embeddings");
    const Json *inner = value_of(rope, "original_max_position_embeddings");
    const int64_t positions = original ? original : inner && inner->type == JSON_INTEGER ? inner->integer : 0;
    if (positions <= 0 || positions > INT32_MAX) return refuse(e, "original_max_position_embeddings", "is missing");
    e->factor_count = rotary_dims(e) / 2;
    for (int i = 0; i < 2; i++) {
        const Json *list = value_of(rope, names[i]);
        if (!list || list->type != JSON_ARRAY || (int64_t)list->size != e->factor_count)
            return refuse(e, names[i], "does not have a number for each rotated pair");
        float *factors = e->factors[i] = arena_alloc(&e->arena, list->size, sizeof(float));
        if (!factors) return fail(e->error, ERROR_MEMORY, "no memory for the rotary embedding's factors");
        for (JSON_EACH(item, list)) *factors++ = json_is_number(item) ? (float)json_number(item) : 0;
    }
    const double scale = (double)integer_of(e, "max_position_embeddings") / (double)positions;
    if (value_of(rope, "short_mscale") || value_of(rope, "attention_factor"))
        return refuse(e, "rope_scaling", "has a factor of its own for attention, which GGUF files do not");
    export_u32(e, ".rope.scaling.original_context_length", (uint32_t)positions);
    export_f32(e, ".rope.scaling.attn_factor", (float)(scale > 1 ? sqrt(1 + log(scale) / log((double)positions)) : 1));
    return true;
}

static bool put_scaling(Export *e, const Json *rope, double theta) {
    const Json *type = value_of(rope, "rope_type") ? value_of(rope, "rope_type") : value_of(rope, "type");
    const Slice kind = type && type->type == JSON_STRING ? json_slice(type) : SLICE("default");
    if (slice_is(kind, "default")) return true;
    if (slice_is(kind, "llama3")) return put_llama3(e, rope, theta);
    if (slice_is(kind, "longrope") || slice_is(kind, "su")) return put_longrope(e, rope);
    if (!slice_is(kind, "linear") && !slice_is(kind, "yarn"))
        return fail(e->error, ERROR_UNSUPPORTED,
            "config.json: rope_scaling of the type %.*s cannot be written into a "
            "GGUF file",
            SLICE_SHOWN(kind));
    if (value_of(rope, "mscale") || value_of(rope, "mscale_all_dim") || value_of(rope, "truncate"))
        return refuse(e, "rope_scaling", "has fields for which GGUF files have no key");
    export_string(e, ".rope.scaling.type", kind);
    export_f32(e, ".rope.scaling.factor", (float)scaling_number(rope, "factor", 1));
    if (slice_is(kind, "linear")) return true;
    const int64_t own = (int64_t)scaling_number(rope, "original_max_position_embeddings", 0);
    if (own <= 0 || own > INT32_MAX) return refuse(e, "original_max_position_embeddings", "is missing");
    export_u32(e, ".rope.scaling.original_context_length", (uint32_t)own);
    if (value_of(rope, "beta_fast"))
        export_f32(e, ".rope.scaling.yarn_beta_fast", (float)scaling_number(rope, "beta_fast", 32));
    if (value_of(rope, "beta_slow"))
        export_f32(e, ".rope.scaling.yarn_beta_slow", (float)scaling_number(rope, "beta_slow", 1));
    if (value_of(rope, "attention_factor"))
        export_f32(e, ".rope.scaling.yarn_attn_factor", (float)scaling_number(rope, "attention_factor", 1));
    return true;
}

static bool put_rope(Export *e) {
    const Json *parameters = value_of(e->config, "rope_parameters");
    const Json *full = value_of(parameters, "full_attention");
    const Json *rope = full ? full : parameters ? parameters : value_of(e->config, "rope_scaling");
    const Json *theta = value_of(parameters ? rope : NULL, "rope_theta");
    theta = theta ? theta : value_of(e->config, "rope_theta");
    const bool given = json_is_number(theta);
    const bool usual = strcmp(e->model->architecture, "llama") == 0 || strcmp(e->model->architecture, "phi3") == 0;
    if (!given && !usual) return refuse(e, "rope_theta", "is missing");
    const double base = given ? json_number(theta) : 10000;
    export_f32(e, ".rope.freq_base", (float)base);
    export_u32(e, ".rope.dimension_count", (uint32_t)rotary_dims(e));
    const Json *local = value_of(value_of(parameters, "sliding_attention"), "rope_theta");
    if (local && !value_of(e->config, "rope_local_base_freq"))
        export_f32(e, ".rope.freq_base_swa", (float)json_number(local));
    return !rope || put_scaling(e, rope, base);
}

/* --- All of it -------------------------------------------------------------------------------------------------- */

/* Fields that no key holds, as GGUF files have them. Windows: all layers alike, or five of six with one. */
static bool check_layers(Export *e) {
    static const struct {
        const char *name;
        bool value;
    } flags[] = {{"use_sliding_window", false}, {"rope_traditional", false}};
    for (size_t i = 0; i < COUNT_OF(flags); i++) {
        const Json *value = value_of(e->config, flags[i].name);
        if (value && !(value->type == JSON_BOOL && value->boolean == flags[i].value))
            return refuse(e, flags[i].name, "must be false");
    }
    const Json *types = value_of(e->config, "layer_types");
    if (!types) return true;
    if (types->type != JSON_ARRAY) return refuse(e, "layer_types", "is not a list");
    const bool gemma = strcmp(e->model->architecture, "gemma3") == 0;
    const bool everywhere = integer_of(e, "sliding_window") && e->model->with_key;
    int i = 0;
    for (JSON_EACH(type, types)) {
        const bool slides = gemma ? i % 6 < 5 : everywhere;
        i++;
        if (type->type != JSON_STRING || !slice_is(json_slice(type), slides ? "sliding_attention" : "full_attention"))
            return refuse(e, "layer_types", "is not the order of layers that GGUF files of this architecture have");
    }
    return true;
}

bool export_metadata(Export *e) {
    static const uint32_t file_types[] = {
        [EXPORT_Q8_0] = 7, [EXPORT_Q4_0] = 2, [EXPORT_Q4_K] = 14, [EXPORT_F16] = 1, [EXPORT_BF16] = 32};
    const char *slash = strrchr(e->source, '/');
    export_string(e, "general.architecture", slice_of(e->model->architecture));
    export_string(e, "general.type", SLICE("model"));
    export_string(e, "general.name", slice_of(slash && slash[1] ? slash + 1 : e->source));
    export_u32(e, "general.file_type", file_types[e->options->type]);
    export_u32(e, "general.quantization_version", 2);
    if (!check_layers(e)) return false;
    for (const GgufField *const *list = e->model->fields; *list; list++)
        for (const GgufField *field = *list; field->name; field++)
            if (!put_field(e, field)) return false;
    if (head_dim(e) <= 0) return refuse(e, "head_dim", "is not one whole number");
    export_u32(e, ".attention.key_length", (uint32_t)head_dim(e));
    export_u32(e, ".attention.value_length", (uint32_t)head_dim(e));
    if (integer_of(e, "vocab_size")) export_u32(e, ".vocab_size", (uint32_t)integer_of(e, "vocab_size"));
    return put_rope(e) && (!e->keys.failed || fail(e->error, ERROR_MEMORY, "no memory for the metadata"));
}

static bool values_equal(const Json *a, const Json *b) {
    if (json_is_number(a) && json_is_number(b)) return (float)json_number(a) == (float)json_number(b);
    if (a->type == JSON_BOOL && b->type == JSON_BOOL) return a->boolean == b->boolean;
    return a->type == JSON_STRING && b->type == JSON_STRING && slice_equal(json_slice(a), json_slice(b));
}

static bool is_compared(Slice name) {
    static const char *const others[] = {"architectures", "model_type", "rope_scaling", "rope_theta", "bos_token_id",
        "eos_token_id", "pad_token_id", "quantization", "vocab_size"};
    for (size_t i = 0; i < COUNT_OF(others); i++)
        if (slice_is(name, others[i])) return false;
    return true;
}

static bool compare(Export *e, const Json *made) {
    for (JSON_EACH_PAIR(key, value, made)) {
        char name[96];
        snprintf(name, sizeof name, "%.*s", SLICE_ARGS(json_slice(key)));
        const Json *own = value_of(e->config, name);
        if (!own || !is_compared(json_slice(key)) || values_equal(own, value)) continue;
        return refuse(e, name, "is not what a GGUF file of this model would say");
    }
    return true;
}

bool export_check(Export *e, const char *path) {
    GgufFile file;
    Buffer text = {0};
    if (!gguf_open(&file, path, e->error)) return false;
    GgufPlan plan = {0};
    bool ok =
        gguf_model_find(&file, &plan.model, &plan.model_type, e->error) && gguf_config(&text, &file, &plan, e->error);
    const Json *made = ok ? json_parse(&e->arena, buffer_view(&text), e->error) : NULL;
    ok = made && compare(e, made);
    gguf_close(&file);
    buffer_free(&text);
    return ok;
}
