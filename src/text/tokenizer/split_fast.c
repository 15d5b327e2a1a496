/* The patterns of GPT-2, Llama 3 (cl100k), Qwen 2 and 3.5, GPT-4o (o200k), Mistral (tekken) and DeepSeek V3, by hand.
 * In the comments: L, N, M, P, S are the Unicode categories, ws is white space. */
#include "text/tokenizer/split_fast.h"

#include <string.h>

#include "text/tokenizer/split_ascii.h"
#include "text/unicode/unicode.h"

/* Under a sanitizer the compiler chooses: everything inlined and instrumented takes it as long as fifty other files. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define INLINE static inline
#else
#define INLINE ALWAYS_INLINE
#endif

enum {
    SET_UPPER = UNICODE_SET(CATEGORY_LU) | UNICODE_SET(CATEGORY_LT) | UNICODE_SET(CATEGORY_LM) |
        UNICODE_SET(CATEGORY_LO) | UNICODE_M,
    SET_LOWER = UNICODE_SET(CATEGORY_LL) | UNICODE_SET(CATEGORY_LM) | UNICODE_SET(CATEGORY_LO) | UNICODE_M,
    SET_BOTH = SET_UPPER & SET_LOWER,
    SET_LETTER_MARK = UNICODE_L | UNICODE_M,
};

typedef struct Text {
    const uint8_t *data;
    size_t size;
} Text;

/* --- Eight bytes at a time -------------------------------------------------------------------------------------- */

/* Past the bytes of first…last. */
INLINE size_t skip_bytes(Text text, size_t at, uint8_t fold, uint8_t first, uint8_t last) {
    uint64_t eight;
    for (; at + sizeof eight <= text.size; at += sizeof eight) {
        memcpy(&eight, text.data + at, sizeof eight);
        const uint64_t outside = bytes_outside(eight, fold, first, last);
        if (outside) return at + (size_t)__builtin_ctzll(outside) / 8;
    }
    while (at < text.size && (uint8_t)((text.data[at] | fold) - first) <= last - first) at++;
    return at;
}

INLINE size_t skip_ascii_letters(Text text, size_t at) { return skip_bytes(text, at, 0x20, 'a', 'z'); }
INLINE bool is_ascii_letter(const Text text, size_t at) {
    return at < text.size && (uint8_t)((text.data[at] | 0x20) - 'a') < 26;
}
/* Whether what ends at `at` is not followed by a character beyond ASCII. */
INLINE bool ascii_follows(const Text text, size_t at) { return at == text.size || text.data[at] < 0x80; }

/* --- Characters ------------------------------------------------------------------------------------------------- */

/* The category bit of the character at `at` and its length. At the end: 0 and 0. */
INLINE uint32_t set_at(Text text, size_t at, size_t *length) {
    if (at >= text.size) {
        *length = 0;
        return 0;
    }
    const uint8_t *p = text.data + at;
    if (p[0] < 0x80) {
        *length = 1;
        return unicode_ascii_set(p[0]);
    }
    uint32_t code;
    if (p[0] < 0xE0) {
        code = (p[0] & 0x1Fu) << 6 | (p[1] & 0x3Fu);
        *length = 2;
    } else if (p[0] < 0xF0) {
        code = (p[0] & 0x0Fu) << 12 | (p[1] & 0x3Fu) << 6 | (p[2] & 0x3Fu);
        *length = 3;
    } else {
        code = (p[0] & 0x07u) << 18 | (p[1] & 0x3Fu) << 12 | (p[2] & 0x3Fu) << 6 | (p[3] & 0x3Fu);
        *length = 4;
    }
    return unicode_set(code);
}

/* Past ideographs from U+4E00 on, all letters without case, up to those that begin with the bytes `last`; each has
 * three bytes. */
enum { IDEOGRAPHS_FIRST = 0xE4B8, IDEOGRAPHS_LAST = 0xE9BF /* …U+9FFF */, IDEOGRAPHS_DEEPSEEK = 0xE9BD /* …U+9F7F */ };
INLINE size_t skip_ideographs(Text text, size_t at, int last) {
    while (at + 3 <= text.size &&
        (uint16_t)((text.data[at] << 8 | text.data[at + 1]) - IDEOGRAPHS_FIRST) <= last - IDEOGRAPHS_FIRST)
        at += 3;
    return at;
}

/* Past the characters of the set. */
INLINE size_t skip_set(Text text, size_t at, uint32_t set) {
    size_t length;
    if (set & UNICODE_SET(CATEGORY_LO)) at = skip_ideographs(text, at, IDEOGRAPHS_LAST);
    while (set_at(text, at, &length) & set) at += length;
    return at;
}

INLINE bool is_newline(const Text text, size_t at) {
    return at < text.size && (text.data[at] == '\n' || text.data[at] == '\r');
}

INLINE size_t skip_newlines(Text text, size_t at, bool slash) {
    while (is_newline(text, at) || (slash && at < text.size && text.data[at] == '/')) at++;
    return at;
}

/* At an apostrophe: past 's 't 're 've 'm 'll 'd, or where it stands when none follows. any_case: U+017F is an s too.
 */
INLINE size_t skip_contraction(Text text, size_t at, bool any_case) {
    size_t left = text.size - at;
    if (left < 2 || text.data[at] != '\'') return at;
    uint8_t fold = any_case ? 0x20 : 0;
    uint8_t first = text.data[at + 1] | fold, second = left > 2 ? text.data[at + 2] | fold : 0;
    if (first == 's' || first == 't' || first == 'm' || first == 'd') return at + 2;
    if ((first == 'r' || first == 'v') && second == 'e') return at + 3;
    if (first == 'l' && second == 'l') return at + 3;
    if (any_case && left > 2 && text.data[at + 1] == 0xC5 && text.data[at + 2] == 0xBF) return at + 3;
    return at;
}

/* \s*[\r\n]+|\s+(?!\S)|\s+ at white space (newlines: whether the first branch is there). */
INLINE size_t skip_space(Text text, size_t at, bool newlines) {
    size_t end = at, last = at, after_newline = 0, length;
    for (;;) {
        const size_t blanks = skip_bytes(text, end, 0, ' ', ' ');
        if (blanks > end) last = blanks - 1;
        end = blanks;
        if (!(set_at(text, end, &length) & UNICODE_WHITE)) break;
        last = end;
        end += length;
        if (is_newline(text, last)) after_newline = end;
    }
    if (newlines && after_newline) return after_newline;
    return end == text.size || last == at ? end : last;
}

/* ` ?[^\s…]+` for characters that are neither white space nor in `words`; 0: no match. */
INLINE size_t skip_other(Text text, size_t at, uint32_t words) {
    size_t start = at + (text.data[at] == ' ');
    size_t end = skip_set(text, start, ~(words | UNICODE_WHITE));
    return end == start ? 0 : end;
}

/* Whether an ASCII character may stand in front of a word: it is neither letter nor digit nor line end. */
INLINE bool may_lead(uint8_t byte) {
    return byte < 0x80 && byte != '\n' && byte != '\r' && !(unicode_ascii_set(byte) & (UNICODE_L | UNICODE_N));
}

/* Contraction | [^\r\n L N]? letters+ | N{1,digits} | ` ?`other+[\r\n]* | white space */
INLINE size_t match_cl100k(Text text, size_t at, uint32_t letters, int digits) {
    size_t length, next_length, end;
    if (text.data[at] == '\'') {
        end = skip_contraction(text, at, true);
        if (end > at) return end;
    }
    const size_t word = at + may_lead(text.data[at]);
    if (is_ascii_letter(text, word)) {
        end = skip_ascii_letters(text, word + 1);
        return ascii_follows(text, end) ? end : skip_set(text, end, letters);
    }
    uint32_t set = set_at(text, at, &length);
    if (set & letters) return skip_set(text, at + length, letters);
    bool newline = is_newline(text, at);
    if (!newline && !(set & (UNICODE_L | UNICODE_N)) && set_at(text, at + length, &next_length) & letters) {
        return skip_set(text, at + length + next_length, letters);
    }
    if (set & UNICODE_N) {
        end = at;
        for (int i = 0; i < digits && set_at(text, end, &length) & UNICODE_N; i++) end += length;
        return end;
    }
    end = skip_other(text, at, letters | UNICODE_N);
    if (end) return skip_newlines(text, end, false);
    return skip_space(text, at, true);
}

INLINE bool find_llama3(const char *text, size_t size, size_t from, size_t *start, size_t *end) {
    if (from >= size) return false;
    *start = from;
    *end = match_cl100k((Text){(const uint8_t *)text, size}, from, UNICODE_L, 3);
    return true;
}

INLINE bool find_qwen2(const char *text, size_t size, size_t from, size_t *start, size_t *end) {
    if (from >= size) return false;
    *start = from;
    *end = match_cl100k((Text){(const uint8_t *)text, size}, from, UNICODE_L, 1);
    return true;
}

INLINE bool find_qwen35(const char *text, size_t size, size_t from, size_t *start, size_t *end) {
    if (from >= size) return false;
    *start = from;
    *end = match_cl100k((Text){(const uint8_t *)text, size}, from, SET_LETTER_MARK, 1);
    return true;
}

INLINE bool find_gpt2(const char *data, size_t size, size_t from, size_t *start, size_t *end) {
    if (from >= size) return false;
    const Text text = {(const uint8_t *)data, size};
    *start = from;
    *end = skip_contraction(text, from, false);
    if (*end > from) return true;
    size_t word = from + (text.data[from] == ' '), length;
    uint32_t set = set_at(text, word, &length);
    if (set & UNICODE_L) {
        *end = skip_ascii_letters(text, word + length);
        if (!ascii_follows(text, *end)) *end = skip_set(text, *end, UNICODE_L);
    } else if (set & UNICODE_N) {
        *end = skip_set(text, word + length, UNICODE_N);
    } else if (set & ~UNICODE_WHITE) {
        *end = skip_set(text, word + length, ~(UNICODE_L | UNICODE_N | UNICODE_WHITE));
    } else {
        *end = skip_space(text, from, false);
    }
    return true;
}

/* upper* lower+ at `at`, greedy: if no lower follows the upper run, the match ends after the run's last character that
 * counts as both. 0: no match. */
INLINE size_t match_upper_lower(Text text, size_t at) {
    size_t end = at, length, both_end = 0;
    uint32_t set;
    while ((set = set_at(text, end, &length)) & SET_UPPER) {
        end += length;
        if (set & SET_BOTH) both_end = end;
    }
    if (set & SET_LOWER) return skip_set(text, end + length, SET_LOWER);
    return both_end;
}

/* upper+ lower* */
INLINE size_t match_uppers_lower(Text text, size_t at) {
    size_t end = skip_set(text, at, SET_UPPER);
    return end == at ? 0 : skip_set(text, end, SET_LOWER);
}

/* The two word branches of o200k; 0: neither matches. */
INLINE size_t match_cased_word(Text text, size_t at) {
    size_t length, next_length, end;
    const size_t letters = at + may_lead(text.data[at]);
    if (is_ascii_letter(text, letters)) {
        const size_t lower = skip_bytes(text, letters, 0, 'A', 'Z');
        end = skip_bytes(text, lower, 0, 'a', 'z');
        if (ascii_follows(text, end)) return end;
    }
    uint32_t set = set_at(text, at, &length);
    bool prefix = !(set & (UNICODE_L | UNICODE_N)) && !is_newline(text, at);
    prefix = prefix && set_at(text, at + length, &next_length) & SET_LETTER_MARK;
    bool word = set & SET_LETTER_MARK;
    if (!prefix && !word) return 0;
    end = prefix ? match_upper_lower(text, at + length) : 0;
    if (!end && word) end = match_upper_lower(text, at);
    if (!end && prefix) end = match_uppers_lower(text, at + length);
    if (!end && word) end = match_uppers_lower(text, at);
    return end;
}

INLINE size_t match_o200k(Text text, size_t at, bool contractions, int digits) {
    size_t length, end = match_cased_word(text, at);
    if (end) return contractions ? skip_contraction(text, end, true) : end;
    uint32_t set = set_at(text, at, &length);
    if (set & UNICODE_N) {
        end = at;
        for (int i = 0; i < digits && set_at(text, end, &length) & UNICODE_N; i++) end += length;
        return end;
    }
    end = skip_other(text, at, UNICODE_L | UNICODE_N);
    if (end) return skip_newlines(text, end, true);
    return skip_space(text, at, true);
}

INLINE bool find_o200k(const char *text, size_t size, size_t from, size_t *start, size_t *end) {
    if (from >= size) return false;
    *start = from;
    *end = match_o200k((Text){(const uint8_t *)text, size}, from, true, 3);
    return true;
}

INLINE bool find_tekken(const char *text, size_t size, size_t from, size_t *start, size_t *end) {
    if (from >= size) return false;
    *start = from;
    *end = match_o200k((Text){(const uint8_t *)text, size}, from, false, 1);
    return true;
}

/* To the next ASCII digit or character beyond ASCII. */
INLINE size_t skip_to_digit(Text text, size_t at) {
    uint64_t eight;
    for (; at + sizeof eight <= text.size; at += sizeof eight) {
        memcpy(&eight, text.data + at, sizeof eight);
        const uint64_t found = (~bytes_outside(eight, 0, '0', '9') | eight) & EACH(0x80);
        if (found) return at + (size_t)__builtin_ctzll(found) / 8;
    }
    while (at < text.size && text.data[at] < 0x80 && (uint8_t)(text.data[at] - '0') > 9) at++;
    return at;
}

INLINE bool find_digits3(const char *data, size_t size, size_t from, size_t *start, size_t *end) {
    const Text text = {(const uint8_t *)data, size};
    size_t length;
    for (;;) {
        from = skip_to_digit(text, from);
        if (from >= size) return false;
        if (set_at(text, from, &length) & UNICODE_N) break;
        from += length;
    }
    *start = from;
    for (int i = 0; i < 3 && set_at(text, from, &length) & UNICODE_N; i++) from += length;
    *end = from;
    return true;
}

/* [一-龥぀-ゟ゠-ヿ], always of three bytes. */
INLINE bool is_deepseek_cjk(const Text text, size_t at) {
    if (at >= text.size || (text.data[at] & 0xF0) != 0xE0) return false;
    const uint8_t *p = text.data + at;
    uint32_t code = (p[0] & 0x0Fu) << 12 | (p[1] & 0x3Fu) << 6 | (p[2] & 0x3Fu);
    return (code >= 0x4E00 && code <= 0x9FA5) || (code >= 0x3040 && code <= 0x30FF);
}

INLINE bool find_deepseek_cjk(const char *data, size_t size, size_t from, size_t *start, size_t *end) {
    const Text text = {(const uint8_t *)data, size};
    /* No byte within a character looks like its first. */
    while (from < size && !is_deepseek_cjk(text, from)) from = skip_bytes(text, from + 1, 0, 0, 0x7F);
    if (from >= size) return false;
    *start = from;
    while (is_deepseek_cjk(text, from)) from += 3;
    *end = from;
    return true;
}

/* The match of the main pattern that begins at `at`; 0: none. */
INLINE size_t match_deepseek(Text text, size_t at) {
    const uint32_t marks = UNICODE_P | UNICODE_S;
    size_t length, next_length;
    uint32_t set = set_at(text, at, &length);
    if (text.data[at] < 0x80 && set & marks && is_ascii_letter(text, at + 1)) return skip_ascii_letters(text, at + 2);
    const size_t word = at + (text.data[at] == ' ');
    if (is_ascii_letter(text, word)) {
        const size_t end = skip_ascii_letters(text, word + 1);
        return ascii_follows(text, end) ? end : skip_set(text, end, SET_LETTER_MARK);
    }
    if (set & SET_LETTER_MARK) return skip_set(text, at + length, SET_LETTER_MARK);
    if (!(set & marks) && !is_newline(text, at) && set_at(text, at + length, &next_length) & SET_LETTER_MARK) {
        return skip_set(text, at + length + next_length, SET_LETTER_MARK);
    }
    size_t start = at + (text.data[at] == ' '), end = skip_set(text, start, marks);
    if (end > start) return skip_newlines(text, end, false);
    return set & UNICODE_WHITE ? skip_space(text, at, true) : 0;
}

INLINE bool find_deepseek(const char *data, size_t size, size_t from, size_t *start, size_t *end) {
    const Text text = {(const uint8_t *)data, size};
    while (from < size) {
        *start = from;
        *end = match_deepseek(text, from);
        if (*end) return true;
        size_t length;
        set_at(text, from, &length);
        from += length;
    }
    return false;
}

/* --- Many at a time --------------------------------------------------------------------------------------------- */

/* The ends of words from *from on, which is moved to the last of them, by one window of ASCII. */
INLINE size_t window_ends(const char *text, size_t size, size_t *from, const AsciiRules *rules, size_t *ends) {
    uint64_t eight;
    if (size - *from < WINDOW + 2) return 0;
    memcpy(&eight, text + *from, sizeof eight);
    if (eight & EACH(0x80)) return 0; /* texts of other scripts are not looked at twice */
    size_t count = 0;
    const size_t window = *from;
    for (uint64_t starts = words_in((const uint8_t *)text + window, *rules); starts; starts &= starts - 1)
        ends[count++] = *from = window + (size_t)first_bit(starts);
    return count;
}

/* By a matcher and rules that the caller knows, so that they are inlined. */
INLINE size_t many(
    SplitFind find, const AsciiRules *rules, const char *text, size_t size, size_t from, size_t *ends, size_t max) {
    size_t count = 0, start, end;
    while (from < size && count + 2 <= max) {
        const size_t words = rules && max - count >= WINDOW ? window_ends(text, size, &from, rules, ends + count) : 0;
        count += words;
        if (words) continue;
        const bool found = find(text, size, from, &start, &end);
        ends[count] = found ? start : size;
        count += !found || start > from; /* the text before the match */
        if (!found) break;
        ends[count++] = from = end;
    }
    return count;
}

/* rules: where words begin in ASCII, or NULL. */
#define SPLIT(name, linkage, has_no_gaps, rules)                                                                       \
    static bool next_##name(const char *text, size_t size, size_t from, size_t *start, size_t *end) {                  \
        return find_##name(text, size, from, start, end);                                                              \
    }                                                                                                                  \
    static size_t many_##name(const char *text, size_t size, size_t from, size_t *ends, size_t max) {                  \
        return many(find_##name, rules, text, size, from, ends, max);                                                  \
    }                                                                                                                  \
    linkage const SplitFast split_##name = {next_##name, many_##name, has_no_gaps};

#define RULES &(AsciiRules)
SPLIT(gpt2, , true, NULL)
SPLIT(llama3, static, true, (RULES{.digits = 3, .contractions = true}))
SPLIT(qwen2, static, true, (RULES{.digits = 1, .contractions = true}))
SPLIT(qwen35, static, true, (RULES{.digits = 1, .contractions = true}))
SPLIT(o200k, static, true, (RULES{.digits = 3, .cased = true, .contractions = true, .slashes = true}))
SPLIT(tekken, static, true, (RULES{.digits = 1, .cased = true, .slashes = true}))
SPLIT(digits3, static, false, NULL)
SPLIT(deepseek_cjk, static, false, NULL)
SPLIT(deepseek, static, false, (RULES{.digits = 0, .apart = true}))

bool split_deepseek_steps(const SplitFast *first, const SplitFast *second, const SplitFast *third) {
    return first == &split_digits3 && second == &split_deepseek_cjk && third == &split_deepseek;
}

/* Past the characters that the first two splits leave in one piece with the one at `at`; *word: the third one makes one
 * word of it. */
INLINE size_t skip_deepseek_piece(Text text, size_t at, bool *word) {
    size_t length;
    *word = is_deepseek_cjk(text, at);
    if (*word) {
        for (;; at += 3) {
            at = skip_ideographs(text, at, IDEOGRAPHS_DEEPSEEK);
            if (!is_deepseek_cjk(text, at)) return at;
            *word = *word && set_at(text, at, &length) & SET_LETTER_MARK;
        }
    }
    for (;;) {
        at = skip_to_digit(text, at);
        if (at >= text.size || is_deepseek_cjk(text, at) || set_at(text, at, &length) & UNICODE_N) return at;
        at += length;
    }
}

/* The end of the word at `at`, which all of the three splits make. */
INLINE size_t match_deepseek_steps(Text text, size_t at, size_t *piece) {
    size_t length, end = at;
    for (int i = 0; i < 3 && set_at(text, end, &length) & UNICODE_N; i++) end += length;
    if (end > at) return end;
    if (at >= *piece) {
        bool word;
        *piece = skip_deepseek_piece(text, at, &word);
        if (word) return *piece;
    }
    text.size = *piece; /* the third split sees no more */
    end = match_deepseek(text, at);
    if (end) return end;
    for (end = at; end < text.size && (end == at || !match_deepseek(text, end)); end += length)
        set_at(text, end, &length);
    return end;
}

size_t split_deepseek_words(const char *data, size_t size, size_t from, size_t *piece, size_t *ends, size_t max) {
    static const AsciiRules rules = {.digits = 3, .apart = true};
    const Text text = {(const uint8_t *)data, size};
    size_t count = 0;
    while (from < size && count < max) {
        const size_t words = max - count >= WINDOW ? window_ends(data, size, &from, &rules, ends + count) : 0;
        count += words;
        if (!words) ends[count++] = from = match_deepseek_steps(text, from, piece);
    }
    return count;
}

/* --- Which pattern is which ----------------------------------------------------------------------------------- */

#define CONTRACTIONS "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define SPACES "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define UPPERS "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWERS "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"

static const struct {
    const char *pattern;
    const SplitFast *fast;
} known[] = {
    {"'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+", &split_gpt2},
    {CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|" SPACES, &split_llama3},
    {CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|" SPACES, &split_qwen2},
    {CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}| ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|" SPACES,
        &split_qwen35},
    {"[^\\r\\n\\p{L}\\p{N}]?" UPPERS "*" LOWERS "+" CONTRACTIONS "?|[^\\r\\n\\p{L}\\p{N}]?" UPPERS "+" LOWERS
     "*" CONTRACTIONS "?|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|" SPACES,
        &split_o200k},
    {"[^\\r\\n\\p{L}\\p{N}]?" UPPERS "*" LOWERS "+|[^\\r\\n\\p{L}\\p{N}]?" UPPERS "+" LOWERS
     "*|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|" SPACES,
        &split_tekken},
    {"\\p{N}{1,3}", &split_digits3},
    {"[一-龥぀-ゟ゠-ヿ]+", &split_deepseek_cjk},
    {"[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| "
     "?[\\p{P}\\p{S}]+[\\r\\n]*|" SPACES,
        &split_deepseek},
};

/* Patterns are compared as written, but for \r and \n, which some files hold as themselves. */
static bool same_pattern(Slice pattern, const char *want) {
    for (size_t i = 0; i < pattern.size; i++) {
        char c = pattern.data[i];
        if (c == '\r' || c == '\n') {
            if (want[0] != '\\' || want[1] != (c == '\r' ? 'r' : 'n')) return false;
            want += 2;
        } else if (*want++ != c || c == '\0') {
            return false;
        }
    }
    return *want == '\0';
}

const SplitFast *split_fast(Slice pattern) {
    for (size_t i = 0; i < COUNT_OF(known); i++) {
        if (same_pattern(pattern, known[i].pattern)) return known[i].fast;
    }
    return NULL;
}
