/* Slice: comparisons, and printing pieces longer than printf can count. */
#include "base/slice.h"

#include <stdint.h>
#include <sys/mman.h>

#include "base/error.h"
#include "test.h"

static void test_compare(void) {
    TEST(slice_is(SLICE("abc"), "abc") && !slice_is(SLICE("abc"), "ab") && slice_is((Slice){0}, ""));
    TEST(slice_starts(SLICE("abc"), SLICE("ab")) && slice_starts(SLICE("abc"), (Slice){0}));
    TEST(!slice_starts(SLICE("a"), SLICE("ab")));
}

/* What an int cannot hold: 2 GiB would be negative (and all up to a NUL be printed), 4 GiB and 3 bytes would be 3. */
static void test_print_large(void) {
    const size_t sizes[] = {(size_t)1 << 31, ((size_t)1 << 32) - 1, ((size_t)1 << 32) + 3, SLICE_ARGS_MAX + 1};
    const size_t room = ((size_t)1 << 32) + 4096, letters = 2 * SLICE_ARGS_MAX;
    char *text = mmap(NULL, room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    TEST(text != MAP_FAILED);
    if (text == MAP_FAILED) return;
    memset(text, 'x', letters);
    for (size_t i = 0; i < COUNT_OF(sizes); i++) {
        const Slice slice = {text, sizes[i]};
        const int length = snprintf(NULL, 0, "%.*s|%.*s", SLICE_ARGS(slice), SLICE_ARGS(slice));
        TEST_MSG(length == 2 * SLICE_ARGS_MAX + 1, "%zu bytes print as %d", sizes[i], length);
        Error error = {0};
        fail(&error, ERROR_FORMAT, "\"%.*s\" is long", SLICE_SHOWN(slice));
        TEST_MSG(strlen(error.text) == 100 + strlen("\"\" is long"), "%s", error.text);
    }
    munmap(text, room);
    char small[16];
    snprintf(small, sizeof small, "%.*s%.*s", SLICE_ARGS(SLICE("abc")), SLICE_ARGS((Slice){0}));
    TEST_MSG(strcmp(small, "abc") == 0, "%s", small);
}

int main(void) {
    test_compare();
    test_print_large();
    return test_done();
}
