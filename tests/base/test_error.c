/* Errors: context, cutting, bytes that must not reach a terminal. */
#include "base/error.h"

#include "base/slice.h"
#include "base/utf8.h"
#include "test.h"

static void test_context(void) {
    Error error = {0};
    TEST(!fail(&error, ERROR_FORMAT, "value %d is not %s", 3, "even"));
    TEST(error.code == ERROR_FORMAT);
    TEST(!fail_while(&error, "reading %s", "config.json"));
    TEST_MSG(strcmp(error.text, "reading config.json: value 3 is not even") == 0, "%s", error.text);
    TEST(error.code == ERROR_FORMAT);
    fail(&error, ERROR_IO, "again: %s", error.text); /* the argument is the error's own text */
    TEST_MSG(strcmp(error.text, "again: reading config.json: value 3 is not even") == 0, "%s", error.text);
    TEST(!fail(NULL, ERROR_IO, "nobody listens"));
    TEST(!fail_while(NULL, "nobody listens"));
}

static void test_cut(void) {
    char longest[3 * ERROR_TEXT_MAX];
    memset(longest, 'a', sizeof longest - 1);
    longest[sizeof longest - 1] = '\0';
    Error error = {0};
    fail(&error, ERROR_IO, "%s", longest);
    TEST(strlen(error.text) == ERROR_TEXT_MAX - 1);
    fail_while(&error, "context");
    TEST(strlen(error.text) == ERROR_TEXT_MAX - 1);
    TEST(strncmp(error.text, "context: aaa", 12) == 0);
    for (size_t shift = 0; shift < 4; shift++) { /* a cut within a character takes the character away */
        fail(
            &error, ERROR_IO, "%.*s%s", (int)(ERROR_TEXT_MAX - 5 + shift), longest, "\xF0\x9F\x98\x80\xF0\x9F\x98\x80");
        TEST(utf8_valid(slice_of(error.text)));
        TEST(strchr(error.text, '?') == NULL);
    }
}

static void test_printable(void) {
    Error error = {0};
    fail(&error, ERROR_FORMAT, "name \"%s\"",
        "a\nb\x1b[31m\x7f\xff\xc2\x9b"
        "é\xe2\x82");
    TEST_MSG(strcmp(error.text,
                 "name \"a b?[31m?"
                 "???é??\"") == 0,
        "%s", error.text);
}

int main(void) {
    test_context();
    test_cut();
    test_printable();
    return test_done();
}
