/* The part of the Loader that reads config.json and remembers what was read. */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>

#include "model/loader/internal.h"

enum { INT_MAX_FIELD = 1 << 24 };

/* Fields of Hugging Face configs that say nothing about what a decoder computes, whatever the family and their value.
 */
static const char *const irrelevant[] = {
    /* what the file is, and what wrote it */
    "_commit_hash",
    "_name_or_path",
    "architectures",
    "auto_map",
    "finetuning_task",
    "is_llama_config",
    "license",
    "model_type",
    "name",
    "transformers.js_config",
    "transformers_version",
    "unsloth_fixed",
    "unsloth_version",
    /* training */
    "attention_dropout",
    "attn_pdrop",
    "embd_pdrop",
    "hidden_dropout",
    "initializer_range",
    "resid_pdrop",
    /* text: the tokenizer's files, generation_config.json and eos.c */
    "bos_token",
    "bos_token_id",
    "decoder_start_token_id",
    "eos_token",
    "eos_token_id",
    "max_length",
    "min_length",
    "pad_token_id",
    "sep_token_id",
    "task_specific_params",
    "temperature",
    "tokenizer_class",
    "top_k",
    "top_p",
    "unk_token_id",
    /* how other programs compute the same, up to rounding */
    "_attn_implementation",
    "_attn_implementation_internal",
    "attn_implementation",
    "cache_implementation",
    "chunk_size_feed_forward",
    "dtype",
    "pretraining_tp",
    "torch_dtype",
    "torchscript",
    "upcast_layernorm",
    "use_cache",
    "use_flash_attn",
    /* what else they return */
    "id2label",
    "keys_to_ignore_at_inference",
    "label2id",
    "output_attentions",
    "output_hidden_states",
    "problem_type",
    "return_dict",
    /* an encoder's part: of a model that had one, is_encoder_decoder or add_cross_attention would be true */
    "cross_attention_hidden_size",
    "is_decoder",
    /* looked at by load.c */
    "quantization_config",
};

/* Fields that say nothing while they are false. rope_interleaved: what the program that trained the model did, whose
 * weights were permuted for this file or not; transformers and mlx-lm do not look at it. */
static const char *const irrelevant_if_false[] = {
    "add_cross_attention",
    "is_encoder_decoder",
    "rope_interleaved",
    "tie_encoder_decoder",
};

void loader_fail(Loader *ld, ErrorCode code, const char *format, ...) {
    if (ld->failed) {
        return;
    }
    ld->failed = true;
    char text[ERROR_TEXT_MAX];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    fail(ld->error, code, "%s", text);
}

void loader_warn(Loader *ld, const char *format, ...) {
    if (!ld->source->warn) {
        return;
    }
    char text[ERROR_TEXT_MAX];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    Error printable = {0}; /* names from the file become one line of clean text, as in errors */
    fail(&printable, ERROR_FORMAT, "%s", text);
    ld->source->warn(ld->source->warn_context, printable.text);
}

void *loader_alloc(Loader *ld, size_t count, size_t size) {
    void *memory = ld->failed ? NULL : arena_alloc(ld->source->arena, count, size);
    if (!memory) {
        loader_fail(ld, ERROR_MEMORY, "no memory for %zu × %zu bytes", count, size);
    }
    return memory;
}

const char *loader_show(const Json *value, char out[64]) {
    switch (value->type) {
    case JSON_INTEGER: snprintf(out, 64, "%lld", (long long)value->integer); break;
    case JSON_LONG:
    case JSON_REAL: snprintf(out, 64, "%g", json_number(value)); break;
    case JSON_BOOL: snprintf(out, 64, "%s", value->boolean ? "true" : "false"); break;
    case JSON_STRING: {
        Slice text = json_slice(value);
        snprintf(out, 64, "\"%.*s\"", (int)(text.size < 40 ? text.size : 40), text.data);
        break;
    }
    default: snprintf(out, 64, "%s", json_type_name(value));
    }
    return out;
}

void load_field_names(Loader *ld, const LoadName *names) { ld->field_names = names; }

/* The name of a field in this file; NULL: the same. */
static const char *name_here(const Loader *ld, const char *field) {
    for (const LoadName *name = ld->field_names; name && name->usual; name++)
        if (strcmp(name->usual, field) == 0) return name->here;
    return NULL;
}

static const Json *get_exactly(Loader *ld, const Json *object, const char *field) {
    for (JSON_EACH_PAIR(key, value, object)) {
        if (slice_is(json_slice(key), field)) {
            ld->field_used[key - ld->root] |= FIELD_USED;
            return value->type == JSON_NULL ? NULL : value;
        }
    }
    return NULL;
}

const Json *loader_get(Loader *ld, const Json *object, const char *field) {
    if (!object || object->type != JSON_OBJECT) return NULL;
    const char *other = name_here(ld, field);
    const Json *value = get_exactly(ld, object, field), *here = other ? get_exactly(ld, object, other) : NULL;
    return value ? value : here;
}

const Json *loader_object(Loader *ld, const Json *object, const char *field, const char *where) {
    const Json *value = loader_get(ld, object, field);
    if (!value) {
        return NULL;
    }
    if (value->type != JSON_OBJECT) {
        loader_fail(
            ld, ERROR_FORMAT, "config.json: %s%s is %s, must be an object", where, field, json_type_name(value));
        return NULL;
    }
    ld->field_used[value - ld->root] |= FIELD_ENTERED;
    return value;
}

static void missing(Loader *ld, const char *field) {
    const char *here = name_here(ld, field);
    loader_fail(ld, ERROR_FORMAT, "config.json: %s%s is missing", ld->where, here ? here : field);
}

static int read_int(Loader *ld, const Json *value, const char *field, int least) {
    char shown[64];
    if (value->type != JSON_INTEGER || value->integer < least || value->integer > INT_MAX_FIELD) {
        loader_fail(ld, ERROR_FORMAT, "config.json: %s%s is %s, must be an integer from %d to %d", ld->where, field,
            loader_show(value, shown), least, INT_MAX_FIELD);
        return 1;
    }
    return (int)value->integer;
}

int load_int(Loader *ld, const char *field) {
    const Json *value = loader_get(ld, ld->fields, field);
    if (!value) {
        missing(ld, field);
        return 1;
    }
    return read_int(ld, value, field, 1);
}

int load_int_or(Loader *ld, const char *field, int absent) {
    const Json *value = loader_get(ld, ld->fields, field);
    return value ? read_int(ld, value, field, 1) : absent;
}

int load_int_at(Loader *ld, const char *field, int i, int absent) {
    const Json *value = loader_get(ld, ld->fields, field), *item = value;
    if (value && value->type == JSON_ARRAY) {
        load_require(ld, value->size > (uint32_t)i, "%s has %u elements, none for layer %d", field, value->size, i);
        if (value->size <= (uint32_t)i) return absent;
        item = json_first(value);
        for (int at = 0; at < i; at++) item = json_next(item);
    }
    return item ? read_int(ld, item, field, 1) : absent;
}

int load_count_or(Loader *ld, const char *field, int absent) {
    const Json *value = loader_get(ld, ld->fields, field);
    return value ? read_int(ld, value, field, 0) : absent;
}

double loader_positive(Loader *ld, const Json *value, const char *where, const char *field) {
    char shown[64];
    const double number = json_is_number(value) ? json_number(value) : 0;
    if (!(number >= 1e-30 && number <= 1e30)) { /* what f32 arithmetic can work with */
        loader_fail(ld, ERROR_FORMAT, "config.json: %s%s is %s, must be a number from 1e-30 to 1e30", where, field,
            loader_show(value, shown));
        return 1;
    }
    return number;
}

float load_positive(Loader *ld, const char *field) {
    const Json *value = loader_get(ld, ld->fields, field);
    if (!value) {
        missing(ld, field);
        return 1;
    }
    return (float)loader_positive(ld, value, ld->where, field);
}

float load_positive_or(Loader *ld, const char *field, double absent) {
    const Json *value = loader_get(ld, ld->fields, field);
    return (float)(value ? loader_positive(ld, value, ld->where, field) : absent);
}

float load_number_or(Loader *ld, const char *field, double absent) {
    const Json *value = loader_get(ld, ld->fields, field);
    return json_is_number(value) && json_number(value) == 0 ? 0 : load_positive_or(ld, field, absent);
}

float load_negative_or(Loader *ld, const char *field, double absent) {
    char shown[64];
    const Json *value = loader_get(ld, ld->fields, field);
    const double number = json_is_number(value) ? json_number(value) : 0;
    if (value && !(number < 0 && isfinite((float)number)))
        loader_fail(ld, ERROR_FORMAT, "config.json: %s%s is %s, must be a number below 0", ld->where, field,
            loader_show(value, shown));
    return (float)(value ? number : absent);
}

bool load_bool_or(Loader *ld, const char *field, bool absent) {
    const Json *value = loader_get(ld, ld->fields, field);
    if (!value) {
        return absent;
    }
    if (value->type != JSON_BOOL) {
        char shown[64];
        loader_fail(ld, ERROR_FORMAT, "config.json: %s%s is %s, must be true or false", ld->where, field,
            loader_show(value, shown));
        return absent;
    }
    return value->boolean;
}

bool load_truth_or(Loader *ld, const char *field, bool absent) {
    const Json *value = loader_get(ld, ld->fields, field);
    return json_is_number(value) ? json_number(value) != 0 : load_bool_or(ld, field, absent);
}

bool load_text_is(Loader *ld, const char *field, const char *wanted) {
    const Json *value = loader_get(ld, ld->fields, field);
    return value && value->type == JSON_STRING && slice_is(json_slice(value), wanted);
}

int load_context(const Loader *ld) { return ld->source->context; }

bool load_has_field(Loader *ld, const char *field) { return loader_get(ld, ld->fields, field) != NULL; }

bool load_is_list(Loader *ld, const char *field) {
    const Json *value = loader_get(ld, ld->fields, field);
    return value && value->type == JSON_ARRAY;
}

bool load_null(Loader *ld, const char *field) {
    const Json *value = json_get(ld->fields, field);
    return value && value->type == JSON_NULL;
}

bool load_is_int(Loader *ld, const char *field, int value) {
    const Json *found = loader_get(ld, ld->fields, field);
    return found && found->type == JSON_INTEGER && found->integer == value;
}

Slice load_string(Loader *ld, const char *field) {
    const Json *value = loader_get(ld, ld->fields, field);
    return value && value->type == JSON_STRING ? json_slice(value) : (Slice){0};
}

const Json *load_list(Loader *ld, const char *field, int count) {
    const Json *value = loader_get(ld, ld->fields, field);
    if (!value) {
        return NULL;
    }
    if (value->type == JSON_ARRAY && count < 0) {
        load_require(ld, value->size <= LAYERS_MAX, "%s has %u elements, at most %d can be", field, value->size,
            LAYERS_MAX); /* it is searched for each layer */
        return ld->failed ? NULL : value;
    }
    if (value->type != JSON_ARRAY || value->size != (uint32_t)count) {
        loader_fail(ld, ERROR_FORMAT, "config.json: %s%s is %s of %u, must be an array of %d", ld->where, field,
            json_type_name(value), value->type == JSON_ARRAY ? value->size : 1, count);
        return NULL;
    }
    return value;
}

void load_expect_text(Loader *ld, const char *field, const char *expected) {
    char shown[64];
    const Json *value = loader_get(ld, ld->fields, field);
    if (value && (value->type != JSON_STRING || !slice_is(json_slice(value), expected))) {
        loader_fail(ld, ERROR_UNSUPPORTED, "config.json: %s%s is %s; %s computes \"%s\" only", ld->where, field,
            loader_show(value, shown), ld->family, expected);
    }
}

void load_expect_int(Loader *ld, const char *field, int expected) {
    char shown[64];
    const Json *value = loader_get(ld, ld->fields, field);
    if (!value || (value->type == JSON_INTEGER && value->integer == expected)) return;
    loader_fail(ld, ERROR_UNSUPPORTED, "config.json: %s%s is %s; %s computes %d only", ld->where, field,
        loader_show(value, shown), ld->family, expected);
}

void load_expect_bool(Loader *ld, const char *field, bool expected) {
    if (load_bool_or(ld, field, expected) != expected) {
        loader_fail(ld, ERROR_UNSUPPORTED, "config.json: %s%s is %s; %s computes %s only", ld->where, field,
            expected ? "false" : "true", ld->family, expected ? "true" : "false");
    }
}

void load_ignore(Loader *ld, ...) {
    va_list fields;
    va_start(fields, ld);
    for (const char *field = va_arg(fields, const char *); field; field = va_arg(fields, const char *)) {
        loader_get(ld, ld->fields, field);
    }
    va_end(fields);
}

void load_enter(Loader *ld, const char *field, const char *prefix) {
    const Json *object = loader_object(ld, ld->fields, field, ld->where);
    if (!object) {
        missing(ld, field);
        return;
    }
    ld->fields = object;
    snprintf(ld->where, sizeof ld->where, "%s.", field);
    snprintf(ld->prefix, sizeof ld->prefix, "%s", prefix);
}

void load_require(Loader *ld, bool ok, const char *format, ...) {
    if (ok || ld->failed) {
        return;
    }
    char text[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    loader_fail(ld, ERROR_UNSUPPORTED, "config.json: %s%s", ld->where, text);
}

static bool is_one_of(Slice field, const char *const *names, size_t count) {
    for (size_t i = 0; i < count; i++) {
        if (slice_is(field, names[i])) {
            return true;
        }
    }
    return false;
}

static bool is_irrelevant(Slice field, const Json *value) {
    const bool is_false = value->type == JSON_BOOL && !value->boolean;
    return value->type == JSON_NULL || is_one_of(field, irrelevant, COUNT_OF(irrelevant)) ||
        (is_false && is_one_of(field, irrelevant_if_false, COUNT_OF(irrelevant_if_false)));
}

static void check_object(Loader *ld, const Json *object, const char *where) {
    for (JSON_EACH_PAIR(key, value, object)) {
        Slice field = json_slice(key);
        const int size = (int)(field.size < 80 ? field.size : 80);
        if (ld->field_used[value - ld->root] & FIELD_ENTERED) {
            char inner[128];
            snprintf(inner, sizeof inner, "%s%.*s.", where, size, field.data);
            check_object(ld, value, inner);
        } else if (ld->field_used[key - ld->root] == 0 && !is_irrelevant(field, value)) {
            if (ld->source->strict_config) {
                loader_fail(ld, ERROR_UNSUPPORTED, "config.json: %s does not know the field %s%.*s", ld->family, where,
                    size, field.data);
                return;
            }
            loader_warn(ld, "config.json: %s does not know the field %s%.*s; it is ignored", ld->family, where, size,
                field.data);
        }
    }
}

void loader_check_fields(Loader *ld) { check_object(ld, ld->root, ""); }
