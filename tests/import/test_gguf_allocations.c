/* Conversions of GGUF files with every allocation failing once: an error that says what for, nothing left behind, and
 * no directory that looks finished. */
#include "allocations.h"

#include "base/file.h"
#include "import/gguf/gguf.h"

static char root[] = "/tmp/apus-gguf-allocations-XXXXXX";
static char source[128], target[128];
static GgufOptions options;

static void remove_target(void) {
    char command[256];
    snprintf(command, sizeof command, "rm -rf '%s'*", target);
    CHECK(system(command) == 0);
}

static bool live(Error *error) {
    const bool ok = gguf_convert(source, target, &options, error);
    const bool there = file_is_directory(target);
    TEST_MSG(ok == there, "%s: the directory is %s", source, there ? "there" : "missing");
    remove_target();
    return ok;
}

static void sweep(const char *file, bool compact) {
    snprintf(source, sizeof source, "tests/fuzz/corpus/gguf/%s", file);
    options = (GgufOptions){.compact = compact, .replace = true};
    for (int mode = ALLOCATIONS_ONE; mode <= ALLOCATIONS_ALL; mode++)
        printf("%s%s: %ld allocations\n", file, compact ? ", compact" : "", allocations_sweep(file, live, mode));
}

int main(int argc, char **argv) {
    allocations_verbose = argc > 1;
    if (!mkdtemp(root)) return 1;
    snprintf(target, sizeof target, "%s/model", root);
    sweep("llama", true);
    sweep("gemma3", false);
    rmdir(root);
    return test_done();
}
