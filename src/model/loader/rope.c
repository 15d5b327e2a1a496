/* Rotary frequencies: every kind of mlx_lm/models/rope_utils.py (initialize_rope), in f32 as there. Where mlx-lm leaves
 * out what the models were trained with, transformers/modeling_rope_utils.py decides: YaRN's truncate,
 * attention_factor, longrope's short_factor, rope_theta inside of rope_parameters. */
#include <limits.h>
#include <math.h>
#include <stdio.h>

#include "model/loader/internal.h"
#include "model/model.h"

/* The scaling's own fields. */
typedef struct Scaling {
    Loader *ld;
    const Json *fields; /* NULL: there is none */
    bool of_layer_type; /* the config has its own part for these layers */
    char where[96];
} Scaling;

static double scaling_number(const Scaling *s, const char *field, double absent) {
    const Json *value = loader_get(s->ld, s->fields, field);
    if (value) {
        return loader_positive(s->ld, value, s->where, field);
    }
    if (absent == 0) {
        loader_fail(s->ld, ERROR_FORMAT, "config.json: %s%s is missing", s->where, field);
        return 1;
    }
    return absent;
}

static bool scaling_flag(const Scaling *s, const char *field, bool absent) {
    char shown[64];
    const Json *value = loader_get(s->ld, s->fields, field);
    if (value && value->type != JSON_BOOL)
        loader_fail(s->ld, ERROR_FORMAT, "config.json: %s%s is %s, must be true or false", s->where, field,
            loader_show(value, shown));
    return value && value->type == JSON_BOOL ? value->boolean : absent;
}

/* original_max_position_embeddings; where it is absent, the model was trained for max_position_embeddings, as
 * transformers has it. absent: where that is absent as well. */
static double trained_positions(const Scaling *s, int absent) {
    const double positions = load_int_or(s->ld, "max_position_embeddings", absent);
    return scaling_number(s, "original_max_position_embeddings", positions);
}

/* The factor on the rotated values: the file's own, else what other fields give. */
static float attention_factor(const Scaling *s, float computed) {
    return loader_get(s->ld, s->fields, "attention_factor") ? (float)scaling_number(s, "attention_factor", 0)
                                                            : computed;
}

/* rope_scaling, else rope_parameters, else its part for a layer type. */
static Scaling find_scaling(Loader *ld, const RopeOptions *options) {
    Scaling s = {.ld = ld};
    const Json *parameters = loader_object(ld, ld->fields, "rope_parameters", ld->where);
    const Json *scaling = loader_object(ld, ld->fields, "rope_scaling", ld->where);
    if (options->layer_type && json_get(parameters, options->layer_type)) {
        char where[96];
        snprintf(where, sizeof where, "%srope_parameters.", ld->where);
        parameters = loader_object(ld, parameters, options->layer_type, where);
        snprintf(s.where, sizeof s.where, "%srope_parameters.%s.", ld->where, options->layer_type);
        s.fields = parameters;
        s.of_layer_type = true;
        return s;
    }
    s.fields = scaling ? scaling : parameters;
    snprintf(s.where, sizeof s.where, "%s%s.", ld->where, scaling ? "rope_scaling" : "rope_parameters");
    return s;
}

/* exp(−i · ln θ / pairs), as mx.fast.rope does it. */
static void fill_default(float *out, int pairs, float theta, float scale) {
    const float step = logf(theta) / (float)pairs;
    for (int i = 0; i < pairs; i++) {
        out[i] = scale * expf(-(float)i * step);
    }
}

static float period(float theta, int i, int dims) { return powf(theta, (float)(2 * i) / (float)dims); }

static void fill_llama3(const Scaling *s, float *out, int dims, float theta) {
    const float factor = (float)scaling_number(s, "factor", 0);
    const float low = (float)scaling_number(s, "low_freq_factor", 1),
                high = (float)scaling_number(s, "high_freq_factor", 4);
    const float trained = (float)trained_positions(s, 8192);
    const float low_wave = trained / low, high_wave = trained / high;
    for (int i = 0; i < dims / 2; i++) {
        float p = period(theta, i, dims);
        const float wave = 2 * (float)M_PI * p;
        if (wave > low_wave) {
            p *= factor;
        } else if (wave > high_wave && wave < low_wave) {
            const float smooth = (trained / wave - low) / (high - low);
            p /= (1 - smooth) / factor + smooth;
        }
        out[i] = 1 / p;
    }
}

static double yarn_mscale(double factor, double mscale) { return factor <= 1 ? 1 : 0.1 * mscale * log(factor) + 1; }

/* Peng et al. 2023, arXiv 2309.00071. Returns the factor on the rotated values. */
static float fill_yarn(const Scaling *s, float *out, int dims, float theta) {
    const double factor = scaling_number(s, "factor", 0);
    const double trained = trained_positions(s, 4096);
    const double fast = scaling_number(s, "beta_fast", 32), slow = scaling_number(s, "beta_slow", 1);
    const Json *all = loader_get(s->ld, s->fields, "mscale_all_dim");
    const double mscale_all = json_is_number(all) ? json_number(all) : 0; /* 0 is a value that files have */
    if (all && !json_is_number(all)) {
        loader_fail(s->ld, ERROR_FORMAT, "config.json: %smscale_all_dim is %s, must be a number", s->where,
            json_type_name(all));
    }
    const double mscale = scaling_number(s, "mscale", 1);
    const bool truncate = scaling_flag(s, "truncate", true);
    load_require(s->ld, theta > 1 && isfinite(mscale_all), "yarn needs a rope_theta above 1");

    const double per_octave = dims / (2 * log(theta));
    const double first = per_octave * log(trained / (fast * 2 * M_PI));
    const double last = per_octave * log(trained / (slow * 2 * M_PI));
    const double low = fmax(truncate ? floor(first) : first, 0);
    double high = fmin(truncate ? ceil(last) : last, dims - 1);
    if (low == high) {
        high += 0.001;
    }
    for (int i = 0; i < dims / 2; i++) {
        const float extra = period(theta, i, dims), inter = (float)factor * extra;
        const float ramp = ((float)i - (float)low) / (float)(high - low);
        const float mask = 1 - fminf(fmaxf(ramp, 0), 1);
        out[i] = (inter * mask + extra * (1 - mask)) / (inter * extra);
    }
    /* How model cards switch YaRN on: max_position_embeddings stays that of the length before. */
    if (loader_get(s->ld, s->fields, "original_max_position_embeddings") && factor * trained < INT_MAX)
        s->ld->scaled_positions = (int)(factor * trained);
    const float scale = (float)(yarn_mscale(factor, mscale) / yarn_mscale(factor, mscale_all));
    return attention_factor(s, scale);
}

/* Ding et al. 2024, arXiv 2402.13753: short_factor for sequences of up to the trained length, long_factor beyond. Keys
 * in the cache have one of both, so the served context decides for all sequences, as in llama.cpp. */
static float fill_longrope(const Scaling *s, float *out, int dims, float theta, int trained_default) {
    Loader *ld = s->ld;
    double trained = load_int_or(ld, "original_max_position_embeddings", 0);
    loader_get(ld, s->fields, "original_max_position_embeddings"); /* newer files have it in both places */
    if (trained == 0) {
        trained = scaling_number(s, "original_max_position_embeddings", trained_default);
    }
    const int positions = load_int_or(ld, "max_position_embeddings", 131072);
    const int made_for = positions < MODEL_CONTEXT_DEFAULT ? positions : MODEL_CONTEXT_DEFAULT;
    const bool is_short = (ld->source->context ? ld->source->context : made_for) <= trained;
    const char *const name = is_short ? "short_factor" : "long_factor";
    const Json *const lists[] = {loader_get(ld, s->fields, "long_factor"), loader_get(ld, s->fields, "short_factor")};
    const Json *factors = lists[is_short];
    if (!factors || factors->type != JSON_ARRAY || factors->size != (uint32_t)dims / 2) {
        loader_fail(ld, ERROR_FORMAT, "config.json: %s%s must be an array of %d numbers", s->where, name, dims / 2);
        return 1;
    }
    int i = 0;
    for (JSON_EACH(factor, factors)) {
        out[i] = 1 / ((float)loader_positive(ld, factor, s->where, name) * period(theta, i, dims));
        i++;
    }
    load_require(ld, trained > 1, "longrope needs original_max_position_embeddings above 1");
    const double factor = scaling_number(s, "factor", positions / trained);
    const float scale = (float)(factor <= 1 ? 1 : sqrt(1 + log(factor) / log(trained)));
    loader_get(ld, s->fields, "short_mscale");
    if (loader_get(ld, s->fields, "long_mscale"))
        return (float)scaling_number(s, is_short ? "short_mscale" : "long_mscale", 0);
    return attention_factor(s, scale);
}

static void fill_proportional(const Scaling *s, double absent, float *out, int dims, float theta) {
    const int rotated = (int)(dims * fmin(scaling_number(s, "partial_rotary_factor", absent), 1));
    const float factor = (float)scaling_number(s, "factor", 1);
    for (int i = 0; i < rotated / 2; i++) { /* the rest stay 0: their distance in the head is as if all rotated */
        out[i] = 1 / (factor * period(theta, i, dims));
    }
}

/* Hunyuan's dynamic scaling, whose factor is the file's, not the text's. */
static void fill_alpha(const Scaling *s, float *out, int dims, float theta) {
    const double alpha = scaling_number(s, "alpha", 0), scaled = theta * pow(alpha, (double)dims / (dims - 2));
    static const char *const others[] = {"factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim"};
    for (size_t i = 0; i < COUNT_OF(others); i++) loader_get(s->ld, s->fields, others[i]); /* fields of other kinds */
    load_require(s->ld, dims > 2 && scaled > 1e-30 && scaled < 1e30,
        "dynamic rope needs more than 2 dims and an alpha that fits them");
    for (int i = 0; i < dims / 2; i++) out[i] = 1 / period((float)scaled, i, dims);
}

/* The frequencies up to the positions that the model was made for; beyond, rope_angles() computes them. */
static void fill_dynamic(const Scaling *s, Rope *rope, float *out, float theta) {
    rope->dynamic.positions = load_int(s->ld, "max_position_embeddings");
    rope->dynamic.theta = theta;
    rope->dynamic.factor = (float)scaling_number(s, "factor", 0);
    load_require(s->ld, rope->dims > 2 && rope->dynamic.factor >= 1,
        "dynamic rope needs more than 2 dims and a factor from 1 on");
    fill_default(out, rope->dims / 2, theta, 1);
}

static bool is_longrope(Slice kind) { return slice_is(kind, "longrope") || slice_is(kind, "su"); }

/* Pairs of each position dimension. */
static void read_sections(const Scaling *s, bool in_turn, Rope *rope) {
    const Json *sections = loader_get(s->ld, s->fields, "mrope_section");
    const Json *interleaved = loader_get(s->ld, s->fields, "mrope_interleaved");
    int pairs = 0, dim = 0;
    if (!sections) return;
    bool ok = sections && sections->type == JSON_ARRAY && sections->size == POSITION_DIMS_MAX;
    if (ok)
        for (JSON_EACH(section, sections)) {
            ok = ok && section->type == JSON_INTEGER && section->integer >= 0 && section->integer <= rope->dims / 2;
            if (ok) pairs += rope->mrope_section[dim++] = (int)section->integer;
        }
    load_require(s->ld, ok && pairs <= rope->dims / 2,
        "%smrope_section must be three numbers whose sum is at most %d, the pairs of a head", s->where, rope->dims / 2);
    load_require(s->ld, !interleaved || (interleaved->type == JSON_BOOL && interleaved->boolean == in_turn),
        "%smrope_interleaved must be %s", s->where, in_turn ? "true" : "false");
    rope->mrope_interleaved = in_turn;
}

static float fill(const Scaling *s, Slice kind, const RopeOptions *options, Rope *rope, float *out, float theta) {
    const int dims = rope->dims;
    if (slice_is(kind, "default") || slice_is(kind, "mrope")) { /* mrope: text has the same position on every axis */
        loader_get(s->ld, s->fields, "mrope_section");
        loader_get(s->ld, s->fields, "mrope_interleaved");
        fill_default(out, dims / 2, theta, 1);
    } else if (slice_is(kind, "linear")) {
        fill_default(out, dims / 2, theta, (float)(1 / scaling_number(s, "factor", 0)));
    } else if (slice_is(kind, "llama3")) {
        fill_llama3(s, out, dims, theta);
    } else if (slice_is(kind, "yarn") || slice_is(kind, "deepseek_yarn") || slice_is(kind, "telechat3-yarn")) {
        return fill_yarn(s, out, dims, theta);
    } else if (is_longrope(kind)) {
        return fill_longrope(s, out, dims, theta, options->original_positions);
    } else if (slice_is(kind, "dynamic") && options->alpha) {
        fill_alpha(s, out, dims, theta);
    } else if (slice_is(kind, "dynamic")) {
        fill_dynamic(s, rope, out, theta);
    } else if (slice_is(kind, "proportional")) {
        fill_proportional(s, options->proportional > 0 ? options->proportional : 1, out, dims, theta);
    } else {
        loader_fail(
            s->ld, ERROR_UNSUPPORTED, "config.json: %srope_type \"%.*s\" is unknown", s->where, SLICE_SHOWN(kind));
    }
    return 1;
}

static double find_theta(const Scaling *s, const RopeOptions *options) {
    const char *field = options->theta_field ? options->theta_field : "rope_theta";
    if (options->own_theta > 0) return options->own_theta;
    const Json *own = loader_get(s->ld, s->ld->fields, field);
    const Json *nested = loader_get(s->ld, s->fields, "rope_theta");
    const bool other_theta = options->theta_field && !s->of_layer_type; /* nested is that of other layers */
    if (nested && (!other_theta || (!own && !options->unscaled))) {
        return loader_positive(s->ld, nested, s->where, "rope_theta");
    }
    if (own) {
        return loader_positive(s->ld, own, s->ld->where, field);
    }
    load_require(s->ld, options->theta > 0, "%s is missing", field);
    return options->theta;
}

QueryScaling load_query_scaling(Loader *ld) {
    const Scaling s = find_scaling(ld, &(RopeOptions){0});
    const Json *beta = loader_get(ld, s.fields, "llama_4_scaling_beta");
    if (!beta || (json_is_number(beta) && json_number(beta) == 0)) return (QueryScaling){0};
    const double length = scaling_number(&s, "original_max_position_embeddings", 0);
    load_require(ld, length >= 1 && length <= INT32_MAX, "original_max_position_embeddings must be from 1 on");
    return (QueryScaling){.scale = (float)loader_positive(ld, beta, s.where, "llama_4_scaling_beta"),
        .length = length >= 1 && length <= INT32_MAX ? (int)length : 1};
}

float load_yarn_attention(Loader *ld) {
    const Scaling s = find_scaling(ld, &(RopeOptions){0});
    const Json *all = loader_get(ld, s.fields, "mscale_all_dim");
    if (!json_is_number(all) || json_number(all) == 0) return 1;
    const double mscale = yarn_mscale(scaling_number(&s, "factor", 0), json_number(all));
    load_require(ld, fabs(mscale) < 1e15, "mscale_all_dim is %g, which is too much", json_number(all));
    return (float)(mscale * mscale);
}

int load_rotary_dims(Loader *ld, int head_dim, double absent) {
    const Scaling s = find_scaling(ld, &(RopeOptions){0});
    const Json *nested = loader_get(ld, s.fields, "partial_rotary_factor");
    const Json *own = loader_get(ld, ld->fields, "partial_rotary_factor");
    const Json *part = nested ? nested : own; /* as rope_theta */
    const double factor = part ? loader_positive(ld, part, ld->where, "partial_rotary_factor") : absent;
    load_require(ld, factor <= 1, "partial_rotary_factor is %g, must be at most 1", factor);
    const int dims = (int)(head_dim * fmin(factor, 1));
    return dims > 0 ? dims : 1; /* which load_rope refuses */
}

const Rope *load_rope(Loader *ld, const RopeOptions *options) {
    const int dims = options->dims ? options->dims : options->head_dim;
    load_require(ld, dims >= 2 && dims % 2 == 0 && dims <= options->head_dim,
        "head_dim %d of which %d dims are to rotate: the number must be even and fit", options->head_dim, dims);
    Scaling scaling = find_scaling(ld, options);
    const float theta = (float)find_theta(&scaling, options);
    Slice kind = SLICE("default");
    const Json *type = loader_get(ld, scaling.fields, "type"), *rope_type = loader_get(ld, scaling.fields, "rope_type");
    type = type ? type : rope_type;
    if (!type && options->proportional > 0) kind = SLICE("proportional");
    if (type && (scaling.of_layer_type || !options->unscaled)) {
        kind = type->type == JSON_STRING ? json_slice(type) : SLICE("?");
    }
    Rope *rope = loader_alloc(ld, 1, sizeof *rope);
    float *frequencies = loader_alloc(ld, (size_t)dims / 2, sizeof(float));
    if (!rope || !frequencies) {
        return NULL;
    }
    const bool interleaved = options->interleaved && !is_longrope(kind); /* SuScaledRoPE rotates halves, always */
    *rope = (Rope){.dims = dims, .interleaved = interleaved, .frequencies = frequencies};
    if (options->mrope) read_sections(&scaling, options->mrope_interleaved, rope);
    rope->scale = fill(&scaling, kind, options, rope, frequencies, theta);
    for (int i = 0; options->backwards && i < dims / 2; i++) frequencies[i] = -frequencies[i];
    return rope;
}

const Rope *load_grid_rope(Loader *ld, int head_dim, float theta, bool alternating) {
    const int each = head_dim / 4; /* pairs of the row, and of the column */
    load_require(ld, head_dim > 0 && head_dim % 4 == 0,
        "a head of the vision tower has %d elements, not a multiple of 4", head_dim);
    Rope *rope = loader_alloc(ld, 1, sizeof *rope);
    float *frequencies = loader_alloc(ld, (size_t)(2 * each), sizeof *frequencies);
    if (!rope || !frequencies) return NULL;
    const Scaling own = find_scaling(ld, &(RopeOptions){0});
    theta = (float)find_theta(&own, &(RopeOptions){.theta = theta});
    loader_get(ld, own.fields, "rope_type"); /* "default" or "axial", both of which mean this */
    for (int i = 0; i < 2 * each; i++) {
        const int number = 2 * (i % each) + (alternating && i >= each);
        frequencies[i] = 1 / period(theta, number, 4 * each);
    }
    *rope = (Rope){.dims = head_dim, .frequencies = frequencies, .scale = 1, .mrope_section = {0, each, each}};
    return rope;
}
