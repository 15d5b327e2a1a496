/* Names, paths, the list of local models and their removal, in caches of the test's own. */
#include "library/library.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "library/local.h"
#include "test.h"

static char folder[64];
static Error error;

static const char *path_of(const char *name) {
    static char path[256];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

static void write_file(const char *name, const char *text) {
    char path[256];
    snprintf(path, sizeof path, "%s", path_of(name));
    char *slash = strrchr(path, '/');
    *slash = '\0';
    CHECK(file_make_directories(path, &error));
    *slash = '/';
    CHECK(file_write_atomic(path, slice_of(text), &error));
}

static void open_caches(void) {
    snprintf(folder, sizeof folder, "/tmp/apus-library-XXXXXX");
    CHECK(mkdtemp(folder) != NULL);
    setenv("APUS_CACHE", folder, 1);
    setenv("HF_HOME", path_of("huggingface"), 1);
    unsetenv("HF_HUB_CACHE");
    setenv("HF_HUB_OFFLINE", "1", 1);
}

static bool name_is(const char *model, const char *name) {
    Buffer out = {0};
    library_name_of(model, &out);
    const bool same = slice_is(buffer_view(&out), name);
    buffer_free(&out);
    return same;
}

static void test_names(void) {
    TEST(name_is("qwen", "qwen") && name_is("org/qwen", "qwen") && name_is("./a/b.gguf", "b"));
    TEST(name_is("a/b/", "b") && name_is(".", "model") && name_is("org/qwen@v1", "qwen@v1"));
}

/* Names of our cache, and messages for those that are none. */
static void test_resolve(void) {
    Buffer directory = {0};
    write_file("models/tiny/config.json", "{}");
    write_file("models/empty/readme.txt", "");
    TEST(library_resolve("tiny", NULL, &directory, &error) && !strcmp(directory.data, path_of("models/tiny")));
    TEST(!library_resolve("tini", NULL, &directory, &error) && strstr(error.text, "did you mean tiny?"));
    TEST(!library_resolve(path_of("models/empty"), NULL, &directory, &error) && error.code == ERROR_NOT_FOUND);
    TEST(!library_resolve("org/absent", NULL, &directory, &error) && error.code == ERROR_NOT_FOUND);
    buffer_free(&directory);
}

static bool begun, ended;
static void begin(void *context, LibraryStage stage, const char *from, const char *to) {
    begun = stage == LIBRARY_CONVERSION && strstr(from, "broken.gguf") && strstr(to, "compact-broken-");
}
static void end(void *context, LibraryStage stage, const Error *stale) { ended = begun && !stale; }

static void test_watch(void) {
    const LibraryWatch watch = {.begin = begin, .end = end};
    Buffer directory = {0};
    write_file("models/broken.gguf", "no GGUF");
    TEST(!library_resolve("broken", &watch, &directory, &error) && begun && ended);
    buffer_free(&directory);
}

static void test_list_and_remove(void) {
    LocalModels models;
    Buffer path = {0};
    uint64_t freed_bytes = 0;
    TEST(local_find("tiny", &path, &error) && !strcmp(path.data, path_of("models/tiny")));
    buffer_clear(&path);
    TEST(local_find("broken", &path, &error) && !strcmp(path.data, path_of("models/broken.gguf")));
    TEST(!local_find(path_of("models/tiny"), &path, &error) && error.code == ERROR_NOT_FOUND); /* a path is no name */
    TEST(!local_find("empty", &path, &error) && error.code == ERROR_NOT_FOUND);
    buffer_free(&path);
    CHECK(local_list(&models, &error));
    TEST(models.count == 2);
    TEST(!local_remove(&models, "absent", &freed_bytes, &error) && error.code == ERROR_NOT_FOUND);
    TEST(!local_remove(&models, "..", &freed_bytes, &error) && error.code == ERROR_NOT_FOUND);
    TEST(local_remove(&models, "tiny", &freed_bytes, &error) && freed_bytes > 0);
    TEST(local_remove(&models, "broken", &freed_bytes, &error));
    TEST(local_remove(&models, "empty", &freed_bytes, &error)); /* what is incomplete has no row */
    local_free(&models);
    CHECK(local_list(&models, &error));
    TEST(models.count == 0 && models.unfinished == 0);
    local_free(&models);
}

int main(void) {
    open_caches();
    test_names();
    test_resolve();
    test_watch();
    test_list_and_remove();
    rmdir(path_of("models"));
    rmdir(folder);
    return test_done();
}
