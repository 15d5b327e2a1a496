/* Numbers as Python has them, but for integers beyond 64 bits, which nothing is calculated with. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <strings.h>

#include "base/utf8.h"
#include "text/jinja/value.h"
#include "text/unicode/unicode.h"

enum { NUMBER_TEXT_MAX = 4096 };

/* The shortest digits that read back equal, as repr() writes them. */
void jinja_float_repr(double value, char out[40]) {
    if (isnan(value) || isinf(value)) {
        snprintf(out, 40, "%s", isnan(value) ? "nan" : value < 0 ? "-inf" : "inf");
        return;
    }
    int precision = -1;
    do {
        snprintf(out, 40, "%.*e", ++precision, value);
    } while (precision < 16 && strtod(out, NULL) != value);
    int exponent = (int)strtol(strchr(out, 'e') + 1, NULL, 10);
    if (exponent < -4 || exponent >= 16) return;
    snprintf(out, 40, "%.*f", precision > exponent ? precision - exponent : 1, value);
}

static bool is_digit(char c) { return c >= '0' && c <= '9'; }

/* Reading numbers */

/* text without white space around it and underscores between digits, digits of other scripts as ASCII; false: not of
 * that form. */
static bool number_clean(Slice text, char out[NUMBER_TEXT_MAX], size_t *size) {
    bool ended = false, underscore = false;
    *size = 0;
    for (size_t at = 0, width; at < text.size; at += width) {
        uint32_t code;
        int decoded = utf8_decode(text.data + at, text.size - at, &code);
        if (decoded <= 0) return false;
        width = (size_t)decoded;
        if (unicode_is_python_space(code)) {
            ended = *size > 0;
            continue;
        }
        int decimal = unicode_decimal(code);
        bool after_digit = *size && is_digit(out[*size - 1]);
        if (ended || *size + 1 >= NUMBER_TEXT_MAX || (underscore && decimal < 0)) return false;
        underscore = code == '_';
        if (underscore ? !after_digit : decimal < 0 && (code == 0 || code >= 0x80)) return false;
        if (!underscore) out[(*size)++] = (char)(decimal >= 0 ? '0' + decimal : (int)code);
    }
    out[*size] = '\0';
    return *size > 0 && !underscore;
}

Jv jinja_float_parse(Vm *vm, Slice text, bool *ok) {
    char clean[NUMBER_TEXT_MAX];
    size_t size;
    *ok = false;
    if (!number_clean(text, clean, &size)) return jv_none();
    const char *unsigned_text = clean + (clean[0] == '+' || clean[0] == '-');
    bool word = !strcasecmp(unsigned_text, "inf") || !strcasecmp(unsigned_text, "infinity") ||
        !strcasecmp(unsigned_text, "nan");
    if (!word && strspn(clean, "+-.0123456789eE") != size) return jv_none(); /* strtod knows hexadecimal ones, too */
    char *end;
    double value = strtod(clean, &end);
    if (end != clean + size) return jv_none();
    *ok = true;
    return jv_float(value);
}

Jv jinja_int_parse(Vm *vm, Slice text, bool *ok) {
    char clean[NUMBER_TEXT_MAX], *end;
    size_t size;
    *ok = false;
    if (!number_clean(text, clean, &size)) return jv_none();
    char *digits = clean + (*clean == '-' || *clean == '+');
    if (!*digits || strspn(digits, "0123456789") != strlen(digits)) return jv_none();
    *ok = true;
    errno = 0;
    int64_t value = strtoll(clean, &end, 10);
    if (!errno) return jv_int(value);
    digits += strspn(digits, "0");
    if (*clean == '-') *--digits = '-';
    JinjaStr *s = jinja_str_copy(vm, digits, strlen(digits), ORIGIN_TEMPLATE);
    return s ? (Jv){.tag = JINJA_LONG, .s = s} : jv_error();
}

/* Arithmetic */

Jv jinja_int_from_double(Vm *vm, double value) {
    return fabs(value) < 0x1p63 ? jv_int((int64_t)value) : jinja_overflow(vm);
}

static double float_floor_mod(double a, double b, double *floor_quotient) {
    double mod = fmod(a, b), whole = rint((a - mod) / b);
    if (mod != 0 && (b < 0) != (mod < 0)) {
        mod += b;
        whole -= 1;
    }
    *floor_quotient = whole != 0 ? whole : copysign(0.0, a / b);
    return mod != 0 ? mod : copysign(0.0, b);
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

static Jv int_power(Vm *vm, int64_t base, int64_t exponent) {
    if (exponent < 0) return float_binary(vm, OP_POW, (double)base, (double)exponent);
    int64_t power = 1;
    for (bool overflow = false; exponent > 0; exponent >>= 1) {
        if ((exponent & 1) && (overflow || __builtin_mul_overflow(power, base, &power))) return jinja_overflow(vm);
        overflow = overflow || __builtin_mul_overflow(base, base, &base);
    }
    return jv_int(power);
}

static Jv int_binary(Vm *vm, int op, int64_t a, int64_t b) {
    int64_t result;
    switch (op) {
    case OP_ADD: return __builtin_add_overflow(a, b, &result) ? jinja_overflow(vm) : jv_int(result);
    case OP_SUB: return __builtin_sub_overflow(a, b, &result) ? jinja_overflow(vm) : jv_int(result);
    case OP_MUL: return __builtin_mul_overflow(a, b, &result) ? jinja_overflow(vm) : jv_int(result);
    case OP_POW: return int_power(vm, a, b);
    default: break;
    }
    if (b == 0) {
        return jinja_fail(
            vm, "ZeroDivisionError: %s", op == OP_DIV ? "division by zero" : "integer division or modulo by zero");
    }
    if (op == OP_DIV) return jv_float(b != -1 && a % b == 0 ? (double)(a / b) : (double)a / (double)b);
    if (b == -1) return op == OP_MOD ? jv_int(0) : int_binary(vm, OP_SUB, 0, a);
    bool down = a % b != 0 && (a < 0) != (b < 0); /* floor */
    return jv_int(op == OP_MOD ? a % b + (down ? b : 0) : a / b - down);
}

Jv jinja_number_binary(Vm *vm, int op, Jv a, Jv b) {
    double x, y;
    if (jv_integral(a) && jv_integral(b)) return int_binary(vm, op, jv_small(a), jv_small(b));
    if (!jinja_as_double(vm, a, &x) || !jinja_as_double(vm, b, &y)) return jv_error();
    return float_binary(vm, op, x, y);
}
