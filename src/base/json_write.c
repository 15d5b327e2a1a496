/* The JSON writer. */
#include "base/json.h"

#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"

enum {
    DIGITS_MAX = 17,         /* decimal digits that tell every double from its neighbours */
    FIXED_EXPONENT_MIN = -5, /* smaller and larger exponents are written with e */
    FIXED_EXPONENT_MAX = 16,
};

/* Length of the bytes at text that are written as they are. */
static size_t plain_size(const char *text, size_t size) {
    size_t i = 0;
    while (i < size && (uint8_t)text[i] >= 0x20 && text[i] != '"' && text[i] != '\\') {
        uint32_t code;
        int length = (uint8_t)text[i] < 0x80 ? 1 : utf8_decode(text + i, size - i, &code);
        if (length < 0) break;
        i += (size_t)length;
    }
    return i;
}

static void write_escape(Buffer *out, char c) {
    switch (c) {
    case '"': buffer_text(out, "\\\""); break;
    case '\\': buffer_text(out, "\\\\"); break;
    case '\b': buffer_text(out, "\\b"); break;
    case '\f': buffer_text(out, "\\f"); break;
    case '\n': buffer_text(out, "\\n"); break;
    case '\r': buffer_text(out, "\\r"); break;
    case '\t': buffer_text(out, "\\t"); break;
    default: buffer_printf(out, "\\u%04x", c); break;
    }
}

void json_write_string(Buffer *out, Slice text) {
    buffer_byte(out, '"');
    for (size_t i = 0; i < text.size;) {
        size_t plain = plain_size(text.data + i, text.size - i);
        buffer_append(out, text.data + i, plain);
        i += plain;
        if (i == text.size) break;
        if ((uint8_t)text.data[i] < 0x80) {
            write_escape(out, text.data[i++]);
            continue;
        }
        uint32_t code;
        int length = utf8_decode(text.data + i, text.size - i, &code); /* negative: plain_size stopped here */
        buffer_text(out, "\xEF\xBF\xBD");
        i += (size_t)-length;
    }
    buffer_byte(out, '"');
}

void json_write_integer(Buffer *out, int64_t value) { buffer_printf(out, "%" PRId64, value); }

/* Decimal digits without point, and the exponent of the first: 1.25 is "125" and 0. */
typedef struct Decimal {
    char digits[DIGITS_MAX + 1];
    int count, exponent;
} Decimal;

static Decimal decimal_of(double value, int count) { /* value > 0, correctly rounded */
    char text[32];
    snprintf(text, sizeof text, "%.*e", count - 1, value);
    Decimal decimal = {.count = count};
    char *at = text;
    for (int i = 0; i < count; at++) {
        if (*at >= '0' && *at <= '9') decimal.digits[i++] = *at;
    }
    decimal.exponent = (int)strtol(at + 1, NULL, 10);
    return decimal;
}

static double decimal_value(const Decimal *decimal) {
    char text[48];
    snprintf(text, sizeof text, "%se%d", decimal->digits, decimal->exponent - decimal->count + 1);
    return strtod(text, NULL);
}

static Decimal decimal_above(Decimal decimal) { /* one more in the last digit */
    int i = decimal.count - 1;
    while (i >= 0 && decimal.digits[i] == '9') decimal.digits[i--] = '0';
    if (i >= 0) {
        decimal.digits[i]++;
    } else {
        decimal.digits[0] = '1';
        decimal.exponent++;
    }
    return decimal;
}

/* The fewest digits that read back as value. Up to 15 digits survive a trip through a normal double, so there 15 digits
 * without their final zeros are the shortest or too short. Below a power of two the doubles lie twice as dense as
 * above: there the decimal next above may read back where the nearest, below, does not. */
static Decimal decimal_shortest(double value) {
    int two;
    bool power = frexp(value, &two) == 0.5;
    Decimal decimal = {0};
    for (int count = power || value < DBL_MIN ? 1 : DBL_DIG; count <= DIGITS_MAX; count++) {
        decimal = decimal_of(value, count);
        if (decimal_value(&decimal) == value) break;
        if (!power) continue;
        Decimal above = decimal_above(decimal);
        if (decimal_value(&above) != value) continue;
        decimal = above;
        break;
    }
    while (decimal.count > 1 && decimal.digits[decimal.count - 1] == '0') decimal.digits[--decimal.count] = '\0';
    return decimal;
}

static void write_decimal(Buffer *out, const Decimal *decimal) {
    int count = decimal->count, exponent = decimal->exponent;
    const char *digits = decimal->digits;
    if (exponent < FIXED_EXPONENT_MIN || exponent > FIXED_EXPONENT_MAX) {
        buffer_byte(out, digits[0]);
        if (count > 1) buffer_printf(out, ".%s", digits + 1);
        buffer_printf(out, "e%d", exponent);
    } else if (exponent < 0) {
        buffer_printf(out, "0.%.*s%s", -exponent - 1, "0000000000", digits);
    } else if (count <= exponent + 1) {
        buffer_printf(out, "%s%.*s", digits, exponent + 1 - count, "00000000000000000000");
    } else {
        buffer_printf(out, "%.*s.%s", exponent + 1, digits, digits + exponent + 1);
    }
}

void json_write_number(Buffer *out, double value) {
    if (!isfinite(value)) {
        buffer_text(out, "null");
        return;
    }
    if (signbit(value)) buffer_byte(out, '-');
    value = fabs(value);
    if (value < 0x1p53 && value == floor(value)) {
        buffer_printf(out, "%.0f", value);
        return;
    }
    Decimal decimal = decimal_shortest(value);
    write_decimal(out, &decimal);
}

/* A number that was read as real reads back as real. */
static void write_real(Buffer *out, double value) {
    size_t start = out->size;
    json_write_number(out, value);
    if (!out->failed && !strpbrk(out->data + start, ".en")) buffer_text(out, ".0");
}

static void write_scalar(Buffer *out, const Json *node) {
    switch ((JsonType)node->type) {
    case JSON_BOOL: buffer_text(out, node->boolean ? "true" : "false"); break;
    case JSON_INTEGER: json_write_integer(out, node->integer); break;
    case JSON_LONG: buffer_append(out, node->string, node->size); break;
    case JSON_REAL: write_real(out, node->real); break;
    case JSON_STRING: json_write_string(out, json_slice(node)); break;
    case JSON_NULL:
    case JSON_ARRAY:
    case JSON_OBJECT: buffer_text(out, "null"); break;
    }
}

void json_write(Buffer *out, const Json *node) {
    if (node->type == JSON_ARRAY) {
        buffer_byte(out, '[');
        for (JSON_EACH(child, node)) {
            if (child != json_first(node)) buffer_byte(out, ',');
            json_write(out, child);
        }
        buffer_byte(out, ']');
    } else if (node->type == JSON_OBJECT) {
        buffer_byte(out, '{');
        for (JSON_EACH_PAIR(key, value, node)) {
            if (key != json_first(node)) buffer_byte(out, ',');
            json_write_string(out, json_slice(key));
            buffer_byte(out, ':');
            json_write(out, value);
        }
        buffer_byte(out, '}');
    } else {
        write_scalar(out, node);
    }
}
