/* What operators do with values of any type: arithmetic, comparison, containment, slices, and sorting by "<". */
#include "text/jinja/value.h"

static const char *const op_texts[] = {"", "+", "-", "/", "//", "*", "%", "**", "~", "[", "]", "(", ")", "{", "}",
    "==", "!=", ">", ">=", "<", "<=", "=", ".", ":", "|", ",", ";", "in", "not in", "-", "+"};

const char *jinja_op_text(JinjaOp op) { return op_texts[op]; }

static Jv op_type_error(Vm *vm, JinjaOp op, Jv a, Jv b) {
    if (a.tag == JINJA_UNDEFINED) return jv_undefined_error(vm, a);
    if (b.tag == JINJA_UNDEFINED) return jv_undefined_error(vm, b);
    if (op == OP_ADD && a.tag == JINJA_STR) {
        return jinja_fail(vm, "TypeError: can only concatenate str (not \"%s\") to str", jv_type_name(b));
    }
    return jinja_fail(vm, "TypeError: unsupported operand type(s) for %s: '%s' and '%s'",
        op == OP_POW ? "** or pow()" : op_texts[op], jv_type_name(a), jv_type_name(b));
}

static Jv repeat_sequence(Vm *vm, Jv sequence, Jv times) {
    int64_t count;
    if (!jinja_as_index(vm, times, &count)) return jv_error();
    if (count < 0) count = 0;
    if (sequence.tag == JINJA_STR) {
        JinjaStr *s = sequence.s;
        if (s->size && count > JINJA_TEXT_MAX / (int64_t)s->size) {
            return jinja_raise(vm, ERROR_LIMIT, "a string grows beyond %d MiB", JINJA_TEXT_MAX >> 20);
        }
        if (s->size == 0) count = 0;
        JinjaText *text = jinja_str_flatten(vm, s) ? jinja_text_push(vm) : NULL;
        if (!text) return jv_error();
        for (int64_t i = 0; i < count && jinja_step(vm, 1); i++) jinja_text_string(text, s);
        Jv out = jinja_text_finish(vm, text);
        return jinja_str_like(vm, out, s);
    }
    size_t size = sequence.list->count;
    if (size && count > JINJA_MEMORY_MAX / (int64_t)(size * sizeof(Jv))) {
        return jinja_raise(vm, ERROR_LIMIT, "a list grows too large");
    }
    Jv out = jinja_list_new(vm, size * (size_t)count);
    if (jv_bad(out) || !jinja_step(vm, size * (size_t)count / 8)) return jv_error();
    for (int64_t i = 0; i < count && size; i++)
        memcpy(out.list->items + (size_t)i * size, sequence.list->items, size * sizeof(Jv));
    out.list->count = size * (size_t)count;
    out.tag = sequence.tag;
    return out;
}

static Jv add_strings(Vm *vm, Jv a, Jv b) {
    if (a.s->markup != b.s->markup) { /* Markup escapes what it is joined with */
        if (!a.s->markup) a = jinja_escape(vm, a);
        if (!jv_bad(a) && !b.s->markup) b = jinja_escape(vm, b);
        if (jv_bad(a) || jv_bad(b)) return jv_error();
    }
    return jv_str(jinja_str_concat(vm, a.s, b.s));
}

static bool is_sequence(Jv v) { return v.tag == JINJA_STR || v.tag == JINJA_LIST || v.tag == JINJA_TUPLE; }

Jv jinja_binary(Vm *vm, JinjaOp op, Jv a, Jv b) {
    if (jv_number(a) && jv_number(b)) return jinja_number_binary(vm, op, a, b);
    if (op == OP_ADD && a.tag == JINJA_STR && b.tag == JINJA_STR) return add_strings(vm, a, b);
    if (op == OP_MOD && a.tag == JINJA_STR) {
        return jinja_raise(vm, ERROR_UNSUPPORTED, "formatting with %% is not supported");
    }
    if (op == OP_ADD && a.tag == b.tag && (a.tag == JINJA_LIST || a.tag == JINJA_TUPLE)) {
        size_t count = a.list->count + b.list->count;
        Jv out = jinja_list_new(vm, count);
        if (jv_bad(out) || !jinja_step(vm, count / 8)) return jv_error();
        if (a.list->count) memcpy(out.list->items, a.list->items, a.list->count * sizeof(Jv));
        if (b.list->count) memcpy(out.list->items + a.list->count, b.list->items, b.list->count * sizeof(Jv));
        out.list->count = count;
        out.tag = a.tag;
        return out;
    }
    if (op == OP_MUL && is_sequence(a) && jv_integral(b)) return repeat_sequence(vm, a, b);
    if (op == OP_MUL && is_sequence(b) && jv_integral(a)) return repeat_sequence(vm, b, a);
    return op_type_error(vm, op, a, b);
}

Jv jinja_unary(Vm *vm, JinjaOp op, Jv a) {
    if (a.tag == JINJA_UNDEFINED) return jv_undefined_error(vm, a);
    if (a.tag == JINJA_FLOAT) return jv_float(op == OP_NEG ? -a.f : a.f);
    if (jv_integral(a)) return op == OP_NEG ? jinja_number_binary(vm, OP_SUB, jv_int(0), a) : jv_int(jv_small(a));
    if (a.tag == JINJA_LONG) return op == OP_NEG ? jinja_overflow(vm) : a;
    return jinja_fail(vm, "TypeError: bad operand type for unary %s: '%s'", op == OP_NEG ? "-" : "+", jv_type_name(a));
}

bool jinja_compare(Vm *vm, JinjaOp op, Jv a, Jv b, bool *out) {
    int order;
    if (op == OP_EQ || op == OP_NE) {
        if (!jinja_equal(vm, a, b, out)) return false;
        *out = *out == (op == OP_EQ);
        return true;
    }
    if (op == OP_IN || op == OP_NOT_IN) {
        if (!jinja_contains(vm, b, a, out)) return false;
        *out = *out == (op == OP_IN);
        return true;
    }
    if (!jinja_less(vm, a, b, op_texts[op], &order)) return false;
    *out = order == 2 ? false
        : op == OP_LT ? order < 0
        : op == OP_LE ? order <= 0
        : op == OP_GT ? order > 0
                      : order >= 0;
    return true;
}

/* Containment */

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
        *out = jinja_find_bytes(container.s->data, 0, container.s->size, item.s) != SIZE_MAX;
        return jinja_step(vm, container.s->size / 64);
    case JINJA_LIST:
    case JINJA_TUPLE:
    case JINJA_VIEW: return list_contains(vm, container.list, item, out);
    case JINJA_UNDEFINED: return true;
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
    jinja_fail(vm, "TypeError: argument of type '%s' is not iterable", jv_type_name(container));
    return false;
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
    return jinja_str_like(vm, result, s);
}

Jv jinja_slice(Vm *vm, Jv v, Jv start, Jv stop, Jv step) {
    if (v.tag == JINJA_UNDEFINED) return jv_undefined_error(vm, v);
    if (v.tag == JINJA_DICT) return jinja_fail(vm, "TypeError: unhashable type: 'slice'");
    bool range = v.tag == JINJA_VIEW && v.flag == 'r';
    if (v.tag != JINJA_STR && v.tag != JINJA_LIST && v.tag != JINJA_TUPLE && !range) {
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
    Jv out = jinja_list_new(vm, (size_t)count);
    if (jv_bad(out) || !jinja_step(vm, (size_t)count / 8)) return jv_error();
    for (int64_t i = 0; i < count; i++) out.list->items[i] = v.list->items[from + i * by];
    out.list->count = (size_t)count;
    out.tag = v.tag;
    out.flag = v.flag;
    return out;
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
