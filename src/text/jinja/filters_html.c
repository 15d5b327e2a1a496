/* Filters for HTML and URLs. Reference: jinja2 3.1 filters.py and utils.py, markupsafe 3.0. */
#include <math.h>
#include <stdio.h>

#include "base/utf8.h"
#include "text/jinja/eval.h"

static void write_escaped(JinjaText *out, const JinjaStr *s) {
    size_t plain = 0;
    for (size_t at = 0; at < s->size; at++) {
        char c = s->data[at];
        const char *entity = c == '&' ? "&amp;"
            : c == '<'                ? "&lt;"
            : c == '>'                ? "&gt;"
            : c == '\''               ? "&#39;"
            : c == '"'                ? "&#34;"
                                      : NULL;
        if (!entity) continue;
        jinja_text_part(out, s, plain, at);
        jinja_text_bytes(out, entity, strlen(entity), jinja_str_origin(s, at));
        plain = at + 1;
    }
    jinja_text_part(out, s, plain, s->size);
}

static Jv as_markup(Vm *vm, Jv text) { return jv_bad(text) ? text : jv_str(jinja_str_markup(vm, text.s, true)); }

Jv jinja_escape(Vm *vm, Jv v) {
    Jv text = jinja_soft_str(vm, v);
    if (jv_bad(text) || text.s->markup) return text;
    JinjaText *out = jinja_str_flatten(vm, text.s) ? jinja_text_push(vm) : NULL;
    if (!out) return jv_error();
    write_escaped(out, text.s);
    return as_markup(vm, jinja_text_finish(vm, out));
}

static Jv filter_escape(Vm *vm, Jv v, const Jv *a) { return jinja_escape(vm, v); }
static Jv filter_forceescape(Vm *vm, Jv v, const Jv *a) {
    Jv text = jinja_to_str(vm, v);
    return jv_bad(text) ? text : jinja_escape(vm, text);
}
static Jv filter_safe(Vm *vm, Jv v, const Jv *a) { return as_markup(vm, jinja_soft_str(vm, v)); }

/* Entities: numbers and the names that plain text uses. */
static size_t entity_code(const char *at, size_t size, uint32_t *code) {
    static const struct {
        const char *name;
        uint32_t code;
    } named[] = {{"amp;", '&'}, {"lt;", '<'}, {"gt;", '>'}, {"quot;", '"'}, {"apos;", '\''}, {"nbsp;", 0xA0},
        {"copy;", 0xA9}, {"reg;", 0xAE}, {"laquo;", 0xAB}, {"raquo;", 0xBB}, {"hellip;", 0x2026}, {"mdash;", 0x2014},
        {"ndash;", 0x2013}, {"lsquo;", 0x2018}, {"rsquo;", 0x2019}, {"ldquo;", 0x201C}, {"rdquo;", 0x201D},
        {"euro;", 0x20AC}, {"middot;", 0xB7}, {"times;", 0xD7}, {"amp", '&'}, {"lt", '<'}, {"gt", '>'}, {"quot", '"'}};
    for (size_t i = 0; i < COUNT_OF(named); i++) {
        size_t length = strlen(named[i].name);
        if (length > size || memcmp(at, named[i].name, length) != 0) continue;
        *code = named[i].code;
        return length;
    }
    if (size < 2 || at[0] != '#') return 0;
    bool hex = at[1] == 'x' || at[1] == 'X';
    size_t used = 1 + hex, start = used;
    for (*code = 0; used < size; used++) {
        int digit = at[used] >= '0' && at[used] <= '9'                ? at[used] - '0'
            : hex && (at[used] | 32) >= 'a' && (at[used] | 32) <= 'f' ? (at[used] | 32) - 'a' + 10
                                                                      : -1;
        if (digit < 0) break;
        *code = *code > 0x10FFFF ? *code : *code * (hex ? 16 : 10) + (uint32_t)digit;
    }
    if (used == start) return 0;
    if (*code == 0 || *code > 0x10FFFF || (*code >= 0xD800 && *code < 0xE000)) *code = UTF8_REPLACEMENT;
    return used + (used < size && at[used] == ';');
}

Jv jinja_html_unescape(Vm *vm, Jv v) {
    JinjaStr *s = v.s;
    JinjaText *out = jinja_str_flatten(vm, s) ? jinja_text_push(vm) : NULL;
    if (!out || !jinja_step(vm, s->size / 16)) return jv_error();
    size_t plain = 0;
    for (size_t at = 0; at < s->size; at++) {
        uint32_t code;
        size_t used = s->data[at] == '&' ? entity_code(s->data + at + 1, s->size - at - 1, &code) : 0;
        if (!used) continue;
        jinja_text_part(out, s, plain, at);
        jinja_text_code(out, code, jinja_str_origin(s, at));
        plain = at + 1 + used;
        at += used;
    }
    jinja_text_part(out, s, plain, s->size);
    return jinja_text_finish(vm, out);
}

/* Removes what stands between open and close, markers included. */
static Jv remove_between(Vm *vm, Jv v, const char *open, const char *close) {
    JinjaStr *s = v.s;
    size_t open_size = strlen(open), close_size = strlen(close), at = 0;
    JinjaText *out = jinja_str_flatten(vm, s) ? jinja_text_push(vm) : NULL;
    if (!out || !jinja_step(vm, s->size / 16)) return jv_error();
    while (at < s->size) {
        const char *start = memmem(s->data + at, s->size - at, open, open_size);
        size_t from = start ? (size_t)(start - s->data) : s->size;
        const char *end = start ? memmem(start, s->size - from, close, close_size) : NULL;
        if (!end) break;
        jinja_text_part(out, s, at, from);
        at = (size_t)(end - s->data) + close_size;
    }
    jinja_text_part(out, s, at, s->size);
    return jinja_text_finish(vm, out);
}

Jv jinja_striptags(Vm *vm, Jv v) {
    Jv text = jinja_to_str(vm, v);
    if (!jv_bad(text)) text = remove_between(vm, text, "<!--", "-->");
    if (!jv_bad(text)) text = remove_between(vm, text, "<", ">");
    Jv words = jv_bad(text) ? text : jinja_str_split(vm, text, jv_none(), -1, false);
    if (jv_bad(words)) return words;
    text = jinja_str_join(vm, jinja_literal(vm, " "), words, true);
    return jv_bad(text) ? text : jinja_html_unescape(vm, text);
}
static Jv filter_striptags(Vm *vm, Jv v, const Jv *a) { return jinja_striptags(vm, v); }

/* URLs */

static bool write_quoted(Vm *vm, JinjaText *out, Jv v, bool query) {
    Jv text = jinja_to_str(vm, v);
    if (jv_bad(text) || !jinja_str_flatten(vm, text.s)) return false;
    JinjaStr *s = text.s;
    for (size_t at = 0; at < s->size && jinja_step(vm, 1); at++) {
        unsigned char c = (unsigned char)s->data[at];
        bool plain = (c >= '0' && c <= '9') || ((c | 32) >= 'a' && (c | 32) <= 'z') || (c && strchr("_.-~", c)) ||
            (c == '/' && !query);
        char escaped[4];
        snprintf(escaped, sizeof escaped, "%%%02X", c);
        uint8_t origin = jinja_str_origin(s, at);
        if (plain) {
            jinja_text_bytes(out, s->data + at, 1, origin);
        } else {
            jinja_text_bytes(out, query && c == ' ' ? "+" : escaped, query && c == ' ' ? 1 : 3, origin);
        }
    }
    return !vm->failed;
}

static Jv filter_urlencode(Vm *vm, Jv v, const Jv *a) {
    bool single = v.tag == JINJA_STR || v.tag == JINJA_NONE || jv_integral(v) || v.tag == JINJA_FLOAT;
    JinjaText *out = jinja_text_push(vm);
    if (!out) return jv_error();
    if (single) return write_quoted(vm, out, v, false) ? jinja_text_finish(vm, out) : jv_error();
    Jv items = jinja_iterate(vm, v.tag == JINJA_DICT ? (Jv){.tag = JINJA_VIEW, .flag = 'i', .dict = v.dict} : v);
    if (jv_bad(items)) return items;
    for (size_t i = 0; i < items.list->count; i++) {
        Jv pair = jinja_iterate(vm, items.list->items[i]);
        if (jv_bad(pair)) return pair;
        if (pair.list->count != 2) return jinja_fail(vm, "ValueError: urlencode needs pairs");
        if (i) jinja_text_plain(out, "&");
        if (!write_quoted(vm, out, pair.list->items[0], true)) return jv_error();
        jinja_text_plain(out, "=");
        if (!write_quoted(vm, out, pair.list->items[1], true)) return jv_error();
    }
    return jinja_text_finish(vm, out);
}

static Jv filter_xmlattr(Vm *vm, Jv v, const Jv *a) {
    bool space = true;
    if (jv_given(a[0]) && !jinja_truth(vm, a[0], &space)) return jv_error();
    if (v.tag == JINJA_UNDEFINED) return jv_undefined_error(vm, v);
    if (v.tag != JINJA_DICT)
        return jinja_fail(vm, "AttributeError: '%s' object has no attribute 'items'", jv_type_name(v));
    JinjaText *out = jinja_text_push(vm);
    if (!out) return jv_error();
    bool any = false;
    for (size_t i = 0; i < v.dict->count; i++) {
        Jv key = v.dict->pairs[i].key, value = v.dict->pairs[i].value;
        if (value.tag == JINJA_NONE || value.tag == JINJA_UNDEFINED) continue;
        if (key.tag != JINJA_STR || !jinja_str_flatten(vm, key.s))
            return jinja_fail(vm, "TypeError: expected string or bytes-like object");
        for (size_t j = 0; j < key.s->size; j++) {
            if (strchr(" \t\n\r\f\v/>=", key.s->data[j]))
                return jinja_fail(vm, "ValueError: Invalid character in attribute name");
        }
        key = jinja_escape(vm, key);
        value = jv_bad(key) ? key : jinja_escape(vm, value);
        if (jv_bad(value)) return value;
        if (any || space) jinja_text_plain(out, " ");
        any = true;
        jinja_text_string(out, key.s);
        jinja_text_plain(out, "=\"");
        jinja_text_string(out, value.s);
        jinja_text_plain(out, "\"");
    }
    return jinja_text_finish(vm, out);
}

static Jv filter_filesizeformat(Vm *vm, Jv v, const Jv *a) {
    static const char *const decimal[] = {"kB", "MB", "GB", "TB", "PB", "EB", "ZB", "YB"};
    static const char *const powers[] = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB", "ZiB", "YiB"};
    bool binary = false, ok = true;
    double bytes;
    if (jv_given(a[0]) && !jinja_truth(vm, a[0], &binary)) return jv_error();
    if (v.tag == JINJA_STR) {
        if (!jinja_str_flatten(vm, v.s)) return jv_error();
        v = jinja_float_parse(vm, jinja_str_slice(v.s), &ok);
        if (!ok) return jinja_fail(vm, "ValueError: could not convert string to float");
    }
    if (!jinja_as_double(vm, v, &bytes)) return jv_error();
    double base = binary ? 1024 : 1000, unit = base;
    char text[400];
    if (bytes == 1) return jinja_literal(vm, "1 Byte");
    if (isnan(bytes)) return jinja_fail(vm, "ValueError: cannot convert float NaN to integer");
    if (bytes < base) {
        if (isinf(bytes)) return jinja_fail(vm, "OverflowError: cannot convert float infinity to integer");
        snprintf(text, sizeof text, "%.0f Bytes", trunc(bytes) == 0 ? 0.0 : trunc(bytes));
    } else {
        size_t i = 0;
        for (unit *= base; i < COUNT_OF(powers) - 1 && bytes >= unit; i++) unit *= base;
        snprintf(text, sizeof text, "%.1f %s", base * bytes / unit, binary ? powers[i] : decimal[i]);
    }
    return jv_str(jinja_str_copy(vm, text, strlen(text), ORIGIN_TEMPLATE));
}

const JinjaFilter jinja_html_filters[] = {
    {"e", "", 0, false, filter_escape, NULL},
    {"escape", "", 0, false, filter_escape, NULL},
    {"filesizeformat", "binary", 0, false, filter_filesizeformat, NULL},
    {"forceescape", "", 0, false, filter_forceescape, NULL},
    {"safe", "", 0, false, filter_safe, NULL},
    {"striptags", "", 0, false, filter_striptags, NULL},
    {"urlencode", "", 0, false, filter_urlencode, NULL},
    {"urlize", "trim_url_limit nofollow target rel extra_schemes", 0, false, jinja_filter_urlize, NULL},
    {"xmlattr", "autospace", 0, false, filter_xmlattr, NULL},
    {NULL, NULL, 0, false, NULL, NULL},
};
