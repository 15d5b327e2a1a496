/* Dictionaries: pairs in insertion order, found by a hash index once there are more than a few. Keys are equal across
 * types as in Python: 1, 1.0 and True are one key. */
#include <math.h>

#include "base/map.h"
#include "text/jinja/eval.h"

enum { DICT_INDEX_FROM = 8 };

uint64_t jinja_hash_text(Slice text) { return hash_bytes(text.data ? text.data : "", text.size); }

static uint64_t hash_integer(int64_t value) { return ((uint64_t)value + 1) * 0x9E3779B97F4A7C15u; }

bool jinja_hashable(Jv key) {
    if (key.tag == JINJA_TUPLE) {
        for (size_t i = 0; i < key.list->count; i++) {
            if (!jinja_hashable(key.list->items[i])) return false;
        }
        return true;
    }
    return key.tag != JINJA_LIST && key.tag != JINJA_DICT && key.tag != JINJA_VIEW;
}

static bool hash_tuple(Vm *vm, const JinjaList *list, uint64_t *out) {
    uint64_t hash = 0x51ED270B;
    for (size_t i = 0; i < list->count; i++) {
        uint64_t item;
        if (!jinja_hash(vm, list->items[i], &item)) return false;
        hash = (hash ^ item) * 0x9E3779B97F4A7C15u;
        hash ^= hash >> 29;
    }
    *out = hash;
    return true;
}

bool jinja_hash(Vm *vm, Jv key, uint64_t *out) {
    switch (key.tag) {
    case JINJA_STR:
        if (!jinja_str_flatten(vm, key.s) || !jinja_step(vm, key.s->size / 64)) return false;
        *out = jinja_hash_text(jinja_str_slice(key.s));
        return true;
    case JINJA_BOOL:
    case JINJA_INT: *out = hash_integer(jv_small(key)); return true;
    case JINJA_BIG: *out = 7; return true;
    case JINJA_FLOAT: {
        bool whole = floor(key.f) == key.f && fabs(key.f) < 9e18;
        *out = whole ? hash_integer((int64_t)key.f) : fabs(key.f) >= 9e18 ? 7 : hash_bytes(&key.f, sizeof key.f);
        return true;
    }
    case JINJA_TUPLE: {
        if (!jinja_enter(vm)) return false;
        bool ok = hash_tuple(vm, key.list, out);
        vm->depth--;
        return ok;
    }
    case JINJA_LIST:
    case JINJA_DICT:
    case JINJA_VIEW: jinja_fail(vm, "TypeError: unhashable type: '%s'", jv_type_name(key)); return false;
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

static void index_add(JinjaDict *dict, size_t pair) {
    size_t mask = dict->index_size - 1, slot = dict->pairs[pair].hash & mask;
    while (dict->index[slot]) slot = (slot + 1) & mask;
    dict->index[slot] = (uint32_t)pair + 1;
}

static bool dict_grow(Vm *vm, JinjaDict *dict) {
    if (dict->count == dict->capacity) {
        size_t capacity = dict->capacity ? dict->capacity * 2 : 4;
        JinjaPair *grown = jinja_alloc(vm, capacity, sizeof *grown);
        if (!grown) return false;
        if (dict->count) memcpy(grown, dict->pairs, dict->count * sizeof *grown);
        dict->pairs = grown;
        dict->capacity = capacity;
    }
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
    return jinja_hash(vm, key, &hash) ? dict_find(vm, dict, key, hash) : NULL;
}

JinjaPair *jinja_dict_find_text(const JinjaDict *dict, Slice key) {
    uint64_t hash = jinja_hash_text(key);
    size_t mask = dict->index_size - 1, slot = dict->index ? hash & mask : 0;
    for (size_t i = 0;; i++) {
        if (dict->index ? !dict->index[slot] : i >= dict->count) return NULL;
        JinjaPair *pair = dict->index ? &dict->pairs[dict->index[slot] - 1] : &dict->pairs[i];
        if (pair->hash == hash && pair->key.tag == JINJA_STR && slice_equal(jinja_str_slice(pair->key.s), key))
            return pair;
        slot = (slot + 1) & mask;
    }
}

bool jinja_dict_set_hashed(Vm *vm, JinjaDict *dict, Jv key, uint64_t hash, Jv value) {
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
    return !jv_bad(key) && jinja_hash(vm, key, &hash) && jinja_dict_set_hashed(vm, dict, key, hash, value);
}
