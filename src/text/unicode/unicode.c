/* Look-ups in the generated character data. */
#include "text/unicode/unicode.h"

#include <string.h>

bool unicode_in_ranges(uint32_t code, const UnicodeRange *ranges, size_t count) {
    size_t low = 0, high = count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (code > ranges[middle].last) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low < count && code >= ranges[low].first;
}

bool unicode_is_word(uint32_t code) {
    const uint32_t plain = UNICODE_L | UNICODE_M | UNICODE_SET(CATEGORY_ND) | UNICODE_SET(CATEGORY_PC);
    if (unicode_set(code) & plain) return true;
    return code >= 0x80 && unicode_in_ranges(code, unicode_word_extra, unicode_word_extra_count);
}

bool unicode_is_punctuation(uint32_t code) {
    bool category = unicode_set(code) & UNICODE_P;
    return category != unicode_in_ranges(code, unicode_punctuation_flip, unicode_punctuation_flip_count);
}

uint32_t unicode_lower(uint32_t code) {
    if (code < 0x80) return code >= 'A' && code <= 'Z' ? code + 32 : code;
    size_t low = 0, high = unicode_lower_runs_count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (code > unicode_lower_runs[middle].last) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    if (low == unicode_lower_runs_count || code < unicode_lower_runs[low].first) return code;
    const UnicodeCase *run = &unicode_lower_runs[low];
    return (code - run->first) % (uint32_t)run->step ? code : code + (uint32_t)run->delta;
}

uint32_t unicode_fold(uint32_t code) {
    uint32_t lower = unicode_lower(code);
    if (lower < 0x80) return lower;
    for (size_t i = 0; i < unicode_fold_extra_count; i++) {
        if (unicode_fold_extra[i].from == lower) return unicode_fold_extra[i].to;
    }
    return lower;
}

uint8_t unicode_combining(uint32_t code) {
    if (code < 0x300) return 0;
    size_t low = 0, high = unicode_classes_count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (code > unicode_classes[middle].last) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low < unicode_classes_count && code >= unicode_classes[low].first ? unicode_classes[low].combining : 0;
}

const UnicodeScript *unicode_script(const char *name, size_t size) {
    for (size_t i = 0; i < unicode_scripts_count; i++) {
        const char *want = unicode_scripts[i].name;
        size_t at = 0;
        for (size_t k = 0; k < size; k++) {
            char c = name[k];
            if (c == '_' || c == '-' || c == ' ') continue;
            if (c >= 'A' && c <= 'Z') c = (char)(c + 32);
            if (want[at] == '\0' || want[at] != c) {
                at = SIZE_MAX;
                break;
            }
            at++;
        }
        if (at != SIZE_MAX && want[at] == '\0') return &unicode_scripts[i];
    }
    return NULL;
}
