/* Regular expressions: sets of characters. */
#include <stdlib.h>

#include "text/regex/regex_ast.h"

static int compare_ranges(const void *a, const void *b) {
    const UnicodeRange *x = a, *y = b;
    return (x->first > y->first) - (x->first < y->first);
}

static bool set_has_exactly(const CharSet *set, uint32_t code) {
    if (unicode_set(code) & set->categories) return true;
    if (unicode_in_ranges(code, set->ranges, set->range_count)) return true;
    if (set->word && unicode_is_word(code)) return true;
    if (set->not_word && !unicode_is_word(code)) return true;
    if (set->alphabetic && unicode_is_alphabetic(code)) return true;
    if (set->lower && unicode_is_lower(code)) return true;
    if (set->upper && unicode_is_upper(code)) return true;
    if (set->script && unicode_script(code) == set->script) return true;
    for (const CharSet *child = set->child; child; child = child->sibling) {
        if (charset_has(child, code)) return true;
    }
    return false;
}

/* Whether the set has a character that differs from code only in case. */
static bool set_has_variant(const CharSet *set, uint32_t code) {
    uint32_t variants[UNICODE_VARIANTS_MAX];
    size_t count = unicode_variants(code, variants);
    for (size_t i = 0; i < count; i++) {
        if (set_has_exactly(set, variants[i])) return true;
    }
    return false;
}

static bool set_decide(const CharSet *set, uint32_t code) {
    bool found = set_has_exactly(set, code) || (set->fold && set_has_variant(set, code));
    if (found == set->negated) return false;
    return !set->both || charset_has(set->both, code);
}

bool charset_has(const CharSet *set, uint32_t code) {
    if (code < 128) return set->ascii[code >> 6] >> (code & 63) & 1;
    return set_decide(set, code);
}

CharSet *charset_finish(CharSet *set) {
    if (set->range_count > 1) {
        qsort(set->ranges, set->range_count, sizeof *set->ranges, compare_ranges);
        size_t kept = 1;
        for (size_t i = 1; i < set->range_count; i++) {
            UnicodeRange *last = &set->ranges[kept - 1];
            if (set->ranges[i].first <= last->last) {
                if (set->ranges[i].last > last->last) last->last = set->ranges[i].last;
            } else {
                set->ranges[kept++] = set->ranges[i];
            }
        }
        set->range_count = kept;
    }
    for (uint32_t code = 0; code < 128; code++) {
        if (set_decide(set, code)) set->ascii[code >> 6] |= 1ull << (code & 63);
    }
    return set;
}
