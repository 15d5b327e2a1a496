/* Filters on text. Reference: jinja2 3.1 filters.py. */
#include "base/utf8.h"
#include "text/jinja/eval.h"
#include "text/jinja/wrap.h"

static Jv soft_case(Vm *vm, Jv value, JinjaCase how) {
    Jv text = jinja_soft_str(vm, value);
    return jv_bad(text) ? text : jinja_str_case(vm, text, how);
}
static Jv filter_upper(Vm *vm, Jv v, const Jv *a) { return soft_case(vm, v, CASE_UPPER); }
static Jv filter_lower(Vm *vm, Jv v, const Jv *a) { return soft_case(vm, v, CASE_LOWER); }
static Jv filter_capitalize(Vm *vm, Jv v, const Jv *a) { return soft_case(vm, v, CASE_CAPITALIZE); }

static bool starts_word(uint32_t code) {
    return unicode_is_space(code) || (code < 0x80 && code && strchr("-({[<", (int)code));
}

/* Not str.title(): words begin after white space and -({[<, and the rest of a word is lowered as one piece. */
static Jv filter_title(Vm *vm, Jv value, const Jv *a) {
    Jv text = jinja_soft_str(vm, value);
    if (jv_bad(text) || !jinja_str_flatten(vm, text.s)) return jv_error();
    JinjaStr *s = text.s;
    JinjaText *out = jinja_text_push(vm);
    if (!out) return jv_error();
    for (size_t at = 0; at < s->size && jinja_step(vm, 1);) {
        uint32_t code, mapped[3];
        size_t width = (size_t)utf8_decode(s->data + at, s->size - at, &code), rest = at + width;
        bool separator = starts_word(code);
        while (rest < s->size) {
            uint32_t next;
            size_t next_width = (size_t)utf8_decode(s->data + rest, s->size - rest, &next);
            if (starts_word(next) != separator) break;
            rest += next_width;
        }
        int count = jinja_upper(code, mapped);
        for (int i = 0; i < count; i++) jinja_text_code(out, mapped[i], jinja_str_origin(s, at));
        JinjaStr *tail = jinja_str_part(vm, s, at + width, rest);
        Jv lowered = tail ? jinja_str_case(vm, jv_str(tail), CASE_LOWER) : jv_error();
        if (jv_bad(lowered)) return lowered;
        jinja_text_string(out, lowered.s);
        at = rest;
    }
    return jinja_text_finish(vm, out);
}

static Jv filter_string(Vm *vm, Jv value, const Jv *a) { return jinja_soft_str(vm, value); }

static Jv filter_trim(Vm *vm, Jv value, const Jv *a) {
    Jv text = jinja_soft_str(vm, value);
    return jv_bad(text) ? text : jinja_str_strip(vm, text, a[0], true, true);
}

static Jv filter_center(Vm *vm, Jv value, const Jv *a) {
    int64_t width = 80;
    Jv text = jinja_soft_str(vm, value);
    if (jv_bad(text) || (jv_given(a[0]) && !jinja_as_index(vm, a[0], &width))) return jv_error();
    return jinja_str_pad(vm, text, width, (Jv){.tag = JINJA_MISSING}, 0);
}

static Jv filter_replace(Vm *vm, Jv value, const Jv *a) {
    int64_t count = -1;
    if (jv_given(a[2]) && a[2].tag != JINJA_NONE && !jinja_as_index(vm, a[2], &count)) return jv_error();
    Jv text = jinja_to_str(vm, value), old = jinja_to_str(vm, a[0]), with = jinja_to_str(vm, a[1]);
    if (jv_bad(text) || jv_bad(old) || jv_bad(with)) return jv_error();
    return jinja_str_replace(vm, text, old, with, count);
}

static Jv filter_join(Vm *vm, Jv value, const Jv *a) {
    Jv separator = jv_given(a[0]) ? jinja_to_str(vm, a[0]) : jinja_literal(vm, "");
    if (jv_bad(separator)) return separator;
    if (jv_given(a[1]) && a[1].tag != JINJA_NONE) {
        JinjaList parts;
        Jv list = jinja_iterate(vm, value), mapped = jinja_list_new(vm, 0);
        if (jv_bad(list) || jv_bad(mapped) || !jinja_attribute_parts(vm, a[1], &parts)) return jv_error();
        for (size_t i = 0; i < list.list->count; i++) {
            Jv item = jinja_attribute_get(vm, list.list->items[i], &parts, (Jv){.tag = JINJA_MISSING});
            if (!jinja_list_push(vm, mapped.list, item)) return jv_error();
        }
        value = mapped;
    }
    return jinja_str_join(vm, separator, value, true);
}

static Jv filter_format(Vm *vm, Jv value, const JinjaArgs *args) {
    if (args->count && args->keyword_count) {
        return jinja_fail(vm, "can't handle positional and keyword arguments at the same time");
    }
    Jv text = jinja_soft_str(vm, value), values;
    if (jv_bad(text)) return text;
    if (args->keyword_count) {
        values = jinja_global_call(vm, GLOBAL_DICT, args);
    } else {
        values = jinja_tuple(vm, args->positional, args->count);
    }
    return jv_bad(values) ? values : jinja_percent_format(vm, text.s, values);
}

static Jv want_text(Vm *vm, Jv value, const char *filter) {
    if (value.tag == JINJA_UNDEFINED) return jv_undefined_error(vm, value);
    if (value.tag == JINJA_STR) return jinja_str_flatten(vm, value.s) ? value : jv_error();
    return jinja_fail(vm, "TypeError: %s needs a string, not '%s'", filter, jv_type_name(value));
}

static Jv filter_indent(Vm *vm, Jv value, const Jv *a) {
    bool first = false, blank = false;
    int64_t width = 4;
    bool text_width = jv_given(a[0]) && a[0].tag == JINJA_STR;
    if ((jv_given(a[1]) && !jinja_truth(vm, a[1], &first)) || (jv_given(a[2]) && !jinja_truth(vm, a[2], &blank)))
        return jv_error();
    if (jv_given(a[0]) && !text_width && !jinja_as_index(vm, a[0], &width)) return jv_error();
    if (width > 1 << 20) return jinja_raise(vm, ERROR_LIMIT, "indent: a width of %lld", (long long)width);
    Jv text = want_text(vm, value, "indent");
    if (jv_bad(text)) return text;
    Jv ended = jv_str(jinja_str_concat(vm, text.s, jinja_str_markup(vm, jinja_literal(vm, "\n").s, text.s->markup)));
    Jv lines = jv_bad(ended) ? ended : jinja_str_splitlines(vm, ended, false);
    JinjaText *out = jv_bad(lines) ? NULL : jinja_text_push(vm);
    if (!out) return jv_error();
    for (size_t i = 0; i < lines.list->count && jinja_step(vm, 1); i++) {
        JinjaStr *line = lines.list->items[i].s;
        if (i) jinja_text_plain(out, "\n");
        if (i == 0 ? first : blank || line->size > 0) {
            if (text_width) {
                jinja_text_string(out, a[0].s);
            } else {
                jinja_text_repeat(out, ' ', width > 0 ? (size_t)width : 0, ORIGIN_TEMPLATE);
            }
        }
        jinja_text_string(out, line);
    }
    Jv result = jinja_text_finish(vm, out);
    return jv_bad(result) ? result : jv_str(jinja_str_markup(vm, result.s, text.s->markup));
}

static Jv filter_truncate(Vm *vm, Jv value, const Jv *a) {
    int64_t length = 255, leeway = 5;
    bool killwords = false;
    if ((jv_given(a[0]) && !jinja_as_index(vm, a[0], &length)) ||
        (jv_given(a[1]) && !jinja_truth(vm, a[1], &killwords)))
        return jv_error();
    if (jv_given(a[3]) && a[3].tag != JINJA_NONE && !jinja_as_index(vm, a[3], &leeway)) return jv_error();
    Jv end = jv_given(a[2]) ? want_text(vm, a[2], "truncate") : jinja_literal(vm, "...");
    if (jv_bad(end)) return end;
    if (length < (int64_t)end.s->length || leeway < 0)
        return jinja_fail(vm, "truncate: a length or leeway that is too small");
    int64_t limit;
    size_t now;
    if (!jinja_length(vm, value, &now)) return jv_error();
    if (__builtin_add_overflow(length, leeway, &limit) || (int64_t)now <= limit) return value;
    Jv text = want_text(vm, value, "truncate");
    if (jv_bad(text)) return text;
    JinjaStr *cut = jinja_str_part(vm, text.s, 0, jinja_str_offset(text.s, (size_t)(length - (int64_t)end.s->length)));
    if (cut && !killwords) {
        size_t at = cut->size;
        while (at > 0 && cut->data[at - 1] != ' ') at--;
        if (at > 0) cut = jinja_str_part(vm, cut, 0, at - 1);
    }
    return cut ? jv_str(jinja_str_concat(vm, cut, end.s)) : jv_error();
}

static bool is_word(uint32_t code) { return code == '_' || unicode_is_alnum(code); }

static Jv filter_wordcount(Vm *vm, Jv value, const Jv *a) {
    Jv text = jinja_soft_str(vm, value);
    if (jv_bad(text) || !jinja_str_flatten(vm, text.s) || !jinja_step(vm, text.s->size / 8)) return jv_error();
    int64_t count = 0;
    bool inside = false;
    for (size_t at = 0; at < text.s->size;) {
        uint32_t code;
        at += (size_t)utf8_decode(text.s->data + at, text.s->size - at, &code);
        count += is_word(code) && !inside;
        inside = is_word(code);
    }
    return jv_int(count);
}

static Jv filter_wordwrap(Vm *vm, Jv value, const Jv *a) {
    WrapOptions options = {.width = 79, .break_words = true, .break_hyphens = true};
    Jv text = want_text(vm, value, "wordwrap"), by = jinja_literal(vm, "\n");
    if (jv_bad(text) || (jv_given(a[0]) && !jinja_as_index(vm, a[0], &options.width)) ||
        (jv_given(a[1]) && !jinja_truth(vm, a[1], &options.break_words)) ||
        (jv_given(a[3]) && !jinja_truth(vm, a[3], &options.break_hyphens))) {
        return jv_error();
    }
    if (jv_given(a[2]) && a[2].tag != JINJA_NONE) by = want_text(vm, a[2], "wordwrap");
    Jv lines = jv_bad(by) ? by : jinja_str_splitlines(vm, text, false), out = jinja_list_new(vm, 0);
    if (jv_bad(lines) || jv_bad(out)) return jv_error();
    for (size_t i = 0; i < lines.list->count; i++) {
        Jv wrapped = jinja_wrap_line(vm, lines.list->items[i].s, &options);
        if (jv_bad(wrapped) || !jinja_list_push(vm, out.list, jinja_str_join(vm, by, wrapped, false)))
            return jv_error();
    }
    return jinja_str_join(vm, by, out, false);
}

static Jv filter_pprint(Vm *vm, Jv value, const Jv *a) { return jinja_pprint(vm, value); }

const JinjaFilter jinja_text_filters[] = {
    {"capitalize", "", 0, false, filter_capitalize, NULL},
    {"center", "width", 0, false, filter_center, NULL},
    {"format", NULL, 0, false, NULL, filter_format},
    {"indent", "width first blank", 0, false, filter_indent, NULL},
    {"join", "d attribute", 0, false, filter_join, NULL},
    {"lower", "", 0, false, filter_lower, NULL},
    {"pprint", "", 0, false, filter_pprint, NULL},
    {"replace", "old new count", 2, false, filter_replace, NULL},
    {"string", "", 0, false, filter_string, NULL},
    {"title", "", 0, false, filter_title, NULL},
    {"trim", "chars", 0, false, filter_trim, NULL},
    {"truncate", "length killwords end leeway", 0, false, filter_truncate, NULL},
    {"upper", "", 0, false, filter_upper, NULL},
    {"wordcount", "", 0, false, filter_wordcount, NULL},
    {"wordwrap", "width break_long_words wrapstring break_on_hyphens", 0, false, filter_wordwrap, NULL},
    {NULL, NULL, 0, false, NULL, NULL},
};
