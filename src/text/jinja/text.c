/* Python's str operations on strings with origins: a result keeps the origin of each part. */
#include "base/utf8.h"
#include "text/jinja/value.h"
#include "text/unicode/unicode.h"

static uint32_t code_at(const JinjaStr *s, size_t at, size_t *width) {
    uint32_t code;
    *width = (size_t)utf8_decode(s->data + at, s->size - at, &code);
    return code;
}

static uint32_t code_before(const JinjaStr *s, size_t to, size_t *start) {
    size_t at = to - 1, width;
    while (at > 0 && ((unsigned char)s->data[at] & 0xC0) == 0x80) at--;
    *start = at;
    return code_at(s, at, &width);
}

/* The character at one end of the bytes [from, to); next: the end without it. */
static uint32_t code_at_end(const JinjaStr *s, size_t from, size_t to, bool right, size_t *next) {
    if (right) return code_before(s, to, next);
    uint32_t code = code_at(s, from, next);
    *next += from;
    return code;
}

/* Case */

static bool is_cased(uint32_t code) {
    return unicode_is_lower(code) || unicode_is_upper(code) || unicode_category(code) == CATEGORY_LT;
}

/* The final sigma: preceded by a cased letter and not followed by one, ignoring what is ignorable. */
static bool sigma_is_final(const JinjaStr *s, size_t at, size_t after) {
    size_t width;
    bool cased = false;
    for (size_t i = at; i > 0;) {
        uint32_t code = code_before(s, i, &i);
        if (unicode_is_case_ignorable(code)) continue;
        cased = is_cased(code);
        break;
    }
    for (size_t i = after; cased && i < s->size; i += width) {
        uint32_t code = code_at(s, i, &width);
        if (!unicode_is_case_ignorable(code)) return !is_cased(code);
    }
    return cased;
}

static int lower_at(const JinjaStr *s, size_t at, size_t width, uint32_t code, uint32_t out[3]) {
    if (code != 0x3A3) return unicode_lower_full(code, out);
    out[0] = sigma_is_final(s, at, at + width) ? 0x3C2 : 0x3C3;
    return 1;
}

static int map_case(
    const JinjaStr *s, size_t at, size_t width, uint32_t code, JinjaCase how, bool inside, uint32_t out[3]) {
    if (how == CASE_UPPER) return unicode_upper_full(code, out);
    bool title = how != CASE_LOWER && !inside;
    return title ? unicode_title_full(code, out) : lower_at(s, at, width, code, out);
}

Jv jinja_str_case(Vm *vm, Jv value, JinjaCase how) {
    JinjaStr *s = value.s;
    if (!jinja_str_flatten(vm, s) || !jinja_step(vm, s->size / 8)) return jv_error();
    JinjaText *out = jinja_text_push(vm);
    if (!out) return jv_error();
    bool inside = false;
    size_t width;
    for (size_t at = 0; at < s->size && !vm->failed; at += width) {
        uint32_t code = code_at(s, at, &width), mapped[3];
        int count = map_case(s, at, width, code, how, inside, mapped);
        uint8_t origin = jinja_str_origin(s, at);
        for (int i = 0; i < count; i++) jinja_text_code(out, mapped[i], origin);
        inside = how == CASE_CAPITALIZE ? true : is_cased(code);
    }
    return jinja_str_like(vm, jinja_text_finish(vm, out), s);
}

/* Strip */

static bool in_set(const JinjaStr *set, uint32_t code) {
    if (!set) return unicode_is_python_space(code);
    size_t width;
    for (size_t at = 0; at < set->size; at += width) {
        if (code_at(set, at, &width) == code) return true;
    }
    return false;
}

static bool optional_str(Vm *vm, Jv v, const char *what, JinjaStr **out) {
    *out = NULL;
    if (!jv_given(v) || v.tag == JINJA_NONE) return true;
    if (v.tag != JINJA_STR) {
        jinja_fail(vm, "TypeError: %s must be None or str, not %s", what, jv_type_name(v));
        return false;
    }
    *out = v.s;
    return jinja_str_flatten(vm, v.s);
}

Jv jinja_str_strip(Vm *vm, Jv value, Jv chars, bool left, bool right) {
    JinjaStr *s = value.s, *set;
    if (!jinja_str_flatten(vm, s) || !optional_str(vm, chars, "strip arg", &set)) return jv_error();
    size_t from = 0, to = s->size, width, start;
    size_t cost = set ? set->size / 16 : 0;
    while (left && from < to && in_set(set, code_at(s, from, &width)) && jinja_step(vm, cost)) from += width;
    while (right && to > from && in_set(set, code_before(s, to, &start)) && jinja_step(vm, cost)) to = start;
    if (!jinja_step(vm, (s->size - (to - from)) / 16)) return jv_error();
    return jv_str(jinja_str_part(vm, s, from, to));
}

/* Search and replace */

static size_t find_last(Vm *vm, const JinjaStr *s, size_t to, const JinjaStr *needle) {
    if (needle->size > to) return SIZE_MAX;
    for (size_t at = to - needle->size; jinja_step(vm, needle->size / 256 + 1); at--) {
        if (memcmp(s->data + at, needle->data, needle->size) == 0) return at;
        if (at == 0) break;
    }
    return SIZE_MAX;
}

Jv jinja_str_replace(Vm *vm, Jv value, Jv old, Jv with, int64_t count) {
    JinjaStr *s = value.s;
    if (!jinja_str_flatten(vm, s) || !jinja_str_flatten(vm, old.s) || !jinja_str_flatten(vm, with.s)) return jv_error();
    if (!jinja_step(vm, s->size / 64)) return jv_error();
    if (count < 0) count = INT64_MAX;
    size_t found = jinja_find_bytes(s->data, 0, s->size, old.s);
    if (count == 0 || found == SIZE_MAX) return value;
    JinjaText *out = jinja_text_push(vm);
    if (!out) return jv_error();
    size_t at = 0;
    if (old.s->size == 0) { /* between all characters */
        for (; count > 0 && jinja_step(vm, 1); count--) {
            jinja_text_string(out, with.s);
            if (at >= s->size) break;
            size_t width = utf8_width((unsigned char)s->data[at]);
            jinja_text_part(out, s, at, at + width);
            at += width;
        }
    } else {
        for (; count > 0 && found != SIZE_MAX && jinja_step(vm, 1); count--) {
            jinja_text_part(out, s, at, found);
            jinja_text_string(out, with.s);
            at = found + old.s->size;
            found = jinja_find_bytes(s->data, at, s->size, old.s);
        }
    }
    jinja_text_part(out, s, at, s->size);
    return jinja_str_like(vm, jinja_text_finish(vm, out), s);
}

/* Splitting */

static bool push_part(Vm *vm, JinjaList *list, JinjaStr *s, size_t from, size_t to) {
    return jinja_step(vm, 1) && jinja_list_push(vm, list, jv_str(jinja_str_part(vm, s, from, to)));
}

/* Splits at runs of white space, from the left or the right end. */
static bool split_spaces(Vm *vm, JinjaStr *s, int64_t limit, bool from_right, JinjaList *out) {
    size_t from = 0, to = s->size, next;
    for (;;) {
        while (from < to && unicode_is_python_space(code_at_end(s, from, to, from_right, &next)))
            *(from_right ? &to : &from) = next;
        if (from >= to) return true;
        if (limit-- == 0) return push_part(vm, out, s, from_right ? 0 : from, from_right ? to : s->size);
        size_t start = from, end = to;
        while (from < to && !unicode_is_python_space(code_at_end(s, from, to, from_right, &next)))
            *(from_right ? &to : &from) = next;
        if (!push_part(vm, out, s, from_right ? to : start, from_right ? end : from)) return false;
    }
}

static bool split_by(Vm *vm, JinjaStr *s, const JinjaStr *separator, int64_t limit, bool from_right, JinjaList *out) {
    size_t from = 0, to = s->size;
    for (; limit != 0; limit--) {
        size_t found = from_right ? find_last(vm, s, to, separator) : jinja_find_bytes(s->data, from, to, separator);
        if (found == SIZE_MAX) break;
        size_t after = found + separator->size;
        if (!push_part(vm, out, s, from_right ? after : from, from_right ? to : found)) return false;
        *(from_right ? &to : &from) = from_right ? found : after;
    }
    return push_part(vm, out, s, from, to);
}

Jv jinja_str_split(Vm *vm, Jv value, Jv separator, int64_t limit, bool from_right) {
    JinjaStr *s = value.s, *by;
    Jv out = jinja_list_new(vm, 0);
    if (jv_bad(out) || !jinja_str_flatten(vm, s) || !jinja_step(vm, s->size / 16)) return jv_error();
    if (!optional_str(vm, separator, "separator", &by)) return jv_error();
    if (by && by->size == 0) return jinja_fail(vm, "ValueError: empty separator");
    bool ok = by ? split_by(vm, s, by, limit, from_right, out.list) : split_spaces(vm, s, limit, from_right, out.list);
    JinjaList *list = out.list;
    for (size_t i = 0, j = list->count; from_right && i + 1 < j; i++) {
        Jv item = list->items[i];
        list->items[i] = list->items[--j];
        list->items[j] = item;
    }
    return ok ? out : jv_error();
}

static bool is_line_break(uint32_t code) {
    return (code >= 0x0A && code <= 0x0D) || (code >= 0x1C && code <= 0x1E) || code == 0x85 || code == 0x2028 ||
        code == 0x2029;
}

Jv jinja_str_splitlines(Vm *vm, Jv value, bool keep_ends) {
    JinjaStr *s = value.s;
    Jv out = jinja_list_new(vm, 0);
    if (jv_bad(out) || !jinja_str_flatten(vm, s) || !jinja_step(vm, s->size / 16)) return jv_error();
    size_t from = 0, width;
    for (size_t at = 0; at < s->size; at += width) {
        uint32_t code = code_at(s, at, &width);
        if (!is_line_break(code)) continue;
        size_t end = at + width;
        if (code == '\r' && end < s->size && s->data[end] == '\n') end++;
        if (!push_part(vm, out.list, s, from, keep_ends ? end : at)) return jv_error();
        from = end;
        width = end - at;
    }
    if (from < s->size && !push_part(vm, out.list, s, from, s->size)) return jv_error();
    return out;
}

/* Markup */

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

Jv jinja_escape(Vm *vm, Jv v) {
    Jv text = jinja_soft_str(vm, v);
    if (jv_bad(text) || text.s->markup) return text;
    JinjaText *out = jinja_str_flatten(vm, text.s) ? jinja_text_push(vm) : NULL;
    if (!out) return jv_error();
    write_escaped(out, text.s);
    text = jinja_text_finish(vm, out);
    return jv_bad(text) ? text : jv_str(jinja_str_markup(vm, text.s, true));
}

Jv jinja_str_join(Vm *vm, Jv separator, Jv items, bool convert) {
    Jv list = jinja_iterate(vm, items);
    JinjaText *out = jv_bad(list) ? NULL : jinja_text_push(vm);
    if (!out) return jv_error();
    for (size_t i = 0; i < list.list->count; i++) {
        Jv item = list.list->items[i];
        if (i) jinja_text_string(out, separator.s);
        if (!convert && item.tag != JINJA_STR) {
            return jinja_fail(
                vm, "TypeError: sequence item %zu: expected str instance, %s found", i, jv_type_name(item));
        }
        if (separator.s->markup && !convert) item = jinja_escape(vm, item);
        if (jv_bad(item) || !jinja_write_str(vm, out, item) || !jinja_step(vm, 1)) return jv_error();
    }
    return convert ? jinja_text_finish(vm, out) : jinja_str_like(vm, jinja_text_finish(vm, out), separator.s);
}

/* Tests */

/* isupper, islower: some letter has the case and none another. */
static bool test_case(const JinjaStr *s, bool wants_upper) {
    bool any = false;
    size_t width;
    for (size_t at = 0; at < s->size; at += width) {
        uint32_t code = code_at(s, at, &width);
        bool right = wants_upper ? unicode_is_upper(code) : unicode_is_lower(code);
        if (!right && is_cased(code)) return false;
        any = any || right;
    }
    return any;
}

bool jinja_str_test(Vm *vm, Jv value, char which) {
    JinjaStr *s = value.s;
    if (!jinja_str_flatten(vm, s) || !jinja_step(vm, s->size / 16)) return false;
    if (which == 'u' || which == 'l') return test_case(s, which == 'u');
    size_t width;
    for (size_t at = 0; at < s->size; at += width) {
        uint32_t code = code_at(s, at, &width);
        bool ok = which == 'd' ? unicode_is_digit(code)
            : which == 's'     ? unicode_is_python_space(code)
                               : (unicode_set(code) & (which == 'a' ? UNICODE_L : UNICODE_L | UNICODE_N)) != 0;
        if (!ok) return false;
    }
    return s->size > 0;
}
