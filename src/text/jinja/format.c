/* str.format() with the sandbox's rules: attributes and items are looked up as a template does. Reference: Python's
 * format string syntax and format specification mini-language. */
#include <string.h>

#include "base/utf8.h"
#include "text/jinja/eval.h"
#include "text/jinja/number_format.h"

enum { FORMAT_NESTING = 2 };

typedef struct Format {
    Vm *vm;
    const JinjaArgs *args;
    Jv mapping;
    int64_t automatic; /* next number of {}; -1 once fields are numbered by hand */
    bool markup;
} Format;

static bool format_text(Format *f, JinjaText *out, JinjaStr *s, size_t from, size_t to, int nesting);

static bool format_fail(Format *f, const char *message) {
    jinja_fail(f->vm, "%s", message);
    return false;
}

static bool parse_index(Slice text, int64_t *out) {
    *out = 0;
    if (text.size == 0 || text.size > 15) return false;
    for (size_t i = 0; i < text.size; i++) {
        if (text.data[i] < '0' || text.data[i] > '9') return false;
        *out = *out * 10 + (text.data[i] - '0');
    }
    return true;
}

static Jv field_first(Format *f, JinjaStr *s, size_t from, size_t to) {
    Slice name = {s->data + from, to - from};
    int64_t index;
    if (name.size == 0) {
        if (f->automatic < 0) {
            return jinja_fail(
                f->vm, "ValueError: cannot switch from manual field specification to automatic field numbering");
        }
        index = f->automatic++;
    } else if (parse_index(name, &index)) {
        if (f->automatic > 0) {
            return jinja_fail(
                f->vm, "ValueError: cannot switch from automatic field numbering to manual field specification");
        }
        f->automatic = -1;
    } else {
        if (jv_given(f->mapping)) {
            JinjaStr *key = jinja_str_part(f->vm, s, from, to);
            JinjaPair *pair =
                key && f->mapping.tag == JINJA_DICT ? jinja_dict_find(f->vm, f->mapping.dict, jv_str(key)) : NULL;
            if (pair) return pair->value;
        }
        for (size_t i = 0; i < f->args->keyword_count; i++) {
            if (slice_equal(f->args->keywords[i].name, name)) return f->args->keywords[i].value;
        }
        return jinja_fail(f->vm, "KeyError: '%.*s'", name.size > 80 ? 80 : SLICE_ARGS(name));
    }
    if (index < (int64_t)f->args->count) return f->args->positional[index];
    return jinja_fail(
        f->vm, "IndexError: Replacement index %lld out of range for positional args tuple", (long long)index);
}

/* first ( "." name | "[" index "]" )* */
static Jv field_value(Format *f, JinjaStr *s, size_t from, size_t to) {
    size_t at = from;
    while (at < to && s->data[at] != '.' && s->data[at] != '[') at++;
    Jv value = field_first(f, s, from, at);
    while (at < to && !jv_bad(value)) {
        bool bracket = s->data[at] == '[';
        size_t start = ++at;
        while (at < to && (bracket ? s->data[at] != ']' : s->data[at] != '.' && s->data[at] != '[')) at++;
        if (at == start) return jinja_fail(f->vm, "ValueError: Empty attribute in format string");
        if (bracket && at >= to) return jinja_fail(f->vm, "ValueError: Missing ']' in format string");
        JinjaStr *name = jinja_str_part(f->vm, s, start, at);
        int64_t index;
        if (!name) return jv_error();
        if (bracket) {
            value =
                jinja_getitem(f->vm, value, parse_index(jinja_str_slice(name), &index) ? jv_int(index) : jv_str(name));
            at++;
            if (at < to && s->data[at] != '.' && s->data[at] != '[') {
                return jinja_fail(f->vm, "ValueError: Only '.' or '[' may follow ']' in format field specifier");
            }
        } else {
            value = jinja_getattr(f->vm, value, name, jinja_method_id(jinja_str_slice(name)));
        }
    }
    return value;
}

static bool parse_count(Format *f, const char **at, const char *end, int64_t *out) {
    for (*out = 0; *at < end && **at >= '0' && **at <= '9'; (*at)++) {
        *out = *out * 10 + (**at - '0');
        if (*out > INT32_MAX) return format_fail(f, "ValueError: Too many decimal digits in format string");
    }
    return true;
}

static bool parse_spec(Format *f, Slice text, NumberFormat *spec) {
    const char *at = text.data, *end = text.data + text.size;
    uint32_t fill;
    *spec = (NumberFormat){.precision = -1, .sign = 0};
    int width = at < end ? utf8_decode(at, (size_t)(end - at), &fill) : 0;
    if (width > 0 && at + width < end && strchr("<>^=", at[width])) {
        spec->fill = fill;
        spec->align = at[width];
        at += width + 1;
    } else if (at < end && *at && strchr("<>^=", *at)) {
        spec->align = *at++;
    }
    if (at < end && *at && strchr("+- ", *at)) spec->sign = *at++;
    if (at < end && *at == '#') {
        spec->alternate = true;
        at++;
    }
    if (at < end && *at == '0') {
        spec->zero = true;
        if (!spec->fill) spec->fill = '0';
        at++;
    }
    if (!parse_count(f, &at, end, &spec->width)) return false;
    if (at < end && (*at == ',' || *at == '_')) spec->group = *at++;
    if (at < end && *at == '.') {
        const char *digits = ++at;
        int64_t precision;
        if (!parse_count(f, &at, end, &precision)) return false;
        if (at == digits) return format_fail(f, "ValueError: Format specifier missing precision");
        spec->precision = (int)precision;
    }
    if (at < end) spec->type = *at++;
    return at == end || format_fail(f, "ValueError: Invalid format specifier");
}

static bool unknown_type(Format *f, Jv value, char type) {
    jinja_fail(f->vm, "ValueError: Unknown format code '%c' for object of type '%s'", type, jv_type_name(value));
    return false;
}

static bool put_string(Format *f, JinjaText *out, Jv value, NumberFormat *spec) {
    if (spec->type && spec->type != 's') return unknown_type(f, value, spec->type);
    if (spec->sign || spec->alternate || spec->group || spec->align == '=') {
        return format_fail(f, "ValueError: a format for numbers given a string");
    }
    JinjaStr *s = value.s;
    if (!jinja_str_flatten(f->vm, s)) return false;
    if (spec->precision >= 0 && (size_t)spec->precision < s->length) {
        s = jinja_str_part(f->vm, s, 0, jinja_str_offset(s, (size_t)spec->precision));
        if (!s) return false;
    }
    return jinja_format_pad(f->vm, out, s, spec, '<');
}

static bool put_number(Format *f, JinjaText *out, Jv value, NumberFormat *spec) {
    char type = spec->type;
    bool integer = jv_integral(value), as_float = !integer || (type && strchr("eEfFgG%", type));
    if (type == 'c' && integer) {
        if (value.tag == JINJA_BIG || jv_small(value) < 0 || jv_small(value) > 0x10FFFF ||
            (jv_small(value) >= 0xD800 && jv_small(value) < 0xE000)) {
            return format_fail(f, "OverflowError: %c arg not in range(0x110000)");
        }
        JinjaText *text = jinja_text_push(f->vm);
        if (!text) return false;
        jinja_text_code(text, (uint32_t)jv_small(value), ORIGIN_TEMPLATE);
        Jv c = jinja_text_finish(f->vm, text);
        return !jv_bad(c) && jinja_format_pad(f->vm, out, c.s, spec, '<');
    }
    if (as_float) {
        double number;
        if (type && !strchr("eEfFgG%n", type)) return unknown_type(f, value, type);
        return jinja_as_double(f->vm, value, &number) && jinja_format_float(f->vm, out, number, spec);
    }
    if (type && !strchr("bdoxXn", type)) return unknown_type(f, value, type);
    if (spec->precision >= 0) return format_fail(f, "ValueError: Precision not allowed in integer format specifier");
    return jinja_format_integer(f->vm, out, value, spec);
}

static bool put_value(Format *f, JinjaText *out, Jv value, JinjaStr *spec_text) {
    if (!jinja_str_flatten(f->vm, spec_text)) return false;
    if (spec_text->size == 0) return jinja_write_str(f->vm, out, value);
    NumberFormat spec;
    bool number = jv_integral(value) || value.tag == JINJA_FLOAT;
    if (!number && value.tag != JINJA_STR) {
        jinja_fail(f->vm, "TypeError: unsupported format string passed to %s.__format__", jv_type_name(value));
        return false;
    }
    if (!parse_spec(f, jinja_str_slice(spec_text), &spec)) return false;
    return number ? put_number(f, out, value, &spec) : put_string(f, out, value, &spec);
}

static Jv convert(Format *f, Jv value, char how) {
    if (!how || jv_bad(value)) return value;
    if (how == 's') return jinja_to_str(f->vm, value);
    if (how == 'r') return jinja_to_repr(f->vm, value);
    if (how != 'a') return jinja_fail(f->vm, "ValueError: Unknown conversion specifier '%c'", how);
    JinjaText *out = jinja_text_push(f->vm);
    if (!out || !jinja_write_ascii(f->vm, out, value)) return jv_error();
    return jinja_text_finish(f->vm, out);
}

/* One field: [from, to) is between its braces. */
static bool format_field(Format *f, JinjaText *out, JinjaStr *s, size_t from, size_t to, int nesting) {
    size_t name = from;
    int brackets = 0;
    while (name < to && (brackets || (s->data[name] != '!' && s->data[name] != ':'))) {
        brackets = s->data[name] == '[' ? 1 : s->data[name] == ']' ? 0 : brackets;
        if (s->data[name] == '{') return format_fail(f, "ValueError: unexpected '{' in field name");
        name++;
    }
    size_t spec = name;
    char conversion = 0;
    if (name < to && s->data[name] == '!') {
        if (name + 1 >= to) return format_fail(f, "ValueError: end of string while looking for conversion specifier");
        conversion = s->data[name + 1];
        spec = name + 2;
        if (spec < to && s->data[spec] != ':')
            return format_fail(f, "ValueError: expected ':' after conversion specifier");
    }
    Jv value = convert(f, field_value(f, s, from, name), conversion);
    JinjaText *inner = jv_bad(value) ? NULL : jinja_text_push(f->vm);
    if (!inner || (spec < to && !format_text(f, inner, s, spec + 1, to, nesting - 1))) return false;
    Jv spec_text = jinja_text_finish(f->vm, inner);
    if (jv_bad(spec_text)) return false;
    if (!f->markup) return put_value(f, out, value, spec_text.s);
    JinjaText *plain = jinja_text_push(f->vm); /* Markup.format escapes each field */
    if (!plain || !put_value(f, plain, value, spec_text.s)) return false;
    Jv text = jinja_text_finish(f->vm, plain);
    bool safe = value.tag == JINJA_STR && value.s->markup;
    if (!safe && !jv_bad(text)) text = jinja_escape(f->vm, text);
    return !jv_bad(text) && jinja_write_str(f->vm, out, text);
}

static bool format_text(Format *f, JinjaText *out, JinjaStr *s, size_t from, size_t to, int nesting) {
    if (nesting < 0) return format_fail(f, "ValueError: Max string recursion exceeded");
    size_t plain = from;
    for (size_t at = from; at < to; at++) {
        char c = s->data[at];
        if (c != '{' && c != '}') continue;
        jinja_text_part(out, s, plain, at);
        if (at + 1 < to && s->data[at + 1] == c) {
            jinja_text_part(out, s, at, at + 1);
            plain = ++at + 1;
            continue;
        }
        if (c == '}') return format_fail(f, "ValueError: Single '}' encountered in format string");
        size_t end = at + 1;
        bool bracket = false;
        for (int open = 1; end < to; end++) {
            char d = s->data[end];
            bracket = d == '[' ? true : d == ']' ? false : bracket;
            open += d == '{' ? 1 : d == '}' && !bracket ? -1 : 0;
            if (open == 0) break;
        }
        if (end >= to) return format_fail(f, "ValueError: expected '}' before end of string");
        if (!format_field(f, out, s, at + 1, end, nesting) || !jinja_step(f->vm, 1)) return false;
        at = end;
        plain = end + 1;
    }
    jinja_text_part(out, s, plain, to);
    return !f->vm->failed;
}

Jv jinja_str_format(Vm *vm, JinjaStr *format, const JinjaArgs *args, Jv mapping) {
    Format f = {.vm = vm, .args = args, .mapping = mapping, .markup = format->markup};
    JinjaText *out = jinja_str_flatten(vm, format) ? jinja_text_push(vm) : NULL;
    if (!out || !format_text(&f, out, format, 0, format->size, FORMAT_NESTING)) return jv_error();
    Jv text = jinja_text_finish(vm, out);
    return jv_bad(text) || !format->markup ? text : jv_str(jinja_str_markup(vm, text.s, true));
}
