/* What characters are, as the reference tokenizer library sees them: categories and white space by Unicode 16,
 * normalisation data by its older tables (tools/make_unicode_tables.py). Threads: any. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "text/unicode/unicode_tables.h"

enum { UNICODE_MAX = 0x10FFFF };

typedef enum UnicodeCategory {
    CATEGORY_CN, /* not assigned */
    CATEGORY_LU,
    CATEGORY_LL,
    CATEGORY_LT,
    CATEGORY_LM,
    CATEGORY_LO,
    CATEGORY_MN,
    CATEGORY_MC,
    CATEGORY_ME,
    CATEGORY_ND,
    CATEGORY_NL,
    CATEGORY_NO,
    CATEGORY_PC,
    CATEGORY_PD,
    CATEGORY_PS,
    CATEGORY_PE,
    CATEGORY_PI,
    CATEGORY_PF,
    CATEGORY_PO,
    CATEGORY_SM,
    CATEGORY_SC,
    CATEGORY_SK,
    CATEGORY_SO,
    CATEGORY_ZS,
    CATEGORY_ZL,
    CATEGORY_ZP,
    CATEGORY_CC, /* control codes that are not white space */
    CATEGORY_CF,
    CATEGORY_CO,
    CATEGORY_CS,
    CATEGORY_CC_SPACE, /* U+0009…000D and U+0085 */
    CATEGORY_COUNT
} UnicodeCategory;

/* Sets of categories, one bit each. */
#define UNICODE_SET(category) (1u << (category))
#define UNICODE_SETS(first, last) ((2u << (last)) - (1u << (first)))
#define UNICODE_L UNICODE_SETS(CATEGORY_LU, CATEGORY_LO)
#define UNICODE_M UNICODE_SETS(CATEGORY_MN, CATEGORY_ME)
#define UNICODE_N UNICODE_SETS(CATEGORY_ND, CATEGORY_NO)
#define UNICODE_P UNICODE_SETS(CATEGORY_PC, CATEGORY_PO)
#define UNICODE_S UNICODE_SETS(CATEGORY_SM, CATEGORY_SO)
#define UNICODE_Z UNICODE_SETS(CATEGORY_ZS, CATEGORY_ZP)
#define UNICODE_WHITE (UNICODE_Z | UNICODE_SET(CATEGORY_CC_SPACE))

/* code ≤ UNICODE_MAX */
static inline unsigned unicode_category(uint32_t code) {
    unsigned block = unicode_block_index[code >> UNICODE_BLOCK_BITS];
    return (unsigned)unicode_blocks[block][code & (UNICODE_BLOCK - 1)] - 'A';
}
static inline uint32_t unicode_set(uint32_t code) { return 1u << unicode_category(code); }
static inline bool unicode_is_space(uint32_t code) { return unicode_set(code) & UNICODE_WHITE; }
static inline bool unicode_is_number(uint32_t code) { return unicode_set(code) & UNICODE_N; }

bool unicode_is_word(uint32_t code);        /* \w */
bool unicode_is_punctuation(uint32_t code); /* as the Punctuation pre-tokenizer sees it */
/* One character for one; U+0130, whose lower case is two characters, stays as it is. */
uint32_t unicode_lower(uint32_t code);
uint32_t unicode_fold(uint32_t code); /* equal for characters that differ only in case */
uint8_t unicode_combining(uint32_t code);
/* The script of that name (any case; '_', '-' and ' ' do not count), or NULL. */
const UnicodeScript *unicode_script(const char *name, size_t size);
bool unicode_in_ranges(uint32_t code, const UnicodeRange *ranges, size_t count); /* sorted ranges */
