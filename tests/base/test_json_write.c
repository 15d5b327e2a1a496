/* The JSON writer: escapes, bytes that are not UTF-8, numbers that read back equal in the fewest digits. */
#include "base/json.h"

#include <math.h>
#include <stdlib.h>

#include "test.h"

static void expect_string(Slice text, const char *expected) {
    Buffer out = {0};
    json_write_string(&out, text);
    TEST_MSG(strcmp(out.data, expected) == 0, "%s", out.data);
    buffer_free(&out);
}

static void test_strings(void) {
    expect_string(SLICE(""), "\"\"");
    expect_string((Slice){NULL, 0}, "\"\"");
    expect_string(SLICE("a\"b\\c/d"), "\"a\\\"b\\\\c/d\"");
    expect_string(SLICE("\b\f\n\r\t\x01\x1f\x7f"), "\"\\b\\f\\n\\r\\t\\u0001\\u001f\x7f\"");
    expect_string((Slice){"a\0b", 3}, "\"a\\u0000b\"");
    expect_string(SLICE("Grüße 漢字 \xF0\x9F\x98\x80"), "\"Grüße 漢字 \xF0\x9F\x98\x80\"");
    expect_string(SLICE("\xFF"
                        "a\xE2\x82"
                        "b\xED\xA0\x80\xF0\x9F"),
        "\"\uFFFDa\uFFFDb\uFFFD\uFFFD\uFFFD\uFFFD\"");
}

static void expect_number(double value, const char *expected) {
    Buffer out = {0};
    json_write_number(&out, value);
    TEST_MSG(strcmp(out.data, expected) == 0, "%s instead of %s", out.data, expected);
    buffer_free(&out);
}

static void test_numbers(void) {
    expect_number(0.0, "0");
    expect_number(-0.0, "-0");
    expect_number(1.0, "1");
    expect_number(-17.5, "-17.5");
    expect_number(0.1, "0.1");
    expect_number(0.1 + 0.2, "0.30000000000000004");
    expect_number(1.0 / 3, "0.3333333333333333");
    expect_number(123456789.125, "123456789.125");
    expect_number(9007199254740991.0, "9007199254740991");
    expect_number(9007199254740992.0, "9007199254740992");
    expect_number(12345678901234567.0, "12345678901234568");
    expect_number(1e17, "1e17");
    expect_number(1e21, "1e21");
    expect_number(1.5e300, "1.5e300");
    expect_number(0.00001, "0.00001");
    expect_number(0.000001, "1e-6");
    expect_number(1.25e-7, "1.25e-7");
    expect_number(5e-324, "5e-324");
    expect_number(2.2250738585072014e-308, "2.2250738585072014e-308");
    expect_number(1.7976931348623157e308, "1.7976931348623157e308");
    expect_number(0x1p-44, "5.684341886080802e-14"); /* the nearest 16 digits, …801, read back as another double */
    expect_number(9.5367431640625e-07, "9.5367431640625e-7");
    expect_number((double)0.1f, "0.10000000149011612");
    expect_number(NAN, "null");
    expect_number(INFINITY, "null");
    expect_number(-INFINITY, "null");
}

/* Equal when read back; and no text with one digit less does the same, which its two neighbours would have to be. */
static void test_random_numbers(void) {
    uint64_t seed = 11;
    int unequal = 0, longer = 0;
    for (int i = 0; i < 20000; i++) {
        uint64_t bits = test_random(&seed);
        if (i % 4 == 1) bits &= 0x7FF0000000000000u;             /* powers of two */
        if (i % 4 == 2) bits &= 0x000FFFFFFFFFFFFFu >> (i % 50); /* subnormal */
        double value;
        memcpy(&value, &bits, sizeof value);
        if (!isfinite(value) || value == 0) continue;
        Buffer out = {0};
        json_write_number(&out, value);
        unequal += strtod(out.data, NULL) != value;
        char digits[32];
        int count = 0, zeros = 0;
        for (const char *at = out.data; *at && *at != 'e'; at++) {
            if (*at < '0' || *at > '9' || (count == 0 && *at == '0')) continue;
            count++;
            zeros = *at == '0' ? zeros + 1 : 0;
        }
        count -= zeros;
        if (count > 1) {
            snprintf(digits, sizeof digits, "%.*e", count - 2, value);
            longer += strtod(digits, NULL) == value;
        }
        buffer_free(&out);
    }
    TEST_MSG(unequal == 0 && longer == 0, "%d unequal, %d too long", unequal, longer);
}

static void test_tree(void) {
    static const char text[] =
        " { \"a\" : [ 1 , 2.0, 1e2, -0.0, 1e30, -123456789012345678901, \"x\\u0041\\n\", true, null, {} , [] ] , \"b\" "
        ": { \"c\" : -9223372036854775808 } } ";
    Arena arena = {0};
    Error error = {0};
    const Json *root = json_parse(&arena, SLICE(text), &error);
    TEST_MSG(root != NULL, "%s", error.text);
    Buffer out = {0};
    if (root) json_write(&out, root);
    TEST_MSG(out.data &&
            strcmp(out.data,
                "{\"a\":[1,2.0,100.0,-0.0,1e30,-123456789012345678901,\"xA\\n\",true,null,{},[]],\"b\":{\"c\":-"
                "9223372036854775808}}") == 0,
        "%s", out.data);
    buffer_free(&out);
    Buffer tight = {.limit = 10};
    if (root) json_write(&tight, root);
    TEST(tight.failed && tight.size <= 10);
    buffer_free(&tight);
    arena_free(&arena);
}

int main(void) {
    test_strings();
    test_numbers();
    test_random_numbers();
    test_tree();
    return test_done();
}
