/* Python's object protocol for template values: type names, truth, equality, order, hashes, lists, dictionaries,
 * iteration.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/map.h"
#include "text/jinja/value.h"

enum { DICT_INDEX_FROM = 8, LONG_DIGITS_MAX = 4096, HASH_LARGE = 7 /* hash of integers beyond 64 bits */ };

const char *jv_type_name(Jv v) {
    static const char *const names[] = {[JINJA_NONE] = "NoneType",
        [JINJA_BOOL] = "bool",
        [JINJA_INT] = "int",
        [JINJA_LONG] = "int",
        [JINJA_FLOAT] = "float",
        [JINJA_LIST] = "list",
        [JINJA_TUPLE] = "tuple",
        [JINJA_DICT] = "dict",
        [JINJA_NAMESPACE] = "Namespace",
        [JINJA_MACRO] = "Macro",
        [JINJA_FUNCTION] = "function",
        [JINJA_METHOD] = "builtin_function_or_method",
        [JINJA_LOOP] = "LoopContext"};
    switch (v.tag) {
    case JINJA_STR: return v.s && v.s->markup ? "Markup" : "str";
    case JINJA_VIEW:
        return v.flag == 'k' ? "dict_keys" : v.flag == 'v' ? "dict_values" : v.flag == 'r' ? "range" : "dict_items";
    case JINJA_ITER: return v.iter ? v.iter->type_name : "generator";
    default: return v.tag < COUNT_OF(names) && names[v.tag] ? names[v.tag] : "Undefined";
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
    if (v.kind == JINJA_NONE) return jinja_fail(vm, "'None' has no attribute '%.*s'", size, v.s->data);
    return jinja_fail(vm, "'%s object' has no attribute '%.*s'", jv_type_name(type), size, v.s->data);
}

/* Numbers */

Jv jinja_overflow(Vm *vm) { return jinja_fail(vm, "OverflowError: an integer beyond 64 bits"); }

static bool is_negative(Jv v) { return v.tag == JINJA_LONG ? *v.s->data == '-' : jv_small(v) < 0; }

static double number_double(Jv v) {
    char digits[LONG_DIGITS_MAX] = "";
    if (v.tag != JINJA_LONG) return v.tag == JINJA_FLOAT ? v.f : (double)jv_small(v);
    memcpy(digits, v.s->data, v.s->size < sizeof digits ? v.s->size : sizeof digits - 1);
    return strtod(digits, NULL);
}

bool jinja_as_double(Vm *vm, Jv v, double *out) {
    if (v.tag == JINJA_UNDEFINED) {
        jv_undefined_error(vm, v);
    } else if (!jv_number(v)) {
        jinja_fail(vm, "TypeError: must be real number, not %s", jv_type_name(v));
    } else if (v.tag == JINJA_LONG) {
        jinja_overflow(vm);
    } else {
        *out = number_double(v);
    }
    return !vm->failed;
}

bool jinja_as_index(Vm *vm, Jv v, int64_t *out) {
    if (v.tag == JINJA_UNDEFINED) {
        jv_undefined_error(vm, v);
    } else if (v.tag == JINJA_LONG) {
        *out = is_negative(v) ? INT64_MIN : INT64_MAX;
    } else if (!jv_integral(v)) {
        jinja_fail(vm, "TypeError: '%s' object cannot be interpreted as an integer", jv_type_name(v));
    } else {
        *out = jv_small(v);
    }
    return !vm->failed;
}

static int double_order(double a, double b) { return isnan(a) || isnan(b) ? 2 : a < b ? -1 : a > b; }

/* An integer and a float are compared exactly, not after rounding the integer. */
static int int_float_order(int64_t a, double b) {
    if (!(fabs(b) < 0x1p63)) return double_order(0, b);
    int64_t whole = (int64_t)b;
    return a != whole ? (a < whole ? -1 : 1) : double_order(trunc(b), b);
}

static int long_order(const JinjaStr *a, const JinjaStr *b) { /* operands of equal sign */
    int order = a->size != b->size ? (a->size < b->size ? -1 : 1) : memcmp(a->data, b->data, a->size);
    return *a->data == '-' ? -order : order;
}

static int number_order(Jv a, Jv b) {
    if (jv_integral(a) && jv_integral(b)) return jv_small(a) < jv_small(b) ? -1 : jv_small(a) > jv_small(b);
    if (jv_integral(a) && b.tag == JINJA_FLOAT) return int_float_order(jv_small(a), b.f);
    if (a.tag == JINJA_FLOAT && jv_integral(b)) {
        int order = int_float_order(jv_small(b), a.f);
        return order == 2 ? order : -order;
    }
    if (a.tag == JINJA_FLOAT || b.tag == JINJA_FLOAT) return double_order(number_double(a), number_double(b));
    if (is_negative(a) != is_negative(b)) return is_negative(a) ? -1 : 1;
    if (a.tag == b.tag) return long_order(a.s, b.s);
    return (a.tag == JINJA_LONG) == is_negative(a) ? -1 : 1;
}

/* Truth, equality, order */

bool jinja_length(Vm *vm, Jv v, size_t *out) {
    switch (v.tag) {
    case JINJA_UNDEFINED: *out = 0; return true;
    case JINJA_STR: *out = v.s->length; return true;
    case JINJA_LIST:
    case JINJA_TUPLE:
    case JINJA_VIEW: *out = v.list->count; return true;
    case JINJA_DICT: *out = v.dict->count; return true;
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
    case JINJA_VIEW: {
        size_t length;
        if (!jinja_length(vm, v, &length)) return false;
        *out = length > 0;
        return true;
    }
    default: *out = true; return true;
    }
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
    *out = false;
    if (a.tag == JINJA_STR && b.tag == JINJA_STR) return str_equal(vm, a.s, b.s, out);
    if (jv_number(a) && jv_number(b)) {
        *out = number_order(a, b) == 0;
        return true;
    }
    if (a.tag != b.tag) return true;
    switch (a.tag) {
    case JINJA_UNDEFINED:
    case JINJA_NONE: *out = true; return true;
    case JINJA_LIST:
    case JINJA_TUPLE: return list_equal(vm, a.list, b.list, out);
    case JINJA_DICT: return dict_equal(vm, a.dict, b.dict, out);
    case JINJA_VIEW: return a.flag != b.flag || a.flag == 'v' || list_equal(vm, a.list, b.list, out);
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
    if (jv_number(a) && jv_number(b)) {
        *order = number_order(a, b);
        return true;
    }
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

/* Lists */

Jv jinja_list_new(Vm *vm, size_t capacity) {
    JinjaList *list = jinja_alloc(vm, 1, sizeof *list);
    if (!list) return jv_error();
    if (capacity && !(list->items = jinja_alloc(vm, capacity, sizeof(Jv)))) return jv_error();
    list->capacity = capacity;
    return (Jv){.tag = JINJA_LIST, .list = list};
}

Jv jinja_tuple(Vm *vm, const Jv *items, size_t count) {
    Jv tuple = jinja_list_new(vm, count);
    if (jv_bad(tuple)) return tuple;
    if (count) memcpy(tuple.list->items, items, count * sizeof *items);
    tuple.list->count = count;
    tuple.tag = JINJA_TUPLE;
    return tuple;
}

Jv jinja_list_copy(Vm *vm, Jv list) {
    Jv out = jv_bad(list) ? list : jinja_tuple(vm, list.list->items, list.list->count);
    if (!jv_bad(out)) out.tag = JINJA_LIST;
    return out;
}

bool jinja_list_push(Vm *vm, JinjaList *list, Jv v) {
    if (jv_bad(v)) return false;
    Jv *items = jinja_grow(vm, list->items, list->count, &list->capacity, sizeof *items);
    if (!items) return false;
    list->items = items;
    list->items[list->count++] = v;
    return true;
}

bool jinja_iter_force(Vm *vm, JinjaIter *iter) {
    if (!iter->function) return !vm->failed;
    const JinjaFunction *function = iter->function;
    iter->function = NULL;
    if (!jinja_enter(vm)) return false;
    Jv list = function->run(vm, iter->source, &iter->args);
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

Jv jinja_iterate(Vm *vm, Jv v) {
    switch (v.tag) {
    case JINJA_LIST:
    case JINJA_TUPLE:
    case JINJA_VIEW: return (Jv){.tag = JINJA_LIST, .list = v.list};
    case JINJA_UNDEFINED: return jinja_list_new(vm, 0);
    case JINJA_STR: return string_items(vm, v.s);
    case JINJA_DICT:
        v = jinja_dict_view(vm, v.dict, 'k');
        return jv_bad(v) ? v : (Jv){.tag = JINJA_LIST, .list = v.list};
    case JINJA_ITER: {
        if (!jinja_iter_force(vm, v.iter)) return jv_error();
        Jv out = jinja_list_new(vm, 0);
        if (jv_bad(out)) return out;
        if (v.iter->items.count) out.list->items = v.iter->items.items + v.iter->next;
        out.list->count = out.list->capacity = v.iter->items.count - v.iter->next;
        v.iter->next = v.iter->items.count;
        return out;
    }
    default: return jinja_fail(vm, "TypeError: '%s' object is not iterable", jv_type_name(v));
    }
}

/* Dictionaries: pairs in insertion order, found by a hash index once there are more than a few. Keys are equal across
 * types as in Python: 1, 1.0 and True are one key. */

static uint64_t hash_text(Slice text) { return hash_bytes(text.data ? text.data : "", text.size); }

static uint64_t hash_integer(int64_t value) { return ((uint64_t)value + 1) * 0x9E3779B97F4A7C15u; }

bool jinja_hashable(Vm *vm, Jv key) {
    if (key.tag != JINJA_TUPLE) return key.tag != JINJA_LIST && key.tag != JINJA_DICT && key.tag != JINJA_VIEW;
    if (!jinja_enter(vm)) return false;
    bool ok = true;
    for (size_t i = 0; i < key.list->count && ok; i++) ok = jinja_hashable(vm, key.list->items[i]);
    vm->depth--;
    return ok;
}

static bool hash_of(Vm *vm, Jv key, uint64_t *out) {
    if (!jinja_hashable(vm, key)) {
        jinja_fail(vm, "TypeError: unhashable type: '%s'", jv_type_name(key));
        return false;
    }
    switch (key.tag) {
    case JINJA_STR:
        if (!jinja_str_flatten(vm, key.s) || !jinja_step(vm, key.s->size / 64)) return false;
        *out = hash_text(jinja_str_slice(key.s));
        return true;
    case JINJA_BOOL:
    case JINJA_INT: *out = hash_integer(jv_small(key)); return true;
    case JINJA_LONG: *out = HASH_LARGE; return true;
    case JINJA_FLOAT:
        if (fabs(key.f) >= 0x1p63) {
            *out = HASH_LARGE;
        } else {
            *out = floor(key.f) == key.f ? hash_integer((int64_t)key.f) : hash_bytes(&key.f, sizeof key.f);
        }
        return true;
    case JINJA_TUPLE: *out = key.list->count; return true; /* rare, and compared in full */
    case JINJA_UNDEFINED:
    case JINJA_NONE: *out = key.tag; return true;
    default: *out = (uint64_t)(uintptr_t)key.iter; return true;
    }
}

Jv jinja_dict_new(Vm *vm, size_t capacity) {
    JinjaDict *dict = jinja_alloc(vm, 1, sizeof *dict);
    if (!dict) return jv_error();
    if (capacity && !(dict->pairs = jinja_alloc(vm, capacity, sizeof *dict->pairs))) return jv_error();
    dict->capacity = capacity;
    return (Jv){.tag = JINJA_DICT, .dict = dict};
}

Jv jinja_dict_view(Vm *vm, const JinjaDict *dict, char what) {
    Jv out = jinja_list_new(vm, dict->count);
    if (jv_bad(out) || !jinja_step(vm, dict->count / 4)) return jv_error();
    for (size_t i = 0; i < dict->count; i++) {
        const JinjaPair *pair = &dict->pairs[i];
        Jv both[2] = {pair->key, pair->value};
        Jv item = what == 'k' ? pair->key : what == 'v' ? pair->value : jinja_tuple(vm, both, 2);
        if (!jinja_list_push(vm, out.list, item)) return jv_error();
    }
    out.tag = JINJA_VIEW;
    out.flag = (uint8_t)what;
    return out;
}

static void index_add(JinjaDict *dict, size_t pair) {
    size_t mask = dict->index_size - 1, slot = dict->pairs[pair].hash & mask;
    while (dict->index[slot]) slot = (slot + 1) & mask;
    dict->index[slot] = (uint32_t)pair + 1;
}

static bool dict_grow(Vm *vm, JinjaDict *dict) {
    JinjaPair *pairs = jinja_grow(vm, dict->pairs, dict->count, &dict->capacity, sizeof *pairs);
    if (!pairs) return false;
    dict->pairs = pairs;
    if (dict->count >= DICT_INDEX_FROM && (dict->count + 1) * 2 > dict->index_size) {
        size_t size = dict->index_size ? dict->index_size * 2 : DICT_INDEX_FROM * 4;
        uint32_t *index = jinja_alloc(vm, size, sizeof *index);
        if (!index) return false;
        dict->index = index;
        dict->index_size = size;
        for (size_t i = 0; i < dict->count; i++) index_add(dict, i);
    }
    return true;
}

static JinjaPair *pair_if_equal(Vm *vm, JinjaPair *pair, Jv key, uint64_t hash) {
    bool equal = false;
    return pair->hash == hash && jinja_equal(vm, pair->key, key, &equal) && equal ? pair : NULL;
}

static JinjaPair *dict_find(Vm *vm, const JinjaDict *dict, Jv key, uint64_t hash) {
    if (!dict->index) {
        for (size_t i = 0; i < dict->count && !vm->failed; i++) {
            JinjaPair *pair = pair_if_equal(vm, &dict->pairs[i], key, hash);
            if (pair) return pair;
        }
        return NULL;
    }
    size_t mask = dict->index_size - 1;
    for (size_t slot = hash & mask; dict->index[slot] && !vm->failed; slot = (slot + 1) & mask) {
        JinjaPair *pair = pair_if_equal(vm, &dict->pairs[dict->index[slot] - 1], key, hash);
        if (pair) return pair;
    }
    return NULL;
}

JinjaPair *jinja_dict_find(Vm *vm, const JinjaDict *dict, Jv key) {
    uint64_t hash;
    return hash_of(vm, key, &hash) ? dict_find(vm, dict, key, hash) : NULL;
}

JinjaPair *jinja_dict_find_text(const JinjaDict *dict, Slice key) {
    uint64_t hash = hash_text(key);
    size_t mask = dict->index_size - 1, slot = dict->index ? hash & mask : 0;
    for (size_t i = 0;; i++) {
        if (dict->index ? !dict->index[slot] : i >= dict->count) return NULL;
        JinjaPair *pair = dict->index ? &dict->pairs[dict->index[slot] - 1] : &dict->pairs[i];
        if (pair->hash == hash && pair->key.tag == JINJA_STR && slice_equal(jinja_str_slice(pair->key.s), key))
            return pair;
        slot = (slot + 1) & mask;
    }
}

static bool dict_set_hashed(Vm *vm, JinjaDict *dict, Jv key, uint64_t hash, Jv value) {
    if (jv_bad(value)) return false;
    JinjaPair *pair = dict_find(vm, dict, key, hash);
    if (vm->failed) return false;
    if (pair) {
        pair->value = value;
        return true;
    }
    if (!dict_grow(vm, dict)) return false;
    dict->pairs[dict->count] = (JinjaPair){key, value, hash};
    dict->count++;
    if (dict->index) index_add(dict, dict->count - 1);
    return true;
}

bool jinja_dict_set(Vm *vm, JinjaDict *dict, Jv key, Jv value) {
    uint64_t hash;
    return !jv_bad(key) && hash_of(vm, key, &hash) && dict_set_hashed(vm, dict, key, hash, value);
}

const JinjaFunction *jinja_find(const JinjaTable *table, Slice name) {
    for (size_t i = 0; i < table->count; i++) {
        if (slice_is(name, table->functions[i].name)) return &table->functions[i];
    }
    return NULL;
}
