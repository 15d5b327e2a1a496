/* Filters on sequences, mappings and numbers. Reference: jinja2 3.1 filters.py. */
#include <math.h>
#include <stdlib.h>

#include "text/jinja/eval.h"

static bool flag(Vm *vm, Jv v, bool fallback, bool *out) {
    *out = fallback;
    return !jv_given(v) || jinja_truth(vm, v, out);
}

static bool whole(Vm *vm, Jv v, int64_t fallback, int64_t *out) {
    *out = fallback;
    return !jv_given(v) || v.tag == JINJA_NONE || jinja_as_index(vm, v, out);
}

/* Attributes: "a.b.0" is a path, digits are indices. */
bool jinja_attribute_parts(Vm *vm, Jv attribute, JinjaList *out) {
    *out = (JinjaList){0};
    if (!jv_given(attribute) || attribute.tag == JINJA_NONE) return true;
    if (attribute.tag != JINJA_STR) return jinja_list_push(vm, out, attribute);
    Jv parts = jinja_str_split(vm, attribute, jinja_literal(vm, "."), -1, false);
    for (size_t i = 0; !jv_bad(parts) && i < parts.list->count; i++) {
        Jv part = parts.list->items[i];
        bool ok = true;
        if (jinja_str_test(vm, part, 'g')) {
            Jv index = jinja_int_text(vm, jinja_str_slice(part.s), 10, &ok);
            if (ok) part = index;
        }
        if (!jinja_list_push(vm, out, part)) return false;
    }
    return !vm->failed;
}

Jv jinja_attribute_get(Vm *vm, Jv item, const JinjaList *parts, Jv fallback) {
    for (size_t i = 0; i < parts->count && !jv_bad(item); i++) {
        item = jinja_getitem(vm, item, parts->items[i]);
        if (item.tag == JINJA_UNDEFINED && jv_given(fallback) && fallback.tag != JINJA_NONE) item = fallback;
    }
    return item;
}

Jv jinja_ignore_case(Vm *vm, Jv v) { return v.tag == JINJA_STR ? jinja_str_case(vm, v, CASE_LOWER) : v; }

static Jv key_of(Vm *vm, Jv item, const JinjaList *parts, Jv fallback, bool case_sensitive) {
    Jv key = jinja_attribute_get(vm, item, parts, fallback);
    return jv_bad(key) || case_sensitive ? key : jinja_ignore_case(vm, key);
}

/* Sorting: a stable merge sort of indices, with Python's "<" between keys. */
static bool merge(
    Vm *vm, const Jv *keys, size_t *order, size_t *scratch, size_t from, size_t middle, size_t to, bool reverse) {
    size_t a = from, b = middle, w = from;
    while (a < middle && b < to) {
        int compared;
        const Jv x = keys[order[b]], y = keys[order[a]];
        if (!jinja_step(vm, 1) || !jinja_less(vm, reverse ? y : x, reverse ? x : y, "<", &compared)) return false;
        scratch[w++] = compared == -1 ? order[b++] : order[a++];
    }
    while (a < middle) scratch[w++] = order[a++];
    while (b < to) scratch[w++] = order[b++];
    memcpy(order + from, scratch + from, (to - from) * sizeof *order);
    return true;
}

bool jinja_sort(Vm *vm, JinjaList *items, const Jv *keys, bool reverse) {
    size_t count = items->count;
    size_t *order = jinja_alloc(vm, count * 2, sizeof *order);
    Jv *sorted = order ? jinja_alloc(vm, count, sizeof *sorted) : NULL;
    if (!sorted) return false;
    for (size_t i = 0; i < count; i++) order[i] = i;
    for (size_t width = 1; width < count; width *= 2) {
        for (size_t from = 0; from + width < count; from += 2 * width) {
            size_t to = from + 2 * width < count ? from + 2 * width : count;
            if (!merge(vm, keys, order, order + count, from, from + width, to, reverse)) return false;
        }
    }
    for (size_t i = 0; i < count; i++) sorted[i] = items->items[order[i]];
    items->items = sorted;
    items->capacity = count;
    return true;
}

static Jv list_copy(Vm *vm, Jv list) {
    Jv out = jv_bad(list) ? list : jinja_tuple(vm, list.list->items, list.list->count);
    if (!jv_bad(out)) out.tag = JINJA_LIST;
    return out;
}

static Jv sort_with_keys(Vm *vm, Jv value, const JinjaList *parts, size_t part_count, bool sensitive, bool reverse) {
    Jv list = list_copy(vm, jinja_iterate(vm, value));
    JinjaList keys = {0};
    for (size_t i = 0; !jv_bad(list) && i < list.list->count; i++) {
        Jv key = jinja_list_new(vm, part_count);
        for (size_t j = 0; j < part_count && !jv_bad(key); j++) {
            Jv part = key_of(vm, list.list->items[i], &parts[j], (Jv){.tag = JINJA_MISSING}, sensitive);
            if (!jinja_list_push(vm, key.list, part)) return jv_error();
        }
        if (!jinja_list_push(vm, &keys, key)) return jv_error();
    }
    if (jv_bad(list) || !jinja_sort(vm, list.list, keys.items, reverse)) return jv_error();
    return list;
}

static Jv filter_sort(Vm *vm, Jv value, const Jv *a) {
    bool reverse, sensitive;
    if (!flag(vm, a[0], false, &reverse) || !flag(vm, a[1], false, &sensitive)) return jv_error();
    JinjaList single = {0}, *parts = &single;
    size_t count = 1;
    if (jv_given(a[2]) && a[2].tag == JINJA_STR) {
        Jv names = jinja_str_split(vm, a[2], jinja_literal(vm, ","), -1, false);
        if (jv_bad(names)) return names;
        count = names.list->count;
        parts = jinja_alloc(vm, count, sizeof *parts);
        for (size_t i = 0; parts && i < count; i++) {
            if (!jinja_attribute_parts(vm, names.list->items[i], &parts[i])) return jv_error();
        }
    } else if (!jinja_attribute_parts(vm, a[2], &single)) {
        return jv_error();
    }
    return parts ? sort_with_keys(vm, value, parts, count, sensitive, reverse) : jv_error();
}

static Jv filter_dictsort(Vm *vm, Jv value, const Jv *a) {
    bool sensitive, reverse;
    int part = 0;
    if (!flag(vm, a[0], false, &sensitive) || !flag(vm, a[2], false, &reverse)) return jv_error();
    if (jv_given(a[1])) {
        bool text = a[1].tag == JINJA_STR && jinja_str_flatten(vm, a[1].s);
        part = text && slice_is(jinja_str_slice(a[1].s), "value");
        if (!part && !(text && slice_is(jinja_str_slice(a[1].s), "key"))) {
            return jinja_fail(vm, "You can only sort by either \"key\" or \"value\"");
        }
    }
    if (value.tag == JINJA_UNDEFINED) return jv_undefined_error(vm, value);
    if (value.tag != JINJA_DICT)
        return jinja_fail(vm, "AttributeError: '%s' object has no attribute 'items'", jv_type_name(value));
    Jv list = jinja_iterate(vm, (Jv){.tag = JINJA_VIEW, .flag = 'i', .dict = value.dict});
    JinjaList keys = {0};
    for (size_t i = 0; !jv_bad(list) && i < list.list->count; i++) {
        Jv key = list.list->items[i].list->items[part];
        if (!jinja_list_push(vm, &keys, sensitive ? key : jinja_ignore_case(vm, key))) return jv_error();
    }
    return !jv_bad(list) && jinja_sort(vm, list.list, keys.items, reverse) ? list : jv_error();
}

static Jv filter_unique(Vm *vm, Jv value, const Jv *a) {
    bool sensitive;
    JinjaList parts;
    Jv list = jinja_iterate(vm, value), out = jinja_list_new(vm, 0), seen = jinja_dict_new(vm, 0);
    if (jv_bad(list) || !flag(vm, a[0], false, &sensitive) || !jinja_attribute_parts(vm, a[1], &parts))
        return jv_error();
    for (size_t i = 0; i < list.list->count && !jv_bad(seen); i++) {
        Jv key = key_of(vm, list.list->items[i], &parts, (Jv){.tag = JINJA_MISSING}, sensitive);
        if (jv_bad(key)) return key;
        size_t before = seen.dict->count;
        if (!jinja_dict_set(vm, seen.dict, key, jv_none())) return jv_error();
        if (seen.dict->count > before && !jinja_list_push(vm, out.list, list.list->items[i])) return jv_error();
    }
    return vm->failed ? jv_error() : out;
}

static Jv extreme(Vm *vm, Jv value, const Jv *a, int sign) {
    bool sensitive;
    JinjaList parts;
    Jv list = jinja_iterate(vm, value), best = {.tag = JINJA_MISSING}, best_key = best;
    if (jv_bad(list) || !flag(vm, a[0], false, &sensitive) || !jinja_attribute_parts(vm, a[1], &parts))
        return jv_error();
    for (size_t i = 0; i < list.list->count; i++) {
        Jv key = key_of(vm, list.list->items[i], &parts, (Jv){.tag = JINJA_MISSING}, sensitive);
        int order = 0;
        if (jv_bad(key)) return key;
        if (jv_given(best) && !jinja_less(vm, key, best_key, sign < 0 ? "<" : ">", &order)) return jv_error();
        if (jv_given(best) && order != sign) continue;
        best = list.list->items[i];
        best_key = key;
    }
    return jv_given(best) ? best : jv_hint(vm, "No aggregated item, sequence was empty.");
}
static Jv filter_min(Vm *vm, Jv value, const Jv *a) { return extreme(vm, value, a, -1); }
static Jv filter_max(Vm *vm, Jv value, const Jv *a) { return extreme(vm, value, a, 1); }

static Jv filter_sum(Vm *vm, Jv value, const Jv *a) {
    JinjaList parts;
    Jv list = jinja_iterate(vm, value), sum = jv_given(a[1]) ? a[1] : jv_int(0);
    if (jv_bad(list) || !jinja_attribute_parts(vm, a[0], &parts)) return jv_error();
    if (sum.tag == JINJA_STR) return jinja_fail(vm, "TypeError: sum() can't sum strings [use ''.join(seq) instead]");
    for (size_t i = 0; i < list.list->count && !jv_bad(sum); i++) {
        Jv item = jinja_attribute_get(vm, list.list->items[i], &parts, (Jv){.tag = JINJA_MISSING});
        sum = jv_bad(item) ? item : jinja_binary(vm, OP_ADD, sum, item);
    }
    return sum;
}

static Jv filter_groupby(Vm *vm, Jv value, const Jv *a) {
    bool sensitive;
    JinjaList parts, keys = {0};
    Jv list = list_copy(vm, jinja_iterate(vm, value)), out = jinja_list_new(vm, 0);
    if (jv_bad(list) || jv_bad(out) || !flag(vm, a[2], false, &sensitive) || !jinja_attribute_parts(vm, a[0], &parts))
        return jv_error();
    for (size_t i = 0; i < list.list->count; i++) {
        if (!jinja_list_push(vm, &keys, key_of(vm, list.list->items[i], &parts, a[1], sensitive))) return jv_error();
    }
    JinjaList sorted_keys = keys;
    if (!jinja_sort(vm, list.list, keys.items, false) || !jinja_sort(vm, &sorted_keys, keys.items, false))
        return jv_error();
    Jv group = {.tag = JINJA_MISSING};
    for (size_t i = 0; i < list.list->count; i++) {
        bool same = false;
        if (i && !jinja_equal(vm, sorted_keys.items[i - 1], sorted_keys.items[i], &same)) return jv_error();
        if (!same) {
            Jv pair[2] = {key_of(vm, list.list->items[i], &parts, a[1], true), jinja_list_new(vm, 0)};
            group = pair[1];
            Jv tuple = jv_bad(pair[0]) || jv_bad(group) ? jv_error() : jinja_tuple(vm, pair, 2);
            tuple.flag = 1;
            if (!jinja_list_push(vm, out.list, tuple)) return jv_error();
        }
        if (!jinja_list_push(vm, group.list, list.list->items[i])) return jv_error();
    }
    return out;
}

static Jv filter_first(Vm *vm, Jv value, const Jv *a) {
    if (value.tag == JINJA_ITER) { /* takes one item, the rest stays */
        if (!jinja_iter_force(vm, value.iter)) return jv_error();
        if (value.iter->next < value.iter->items.count) return value.iter->items.items[value.iter->next++];
        return jv_hint(vm, "No first item, sequence was empty.");
    }
    if (value.tag == JINJA_STR && value.s->size) return jinja_getitem(vm, value, jv_int(0));
    Jv list = jinja_iterate(vm, value);
    if (jv_bad(list)) return list;
    return list.list->count ? list.list->items[0] : jv_hint(vm, "No first item, sequence was empty.");
}

static Jv filter_last(Vm *vm, Jv value, const Jv *a) {
    if (value.tag == JINJA_ITER) return jinja_fail(vm, "TypeError: '%s' object is not reversible", jv_type_name(value));
    if (value.tag == JINJA_STR && value.s->size) return jinja_getitem(vm, value, jv_int(-1));
    Jv list = jinja_iterate(vm, value);
    if (jv_bad(list)) return list;
    return list.list->count ? list.list->items[list.list->count - 1] : jv_hint(vm, "No last item, sequence was empty.");
}

static Jv filter_random(Vm *vm, Jv value, const Jv *a) {
    size_t length;
    if (!jinja_length(vm, value, &length)) return jv_error();
    if (value.tag == JINJA_DICT || value.tag == JINJA_VIEW)
        return jinja_fail(vm, "TypeError: the value cannot be indexed");
    if (length == 0) return jv_hint(vm, "No random item, sequence was empty.");
    return jinja_getitem(vm, value, jv_int((int64_t)(jinja_random(vm) % length)));
}

static Jv filter_length(Vm *vm, Jv value, const Jv *a) {
    size_t length;
    return jinja_length(vm, value, &length) ? jv_int((int64_t)length) : jv_error();
}

static Jv filter_list(Vm *vm, Jv value, const Jv *a) { return list_copy(vm, jinja_iterate(vm, value)); }

static Jv filter_items(Vm *vm, Jv value, const Jv *a) {
    if (value.tag == JINJA_UNDEFINED) return jinja_list_new(vm, 0);
    if (value.tag != JINJA_DICT) return jinja_fail(vm, "TypeError: Can only get item pairs from a mapping.");
    return jinja_iterate(vm, (Jv){.tag = JINJA_VIEW, .flag = 'i', .dict = value.dict});
}

static Jv filter_reverse(Vm *vm, Jv value, const Jv *a) {
    if (value.tag == JINJA_STR) {
        const Jv missing = {.tag = JINJA_MISSING};
        Jv text = jinja_slice(vm, value, missing, missing, jv_int(-1));
        return text;
    }
    Jv list = list_copy(vm, jinja_iterate(vm, value));
    if (jv_bad(list)) return list;
    for (size_t i = 0, j = list.list->count; i + 1 < j; i++) {
        Jv item = list.list->items[i];
        list.list->items[i] = list.list->items[--j];
        list.list->items[j] = item;
    }
    bool reversible = value.tag != JINJA_ITER && value.tag != JINJA_UNDEFINED;
    return reversible ? jinja_iter_new(vm, list, "list_reverseiterator") : list;
}

static Jv filter_slice(Vm *vm, Jv value, const Jv *a) {
    int64_t slices;
    Jv list = jinja_iterate(vm, value), out = jinja_list_new(vm, 0);
    if (jv_bad(list) || jv_bad(out) || !jinja_as_index(vm, a[0], &slices)) return jv_error();
    if (slices == 0) return jinja_fail(vm, "ZeroDivisionError: integer division or modulo by zero");
    if (slices > JINJA_RANGE_MAX) return jinja_raise(vm, ERROR_LIMIT, "slice: too many slices");
    int64_t length = (int64_t)list.list->count, size = slices > 0 ? length / slices : 0,
            extra = slices > 0 ? length % slices : 0, at = 0;
    for (int64_t i = 0; i < slices; i++) {
        int64_t count = size + (i < extra);
        Jv part = list_copy(vm, jinja_tuple(vm, count ? list.list->items + at : NULL, (size_t)count));
        bool fill = jv_given(a[1]) && a[1].tag != JINJA_NONE && i >= extra;
        if (jv_bad(part) || (fill && !jinja_list_push(vm, part.list, a[1])) || !jinja_list_push(vm, out.list, part))
            return jv_error();
        at += count;
    }
    return out;
}

static Jv filter_batch(Vm *vm, Jv value, const Jv *a) {
    int64_t size;
    Jv list = jinja_iterate(vm, value), out = jinja_list_new(vm, 0), part = {.tag = JINJA_MISSING};
    if (jv_bad(list) || jv_bad(out) || !jinja_as_index(vm, a[0], &size)) return jv_error();
    for (size_t i = 0; i < list.list->count; i++) {
        bool full = jv_given(part) && (int64_t)part.list->count == size;
        if (!jv_given(part) || full) {
            if (!jv_given(part) && size == 0 && !jinja_list_push(vm, out.list, jinja_list_new(vm, 0)))
                return jv_error();
            part = jinja_list_new(vm, 0);
            if (!jinja_list_push(vm, out.list, part)) return jv_error();
        }
        if (!jinja_list_push(vm, part.list, list.list->items[i])) return jv_error();
    }
    bool fill = jv_given(part) && jv_given(a[1]) && a[1].tag != JINJA_NONE;
    while (fill && (int64_t)part.list->count < size) {
        if (!jinja_step(vm, 1) || !jinja_list_push(vm, part.list, a[1])) return jv_error();
    }
    return out;
}

/* map, select, reject and their attribute forms */

static Jv filter_map(Vm *vm, Jv value, const JinjaArgs *args) {
    bool truth;
    Jv out = jinja_list_new(vm, 0);
    if (jv_bad(out) || !jinja_truth(vm, value, &truth) || !truth) return vm->failed ? jv_error() : out;
    Jv bound[JINJA_PARAMS_MAX], list;
    bool by_attribute = false;
    for (size_t i = 0; i < args->keyword_count && !args->count; i++) {
        by_attribute = by_attribute || slice_is(args->keywords[i].name, "attribute");
    }
    JinjaList parts = {0};
    if (by_attribute) {
        if (!jinja_bind(vm, "map", "attribute default", 0, args, bound)) return jv_error();
        if (!jinja_attribute_parts(vm, bound[0], &parts)) return jv_error();
    } else if (!args->count) {
        return jinja_fail(vm, "map requires a filter argument");
    }
    list = jinja_iterate(vm, value);
    JinjaArgs rest = *args;
    if (!by_attribute) {
        rest.positional++;
        rest.count--;
    }
    for (size_t i = 0; !jv_bad(list) && i < list.list->count && jinja_step(vm, 1); i++) {
        Jv item = list.list->items[i];
        Jv mapped = by_attribute ? jinja_attribute_get(vm, item, &parts, bound[1])
                                 : jinja_filter_named(vm, args->positional[0], item, &rest);
        if (!jinja_list_push(vm, out.list, mapped)) return jv_error();
    }
    return vm->failed ? jv_error() : out;
}

static Jv select_or_reject(Vm *vm, Jv value, const JinjaArgs *args, bool keep, bool by_attribute) {
    bool truth;
    Jv out = jinja_list_new(vm, 0);
    if (jv_bad(out) || !jinja_truth(vm, value, &truth) || !truth) return vm->failed ? jv_error() : out;
    JinjaList parts = {0};
    if (by_attribute && !args->count) return jinja_fail(vm, "Missing parameter for attribute name");
    if (by_attribute && !jinja_attribute_parts(vm, args->positional[0], &parts)) return jv_error();
    size_t skip = by_attribute;
    bool named = args->count > skip;
    JinjaArgs rest = *args;
    rest.positional = named ? args->positional + skip + 1 : NULL;
    rest.count = named ? args->count - skip - 1 : 0;
    Jv list = jinja_iterate(vm, value);
    for (size_t i = 0; !jv_bad(list) && i < list.list->count && jinja_step(vm, 1); i++) {
        Jv item = jinja_attribute_get(vm, list.list->items[i], &parts, (Jv){.tag = JINJA_MISSING});
        bool ok = !jv_bad(item), chosen = false;
        ok = ok &&
            (named ? jinja_test_named(vm, args->positional[skip], item, &rest, &chosen)
                   : jinja_truth(vm, item, &chosen));
        if (!ok || (chosen == keep && !jinja_list_push(vm, out.list, list.list->items[i]))) return jv_error();
    }
    return vm->failed ? jv_error() : out;
}
static Jv filter_select(Vm *vm, Jv v, const JinjaArgs *a) { return select_or_reject(vm, v, a, true, false); }
static Jv filter_reject(Vm *vm, Jv v, const JinjaArgs *a) { return select_or_reject(vm, v, a, false, false); }
static Jv filter_selectattr(Vm *vm, Jv v, const JinjaArgs *a) { return select_or_reject(vm, v, a, true, true); }
static Jv filter_rejectattr(Vm *vm, Jv v, const JinjaArgs *a) { return select_or_reject(vm, v, a, false, true); }

/* Values */

static Jv filter_default(Vm *vm, Jv value, const Jv *a) {
    bool by_truth, truth = true;
    if (!flag(vm, a[1], false, &by_truth)) return jv_error();
    if (by_truth && value.tag != JINJA_UNDEFINED && !jinja_truth(vm, value, &truth)) return jv_error();
    if (value.tag != JINJA_UNDEFINED && truth) return value;
    return jv_given(a[0]) ? a[0] : jinja_literal(vm, "");
}

static Jv filter_attr(Vm *vm, Jv value, const Jv *a) {
    if (a[0].tag != JINJA_STR)
        return jinja_fail(vm, "TypeError: attribute name must be string, not '%s'", jv_type_name(a[0]));
    if (!jinja_str_flatten(vm, a[0].s)) return jv_error();
    if (value.tag != JINJA_DICT) return jinja_getattr(vm, value, a[0].s, jinja_method_id(jinja_str_slice(a[0].s)));
    Jv empty = jinja_dict_new(vm, 0); /* a dict's attributes only, not its items */
    Jv found = jv_bad(empty) ? empty : jinja_getattr(vm, empty, a[0].s, jinja_method_id(jinja_str_slice(a[0].s)));
    if (found.tag == JINJA_METHOD) found.method->self = value;
    return found;
}

static Jv filter_abs(Vm *vm, Jv value, const Jv *a) {
    if (value.tag == JINJA_FLOAT) return jv_float(fabs(value.f));
    if (jv_integral(value))
        return jinja_int_sign(value) < 0 ? jinja_int_negate(vm, value) : jinja_unary(vm, OP_POS, value);
    return jinja_fail(vm, "TypeError: bad operand type for abs(): '%s'", jv_type_name(value));
}

static Jv float_to_int(Vm *vm, double value, Jv fallback) {
    return isfinite(value) ? jinja_int_from_double(vm, value) : fallback;
}

static Jv filter_int(Vm *vm, Jv value, const Jv *a) {
    Jv fallback = jv_given(a[0]) ? a[0] : jv_int(0);
    int64_t base;
    bool ok;
    if (!whole(vm, a[1], 10, &base)) return jv_error();
    if (value.tag == JINJA_UNDEFINED) return jv_undefined_error(vm, value);
    if (jv_integral(value)) return jinja_unary(vm, OP_POS, value);
    if (value.tag == JINJA_FLOAT) {
        if (isinf(value.f)) return jinja_fail(vm, "OverflowError: cannot convert float infinity to integer");
        return float_to_int(vm, value.f, fallback);
    }
    if (value.tag != JINJA_STR || !jinja_str_flatten(vm, value.s)) return vm->failed ? jv_error() : fallback;
    Jv parsed = jinja_int_text(vm, jinja_str_slice(value.s), base < 0 || base > 36 || base == 1 ? 10 : (int)base, &ok);
    if (ok && !jv_bad(parsed)) return parsed;
    if (vm->failed) return jv_error();
    parsed = jinja_float_parse(vm, jinja_str_slice(value.s), &ok);
    return ok ? float_to_int(vm, parsed.f, fallback) : fallback;
}

static Jv filter_float(Vm *vm, Jv value, const Jv *a) {
    Jv fallback = jv_given(a[0]) ? a[0] : jv_float(0);
    double number;
    bool ok;
    if (jv_integral(value) || value.tag == JINJA_FLOAT || value.tag == JINJA_UNDEFINED) {
        return jinja_as_double(vm, value, &number) ? jv_float(number) : jv_error();
    }
    if (value.tag != JINJA_STR || !jinja_str_flatten(vm, value.s)) return vm->failed ? jv_error() : fallback;
    Jv parsed = jinja_float_parse(vm, jinja_str_slice(value.s), &ok);
    return ok ? parsed : fallback;
}

static Jv filter_round(Vm *vm, Jv value, const Jv *a) {
    Jv precision = jv_given(a[0]) ? a[0] : jv_int(0);
    int how = 'o';
    if (jv_given(a[1])) {
        bool text = a[1].tag == JINJA_STR && jinja_str_flatten(vm, a[1].s);
        how = !text                                       ? 0
            : slice_is(jinja_str_slice(a[1].s), "common") ? 'o'
            : slice_is(jinja_str_slice(a[1].s), "ceil")   ? 'c'
            : slice_is(jinja_str_slice(a[1].s), "floor")  ? 'f'
                                                          : 0;
        if (!how) return jinja_fail(vm, "method must be common, ceil or floor");
    }
    if (how == 'o') return jinja_round(vm, value, precision);
    Jv unit = jinja_binary(vm, OP_POW, jv_int(10), precision);
    Jv scaled = jv_bad(unit) ? unit : jinja_binary(vm, OP_MUL, value, unit);
    double number;
    if (jv_bad(scaled)) return scaled;
    if (scaled.tag == JINJA_FLOAT) {
        number = how == 'c' ? ceil(scaled.f) : floor(scaled.f);
        if (!isfinite(number)) return jinja_fail(vm, "OverflowError: cannot convert float infinity or NaN to integer");
        scaled = jinja_int_from_double(vm, number);
    }
    return jv_bad(scaled) ? scaled : jinja_binary(vm, OP_DIV, scaled, unit);
}

static Jv filter_tojson(Vm *vm, Jv value, const Jv *a) {
    bool ascii, sort;
    if (!flag(vm, a[0], false, &ascii) || !flag(vm, a[3], false, &sort)) return jv_error();
    return jinja_tojson(vm, value, ascii, a[1], a[2], sort);
}

const JinjaFilter jinja_list_filters[] = {
    {"abs", "", 0, false, filter_abs, NULL},
    {"attr", "name", 1, false, filter_attr, NULL},
    {"batch", "linecount fill_with", 1, true, filter_batch, NULL},
    {"count", "", 0, false, filter_length, NULL},
    {"d", "default_value boolean", 0, false, filter_default, NULL},
    {"default", "default_value boolean", 0, false, filter_default, NULL},
    {"dictsort", "case_sensitive by reverse", 0, false, filter_dictsort, NULL},
    {"first", "", 0, false, filter_first, NULL},
    {"float", "default", 0, false, filter_float, NULL},
    {"groupby", "attribute default case_sensitive", 1, false, filter_groupby, NULL},
    {"int", "default base", 0, false, filter_int, NULL},
    {"items", "", 0, true, filter_items, NULL},
    {"last", "", 0, false, filter_last, NULL},
    {"length", "", 0, false, filter_length, NULL},
    {"list", "", 0, false, filter_list, NULL},
    {"map", NULL, 0, true, NULL, filter_map},
    {"max", "case_sensitive attribute", 0, false, filter_max, NULL},
    {"min", "case_sensitive attribute", 0, false, filter_min, NULL},
    {"random", "", 0, false, filter_random, NULL},
    {"reject", NULL, 0, true, NULL, filter_reject},
    {"rejectattr", NULL, 0, true, NULL, filter_rejectattr},
    {"reverse", "", 0, false, filter_reverse, NULL},
    {"round", "precision method", 0, false, filter_round, NULL},
    {"select", NULL, 0, true, NULL, filter_select},
    {"selectattr", NULL, 0, true, NULL, filter_selectattr},
    {"slice", "slices fill_with", 1, true, filter_slice, NULL},
    {"sort", "reverse case_sensitive attribute", 0, false, filter_sort, NULL},
    {"sum", "attribute start", 0, false, filter_sum, NULL},
    {"tojson", "ensure_ascii indent separators sort_keys", 0, false, filter_tojson, NULL},
    {"unique", "case_sensitive attribute", 0, true, filter_unique, NULL},
    {NULL, NULL, 0, false, NULL, NULL},
};
