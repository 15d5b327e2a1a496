/* The % operator of strings. Reference: Python's printf-style string formatting. */
#include <math.h>
#include <string.h>

#include "base/utf8.h"
#include "text/jinja/eval.h"
#include "text/jinja/number_format.h"

typedef struct Percent {
    Vm *vm;
    JinjaText *out;
    JinjaStr *format;
    size_t at;
    Jv values;
    size_t next, count; /* positional values */
    bool mapping, markup;
    bool left;
    NumberFormat spec;
} Percent;

static Jv next_value(Percent *p) {
    if (p->next >= p->count) return jinja_fail(p->vm, "TypeError: not enough arguments for format string");
    p->next++;
    return p->values.tag == JINJA_TUPLE ? p->values.list->items[p->next - 1] : p->values;
}

static char peek(const Percent *p) { return p->at < p->format->size ? p->format->data[p->at] : 0; }

static Jv mapped_value(Percent *p) {
    size_t from = ++p->at;
    int open = 1;
    while (p->at < p->format->size && open) {
        char c = p->format->data[p->at++];
        open += c == '(' ? 1 : c == ')' ? -1 : 0;
    }
    if (open) return jinja_fail(p->vm, "ValueError: incomplete format key");
    if (p->values.tag != JINJA_DICT) return jinja_fail(p->vm, "TypeError: format requires a mapping");
    JinjaStr *key = jinja_str_part(p->vm, p->format, from, p->at - 1);
    JinjaPair *pair = key ? jinja_dict_find(p->vm, p->values.dict, jv_str(key)) : NULL;
    if (pair) return pair->value;
    return jinja_fail(
        p->vm, "KeyError: '%.*s'", (int)(p->at - 1 - from > 80 ? 80 : p->at - 1 - from), p->format->data + from);
}

static bool read_number(Percent *p, int64_t *out) {
    if (peek(p) == '*') {
        p->at++;
        Jv value = next_value(p);
        if (!jv_bad(value) && !jv_integral(value)) jinja_fail(p->vm, "TypeError: * wants int");
        return !p->vm->failed && jinja_as_index(p->vm, value, out);
    }
    for (*out = 0; peek(p) >= '0' && peek(p) <= '9'; p->at++) {
        *out = *out * 10 + (peek(p) - '0');
        if (*out > INT32_MAX) {
            jinja_fail(p->vm, "ValueError: width too big");
            return false;
        }
    }
    return true;
}

static bool read_spec(Percent *p) {
    p->spec = (NumberFormat){.precision = -1, .sign = '-'};
    p->left = false;
    for (;; p->at++) {
        char c = peek(p);
        if (c == '-') p->left = true;
        if (c == '+') p->spec.sign = '+';
        if (c == ' ' && p->spec.sign != '+') p->spec.sign = ' ';
        if (c == '#') p->spec.alternate = true;
        if (c == '0') p->spec.zero = true;
        if (!c || !strchr("-+ #0", c)) break;
    }
    if (!read_number(p, &p->spec.width)) return false;
    if (p->spec.width < 0) {
        p->left = true;
        p->spec.width = p->spec.width == INT64_MIN ? INT64_MAX : -p->spec.width;
    }
    if (peek(p) == '.') {
        int64_t precision;
        p->at++;
        if (!read_number(p, &precision)) return false;
        p->spec.precision = precision < 0 ? 0 : precision > INT32_MAX ? INT32_MAX : (int)precision;
    }
    if (peek(p) && strchr("hlL", peek(p))) p->at++;
    if (p->left) p->spec.zero = false;
    return true;
}

static bool put_string(Percent *p, Jv text) {
    if (jv_bad(text) || !jinja_str_flatten(p->vm, text.s)) return false;
    JinjaStr *s = text.s;
    if (p->spec.precision >= 0 && (size_t)p->spec.precision < s->length) {
        s = jinja_str_part(p->vm, s, 0, jinja_str_offset(s, (size_t)p->spec.precision));
        if (!s) return false;
    }
    p->spec.fill = 0;
    p->spec.zero = false;
    return jinja_format_pad(p->vm, p->out, s, &p->spec, p->left ? '<' : '>');
}

static bool put_text(Percent *p, Jv value, char type) {
    Jv text;
    if (type == 's') {
        text = p->markup ? jinja_escape(p->vm, value) : jinja_to_str(p->vm, value);
    } else if (type == 'r') {
        text = jinja_to_repr(p->vm, value);
    } else {
        JinjaText *out = jinja_text_push(p->vm);
        text = out && jinja_write_ascii(p->vm, out, value) ? jinja_text_finish(p->vm, out) : jv_error();
    }
    if (p->markup && type != 's' && !jv_bad(text)) text = jinja_escape(p->vm, text);
    return put_string(p, text);
}

static bool put_integer(Percent *p, Jv value, char type) {
    bool decimal = type == 'd' || type == 'i' || type == 'u';
    if (value.tag == JINJA_FLOAT && decimal) {
        if (!isfinite(value.f)) {
            jinja_fail(p->vm, "OverflowError: cannot convert float infinity or NaN to integer");
            return false;
        }
        value = jinja_int_from_double(p->vm, value.f);
    }
    if (jv_bad(value)) return false;
    if (value.tag == JINJA_UNDEFINED || !jv_integral(value)) {
        jinja_fail(p->vm, "TypeError: %%%c format: %s is required, not %s", type,
            decimal ? "a real number" : "an integer", jv_type_name(value));
        return false;
    }
    p->spec.type = decimal ? 'd' : type;
    NumberFormat spec = p->spec;
    if (spec.precision > FORMAT_PRECISION_MAX) {
        jinja_raise(p->vm, ERROR_LIMIT, "a format asks for %d digits", spec.precision);
        return false;
    }
    if (spec.precision > 0) { /* at least so many digits, which is zero filling to a width of its own */
        Buffer digits = {0};
        bool ok = jinja_int_digits(p->vm, value, type == 'o' ? 8 : decimal ? 10 : 16, &digits);
        size_t signs = jinja_int_sign(value) < 0 || spec.sign != '-';
        size_t need = (size_t)spec.precision + signs + (spec.alternate && !decimal ? 2 : 0);
        buffer_free(&digits);
        if (!ok) return false;
        JinjaText *text = jinja_text_push(p->vm);
        NumberFormat inner = spec;
        inner.zero = true;
        inner.width = (int64_t)need;
        inner.precision = -1;
        if (!text || !jinja_format_integer(p->vm, text, value, &inner)) return false;
        Jv whole = jinja_text_finish(p->vm, text);
        if (jv_bad(whole)) return false;
        if (spec.zero && (int64_t)whole.s->length < spec.width) {
            inner.width = spec.width;
            return jinja_format_integer(p->vm, p->out, value, &inner);
        }
        spec.zero = false;
        return jinja_format_pad(p->vm, p->out, whole.s, &spec, p->left ? '<' : '>');
    }
    spec.align = p->left ? '<' : 0;
    return jinja_format_integer(p->vm, p->out, value, &spec);
}

static bool put_float(Percent *p, Jv value, char type) {
    double number;
    if (!jinja_as_double(p->vm, value, &number)) return false;
    p->spec.type = type;
    p->spec.align = p->left ? '<' : 0;
    return jinja_format_float(p->vm, p->out, number, &p->spec);
}

static bool put_char(Percent *p, Jv value) {
    if (jv_integral(value)) {
        if (value.tag == JINJA_BIG || jv_small(value) < 0 || jv_small(value) > 0x10FFFF ||
            (jv_small(value) >= 0xD800 && jv_small(value) < 0xE000)) {
            jinja_fail(p->vm, "OverflowError: %%c arg not in range(0x110000)");
            return false;
        }
        JinjaText *out = jinja_text_push(p->vm);
        if (!out) return false;
        jinja_text_code(out, (uint32_t)jv_small(value), ORIGIN_TEMPLATE);
        return put_string(p, jinja_text_finish(p->vm, out));
    }
    if (value.tag != JINJA_STR || value.s->length != 1) {
        jinja_fail(p->vm, "TypeError: %%c requires int or char");
        return false;
    }
    p->spec.precision = -1;
    return put_string(p, value);
}

static bool put_field(Percent *p) {
    Jv value = {.tag = JINJA_MISSING};
    if (peek(p) == '(') value = mapped_value(p);
    if (jv_bad(value) || !read_spec(p)) return false;
    char type = peek(p);
    if (!type) {
        jinja_fail(p->vm, "ValueError: incomplete format");
        return false;
    }
    p->at++;
    if (type == '%') {
        jinja_text_plain(p->out, "%");
        return true;
    }
    if (!strchr("sradiuoxXeEfFgGc", type)) {
        jinja_fail(p->vm, "ValueError: unsupported format character '%c'", type);
        return false;
    }
    if (!jv_given(value)) value = next_value(p);
    if (jv_bad(value)) return false;
    if (strchr("sra", type)) return put_text(p, value, type);
    if (strchr("diuoxX", type)) return put_integer(p, value, type);
    return type == 'c' ? put_char(p, value) : put_float(p, value, type);
}

Jv jinja_percent_format(Vm *vm, JinjaStr *format, Jv values) {
    if (!jinja_str_flatten(vm, format)) return jv_error();
    Percent p = {.vm = vm, .format = format, .values = values, .markup = format->markup};
    p.mapping = values.tag == JINJA_DICT || values.tag == JINJA_LIST || values.tag == JINJA_UNDEFINED ||
        values.tag == JINJA_RANGE;
    p.count = values.tag == JINJA_TUPLE ? values.list->count : 1;
    p.out = jinja_text_push(vm);
    if (!p.out) return jv_error();
    while (p.at < format->size) {
        const char *percent = memchr(format->data + p.at, '%', format->size - p.at);
        size_t stop = percent ? (size_t)(percent - format->data) : format->size;
        jinja_text_part(p.out, format, p.at, stop);
        p.at = stop + 1;
        if (percent && (!put_field(&p) || !jinja_step(vm, 1))) return jv_error();
    }
    if (p.next < p.count && !p.mapping) {
        return jinja_fail(vm, "TypeError: not all arguments converted during string formatting");
    }
    Jv text = jinja_text_finish(vm, p.out);
    return jv_bad(text) || !format->markup ? text : jv_str(jinja_str_markup(vm, text.s, true));
}
