/* str() and repr() of values. */
#include <stdio.h>

#include "base/utf8.h"
#include "text/jinja/value.h"
#include "text/unicode/unicode.h"

static bool is_hidden(uint32_t code) { /* not str.isprintable() */
    if (code < 0x80) return code < 0x20 || code == 0x7F;
    return unicode_set(code) & (UNICODE_SETS(CATEGORY_ZS, CATEGORY_CC_SPACE) | UNICODE_SET(CATEGORY_CN));
}

static void write_hidden(JinjaText *out, uint32_t code, uint8_t origin) {
    char text[16];
    const char *name = code == '\n' ? "\\n" : code == '\r' ? "\\r" : code == '\t' ? "\\t" : NULL;
    snprintf(text, sizeof text, code < 0x100 ? "\\x%02x" : code < 0x10000 ? "\\u%04x" : "\\U%08x", code);
    jinja_text_bytes(out, name ? name : text, strlen(name ? name : text), origin);
}

static bool write_quoted(Vm *vm, JinjaText *out, JinjaStr *s) {
    if (!jinja_str_flatten(vm, s) || !jinja_step(vm, s->size / 16)) return false;
    bool single = s->size && memchr(s->data, '\'', s->size), both = single && memchr(s->data, '"', s->size);
    char quote = single && !both ? '"' : '\'';
    jinja_text_bytes(out, &quote, 1, ORIGIN_TEMPLATE);
    size_t plain = 0, at = 0;
    while (at < s->size) {
        uint32_t code;
        size_t width = (size_t)utf8_decode(s->data + at, s->size - at, &code);
        bool escape = code == (uint32_t)quote || code == '\\', hidden = is_hidden(code);
        if (escape || hidden) {
            uint8_t origin = jinja_str_origin(s, at);
            jinja_text_part(out, s, plain, at);
            if (escape) jinja_text_bytes(out, "\\", 1, origin);
            if (escape) jinja_text_code(out, code, origin);
            if (hidden) write_hidden(out, code, origin);
            plain = at + width;
        }
        at += width;
    }
    jinja_text_part(out, s, plain, at);
    jinja_text_bytes(out, &quote, 1, ORIGIN_TEMPLATE);
    return !vm->failed;
}

static bool write_items(Vm *vm, JinjaText *out, const JinjaList *list, const char *open, const char *close) {
    jinja_text_plain(out, open);
    for (size_t i = 0; i < list->count; i++) {
        if (i) jinja_text_plain(out, ", ");
        if (!jinja_write_repr(vm, out, list->items[i])) return false;
    }
    jinja_text_plain(out, close);
    return !vm->failed;
}

static bool write_pairs(Vm *vm, JinjaText *out, const JinjaDict *dict) {
    jinja_text_plain(out, "{");
    for (size_t i = 0; i < dict->count; i++) {
        if (i) jinja_text_plain(out, ", ");
        if (!jinja_write_repr(vm, out, dict->pairs[i].key)) return false;
        jinja_text_plain(out, ": ");
        if (!jinja_write_repr(vm, out, dict->pairs[i].value)) return false;
    }
    jinja_text_plain(out, "}");
    return !vm->failed;
}

static bool write_number(JinjaText *out, Jv v) {
    char text[48];
    if (v.tag == JINJA_FLOAT) {
        jinja_float_repr(v.f, text);
    } else {
        snprintf(text, sizeof text, "%lld", (long long)v.i);
    }
    jinja_text_plain(out, text);
    return true;
}

/* range(0, 6, 2), where Python remembers the 5 it was given */
static bool write_range(JinjaText *out, const JinjaList *list) {
    char text[96];
    long long first = list->count ? list->items[0].i : 0;
    long long step = list->count > 1 ? list->items[1].i - first : 1, stop = first + (long long)list->count * step;
    snprintf(text, sizeof text, step == 1 ? "range(%lld, %lld)" : "range(%lld, %lld, %lld)", first, stop, step);
    jinja_text_plain(out, text);
    return true;
}

static bool repr_inner(Vm *vm, JinjaText *out, Jv v) {
    switch (v.tag) {
    case JINJA_ERROR: return false;
    case JINJA_UNDEFINED: jinja_text_plain(out, "Undefined"); return true;
    case JINJA_NONE: jinja_text_plain(out, "None"); return true;
    case JINJA_BOOL: jinja_text_plain(out, v.b ? "True" : "False"); return true;
    case JINJA_INT:
    case JINJA_FLOAT: return write_number(out, v);
    case JINJA_LONG: jinja_text_string(out, v.s); return true;
    case JINJA_STR: {
        if (!v.s->markup) return write_quoted(vm, out, v.s);
        jinja_text_plain(out, "Markup(");
        if (!write_quoted(vm, out, v.s)) return false;
        jinja_text_plain(out, ")");
        return true;
    }
    case JINJA_LIST: return write_items(vm, out, v.list, "[", "]");
    case JINJA_TUPLE: return write_items(vm, out, v.list, "(", v.list->count == 1 ? ",)" : ")");
    case JINJA_DICT: return write_pairs(vm, out, v.dict);
    case JINJA_VIEW:
        if (v.flag == 'r') return write_range(out, v.list);
        jinja_text_plain(out, jv_type_name(v));
        return write_items(vm, out, v.list, "([", "])");
    case JINJA_NAMESPACE:
        jinja_text_plain(out, "<Namespace ");
        if (!write_pairs(vm, out, v.dict)) return false;
        jinja_text_plain(out, ">");
        return true;
    default:
        jinja_text_plain(out, "<");
        jinja_text_plain(out, jv_type_name(v));
        jinja_text_plain(out, " object>");
        return true;
    }
}

bool jinja_write_repr(Vm *vm, JinjaText *out, Jv v) {
    if (!jinja_enter(vm)) return false;
    bool ok = repr_inner(vm, out, v) && !vm->failed;
    vm->depth--;
    return ok;
}

bool jinja_write_str(Vm *vm, JinjaText *out, Jv v) {
    if (v.tag == JINJA_STR) {
        jinja_text_string(out, v.s);
        return !vm->failed;
    }
    if (v.tag == JINJA_UNDEFINED) return true;
    return jinja_write_repr(vm, out, v);
}

Jv jinja_soft_str(Vm *vm, Jv v) {
    if (v.tag == JINJA_STR || jv_bad(v)) return v;
    JinjaText *out = jinja_text_push(vm);
    if (!out || !jinja_write_str(vm, out, v)) return jv_error();
    return jinja_text_finish(vm, out);
}

Jv jinja_to_str(Vm *vm, Jv v) {
    v = jinja_soft_str(vm, v);
    return jv_bad(v) || !v.s->markup ? v : jv_str(jinja_str_markup(vm, v.s, false));
}
