/* Where words begin in ASCII, 64 bytes at a time: a bit per byte, and rules for all of them at once. For the patterns
 * that look like cl100k's (split_fast.c), which tell letters, digits, white space and other characters apart. Internal
 * to split_fast.c. Threads: any. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

#define ALWAYS_INLINE static inline __attribute__((always_inline))

enum { WINDOW = 64 };

typedef struct AsciiRules {
    int digits;        /* most digits of a word; 0: digits are left to the caller */
    bool cased;        /* a word ends before a capital behind a small letter */
    bool contractions; /* 's and the like: words of their own; with `cased`, the ends of words */
    bool apart;   /* digits were split off before, so that white space in front of them ends a text; control characters
             are   left to the caller */
    bool slashes; /* line ends behind punctuation may be followed by slashes that belong to it */
} AsciiRules;

/* ---- Eight bytes at a time: the top bit of each byte is the answer ---- */

#define EACH(byte) (0x0101010101010101u * (uint8_t)(byte))

/* Bytes that are not in first…last, which are ASCII, when the bits of `fold` are set in them. */
ALWAYS_INLINE uint64_t bytes_outside(uint64_t eight, uint8_t fold, uint8_t first, uint8_t last) {
    const uint64_t low = (eight | EACH(fold)) & ~EACH(0x80);
    const uint64_t from_first = low + EACH(0x80 - first), past_last = low + EACH(0x7F - last);
    return (~from_first | past_last | eight) & EACH(0x80);
}

/* Bytes of first…last; for eight bytes of ASCII. */
ALWAYS_INLINE uint64_t bytes_inside(uint64_t eight, uint8_t fold, uint8_t first, uint8_t last) {
    const uint64_t low = eight | EACH(fold);
    return (low + EACH(0x80 - first)) & ~(low + EACH(0x7F - last)) & EACH(0x80);
}

/* The top bits of eight bytes as the eight lowest bits. */
ALWAYS_INLINE uint64_t gather(uint64_t tops) { return ((tops & EACH(0x80)) >> 7) * 0x0102040810204080u >> 56; }

/* ---- A window ---- */

typedef struct Kinds { /* bit i: of byte i */
    uint64_t letter, capital, digit, blank, line, white, apostrophe, slash;
    int size; /* bytes before the first one that the rules do not cover */
} Kinds;

ALWAYS_INLINE int first_bit(uint64_t bits) { return __builtin_ctzll(bits); }
ALWAYS_INLINE int last_bit(uint64_t bits) { return 63 - __builtin_clzll(bits); }
ALWAYS_INLINE uint64_t bits_below(int count) { return count >= 64 ? ~UINT64_C(0) : (UINT64_C(1) << count) - 1; }

#ifdef __SSE2__
/* As 16 bits: the bytes of first…last. */
ALWAYS_INLINE uint64_t mask_inside(__m128i bytes, uint8_t first, uint8_t last) {
    const __m128i from_first = _mm_sub_epi8(bytes, _mm_set1_epi8((char)first));
    const __m128i most = _mm_set1_epi8((char)(last - first));
    return (uint64_t)(uint32_t)_mm_movemask_epi8(_mm_cmpeq_epi8(_mm_min_epu8(from_first, most), from_first));
}

ALWAYS_INLINE Kinds kinds_of(const uint8_t *text, AsciiRules rules) {
    Kinds k = {.size = WINDOW};
    uint64_t beyond = 0, printed = 0;
    for (int at = 0; at < WINDOW; at += 16) {
        const __m128i bytes = _mm_loadu_si128((const __m128i *)(const void *)(text + at));
        const uint64_t blank = mask_inside(bytes, ' ', ' ');
        k.letter |= mask_inside(_mm_or_si128(bytes, _mm_set1_epi8(0x20)), 'a', 'z') << at;
        if (rules.cased) k.capital |= mask_inside(bytes, 'A', 'Z') << at;
        k.digit |= mask_inside(bytes, '0', '9') << at;
        k.blank |= blank << at;
        k.line |= (mask_inside(bytes, '\n', '\n') | mask_inside(bytes, '\r', '\r')) << at;
        k.white |= (blank | mask_inside(bytes, '\t', '\r')) << at;
        if (rules.contractions) k.apostrophe |= mask_inside(bytes, '\'', '\'') << at;
        if (rules.slashes) k.slash |= mask_inside(bytes, '/', '/') << at;
        if (rules.apart) printed |= mask_inside(bytes, ' ', '~') << at;
        beyond |= (uint64_t)(uint32_t)_mm_movemask_epi8(bytes) << at;
    }
    if (rules.apart) beyond |= ~(printed | k.white);
    if (!rules.digits) beyond |= k.digit;
    if (beyond) k.size = first_bit(beyond);
    return k;
}
#else
ALWAYS_INLINE Kinds kinds_of(const uint8_t *text, AsciiRules rules) {
    Kinds k = {.size = WINDOW};
    uint64_t beyond = 0;
    for (int i = 0; i < WINDOW / 8; i++) {
        uint64_t eight;
        memcpy(&eight, text + 8 * i, sizeof eight);
        const uint64_t high = eight & EACH(0x80), ascii = eight & ~EACH(0x80);
        const uint64_t blank = bytes_inside(ascii, 0, ' ', ' '), lines = bytes_inside(ascii, 0, '\t', '\r');
        const uint64_t line = bytes_inside(ascii, 0, '\n', '\n') | bytes_inside(ascii, 0, '\r', '\r');
        const int at = 8 * i;
        k.letter |= gather(bytes_inside(ascii, 0x20, 'a', 'z')) << at;
        if (rules.cased) k.capital |= gather(bytes_inside(ascii, 0, 'A', 'Z')) << at;
        k.digit |= gather(bytes_inside(ascii, 0, '0', '9')) << at;
        k.blank |= gather(blank) << at;
        k.line |= gather(line) << at;
        k.white |= gather(blank | lines) << at;
        if (rules.contractions) k.apostrophe |= gather(bytes_inside(ascii, 0, '\'', '\'')) << at;
        if (rules.slashes) k.slash |= gather(bytes_inside(ascii, 0, '/', '/')) << at;
        beyond |= gather(high) << at;
        if (rules.apart) beyond |= gather(~bytes_inside(ascii, 0, ' ', '~') & ~lines) << at;
    }
    if (!rules.digits) beyond |= k.digit;
    if (beyond) k.size = first_bit(beyond);
    return k;
}
#endif

/* The length of a contraction at an apostrophe, as its letters say; 0: it is none. */
ALWAYS_INLINE int contraction_at(const uint8_t *text) {
    const uint8_t first = text[1] | 0x20, second = text[2] | 0x20;
    if (first == 's' || first == 't' || first == 'm' || first == 'd') return 2;
    return ((first == 'r' || first == 'v') && second == 'e') || (first == 'l' && second == 'l') ? 3 : 0;
}

/* Runs of `in` whose last bits are in `ends`. */
ALWAYS_INLINE uint64_t runs_ending(uint64_t in, uint64_t ends) {
    uint64_t runs = ends & in;
    for (int shift = 1; shift < 64; shift *= 2) {
        runs |= in & runs >> shift;
        in &= in >> shift;
    }
    return runs;
}

/* The places behind 0 where words begin, if one begins at 0: all up to the last of them. 0: there is no telling. text:
 * WINDOW + 2 bytes may be read. */
ALWAYS_INLINE uint64_t words_in(const uint8_t *text, AsciiRules rules) {
    const Kinds k = kinds_of(text, rules);
    const uint64_t other = ~(k.letter | k.digit | k.white);
    const uint64_t letter_start = k.letter & ~(k.letter << 1), other_start = other & ~(other << 1);

    /* Line ends behind other characters belong to them; white space begins behind those. */
    const uint64_t taken = k.line & ~(k.line + (k.line & other << 1)), white = k.white & ~taken;
    if (rules.slashes && taken << 1 & k.slash) return 0;
    uint64_t starts = white & ~(white << 1);
    /* White space behind the last line end of its run is a word, and so is the last character of a run without line
     * ends, which may belong to the word behind it. */
    const uint64_t gap = white & ~k.line, past_gap = (gap + (gap & ~(gap << 1))) & ~gap;
    uint64_t last_gap = gap;
    if (past_gap & k.line) last_gap &= ~runs_ending(gap, (past_gap & k.line) >> 1);
    starts |= last_gap & ~(last_gap << 1);
    starts |= last_gap & ~(last_gap >> 1) & ~(rules.apart ? k.digit >> 1 : 0);

    /* A blank belongs to other characters behind it. A single one of these without a blank belongs to letters behind
     * it, and so does any white space but line ends. */
    starts |= other_start & ~(k.blank << 1);
    const uint64_t lead = other_start & ~(other >> 1) & ~(k.blank << 1);
    starts |= letter_start & ~((gap | lead) << 1);

    if (rules.digits == 1) starts |= k.digit;
    if (rules.digits == 3) {
        uint64_t start = k.digit & ~(k.digit << 1);
        for (; start; start = start << 3 & k.digit & k.digit << 1 & k.digit << 2) starts |= start;
    }

    int known = k.size; /* places below are decided */
    if (known <= 1) return 0;
    if (rules.cased) starts |= k.capital & (k.letter & ~k.capital) << 1;
    if (rules.cased && rules.contractions) {
        uint64_t found = k.apostrophe & k.letter << 1 & (k.letter >> 1 | ~bits_below(known - 1));
        for (int end = 0; found; found &= found - 1) {
            const int at = first_bit(found), size = contraction_at(text + at);
            if (at + 3 > known) {
                if (at < known) known = at;
                break;
            }
            if (!size || at <= end) continue; /* a contraction has none */
            end = at + size;
            starts &= ~(bits_below(size) << at);
            if (end < WINDOW) starts |= k.letter & UINT64_C(1) << end;
        }
    } else if (rules.contractions) {
        for (uint64_t found = k.apostrophe & lead & k.letter >> 1; found; found &= found - 1) {
            const int at = first_bit(found), size = contraction_at(text + at);
            if (size && at + size < WINDOW) starts |= k.letter & UINT64_C(1) << (at + size);
        }
    }

    if (known == 0) return 0;
    int limit = known - 1;
    if (k.white >> limit & 1) { /* white space that may go on */
        const uint64_t before = ~k.white & bits_below(limit);
        if (!before) return 0;
        limit = last_bit(before) + 1;
    }
    return starts & bits_below(limit + 1) & ~UINT64_C(1);
}
