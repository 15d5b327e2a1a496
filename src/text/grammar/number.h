/* Numbers of JSON as lexemes. Internal to text/grammar. */
#pragma once
#include "base/json.h"
#include "text/grammar/lex.h"

enum {
    DECIMAL_DIGITS_MAX = 400,
    NUMBER_WHOLE_DIGITS_MAX = 19, /* of 64-bit integers */
    NUMBER_FRACTION_DIGITS_MAX = 17,
    NUMBER_EXPONENT_DIGITS_MAX = 3,
};

/* ±0.d₁d₂d₃… · 10^point, without zeros at either end; no digits: zero. */
typedef struct Decimal {
    bool negative;
    int point;
    uint32_t count;
    char digits[DECIMAL_DIGITS_MAX];
} Decimal;
bool decimal_read(Budget *budget, Decimal *decimal, const Json *number); /* false: too many digits, or no memory */
int decimal_compare(const Decimal *a, const Decimal *b);

/* Constraints of a schema on a number. */
typedef struct NumberRange {
    bool integer;
    bool any_length; /* no limit on digits; false: the limits above, or the digits of a bound if it has more */
    bool has_low, has_high, low_open, high_open; /* open: the bound is excluded */
    Decimal low, high;
} NumberRange;

/* The numbers of a range; with a bound they have no exponent, so digits alone decide. */
Lex number_lex(Lexicon *x, const NumberRange *range);
/* Multiples of a number greater than 0. LEX_NONE: it has too many digits. */
Lex number_multiple(Lexicon *x, const Decimal *of);
