/* Where conversions of .gguf files lie. */
#include <inttypes.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/digest.h"
#include "base/file.h"
#include "library/library.h"
#include "test.h"

/* The name of the file and a checksum of its full path: a place of its own for each of two namesakes. */
static void test_place(const char *folder) {
    static const char *const sides[] = {"a", "b"};
    Buffer places[2] = {{0}, {0}};
    Error error = {0};
    TEST(!setenv("APUS_CACHE", folder, 1));
    for (int i = 0; i < 2; i++) {
        Buffer file = {0}, wanted = {0};
        buffer_printf(&file, "%s/%s", folder, sides[i]);
        TEST_MSG(file_make_directories(file.data, &error), "%s", error.text);
        buffer_text(&file, "/model.gguf");
        TEST_MSG(file_write_atomic(file.data, slice_of("x"), &error), "%s", error.text);
        TEST_MSG(library_conversion(file.data, &places[i], &error), "%s", error.text);
        buffer_printf(&wanted, "%s/models/compact-model-%016" PRIx64, folder, checksum64(file.data, strlen(file.data)));
        TEST_MSG(!strcmp(places[i].data, wanted.data), "%s is not %s", places[i].data, wanted.data);
        TEST(!unlink(file.data));
        buffer_free(&file);
        buffer_free(&wanted);
    }
    TEST(strcmp(places[0].data, places[1].data));
    for (int i = 0; i < 2; i++) buffer_free(&places[i]);
    TEST(!library_conversion("no-such.gguf", &places[0], &error) && error.code == ERROR_NOT_FOUND);
    buffer_free(&places[0]);
}

int main(void) {
    char folder[] = "/tmp/apus-conversion-XXXXXX", path[64];
    char *full = mkdtemp(folder) ? realpath(folder, NULL) : NULL; /* /tmp may be a link */
    TEST(full);
    if (full) test_place(full);
    for (const char *side = "ab"; full && *side; side++) {
        snprintf(path, sizeof path, "%s/%c", folder, *side);
        TEST(!rmdir(path));
    }
    TEST(full && !rmdir(full));
    free(full);
    return test_done();
}
