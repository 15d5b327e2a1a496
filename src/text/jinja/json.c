/* JSON into values (Python's json.loads) and out of them (json.dumps, as transformers' tojson calls it). */
#include <math.h>
#include <stdio.h>

#include "base/json.h"
#include "base/utf8.h"
#include "text/jinja/value.h"

/* Reading */

static Jv list_from(Vm *vm, const Json *json, uint8_t origin) {
    Jv list = jinja_list_new(vm, json->size);
    if (jv_bad(list)) return list;
    for (JSON_EACH(item, json)) {
        if (!jinja_list_push(vm, list.list, jinja_from_json(vm, item, origin))) return jv_error();
    }
    return list;
}

static Jv dict_from(Vm *vm, const Json *json, uint8_t origin) {
    Jv dict = jinja_dict_new(vm, json->size);
    if (jv_bad(dict)) return dict;
    for (JSON_EACH_PAIR(key, value, json)) {
        Jv name = jinja_from_json(vm, key, origin);
        if (!jinja_dict_set(vm, dict.dict, name, jinja_from_json(vm, value, origin))) return jv_error();
    }
    return dict;
}

Jv jinja_from_json(Vm *vm, const Json *json, uint8_t origin) {
    if (!jinja_step(vm, 1)) return jv_error();
    switch (json->type) {
    case JSON_BOOL: return jv_bool(json->boolean);
    case JSON_INTEGER: return jv_int(json->integer);
    case JSON_REAL: return jv_float(json->real);
    case JSON_LONG: {
        JinjaStr *digits = jinja_str_new(vm, json->string, json->size, ORIGIN_TEMPLATE);
        return digits ? (Jv){.tag = JINJA_LONG, .s = digits} : jv_error();
    }
    case JSON_STRING: return jv_str(jinja_str_new(vm, json->string, json->size, origin));
    case JSON_ARRAY: return list_from(vm, json, origin);
    case JSON_OBJECT: return dict_from(vm, json, origin);
    default: return jv_none();
    }
}

/* If a part of the text is data, all of the value is data. */
Jv jinja_json_read(Vm *vm, Jv text) {
    if (text.tag == JINJA_UNDEFINED) return jv_undefined_error(vm, text);
    if (text.tag != JINJA_STR)
        return jinja_fail(vm, "TypeError: the JSON object must be str, not %s", jv_type_name(text));
    if (!jinja_str_flatten(vm, text.s) || !jinja_step(vm, text.s->size / 4)) return jv_error();
    Error error = {0};
    const Json *json = json_parse(&vm->arena, jinja_str_slice(text.s), &error);
    if (!json) return jinja_raise(vm, error.code, "JSONDecodeError: %s", error.text);
    return jinja_from_json(vm, json, text.s->origin & ORIGIN_DATA ? ORIGIN_DATA : ORIGIN_TEMPLATE);
}

/* Writing */

typedef struct Dump {
    Vm *vm;
    JinjaText *out;
    bool ascii, sort;
    JinjaStr *indent, *item, *key; /* indent NULL: one line */
} Dump;

static bool dump_value(Dump *d, Jv v, int level);

static void dump_code(Dump *d, uint32_t code, uint8_t origin) {
    char text[16];
    if (code >= 0x10000) {
        code -= 0x10000;
        snprintf(text, sizeof text, "\\u%04x\\u%04x", 0xD800 + (code >> 10), 0xDC00 + (code & 0x3FF));
    } else {
        snprintf(text, sizeof text, "\\u%04x", code);
    }
    jinja_text_bytes(d->out, text, strlen(text), origin);
}

static bool dump_string(Dump *d, JinjaStr *s) {
    static const char from[] = "\"\\\n\r\t\f\b", to[] = "\"\\nrtfb";
    if (!jinja_str_flatten(d->vm, s) || !jinja_step(d->vm, s->size / 16)) return false;
    jinja_text_plain(d->out, "\"");
    size_t plain = 0, at = 0;
    while (at < s->size) {
        unsigned char c = (unsigned char)s->data[at];
        if (c >= 0x20 && c != '"' && c != '\\' && (c < 0x80 || !d->ascii)) {
            at++;
            continue;
        }
        uint32_t code;
        size_t width = (size_t)utf8_decode(s->data + at, s->size - at, &code);
        uint8_t origin = jinja_str_origin(s, at);
        jinja_text_part(d->out, s, plain, at);
        const char *short_form = c && c < 0x80 ? strchr(from, c) : NULL;
        if (short_form) {
            char pair[2] = {'\\', to[short_form - from]};
            jinja_text_bytes(d->out, pair, 2, origin);
        } else {
            dump_code(d, code, origin);
        }
        at += width;
        plain = at;
    }
    jinja_text_part(d->out, s, plain, at);
    jinja_text_plain(d->out, "\"");
    return !d->vm->failed;
}

static bool dump_float(Dump *d, double value) {
    char text[48];
    jinja_float_repr(value, text);
    jinja_text_plain(d->out, isnan(value) ? "NaN" : isinf(value) ? (value > 0 ? "Infinity" : "-Infinity") : text);
    return true;
}

static void dump_newline(Dump *d, int level) {
    if (!d->indent) return;
    jinja_text_plain(d->out, "\n");
    for (int i = 0; i < level; i++) jinja_text_string(d->out, d->indent);
}

static bool dump_list(Dump *d, const JinjaList *list, int level) {
    if (list->count == 0) return jinja_text_plain(d->out, "[]"), true;
    jinja_text_plain(d->out, "[");
    for (size_t i = 0; i < list->count; i++) {
        if (i) jinja_text_string(d->out, d->item);
        dump_newline(d, level + 1);
        if (!dump_value(d, list->items[i], level + 1)) return false;
    }
    dump_newline(d, level);
    jinja_text_plain(d->out, "]");
    return true;
}

static bool dump_key(Dump *d, Jv key) {
    if (key.tag == JINJA_STR) return dump_string(d, key.s);
    jinja_text_plain(d->out, "\"");
    switch (key.tag) {
    case JINJA_NONE: jinja_text_plain(d->out, "null"); break;
    case JINJA_BOOL: jinja_text_plain(d->out, key.b ? "true" : "false"); break;
    case JINJA_FLOAT: dump_float(d, key.f); break;
    case JINJA_INT:
    case JINJA_LONG:
        if (!jinja_write_repr(d->vm, d->out, key)) return false;
        break;
    default:
        jinja_fail(d->vm, "TypeError: keys must be str, int, float, bool or None, not %s", jv_type_name(key));
        return false;
    }
    jinja_text_plain(d->out, "\"");
    return true;
}

static bool dump_pairs(Dump *d, const JinjaDict *dict, int level) {
    if (dict->count == 0) return jinja_text_plain(d->out, "{}"), true;
    JinjaList keys = {0}, pairs = {0};
    if (d->sort) {
        for (size_t i = 0; i < dict->count; i++) {
            bool ok = jinja_list_push(d->vm, &keys, dict->pairs[i].key);
            if (!ok || !jinja_list_push(d->vm, &pairs, jv_int((int64_t)i))) return false;
        }
        if (!jinja_sort(d->vm, &pairs, keys.items, false)) return false;
    }
    jinja_text_plain(d->out, "{");
    for (size_t i = 0; i < dict->count; i++) {
        const JinjaPair *pair = &dict->pairs[d->sort ? (size_t)pairs.items[i].i : i];
        if (i) jinja_text_string(d->out, d->item);
        dump_newline(d, level + 1);
        if (!dump_key(d, pair->key)) return false;
        jinja_text_string(d->out, d->key);
        if (!dump_value(d, pair->value, level + 1)) return false;
    }
    dump_newline(d, level);
    jinja_text_plain(d->out, "}");
    return true;
}

static bool dump_inner(Dump *d, Jv v, int level) {
    switch (v.tag) {
    case JINJA_NONE: jinja_text_plain(d->out, "null"); return true;
    case JINJA_BOOL: jinja_text_plain(d->out, v.b ? "true" : "false"); return true;
    case JINJA_INT:
    case JINJA_LONG: return jinja_write_repr(d->vm, d->out, v);
    case JINJA_FLOAT: return dump_float(d, v.f);
    case JINJA_STR: return dump_string(d, v.s);
    case JINJA_LIST:
    case JINJA_TUPLE: return dump_list(d, v.list, level);
    case JINJA_DICT: return dump_pairs(d, v.dict, level);
    default: jinja_fail(d->vm, "TypeError: Object of type %s is not JSON serializable", jv_type_name(v)); return false;
    }
}

static bool dump_value(Dump *d, Jv v, int level) {
    if (!jinja_enter(d->vm)) return false;
    bool ok = dump_inner(d, v, level) && !d->vm->failed;
    d->vm->depth--;
    return ok;
}

static bool dump_separators(Dump *d, Jv separators) {
    if (jv_given(separators) && separators.tag != JINJA_NONE) {
        Jv list = jinja_iterate(d->vm, separators);
        if (jv_bad(list)) return false;
        if (list.list->count != 2 || list.list->items[0].tag != JINJA_STR || list.list->items[1].tag != JINJA_STR) {
            jinja_fail(d->vm, "TypeError: separators must be two strings");
            return false;
        }
        d->item = list.list->items[0].s;
        d->key = list.list->items[1].s;
        return true;
    }
    Jv item = jinja_literal(d->vm, d->indent ? "," : ", "), key = jinja_literal(d->vm, ": ");
    d->item = item.s;
    d->key = key.s;
    return !d->vm->failed;
}

Jv jinja_json_write(Vm *vm, Jv value, bool ensure_ascii, Jv indent, Jv separators, bool sort_keys) {
    Dump d = {.vm = vm, .ascii = ensure_ascii, .sort = sort_keys};
    if (jv_given(indent) && indent.tag == JINJA_STR) {
        d.indent = indent.s;
    } else if (jv_given(indent) && indent.tag != JINJA_NONE) {
        int64_t width;
        if (!jinja_as_index(vm, indent, &width)) return jv_error();
        if (width > 1 << 16) return jinja_raise(vm, ERROR_LIMIT, "tojson: an indent of %lld", (long long)width);
        JinjaText *spaces = jinja_text_push(vm);
        if (!spaces) return jv_error();
        jinja_text_repeat(spaces, ' ', width > 0 ? (size_t)width : 0, ORIGIN_TEMPLATE);
        Jv text = jinja_text_finish(vm, spaces);
        if (jv_bad(text)) return text;
        d.indent = text.s;
    }
    if (!dump_separators(&d, separators) || !(d.out = jinja_text_push(vm)) || !dump_value(&d, value, 0))
        return jv_error();
    return jinja_text_finish(vm, d.out);
}
