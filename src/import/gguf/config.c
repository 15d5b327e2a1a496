/* config.json from GGUF metadata: the fields in the family's rows, then the common ones: rotary embeddings, end tokens,
 * the forms of the matrices. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "import/gguf/internal.h"

enum { END_TOKENS_MAX = 16, PLACE_MAX = 96 };

typedef struct Writer {
    Buffer *out;
    const GgufFile *file;
    const GgufPlan *plan;
    Error *error;
    bool failed;
    char place[PLACE_MAX]; /* the object whose fields are being written: "a.b."; "": config.json itself */
    bool first;            /* nothing is in it yet */
    GgufSizes sizes;
} Writer;

/* Metadata holds f32: 1e-6 reads as 9.99999997e-07, and is written as 1e-06 again. */
void gguf_write_float(Buffer *out, double value) {
    char text[32];
    if (value == rint(value) && fabs(value) < 1e15) {
        buffer_printf(out, "%.1f", value);
        return;
    }
    for (int digits = 1; digits <= 9; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, value);
        if (strtof(text, NULL) == (float)value) break;
    }
    buffer_text(out, text);
    if (!strpbrk(text, ".e")) buffer_text(out, ".0");
}

/* --- Reading fields -------------------------------------------------------------------------------------------- */

static void fail_field(Writer *w, const char *key, const char *problem) {
    if (!w->failed) fail(w->error, ERROR_FORMAT, "%.*s%s %s", SLICE_SHOWN(w->file->architecture), key, problem);
    w->failed = true;
}

/* Whether the key has a number per layer that gives the layer's kind. */
static bool tells_kinds(const GgufModel *model, const char *key) {
    for (const GgufField *const *list = model->fields; *list; list++)
        for (const GgufField *field = *list; field->name; field++)
            for (const GgufLayerKind *kind = field->kinds; kind && kind->name; kind++)
                if (kind->key && strcmp(kind->key, key) == 0) return true;
    return false;
}

static int64_t field_integer(Writer *w, const char *key, int64_t minimum) {
    int64_t value = 0;
    if (!(tells_kinds(w->plan->model, key) ? gguf_layers_integer : gguf_integer)(w->file, key, &value)) {
        fail_field(w, key, gguf_value(w->file, key) ? "is not one whole number" : "is missing");
    } else if (value < minimum || value > INT32_MAX) {
        fail_field(w, key, "is out of range");
    }
    return value;
}

static int64_t field_integer_or(Writer *w, const char *key, int64_t minimum, int64_t otherwise) {
    return gguf_value(w->file, key) ? field_integer(w, key, minimum) : otherwise;
}

static double field_number_or(Writer *w, const char *key, double otherwise) {
    double value = otherwise;
    if (gguf_value(w->file, key) && !gguf_number(w->file, key, &value)) fail_field(w, key, "is not a number");
    if (!isfinite(value)) fail_field(w, key, "is not finite");
    return value;
}

/* --- Writing fields -------------------------------------------------------------------------------------------- */

static void put_own_key(Writer *w, Slice name) {
    buffer_printf(w->out, "%s\n  \"%.*s\": ", w->first ? "" : ",", SLICE_ARGS(name));
    w->first = false;
}

/* Closes and opens objects as a field's name "a.b.c" wants it; returns its last part. */
static const char *put_place(Writer *w, const char *name) {
    const char *last = strrchr(name, '.');
    const size_t size = last ? (size_t)(last - name) + 1 : 0;
    size_t same = 0;
    CHECK(size < PLACE_MAX);
    for (size_t i = 0; i < size && w->place[i] == name[i]; i++)
        if (name[i] == '.') same = i + 1;
    for (size_t i = same; w->place[i]; i++)
        if (w->place[i] == '.') buffer_byte(w->out, '}');
    if (w->place[same]) w->first = false;
    for (size_t next; same < size; same = next) {
        next = (size_t)(strchr(name + same, '.') - name) + 1;
        put_own_key(w, (Slice){name + same, next - same - 1});
        buffer_byte(w->out, '{');
        w->first = true;
    }
    snprintf(w->place, sizeof w->place, "%.*s", (int)size, name);
    return name + size;
}

static void put_key(Writer *w, const char *name) {
    const char *own = put_place(w, name);
    put_own_key(w, slice_of(own));
}

static void put_integer(Writer *w, const char *name, int64_t value) {
    put_key(w, name);
    json_write_integer(w->out, value);
}

static void put_number(Writer *w, const char *name, double value) {
    put_key(w, name);
    gguf_write_float(w->out, value);
}

static void put_text(Writer *w, const char *name, const char *value) {
    put_key(w, name);
    json_write_string(w->out, slice_of(value));
}

static void put_bool(Writer *w, const char *name, bool value) {
    put_key(w, name);
    buffer_text(w->out, value ? "true" : "false");
}

/* --- RoPE ------------------------------------------------------------------------------------------------------ */

static bool factors_equal(
    const float *factors, int64_t count, double base, double scale, double low, double high, double context) {
    for (int64_t i = 0; i < count; i++) {
        double wavelength = 2 * M_PI * pow(base, (double)i / (double)count), expected = scale;
        if (wavelength < context / high) {
            expected = 1;
        } else if (wavelength <= context / low) {
            double smooth = (context / wavelength - low) / (high - low);
            expected = 1 / ((1 - smooth) / scale + smooth);
        }
        /* The converter computes in f32 through a power and three divisions: 1e-4 holds its error and tells contexts
         * that differ by a factor of two apart. */
        if (!(fabs((double)factors[i] - expected) <= 1e-4 * expected)) return false; /* a NaN neither */
    }
    return true;
}

/* Begins the object with the scaling of a rotary embedding. */
static void put_scaling(Writer *w, const char *type) {
    put_key(w, w->plan->model->rope_of_kinds ? "rope_parameters.full_attention" : "rope_scaling");
    buffer_printf(w->out, "{\"rope_type\": \"%s\"", type);
    if (!w->plan->model->rope_of_kinds) return;
    buffer_text(w->out, ", \"rope_theta\": ");
    gguf_write_float(w->out, w->sizes.rope_base);
    buffer_text(w->out, ", \"partial_rotary_factor\": ");
    gguf_write_float(w->out, (double)w->sizes.rotary_dims / (double)w->sizes.head_dim);
}

/* Layers with a window: their rotary embedding is not scaled. */
static void put_swa_rope(Writer *w) {
    put_text(w, "rope_parameters.sliding_attention.rope_type", "default");
    put_number(w, "rope_parameters.sliding_attention.rope_theta", w->sizes.swa_rope_base);
    put_number(w, "rope_parameters.sliding_attention.partial_rotary_factor",
        (double)w->sizes.swa_rotary_dims / (double)w->sizes.head_dim);
}

/* Llama 3's scaling is stored as its result, one divisor per frequency: find the parameters that give it. */
static void put_llama3_scaling(Writer *w, const GgufTensor *tensor, double base) {
    enum { FREQUENCIES_MAX = 512 };
    static const double contexts[] = {8192, 4096, 2048, 16384, 32768, 65536, 131072};
    float factors[FREQUENCIES_MAX];
    if (tensor->info->bits || !dtype_is_float(tensor->info->dtype) || tensor->rank != 1 ||
        tensor->cols * 2 != w->sizes.head_dim || tensor->cols > FREQUENCIES_MAX) {
        if (!w->failed) fail(w->error, ERROR_FORMAT, "tensor rope_freqs.weight does not hold half a head's floats");
        w->failed = true;
        return;
    }
    floats_to_f32(factors, tensor->data, tensor->info->dtype, tensor->cols);
    float scale = 1;
    for (int64_t i = 0; i < tensor->cols; i++) scale = fmaxf(scale, factors[i]);
    enum { LOW_AND_HIGH = 2 * COUNT_OF(contexts) };
    for (size_t i = 0; i < LOW_AND_HIGH + COUNT_OF(contexts); i++) {
        const bool steep = i >= LOW_AND_HIGH; /* as Step 3.5 has it */
        const double context = contexts[steep ? i - LOW_AND_HIGH : i / 2];
        const double high = steep ? 32 : i % 2 ? 1 : 4; /* Llama 4 has no frequencies between */
        if (!factors_equal(factors, tensor->cols, base, (double)scale, 1, high, context)) continue;
        put_scaling(w, "llama3");
        buffer_text(w->out, ", \"factor\": ");
        gguf_write_float(w->out, (double)scale);
        buffer_printf(w->out,
            ", \"low_freq_factor\": 1.0, \"high_freq_factor\": %.1f, \"original_max_position_embeddings\": %d}", high,
            (int)context);
        return;
    }
    if (!w->failed) fail(w->error, ERROR_UNSUPPORTED, "tensor rope_freqs.weight is not a scaling as Llama 3 has it");
    w->failed = true;
}

static void put_factor_list(Writer *w, const char *name, const char *tensor_name) {
    const GgufTensor *tensor = gguf_tensor(w->file, tensor_name);
    if (!tensor || tensor->info->bits || tensor->rank != 1 || tensor->cols * 2 != w->sizes.rotary_dims) {
        if (!w->failed) fail(w->error, ERROR_FORMAT, "tensor %s is missing or not half a head's floats", tensor_name);
        w->failed = true;
        return;
    }
    buffer_printf(w->out, ", \"%s\": [", name);
    for (int64_t i = 0; i < tensor->cols; i++) {
        float factor;
        floats_to_f32(&factor, tensor->data + (size_t)i * dtype_bytes(tensor->info->dtype), tensor->info->dtype, 1);
        if (!isfinite(factor) || factor <= 0) {
            if (!w->failed)
                fail(w->error, ERROR_FORMAT, "tensor %s: factor %lld is not positive", tensor_name, (long long)i);
            w->failed = true;
            return;
        }
        if (i) buffer_text(w->out, ", ");
        gguf_write_float(w->out, (double)factor);
    }
    buffer_byte(w->out, ']');
}

static void put_yarn_option(Writer *w, const char *name, const char *key) {
    if (!gguf_value(w->file, key)) return;
    buffer_printf(w->out, ", \"%s\": ", name);
    gguf_write_float(w->out, field_number_or(w, key, 0));
}

/* The converter leaves out mscale, which is mscale_all_dim in all models there are, and keeps that, or a tenth of it.
 */
static void put_yarn_mscale(Writer *w) {
    const double all = field_number_or(w, ".rope.scaling.yarn_log_multiplier", 0) / (w->plan->model->latent ? 0.1 : 1);
    if (all == 0) return;
    buffer_text(w->out, ", \"mscale\": ");
    gguf_write_float(w->out, all);
    buffer_text(w->out, ", \"mscale_all_dim\": ");
    gguf_write_float(w->out, all);
}

/* The trained context unless it is said, as in llama.cpp. */
static int64_t original_positions(Writer *w) {
    static const char own[] = ".rope.scaling.original_context_length";
    return field_integer(w, gguf_value(w->file, own) ? own : ".context_length", 1);
}

/* llama.cpp takes a negative number as absent. Absent: 1 where the type is YaRN, else 0. */
static void check_extrapolation(Writer *w, bool yarn) {
    static const char key[] = ".rope.scaling.yarn_ext_factor";
    const double factor = gguf_value(w->file, key) ? field_number_or(w, key, 0) : -1;
    if (factor >= 0 && factor != (yarn ? 1 : 0)) fail_field(w, key, yarn ? "is not 1" : "is not 0");
}

static void put_rope_scaling(Writer *w, double base) {
    const GgufTensor *frequencies = gguf_tensor(w->file, "rope_freqs.weight");
    const bool factors = gguf_tensor(w->file, "rope_factors_long.weight");
    Slice type = {0};
    if (!gguf_string(w->file, ".rope.scaling.type", &type)) type = (Slice){0};
    check_extrapolation(w, slice_is(type, "yarn"));
    if (!factors && field_number_or(w, ".rope.scaling.attn_factor", 1) != 1)
        fail_field(w, ".rope.scaling.attn_factor", "is not 1");
    if (factors) {
        put_integer(w, "original_max_position_embeddings", original_positions(w));
        put_key(w, "rope_scaling");
        buffer_text(w->out, "{\"type\": \"longrope\"");
        put_factor_list(w, "long_factor", "rope_factors_long.weight");
        put_factor_list(w, "short_factor", "rope_factors_short.weight");
        buffer_byte(w->out, '}');
    } else if (frequencies) {
        put_llama3_scaling(w, frequencies, base);
    } else if (slice_is(type, "linear") || (!type.size && gguf_value(w->file, ".rope.scale_linear"))) {
        double factor = field_number_or(w, type.size ? ".rope.scaling.factor" : ".rope.scale_linear", 0);
        if (factor <= 0) fail_field(w, ".rope.scaling.factor", "is missing or not positive");
        if (factor == 1 && !w->plan->model->rope_of_kinds) return;
        put_scaling(w, "linear");
        buffer_text(w->out, ", \"factor\": ");
        gguf_write_float(w->out, factor);
        buffer_byte(w->out, '}');
    } else if (slice_is(type, "yarn")) {
        double factor = field_number_or(w, ".rope.scaling.factor", 0);
        if (factor <= 0) fail_field(w, ".rope.scaling.factor", "is missing or not positive");
        put_scaling(w, "yarn");
        buffer_text(w->out, ", \"factor\": ");
        gguf_write_float(w->out, factor);
        buffer_printf(w->out, ", \"original_max_position_embeddings\": %lld", (long long)original_positions(w));
        put_yarn_option(w, "beta_fast", ".rope.scaling.yarn_beta_fast");
        put_yarn_option(w, "beta_slow", ".rope.scaling.yarn_beta_slow");
        if (w->plan->model->yarn_bounds_exact) buffer_text(w->out, ", \"truncate\": false");
        if (w->plan->model->queries_scaled) put_yarn_option(w, "llama_4_scaling_beta", ".attention.temperature_scale");
        if (w->plan->model->latent || w->plan->model->queries_scaled)
            put_yarn_mscale(w);
        else
            put_yarn_option(w, "attention_factor", ".rope.scaling.yarn_attn_factor");
        buffer_byte(w->out, '}');
    } else if (type.size && !slice_is(type, "none")) {
        if (!w->failed) {
            fail(w->error, ERROR_UNSUPPORTED, "%.*s.rope.scaling.type is %.*s", SLICE_SHOWN(w->file->architecture),
                SLICE_SHOWN(type));
        }
        w->failed = true;
    } else if (w->plan->model->rope_of_kinds) {
        put_scaling(w, "default");
        buffer_byte(w->out, '}');
    }
}

/* --- The family's fields ---------------------------------------------------------------------------------------- */

/* name: '*' is the number of the layer. NULL: it has none. */
static const GgufTensor *layer_tensor(const Writer *w, const char *name, int64_t layer) {
    char full[96];
    const char *star = strchr(name, '*');
    snprintf(full, sizeof full, "%.*s%lld%s", (int)(star - name), name, (long long)layer, star + 1);
    return gguf_tensor(w->file, full);
}

static bool layer_has(const Writer *w, const char *name, int64_t layer) { return layer_tensor(w, name, layer) != NULL; }

static bool has_tensor(const Writer *w, const char *name) {
    if (!strchr(name, '*')) return gguf_tensor(w->file, name) != NULL;
    for (int64_t i = 0; i < w->sizes.layers; i++)
        if (layer_has(w, name, i)) return true;
    return false;
}

/* The number that all layers have, or the first that is not 0 where they differ: fields of layers say each. */
static int64_t size_or(Writer *w, const char *key, int64_t minimum, int64_t otherwise) {
    const GgufValue *value = gguf_value(w->file, key);
    int64_t number = 0, own;
    if (!value || !value->array || gguf_integer(w->file, key, &number))
        return field_integer_or(w, key, minimum, otherwise);
    for (uint64_t i = 0; i < value->count && number == 0; i++)
        if (gguf_element(w->file, key, i, value->count, &own)) number = own;
    if (number < minimum || number > INT32_MAX) fail_field(w, key, "is out of range");
    return number;
}

/* Part of the factors that are 1: the others are so large that their frequencies stand still. */
static double read_plain_frequencies(const GgufFile *file) {
    const GgufTensor *factors = gguf_tensor(file, "rope_freqs.weight");
    if (!factors || factors->info->bits || factors->rank != 1) return 1;
    int64_t plain = 0;
    for (int64_t i = 0; i < factors->cols; i++) {
        float factor;
        floats_to_f32(&factor, factors->data + (size_t)i * dtype_bytes(factors->info->dtype), factors->info->dtype, 1);
        plain += factor == 1;
    }
    return (double)plain / (double)factors->cols;
}

/* Values from which fields are computed, with defaults of families without such fields. */
static void read_sizes(Writer *w) {
    const GgufTensor *embedding = gguf_tensor(w->file, "token_embd.weight");
    GgufSizes *s = &w->sizes;
    s->hidden = field_integer(w, ".embedding_length", 1);
    (void)field_integer(w, ".block_count", 1);
    s->layers = gguf_layers(w->file);
    if (s->layers > GGUF_BLOCKS_MAX) fail_field(w, ".block_count", "is out of range");
    const GgufModel *model = w->plan->model;
    const bool attends = gguf_model_reads(model, SLICE(".attention.head_count"));
    if (attends && !gguf_value(w->file, ".attention.head_count")) fail_field(w, ".attention.head_count", "is missing");
    s->heads = attends ? size_or(w, ".attention.head_count", 1, 1) : 0;
    s->kv_heads = size_or(w, ".attention.head_count_kv", 1, s->heads);
    s->head_dim = field_integer_or(w, ".attention.key_length", 2, s->heads > 0 ? s->hidden / s->heads : 0);
    s->rotary_dims = field_integer_or(w, ".rope.dimension_count", 2, s->head_dim);
    s->vocab = embedding->rows;
    s->plain_dims = field_integer_or(w, ".attention.key_length_mla", 2, s->head_dim) - s->rotary_dims;
    s->ssm_inner = field_integer_or(w, ".ssm.inner_size", 1, 0);
    s->ssm_heads = field_integer_or(w, ".ssm.time_step_rank", 1, 0);
    s->experts = field_integer_or(w, ".expert_count", 0, 0);
    s->plain_frequencies = read_plain_frequencies(w->file);
    s->embedding_scale = field_number_or(w, ".embedding_scale", 0);
    s->residual_scale = field_number_or(w, ".residual_scale", 0);
    s->logit_scale = field_number_or(w, ".logit_scale", 0);
    const GgufTensor *gate = gguf_tensor(w->file, "blk.0.attn_gate.weight");
    s->gate_rows = gate ? gate->rows : 0;
    s->rope_base = field_number_or(w, ".rope.freq_base", 10000);
    s->swa_rope_base = field_number_or(w, ".rope.freq_base_swa", s->rope_base);
    s->swa_rotary_dims = field_integer_or(w, ".rope.dimension_count_swa", 2, s->head_dim);
    if (s->rope_base <= 0) fail_field(w, ".rope.freq_base", "is not positive");
    if (s->swa_rope_base <= 0) fail_field(w, ".rope.freq_base_swa", "is not positive");
    if (embedding->cols != s->hidden) fail_field(w, ".embedding_length", "is not the width of token_embd.weight");
    if (!attends) return;
    if (model->latent) {
        if (s->plain_dims < 1) fail_field(w, ".rope.dimension_count", "is more than a head has");
        return;
    }
    if (!gguf_field(model, "v_head_dim") &&
        field_integer_or(w, ".attention.value_length", 2, s->head_dim) != s->head_dim) {
        fail_field(w, ".attention.value_length", "differs from key_length");
    }
    if (!gguf_model_reads(model, SLICE(".attention.key_length")) && s->head_dim * s->heads != s->hidden) {
        fail_field(w, ".attention.key_length", "is not embedding_length / head_count");
    }
    const bool whole =
        !model->no_rope && !model->rope_of_kinds && !gguf_model_reads(model, SLICE(".rope.dimension_count"));
    if (whole && s->rotary_dims != s->head_dim) {
        fail_field(w, ".rope.dimension_count", "is not the size of a head");
    }
}

/* 0: config.json does not have the field. */
static double field_value(Writer *w, const GgufField *field) {
    if (field->compute) return field->compute(&w->sizes);
    const char *key = field->key;
    if (key && field->or_key && !gguf_value(w->file, key)) key = field->or_key;
    if (!key || (!gguf_value(w->file, key) && (field->absent != 0 || field->optional))) return field->absent;
    if (field->kind == GGUF_FIELD_INTEGER) return (double)field_integer(w, key, field->optional ? 0 : 1);
    double value = field_number_or(w, key, 0);
    if (value <= 0) fail_field(w, key, "is missing or not positive");
    return value;
}

static void put_text_field(Writer *w, const GgufField *field) {
    if (field->key && field_number_or(w, field->key, field->absent) != field->absent)
        fail_field(w, field->key, "is of a kind that is not known here");
    put_text(w, field->name, field->text);
}

static void put_bool_field(Writer *w, const GgufField *field) {
    bool value = field->absent != 0;
    if (field->key && gguf_value(w->file, field->key) && !gguf_bool(w->file, field->key, &value))
        fail_field(w, field->key, "is not true or false");
    if (field->compute) value = field->compute(&w->sizes) != 0;
    put_bool(w, field->name, value);
}

static void put_choice(Writer *w, const GgufField *field) {
    bool value = field->absent != 0;
    if (field->key && gguf_value(w->file, field->key) && !gguf_bool(w->file, field->key, &value))
        fail_field(w, field->key, "is not true or false");
    if (field->compute) value = field->compute(&w->sizes) != 0;
    put_text(w, field->name, value ? field->text : field->otherwise);
}

/* ---- kinds of layers ---- */

static void fail_layer(Writer *w, int64_t layer, const char *format, const char *what) {
    char problem[160];
    snprintf(problem, sizeof problem, format, what);
    if (!w->failed) fail(w->error, ERROR_FORMAT, "layer %lld %s", (long long)layer, problem);
    w->failed = true;
}

/* The kind that the tensors of a layer tell; NULL: none, or several, which is an error. */
static const GgufLayerKind *kind_of(Writer *w, const GgufLayerKind *kinds, int64_t layer) {
    const GgufLayerKind *found = NULL;
    for (const GgufLayerKind *kind = kinds; kind->name; kind++) {
        if (!layer_has(w, kind->tensor, layer)) continue;
        if (found) fail_layer(w, layer, "is of two kinds: it has %s, too", kind->tensor);
        found = found ? found : kind;
    }
    if (!found) fail_layer(w, layer, "has no tensor that tells its kind, such as %s", kinds->tensor);
    return found;
}

/* What the metadata say of a layer must agree with its tensors. */
static void check_kind(Writer *w, const GgufLayerKind *kinds, const GgufLayerKind *own, int64_t layer) {
    int64_t blocks = 0, number;
    (void)gguf_integer(w->file, ".block_count", &blocks);
    for (const GgufLayerKind *kind = kinds; kind->name; kind++) {
        if (!kind->key) continue;
        const bool expected = own->key && strcmp(own->key, kind->key) == 0;
        if (!gguf_element(w->file, kind->key, (uint64_t)layer, (uint64_t)blocks, &number))
            fail_field(w, kind->key, "is missing, or not one number for each layer");
        else if ((number != 0) != expected && !w->failed)
            w->failed = !fail(w->error, ERROR_FORMAT, "layer %lld has %s, but %.*s%s says %lld", (long long)layer,
                own->tensor, SLICE_SHOWN(w->file->architecture), kind->key, (long long)number);
    }
}

/* A list, or a text of the first letters. */
static void put_kinds(Writer *w, const GgufField *field, bool letters) {
    put_key(w, field->name);
    buffer_byte(w->out, letters ? '"' : '[');
    for (int64_t i = 0; i < w->sizes.layers && !w->failed; i++) {
        const GgufLayerKind *kind = kind_of(w, field->kinds, i);
        if (!kind) return;
        check_kind(w, field->kinds, kind, i);
        if (letters) {
            buffer_byte(w->out, kind->name[0]);
            continue;
        }
        if (i) buffer_text(w->out, ", ");
        json_write_string(w->out, slice_of(kind->name));
    }
    buffer_byte(w->out, letters ? '"' : ']');
}

/* Layers with a tensor lie at first, first + every, … */
static void put_regular(Writer *w, const GgufField *field, bool distance) {
    int64_t first = -1, every = 0;
    for (int64_t i = 0; i < w->sizes.layers && every == 0; i++) {
        if (!layer_has(w, field->key, i)) continue;
        every = first < 0 ? 0 : i - first;
        first = first < 0 ? i : first;
    }
    if (first < 0) return;
    every = every ? every : w->sizes.layers;
    for (int64_t i = 0; i < w->sizes.layers; i++)
        if (layer_has(w, field->key, i) != (i % every == first))
            fail_layer(w, i, "breaks the regular distance of layers with %s", field->key);
    put_integer(w, field->name, distance ? every : first);
}

/* ---- fields of layers ---- */

static int64_t blocks_of(const GgufFile *file) {
    int64_t blocks = 0;
    (void)gguf_integer(file, ".block_count", &blocks);
    return blocks;
}

/* Whether there is a list of flags, so that flag_of() may be asked. */
static bool has_flags(const Writer *w, const GgufField *field) {
    return strchr(field->key, '*') || gguf_value(w->file, field->key) || field->absent != 0;
}

static bool flag_of(Writer *w, const GgufField *field, int64_t layer) {
    if (strchr(field->key, '*')) return layer_has(w, field->key, layer);
    const GgufValue *value = gguf_value(w->file, field->key);
    bool flag = false;
    if (value && value->array) {
        if (!gguf_flag(w->file, field->key, (uint64_t)layer, (uint64_t)blocks_of(w->file), &flag))
            fail_field(w, field->key, "is not one flag for each layer");
        return flag;
    }
    const int64_t every = field_integer_or(w, field->key, 0, (int64_t)field->absent);
    if (every < 0) return layer % -every != 0;
    return every == 0 || layer % every < every - 1;
}

static void put_flags(Writer *w, const GgufField *field) {
    if (!has_flags(w, field)) return;
    put_key(w, field->name);
    for (int64_t i = 0; i < w->sizes.layers && !w->failed; i++)
        buffer_printf(w->out, "%s%s", i ? ", " : "[", flag_of(w, field, i) ? field->text : field->otherwise);
    buffer_byte(w->out, ']');
}

static void put_where(Writer *w, const GgufField *field) {
    int64_t number, common = 0;
    for (int64_t i = 0; i < w->sizes.layers && !w->failed; i++) {
        if (flag_of(w, field->flags, i) == field->unflagged) continue;
        if (!gguf_element(w->file, field->key, (uint64_t)i, (uint64_t)blocks_of(w->file), &number) || number < 1 ||
            number > INT32_MAX)
            fail_field(w, field->key, "is missing, or not one number for each layer");
        else if (common && number != common)
            fail_field(w, field->key, "differs among layers of one kind");
        common = number;
    }
    if (common && !w->failed) put_integer(w, field->name, common);
}

static void put_list(Writer *w, const GgufField *field, bool open) {
    int64_t number = 0;
    const GgufValue *value = gguf_value(w->file, field->key);
    uint64_t count = (uint64_t)blocks_of(w->file);
    if (open && value && value->array && value->count > count) count = value->count;
    put_key(w, field->name);
    for (int64_t i = 0; i < w->sizes.layers && !w->failed; i++) {
        if (!gguf_element(w->file, field->key, (uint64_t)i, count, &number) || number < 0 || number > INT32_MAX)
            fail_field(w, field->key, "is missing, or not one number for each layer");
        buffer_printf(w->out, "%s%lld", i ? ", " : "[", (long long)number);
    }
    buffer_byte(w->out, ']');
}

/* Key absent: 0. */
static int64_t layer_size(Writer *w, const char *key, int64_t layer) {
    int64_t number = 0;
    if (!gguf_value(w->file, key)) return 0;
    if (!gguf_element(w->file, key, (uint64_t)layer, (uint64_t)blocks_of(w->file), &number) || number < 0 ||
        number > INT32_MAX)
        fail_field(w, key, "is not one number for each layer");
    return number;
}

static void put_each(Writer *w, const GgufField *field) {
    char text[160];
    put_key(w, field->name);
    for (int64_t i = 0; i < w->sizes.layers && !w->failed; i++) {
        const GgufLayerSizes layer = {.heads = layer_size(w, ".attention.head_count", i),
            .kv_heads = layer_size(w, ".attention.head_count_kv", i),
            .inner = layer_size(w, ".feed_forward_length", i),
            .flagged = field->flags && has_flags(w, field->flags) && flag_of(w, field->flags, i)};
        field->layer(text, sizeof text, &w->sizes, &layer);
        buffer_printf(w->out, "%s%s", i ? ", " : "[", text);
    }
    buffer_byte(w->out, ']');
}

static void put_with(Writer *w, const GgufField *field) {
    bool any = false;
    put_key(w, field->name);
    buffer_byte(w->out, '[');
    for (int64_t i = 0; i < w->sizes.layers; i++) {
        if (!layer_has(w, field->key, i)) continue;
        buffer_printf(w->out, "%s%lld", any ? ", " : "", (long long)i);
        any = true;
    }
    buffer_byte(w->out, ']');
}

static void put_numbers(Writer *w, const GgufField *field) {
    const GgufValue *value = gguf_value(w->file, field->key);
    if (!value) return;
    if (!value->array || value->kind != GGUF_F32 || value->count != (uint64_t)blocks_of(w->file)) {
        fail_field(w, field->key, "is not one number for each layer");
        return;
    }
    put_key(w, field->name);
    for (int64_t i = 0; i < w->sizes.layers; i++) {
        float number;
        memcpy(&number, value->data + (size_t)i * sizeof number, sizeof number);
        const double own = field->each ? field->each((double)number) : (double)number;
        if (!isfinite(own)) fail_field(w, field->key, "has a number that is not finite");
        buffer_text(w->out, i ? ", " : "[");
        gguf_write_float(w->out, own);
    }
    buffer_byte(w->out, ']');
}

static void put_uniform(Writer *w, const GgufField *field) {
    const GgufValue *value = gguf_value(w->file, field->key);
    float number = 0, next;
    if (!value || !value->array) {
        number = (float)field_number_or(w, field->key, 0);
    } else if (value->kind == GGUF_F32 && value->count == (uint64_t)blocks_of(w->file)) {
        memcpy(&number, value->data, sizeof number);
        for (uint64_t i = 1; i < value->count; i++) {
            memcpy(&next, value->data + (size_t)i * sizeof next, sizeof next);
            if (next != number) fail_field(w, field->key, "differs among layers");
        }
    }
    if (!isfinite(number) || number <= 0) fail_field(w, field->key, "is missing, or not a number above 0");
    put_number(w, field->name, (double)number);
}

static void put_count(Writer *w, const GgufField *field) {
    const bool here = gguf_value(w->file, field->key);
    if (here || field->absent != 0)
        put_integer(w, field->name, field_integer_or(w, field->key, 0, (int64_t)field->absent));
}

static void put_at_0(Writer *w, const GgufField *field) {
    int64_t number = 0;
    if (!gguf_element(w->file, field->key, 0, (uint64_t)blocks_of(w->file), &number) || number < 1 ||
        number > INT32_MAX)
        fail_field(w, field->key, "is missing, or not one number for each layer");
    put_integer(w, field->name, number);
}

static void put_rows(Writer *w, const GgufField *field) {
    const GgufTensor *tensor = NULL;
    if (!strchr(field->key, '*')) tensor = gguf_tensor(w->file, field->key);
    for (int64_t i = 0; strchr(field->key, '*') && !tensor && i < w->sizes.layers; i++)
        tensor = layer_tensor(w, field->key, i);
    if (tensor) put_integer(w, field->name, tensor->rows);
}

static bool has_parts(const Writer *w, const GgufField *field) {
    for (int64_t i = 0; i < w->sizes.layers; i++)
        if (layer_has(w, field->key, i) && !layer_has(w, field->or_key, i)) return true;
    return false;
}

static void check_equal(Writer *w, const GgufField *field) {
    char problem[96];
    snprintf(problem, sizeof problem, "differs from %s", field->or_key + 1);
    if (gguf_value(w->file, field->key) && field_number_or(w, field->key, 0) != field_number_or(w, field->or_key, 0))
        fail_field(w, field->key, problem);
}

static void put_field(Writer *w, const GgufField *field) {
    double value = 0;
    switch (field->kind) {
    case GGUF_FIELD_FLAGS: put_flags(w, field); return;
    case GGUF_FIELD_WHERE: put_where(w, field); return;
    case GGUF_FIELD_LIST: put_list(w, field, false); return;
    case GGUF_FIELD_START: put_list(w, field, true); return;
    case GGUF_FIELD_UNIFORM: put_uniform(w, field); return;
    case GGUF_FIELD_NUMBERS: put_numbers(w, field); return;
    case GGUF_FIELD_EACH: put_each(w, field); return;
    case GGUF_FIELD_WITH: put_with(w, field); return;
    case GGUF_FIELD_JSON:
        put_key(w, field->name);
        buffer_text(w->out, field->text);
        return;
    case GGUF_FIELD_COUNT: put_count(w, field); return;
    case GGUF_FIELD_AT_0: put_at_0(w, field); return;
    case GGUF_FIELD_VARIES:
        put_bool(w, field->name, gguf_value(w->file, field->key) && !gguf_integer(w->file, field->key, &(int64_t){0}));
        return;
    case GGUF_FIELD_ROWS: put_rows(w, field); return;
    case GGUF_FIELD_PARTS: put_bool(w, field->name, has_parts(w, field)); return;
    case GGUF_FIELD_EQUAL: check_equal(w, field); return;
    case GGUF_FIELD_IGNORED: return;
    case GGUF_FIELD_TEXT: put_text_field(w, field); return;
    case GGUF_FIELD_BOOL: put_bool_field(w, field); return;
    case GGUF_FIELD_CHOICE: put_choice(w, field); return;
    case GGUF_FIELD_LAYERS: put_kinds(w, field, false); return;
    case GGUF_FIELD_LETTERS: put_kinds(w, field, true); return;
    case GGUF_FIELD_FIRST: put_regular(w, field, false); return;
    case GGUF_FIELD_EVERY: put_regular(w, field, true); return;
    case GGUF_FIELD_HAS: put_bool(w, field->name, has_tensor(w, field->key)); return;
    case GGUF_FIELD_LACKS: put_bool(w, field->name, !has_tensor(w, field->key)); return;
    case GGUF_FIELD_NEGATIVE:
        if (!gguf_value(w->file, field->key)) return;
        value = field_number_or(w, field->key, 0);
        if (value >= 0) fail_field(w, field->key, "is not below 0");
        put_number(w, field->name, value);
        return;
    case GGUF_FIELD_INTEGER:
        value = field_value(w, field);
        if (value != 0) put_integer(w, field->name, (int64_t)value);
        return;
    case GGUF_FIELD_NUMBER:
        value = field_value(w, field);
        if (value != 0) put_number(w, field->name, value);
        return;
    }
}

static void put_tokens(Writer *w) {
    int64_t ids[END_TOKENS_MAX], id;
    int count = gguf_end_tokens(w->file, ids, END_TOKENS_MAX);
    if (gguf_integer(w->file, "tokenizer.ggml.bos_token_id", &id)) put_integer(w, "bos_token_id", id);
    if (count == 1) put_integer(w, "eos_token_id", ids[0]);
    if (count > 1) {
        put_key(w, "eos_token_id");
        for (int i = 0; i < count; i++) buffer_printf(w->out, "%s%lld", i ? ", " : "[", (long long)ids[i]);
        buffer_byte(w->out, ']');
    }
    if (gguf_integer(w->file, "tokenizer.ggml.padding_token_id", &id)) put_integer(w, "pad_token_id", id);
}

/* Equal forms: the most common one is the default; modules with another one are named. */
static bool form_same(const Weight *a, const Weight *b) {
    return a->quant == b->quant && a->bits == b->bits && a->group == b->group;
}

/* The form of most matrices: the default; the other forms are exceptions. */
static const Weight *most_used_form(const GgufPlan *plan) {
    const Weight *most = NULL;
    size_t most_uses = 0;
    for (size_t i = 0; i < plan->count; i++) {
        const Weight *form = &plan->outputs[i].form;
        size_t uses = 0;
        if (form->quant == QUANT_NONE) continue;
        for (size_t k = 0; k < plan->count; k++) uses += form_same(&plan->outputs[k].form, form);
        if (uses > most_uses || (uses == most_uses && form->bits < most->bits)) {
            most = form;
            most_uses = uses;
        }
    }
    return most;
}

static void put_quantization(Writer *w) {
    const Weight *most = most_used_form(w->plan);
    if (!most) return;
    put_key(w, "quantization");
    buffer_printf(w->out, "{\n    \"group_size\": %d,\n    \"bits\": %d,\n    \"mode\": \"%s\"", most->group,
        most->bits, quant_name(most->quant));
    for (size_t i = 0; i < w->plan->count; i++) {
        const GgufOutput *output = &w->plan->outputs[i];
        const Weight *form = &output->form;
        if (form->quant == QUANT_NONE || form_same(form, most)) continue;
        buffer_printf(
            w->out, ",\n    \"%s\": {\"group_size\": %d, \"bits\": %d", output->module, form->group, form->bits);
        /* without a mode it would be affine, whatever the rule is */
        if (form->quant != QUANT_AFFINE) buffer_printf(w->out, ", \"mode\": \"%s\"", quant_name(form->quant));
        buffer_text(w->out, "}");
    }
    buffer_text(w->out, "\n  }");
}

bool gguf_config(Buffer *out, const GgufFile *file, const GgufPlan *plan, Error *error) {
    Writer w = {.out = out, .file = file, .plan = plan, .error = error};
    buffer_printf(out, "{\n  \"architectures\": [\"%s\"]", plan->model->class_name);
    put_text(&w, "model_type", plan->model_type);
    read_sizes(&w);
    for (const GgufField *const *list = plan->model->fields; *list && !w.failed; list++) {
        for (const GgufField *field = *list; field->name && !w.failed; field++) put_field(&w, field);
    }
    put_place(&w, "");
    if (!plan->model->no_rope && !plan->model->rope_in_fields) {
        if (!plan->model->rope_of_kinds && !gguf_field(plan->model, "rope_theta"))
            put_number(&w, "rope_theta", w.sizes.rope_base);
        if (!w.failed) put_rope_scaling(&w, w.sizes.rope_base);
        if (plan->model->rope_of_kinds) put_swa_rope(&w);
        put_place(&w, "");
    }
    put_tokens(&w);
    put_quantization(&w);
    buffer_text(out, "\n}\n");
    if (w.failed) return false;
    return !out->failed || fail(error, ERROR_MEMORY, "no memory for config.json");
}
