/* Base64: vectors of RFC 4648, lengths, padding, foreign characters. */
#include "base/base64.h"
#include "test.h"

static void check(const char *text, const char *expected) {
    uint8_t out[64];
    size_t size;
    TEST_MSG(base64_decode(slice_of(text), out, &size) && size == strlen(expected) && !memcmp(out, expected, size),
        "%s", text);
    TEST(size <= base64_bytes_max(strlen(text)));
    Buffer again = {0};
    base64_encode(slice_of(expected), &again);
    TEST(strlen(text) % 4 != 0 || slice_equal(buffer_view(&again), slice_of(text)));
    buffer_free(&again);
}

int main(void) {
    static const char *const bad[] = {"Z", "Zm9vZ", "Zm9=vYg", "Zg===", "====", "Zm 9v", "Zm9v\n", "Zm9_", "Zm9-"};
    check("", "");
    check("Zg==", "f");
    check("Zg", "f");
    check("Zm8=", "fo");
    check("Zm8", "fo");
    check("Zm9v", "foo");
    check("Zm9vYg==", "foob");
    check("Zm9vYmE=", "fooba");
    check("Zm9vYmFy", "foobar");
    check("+/+/", "\xFB\xFF\xBF");
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        uint8_t out[64];
        size_t size;
        TEST_MSG(!base64_decode(slice_of(bad[i]), out, &size), "%s", bad[i]);
    }
    return test_done();
}
