/* UTF-8: every code point there and back, the edges of the standard's table, replacement by maximal parts. */
#include "base/utf8.h"

#include "test.h"

static void test_round_trip(void) {
    int wrong = 0;
    for (uint32_t code = 0; code <= 0x10FFFF; code++) {
        if (code >= 0xD800 && code <= 0xDFFF) continue;
        char bytes[4];
        uint32_t back = 0;
        int size = utf8_encode(code, bytes), expected = code < 0x80 ? 1 : code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
        if (size != expected || utf8_decode(bytes, (size_t)size, &back) != size || back != code) wrong++;
        for (size_t part = 1; part < (size_t)size; part++) {
            if (utf8_incomplete_tail((Slice){bytes, part}) != part) wrong++;
            if (utf8_decode(bytes, part, &back) != -(int)part || back != UTF8_REPLACEMENT) wrong++;
        }
        if (utf8_incomplete_tail((Slice){bytes, (size_t)size}) != 0) wrong++;
    }
    TEST_MSG(wrong == 0, "%d", wrong);
    char bytes[4];
    TEST(utf8_encode(0xD800, bytes) == 3 && memcmp(bytes, "\xEF\xBF\xBD", 3) == 0);
    TEST(utf8_encode(0x110000, bytes) == 3 && memcmp(bytes, "\xEF\xBF\xBD", 3) == 0);
}

static void test_invalid(void) {
    static const struct {
        const char *text;
        int length; /* minus the maximal invalid part */
    } cases[] = {
        {"\x80", -1},
        {"\xBF", -1},
        {"\xC0\x80", -1},
        {"\xC1\xBF", -1},
        {"\xC2", -1},
        {"\xC2 ", -1},
        {"\xC2\xC2", -1},
        {"\xE0\x9F\xBF", -1},
        {"\xE0\xA0", -2},
        {"\xE0\xA0 ", -2},
        {"\xE1\x80\xC0", -2},
        {"\xED\xA0\x80", -1},
        {"\xED\xBF\xBF", -1},
        {"\xEF\xBF", -2},
        {"\xF0\x8F\xBF\xBF", -1},
        {"\xF0\x90", -2},
        {"\xF0\x90\x80", -3},
        {"\xF0\x90\x80 ", -3},
        {"\xF1\x80\x80\xFF", -3},
        {"\xF4\x90\x80\x80", -1},
        {"\xF5\x80", -1},
        {"\xF8\x88", -1},
        {"\xFE", -1},
        {"\xFF", -1},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        uint32_t code = 0;
        int length = utf8_decode(cases[i].text, strlen(cases[i].text), &code);
        TEST_MSG(length == cases[i].length && code == UTF8_REPLACEMENT, "case %zu: %d", i, length);
        TEST(!utf8_valid(slice_of(cases[i].text)));
    }
}

static void test_valid(void) {
    TEST(utf8_valid((Slice){NULL, 0}) && utf8_valid((Slice){"\0", 1}));
    TEST(utf8_valid(SLICE("plain ASCII that is longer than a word, Grüße, 漢字, \xF0\x9F\x98\x80")));
    char text[40];
    for (size_t at = 0; at < sizeof text; at++) { /* one bad byte at every place of a word */
        memset(text, 'a', sizeof text);
        text[at] = '\xFF';
        TEST(!utf8_valid((Slice){text, sizeof text}));
    }
}

static void test_tail(void) {
    TEST(utf8_incomplete_tail(SLICE("")) == 0 && utf8_incomplete_tail(SLICE("abc")) == 0);
    TEST(utf8_incomplete_tail(SLICE("abc\xE2\x96")) == 2 && utf8_incomplete_tail(SLICE("\xE2")) == 1);
    TEST(utf8_incomplete_tail(SLICE("\xF0\x9F\x98")) == 3);
    TEST(utf8_incomplete_tail(SLICE("\x80")) == 0 && utf8_incomplete_tail(SLICE("\x80\x80\x80\x80")) == 0);
    TEST(utf8_incomplete_tail(SLICE("\xE0\x80")) == 0);     /* overlong: nothing completes it */
    TEST(utf8_incomplete_tail(SLICE("\xED\xA0")) == 0);     /* a surrogate */
    TEST(utf8_incomplete_tail(SLICE("\xF4\x90\x80")) == 0); /* beyond U+10FFFF */
    TEST(utf8_incomplete_tail(SLICE("\xC1")) == 0 && utf8_incomplete_tail(SLICE("\xF5")) == 0);
}

int main(void) {
    test_round_trip();
    test_invalid();
    test_valid();
    test_tail();
    return test_done();
}
