/* The tests of "is", and the lookup of filters and tests by name. Reference: jinja2 3.1 tests.py. */
#include "text/jinja/eval.h"

static bool result(bool *out, bool value) {
    *out = value;
    return true;
}

static bool modulo(Vm *vm, Jv value, Jv by, int64_t expected, bool *out) {
    Jv rest = jinja_binary(vm, OP_MOD, value, by);
    return !jv_bad(rest) && jinja_equal(vm, rest, jv_int(expected), out);
}
static bool test_odd(Vm *vm, Jv v, const Jv *a, bool *out) { return modulo(vm, v, jv_int(2), 1, out); }
static bool test_even(Vm *vm, Jv v, const Jv *a, bool *out) { return modulo(vm, v, jv_int(2), 0, out); }
static bool test_divisibleby(Vm *vm, Jv v, const Jv *a, bool *out) { return modulo(vm, v, a[0], 0, out); }

static bool test_defined(Vm *vm, Jv v, const Jv *a, bool *out) { return result(out, v.tag != JINJA_UNDEFINED); }
static bool test_undefined(Vm *vm, Jv v, const Jv *a, bool *out) { return result(out, v.tag == JINJA_UNDEFINED); }
static bool test_none(Vm *vm, Jv v, const Jv *a, bool *out) { return result(out, v.tag == JINJA_NONE); }
static bool test_boolean(Vm *vm, Jv v, const Jv *a, bool *out) { return result(out, v.tag == JINJA_BOOL); }
static bool test_false(Vm *vm, Jv v, const Jv *a, bool *out) { return result(out, v.tag == JINJA_BOOL && !v.b); }
static bool test_true(Vm *vm, Jv v, const Jv *a, bool *out) { return result(out, v.tag == JINJA_BOOL && v.b); }
static bool test_float(Vm *vm, Jv v, const Jv *a, bool *out) { return result(out, v.tag == JINJA_FLOAT); }
static bool test_string(Vm *vm, Jv v, const Jv *a, bool *out) { return result(out, v.tag == JINJA_STR); }
static bool test_mapping(Vm *vm, Jv v, const Jv *a, bool *out) { return result(out, v.tag == JINJA_DICT); }
static bool test_callable(Vm *vm, Jv v, const Jv *a, bool *out) { return result(out, jinja_callable(v)); }
static bool test_escaped(Vm *vm, Jv v, const Jv *a, bool *out) {
    return result(out, v.tag == JINJA_STR && v.s->markup);
}
static bool test_integer(Vm *vm, Jv v, const Jv *a, bool *out) {
    return result(out, v.tag == JINJA_INT || v.tag == JINJA_BIG);
}
static bool test_number(Vm *vm, Jv v, const Jv *a, bool *out) {
    return result(out, jv_integral(v) || v.tag == JINJA_FLOAT);
}

static bool test_sequence(Vm *vm, Jv v, const Jv *a, bool *out) {
    return result(out,
        v.tag == JINJA_STR || v.tag == JINJA_LIST || v.tag == JINJA_TUPLE || v.tag == JINJA_DICT ||
            v.tag == JINJA_RANGE || v.tag == JINJA_UNDEFINED);
}

static bool test_iterable(Vm *vm, Jv v, const Jv *a, bool *out) {
    bool sequence;
    test_sequence(vm, v, a, &sequence);
    return result(out, sequence || v.tag == JINJA_VIEW || v.tag == JINJA_ITER || v.tag == JINJA_LOOP);
}

static bool test_case(Vm *vm, Jv v, int which, bool *out) {
    Jv text = jinja_to_str(vm, v);
    return !jv_bad(text) && result(out, jinja_str_test(vm, text, which));
}
static bool test_lower(Vm *vm, Jv v, const Jv *a, bool *out) { return test_case(vm, v, 'l', out); }
static bool test_upper(Vm *vm, Jv v, const Jv *a, bool *out) { return test_case(vm, v, 'u', out); }

static bool test_sameas(Vm *vm, Jv v, const Jv *a, bool *out) {
    Jv other = a[0];
    if (v.tag != other.tag) return result(out, false);
    if (v.tag == JINJA_NONE || v.tag == JINJA_UNDEFINED) return result(out, true);
    if (v.tag == JINJA_BOOL || v.tag == JINJA_INT || v.tag == JINJA_FLOAT) return jinja_equal(vm, v, other, out);
    return result(out, v.iter == other.iter);
}

static bool test_in(Vm *vm, Jv v, const Jv *a, bool *out) { return jinja_contains(vm, a[0], v, out); }
static bool test_eq(Vm *vm, Jv v, const Jv *a, bool *out) { return jinja_equal(vm, v, a[0], out); }
static bool test_ne(Vm *vm, Jv v, const Jv *a, bool *out) {
    return jinja_equal(vm, v, a[0], out) && result(out, !*out);
}
static bool test_gt(Vm *vm, Jv v, const Jv *a, bool *out) {
    int order;
    return jinja_less(vm, v, a[0], ">", &order) && result(out, order == 1);
}
static bool test_ge(Vm *vm, Jv v, const Jv *a, bool *out) {
    int order;
    return jinja_less(vm, v, a[0], ">=", &order) && result(out, order == 0 || order == 1);
}
static bool test_lt(Vm *vm, Jv v, const Jv *a, bool *out) {
    int order;
    return jinja_less(vm, v, a[0], "<", &order) && result(out, order == -1);
}
static bool test_le(Vm *vm, Jv v, const Jv *a, bool *out) {
    int order;
    return jinja_less(vm, v, a[0], "<=", &order) && result(out, order == 0 || order == -1);
}

static bool test_known(Vm *vm, Jv v, bool filter, bool *out) {
    if (!jinja_hashable(v)) {
        jinja_fail(vm, "TypeError: unhashable type: '%s'", jv_type_name(v));
        return false;
    }
    if (v.tag != JINJA_STR) return result(out, false);
    if (!jinja_str_flatten(vm, v.s)) return false;
    Slice name = jinja_str_slice(v.s);
    return result(out, filter ? jinja_filter_find(name) != NULL : jinja_test_find(name) != NULL);
}
static bool test_filter(Vm *vm, Jv v, const Jv *a, bool *out) { return test_known(vm, v, true, out); }
static bool test_test(Vm *vm, Jv v, const Jv *a, bool *out) { return test_known(vm, v, false, out); }

static const JinjaTest tests[] = {{"odd", 0, test_odd}, {"even", 0, test_even}, {"divisibleby", 1, test_divisibleby},
    {"defined", 0, test_defined}, {"undefined", 0, test_undefined}, {"filter", 0, test_filter}, {"test", 0, test_test},
    {"none", 0, test_none}, {"boolean", 0, test_boolean}, {"false", 0, test_false}, {"true", 0, test_true},
    {"integer", 0, test_integer}, {"float", 0, test_float}, {"lower", 0, test_lower}, {"upper", 0, test_upper},
    {"string", 0, test_string}, {"mapping", 0, test_mapping}, {"number", 0, test_number},
    {"sequence", 0, test_sequence}, {"iterable", 0, test_iterable}, {"callable", 0, test_callable},
    {"sameas", 1, test_sameas}, {"escaped", 0, test_escaped}, {"in", 1, test_in}, {"==", 1, test_eq},
    {"eq", 1, test_eq}, {"equalto", 1, test_eq}, {"!=", 1, test_ne}, {"ne", 1, test_ne}, {">", 1, test_gt},
    {"gt", 1, test_gt}, {"greaterthan", 1, test_gt}, {"ge", 1, test_ge}, {">=", 1, test_ge}, {"<", 1, test_lt},
    {"lt", 1, test_lt}, {"lessthan", 1, test_lt}, {"<=", 1, test_le}, {"le", 1, test_le}};

const JinjaTest *jinja_test_find(Slice name) {
    for (size_t i = 0; i < COUNT_OF(tests); i++) {
        if (slice_is(name, tests[i].name)) return &tests[i];
    }
    return NULL;
}

const JinjaFilter *jinja_filter_find(Slice name) {
    const JinjaFilter *const tables[] = {jinja_list_filters, jinja_text_filters, jinja_html_filters};
    for (size_t t = 0; t < COUNT_OF(tables); t++) {
        for (const JinjaFilter *filter = tables[t]; filter->name; filter++) {
            if (slice_is(name, filter->name)) return filter;
        }
    }
    return NULL;
}
