/* Buffer: growth, the limit, sticky failure. */
#include "base/buffer.h"

#include "test.h"

static void test_growth(void) {
    Buffer buffer = {0}, again = {0};
    for (int i = 0; i < 5000; i++) {
        buffer_printf(&buffer, "%d,", i);
        char text[16];
        snprintf(text, sizeof text, "%d", i);
        buffer_text(&again, text);
        buffer_byte(&again, ',');
    }
    TEST(!buffer.failed && slice_equal(buffer_view(&buffer), buffer_view(&again)));
    TEST(strlen(buffer.data) == buffer.size);
    buffer_clear(&buffer);
    TEST(buffer.size == 0 && buffer.capacity > 0 && buffer.data[0] == '\0');
    buffer_free(&buffer);
    buffer_free(&again);
    TEST(buffer.data == NULL && buffer.capacity == 0);
}

static void test_limit(void) {
    Buffer buffer = {.limit = 10};
    buffer_text(&buffer, "12345");
    buffer_slice(&buffer, SLICE("678901")); /* one too many: nothing of it is written */
    TEST(buffer.failed && strcmp(buffer.data, "12345") == 0);
    TEST(buffer_failure(&buffer) == ERROR_LIMIT);
    buffer_byte(&buffer, 'x'); /* would fit, but failure is sticky */
    buffer_printf(&buffer, "y");
    TEST(buffer.failed && buffer.size == 5);
    buffer_clear(&buffer);
    buffer_text(&buffer, "123456789");
    buffer_byte(&buffer, '0');
    TEST(!buffer.failed && buffer.size == 10);
    buffer_byte(&buffer, '1');
    TEST(buffer.failed && buffer.size == 10 && strcmp(buffer.data, "1234567890") == 0);
    buffer_free(&buffer);
    TEST(buffer.limit == 10 && !buffer.failed);
    buffer_printf(&buffer, "%s", "12345678901");
    TEST(buffer.failed && buffer.size == 0);
    buffer_free(&buffer);
}

static void test_edges(void) {
    Buffer buffer = {0};
    buffer_append(&buffer, NULL, 0);
    TEST(!buffer.failed && buffer.size == 0 && buffer.data[0] == '\0');
    buffer_append(&buffer, "a\0b", 3);
    TEST(buffer.size == 3 && memcmp(buffer.data, "a\0b", 4) == 0);
    TEST(!buffer_reserve(&buffer, SIZE_MAX));
    TEST(buffer.failed && buffer_failure(&buffer) == ERROR_MEMORY);
    buffer_clear(&buffer);
    TEST(!buffer_reserve(&buffer, SIZE_MAX / 2 + 1)); /* no overflow, but no such memory either */
    buffer_free(&buffer);
    TEST(buffer_reserve(&buffer, 100) && buffer.capacity > 100 && buffer.size == 0);
    buffer_free(&buffer);
}

int main(void) {
    test_growth();
    test_limit();
    test_edges();
    return test_done();
}
