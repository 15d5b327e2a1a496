/* Sets of characters. */
#include "text/grammar/chars.h"

#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"

void chars_add(Budget *budget, Chars *set, uint32_t first, uint32_t last) {
    set->data = budget_grow(budget, set->data, &set->capacity, (uint64_t)set->count + 1, sizeof *set->data);
    if (set->count < set->capacity) set->data[set->count++] = (UnicodeRange){first, last};
}

void chars_add_all(Budget *budget, Chars *set, const Chars *more) {
    for (uint32_t i = 0; i < more->count; i++) chars_add(budget, set, more->data[i].first, more->data[i].last);
}

void chars_free(Budget *budget, Chars *set) {
    budget_free(budget, set->data, set->capacity * sizeof *set->data);
    *set = (Chars){0};
}

static int compare_ranges(const void *a, const void *b) {
    const UnicodeRange *one = a, *other = b;
    return (one->first > other->first) - (one->first < other->first);
}

void chars_normalize(Chars *set) {
    if (!set->count) return;
    qsort(set->data, set->count, sizeof *set->data, compare_ranges);
    uint32_t last = 0;
    for (uint32_t i = 1; i < set->count; i++) {
        if (set->data[i].first <= set->data[last].last + 1) {
            if (set->data[i].last > set->data[last].last) set->data[last].last = set->data[i].last;
        } else {
            set->data[++last] = set->data[i];
        }
    }
    set->count = last + 1;
}

void chars_negate(Budget *budget, Chars *set) {
    Chars rest = {0};
    uint32_t next = 0;
    chars_normalize(set);
    for (uint32_t i = 0; i < set->count; i++) {
        if (set->data[i].first > next) chars_add(budget, &rest, next, set->data[i].first - 1);
        next = set->data[i].last + 1;
    }
    if (next <= UNICODE_MAX) chars_add(budget, &rest, next, UNICODE_MAX);
    chars_free(budget, set);
    *set = rest;
}

void chars_fold(Budget *budget, Chars *set) {
    const uint32_t count = set->count;
    for (uint32_t i = 0; i < count; i++) {
        for (uint32_t code = set->data[i].first; code <= set->data[i].last; code++) {
            uint32_t variants[UNICODE_VARIANTS_MAX];
            if (!budget_step(budget, 1)) return;
            const size_t found = unicode_variants(code, variants);
            for (size_t k = 0; k < found; k++)
                if (variants[k] != code) chars_add(budget, set, variants[k], variants[k]);
        }
    }
    chars_normalize(set);
}

void chars_add_categories(Budget *budget, Chars *set, uint32_t categories) {
    for (uint32_t code = 0, first = 0; code <= UNICODE_MAX + 1u; code++) {
        const bool in = code <= UNICODE_MAX && unicode_set(code) & categories;
        if (!in && first < code) chars_add(budget, set, first, code - 1);
        if (!in) first = code + 1;
    }
}

/* --- Spellings ---------------------------------------------------------------------------------------------------- */

/* Pushes lexemes of the UTF-8 encodings of first…last onto the lexicon's work stack (lex_push). Splits the range, as
 * RE2's compiler does, until each piece is a sequence of byte ranges: all its characters have the same number of bytes,
 * and every combination of bytes from these ranges encodes one of them. */
static void push_utf8(Lexicon *x, uint32_t first, uint32_t last) {
    static const uint32_t ends[] = {0x7F, 0x7FF, 0xD7FF, 0xDFFF, 0xFFFF};
    for (size_t i = 0; i < COUNT_OF(ends); i++) {
        if (first > ends[i] || last <= ends[i]) continue;
        push_utf8(x, first, ends[i]);
        push_utf8(x, ends[i] + 1, last);
        return;
    }
    if (first >= 0xD800 && first <= 0xDFFF) return; /* surrogates have no spelling */
    const int continuations = last <= 0x7F ? 0 : last <= 0x7FF ? 1 : last <= 0xFFFF ? 2 : 3;
    for (int i = 1; i <= continuations; i++) {
        const uint32_t mask = (1u << (6 * i)) - 1;
        if ((first & ~mask) == (last & ~mask)) continue;
        const bool low = first & mask;
        if (!low && (last & mask) == mask) continue;
        const uint32_t cut = low ? first | mask : (last & ~mask) - 1;
        push_utf8(x, first, cut);
        push_utf8(x, cut + 1, last);
        return;
    }
    char from[4], to[4];
    const int size = utf8_encode(first, from);
    utf8_encode(last, to);
    Lex all = LEX_EMPTY;
    for (int i = size; i-- > 0;) all = lex_cat(x, lex_range(x, (uint8_t)from[i], (uint8_t)to[i]), all);
    lex_push(x, all);
}

static void push_json_escape(Lexicon *x, uint32_t code) {
    static const char shorts[] = "\"\"\\\\\bb\ff\nn\rr\tt"; /* the character and its letter */
    static const char hex[] = "0123456789abcdef";
    char text[6] = "\\u00";
    for (size_t i = 0; i + 1 < sizeof shorts; i += 2) {
        if ((uint8_t)shorts[i] != code) continue;
        text[1] = shorts[i + 1];
        lex_push(x, lex_literal(x, (Slice){text, 2}));
        return;
    }
    text[4] = hex[code >> 4 & 15];
    text[5] = hex[code & 15];
    lex_push(x, lex_literal(x, (Slice){text, 6}));
}

static bool json_escapes(uint32_t code) { return code < 0x20 || code == '"' || code == '\\'; }

Lex chars_lex(Lexicon *x, const Chars *set, Spelling spelling) {
    const uint32_t start = x->work.count;
    for (uint32_t i = 0; i < set->count && !x->budget->failed; i++) {
        uint32_t first = set->data[i].first;
        const uint32_t last = set->data[i].last;
        for (uint32_t code = first; spelling == SPELLING_JSON && code <= last && code <= '\\'; code++) {
            if (!json_escapes(code)) continue;
            if (code > first) push_utf8(x, first, code - 1);
            push_json_escape(x, code);
            first = code + 1;
        }
        if (first <= last) push_utf8(x, first, last);
    }
    return lex_combine(x, start, LEX_IS_OR);
}

Lex chars_any(Lexicon *x, Spelling spelling) {
    UnicodeRange all = {0, UNICODE_MAX};
    return chars_lex(x, &(Chars){&all, 1, 1}, spelling);
}

Lex chars_any_json(Lexicon *x) {
    UnicodeRange ranges[] = {{0x20, '!'}, {'#', '['}, {']', UNICODE_MAX}};
    ByteSet hex = {{0}}, shorts = {{0}}, not_d = {{0}}, high = {{0}}, low = {{0}}, before_d8 = {{0}};
    for (const char *c = "0123456789abcdefABCDEF"; *c; c++) {
        byteset_add(&hex, (uint8_t)*c);
        if ((*c | 0x20) != 'd') byteset_add(&not_d, (uint8_t)*c);
    }
    for (const char *c = "\"\\/bfnrt"; *c; c++) byteset_add(&shorts, (uint8_t)*c);
    for (const char *c = "89abAB"; *c; c++) byteset_add(&high, (uint8_t)*c);
    for (const char *c = "cdefCDEF"; *c; c++) byteset_add(&low, (uint8_t)*c);
    for (const char *c = "01234567"; *c; c++) byteset_add(&before_d8, (uint8_t)*c);
    const Lex h = lex_bytes(x, &hex), hh = lex_cat(x, h, h),
              d = lex_or2(x, lex_range(x, 'd', 'd'), lex_range(x, 'D', 'D'));
    const Lex single = lex_or2(x, lex_cat(x, lex_bytes(x, &not_d), lex_cat(x, h, hh)),
        lex_cat(x, d, lex_cat(x, lex_bytes(x, &before_d8), hh)));
    const Lex second = lex_cat(x, lex_literal(x, SLICE("\\u")), lex_cat(x, d, lex_cat(x, lex_bytes(x, &low), hh)));
    const Lex pair = lex_cat(x, d, lex_cat(x, lex_bytes(x, &high), lex_cat(x, hh, second)));
    const Lex unicode = lex_cat(x, lex_range(x, 'u', 'u'), lex_or2(x, single, pair));
    const Lex escape = lex_cat(x, lex_range(x, '\\', '\\'), lex_or2(x, lex_bytes(x, &shorts), unicode));
    return lex_or2(x, chars_lex(x, &(Chars){ranges, 3, 3}, SPELLING_UTF8), escape);
}
