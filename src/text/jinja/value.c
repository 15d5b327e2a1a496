/* Python's object protocol for template values: truth, equality, order, containment, length, iteration, slices. */
#include <math.h>
#include <stdio.h>

#include "text/jinja/eval.h"

const char *jv_type_name(Jv v) {
    switch (v.tag) {
    case JINJA_NONE: return "NoneType";
    case JINJA_BOOL: return "bool";
    case JINJA_INT:
    case JINJA_BIG: return "int";
    case JINJA_FLOAT: return "float";
    case JINJA_STR: return v.s->markup ? "Markup" : "str";
    case JINJA_LIST: return "list";
    case JINJA_TUPLE: return "tuple";
    case JINJA_DICT: return "dict";
    case JINJA_VIEW: return v.flag == 'k' ? "dict_keys" : v.flag == 'v' ? "dict_values" : "dict_items";
    case JINJA_RANGE: return "range";
    case JINJA_ITER: return v.iter->type_name;
    case JINJA_NAMESPACE: return "Namespace";
    case JINJA_MACRO: return "Macro";
    case JINJA_LOOP: return "LoopContext";
    case JINJA_CYCLER: return "Cycler";
    case JINJA_JOINER: return "Joiner";
    case JINJA_FUNCTION: return "function";
    case JINJA_METHOD: return "builtin_function_or_method";
    default: return "Undefined";
    }
}

Jv jv_hint(Vm *vm, const char *text) {
    Jv hint = jinja_literal(vm, text);
    return jv_bad(hint) ? hint : (Jv){.tag = JINJA_UNDEFINED, .kind = UINT16_MAX, .s = hint.s};
}

Jv jv_undefined_error(Vm *vm, Jv v) {
    if (!v.s || !jinja_str_flatten(vm, v.s)) return jinja_fail(vm, "a value is undefined");
    int size = v.s->size > 200 ? 200 : (int)v.s->size;
    if (v.kind == UINT16_MAX) return jinja_fail(vm, "%.*s", size, v.s->data);
    if (v.flag) return jinja_fail(vm, "access to attribute '%.*s' is unsafe", size, v.s->data);
    if (v.kind == 0) return jinja_fail(vm, "'%.*s' is undefined", size, v.s->data);
    Jv type = {.tag = (uint8_t)v.kind};
    const char *name = v.kind == JINJA_STR ? "str"
        : v.kind == JINJA_ITER             ? "generator"
        : v.kind == JINJA_VIEW             ? "dict_items"
                                           : jv_type_name(type);
    if (v.kind == JINJA_NONE) return jinja_fail(vm, "'None' has no attribute '%.*s'", size, v.s->data);
    return jinja_fail(vm, "'%s object' has no attribute '%.*s'", name, size, v.s->data);
}

bool jinja_length(Vm *vm, Jv v, size_t *out) {
    switch (v.tag) {
    case JINJA_UNDEFINED: *out = 0; return true;
    case JINJA_STR: *out = v.s->length; return true;
    case JINJA_LIST:
    case JINJA_TUPLE: *out = v.list->count; return true;
    case JINJA_DICT:
    case JINJA_VIEW: *out = v.dict->count; return true;
    case JINJA_RANGE: *out = (size_t)v.range->count; return true;
    case JINJA_LOOP:
        if (!jinja_loop_fill(vm, v.loop, SIZE_MAX)) return false;
        *out = v.loop->items.count;
        return true;
    default: jinja_fail(vm, "TypeError: object of type '%s' has no len()", jv_type_name(v)); return false;
    }
}

bool jinja_truth(Vm *vm, Jv v, bool *out) {
    switch (v.tag) {
    case JINJA_ERROR: return false;
    case JINJA_UNDEFINED:
    case JINJA_NONE: *out = false; return true;
    case JINJA_BOOL: *out = v.b; return true;
    case JINJA_INT: *out = v.i != 0; return true;
    case JINJA_FLOAT: *out = v.f != 0; return true;
    case JINJA_STR:
    case JINJA_LIST:
    case JINJA_TUPLE:
    case JINJA_DICT:
    case JINJA_VIEW:
    case JINJA_RANGE:
    case JINJA_LOOP: {
        size_t length;
        if (!jinja_length(vm, v, &length)) return false;
        *out = length > 0;
        return true;
    }
    default: *out = true; return true;
    }
}

static int double_order(double a, double b) { return isnan(a) || isnan(b) ? 2 : a < b ? -1 : a > b; }

/* An integer and a float are compared exactly, not after rounding the integer. */
static int int_float_order(Vm *vm, Jv a, double b) {
    if (isnan(b)) return 2;
    if (isinf(b)) return b > 0 ? -1 : 1;
    if (a.tag != JINJA_BIG && jv_small(a) <= (int64_t)1 << 53 && jv_small(a) >= -((int64_t)1 << 53)) {
        return double_order((double)jv_small(a), b);
    }
    Jv whole = jinja_int_from_double(vm, trunc(b));
    if (jv_bad(whole)) return b > 0 ? -1 : 1;
    int order = jinja_int_compare(a, whole);
    return order ? order : double_order(trunc(b), b);
}

static bool number_order(Vm *vm, Jv a, Jv b, int *order) {
    bool ai = jv_integral(a), bi = jv_integral(b);
    if ((!ai && a.tag != JINJA_FLOAT) || (!bi && b.tag != JINJA_FLOAT)) return false;
    if (ai && bi) {
        *order = jinja_int_compare(a, b);
    } else if (ai) {
        *order = int_float_order(vm, a, b.f);
    } else if (bi) {
        *order = int_float_order(vm, b, a.f);
        if (*order != 2) *order = -*order;
    } else {
        *order = double_order(a.f, b.f);
    }
    return true;
}

static bool str_equal(Vm *vm, JinjaStr *a, JinjaStr *b, bool *out) {
    *out = false;
    if (a == b) return *out = true;
    if (a->size != b->size) return true;
    if (!jinja_str_flatten(vm, a) || !jinja_str_flatten(vm, b)) return false;
    *out = memcmp(a->data, b->data, a->size) == 0;
    return jinja_step(vm, a->size / 64);
}

static bool list_equal(Vm *vm, const JinjaList *a, const JinjaList *b, bool *out) {
    *out = a == b;
    if (a == b || a->count != b->count) return true;
    *out = true;
    for (size_t i = 0; i < a->count && *out; i++) {
        if (!jinja_equal(vm, a->items[i], b->items[i], out)) return false;
    }
    return true;
}

static bool dict_equal(Vm *vm, const JinjaDict *a, const JinjaDict *b, bool *out) {
    *out = a == b;
    if (a == b || a->count != b->count) return true;
    for (size_t i = 0; i < a->count; i++) {
        JinjaPair *pair = jinja_dict_find(vm, b, a->pairs[i].key);
        if (!pair) return !vm->failed;
        if (!jinja_equal(vm, a->pairs[i].value, pair->value, out)) return false;
        if (!*out) return true;
    }
    *out = true;
    return true;
}

static bool equal_inner(Vm *vm, Jv a, Jv b, bool *out) {
    int order;
    *out = false;
    if (a.tag == JINJA_STR && b.tag == JINJA_STR) return str_equal(vm, a.s, b.s, out);
    if (number_order(vm, a, b, &order)) {
        *out = order == 0;
        return !vm->failed;
    }
    if (a.tag != b.tag) return true;
    switch (a.tag) {
    case JINJA_UNDEFINED:
    case JINJA_NONE: *out = true; return true;
    case JINJA_LIST:
    case JINJA_TUPLE: return list_equal(vm, a.list, b.list, out);
    case JINJA_DICT: return dict_equal(vm, a.dict, b.dict, out);
    case JINJA_VIEW: *out = a.flag == b.flag && a.flag != 'v' && a.dict == b.dict; return true;
    case JINJA_RANGE: {
        const JinjaRange *x = a.range, *y = b.range;
        *out =
            x->count == y->count && (x->count == 0 || (x->start == y->start && (x->count == 1 || x->step == y->step)));
        return true;
    }
    case JINJA_FUNCTION: *out = a.kind == b.kind; return true;
    case JINJA_METHOD: *out = a.method == b.method; return true;
    default: *out = a.iter == b.iter; return true; /* the same object */
    }
}

bool jinja_equal(Vm *vm, Jv a, Jv b, bool *out) {
    if (!jinja_enter(vm)) return false;
    bool ok = equal_inner(vm, a, b, out);
    vm->depth--;
    return ok;
}

static bool list_order(Vm *vm, const JinjaList *a, const JinjaList *b, const char *op, int *order) {
    size_t count = a->count < b->count ? a->count : b->count;
    for (size_t i = 0; i < count; i++) {
        bool equal;
        if (!jinja_equal(vm, a->items[i], b->items[i], &equal)) return false;
        if (!equal) return jinja_less(vm, a->items[i], b->items[i], op, order);
    }
    *order = a->count < b->count ? -1 : a->count > b->count;
    return true;
}

bool jinja_less(Vm *vm, Jv a, Jv b, const char *op, int *order) {
    if (number_order(vm, a, b, order)) return !vm->failed;
    if (a.tag == JINJA_STR && b.tag == JINJA_STR) {
        if (!jinja_str_flatten(vm, a.s) || !jinja_str_flatten(vm, b.s)) return false;
        size_t size = a.s->size < b.s->size ? a.s->size : b.s->size;
        *order = size ? memcmp(a.s->data, b.s->data, size) : 0; /* UTF-8 sorts as its code points do */
        if (*order == 0) *order = a.s->size < b.s->size ? -1 : a.s->size > b.s->size;
        *order = *order < 0 ? -1 : *order > 0;
        return jinja_step(vm, size / 64);
    }
    if (a.tag == b.tag && (a.tag == JINJA_LIST || a.tag == JINJA_TUPLE)) {
        if (!jinja_enter(vm)) return false;
        bool ok = list_order(vm, a.list, b.list, op, order);
        vm->depth--;
        return ok;
    }
    if (a.tag == JINJA_UNDEFINED || b.tag == JINJA_UNDEFINED) {
        jv_undefined_error(vm, a.tag == JINJA_UNDEFINED ? a : b);
    } else {
        jinja_fail(vm, "TypeError: '%s' not supported between instances of '%s' and '%s'", op, jv_type_name(a),
            jv_type_name(b));
    }
    return false;
}

static bool list_contains(Vm *vm, const JinjaList *list, Jv item, bool *out) {
    *out = false;
    for (size_t i = 0; i < list->count && !*out; i++) {
        if (!jinja_equal(vm, list->items[i], item, out)) return false;
    }
    return true;
}

bool jinja_contains(Vm *vm, Jv container, Jv item, bool *out) {
    *out = false;
    switch (container.tag) {
    case JINJA_STR:
        if (item.tag != JINJA_STR) {
            jinja_fail(vm, "TypeError: 'in <string>' requires string as left operand, not %s", jv_type_name(item));
            return false;
        }
        if (!jinja_str_flatten(vm, container.s) || !jinja_str_flatten(vm, item.s)) return false;
        *out = item.s->size == 0 || memmem(container.s->data, container.s->size, item.s->data, item.s->size) != NULL;
        return jinja_step(vm, container.s->size / 64);
    case JINJA_LIST:
    case JINJA_TUPLE: return list_contains(vm, container.list, item, out);
    case JINJA_UNDEFINED: return true;
    case JINJA_VIEW:
        if (container.flag != 'k') break;
        /* fall through */
    case JINJA_DICT: *out = jinja_dict_find(vm, container.dict, item) != NULL; return !vm->failed;
    default: break;
    }
    if (container.tag == JINJA_ITER) { /* a generator is used up to the item found */
        JinjaIter *iter = container.iter;
        if (!jinja_iter_force(vm, iter)) return false;
        while (iter->next < iter->items.count && !*out) {
            if (!jinja_equal(vm, iter->items.items[iter->next++], item, out)) return false;
        }
        return true;
    }
    if (container.tag != JINJA_RANGE && container.tag != JINJA_VIEW && container.tag != JINJA_LOOP) {
        jinja_fail(vm, "TypeError: argument of type '%s' is not iterable", jv_type_name(container));
        return false;
    }
    Jv list = jinja_iterate(vm, container);
    return !jv_bad(list) && list_contains(vm, list.list, item, out);
}

/* Lists */

Jv jinja_list_new(Vm *vm, size_t capacity) {
    JinjaList *list = jinja_alloc(vm, 1, sizeof *list);
    if (!list) return jv_error();
    if (capacity && !(list->items = jinja_alloc(vm, capacity, sizeof(Jv)))) return jv_error();
    list->capacity = capacity;
    return (Jv){.tag = JINJA_LIST, .list = list};
}

bool jinja_list_push(Vm *vm, JinjaList *list, Jv v) {
    if (jv_bad(v)) return false;
    if (list->count == list->capacity) {
        size_t capacity = list->capacity ? list->capacity * 2 : 4;
        Jv *grown = jinja_alloc(vm, capacity, sizeof *grown);
        if (!grown) return false;
        if (list->count) memcpy(grown, list->items, list->count * sizeof *grown);
        list->items = grown;
        list->capacity = capacity;
    }
    list->items[list->count++] = v;
    return true;
}

Jv jinja_tuple(Vm *vm, const Jv *items, size_t count) {
    Jv tuple = jinja_list_new(vm, count);
    if (jv_bad(tuple)) return tuple;
    if (count) memcpy(tuple.list->items, items, count * sizeof *items);
    tuple.list->count = count;
    tuple.tag = JINJA_TUPLE;
    return tuple;
}

Jv jinja_range_at(const JinjaRange *range, int64_t index) { return jv_int(range->start + index * range->step); }

Jv jinja_iter_new(Vm *vm, Jv list, const char *type_name) {
    JinjaIter *iter = jv_bad(list) ? NULL : jinja_alloc(vm, 1, sizeof *iter);
    if (!iter) return jv_error();
    iter->items = *list.list;
    iter->type_name = type_name;
    return (Jv){.tag = JINJA_ITER, .iter = iter};
}

bool jinja_iter_force(Vm *vm, JinjaIter *iter) {
    if (!iter->filter) return !vm->failed;
    const JinjaFilter *filter = iter->filter;
    iter->filter = NULL;
    Jv bound[JINJA_PARAMS_MAX], list;
    if (!jinja_enter(vm)) return false;
    if (filter->params) {
        bool ok = jinja_bind(vm, filter->name, filter->params, filter->required, &iter->args, bound);
        list = ok ? filter->run(vm, iter->source, bound) : jv_error();
    } else {
        list = filter->run_any(vm, iter->source, &iter->args);
    }
    vm->depth--;
    if (jv_bad(list)) return false;
    iter->items = *list.list;
    return true;
}

static Jv string_items(Vm *vm, JinjaStr *s) {
    if (!jinja_str_flatten(vm, s) || !jinja_step(vm, s->length)) return jv_error();
    Jv out = jinja_list_new(vm, s->length);
    for (size_t at = 0; at < s->size && !jv_bad(out);) {
        size_t width = utf8_width((unsigned char)s->data[at]);
        JinjaStr *c = jinja_str_part(vm, s, at, at + width);
        if (c && c->markup) c = jinja_str_markup(vm, c, false);
        if (!jinja_list_push(vm, out.list, jv_str(c))) return jv_error();
        at += width;
    }
    return out;
}

static Jv dict_items(Vm *vm, const JinjaDict *dict, char what) {
    Jv out = jinja_list_new(vm, dict->count);
    if (jv_bad(out) || !jinja_step(vm, dict->count / 4)) return jv_error();
    for (size_t i = 0; i < dict->count; i++) {
        const JinjaPair *pair = &dict->pairs[i];
        Jv both[2] = {pair->key, pair->value};
        Jv item = what == 'k' ? pair->key : what == 'v' ? pair->value : jinja_tuple(vm, both, 2);
        if (!jinja_list_push(vm, out.list, item)) return jv_error();
    }
    return out;
}

Jv jinja_iterate(Vm *vm, Jv v) {
    switch (v.tag) {
    case JINJA_LIST: return v;
    case JINJA_TUPLE: return (Jv){.tag = JINJA_LIST, .list = v.list};
    case JINJA_UNDEFINED: return jinja_list_new(vm, 0);
    case JINJA_STR: return string_items(vm, v.s);
    case JINJA_DICT: return dict_items(vm, v.dict, 'k');
    case JINJA_VIEW: return dict_items(vm, v.dict, (char)v.flag);
    case JINJA_RANGE: {
        Jv out = jinja_list_new(vm, (size_t)v.range->count);
        for (int64_t i = 0; i < v.range->count && !jv_bad(out); i++) {
            if (!jinja_list_push(vm, out.list, jinja_range_at(v.range, i))) return jv_error();
        }
        return jinja_step(vm, (size_t)v.range->count / 8) ? out : jv_error();
    }
    case JINJA_ITER: {
        if (!jinja_iter_force(vm, v.iter)) return jv_error();
        Jv out = jinja_list_new(vm, 0);
        if (jv_bad(out)) return out;
        if (v.iter->items.count) out.list->items = v.iter->items.items + v.iter->next;
        out.list->count = out.list->capacity = v.iter->items.count - v.iter->next;
        v.iter->next = v.iter->items.count;
        return out;
    }
    case JINJA_LOOP: { /* the rest of the loop, each with the loop itself */
        Jv out = jinja_list_new(vm, 0);
        if (jv_bad(out) || !jinja_loop_fill(vm, v.loop, SIZE_MAX)) return jv_error();
        while (v.loop->index + 1 < v.loop->items.count) {
            Jv both[2] = {v.loop->items.items[++v.loop->index], v};
            if (!jinja_list_push(vm, out.list, jinja_tuple(vm, both, 2))) return jv_error();
        }
        return out;
    }
    default: return jinja_fail(vm, "TypeError: '%s' object is not iterable", jv_type_name(v));
    }
}

/* Slices: start, stop and step clamp as in Python. */
static bool slice_index(Vm *vm, Jv v, int64_t fallback, int64_t length, int64_t low, int64_t high, int64_t *out) {
    if (!jv_given(v) || v.tag == JINJA_NONE) {
        *out = fallback;
        return true;
    }
    if (v.tag != JINJA_UNDEFINED && !jv_integral(v)) {
        jinja_fail(vm, "TypeError: slice indices must be integers or None or have an __index__ method");
        return false;
    }
    if (!jinja_as_index(vm, v, out)) return false;
    if (*out < 0) *out = *out < -length ? -1 : *out + length; /* -1 is below every low */
    if (*out < low) *out = low;
    if (*out > high) *out = high;
    return true;
}

static Jv slice_string(Vm *vm, JinjaStr *s, int64_t start, int64_t step, int64_t count) {
    if (!jinja_str_flatten(vm, s)) return jv_error();
    if (step == 1 || count == 0) {
        size_t from = count ? jinja_str_offset(s, (size_t)start) : 0;
        size_t to = count ? from : 0;
        bool ascii = s->size == s->length;
        if (ascii) {
            to = from + (size_t)count;
        } else if (!jinja_step(vm, s->size / 16)) {
            return jv_error();
        }
        for (int64_t i = 0; i < count && !ascii; i++) to += utf8_width((unsigned char)s->data[to]);
        return jv_str(jinja_str_part(vm, s, from, to));
    }
    JinjaText *out = jinja_text_push(vm);
    if (!out) return jv_error();
    size_t at = jinja_str_offset(s, (size_t)start);
    for (int64_t i = 0; i < count && jinja_step(vm, 1); i++) {
        jinja_text_part(out, s, at, at + utf8_width((unsigned char)s->data[at]));
        if (i + 1 == count) break;
        for (int64_t j = 0; j < (step < 0 ? -step : step); j++) {
            if (step > 0) {
                at += utf8_width((unsigned char)s->data[at]);
            } else {
                do at--;
                while (((unsigned char)s->data[at] & 0xC0) == 0x80);
            }
        }
    }
    Jv result = jinja_text_finish(vm, out);
    return jv_bad(result) ? result : jv_str(jinja_str_markup(vm, result.s, s->markup));
}

Jv jinja_slice(Vm *vm, Jv v, Jv start, Jv stop, Jv step) {
    if (v.tag == JINJA_UNDEFINED) return jv_undefined_error(vm, v);
    if (v.tag == JINJA_DICT) return jinja_fail(vm, "TypeError: unhashable type: 'slice'");
    if (v.tag != JINJA_STR && v.tag != JINJA_LIST && v.tag != JINJA_TUPLE && v.tag != JINJA_RANGE) {
        return jinja_fail(vm, "TypeError: '%s' object is not subscriptable", jv_type_name(v));
    }
    size_t size;
    int64_t by = 1, from, to;
    if (!jinja_length(vm, v, &size)) return jv_error();
    int64_t length = (int64_t)size;
    bool stepped = jv_given(step) && step.tag != JINJA_NONE;
    if (stepped && step.tag != JINJA_UNDEFINED && !jv_integral(step)) {
        return jinja_fail(vm, "TypeError: slice indices must be integers or None or have an __index__ method");
    }
    if (stepped && !jinja_as_index(vm, step, &by)) return jv_error();
    if (by == 0) return jinja_fail(vm, "ValueError: slice step cannot be zero");
    if (by > length + 1) by = length + 1;
    if (by < -length - 1) by = -length - 1;
    bool down = by < 0;
    int64_t low = down ? -1 : 0, high = down ? length - 1 : length;
    if (!slice_index(vm, start, down ? high : 0, length, low, high, &from)) return jv_error();
    if (!slice_index(vm, stop, down ? -1 : length, length, low, high, &to)) return jv_error();
    int64_t count = down ? (from > to ? (from - to - 1) / -by + 1 : 0) : (to > from ? (to - from - 1) / by + 1 : 0);
    if (v.tag == JINJA_STR) return slice_string(vm, v.s, from, by, count);
    if (v.tag == JINJA_RANGE) {
        JinjaRange *range = jinja_alloc(vm, 1, sizeof *range);
        if (!range) return jv_error();
        int64_t first = v.range->start + from * v.range->step;
        *range = (JinjaRange){first, v.range->start + to * v.range->step, v.range->step * by, count};
        return (Jv){.tag = JINJA_RANGE, .range = range};
    }
    Jv out = jinja_list_new(vm, (size_t)count);
    if (jv_bad(out) || !jinja_step(vm, (size_t)count / 8)) return jv_error();
    for (int64_t i = 0; i < count; i++) out.list->items[i] = v.list->items[from + i * by];
    out.list->count = (size_t)count;
    out.tag = v.tag;
    return out;
}
