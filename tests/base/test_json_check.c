/* Judging JSON: as json_parse does, of any depth, and each part of a text may go on. */
#include "base/json_check.h"

#include "test.h"

static const struct {
    const char *text;
    JsonVerdict verdict;
    size_t size; /* WHOLE: bytes of the value */
} cases[] = {{"{}", JSON_IS_WHOLE, 2}, {" [1, {\"a\": [null, true, false]}] x", JSON_IS_WHOLE, 32},
    {"\"a\\u00e9\\ud83d\\ude00\\n\" \"", JSON_IS_WHOLE, 23}, {"-12.5e-3,", JSON_IS_WHOLE, 8}, {"0", JSON_IS_WHOLE, 1},
    {"{\"a\":1,\"a\":1e999}", JSON_IS_WHOLE, 17}, {"nullx", JSON_IS_WHOLE, 4}, {"", JSON_IS_CUT, 0},
    {"  ", JSON_IS_CUT, 0}, {"[1,", JSON_IS_CUT, 0}, {"{\"a", JSON_IS_CUT, 0}, {"\"\\u12", JSON_IS_CUT, 0},
    {"\"\\ud83d\\u", JSON_IS_CUT, 0}, {"-", JSON_IS_CUT, 0}, {"1.", JSON_IS_CUT, 0}, {"tru", JSON_IS_CUT, 0},
    {"[1 2]", JSON_IS_NOT, 0}, {"[1,]", JSON_IS_NOT, 0}, {"{,}", JSON_IS_NOT, 0}, {"{\"a\" 1}", JSON_IS_NOT, 0},
    {"{a:1}", JSON_IS_NOT, 0}, {"[}", JSON_IS_NOT, 0}, {"\"a\nb\"", JSON_IS_NOT, 0}, {"\"\\x\"", JSON_IS_NOT, 0},
    {"\"\\ud83d\"", JSON_IS_NOT, 0}, {"\"\\ude00\"", JSON_IS_NOT, 0}, {"[01]", JSON_IS_NOT, 0}, {"x", JSON_IS_NOT, 0},
    {"'a'", JSON_IS_NOT, 0}, {"[tree]", JSON_IS_NOT, 0}, {"+1", JSON_IS_NOT, 0}, {"[.5]", JSON_IS_NOT, 0}};

static void test_depth(void) {
    enum { DEPTH = 100000 };
    Buffer text = {0};
    size_t size;
    JsonType type;
    for (int i = 0; i < DEPTH; i++) buffer_text(&text, i % 2 ? "{\"a\":" : "[");
    TEST(json_check(buffer_view(&text), &size, &type) == JSON_IS_CUT);
    buffer_text(&text, "1");
    for (int i = DEPTH; i-- > 0;) buffer_byte(&text, i % 2 ? '}' : ']');
    TEST(json_check(buffer_view(&text), &size, &type) == JSON_IS_WHOLE && size == text.size && type == JSON_ARRAY);
    buffer_free(&text);
}

static void test_compact(void) {
    Buffer out = {0};
    json_write_compact(&out, SLICE("{ \"a b\\\" \" :\n [1,\t2 ] }"));
    TEST(slice_is(buffer_view(&out), "{\"a b\\\" \":[1,2]}"));
    buffer_free(&out);
    TEST(json_is_object(SLICE(" {} ")) && !json_is_object(SLICE("{} x")) && !json_is_object(SLICE("[]")));
    TEST(!json_is_object(SLICE("{\"a\":")) && !json_is_object((Slice){NULL, 0}));
}

int main(void) {
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        size_t size = 0;
        JsonType type;
        const JsonVerdict verdict = json_check(slice_of(cases[i].text), &size, &type);
        TEST_MSG(
            verdict == cases[i].verdict && size == cases[i].size, "%s: %d, %zu bytes", cases[i].text, verdict, size);
        /* A value that begins is cut before it ends. */
        for (size_t k = 0; verdict == JSON_IS_WHOLE && strchr("[{\"", cases[i].text[0]) && k < cases[i].size; k++)
            TEST_MSG(json_check((Slice){cases[i].text, k}, &size, &type) == JSON_IS_CUT, "%s: %zu", cases[i].text, k);
    }
    test_depth();
    test_compact();
    return test_done();
}
