/* Keys of a server: what a file of them may hold, and which a client has. */
#include "server/http/keys.h"

#include <string.h>

#include "test.h"

static bool reads(const char *text, int count) {
    Keys keys;
    Error error = {0};
    const bool ok = keys_read(slice_of(text), &keys, &error);
    const bool as_wanted = count ? ok && keys.count == count : !ok && error.text[0];
    keys_free(&keys);
    return as_wanted;
}

int main(void) {
    TEST(reads("one", 1) && reads("one\ntwo\r\n\n  # three\n\tfour \n", 3));
    TEST(reads("", 0) && reads("\n \n# nothing\n", 0) && reads("with a blank", 0) && reads("gr\xC3\xBC\xC3\x9F", 0));
    char text[KEY_BYTES_MAX + 3];
    memset(text, 'k', sizeof text);
    text[KEY_BYTES_MAX + 1] = 0;
    TEST(reads(text, 0));
    text[KEY_BYTES_MAX] = 0;
    TEST(reads(text, 1));
    Keys keys;
    Error error = {0};
    TEST(keys_read(slice_of("alpha\nbeta"), &keys, &error));
    TEST(keys_have(&keys, "alpha") && keys_have(&keys, "beta"));
    TEST(!keys_have(&keys, "") && !keys_have(&keys, "alph") && !keys_have(&keys, "alphaa") &&
        !keys_have(&keys, "alpha\nbeta"));
    keys_free(&keys);
    return test_done();
}
