/* The split patterns matched by hand against the same patterns run by the regular expression engine, and the engine
 * itself. */
#include <stdlib.h>

#include "base/utf8.h"
#include "test.h"
#include "text/tokenizer/normalize.h"
#include "text/regex/regex.h"
#include "text/tokenizer/split_fast.h"
#include "text/unicode/unicode.h"

#define CONTRACTIONS "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define SPACES "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define UPPERS "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWERS "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"

static const char *const patterns[] = {
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+",
    CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|" SPACES,
    CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|" SPACES,
    CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}| ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|" SPACES,
    "[^\\r\\n\\p{L}\\p{N}]?" UPPERS "*" LOWERS "+" CONTRACTIONS "?|[^\\r\\n\\p{L}\\p{N}]?" UPPERS "+" LOWERS
    "*" CONTRACTIONS "?|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|" SPACES,
    "[^\\r\\n\\p{L}\\p{N}]?" UPPERS "*" LOWERS "+|[^\\r\\n\\p{L}\\p{N}]?" UPPERS "+" LOWERS
    "*|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|" SPACES,
    "\\p{N}{1,3}",
    "[一-龥぀-ゟ゠-ヿ]+",
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| "
    "?[\\p{P}\\p{S}]+[\r\n]*|" SPACES,
};

/* Characters of every kind that the patterns tell apart, the common ones more often, and now and then any character. */
static size_t random_text(uint64_t *state, char *out, size_t count) {
    static const char *const atoms[] = {" ", " ", "\n", "\r", "\t", "a", "b", "S", "T", "'", "'s", "'LL", "'re",
        "'\xC5\xBF", "1", "2", ".", "/", "_", "é", "É", "中", "の", "ー", "ʰ", "ǅ", "ª", "\xCC\x81", "\xE0\xA4\xBE",
        "½", "Ⅷ", "٣", "€", "«", "\xC2\xA0", "\xE3\x80\x80", "\xE2\x80\xA8", "\xC2\x85", "\x1C", "\xEF\xBB\xBF",
        "\xF0\x9F\x98\x80", "\xF0\x9D\x9F\x98", "龥", "龦", "K", "words", "EIGHTEEN", "Seventeenletters", "12345678",
        "        ", "                 ", "-=-=-=-=", "中文中文中文", "鿿", "䷿", "`{@[", "été"};
    size_t size = 0;
    for (size_t i = 0; i < count; i++) {
        uint64_t draw = test_random(state);
        if (draw % 16 == 0) {
            size += (size_t)utf8_encode((uint32_t)((draw >> 8) % 0x110000), out + size);
            continue;
        }
        const char *atom = atoms[(draw >> 8) % COUNT_OF(atoms)];
        memcpy(out + size, atom, strlen(atom));
        size += strlen(atom);
    }
    return size;
}

/* Mostly ASCII, long enough for windows of 64 bytes. */
static size_t random_ascii(uint64_t *state, char *out, size_t most) {
    static const char *const atoms[] = {" ", " ", "  ", "       ", "\n", "\n", "\r\n", "\t", "a", "b", "S", "T", "e",
        "'", "'", "'s", "'S", "'LL", "'re", "'vE", "'d", "don't", "it's's", "1", "22", "333", "4444", ".", "/", "//",
        "_", "();", "word", "Word", "HTTPServer", "camelCase", "CONSTANT", "\x1C", "\x7F", "\v",
        "abcdefghijklmnopqrstuvwxyz"};
    static const char *const beyond[] = {"é", "'\xC5\xBF", "中文", "\xC2\xA0", "\xCC\x81"};
    const uint64_t kinds = 1 + test_random(state) % COUNT_OF(atoms), first = test_random(state);
    size_t size = 0;
    while (size + 32 < most) {
        uint64_t draw = test_random(state) >> 8;
        const char *atom = draw % 40 == 0 ? beyond[draw / 40 % COUNT_OF(beyond)]
                                          : atoms[(first + draw / 40 % kinds) % COUNT_OF(atoms)];
        memcpy(out + size, atom, strlen(atom));
        size += strlen(atom);
    }
    return size;
}

/* The pieces that a matcher finds many at a time are those that the regular expression makes. */
static bool same_pieces(const SplitFast *fast, const Regex *regex, RegexWork *work, const char *text, size_t size) {
    size_t ends[80], at = 0, done = 0, count = 0, next = 0, start = 0, end = 0;
    while (at < size) {
        work->steps = 1000000;
        const bool found = regex_search(regex, work, (Slice){text, size}, done, &start, &end) == REGEX_FOUND;
        const size_t wanted[2] = {found ? start : size, end};
        for (int i = 0; i < 1 + found; i++) {
            if (wanted[i] == at) continue;
            if (next == count) {
                count = fast->many(text, size, at, ends, size % 2 ? COUNT_OF(ends) : 3);
                next = 0;
            }
            if (!count || ends[next++] != wanted[i] || (i == 0 && found && fast->tiles)) return false;
            at = wanted[i];
        }
        done = end;
    }
    return next == count;
}

static void test_hand_matchers(void) {
    for (size_t p = 0; p < COUNT_OF(patterns); p++) {
        Error error = {0};
        const SplitFast *fast = split_fast(slice_of(patterns[p]));
        Regex *regex = regex_compile(slice_of(patterns[p]), &error);
        TEST_MSG(fast && regex, "pattern %zu: %s", p, error.text);
        if (!fast || !regex) continue;
        RegexWork work = {0};
        uint64_t state = 17 + p;
        for (int round = 0; round < 3000; round++) {
            char text[512];
            size_t size = random_text(&state, text, 1 + test_random(&state) % 24), from = 0;
            TEST_MSG(
                same_pieces(fast, regex, &work, text, size), "pattern %zu: pieces of \"%.*s\"", p, (int)size, text);
            for (bool more = true; more && from <= size;) {
                size_t start = 0, end = 0, want_start = 0, want_end = 0;
                work.steps = 1000000;
                more = fast->find(text, size, from, &start, &end);
                RegexResult want = regex_search(regex, &work, (Slice){text, size}, from, &want_start, &want_end);
                bool same = more ? want == REGEX_FOUND && start == want_start && end == want_end : want == REGEX_NONE;
                TEST_MSG(same, "pattern %zu in \"%.*s\" from %zu: %zu…%zu, not %zu…%zu", p, (int)size, text, from,
                    start, end, want_start, want_end);
                if (!same) break;
                from = end;
            }
        }
        for (int round = 0; round < 2000; round++) {
            char text[512];
            size_t size = random_ascii(&state, text, 64 + test_random(&state) % 448);
            TEST_MSG(
                same_pieces(fast, regex, &work, text, size), "pattern %zu: pieces of \"%.*s\"", p, (int)size, text);
        }
        regex_free(regex);
        regex_work_free(&work);
    }
}

enum { DIGITS3 = 6, PIECES_MAX = 512 }; /* the place of DeepSeek's three patterns */

/* The ends of the pieces of text[start, end) that the regular expressions from `level` on make, one behind the other.
 */
static void split_in_turn(Regex *const regex[3], RegexWork *work, int level, const char *text, size_t start, size_t end,
    size_t *ends, size_t *count) {
    if (level == 3) {
        if (end > start && *count < PIECES_MAX) ends[(*count)++] = end;
        return;
    }
    size_t done = start, from, to;
    work->steps = 1000000;
    while (
        regex_search(regex[level], work, (Slice){text + start, end - start}, done - start, &from, &to) == REGEX_FOUND) {
        split_in_turn(regex, work, level + 1, text, done, start + from, ends, count);
        split_in_turn(regex, work, level + 1, text, start + from, start + to, ends, count);
        done = start + to;
    }
    split_in_turn(regex, work, level + 1, text, done, end, ends, count);
}

/* What is found of DeepSeek's three splits at once is what they make one behind the other. */
static void test_deepseek_steps(void) {
    Regex *regex[3];
    const SplitFast *fast[3];
    Error error = {0};
    for (int i = 0; i < 3; i++) {
        regex[i] = regex_compile(slice_of(patterns[DIGITS3 + i]), &error);
        fast[i] = split_fast(slice_of(patterns[DIGITS3 + i]));
        TEST_MSG(regex[i] && fast[i], "%s", error.text);
        if (!regex[i] || !fast[i]) return;
    }
    TEST(split_deepseek_steps(fast[0], fast[1], fast[2]) && !split_deepseek_steps(fast[1], fast[0], fast[2]));
    RegexWork work = {0};
    uint64_t state = 5;
    for (int round = 0; round < 8000; round++) {
        char text[512];
        const size_t most = 64 + test_random(&state) % 448;
        const size_t size = round % 2 ? random_ascii(&state, text, most) : random_text(&state, text, most / 24);
        const size_t at_once = round % 3 ? 80 : 1;
        size_t wanted[PIECES_MAX], ends[80], count = 0, next = 0, piece = 0;
        split_in_turn(regex, &work, 0, text, 0, size, wanted, &count);
        bool same = true;
        for (size_t at = 0; same && at < size;) {
            const size_t found = split_deepseek_words(text, size, at, &piece, ends, at_once);
            same = found > 0 && found <= at_once;
            for (size_t i = 0; same && i < found; i++) same = next < count && wanted[next++] == ends[i];
            if (same) at = ends[found - 1];
        }
        TEST_MSG(same && next == count, "three steps in \"%.*s\"", (int)size, text);
    }
    for (int i = 0; i < 3; i++) regex_free(regex[i]);
    regex_work_free(&work);
}

static void check_match(const char *pattern, const char *text, int want_start, int want_end) {
    Error error = {0};
    Regex *regex = regex_compile(slice_of(pattern), &error);
    TEST_MSG(regex, "%s: %s", pattern, error.text);
    if (!regex) return;
    RegexWork work = {.steps = 100000};
    size_t start = 0, end = 0;
    RegexResult result = regex_search(regex, &work, slice_of(text), 0, &start, &end);
    if (want_start < 0) {
        TEST_MSG(result == REGEX_NONE, "%s in \"%s\" matched %zu…%zu", pattern, text, start, end);
    } else {
        TEST_MSG(result == REGEX_FOUND && (int)start == want_start && (int)end == want_end, "%s in \"%s\": %d, %zu…%zu",
            pattern, text, (int)result, start, end);
    }
    regex_free(regex);
    regex_work_free(&work);
}

static void test_engine(void) {
    check_match("a|ab", "xab", 1, 2); /* the first branch that fits, not the longest */
    check_match("(?:a|ab)c", "abc", 0, 3);
    check_match("a*?b", "aab", 0, 3);
    check_match("a*+a", "aaa", -1, 0);
    check_match("(?>a|ab)c", "abc", -1, 0);
    check_match("a{2}?b", "b", 0, 1); /* {n}? is an optional {n} here */
    check_match("a{2}?b", "aab", 0, 3);
    check_match("a{1,2}+b", "aaaaab", 0, 6); /* {n,m}+ is repeated, not possessive */
    check_match("a{,2}b", "aab", 0, 3);
    check_match("a{,b", "a{,b", 0, 4);
    check_match("(?:a?)*b", "aab", 0, 3); /* rounds that consume nothing end */
    check_match("(?:a|b*)*c", "abbac", 0, 5);
    check_match("\\bfoo\\b", "a foo b", 2, 5);
    check_match("\\bfoo\\b", "afoo", -1, 0);
    check_match("x(?=y)", "xz xy", 3, 4);
    check_match("x(?!y)", "xy xz", 3, 4);
    check_match("[a-z&&[^aeiou]]+", "aeixyz", 3, 6);
    check_match("[^a-z&&[^0-9]]", "x7", 1, 2);
    check_match("[]a]+", "x]a", 1, 3);
    check_match("[\\]\\-a]+", "x-]a", 1, 4);
    check_match("\\p{Han}+", "ab中文", 2, 8);
    check_match("\\p{^L}", "a1", 1, 2);
    check_match("(?i:straSSe)", "STRASSE", 0, 7);
    check_match("(?i)k", "\xE2\x84\xAA", 0, 3); /* the Kelvin sign */
    check_match("a(?i)b|c", "aC", 0, 2);
    check_match("(?i:\\p{Lu})", "aB", 1, 2); /* a lone property stays what it is, one in brackets does not */
    check_match("(?i:[\\p{Lu}])", "aB", 0, 1);
    check_match("[[:upper:]]+", "\xE2\x92\xB6", 0, 3);     /* a circled A: a symbol, and upper case */
    check_match("[[:alpha:]]+", "\xCC\x81\xCD\x85", 2, 4); /* U+0301 is a mark alone, U+0345 is alphabetic */
    check_match("\\p{Co}+", "a\xEE\x80\x80", 1, 4);
    check_match("^b$", "a\nb\nc", 2, 3);
    check_match("\\x41\\x{42}\\u0043", "ABC", 0, 3);
    check_match(".", "\n", -1, 0);
    check_match("(?m:.)", "\n", 0, 1);
}

static void check_refused(Slice pattern, const char *says) {
    Error error = {0};
    Regex *regex = regex_compile(pattern, &error);
    TEST_MSG(!regex && strstr(error.text, says), "%.*s: %s", SLICE_ARGS(pattern), error.text);
    regex_free(regex);
}

static void test_refusals(void) {
    check_refused(SLICE("("), "not closed");
    check_refused(SLICE(")"), "too many");
    check_refused(SLICE("[a"), "does not end");
    check_refused(SLICE("*a"), "nothing to repeat");
    check_refused(SLICE("a{2000000}"), "too large");
    check_refused(SLICE("(?:(?:(?:ab){200}){200}){200}"), "instructions");
    check_refused(SLICE("(a)\\1"), "\\1");
    check_refused(SLICE("(?<=a)b"), "look-behind");
    check_refused(SLICE("\\p{Klingon}"), "Klingon");
    check_refused(SLICE("[z-a]"), "ends before");
    check_refused(SLICE("a\\"), "backslash");
    check_refused(SLICE("\\p{Nope}"), "Nope");
    check_refused(SLICE("\xFF"), "UTF-8");
    char deep[400];
    memset(deep, '(', sizeof deep);
    check_refused((Slice){deep, sizeof deep}, "nested");
    memset(deep, '[', sizeof deep);
    check_refused((Slice){deep, sizeof deep}, "nested");
}

/* Exponential for a matcher without a budget. */
static void test_budget(void) {
    Error error = {0};
    Regex *regex = regex_compile(SLICE("(?:a+)+b|(?:a|a)*c"), &error);
    TEST(regex);
    if (!regex) return;
    char text[64];
    memset(text, 'a', sizeof text);
    RegexWork work = {.steps = 1000000};
    size_t start, end;
    TEST(regex_search(regex, &work, (Slice){text, sizeof text}, 0, &start, &end) == REGEX_EXHAUSTED);
    regex_free(regex);
    regex_work_free(&work);
}

static void normalize(bool compatible, bool compose, const char *text, const char *want) {
    Normalizer normalizer = {.count = 1};
    normalizer.steps[0] = (NormalizeStep){.kind = NORMALIZE_FORM, .compatible = compatible, .compose = compose};
    NormalText scratch = {0};
    RegexWork work = {0};
    Error error = {0};
    Slice view = slice_of(text);
    TEST(normalizer_run(&normalizer, &scratch, &work, &view, NULL, &error));
    TEST_MSG(slice_is(view, want), "\"%s\" became \"%.*s\"", text, SLICE_ARGS(view));
    normal_text_free(&scratch);
}

static void test_forms(void) {
    normalize(false, true, "e\xCC\x81 x", "é x");
    normalize(false, false, "é x", "e\xCC\x81 x");
    normalize(true, true, "ﬁ①", "fi1");
    normalize(true, false, "ﬁé", "fie\xCC\x81");
    normalize(false, true, "q\xCC\x87\xCC\xA3", "q\xCC\xA3\xCC\x87"); /* marks in canonical order */
    normalize(false, true, "\xE1\x84\x80\xE1\x85\xA1\xE1\x86\xA8", "각");
    normalize(false, false, "각", "\xE1\x84\x80\xE1\x85\xA1\xE1\x86\xA8");
    normalize(false, true, "\xE2\x84\xAB", "Å");
    normalize(false, true, "\xCC\x81", "\xCC\x81");
}

/* Every character alone, and behind a Tamil letter that keeps the form from being taken for the identity: both ways
 * agree. */
static void test_identity_shortcut(void) {
    Normalizer normalizer = {.count = 1};
    normalizer.steps[0] = (NormalizeStep){.kind = NORMALIZE_FORM, .compose = true};
    NormalText scratch = {0};
    RegexWork work = {0};
    Error error = {0};
    size_t wrong = 0;
    for (uint32_t code = 1; code < 0x20000; code++) {
        if (code >= 0xD800 && code < 0xE000) continue;
        char alone[4], behind[7] = "\xE0\xAE\x95";
        Slice first = {alone, (size_t)utf8_encode(code, alone)};
        memcpy(behind + 3, alone, first.size);
        Slice second = {behind, 3 + first.size};
        bool ok = normalizer_run(&normalizer, &scratch, &work, &first, NULL, &error);
        char kept[16];
        size_t size = first.size;
        memcpy(kept, first.data, size < sizeof kept ? size : 0);
        ok = ok && normalizer_run(&normalizer, &scratch, &work, &second, NULL, &error);
        wrong += !ok || second.size != size + 3 || memcmp(second.data + 3, kept, size) != 0;
    }
    TEST_MSG(wrong == 0, "%zu", wrong);
    normal_text_free(&scratch);
}

static void test_characters(void) {
    TEST(unicode_is_white_space(' ') && unicode_is_white_space(0x85) && unicode_is_white_space(0x3000) &&
        !unicode_is_white_space(0x1C) && !unicode_is_white_space(0x200B));
    TEST(unicode_category('a') == CATEGORY_LL && unicode_category(0x4E00) == CATEGORY_LO &&
        unicode_category(0x10FFFF) == CATEGORY_CN);
    TEST(unicode_is_word('_') && unicode_is_word(0x24B6) && !unicode_is_word('-'));
    TEST(unicode_lower('A') == 'a' && unicode_lower(0xC4) == 0xE4 && unicode_lower(0x10400) == 0x10428 &&
        unicode_lower(0xDF) == 0xDF);
    TEST(unicode_fold(0x17F) == 's' && unicode_fold(0x212A) == 'k' && unicode_fold(0x3C2) == unicode_fold(0x3A3));
    unsigned han = unicode_script_named("Han", 3);
    TEST(han && unicode_script_named("h-AN", 4) == han && unicode_script(0x4E00) == han && unicode_script('a') != han);
    TEST(unicode_category(0x30000) == CATEGORY_LO && unicode_category(0xE0001) == CATEGORY_CF &&
        unicode_category(0x1FFFF) == CATEGORY_CN && unicode_category(0x20000) == CATEGORY_LO);
    TEST(unicode_is_python_space(0x1C) && unicode_is_python_space(0x2003) && !unicode_is_python_space(0x200B));
    TEST(unicode_is_lower(0xAA) && !unicode_is_upper(0xAA) && unicode_is_upper(0x2160) && !unicode_is_lower(0x2160));
    TEST(unicode_decimal('7') == 7 && unicode_decimal(0x663) == 3 && unicode_decimal(0x1D7FF) == 9 &&
        unicode_decimal(0xB2) == -1 && unicode_is_digit(0xB2) && !unicode_is_digit(0xBD));
    TEST(unicode_is_case_ignorable(0x301) && unicode_is_case_ignorable('.') && !unicode_is_case_ignorable('a'));
    uint32_t out[UNICODE_CASE_MAX];
    TEST(unicode_upper_full(0xDF, out) == 2 && out[0] == 'S' && out[1] == 'S');
    TEST(unicode_title_full(0xFB03, out) == 3 && out[0] == 'F' && out[1] == 'f' && out[2] == 'i');
    TEST(unicode_title_full(0x1C6, out) == 1 && out[0] == 0x1C5 && unicode_upper_full(0xFF, out) == 1 &&
        out[0] == 0x178);
    TEST(unicode_lower_full(0x130, out) == 2 && out[0] == 'i' && out[1] == 0x307);
    TEST(!unicode_script_named("Hanx", 4) && !unicode_script_named("Ha", 2) && !unicode_script_named("", 0));
}

int main(void) {
    test_characters();
    test_engine();
    test_refusals();
    test_budget();
    test_hand_matchers();
    test_deepseek_steps();
    test_forms();
    test_identity_shortcut();
    return test_done();
}
