/* Filters. Reference: jinja2 3.1 filters.py; those left out are in no chat template. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/utf8.h"
#include "text/jinja/library.h"
#include "text/unicode/unicode.h"

static bool flag(Vm *vm, Jv v, bool *out) {
    *out = false;
    return !jv_given(v) || jinja_truth(vm, v, out);
}

/* Text */

static Jv soft_case(Vm *vm, Jv value, JinjaCase how) {
    Jv text = jinja_soft_str(vm, value);
    return jv_bad(text) ? text : jinja_str_case(vm, text, how);
}
static Jv filter_upper(Vm *vm, Jv v, const JinjaArgs *a) { return soft_case(vm, v, CASE_UPPER); }
static Jv filter_lower(Vm *vm, Jv v, const JinjaArgs *a) { return soft_case(vm, v, CASE_LOWER); }
static Jv filter_capitalize(Vm *vm, Jv v, const JinjaArgs *a) { return soft_case(vm, v, CASE_CAPITALIZE); }

static bool starts_word(uint32_t code) {
    return unicode_is_python_space(code) || (code < 0x80 && code && strchr("-({[<", (int)code));
}

/* Not str.title(): words begin after white space and -({[<, and the rest of a word is lowered as one piece. */
static Jv filter_title(Vm *vm, Jv value, const JinjaArgs *a) {
    Jv text = jinja_soft_str(vm, value);
    JinjaText *out = jv_bad(text) || !jinja_str_flatten(vm, text.s) ? NULL : jinja_text_push(vm);
    if (!out) return jv_error();
    JinjaStr *s = text.s;
    for (size_t at = 0, rest; at < s->size && jinja_step(vm, 1); at = rest) {
        uint32_t code, next;
        size_t head = at + (size_t)utf8_decode(s->data + at, s->size - at, &code);
        for (rest = head; rest < s->size;) {
            size_t width = (size_t)utf8_decode(s->data + rest, s->size - rest, &next);
            if (starts_word(next) != starts_word(code)) break;
            rest += width;
        }
        JinjaStr *first = jinja_str_part(vm, s, at, head), *tail = first ? jinja_str_part(vm, s, head, rest) : NULL;
        Jv upper = tail ? jinja_str_case(vm, jv_str(first), CASE_UPPER) : jv_error();
        Jv lower = jv_bad(upper) ? upper : jinja_str_case(vm, jv_str(tail), CASE_LOWER);
        if (jv_bad(lower)) return lower;
        jinja_text_string(out, upper.s);
        jinja_text_string(out, lower.s);
    }
    return jinja_text_finish(vm, out);
}

static Jv filter_string(Vm *vm, Jv v, const JinjaArgs *a) { return jinja_soft_str(vm, v); }
static Jv filter_escape(Vm *vm, Jv v, const JinjaArgs *a) { return jinja_escape(vm, v); }

static Jv filter_forceescape(Vm *vm, Jv v, const JinjaArgs *a) {
    Jv text = jinja_to_str(vm, v);
    return jv_bad(text) ? text : jinja_escape(vm, text);
}

static Jv filter_safe(Vm *vm, Jv v, const JinjaArgs *a) {
    Jv text = jinja_soft_str(vm, v);
    return jv_bad(text) ? text : jv_str(jinja_str_markup(vm, text.s, true));
}

static Jv filter_trim(Vm *vm, Jv value, const JinjaArgs *a) {
    Jv text = jinja_soft_str(vm, value);
    return jv_bad(text) ? text : jinja_str_strip(vm, text, a->values[0], true, true);
}

static Jv filter_replace(Vm *vm, Jv value, const JinjaArgs *a) {
    int64_t count = -1;
    Jv limit = a->values[2];
    if (jv_given(limit) && limit.tag != JINJA_NONE && !jinja_as_index(vm, limit, &count)) return jv_error();
    Jv text = jinja_to_str(vm, value), old = jinja_to_str(vm, a->values[0]), with = jinja_to_str(vm, a->values[1]);
    if (jv_bad(text) || jv_bad(old) || jv_bad(with)) return jv_error();
    return jinja_str_replace(vm, text, old, with, count);
}

static Jv filter_indent(Vm *vm, Jv value, const JinjaArgs *a) {
    bool first, blank;
    int64_t width = 4;
    Jv by = a->values[0];
    bool text_width = by.tag == JINJA_STR;
    if (!flag(vm, a->values[1], &first) || !flag(vm, a->values[2], &blank)) return jv_error();
    if (jv_given(by) && !text_width && !jinja_as_index(vm, by, &width)) return jv_error();
    if (width > 1 << 20) return jinja_raise(vm, ERROR_LIMIT, "indent: a width of %lld", (long long)width);
    if (value.tag == JINJA_UNDEFINED) return jv_undefined_error(vm, value);
    if (value.tag != JINJA_STR)
        return jinja_fail(vm, "TypeError: indent needs a string, not '%s'", jv_type_name(value));
    JinjaStr *newline = jinja_str_markup(vm, jinja_literal(vm, "\n").s, value.s->markup);
    Jv ended = newline ? jv_str(jinja_str_concat(vm, value.s, newline)) : jv_error();
    Jv lines = jv_bad(ended) ? ended : jinja_str_splitlines(vm, ended, false);
    JinjaText *out = jv_bad(lines) ? NULL : jinja_text_push(vm);
    if (!out) return jv_error();
    for (size_t i = 0; i < lines.list->count && jinja_step(vm, 1); i++) {
        JinjaStr *line = lines.list->items[i].s;
        bool indented = i == 0 ? first : blank || line->size > 0;
        if (i) jinja_text_plain(out, "\n");
        if (indented && text_width) jinja_text_string(out, by.s);
        if (indented && !text_width) jinja_text_repeat(out, ' ', width > 0 ? (size_t)width : 0, ORIGIN_TEMPLATE);
        jinja_text_string(out, line);
    }
    Jv result = jinja_text_finish(vm, out);
    return jinja_str_like(vm, result, value.s);
}

/* Attributes: "a.b.0" is a path, digits are indices. */
static bool attribute_parts(Vm *vm, Jv attribute, JinjaList *out) {
    *out = (JinjaList){0};
    if (!jv_given(attribute) || attribute.tag == JINJA_NONE) return true;
    if (attribute.tag != JINJA_STR) return jinja_list_push(vm, out, attribute);
    Jv parts = jinja_str_split(vm, attribute, jinja_literal(vm, "."), -1, false);
    for (size_t i = 0; !jv_bad(parts) && i < parts.list->count; i++) {
        Jv part = parts.list->items[i];
        bool index = jinja_str_test(vm, part, 'd');
        if (index) part = jinja_int_parse(vm, jinja_str_slice(part.s), &index);
        if (!jinja_list_push(vm, out, index ? part : parts.list->items[i])) return false;
    }
    return !vm->failed;
}

static Jv attribute_get(Vm *vm, Jv item, const JinjaList *parts, Jv fallback) {
    for (size_t i = 0; i < parts->count && !jv_bad(item); i++) {
        item = jinja_getitem(vm, item, parts->items[i]);
        if (item.tag == JINJA_UNDEFINED && jv_given(fallback) && fallback.tag != JINJA_NONE) item = fallback;
    }
    return item;
}

/* That attribute of each item (the item itself when there is none to take), text in lower case unless case counts. */
static Jv attributes_of(Vm *vm, Jv list, Jv attribute, Jv fallback, bool case_sensitive) {
    JinjaList parts;
    Jv out = jv_bad(list) ? list : jinja_list_new(vm, list.list->count);
    if (jv_bad(out) || !attribute_parts(vm, attribute, &parts)) return jv_error();
    for (size_t i = 0; i < list.list->count && jinja_step(vm, 1); i++) {
        Jv key = attribute_get(vm, list.list->items[i], &parts, fallback);
        if (!case_sensitive && key.tag == JINJA_STR) key = jinja_str_case(vm, key, CASE_LOWER);
        if (!jinja_list_push(vm, out.list, key)) return jv_error();
    }
    return vm->failed ? jv_error() : out;
}

static Jv filter_sort(Vm *vm, Jv value, const JinjaArgs *a) {
    bool reverse, sensitive;
    if (!flag(vm, a->values[0], &reverse) || !flag(vm, a->values[1], &sensitive)) return jv_error();
    Jv attribute = a->values[2], list = jinja_list_copy(vm, jinja_iterate(vm, value)), keys = jinja_list_new(vm, 0);
    Jv names = attribute.tag == JINJA_STR ? jinja_str_split(vm, attribute, jinja_literal(vm, ","), -1, false)
                                          : jinja_tuple(vm, &attribute, 1);
    if (jv_bad(list) || jv_bad(keys) || jv_bad(names)) return jv_error();
    for (size_t i = 0; i < list.list->count; i++) {
        if (!jinja_list_push(vm, keys.list, jinja_list_new(vm, names.list->count))) return jv_error();
    }
    for (size_t n = 0; n < names.list->count; n++) {
        Jv column = attributes_of(vm, list, names.list->items[n], jv_missing(), sensitive);
        for (size_t i = 0; i < list.list->count && !jv_bad(column); i++) {
            if (!jinja_list_push(vm, keys.list->items[i].list, column.list->items[i])) return jv_error();
        }
    }
    return !vm->failed && jinja_sort(vm, list.list, keys.list->items, reverse) ? list : jv_error();
}

static Jv filter_dictsort(Vm *vm, Jv value, const JinjaArgs *a) {
    bool sensitive, reverse, by_value = false;
    if (!flag(vm, a->values[0], &sensitive) || !flag(vm, a->values[2], &reverse)) return jv_error();
    if (jv_given(a->values[1])) {
        bool text = a->values[1].tag == JINJA_STR && jinja_str_flatten(vm, a->values[1].s);
        by_value = text && slice_is(jinja_str_slice(a->values[1].s), "value");
        if (!by_value && !(text && slice_is(jinja_str_slice(a->values[1].s), "key"))) {
            return jinja_fail(vm, "You can only sort by either \"key\" or \"value\"");
        }
    }
    if (value.tag == JINJA_UNDEFINED) return jv_undefined_error(vm, value);
    if (value.tag != JINJA_DICT)
        return jinja_fail(vm, "AttributeError: '%s' object has no attribute 'items'", jv_type_name(value));
    Jv list = jinja_dict_view(vm, value.dict, 'i');
    Jv keys = attributes_of(vm, list, jv_int(by_value), jv_missing(), sensitive);
    if (jv_bad(keys) || !jinja_sort(vm, list.list, keys.list->items, reverse)) return jv_error();
    return (Jv){.tag = JINJA_LIST, .list = list.list};
}

static Jv filter_unique(Vm *vm, Jv value, const JinjaArgs *a) {
    bool sensitive;
    if (!flag(vm, a->values[0], &sensitive)) return jv_error();
    Jv list = jinja_iterate(vm, value), out = jinja_list_new(vm, 0), seen = jinja_dict_new(vm, 0);
    Jv keys = attributes_of(vm, list, a->values[1], jv_missing(), sensitive);
    for (size_t i = 0; !vm->failed && i < list.list->count; i++) {
        size_t before = seen.dict->count;
        if (!jinja_dict_set(vm, seen.dict, keys.list->items[i], jv_none())) return jv_error();
        if (seen.dict->count > before && !jinja_list_push(vm, out.list, list.list->items[i])) return jv_error();
    }
    return vm->failed ? jv_error() : out;
}

static Jv extreme(Vm *vm, Jv value, const JinjaArgs *a, int sign) {
    bool sensitive;
    if (!flag(vm, a->values[0], &sensitive)) return jv_error();
    Jv list = jinja_iterate(vm, value), keys = attributes_of(vm, list, a->values[1], jv_missing(), sensitive);
    if (jv_bad(keys)) return keys;
    size_t best = 0;
    for (size_t i = 1; i < list.list->count; i++) {
        int order;
        if (!jinja_less(vm, keys.list->items[i], keys.list->items[best], sign < 0 ? "<" : ">", &order))
            return jv_error();
        if (order == sign) best = i;
    }
    return list.list->count ? list.list->items[best] : jv_hint(vm, "No aggregated item, sequence was empty.");
}
static Jv filter_min(Vm *vm, Jv value, const JinjaArgs *a) { return extreme(vm, value, a, -1); }
static Jv filter_max(Vm *vm, Jv value, const JinjaArgs *a) { return extreme(vm, value, a, 1); }

static Jv filter_sum(Vm *vm, Jv value, const JinjaArgs *a) {
    Jv list = attributes_of(vm, jinja_iterate(vm, value), a->values[0], jv_missing(), true);
    Jv sum = jv_given(a->values[1]) ? a->values[1] : jv_int(0);
    if (jv_bad(list)) return list;
    if (sum.tag == JINJA_STR) return jinja_fail(vm, "TypeError: sum() can't sum strings [use ''.join(seq) instead]");
    for (size_t i = 0; i < list.list->count && !jv_bad(sum); i++)
        sum = jinja_binary(vm, OP_ADD, sum, list.list->items[i]);
    return sum;
}

static Jv filter_first(Vm *vm, Jv value, const JinjaArgs *a) {
    if (value.tag == JINJA_ITER) { /* takes one item, the rest stays */
        if (!jinja_iter_force(vm, value.iter)) return jv_error();
        if (value.iter->next < value.iter->items.count) return value.iter->items.items[value.iter->next++];
        return jv_hint(vm, "No first item, sequence was empty.");
    }
    Jv list = jinja_iterate(vm, value);
    if (jv_bad(list)) return list;
    return list.list->count ? list.list->items[0] : jv_hint(vm, "No first item, sequence was empty.");
}

static Jv filter_last(Vm *vm, Jv value, const JinjaArgs *a) {
    if (value.tag == JINJA_ITER) return jinja_fail(vm, "TypeError: '%s' object is not reversible", jv_type_name(value));
    Jv list = jinja_iterate(vm, value);
    if (jv_bad(list)) return list;
    return list.list->count ? list.list->items[list.list->count - 1] : jv_hint(vm, "No last item, sequence was empty.");
}

static Jv filter_length(Vm *vm, Jv value, const JinjaArgs *a) {
    size_t length;
    return jinja_length(vm, value, &length) ? jv_int((int64_t)length) : jv_error();
}

static Jv filter_list(Vm *vm, Jv value, const JinjaArgs *a) { return jinja_list_copy(vm, jinja_iterate(vm, value)); }

static Jv filter_items(Vm *vm, Jv value, const JinjaArgs *a) {
    if (value.tag == JINJA_UNDEFINED) return jinja_list_new(vm, 0);
    if (value.tag != JINJA_DICT) return jinja_fail(vm, "TypeError: Can only get item pairs from a mapping.");
    return jinja_dict_view(vm, value.dict, 'i');
}

static Jv filter_reverse(Vm *vm, Jv value, const JinjaArgs *a) {
    if (value.tag == JINJA_STR) return jinja_slice(vm, value, jv_missing(), jv_missing(), jv_int(-1));
    Jv list = jinja_iterate(vm, value);
    if (!jv_bad(list)) list = jinja_slice(vm, list, jv_missing(), jv_missing(), jv_int(-1));
    if (jv_bad(list) || value.tag == JINJA_ITER || value.tag == JINJA_UNDEFINED) return list;
    JinjaIter *iter = jinja_alloc(vm, 1, sizeof *iter);
    if (!iter) return jv_error();
    *iter = (JinjaIter){.items = *list.list, .type_name = "list_reverseiterator"};
    return (Jv){.tag = JINJA_ITER, .iter = iter};
}

static Jv filter_join(Vm *vm, Jv value, const JinjaArgs *a) {
    Jv separator = jv_given(a->values[0]) ? jinja_to_str(vm, a->values[0]) : jinja_literal(vm, "");
    if (jv_bad(separator)) return separator;
    bool by_attribute = jv_given(a->values[1]) && a->values[1].tag != JINJA_NONE;
    if (by_attribute) value = attributes_of(vm, jinja_iterate(vm, value), a->values[1], jv_missing(), true);
    return jv_bad(value) ? value : jinja_str_join(vm, separator, value, true);
}

/* map, select, reject and their attribute forms */

/* "upper" in map("upper") or "equalto" in select("equalto", 1) */
static const JinjaFunction *named(Vm *vm, const JinjaTable *table, Jv name, const char *kind) {
    const JinjaFunction *function = NULL;
    if (name.tag != JINJA_STR || !jinja_str_flatten(vm, name.s)) {
        jinja_fail(vm, "a %s is named by a string", kind);
    } else if (!(function = jinja_find(table, jinja_str_slice(name.s)))) {
        jinja_fail(vm, "No %s named '%.*s'", kind, name.s->size > 80 ? 80 : (int)name.s->size, name.s->data);
    }
    return function;
}

static Jv filter_map(Vm *vm, Jv value, const JinjaArgs *args) {
    bool truth;
    Jv out = jinja_list_new(vm, 0), list, bound[JINJA_PARAMS_MAX];
    if (jv_bad(out) || !jinja_truth(vm, value, &truth) || !truth) return vm->failed ? jv_error() : out;
    if (!args->count && args->keyword_count) {
        if (!jinja_bind(vm, "map", "attribute default=", args, bound)) return jv_error();
        return attributes_of(vm, jinja_iterate(vm, value), bound[0], bound[1], true);
    }
    if (!args->count) return jinja_fail(vm, "map requires a filter argument");
    JinjaArgs rest = *args;
    rest.values++;
    rest.count--;
    list = jinja_iterate(vm, value);
    if (jv_bad(list) || !list.list->count) return jv_bad(list) ? list : out;
    const JinjaFunction *filter = named(vm, vm->library->filters, args->values[0], "filter");
    for (size_t i = 0; filter && i < list.list->count && jinja_step(vm, 1); i++) {
        if (!jinja_list_push(vm, out.list, jinja_function_call(vm, filter, list.list->items[i], &rest))) break;
    }
    return vm->failed ? jv_error() : out;
}

static Jv select_or_reject(Vm *vm, Jv value, const JinjaArgs *args, bool keep, bool by_attribute) {
    bool truth;
    Jv out = jinja_list_new(vm, 0);
    if (jv_bad(out) || !jinja_truth(vm, value, &truth) || !truth) return vm->failed ? jv_error() : out;
    if (by_attribute && !args->count) return jinja_fail(vm, "Missing parameter for attribute name");
    Jv list = jinja_iterate(vm, value);
    Jv items = by_attribute ? attributes_of(vm, list, args->values[0], jv_missing(), true) : list;
    const JinjaFunction *test = NULL;
    JinjaArgs rest = *args;
    bool has_test = args->count > by_attribute;
    if (jv_bad(items) || !items.list->count) return jv_bad(items) ? items : out;
    if (has_test && !(test = named(vm, vm->library->tests, args->values[by_attribute], "test"))) return jv_error();
    rest.values += has_test ? by_attribute + 1 : 0;
    rest.count -= has_test ? (size_t)by_attribute + 1 : rest.count;
    for (size_t i = 0; i < list.list->count && jinja_step(vm, 1); i++) {
        Jv item = items.list->items[i];
        bool chosen;
        if (test) item = jinja_function_call(vm, test, item, &rest);
        if (!jinja_truth(vm, item, &chosen)) return jv_error();
        if (chosen == keep && !jinja_list_push(vm, out.list, list.list->items[i])) return jv_error();
    }
    return vm->failed ? jv_error() : out;
}
static Jv filter_select(Vm *vm, Jv v, const JinjaArgs *a) { return select_or_reject(vm, v, a, true, false); }
static Jv filter_reject(Vm *vm, Jv v, const JinjaArgs *a) { return select_or_reject(vm, v, a, false, false); }
static Jv filter_selectattr(Vm *vm, Jv v, const JinjaArgs *a) { return select_or_reject(vm, v, a, true, true); }
static Jv filter_rejectattr(Vm *vm, Jv v, const JinjaArgs *a) { return select_or_reject(vm, v, a, false, true); }

/* Values */

static Jv filter_default(Vm *vm, Jv value, const JinjaArgs *a) {
    bool by_truth, truth = true;
    if (!flag(vm, a->values[1], &by_truth)) return jv_error();
    if (by_truth && value.tag != JINJA_UNDEFINED && !jinja_truth(vm, value, &truth)) return jv_error();
    if (value.tag != JINJA_UNDEFINED && truth) return value;
    return jv_given(a->values[0]) ? a->values[0] : jinja_literal(vm, "");
}

static Jv filter_abs(Vm *vm, Jv value, const JinjaArgs *a) {
    if (value.tag == JINJA_FLOAT) return jv_float(fabs(value.f));
    if (jv_integral(value)) return jinja_unary(vm, jv_small(value) < 0 ? OP_NEG : OP_POS, value);
    return jinja_fail(vm, "TypeError: bad operand type for abs(): '%s'", jv_type_name(value));
}

static Jv filter_int(Vm *vm, Jv value, const JinjaArgs *a) {
    Jv fallback = jv_given(a->values[0]) ? a->values[0] : jv_int(0), parsed = value;
    bool ok = true;
    if (value.tag == JINJA_UNDEFINED) return jv_undefined_error(vm, value);
    if (jv_integral(value) || value.tag == JINJA_LONG) return jinja_unary(vm, OP_POS, value);
    if (value.tag == JINJA_FLOAT && isinf(value.f)) {
        return jinja_fail(vm, "OverflowError: cannot convert float infinity to integer");
    }
    if (value.tag == JINJA_STR) {
        if (!jinja_str_flatten(vm, value.s)) return jv_error();
        parsed = jinja_int_parse(vm, jinja_str_slice(value.s), &ok);
        if (ok) return parsed;
        parsed = jinja_float_parse(vm, jinja_str_slice(value.s), &ok);
    }
    return ok && parsed.tag == JINJA_FLOAT && isfinite(parsed.f) ? jinja_int_from_double(vm, parsed.f) : fallback;
}

static Jv filter_float(Vm *vm, Jv value, const JinjaArgs *a) {
    Jv fallback = jv_given(a->values[0]) ? a->values[0] : jv_float(0);
    double number;
    bool ok;
    if (jv_number(value) || value.tag == JINJA_UNDEFINED) {
        return jinja_as_double(vm, value, &number) ? jv_float(number) : jv_error();
    }
    if (value.tag != JINJA_STR || !jinja_str_flatten(vm, value.s)) return fallback;
    Jv parsed = jinja_float_parse(vm, jinja_str_slice(value.s), &ok);
    return ok ? parsed : fallback;
}

static Jv filter_from_json(Vm *vm, Jv value, const JinjaArgs *a) { return jinja_json_read(vm, value); }

static Jv filter_tojson(Vm *vm, Jv value, const JinjaArgs *a) {
    bool ascii, sort;
    if (!flag(vm, a->values[0], &ascii) || !flag(vm, a->values[3], &sort)) return jv_error();
    return jinja_json_write(vm, value, ascii, a->values[1], a->values[2], sort);
}

static const JinjaFunction filters[] = {
    {"abs", 0, "", filter_abs},
    {"capitalize", 0, "", filter_capitalize},
    {"count", 0, "", filter_length},
    {"d", 0, "default_value= boolean=", filter_default},
    {"default", 0, "default_value= boolean=", filter_default},
    {"dictsort", 0, "case_sensitive= by= reverse=", filter_dictsort},
    {"e", 0, "", filter_escape},
    {"escape", 0, "", filter_escape},
    {"first", 0, "", filter_first},
    {"float", 0, "default=", filter_float},
    {"forceescape", 0, "", filter_forceescape},
    {"from_json", 0, "", filter_from_json},
    {"indent", 0, "width= first= blank=", filter_indent},
    {"int", 0, "default=", filter_int},
    {"items", FUNCTION_LAZY, "", filter_items},
    {"join", 0, "d= attribute=", filter_join},
    {"last", 0, "", filter_last},
    {"length", 0, "", filter_length},
    {"list", 0, "", filter_list},
    {"lower", 0, "", filter_lower},
    {"map", FUNCTION_LAZY, NULL, filter_map},
    {"max", 0, "case_sensitive= attribute=", filter_max},
    {"min", 0, "case_sensitive= attribute=", filter_min},
    {"reject", FUNCTION_LAZY, NULL, filter_reject},
    {"rejectattr", FUNCTION_LAZY, NULL, filter_rejectattr},
    {"replace", 0, "old new count=", filter_replace},
    {"reverse", 0, "", filter_reverse},
    {"safe", 0, "", filter_safe},
    {"select", FUNCTION_LAZY, NULL, filter_select},
    {"selectattr", FUNCTION_LAZY, NULL, filter_selectattr},
    {"sort", 0, "reverse= case_sensitive= attribute=", filter_sort},
    {"string", 0, "", filter_string},
    {"sum", 0, "attribute= start=", filter_sum},
    {"title", 0, "", filter_title},
    {"tojson", 0, "ensure_ascii= indent= separators= sort_keys=", filter_tojson},
    {"trim", 0, "chars=", filter_trim},
    {"unique", FUNCTION_LAZY, "case_sensitive= attribute=", filter_unique},
    {"upper", 0, "", filter_upper},
};
const JinjaTable jinja_filters = {filters, COUNT_OF(filters)};
