#include "cli/presets.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/slice.h"

static ModelPreset *preset_of(Presets *presets, Slice model, Error *error) {
    for (int i = 0; i < presets->count; i++)
        if (slice_is(model, presets->list[i].model)) return &presets->list[i];
    if (presets->count == PRESETS_MAX || model.size >= sizeof presets->list[0].model) {
        (void)fail(error, ERROR_USAGE, "want at most %d models, with names of at most %zu bytes", (int)PRESETS_MAX,
            sizeof presets->list[0].model - 1);
        return NULL;
    }
    ModelPreset *preset = &presets->list[presets->count++];
    *preset = (ModelPreset){0};
    memcpy(preset->model, model.data, model.size);
    return preset;
}

static bool take_thinking(ModelPreset *preset, Slice value, Error *error) {
    const bool on = slice_is(value, "true") || slice_is(value, "1");
    if (!on && !slice_is(value, "false") && !slice_is(value, "0"))
        return fail(error, ERROR_USAGE, "thinking=%.*s: want true or false", (int)value.size, value.data);
    preset->thinking_given = true;
    preset->defaults.thinking = on;
    return true;
}

static bool take_setting(ModelPreset *preset, Slice name, Slice value, Error *error) {
    RequestDefaults *d = &preset->defaults;
    double top_k = 0, max_tokens = 0, number;
    const struct {
        const char *name;
        double min, max;
        DefaultNumber *to;
        double *whole;
    } known[] = {{"temp", 0, 2, &d->temperature, NULL}, {"top-p", 0, 1, &d->top_p, NULL},
        {"min-p", 0, 1, &d->min_p, NULL}, {"repeat-penalty", 0.01, 2, &d->repetition_penalty, NULL},
        {"top-k", 0, 1 << 30, NULL, &top_k}, {"max-tokens", 1, INT32_MAX, NULL, &max_tokens}};
    if (slice_is(name, "thinking")) return take_thinking(preset, value, error);
    for (size_t i = 0; i < COUNT_OF(known); i++) {
        if (!slice_is(name, known[i].name)) continue;
        char text[32] = "", *end = text;
        if (value.size < sizeof text) memcpy(text, value.data, value.size);
        number = strtod(text, &end);
        const bool fits = end > text && !*end && number >= known[i].min && number <= known[i].max;
        if (!fits || (known[i].whole && number != floor(number)))
            return fail(error, ERROR_USAGE, "%s=%.*s: want %s from %g to %g", known[i].name, (int)value.size,
                value.data, known[i].whole ? "a whole number" : "a number", known[i].min, known[i].max);
        if (known[i].to) *known[i].to = (DefaultNumber){true, (float)number};
        if (known[i].whole == &top_k) d->top_k_given = true, d->top_k = (int)number;
        if (known[i].whole == &max_tokens) d->max_tokens = (int)number;
        return true;
    }
    return fail(error, ERROR_USAGE,
        "\"%.*s\" is no setting of a model: temp, top-p, top-k, min-p, repeat-penalty, max-tokens, thinking",
        (int)name.size, name.data);
}

bool presets_read(const char *text, void *presets, Error *error) {
    const char *equals = strchr(text, '='), *colon = NULL;
    for (const char *at = text; equals && at < equals; at++)
        if (*at == ':') colon = at; /* a name may have colons of its own, as in qwen:0.5b */
    if (!colon || colon == text) return fail(error, ERROR_USAGE, "want MODEL:NAME=VALUE, as in qwen-0.5b:temp=0.2");
    ModelPreset *preset = preset_of(presets, (Slice){text, (size_t)(colon - text)}, error);
    for (const char *at = colon + 1; preset && *at;) {
        const size_t size = strcspn(at, ","), name = strcspn(at, "=,");
        if (name == size) return fail(error, ERROR_USAGE, "\"%.*s\": want NAME=VALUE", (int)size, at);
        if (!take_setting(preset, (Slice){at, name}, (Slice){at + name + 1, size - name - 1}, error)) return false;
        at += size + (at[size] == ',');
    }
    return preset;
}
