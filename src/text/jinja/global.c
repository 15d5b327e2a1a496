/* Globals that every template has: jinja2's and those transformers adds. */
#include <stdlib.h>

#include "text/jinja/eval.h"

const char *const jinja_global_names[GLOBAL_COUNT] = {
    "range", "dict", "lipsum", "cycler", "joiner", "namespace", "raise_exception", "strftime_now", ""};

uint64_t jinja_random(Vm *vm) { /* splitmix64 */
    uint64_t z = (vm->random += 0x9E3779B97F4A7C15u);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

static Jv global_range(Vm *vm, const JinjaArgs *args) {
    int64_t bounds[3] = {0, 0, 1};
    if (args->count < 1 || args->count > 3 || args->keyword_count) {
        return jinja_fail(vm, "TypeError: range expected 1 to 3 arguments, got %zu", args->count);
    }
    for (size_t i = 0; i < args->count; i++) {
        size_t slot = args->count == 1 ? 1 : i;
        if (!jinja_as_index(vm, args->positional[i], &bounds[slot])) return jv_error();
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
    JinjaRange *range = jinja_alloc(vm, 1, sizeof *range);
    if (!range) return jv_error();
    *range = (JinjaRange){start, stop, step, (int64_t)count};
    return (Jv){.tag = JINJA_RANGE, .range = range};
}

static bool dict_add_pairs(Vm *vm, JinjaDict *dict, Jv source) {
    if (source.tag == JINJA_DICT) {
        for (size_t i = 0; i < source.dict->count; i++) {
            const JinjaPair *pair = &source.dict->pairs[i];
            if (!jinja_dict_set_hashed(vm, dict, pair->key, pair->hash, pair->value)) return false;
        }
        return true;
    }
    Jv items = jinja_iterate(vm, source);
    for (size_t i = 0; !jv_bad(items) && i < items.list->count; i++) {
        Jv pair = jinja_iterate(vm, items.list->items[i]);
        if (jv_bad(pair)) return false;
        if (pair.list->count != 2) {
            jinja_fail(vm, "ValueError: dictionary update sequence element #%zu has length %zu; 2 is required", i,
                pair.list->count);
            return false;
        }
        if (!jinja_dict_set(vm, dict, pair.list->items[0], pair.list->items[1])) return false;
    }
    return !vm->failed;
}

static Jv global_dict(Vm *vm, const JinjaArgs *args) {
    if (args->count > 1) return jinja_fail(vm, "TypeError: dict expected at most 1 argument, got %zu", args->count);
    Jv dict = jinja_dict_new(vm, args->keyword_count);
    if (jv_bad(dict) || (args->count && !dict_add_pairs(vm, dict.dict, args->positional[0]))) return jv_error();
    for (size_t i = 0; i < args->keyword_count; i++) {
        Slice name = args->keywords[i].name;
        JinjaStr *key = jinja_str_new(vm, name.data, name.size, ORIGIN_TEMPLATE);
        if (!key || !jinja_dict_set(vm, dict.dict, jv_str(key), args->keywords[i].value)) return jv_error();
    }
    return dict;
}

static Jv global_fromkeys(Vm *vm, const JinjaArgs *args) {
    if (args->count < 1 || args->count > 2 || args->keyword_count) {
        return jinja_fail(vm, "TypeError: fromkeys expected 1 or 2 arguments");
    }
    Jv keys = jinja_iterate(vm, args->positional[0]), dict = jinja_dict_new(vm, 0);
    if (jv_bad(keys) || jv_bad(dict)) return jv_error();
    Jv value = args->count > 1 ? args->positional[1] : jv_none();
    for (size_t i = 0; i < keys.list->count; i++) {
        if (!jinja_dict_set(vm, dict.dict, keys.list->items[i], value)) return jv_error();
    }
    return dict;
}

static bool namespace_allows(Vm *vm, Jv key) {
    if (key.tag != JINJA_STR || !jinja_str_flatten(vm, key.s) || key.s->size == 0 || key.s->data[0] != '_')
        return !vm->failed;
    jinja_fail(vm, "Chat templates cannot store underscore-prefixed attributes on a namespace, but got '%.*s'",
        key.s->size > 80 ? 80 : (int)key.s->size, key.s->data);
    return false;
}

static Jv global_namespace(Vm *vm, const JinjaArgs *args) {
    Jv dict = global_dict(vm, args);
    for (size_t i = 0; !jv_bad(dict) && i < dict.dict->count; i++) {
        if (!namespace_allows(vm, dict.dict->pairs[i].key)) return jv_error();
    }
    if (!jv_bad(dict)) dict.tag = JINJA_NAMESPACE;
    return dict;
}

bool jinja_namespace_set(Vm *vm, Jv ns, JinjaStr *name, Jv value) {
    if (ns.tag != JINJA_NAMESPACE) {
        jinja_fail(vm, "cannot assign attribute on non-namespace object");
        return false;
    }
    return namespace_allows(vm, jv_str(name)) && jinja_dict_set(vm, ns.dict, jv_str(name), value);
}

static Jv global_cycler(Vm *vm, const JinjaArgs *args) {
    if (!args->count || args->keyword_count)
        return jinja_fail(vm, "RuntimeError: at least one item has to be provided");
    JinjaCycler *cycler = jinja_alloc(vm, 1, sizeof *cycler);
    Jv items = jinja_tuple(vm, args->positional, args->count);
    if (!cycler || jv_bad(items)) return jv_error();
    cycler->items = *items.list;
    return (Jv){.tag = JINJA_CYCLER, .cycler = cycler};
}

static Jv global_joiner(Vm *vm, const JinjaArgs *args) {
    Jv bound[JINJA_PARAMS_MAX];
    if (!jinja_bind(vm, "joiner", "sep", 0, args, bound)) return jv_error();
    JinjaJoiner *joiner = jinja_alloc(vm, 1, sizeof *joiner);
    if (!joiner) return jv_error();
    joiner->separator = jv_given(bound[0]) ? bound[0] : jinja_literal(vm, ", ");
    return (Jv){.tag = JINJA_JOINER, .joiner = joiner};
}

static Jv global_raise(Vm *vm, const JinjaArgs *args) {
    Jv bound[JINJA_PARAMS_MAX];
    if (!jinja_bind(vm, "raise_exception", "message", 1, args, bound)) return jv_error();
    Jv text = jinja_to_str(vm, bound[0]);
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

static Jv global_strftime(Vm *vm, const JinjaArgs *args) {
    enum { STRFTIME_MAX = 1 << 20 };
    Jv bound[JINJA_PARAMS_MAX];
    if (!jinja_bind(vm, "strftime_now", "format", 1, args, bound)) return jv_error();
    if (bound[0].tag != JINJA_STR) return jinja_fail(vm, "TypeError: strftime() argument 1 must be str");
    JinjaStr *format = bound[0].s;
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

static void lipsum_paragraph(Vm *vm, JinjaText *out, int64_t low, int64_t high) {
    static const char *const words[] = {"lorem", "ipsum", "dolor", "sit", "amet", "consectetuer", "adipiscing", "elit",
        "sed", "diam", "nonummy", "nibh", "euismod", "tincidunt", "ut", "laoreet", "magna", "aliquam", "erat",
        "volutpat"};
    int64_t count = low + (int64_t)(jinja_random(vm) % (uint64_t)(high - low));
    size_t last = COUNT_OF(words);
    for (int64_t i = 0; i < count && jinja_step(vm, 1); i++) {
        size_t word = jinja_random(vm) % COUNT_OF(words);
        if (word == last) word = (word + 1) % COUNT_OF(words);
        last = word;
        if (i == 0) {
            char first = (char)(words[word][0] - 32);
            jinja_text_bytes(out, &first, 1, ORIGIN_TEMPLATE);
        }
        jinja_text_plain(out, words[word] + (i == 0));
        jinja_text_plain(out, i + 1 == count ? "." : i % 9 == 8 ? ", " : " ");
    }
}

static Jv global_lipsum(Vm *vm, const JinjaArgs *args) {
    Jv bound[JINJA_PARAMS_MAX];
    int64_t count = 5, low = 20, high = 100;
    bool html = true;
    if (!jinja_bind(vm, "lipsum", "n html min max", 0, args, bound)) return jv_error();
    if ((jv_given(bound[0]) && !jinja_as_index(vm, bound[0], &count)) ||
        (jv_given(bound[1]) && !jinja_truth(vm, bound[1], &html)) ||
        (jv_given(bound[2]) && !jinja_as_index(vm, bound[2], &low)) ||
        (jv_given(bound[3]) && !jinja_as_index(vm, bound[3], &high))) {
        return jv_error();
    }
    if (low >= high || low < 0 || high > JINJA_RANGE_MAX)
        return jinja_fail(vm, "ValueError: empty range for randrange()");
    JinjaText *out = jinja_text_push(vm);
    if (!out) return jv_error();
    for (int64_t i = 0; i < count && !vm->failed; i++) {
        if (i) jinja_text_plain(out, html ? "\n" : "\n\n");
        if (html) jinja_text_plain(out, "<p>");
        lipsum_paragraph(vm, out, low, high);
        if (html) jinja_text_plain(out, "</p>");
    }
    Jv text = jinja_text_finish(vm, out);
    return jv_bad(text) || !html ? text : jv_str(jinja_str_markup(vm, text.s, true));
}

Jv jinja_global_call(Vm *vm, JinjaGlobal which, const JinjaArgs *args) {
    switch (which) {
    case GLOBAL_RANGE: return global_range(vm, args);
    case GLOBAL_DICT: return global_dict(vm, args);
    case GLOBAL_LIPSUM: return global_lipsum(vm, args);
    case GLOBAL_CYCLER: return global_cycler(vm, args);
    case GLOBAL_JOINER: return global_joiner(vm, args);
    case GLOBAL_NAMESPACE: return global_namespace(vm, args);
    case GLOBAL_RAISE_EXCEPTION: return global_raise(vm, args);
    case GLOBAL_STRFTIME_NOW: return global_strftime(vm, args);
    case GLOBAL_FROMKEYS: return global_fromkeys(vm, args);
    default: CHECK(false); return jv_error();
    }
}
