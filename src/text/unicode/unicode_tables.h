/* The generated character data of unicode_tables.c, packed; unicode.h is the way to it, and unicode.c alone reads it.
 * Spans: sorted words first << 8 | value; the value holds from first up to the next span. Arrays of code points are
 * written as strings, which end with a NUL that is no entry. */
#pragma once
#include <stddef.h>
#include <stdint.h>

typedef struct UnicodeCase { /* every step-th character of first…last moves by delta */
    uint32_t first, last;
    int32_t step, delta;
} UnicodeCase;
typedef struct UnicodeExpansion { /* expansions of `first` and the count - 1 characters after it: size code points each,
                                     from offset on */
    uint32_t first;
    uint16_t count, size, offset;
} UnicodeExpansion;

/* Where a property differs from what the category says. */
enum {
    UNICODE_WORD_FLIP = 1,        /* \w: letters, marks, Nd and Pc, but */
    UNICODE_PUNCTUATION_FLIP = 2, /* the Punctuation pre-tokenizer (older data, and ASCII symbols): P, but */
    UNICODE_LOWER_FLIP = 4,       /* Lowercase: Ll, but */
    UNICODE_UPPER_FLIP = 8,       /* Uppercase: Lu, but */
    UNICODE_IGNORABLE_FLIP = 16,  /* Case_Ignorable: Mn, Me, Cf, Lm and Sk, but */
    UNICODE_DIGIT_FLIP = 32,      /* Numeric_Type Digit or Decimal: Nd, but */
    UNICODE_ALPHABETIC_FLIP = 64, /* Alphabetic: letters and Nl, but */
};
extern const uint32_t unicode_flags[];
extern const size_t unicode_flags_count;
extern const char *const unicode_scripts[]; /* names in lower case */
extern const size_t unicode_scripts_count;
extern const uint32_t unicode_script_spans[]; /* 1 + place in unicode_scripts */
extern const size_t unicode_script_spans_count;

extern const UnicodeCase unicode_lower_runs[];
extern const size_t unicode_lower_runs_count;
extern const UnicodeCase unicode_upper_runs[];
extern const size_t unicode_upper_runs_count;
extern const uint32_t unicode_case_special[]; /* by sevens: character, upper case and title case of three each */
extern const size_t unicode_case_special_count;
extern const uint32_t unicode_fold_extra[]; /* pairs: from, to */
extern const size_t unicode_fold_extra_count;

extern const uint32_t unicode_combining_spans[];
extern const size_t unicode_combining_spans_count;
extern const UnicodeExpansion unicode_canonical[];
extern const size_t unicode_canonical_count;
extern const UnicodeExpansion unicode_compatible[];
extern const size_t unicode_compatible_count;
extern const uint32_t unicode_expansion_pool[];
extern const uint32_t unicode_compositions[]; /* triples, sorted: first, second, composed */
extern const size_t unicode_compositions_count;
