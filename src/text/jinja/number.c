/* Numbers as Python has them: arithmetic across types, float repr, parsing, rounding. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/utf8.h"
#include "text/jinja/ast.h"
#include "text/jinja/value.h"

enum { NUMBER_TEXT_MAX = 4096 };

/* The shortest digits that read back equal, as repr() writes them. */
void jinja_float_repr(double value, char out[40]) {
    if (isnan(value) || isinf(value)) {
        snprintf(out, 40, "%s", isnan(value) ? "nan" : value < 0 ? "-inf" : "inf");
        return;
    }
    char text[40];
    for (int precision = 0; precision <= 16; precision++) {
        snprintf(text, sizeof text, "%.*e", precision, value);
        if (strtod(text, NULL) == value) break;
    }
    char *at = text, digits[24];
    int count = 0;
    bool negative = *at == '-';
    for (at += negative; *at && *at != 'e'; at++) {
        if (*at != '.') digits[count++] = *at;
    }
    int exponent = (int)strtol(at + 1, NULL, 10);
    while (count > 1 && digits[count - 1] == '0') count--;
    char *w = out;
    if (negative) *w++ = '-';
    if (exponent < -4 || exponent >= 16) {
        *w++ = digits[0];
        if (count > 1) *w++ = '.';
        for (int i = 1; i < count; i++) *w++ = digits[i];
        snprintf(w, 8, "e%c%02d", exponent < 0 ? '-' : '+', abs(exponent));
        return;
    }
    if (exponent < 0) {
        *w++ = '0';
        *w++ = '.';
        for (int i = -1; i > exponent; i--) *w++ = '0';
        for (int i = 0; i < count; i++) *w++ = digits[i];
    } else {
        for (int i = 0; i <= exponent || i < count; i++) {
            if (i == exponent + 1) *w++ = '.';
            *w++ = i < count ? digits[i] : '0';
        }
        if (count <= exponent + 1) {
            *w++ = '.';
            *w++ = '0';
        }
    }
    *w = '\0';
}

/* text without surrounding white space and with underscores between digits removed; false: not of that form. */
static bool number_clean(Slice text, char out[NUMBER_TEXT_MAX], size_t *size) {
    size_t used = 0;
    const char *at = text.data, *end = text.data + text.size;
    uint32_t code;
    while (at < end && utf8_decode(at, (size_t)(end - at), &code) > 0 && unicode_is_space(code)) {
        at += utf8_width((unsigned char)*at);
    }
    bool spaces = false;
    for (; at < end; at += utf8_width((unsigned char)*at)) {
        if (utf8_decode(at, (size_t)(end - at), &code) <= 0) return false;
        if (unicode_is_space(code)) {
            spaces = true;
            continue;
        }
        int decimal = code >= 0x80 ? unicode_decimal(code) : -1;
        if (spaces || (code >= 0x80 && decimal < 0) || used + 1 >= NUMBER_TEXT_MAX || code == 0) return false;
        out[used++] = decimal >= 0 ? (char)('0' + decimal) : (char)code;
    }
    out[used] = '\0';
    *size = used;
    return used > 0;
}

static bool is_alnum(char c) { return (c >= '0' && c <= '9') || ((c | 32) >= 'a' && (c | 32) <= 'z'); }

/* Removes underscores, each of which must stand between two digits (letters count as digits for hexadecimal). */
static bool number_join(char *text, size_t *size, bool letters) {
    size_t used = 0;
    for (size_t i = 0; i < *size; i++) {
        if (text[i] != '_') {
            text[used++] = text[i];
            continue;
        }
        bool before = i > 0 && is_alnum(text[i - 1]) && (letters || (text[i - 1] >= '0' && text[i - 1] <= '9'));
        bool after = i + 1 < *size && is_alnum(text[i + 1]) && (letters || (text[i + 1] >= '0' && text[i + 1] <= '9'));
        if (!before || !after) return false;
    }
    text[used] = '\0';
    *size = used;
    return true;
}

Jv jinja_float_parse(Vm *vm, Slice text, bool *ok) {
    char clean[NUMBER_TEXT_MAX];
    size_t size;
    *ok = false;
    if (!number_clean(text, clean, &size) || !number_join(clean, &size, false)) return jv_none();
    const char *at = clean + (clean[0] == '+' || clean[0] == '-');
    static const char *const words[] = {"inf", "infinity", "nan"};
    bool word = false;
    for (size_t i = 0; i < COUNT_OF(words); i++) {
        size_t j = 0;
        while (words[i][j] && (at[j] | 32) == words[i][j]) j++;
        if (!words[i][j] && !at[j]) word = true;
    }
    for (const char *c = at; *c && !word; c++) {
        bool sign = (*c == '+' || *c == '-') && c > at && (c[-1] | 32) == 'e';
        if (!(*c >= '0' && *c <= '9') && *c != '.' && (*c | 32) != 'e' && !sign) return jv_none();
    }
    if (!word && !(*at >= '0' && *at <= '9') && *at != '.') return jv_none();
    char *end;
    double value = strtod(clean, &end);
    if (end != clean + size) return jv_none();
    *ok = true;
    return jv_float(value);
}

Jv jinja_int_text(Vm *vm, Slice text, int base, bool *ok) {
    char clean[NUMBER_TEXT_MAX];
    size_t size;
    *ok = false;
    if (!number_clean(text, clean, &size)) return jv_none();
    char *at = clean;
    bool negative = *at == '-';
    if (*at == '-' || *at == '+') at++;
    char letter = at[0] == '0' ? (char)(at[1] | 32) : 0;
    int prefix = letter == 'x' ? 16 : letter == 'o' ? 8 : letter == 'b' ? 2 : 0;
    bool zero = base == 0;
    if (prefix && (base == 0 || base == prefix)) {
        base = prefix;
        at += 2;
        if (*at == '_') at++;
        zero = false;
    } else if (base == 0) {
        base = 10;
    }
    size = strlen(at);
    if (!number_join(at, &size, true) || size == 0) return jv_none();
    bool all_zero = true;
    for (size_t i = 0; i < size; i++) {
        int digit = at[i] >= '0' && at[i] <= '9' ? at[i] - '0' : is_alnum(at[i]) ? (at[i] | 32) - 'a' + 10 : 99;
        if (digit >= base) return jv_none();
        all_zero = all_zero && digit == 0;
    }
    if (zero && at[0] == '0' && !all_zero) return jv_none();
    *ok = true;
    Jv value = jinja_int_parse(vm, at, size, base);
    return negative && !jv_bad(value) ? jinja_int_negate(vm, value) : value;
}

static bool is_number(Jv v) { return jv_integral(v) || v.tag == JINJA_FLOAT; }

bool jinja_as_double(Vm *vm, Jv v, double *out) {
    if (v.tag == JINJA_UNDEFINED) {
        jv_undefined_error(vm, v);
        return false;
    }
    if (!is_number(v)) {
        jinja_fail(vm, "TypeError: must be real number, not %s", jv_type_name(v));
        return false;
    }
    *out = v.tag == JINJA_FLOAT ? v.f : jinja_int_double(v);
    if (v.tag != JINJA_FLOAT && isinf(*out)) {
        jinja_fail(vm, "OverflowError: int too large to convert to float");
        return false;
    }
    return true;
}

bool jinja_as_index(Vm *vm, Jv v, int64_t *out) {
    if (v.tag == JINJA_BIG) {
        *out = jinja_int_sign(v) < 0 ? INT64_MIN : INT64_MAX;
        return true;
    }
    if (v.tag == JINJA_UNDEFINED) {
        jv_undefined_error(vm, v);
        return false;
    }
    if (!jv_integral(v)) {
        jinja_fail(vm, "TypeError: '%s' object cannot be interpreted as an integer", jv_type_name(v));
        return false;
    }
    *out = jv_small(v);
    return true;
}

static const char *op_name(int op) {
    switch (op) {
    case OP_ADD: return "+";
    case OP_SUB: return "-";
    case OP_MUL: return "*";
    case OP_DIV: return "/";
    case OP_FLOORDIV: return "//";
    case OP_MOD: return "%";
    default: return "** or pow()";
    }
}

static Jv op_type_error(Vm *vm, int op, Jv a, Jv b) {
    if (a.tag == JINJA_UNDEFINED) return jv_undefined_error(vm, a);
    if (b.tag == JINJA_UNDEFINED) return jv_undefined_error(vm, b);
    if (op == OP_ADD && a.tag == JINJA_STR) {
        return jinja_fail(vm, "TypeError: can only concatenate str (not \"%s\") to str", jv_type_name(b));
    }
    return jinja_fail(vm, "TypeError: unsupported operand type(s) for %s: '%s' and '%s'", op_name(op), jv_type_name(a),
        jv_type_name(b));
}

static double float_floor_mod(double a, double b, double *floor_quotient) {
    double mod = fmod(a, b), quotient = (a - mod) / b;
    if (mod != 0) {
        if ((b < 0) != (mod < 0)) {
            mod += b;
            quotient -= 1;
        }
    } else {
        mod = copysign(0.0, b);
    }
    double floored;
    if (quotient != 0) {
        floored = floor(quotient);
        if (quotient - floored > 0.5) floored += 1;
    } else {
        floored = copysign(0.0, a / b);
    }
    *floor_quotient = floored;
    return mod;
}

static Jv float_binary(Vm *vm, int op, double a, double b) {
    double quotient;
    switch (op) {
    case OP_ADD: return jv_float(a + b);
    case OP_SUB: return jv_float(a - b);
    case OP_MUL: return jv_float(a * b);
    case OP_DIV: return b == 0 ? jinja_fail(vm, "ZeroDivisionError: float division by zero") : jv_float(a / b);
    case OP_MOD:
        return b == 0 ? jinja_fail(vm, "ZeroDivisionError: float modulo") : jv_float(float_floor_mod(a, b, &quotient));
    case OP_FLOORDIV:
        if (b == 0) return jinja_fail(vm, "ZeroDivisionError: float floor division by zero");
        float_floor_mod(a, b, &quotient);
        return jv_float(quotient);
    default: break;
    }
    if (a == 0 && b < 0) return jinja_fail(vm, "ZeroDivisionError: 0.0 cannot be raised to a negative power");
    if (a < 0 && isfinite(b) && floor(b) != b) return jinja_raise(vm, ERROR_UNSUPPORTED, "complex numbers");
    double power = pow(a, b);
    if (isinf(power) && isfinite(a) && isfinite(b))
        return jinja_fail(vm, "OverflowError: numerical result out of range");
    return jv_float(power);
}

static Jv int_binary(Vm *vm, int op, Jv a, Jv b) {
    Jv quotient, remainder;
    switch (op) {
    case OP_ADD: return jinja_int_add(vm, a, b);
    case OP_SUB: return jinja_int_sub(vm, a, b);
    case OP_MUL: return jinja_int_mul(vm, a, b);
    case OP_DIV: return jinja_int_divide(vm, a, b);
    case OP_FLOORDIV: return jinja_int_divmod(vm, a, b, &quotient, &remainder) ? quotient : jv_error();
    case OP_MOD: return jinja_int_divmod(vm, a, b, &quotient, &remainder) ? remainder : jv_error();
    default: break;
    }
    if (jinja_int_sign(b) < 0) {
        double x, y;
        if (!jinja_as_double(vm, a, &x) || !jinja_as_double(vm, b, &y)) return jv_error();
        return float_binary(vm, op, x, y);
    }
    return jinja_int_power(vm, a, b.tag == JINJA_BIG ? UINT64_MAX : (uint64_t)jv_small(b));
}

static Jv repeat_sequence(Vm *vm, Jv sequence, Jv times) {
    int64_t count;
    if (!jinja_as_index(vm, times, &count)) return jv_error();
    if (count < 0) count = 0;
    if (sequence.tag == JINJA_STR) {
        JinjaStr *s = sequence.s;
        if (s->size && count > JINJA_TEXT_MAX / (int64_t)s->size) {
            return jinja_raise(vm, ERROR_LIMIT, "a string grows beyond %d MiB", JINJA_TEXT_MAX >> 20);
        }
        if (s->size == 0) count = 0;
        JinjaText *text = jinja_str_flatten(vm, s) ? jinja_text_push(vm) : NULL;
        if (!text) return jv_error();
        for (int64_t i = 0; i < count && jinja_step(vm, 1); i++) jinja_text_string(text, s);
        Jv out = jinja_text_finish(vm, text);
        return jv_bad(out) ? out : jv_str(jinja_str_markup(vm, out.s, s->markup));
    }
    size_t size = sequence.list->count;
    if (size && count > JINJA_MEMORY_MAX / (int64_t)(size * sizeof(Jv))) {
        return jinja_raise(vm, ERROR_LIMIT, "a list grows too large");
    }
    Jv out = jinja_list_new(vm, size * (size_t)count);
    if (jv_bad(out) || !jinja_step(vm, size * (size_t)count / 8)) return jv_error();
    for (int64_t i = 0; i < count && size; i++)
        memcpy(out.list->items + (size_t)i * size, sequence.list->items, size * sizeof(Jv));
    out.list->count = size * (size_t)count;
    out.tag = sequence.tag;
    return out;
}

static Jv add_strings(Vm *vm, Jv a, Jv b);

static bool is_sequence(Jv v) { return v.tag == JINJA_STR || v.tag == JINJA_LIST || v.tag == JINJA_TUPLE; }

Jv jinja_binary(Vm *vm, int op, Jv a, Jv b) {
    if (jv_integral(a) && jv_integral(b)) return int_binary(vm, op, a, b);
    if (is_number(a) && is_number(b)) {
        double x, y;
        if (!jinja_as_double(vm, a, &x) || !jinja_as_double(vm, b, &y)) return jv_error();
        return float_binary(vm, op, x, y);
    }
    if (op == OP_ADD && a.tag == JINJA_STR && b.tag == JINJA_STR) return add_strings(vm, a, b);
    if (op == OP_MOD && a.tag == JINJA_STR) return jinja_percent_format(vm, a.s, b);
    if (op == OP_ADD && a.tag == b.tag && (a.tag == JINJA_LIST || a.tag == JINJA_TUPLE)) {
        size_t count = a.list->count + b.list->count;
        Jv out = jinja_list_new(vm, count);
        if (jv_bad(out) || !jinja_step(vm, count / 8)) return jv_error();
        if (a.list->count) memcpy(out.list->items, a.list->items, a.list->count * sizeof(Jv));
        if (b.list->count) memcpy(out.list->items + a.list->count, b.list->items, b.list->count * sizeof(Jv));
        out.list->count = count;
        out.tag = a.tag;
        return out;
    }
    if (op == OP_MUL && is_sequence(a) && jv_integral(b)) return repeat_sequence(vm, a, b);
    if (op == OP_MUL && is_sequence(b) && jv_integral(a)) return repeat_sequence(vm, b, a);
    return op_type_error(vm, op, a, b);
}

Jv jinja_escape(Vm *vm, Jv v);

static Jv add_strings(Vm *vm, Jv a, Jv b) {
    if (a.s->markup != b.s->markup) { /* Markup escapes what it is joined with */
        if (!a.s->markup) a = jinja_escape(vm, a);
        if (!jv_bad(a) && !b.s->markup) b = jinja_escape(vm, b);
        if (jv_bad(a) || jv_bad(b)) return jv_error();
    }
    return jv_str(jinja_str_concat(vm, a.s, b.s));
}

Jv jinja_unary(Vm *vm, int op, Jv a) {
    if (a.tag == JINJA_UNDEFINED) return jv_undefined_error(vm, a);
    if (a.tag == JINJA_FLOAT) return jv_float(op == OP_NEG ? -a.f : a.f);
    if (jv_integral(a)) return op == OP_NEG ? jinja_int_negate(vm, a) : a.tag == JINJA_BOOL ? jv_int(a.b) : a;
    return jinja_fail(vm, "TypeError: bad operand type for unary %s: '%s'", op == OP_NEG ? "-" : "+", jv_type_name(a));
}

/* round(): half to even on the exact decimal value, which is how printf rounds. */
static Jv round_double(Vm *vm, double value, int64_t digits) {
    if (!isfinite(value) || value == 0 || digits > 323) return jv_float(value);
    if (digits < -308) return jv_float(copysign(0.0, value));
    if (digits < 0) {
        char text[512];
        snprintf(text, sizeof text, "%.0f", fabs(value)); /* the fraction cannot make a tie unless it is 0 */
        size_t size = strlen(text), cut = (size_t)-digits;
        double unit = pow(10, (double)cut);
        if (cut > size) return jv_float(copysign(0.0, value));
        double whole = cut == size ? 0 : strtod((text[size - cut] = '\0', text), NULL);
        snprintf(text, sizeof text, "%.0f", fabs(value));
        double rest = fabs(value) - strtod(text, NULL) + strtod(text + size - cut, NULL);
        if (rest > unit / 2 || (rest == unit / 2 && fmod(whole, 2) != 0)) whole += 1;
        return jv_float(copysign(whole * unit, value));
    }
    char text[1100];
    snprintf(text, sizeof text, "%.*f", (int)digits, value);
    return jv_float(strtod(text, NULL));
}

Jv jinja_round(Vm *vm, Jv value, Jv precision) {
    int64_t digits;
    if (!jinja_as_index(vm, precision, &digits)) return jv_error();
    if (value.tag == JINJA_FLOAT) return round_double(vm, value.f, digits);
    if (value.tag == JINJA_UNDEFINED) return jv_undefined_error(vm, value);
    if (!jv_integral(value)) {
        return jinja_fail(vm, "TypeError: type %s doesn't define __round__ method", jv_type_name(value));
    }
    if (value.tag == JINJA_BOOL) value = jv_int(value.b);
    if (digits >= 0) return value;
    if (digits < -JINJA_BITS_MAX / 3) return jv_int(0);
    Jv unit = jinja_int_power(vm, jv_int(10), (uint64_t)-digits), quotient, rest;
    if (jv_bad(unit) || !jinja_int_divmod(vm, value, unit, &quotient, &rest)) return jv_error();
    Jv twice = jinja_int_add(vm, rest, rest), odd, half;
    if (jv_bad(twice) || !jinja_int_divmod(vm, quotient, jv_int(2), &half, &odd)) return jv_error();
    int order = jinja_int_compare(twice, unit);
    Jv down = jinja_int_sub(vm, value, rest);
    if (jv_bad(down) || order < 0 || (order == 0 && jinja_int_sign(odd) == 0)) return down;
    return jinja_int_add(vm, down, unit);
}
