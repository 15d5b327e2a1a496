/* Globals of every template: those of jinja2 and of transformers. */
#include <stdlib.h>

#include "text/jinja/library.h"

static Jv global_range(Vm *vm, Jv self, const JinjaArgs *args) {
    int64_t bounds[3] = {0, 0, 1};
    if (args->count < 1 || args->count > 3 || args->keyword_count) {
        return jinja_fail(vm, "TypeError: range expected 1 to 3 arguments, got %zu", args->count);
    }
    for (size_t i = 0; i < args->count; i++) {
        size_t slot = args->count == 1 ? 1 : i;
        if (!jinja_as_index(vm, args->values[i], &bounds[slot])) return jv_error();
    }
    int64_t start = bounds[0], stop = bounds[1], step = bounds[2];
    if (step == 0) return jinja_fail(vm, "ValueError: range() arg 3 must not be zero");
    bool any = step > 0 ? stop > start : start > stop;
    uint64_t span = step > 0 ? (uint64_t)stop - (uint64_t)start : (uint64_t)start - (uint64_t)stop;
    uint64_t size = step > 0 ? (uint64_t)step : 0 - (uint64_t)step, count = any ? (span - 1) / size + 1 : 0;
    if (count > JINJA_RANGE_MAX) {
        return jinja_raise(
            vm, ERROR_LIMIT, "OverflowError: Range too big. The sandbox blocks ranges larger than %d", JINJA_RANGE_MAX);
    }
    Jv range = jinja_list_new(vm, count);
    if (jv_bad(range) || !jinja_step(vm, count / 8)) return jv_error();
    for (uint64_t i = 0; i < count; i++) range.list->items[i] = jv_int(start + (int64_t)i * step);
    range.list->count = count;
    range.tag = JINJA_VIEW;
    range.flag = 'r';
    return range;
}

/* dict({'a': 1}, b=2); unlike jinja2's, it takes no list of pairs */
static Jv global_dict(Vm *vm, Jv self, const JinjaArgs *args) {
    Jv dict = jinja_dict_new(vm, args->keyword_count), from = args->count ? args->values[0] : dict;
    if (jv_bad(dict)) return dict;
    if (args->count > 1 || from.tag != JINJA_DICT)
        return jinja_fail(vm, "TypeError: dict takes one mapping and keywords");
    for (size_t i = 0; args->count && i < from.dict->count; i++) {
        if (!jinja_dict_set(vm, dict.dict, from.dict->pairs[i].key, from.dict->pairs[i].value)) return jv_error();
    }
    for (size_t i = 0; i < args->keyword_count; i++) {
        const JinjaKeyword *keyword = &args->keywords[i];
        if (!jinja_dict_set(vm, dict.dict, jv_str(keyword->name), keyword->value)) return jv_error();
    }
    return dict;
}

static Jv global_namespace(Vm *vm, Jv self, const JinjaArgs *args) {
    Jv dict = global_dict(vm, self, args), empty = jinja_dict_new(vm, 0);
    if (jv_bad(dict) || jv_bad(empty)) return jv_error();
    empty.tag = JINJA_NAMESPACE;
    for (size_t i = 0; i < dict.dict->count; i++) {
        if (!jinja_namespace_set(vm, empty, dict.dict->pairs[i].key, dict.dict->pairs[i].value)) return jv_error();
    }
    return empty;
}

static Jv global_raise(Vm *vm, Jv self, const JinjaArgs *args) {
    Jv text = jinja_to_str(vm, args->values[0]);
    if (jv_bad(text) || !jinja_str_flatten(vm, text.s)) return jv_error();
    size_t size = text.s->size < ERROR_TEXT_MAX ? text.s->size : ERROR_TEXT_MAX;
    return jinja_fail(vm, "%.*s", (int)size, text.s->data);
}

/* Python hands the format to the C library; %f (microseconds), %z and %Z (a time without zone) it fills in itself. */
static bool strftime_expand(Vm *vm, JinjaStr *format, Buffer *out) {
    for (size_t i = 0; i < format->size; i++) {
        char c = format->data[i], next = i + 1 < format->size ? format->data[i + 1] : 0;
        if (c != '%') {
            buffer_byte(out, c);
            continue;
        }
        i++;
        if (next == 'f') {
            buffer_printf(out, "%06ld", vm->now_us);
        } else if (next != 'z' && next != 'Z') {
            buffer_byte(out, '%');
            if (next) buffer_byte(out, next);
        }
    }
    buffer_byte(out, '%'); /* so that an empty result is told from one that did not fit */
    buffer_byte(out, '%');
    return !out->failed;
}

static Jv global_strftime(Vm *vm, Jv self, const JinjaArgs *args) {
    enum { STRFTIME_MAX = 1 << 20 };
    if (args->values[0].tag != JINJA_STR) return jinja_fail(vm, "TypeError: strftime() argument 1 must be str");
    JinjaStr *format = args->values[0].s;
    if (!jinja_str_flatten(vm, format)) return jv_error();
    if (format->size > STRFTIME_MAX / 64 || memchr(format->data, '\0', format->size)) {
        return jinja_fail(vm, "ValueError: strftime_now: a bad format");
    }
    Buffer expanded = {.limit = STRFTIME_MAX}, text = {.limit = STRFTIME_MAX};
    Jv result = jv_error();
    size_t size = 0;
    if (strftime_expand(vm, format, &expanded) && buffer_reserve(&text, STRFTIME_MAX - 1)) {
        size = strftime(text.data, STRFTIME_MAX, expanded.data, &vm->now);
    }
    if (size > 0) {
        uint8_t origin = format->origin;
        JinjaStr *out = jinja_str_copy(vm, text.data, size - 1, origin & ORIGIN_DATA ? ORIGIN_DATA : ORIGIN_TEMPLATE);
        result = jv_str(out);
    } else {
        jinja_fail(vm, "ValueError: strftime_now: a bad format");
    }
    buffer_free(&expanded);
    buffer_free(&text);
    return result;
}

static const JinjaFunction globals[] = {
    {"dict", 0, NULL, global_dict},
    {"namespace", 0, NULL, global_namespace},
    {"raise_exception", 0, "message", global_raise},
    {"range", 0, NULL, global_range},
    {"strftime_now", 0, "format", global_strftime},
};
const JinjaTable jinja_globals = {globals, COUNT_OF(globals)};
