/* text/unicode/: character properties, from one generated table.
 *
 * Unicode 16, as the reference tokenizer library has it, pinned in one generated table (tools/make_unicode_tables.py).
 * The template language uses the same data, where Python uses that of its own version. This folder handles code points
 * only; texts and UTF-8 are up to the callers. Thread: any. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

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

/* The category of each code point, in two stages. */
enum { UNICODE_BLOCK_BITS = 7, UNICODE_BLOCK = 1 << UNICODE_BLOCK_BITS };
extern const uint16_t unicode_block_index[];
extern const char unicode_blocks[]; /* 'A' + category; the first block is that of ASCII */

/* code ≤ UNICODE_MAX, here and below */
static inline unsigned unicode_category(uint32_t code) {
    unsigned block = unicode_block_index[code >> UNICODE_BLOCK_BITS];
    return (unsigned)unicode_blocks[block << UNICODE_BLOCK_BITS | (code & (UNICODE_BLOCK - 1))] - 'A';
}
static inline uint32_t unicode_ascii_set(uint8_t byte) { return 1u << (unsigned)(unicode_blocks[byte] - 'A'); }
static inline uint32_t unicode_set(uint32_t code) { return 1u << unicode_category(code); }
static inline bool unicode_is_number(uint32_t code) { return unicode_set(code) & UNICODE_N; }

/* The property White_Space: \s of regular expressions, trim of Rust. */
static inline bool unicode_is_white_space(uint32_t code) { return unicode_set(code) & UNICODE_WHITE; }
/* White_Space and the separators U+001C…001F: isspace, strip and split of Python's str. */
static inline bool unicode_is_python_space(uint32_t code) {
    return unicode_is_white_space(code) || (code >= 0x1C && code <= 0x1F);
}

bool unicode_is_word(uint32_t code);           /* \w */
bool unicode_is_punctuation(uint32_t code);    /* as the Punctuation pre-tokenizer sees it */
bool unicode_is_alphabetic(uint32_t code);     /* the property Alphabetic */
bool unicode_is_lower(uint32_t code);          /* the property Lowercase */
bool unicode_is_upper(uint32_t code);          /* the property Uppercase */
bool unicode_is_case_ignorable(uint32_t code); /* the property Case_Ignorable */
bool unicode_is_digit(uint32_t code);          /* decimal digits, and superscripts and the like: str.isdigit */
int unicode_decimal(uint32_t code);            /* 0…9 of a decimal digit, else -1 */

/* Simple mapping, one character to one; U+0130, whose lower case has two characters, is unchanged. */
uint32_t unicode_lower(uint32_t code);
/* Full mappings without context: up to three characters. Return their number. */
enum { UNICODE_CASE_MAX = 3 };
int unicode_lower_full(uint32_t code, uint32_t out[UNICODE_CASE_MAX]);
int unicode_upper_full(uint32_t code, uint32_t out[UNICODE_CASE_MAX]);
int unicode_title_full(uint32_t code, uint32_t out[UNICODE_CASE_MAX]);
uint32_t unicode_fold(uint32_t code); /* equal for characters that differ only in case */
/* Characters with the same case folding as code, itself included. Returns their number. */
enum { UNICODE_VARIANTS_MAX = 8 };
size_t unicode_variants(uint32_t code, uint32_t out[UNICODE_VARIANTS_MAX]);

/* Names of properties: any case, and '_', '-' and ' ' do not count. `want` is in lower case without them. */
bool unicode_same_name(const char *name, size_t size, const char *want);
/* A number for the script of that name, or 0. */
unsigned unicode_script_named(const char *name, size_t size);
unsigned unicode_script(uint32_t code); /* that number; 0: a script without a name here */

/* Normal forms. The full decomposition, canonical or compatible, of up to UNICODE_EXPANSION_MAX characters; returns how
 * many, 1 with code itself when there is none. */
enum { UNICODE_EXPANSION_MAX = 18 };
size_t unicode_decompose(uint32_t code, bool compatible, uint32_t out[UNICODE_EXPANSION_MAX]);
uint32_t unicode_compose(uint32_t first, uint32_t second); /* 0: they do not compose */
uint8_t unicode_combining(uint32_t code);                  /* the combining class */

typedef struct UnicodeRange {
    uint32_t first, last;
} UnicodeRange;
bool unicode_in_ranges(uint32_t code, const UnicodeRange *ranges, size_t count); /* sorted and disjoint */
