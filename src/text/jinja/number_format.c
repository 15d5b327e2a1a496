/* Numbers laid out by a format. Reference: CPython's formatter_unicode.c. */
#include "text/jinja/number_format.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

bool jinja_format_pad(Vm *vm, JinjaText *out, JinjaStr *text, const NumberFormat *format, char fallback) {
    int64_t room = format->width - (int64_t)text->length;
    if (room < 0) room = 0;
    if (room > FORMAT_WIDTH_MAX) {
        jinja_raise(vm, ERROR_LIMIT, "a format asks for a width of %lld", (long long)format->width);
        return false;
    }
    char align = format->align ? format->align : fallback;
    int64_t left = align == '<' ? 0 : align == '^' ? room / 2 : room;
    uint32_t fill = format->fill ? format->fill : ' ';
    for (int64_t i = 0; i < left; i++) jinja_text_code(out, fill, ORIGIN_TEMPLATE);
    jinja_text_string(out, text);
    for (int64_t i = left; i < room; i++) jinja_text_code(out, fill, ORIGIN_TEMPLATE);
    return !vm->failed;
}

static size_t grouped_size(size_t digits, size_t every) {
    return every && digits ? digits + (digits - 1) / every : digits;
}

/* sign, prefix, whole digits (grouped, zero-filled) and the tail, padded to the width */
static bool format_assemble(Vm *vm, JinjaText *out, const char *sign, const char *prefix, Slice digits, Slice tail,
    const NumberFormat *format) {
    size_t every = format->group == ',' ? 3 : !format->group ? 0 : strchr("boxX", format->type) && format->type ? 4 : 3;
    size_t fixed = strlen(sign) + strlen(prefix) + tail.size, zeros = 0;
    bool inside = format->zero || format->align == '=';
    bool zero_fill = inside && (format->zero || format->fill == '0') && (!format->align || format->align == '=');
    if (format->width > FORMAT_WIDTH_MAX) {
        jinja_raise(vm, ERROR_LIMIT, "a format asks for a width of %lld", (long long)format->width);
        return false;
    }
    while (zero_fill && fixed + grouped_size(digits.size + zeros, every) < (size_t)format->width) zeros++;
    JinjaText *text = jinja_text_push(vm);
    if (!text) return false;
    size_t total = digits.size + zeros, used = fixed + (total ? grouped_size(total, every) : 0);
    jinja_text_plain(text, sign);
    jinja_text_plain(text, prefix);
    if (format->align == '=' && !zero_fill && used < (size_t)format->width) {
        for (size_t i = used; i < (size_t)format->width; i++)
            jinja_text_code(text, format->fill ? format->fill : ' ', ORIGIN_TEMPLATE);
    }
    for (size_t i = 0; i < total; i++) {
        if (i && every && (total - i) % every == 0) jinja_text_bytes(text, &format->group, 1, ORIGIN_TEMPLATE);
        jinja_text_bytes(text, i < zeros ? "0" : digits.data + i - zeros, 1, ORIGIN_TEMPLATE);
    }
    jinja_text_bytes(text, tail.data, tail.size, ORIGIN_TEMPLATE);
    Jv whole = jinja_text_finish(vm, text);
    return !jv_bad(whole) && jinja_format_pad(vm, out, whole.s, format, '>');
}

bool jinja_format_integer(Vm *vm, JinjaText *out, Jv value, const NumberFormat *format) {
    int base = format->type == 'b' ? 2 : format->type == 'o' ? 8 : format->type == 'x' || format->type == 'X' ? 16 : 10;
    const char *prefix = !format->alternate || base == 10 ? ""
        : base == 2                                       ? "0b"
        : base == 8                                       ? "0o"
        : format->type == 'X'                             ? "0X"
                                                          : "0x";
    Buffer digits = {0};
    if (!jinja_int_digits(vm, value, base, &digits)) {
        buffer_free(&digits);
        return false;
    }
    for (size_t i = 0; format->type == 'X' && i < digits.size; i++) digits.data[i] = (char)toupper(digits.data[i]);
    bool negative = digits.data[0] == '-';
    const char *sign = negative ? "-" : format->sign == '+' ? "+" : format->sign == ' ' ? " " : "";
    bool ok = format_assemble(
        vm, out, sign, prefix, (Slice){digits.data + negative, digits.size - negative}, (Slice){0}, format);
    buffer_free(&digits);
    return ok;
}

/* No type but a precision: like g, with a digit after the point, and an exponent one digit earlier. */
static void float_plain(double value, int precision, Buffer *out) {
    char text[64];
    if (precision == 0) precision = 1;
    buffer_printf(out, "%.*e", precision - 1, value);
    if (out->failed) return;
    char *mark = memchr(out->data, 'e', out->size);
    int exponent = (int)strtol(mark + 1, NULL, 10);
    bool scientific = exponent < -4 || exponent + 1 > precision - 1;
    if (!scientific) {
        buffer_clear(out);
        buffer_printf(out, "%.*f", precision - 1 - exponent, value);
        mark = out->data ? out->data + out->size : NULL;
    }
    if (out->failed || !mark) return;
    snprintf(text, sizeof text, "%s", scientific ? mark : "");
    size_t size = (size_t)(mark - out->data);
    if (memchr(out->data, '.', size)) {
        while (out->data[size - 1] == '0') size--;
        if (out->data[size - 1] == '.') size--;
    }
    bool point = memchr(out->data, '.', size) != NULL;
    out->size = size;
    if (!scientific && !point) buffer_text(out, ".0");
    buffer_text(out, text);
}

bool jinja_format_float(Vm *vm, JinjaText *out, double value, const NumberFormat *format) {
    if (format->precision > FORMAT_PRECISION_MAX) {
        jinja_raise(vm, ERROR_LIMIT, "a format asks for %d digits", format->precision);
        return false;
    }
    Buffer text = {0};
    int precision = format->precision < 0 ? 6 : format->precision;
    char type = format->type == 'n' ? 'g' : format->type;
    bool negative = signbit(value) && !isnan(value), upper = type == 'E' || type == 'F' || type == 'G';
    double size = fabs(value);
    if (!isfinite(value)) {
        buffer_text(&text, isnan(value) ? (upper ? "NAN" : "nan") : upper ? "INF" : "inf");
        if (type == '%') buffer_text(&text, "%");
    } else if (!type && format->precision < 0) {
        char repr[48];
        jinja_float_repr(size, repr);
        buffer_text(&text, repr);
    } else if (!type) {
        float_plain(size, precision, &text);
    } else if (type == '%') {
        buffer_printf(&text, format->alternate ? "%#.*f%%" : "%.*f%%", precision, size * 100);
    } else {
        const char layout[] = {'%', '#', '.', '*', type, 0}, plain[] = {'%', '.', '*', type, 0};
        char fixed[FORMAT_PRECISION_MAX + 400];
        const char *chosen = format->alternate ? layout : plain;
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
        snprintf(fixed, sizeof fixed, chosen, precision, size);
#pragma GCC diagnostic pop
        buffer_text(&text, fixed);
    }
    bool ok = false;
    if (!text.failed && text.data) {
        size_t whole = 0;
        while (whole < text.size && isdigit((unsigned char)text.data[whole])) whole++;
        const char *sign = negative ? "-" : format->sign == '+' ? "+" : format->sign == ' ' ? " " : "";
        ok = format_assemble(
            vm, out, sign, "", (Slice){text.data, whole}, (Slice){text.data + whole, text.size - whole}, format);
    } else {
        jinja_raise(vm, ERROR_MEMORY, "no memory");
    }
    buffer_free(&text);
    return ok;
}
