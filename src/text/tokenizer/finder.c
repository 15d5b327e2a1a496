/* Finding patterns. */
#include "text/tokenizer/finder.h"

#include <string.h>

#include "base/utf8.h"
#include "text/unicode/unicode.h"

static RegexResult find_literal(Slice literal, Slice text, size_t from, size_t *start, size_t *end) {
    if (from >= text.size) return REGEX_NONE;
    const char *at = literal.size == 1 ? memchr(text.data + from, literal.data[0], text.size - from)
                                       : memmem(text.data + from, text.size - from, literal.data, literal.size);
    if (!at) return REGEX_NONE;
    *start = (size_t)(at - text.data);
    *end = *start + literal.size;
    return REGEX_FOUND;
}

static bool is_kind(FinderKind kind, uint32_t code) {
    switch (kind) {
    case FIND_NUMBER: return unicode_is_number(code);
    case FIND_PUNCTUATION: return unicode_is_punctuation(code);
    case FIND_SPACE: return unicode_is_white_space(code);
    default: return false;
    }
}

RegexResult finder_next(const Finder *finder, RegexWork *work, Slice text, size_t from, size_t *start, size_t *end) {
    switch (finder->kind) {
    case FIND_LITERAL: return find_literal(finder->literal, text, from, start, end);
    case FIND_FAST: return finder->fast->find(text.data, text.size, from, start, end) ? REGEX_FOUND : REGEX_NONE;
    case FIND_REGEX: return regex_search(finder->regex, work, text, from, start, end);
    default: break;
    }
    while (from < text.size) {
        uint32_t code;
        int length = utf8_decode(text.data + from, text.size - from, &code);
        size_t step = (size_t)(length < 0 ? -length : length);
        if (is_kind(finder->kind, code)) {
            *start = from;
            *end = from + step;
            return REGEX_FOUND;
        }
        from += step;
    }
    return REGEX_NONE;
}

void finder_free(Finder *finder) {
    regex_free(finder->regex);
    *finder = (Finder){0};
}

size_t character_before(Slice text, size_t at, uint32_t *code) {
    size_t start = at - 1;
    while (start > 0 && ((uint8_t)text.data[start] & 0xC0) == 0x80) start--;
    utf8_decode(text.data + start, at - start, code);
    return start;
}

size_t space_before(Slice text, size_t at) {
    uint32_t code;
    while (at > 0) {
        size_t start = character_before(text, at, &code);
        if (!unicode_is_white_space(code)) break;
        at = start;
    }
    return at;
}

size_t space_behind(Slice text, size_t at) {
    uint32_t code;
    while (at < text.size) {
        int length = utf8_decode(text.data + at, text.size - at, &code);
        if (length < 0 || !unicode_is_white_space(code)) break;
        at += (size_t)length;
    }
    return at;
}
