/* The tests of "is". Reference: jinja2 3.1 tests.py. */
#include "text/jinja/library.h"

static bool is_callable(Jv v) {
    return v.tag == JINJA_MACRO || v.tag == JINJA_FUNCTION || v.tag == JINJA_METHOD || v.tag == JINJA_LOOP ||
        v.tag == JINJA_UNDEFINED;
}
static bool is_sequence(Jv v) {
    return v.tag == JINJA_STR || v.tag == JINJA_LIST || v.tag == JINJA_TUPLE || v.tag == JINJA_DICT ||
        v.tag == JINJA_UNDEFINED || (v.tag == JINJA_VIEW && v.flag == 'r');
}
static bool is_iterable(Jv v) {
    return is_sequence(v) || v.tag == JINJA_VIEW || v.tag == JINJA_ITER || v.tag == JINJA_LOOP;
}

/* Tests that only look at the value. */
#define TEST_OF(name, condition)                                                                                       \
    static Jv test_##name(Vm *vm, Jv v, const JinjaArgs *a) { return jv_bool(condition); }
TEST_OF(defined, v.tag != JINJA_UNDEFINED)
TEST_OF(undefined, v.tag == JINJA_UNDEFINED)
TEST_OF(none, v.tag == JINJA_NONE)
TEST_OF(boolean, v.tag == JINJA_BOOL)
TEST_OF(false, v.tag == JINJA_BOOL && !v.b)
TEST_OF(true, v.tag == JINJA_BOOL && v.b)
TEST_OF(integer, v.tag == JINJA_INT || v.tag == JINJA_LONG)
TEST_OF(float, v.tag == JINJA_FLOAT)
TEST_OF(number, jv_number(v))
TEST_OF(string, v.tag == JINJA_STR)
TEST_OF(escaped, v.tag == JINJA_STR && v.s->markup)
TEST_OF(mapping, v.tag == JINJA_DICT)
TEST_OF(sequence, is_sequence(v))
TEST_OF(iterable, is_iterable(v))
TEST_OF(callable, is_callable(v))

/* Tests that compare with another value. */
#define TEST_OP(name, op)                                                                                              \
    static Jv test_##name(Vm *vm, Jv v, const JinjaArgs *a) {                                                          \
        bool result;                                                                                                   \
        return jinja_compare(vm, op, v, a->values[0], &result) ? jv_bool(result) : jv_error();                         \
    }
TEST_OP(in, OP_IN)
TEST_OP(eq, OP_EQ)
TEST_OP(ne, OP_NE)
TEST_OP(gt, OP_GT)
TEST_OP(ge, OP_GE)
TEST_OP(lt, OP_LT)
TEST_OP(le, OP_LE)

static Jv modulo(Vm *vm, Jv value, Jv by, int64_t expected) {
    Jv rest = jinja_binary(vm, OP_MOD, value, by);
    bool equal;
    return !jv_bad(rest) && jinja_equal(vm, rest, jv_int(expected), &equal) ? jv_bool(equal) : jv_error();
}
static Jv test_odd(Vm *vm, Jv v, const JinjaArgs *a) { return modulo(vm, v, jv_int(2), 1); }
static Jv test_even(Vm *vm, Jv v, const JinjaArgs *a) { return modulo(vm, v, jv_int(2), 0); }
static Jv test_divisibleby(Vm *vm, Jv v, const JinjaArgs *a) { return modulo(vm, v, a->values[0], 0); }

static Jv test_case(Vm *vm, Jv v, char which) {
    Jv text = jinja_to_str(vm, v);
    bool result = !jv_bad(text) && jinja_str_test(vm, text, which);
    return vm->failed ? jv_error() : jv_bool(result);
}
static Jv test_lower(Vm *vm, Jv v, const JinjaArgs *a) { return test_case(vm, v, 'l'); }
static Jv test_upper(Vm *vm, Jv v, const JinjaArgs *a) { return test_case(vm, v, 'u'); }

static Jv test_sameas(Vm *vm, Jv v, const JinjaArgs *a) {
    Jv other = a->values[0];
    if (v.tag != other.tag) return jv_bool(false);
    if (v.tag == JINJA_NONE || v.tag == JINJA_UNDEFINED) return jv_bool(true);
    if (v.tag == JINJA_BOOL || v.tag == JINJA_INT || v.tag == JINJA_FLOAT) return test_eq(vm, v, a);
    return jv_bool(v.iter == other.iter);
}

static const JinjaFunction tests[] = {
    {"!=", 0, "/other", test_ne},
    {"<", 0, "/other", test_lt},
    {"<=", 0, "/other", test_le},
    {"==", 0, "/other", test_eq},
    {">", 0, "/other", test_gt},
    {">=", 0, "/other", test_ge},
    {"boolean", 0, "/", test_boolean},
    {"callable", 0, "/", test_callable},
    {"defined", 0, "/", test_defined},
    {"divisibleby", 0, "/num", test_divisibleby},
    {"eq", 0, "/other", test_eq},
    {"equalto", 0, "/other", test_eq},
    {"escaped", 0, "/", test_escaped},
    {"even", 0, "/", test_even},
    {"false", 0, "/", test_false},
    {"float", 0, "/", test_float},
    {"ge", 0, "/other", test_ge},
    {"greaterthan", 0, "/other", test_gt},
    {"gt", 0, "/other", test_gt},
    {"in", 0, "/seq", test_in},
    {"integer", 0, "/", test_integer},
    {"iterable", 0, "/", test_iterable},
    {"le", 0, "/other", test_le},
    {"lessthan", 0, "/other", test_lt},
    {"lower", 0, "/", test_lower},
    {"lt", 0, "/other", test_lt},
    {"mapping", 0, "/", test_mapping},
    {"ne", 0, "/other", test_ne},
    {"none", 0, "/", test_none},
    {"number", 0, "/", test_number},
    {"odd", 0, "/", test_odd},
    {"sameas", 0, "/other", test_sameas},
    {"sequence", 0, "/", test_sequence},
    {"string", 0, "/", test_string},
    {"true", 0, "/", test_true},
    {"undefined", 0, "/", test_undefined},
    {"upper", 0, "/", test_upper},
};
const JinjaTable jinja_tests = {tests, COUNT_OF(tests)};
