/* Look-ups in the generated character data. */
#include "text/unicode/unicode.h"

#include <string.h>

#include "text/unicode/unicode_tables.h"

/* UAX 15, conjoining Jamo behaviour. */
enum {
    HANGUL_BASE = 0xAC00,
    HANGUL_L = 0x1100,
    HANGUL_V = 0x1161,
    HANGUL_T = 0x11A7,
    HANGUL_V_COUNT = 21,
    HANGUL_T_COUNT = 28,
    HANGUL_COUNT = 11172,
    HANGUL_L_COUNT = 19,
};

/* The place of the first of `count` sorted rows whose first word is greater than code. */
static size_t rows_above(const void *rows, size_t count, size_t row_size, uint32_t code) {
    size_t low = 0, high = count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        uint32_t first;
        memcpy(&first, (const char *)rows + middle * row_size, sizeof first);
        if (first <= code) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

static unsigned span_value(const uint32_t *spans, size_t count, uint32_t code) {
    return spans[rows_above(spans, count, sizeof *spans, code << 8 | 0xFF) - 1] & 0xFF; /* the first span begins at 0 */
}

bool unicode_in_ranges(uint32_t code, const UnicodeRange *ranges, size_t count) {
    size_t above = rows_above(ranges, count, sizeof *ranges, code);
    return above > 0 && code <= ranges[above - 1].last;
}

/* --- Properties ------------------------------------------------------------------------------------------------ */

static bool has_property(uint32_t code, uint32_t categories, unsigned flip) {
    bool flipped = span_value(unicode_flags, unicode_flags_count, code) & flip;
    return flipped != ((unicode_set(code) & categories) != 0);
}

bool unicode_is_word(uint32_t code) {
    const uint32_t plain = UNICODE_L | UNICODE_M | UNICODE_SET(CATEGORY_ND) | UNICODE_SET(CATEGORY_PC);
    return code < 0x80 ? unicode_set(code) & plain : has_property(code, plain, UNICODE_WORD_FLIP);
}

bool unicode_is_punctuation(uint32_t code) {
    return code < 0x80 ? unicode_set(code) & (UNICODE_P | UNICODE_S)
                       : has_property(code, UNICODE_P, UNICODE_PUNCTUATION_FLIP);
}

bool unicode_is_lower(uint32_t code) { return has_property(code, UNICODE_SET(CATEGORY_LL), UNICODE_LOWER_FLIP); }
bool unicode_is_upper(uint32_t code) { return has_property(code, UNICODE_SET(CATEGORY_LU), UNICODE_UPPER_FLIP); }
bool unicode_is_alphabetic(uint32_t code) {
    return has_property(code, UNICODE_L | UNICODE_SET(CATEGORY_NL), UNICODE_ALPHABETIC_FLIP);
}
bool unicode_is_digit(uint32_t code) { return has_property(code, UNICODE_SET(CATEGORY_ND), UNICODE_DIGIT_FLIP); }
bool unicode_is_case_ignorable(uint32_t code) {
    const uint32_t plain = UNICODE_SET(CATEGORY_MN) | UNICODE_SET(CATEGORY_ME) | UNICODE_SET(CATEGORY_CF) |
        UNICODE_SET(CATEGORY_LM) | UNICODE_SET(CATEGORY_SK);
    return has_property(code, plain, UNICODE_IGNORABLE_FLIP);
}

/* Decimal digits come in tens from zero to nine (the generator checks it). */
int unicode_decimal(uint32_t code) {
    if (unicode_category(code) != CATEGORY_ND) return -1;
    uint32_t zero = code;
    while (unicode_category(zero - 1) == CATEGORY_ND) zero--;
    return (int)((code - zero) % 10);
}

unsigned unicode_script(uint32_t code) { return span_value(unicode_script_spans, unicode_script_spans_count, code); }

bool unicode_same_name(const char *name, size_t size, const char *want) {
    for (size_t i = 0; i < size; i++) {
        char c = name[i];
        if (c == '_' || c == '-' || c == ' ') continue;
        if (c >= 'A' && c <= 'Z') c = (char)(c + 32);
        if (c == '\0' || *want++ != c) return false;
    }
    return *want == '\0';
}

unsigned unicode_script_named(const char *name, size_t size) {
    for (size_t i = 0; i < unicode_scripts_count; i++) {
        if (unicode_same_name(name, size, unicode_scripts[i])) return (unsigned)i + 1;
    }
    return 0;
}

/* --- Case ------------------------------------------------------------------------------------------------------ */

static uint32_t map_case(const UnicodeCase *runs, size_t count, uint32_t code) {
    size_t above = rows_above(runs, count, sizeof *runs, code);
    if (above == 0) return code;
    const UnicodeCase *run = &runs[above - 1];
    return code > run->last || (code - run->first) % (uint32_t)run->step ? code : code + (uint32_t)run->delta;
}

uint32_t unicode_lower(uint32_t code) {
    if (code < 0x80) return code >= 'A' && code <= 'Z' ? code + 32 : code;
    return map_case(unicode_lower_runs, unicode_lower_runs_count, code);
}

int unicode_lower_full(uint32_t code, uint32_t out[UNICODE_CASE_MAX]) {
    out[0] = code == 0x130 ? 'i' : unicode_lower(code);
    out[1] = 0x307;
    return code == 0x130 ? 2 : 1;
}

/* place: of the mapping in a row of unicode_case_special */
static int map_case_full(uint32_t code, size_t place, uint32_t out[UNICODE_CASE_MAX]) {
    enum { ROW = 1 + 2 * UNICODE_CASE_MAX };
    size_t above = rows_above(unicode_case_special, unicode_case_special_count, ROW * sizeof *out, code);
    const uint32_t *row = above ? unicode_case_special + (above - 1) * ROW : NULL;
    if (!row || row[0] != code) {
        out[0] = map_case(unicode_upper_runs, unicode_upper_runs_count, code);
        return 1;
    }
    memcpy(out, row + place, UNICODE_CASE_MAX * sizeof *out);
    return out[2] ? 3 : out[1] ? 2 : 1;
}

int unicode_upper_full(uint32_t code, uint32_t out[UNICODE_CASE_MAX]) { return map_case_full(code, 1, out); }
int unicode_title_full(uint32_t code, uint32_t out[UNICODE_CASE_MAX]) {
    return map_case_full(code, 1 + UNICODE_CASE_MAX, out);
}

uint32_t unicode_fold(uint32_t code) {
    uint32_t lower = unicode_lower(code);
    if (lower < 0x80) return lower;
    for (size_t i = 0; i < unicode_fold_extra_count; i++) {
        if (unicode_fold_extra[2 * i] == lower) return unicode_fold_extra[2 * i + 1];
    }
    return lower;
}

/* There are few, so that a scan over the runs will do. */
size_t unicode_variants(uint32_t code, uint32_t out[UNICODE_VARIANTS_MAX]) {
    uint32_t fold = unicode_fold(code);
    size_t count = 0;
    out[count++] = fold;
    for (size_t i = 0; i < unicode_lower_runs_count; i++) {
        const UnicodeCase *run = &unicode_lower_runs[i];
        uint32_t upper = fold - (uint32_t)run->delta;
        if (upper >= run->first && upper <= run->last && unicode_lower(upper) == fold) out[count++] = upper;
    }
    for (size_t i = 0; i < unicode_fold_extra_count; i++) {
        if (unicode_fold_extra[2 * i + 1] == fold) out[count++] = unicode_fold_extra[2 * i];
    }
    return count;
}

/* --- Normal forms ---------------------------------------------------------------------------------------------- */

uint8_t unicode_combining(uint32_t code) {
    return code < 0x300 ? 0 : (uint8_t)span_value(unicode_combining_spans, unicode_combining_spans_count, code);
}

static size_t expand(const UnicodeExpansion *table, size_t count, uint32_t code, uint32_t out[UNICODE_EXPANSION_MAX]) {
    size_t above = rows_above(table, count, sizeof *table, code);
    if (above == 0) return 0;
    const UnicodeExpansion *run = &table[above - 1];
    if (code - run->first >= run->count) return 0;
    const uint32_t *from = unicode_expansion_pool + run->offset + (code - run->first) * run->size;
    memcpy(out, from, run->size * sizeof *out);
    return run->size;
}

size_t unicode_decompose(uint32_t code, bool compatible, uint32_t out[UNICODE_EXPANSION_MAX]) {
    uint32_t syllable = code - HANGUL_BASE;
    if (syllable < HANGUL_COUNT) {
        uint32_t trail = syllable % HANGUL_T_COUNT;
        out[0] = HANGUL_L + syllable / (HANGUL_V_COUNT * HANGUL_T_COUNT);
        out[1] = HANGUL_V + syllable / HANGUL_T_COUNT % HANGUL_V_COUNT;
        out[2] = HANGUL_T + trail;
        return trail ? 3 : 2;
    }
    size_t size = 0;
    if (compatible && code >= 0xA0) size = expand(unicode_compatible, unicode_compatible_count, code, out);
    if (!size && code >= 0xA0) size = expand(unicode_canonical, unicode_canonical_count, code, out);
    if (size) return size;
    out[0] = code;
    return 1;
}

uint32_t unicode_compose(uint32_t first, uint32_t second) {
    if (first - HANGUL_L < HANGUL_L_COUNT && second - HANGUL_V < HANGUL_V_COUNT) {
        return HANGUL_BASE + ((first - HANGUL_L) * HANGUL_V_COUNT + (second - HANGUL_V)) * HANGUL_T_COUNT;
    }
    uint32_t syllable = first - HANGUL_BASE;
    if (syllable < HANGUL_COUNT && syllable % HANGUL_T_COUNT == 0 && second - HANGUL_T - 1 < HANGUL_T_COUNT - 1) {
        return first + (second - HANGUL_T);
    }
    /* The pairs of one first character are few and stand before the first pair of a greater one. */
    enum { ROW = 3 };
    size_t at = rows_above(unicode_compositions, unicode_compositions_count, ROW * sizeof first, first);
    for (; at > 0; at--) {
        const uint32_t *row = unicode_compositions + (at - 1) * ROW;
        if (row[0] != first || row[1] < second) return 0;
        if (row[1] == second) return row[2];
    }
    return 0;
}
