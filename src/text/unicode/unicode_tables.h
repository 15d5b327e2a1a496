/* The generated character data of unicode_tables.c; unicode.h is the way to it. */
#pragma once
#include <stddef.h>
#include <stdint.h>

enum { UNICODE_BLOCK_BITS = 7, UNICODE_BLOCK = 1 << UNICODE_BLOCK_BITS };

typedef struct UnicodeRange {
    uint32_t first, last;
} UnicodeRange;
typedef struct UnicodeCase { /* every step-th character of first…last moves by delta */
    uint32_t first, last;
    int32_t step, delta;
} UnicodeCase;
typedef struct UnicodePair {
    uint32_t from, to;
} UnicodePair;
typedef struct UnicodeClass {
    uint32_t first, last;
    uint8_t combining;
} UnicodeClass;
typedef struct UnicodeExpansion { /* sorted by code; a full decomposition */
    uint32_t code;
    uint16_t offset, count;
} UnicodeExpansion;
typedef struct UnicodeComposition { /* sorted by first, then second */
    uint32_t first, second, composed;
} UnicodeComposition;
typedef struct UnicodeScript {
    const char *name; /* lower case */
    const UnicodeRange *ranges;
    size_t count;
} UnicodeScript;

extern const uint16_t unicode_block_index[];
extern const char unicode_blocks[][UNICODE_BLOCK];
extern const UnicodeRange unicode_word_extra[];
extern const size_t unicode_word_extra_count;
extern const UnicodeRange unicode_punctuation_flip[];
extern const size_t unicode_punctuation_flip_count;
extern const UnicodeCase unicode_lower_runs[];
extern const size_t unicode_lower_runs_count;
extern const UnicodePair unicode_fold_extra[];
extern const size_t unicode_fold_extra_count;
extern const UnicodeClass unicode_classes[];
extern const size_t unicode_classes_count;
extern const UnicodeExpansion unicode_canonical[];
extern const size_t unicode_canonical_count;
extern const UnicodeExpansion unicode_compatible[];
extern const size_t unicode_compatible_count;
extern const uint32_t unicode_expansion_pool[];
extern const UnicodeComposition unicode_compositions[];
extern const size_t unicode_compositions_count;
extern const UnicodeScript unicode_scripts[];
extern const size_t unicode_scripts_count;
