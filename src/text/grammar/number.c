/* Numbers: ranges and multiples. */
#include "text/grammar/number.h"

#include <stdlib.h>
#include <string.h>

enum { MODULUS_MAX = 1 << 14 }; /* each remainder is a state */

/* --- Decimals ----------------------------------------------------------------------------------------------------- */

bool decimal_read(Budget *budget, Decimal *d, const Json *number) {
    Buffer text = {0};
    json_write(&text, number);
    *d = (Decimal){0};
    bool fraction = false, fits = !text.failed || budget_fail(budget, ERROR_MEMORY, "no memory for a grammar");
    size_t i = 0;
    if (text.size && text.data[0] == '-') {
        d->negative = true;
        i = 1;
    }
    for (; fits && i < text.size && text.data[i] != 'e' && text.data[i] != 'E'; i++) {
        if (text.data[i] == '.') {
            fraction = true;
            continue;
        }
        if (!d->count && text.data[i] == '0') {
            d->point -= fraction;
            continue;
        }
        fits = d->count < DECIMAL_DIGITS_MAX;
        if (fits) d->digits[d->count++] = text.data[i];
        d->point += !fraction;
    }
    if (fits && i < text.size) d->point += (int)strtol(text.data + i + 1, NULL, 10);
    buffer_free(&text);
    while (d->count && d->digits[d->count - 1] == '0') d->count--;
    if (!d->count) *d = (Decimal){0};
    return fits && d->point < DECIMAL_DIGITS_MAX && d->point > -DECIMAL_DIGITS_MAX;
}

static int compare_sizes(const Decimal *a, const Decimal *b) {
    if (!a->count || !b->count) return (a->count > 0) - (b->count > 0);
    if (a->point != b->point) return a->point > b->point ? 1 : -1;
    const uint32_t shorter = a->count < b->count ? a->count : b->count;
    const int order = memcmp(a->digits, b->digits, shorter);
    return order ? order : (a->count > b->count) - (a->count < b->count);
}

int decimal_compare(const Decimal *a, const Decimal *b) {
    if (a->negative != b->negative) return a->negative ? -1 : 1;
    return a->negative ? compare_sizes(b, a) : compare_sizes(a, b);
}

/* --- Ranges ------------------------------------------------------------------------------------------------------- */

static Lex digits(Lexicon *x, char first, char last) {
    return first <= last ? lex_range(x, (uint8_t)first, (uint8_t)last) : LEX_NONE;
}
static Lex any_digits_of(Lexicon *x, char first, char last, uint32_t min) {
    return lex_repeat(x, digits(x, first, last), min, LEX_FOREVER);
}
static Lex optional(Lexicon *x, Lex a) { return lex_or2(x, LEX_EMPTY, a); }
static Lex point_then(Lexicon *x, Lex a) { return lex_cat(x, lex_range(x, '.', '.'), a); }

/* The digit of d at a place: 0 is the first before the point of a number with `whole` digits before it. */
static char digit_at(const Decimal *d, int whole, int place) {
    const int index = place - (whole - d->point);
    return index >= 0 && index < (int)d->count ? d->digits[index] : '0';
}

/* Continuations after all digits of d: none (the number is d), or digits that keep it d or make it larger. */
static Lex behind_digits(Lexicon *x, bool fraction_begun, bool above, bool open, bool integer) {
    const Lex zeros = any_digits_of(x, '0', '0', 0), more = any_digits_of(x, '0', '9', 0);
    const Lex nonzero = lex_cat(x, zeros, lex_cat(x, digits(x, '1', '9'), more));
    if (!above && open) return LEX_NONE;
    if (fraction_begun) return !above ? zeros : open ? nonzero : more;
    Lex fraction = above && open ? nonzero : any_digits_of(x, '0', above ? '9' : '0', 1);
    fraction = integer ? LEX_NONE : point_then(x, fraction);
    return open ? fraction : optional(x, fraction);
}

/* Unsigned numbers with as many digits before the point as d, ≥ d (above) or ≤ d; open: without d. Built from last
 * to first digit: after equal digits follows a digit that decides, or the equal one. */
static Lex beside(Lexicon *x, const Decimal *d, bool above, bool open, bool integer) {
    const int whole = d->point > 0 ? d->point : 1, length = (int)d->count + whole - d->point;
    const int places = d->count && length > whole ? length : whole;
    Lex rest = behind_digits(x, places > whole, above, open, integer);
    for (int place = places - 1; place >= 0; place--) {
        const char digit = digit_at(d, whole, place), lowest = place == 0 && whole > 1 ? '1' : '0';
        const bool before_point = place < whole;
        Lex tail = any_digits_of(x, '0', '9', 0);
        if (before_point) {
            tail = lex_repeat(x, digits(x, '0', '9'), (uint32_t)(whole - 1 - place), (uint32_t)(whole - 1 - place));
            if (!integer) tail = lex_cat(x, tail, optional(x, point_then(x, any_digits_of(x, '0', '9', 1))));
        }
        const Lex other = above ? digits(x, (char)(digit + 1), '9') : digits(x, lowest, (char)(digit - 1));
        /* Where d continues after the point, a shorter number is less than d. */
        if (place == whole - 1 && places > whole) {
            rest = integer ? LEX_NONE : point_then(x, rest);
            if (!above) rest = optional(x, rest);
        } else if (!before_point && place < places - 1 && !above) {
            rest = optional(x, rest);
        }
        rest = lex_or2(x, lex_cat(x, other, tail), lex_cat(x, digits(x, digit, digit), rest));
    }
    return rest;
}

/* Unsigned numbers ≥ d, or ≤ d. */
static Lex half(Lexicon *x, const Decimal *d, bool above, bool open, bool integer) {
    const int whole = d->point > 0 ? d->point : 1;
    const Lex fraction = integer ? LEX_EMPTY : optional(x, point_then(x, any_digits_of(x, '0', '9', 1)));
    const Lex first = digits(x, '1', '9');
    Lex other = LEX_NONE;
    if (above) {
        other = lex_cat(x, first, any_digits_of(x, '0', '9', (uint32_t)whole));
    } else if (whole > 1) {
        other = lex_or2(
            x, digits(x, '0', '0'), lex_cat(x, first, lex_repeat(x, digits(x, '0', '9'), 0, (uint32_t)(whole - 2))));
    }
    return lex_or2(x, lex_cat(x, other, fraction), beside(x, d, above, open, integer));
}

/* Most digits before and after the point, which bound the number's length. Digits of a bound are always allowed. */
static void find_digits(const NumberRange *r, uint32_t *whole, uint32_t *fraction) {
    *whole = NUMBER_WHOLE_DIGITS_MAX;
    *fraction = NUMBER_FRACTION_DIGITS_MAX;
    for (int high = 0; high < 2; high++) {
        const Decimal *bound = high ? &r->high : &r->low;
        if (high ? !r->has_high : !r->has_low) continue;
        const int64_t behind = (int64_t)bound->count - bound->point;
        if (bound->point >= 0 && (uint32_t)bound->point >= *whole) *whole = (uint32_t)bound->point + 1;
        if (behind >= (int64_t)*fraction) *fraction = (uint32_t)behind + 1;
    }
    if (r->any_length) *whole = *fraction = LEX_FOREVER;
}

static Lex unsigned_number(Lexicon *x, const NumberRange *r) {
    uint32_t whole_max, fraction_max;
    find_digits(r, &whole_max, &fraction_max);
    const Lex more = lex_repeat(x, digits(x, '0', '9'), 0, whole_max == LEX_FOREVER ? whole_max : whole_max - 1);
    const Lex whole = lex_or2(x, digits(x, '0', '0'), lex_cat(x, digits(x, '1', '9'), more));
    if (r->integer) return whole;
    return lex_cat(x, whole, optional(x, point_then(x, lex_repeat(x, digits(x, '0', '9'), 1, fraction_max))));
}

/* The sizes of numbers of one sign: at least low, at most high (NULL: no bound). */
static Lex sizes(
    Lexicon *x, const NumberRange *r, const Decimal *low, bool low_open, const Decimal *high, bool high_open) {
    Lex parts[3] = {unsigned_number(x, r), LEX_ALL, LEX_ALL};
    if (low) parts[1] = half(x, low, true, low_open, r->integer);
    if (high) parts[2] = half(x, high, false, high_open, r->integer);
    return lex_and(x, parts, 3);
}

Lex number_lex(Lexicon *x, const NumberRange *r) {
    const Lex minus = lex_range(x, '-', '-');
    if (!r->has_low && !r->has_high) {
        Lex number = lex_cat(x, optional(x, minus), unsigned_number(x, r));
        if (r->integer) return number;
        ByteSet e = {{0}}, sign = {{0}};
        byteset_add(&e, 'e');
        byteset_add(&e, 'E');
        byteset_add(&sign, '+');
        byteset_add(&sign, '-');
        const Lex exponent = lex_cat(x, lex_bytes(x, &e),
            lex_cat(x, optional(x, lex_bytes(x, &sign)),
                lex_repeat(x, digits(x, '0', '9'), 1, r->any_length ? LEX_FOREVER : NUMBER_EXPONENT_DIGITS_MAX)));
        return lex_cat(x, number, optional(x, exponent));
    }
    Lex positive = LEX_NONE, negative = LEX_NONE;
    const bool low_positive = r->has_low && !r->low.negative, high_negative = r->has_high && r->high.negative;
    const bool high_zero = r->has_high && !r->high.count;
    if (!high_negative)
        positive = sizes(x, r, low_positive ? &r->low : NULL, r->low_open, r->has_high ? &r->high : NULL, r->high_open);
    if (!low_positive) {
        const Decimal zero = {0};
        const Decimal *least = high_negative ? &r->high : &zero;
        negative = sizes(x, r, least, high_negative ? r->high_open : !high_zero || r->high_open,
            r->has_low ? &r->low : NULL, r->low_open);
    }
    return lex_or2(x, positive, lex_cat(x, minus, negative));
}

Lex number_multiple(Lexicon *x, const Decimal *of) {
    /* digits · 10^(point − count): a whole number, or one with a scale. */
    int exponent = of->point - (int)of->count;
    uint64_t modulus = 0;
    for (uint32_t i = 0; i < of->count && modulus <= UINT32_MAX; i++)
        modulus = modulus * 10 + (uint64_t)(of->digits[i] - '0');
    for (; exponent > 0 && modulus <= UINT32_MAX; exponent--) modulus *= 10;
    if (!modulus || modulus > MODULUS_MAX) return LEX_NONE;
    return lex_multiple(x, (uint32_t)modulus, (uint32_t)-exponent, 0, false);
}
