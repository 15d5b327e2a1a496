/* str() and repr() of values. */
#include <stdio.h>

#include "base/utf8.h"
#include "text/jinja/eval.h"

static void write_hex(JinjaText *out, const char *prefix, uint32_t code, int digits, uint8_t origin) {
    char text[16];
    int size = snprintf(text, sizeof text, "%s%0*x", prefix, digits, code);
    jinja_text_bytes(out, text, (size_t)size, origin);
}

static void write_escaped_code(JinjaText *out, uint32_t code, uint8_t origin) {
    if (code < 0x100) {
        write_hex(out, "\\x", code, 2, origin);
    } else if (code < 0x10000) {
        write_hex(out, "\\u", code, 4, origin);
    } else {
        write_hex(out, "\\U", code, 8, origin);
    }
}

static bool write_quoted(Vm *vm, JinjaText *out, JinjaStr *s, bool ascii) {
    if (!jinja_str_flatten(vm, s) || !jinja_step(vm, s->size / 16)) return false;
    bool single = s->size && memchr(s->data, '\'', s->size), both = single && memchr(s->data, '"', s->size);
    char quote = single && !both ? '"' : '\'';
    jinja_text_bytes(out, &quote, 1, ORIGIN_TEMPLATE);
    size_t plain = 0, at = 0;
    while (at < s->size) {
        uint32_t code;
        size_t width = (size_t)utf8_decode(s->data + at, s->size - at, &code);
        bool escape = code == (uint32_t)quote || code == '\\';
        bool hidden = code >= 0x80 ? ascii || !unicode_is_printable(code) : code < 0x20 || code == 0x7F;
        if (escape || hidden) {
            uint8_t origin = jinja_str_origin(s, at);
            jinja_text_part(out, s, plain, at);
            const char *name = code == '\n' ? "\\n" : code == '\r' ? "\\r" : code == '\t' ? "\\t" : NULL;
            if (escape) jinja_text_bytes(out, "\\", 1, origin);
            if (escape) jinja_text_code(out, code, origin);
            if (hidden && name) jinja_text_bytes(out, name, 2, origin);
            if (hidden && !name) write_escaped_code(out, code, origin);
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

static bool write_view(Vm *vm, JinjaText *out, Jv v) {
    Jv items = jinja_iterate(vm, v);
    if (jv_bad(items)) return false;
    jinja_text_plain(out, jv_type_name(v));
    return write_items(vm, out, items.list, "([", "])");
}

static bool write_number(Vm *vm, JinjaText *out, Jv v) {
    char text[48];
    if (v.tag == JINJA_FLOAT) {
        jinja_float_repr(v.f, text);
    } else if (v.tag == JINJA_INT) {
        snprintf(text, sizeof text, "%lld", (long long)v.i);
    } else {
        Buffer digits = {0};
        if (jinja_int_digits(vm, v, 10, &digits)) jinja_text_bytes(out, digits.data, digits.size, ORIGIN_TEMPLATE);
        buffer_free(&digits);
        return !vm->failed;
    }
    jinja_text_plain(out, text);
    return true;
}

static bool write_loop(Vm *vm, JinjaText *out, JinjaLoop *loop) {
    char text[96];
    if (!jinja_loop_fill(vm, loop, SIZE_MAX)) return false;
    snprintf(text, sizeof text, "<LoopContext %zu/%zu>", loop->index + 1, loop->items.count);
    jinja_text_plain(out, text);
    return true;
}

static bool write_macro(Vm *vm, JinjaText *out, const JinjaMacro *macro) {
    Slice name = vm->template->names[macro->node->name];
    jinja_text_plain(out, "<Macro '");
    jinja_text_bytes(out, name.data, name.size, ORIGIN_TEMPLATE);
    jinja_text_plain(out, "'>");
    return true;
}

static bool write_range(JinjaText *out, const JinjaRange *range) {
    char text[96];
    if (range->step == 1) {
        snprintf(text, sizeof text, "range(%lld, %lld)", (long long)range->start, (long long)range->stop);
    } else {
        snprintf(text, sizeof text, "range(%lld, %lld, %lld)", (long long)range->start, (long long)range->stop,
            (long long)range->step);
    }
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
    case JINJA_BIG:
    case JINJA_FLOAT: return write_number(vm, out, v);
    case JINJA_STR: {
        if (!v.s->markup) return write_quoted(vm, out, v.s, false);
        jinja_text_plain(out, "Markup(");
        if (!write_quoted(vm, out, v.s, false)) return false;
        jinja_text_plain(out, ")");
        return true;
    }
    case JINJA_LIST: return write_items(vm, out, v.list, "[", "]");
    case JINJA_TUPLE: return write_items(vm, out, v.list, "(", v.list->count == 1 ? ",)" : ")");
    case JINJA_DICT: return write_pairs(vm, out, v.dict);
    case JINJA_VIEW: return write_view(vm, out, v);
    case JINJA_RANGE: return write_range(out, v.range);
    case JINJA_MACRO: return write_macro(vm, out, v.macro);
    case JINJA_LOOP: return write_loop(vm, out, v.loop);
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

bool jinja_write_ascii(Vm *vm, JinjaText *out, Jv v) {
    if (v.tag == JINJA_STR && !v.s->markup) return write_quoted(vm, out, v.s, true);
    Jv text = jinja_to_repr(vm, v);
    if (jv_bad(text)) return false;
    JinjaStr *s = text.s;
    for (size_t at = 0; at < s->size && !vm->failed;) {
        uint32_t code;
        size_t width = (size_t)utf8_decode(s->data + at, s->size - at, &code);
        if (code < 0x80) {
            jinja_text_part(out, s, at, at + width);
        } else {
            write_escaped_code(out, code, jinja_str_origin(s, at));
        }
        at += width;
    }
    return !vm->failed;
}

Jv jinja_to_repr(Vm *vm, Jv v) {
    JinjaText *out = jinja_text_push(vm);
    if (!out || !jinja_write_repr(vm, out, v)) return jv_error();
    return jinja_text_finish(vm, out);
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
