/* Conversions of GGUF files, and back into them, with every allocation failing once: an error that says what for,
 * nothing left behind, and no directory that looks finished. */
#include "allocations.h"

#include "base/file.h"
#include "family/fixture.h"
#include "import/export/export.h"
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

static bool live_export(Error *error) {
    const bool ok = gguf_export(source, target, &(ExportOptions){.type = EXPORT_Q4_0}, error);
    TEST_MSG(ok == file_exists(target), "%s: the file is %s", source, ok ? "missing" : "there");
    char partial[160];
    snprintf(partial, sizeof partial, "%s.partial", target);
    TEST(!file_exists(partial));
    remove_target();
    return ok;
}

/* A golden checkpoint with a tokenizer. */
static void sweep_export(const char *name) {
    static const char tokenizer[] =
        "{\"added_tokens\":[{\"id\":0,\"content\":\"<unk>\",\"special\":true}],"
        "\"normalizer\":{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},\"content\":\"\xE2\x96\x81\"},"
        "\"model\":{\"type\":\"BPE\",\"unk_token\":\"<unk>\",\"byte_fallback\":true,"
        "\"vocab\":{\"<unk>\":0,\"a\":1,\"b\":2,\"ab\":3},\"merges\":[[\"a\",\"b\"]]}}";
    Fixture f;
    char directory[64];
    TEST(fixture_open(&f, name) && fixture_write_variant(&f, 0, directory));
    TEST(fixture_write_text(directory, "tokenizer.json", slice_of(tokenizer)));
    snprintf(source, sizeof source, "%s", directory);
    for (int mode = ALLOCATIONS_ONE; mode <= ALLOCATIONS_ALL; mode++)
        printf("%s, written: %ld allocations\n", name, allocations_sweep("export", live_export, mode));
    fixture_remove(directory);
    fixture_close(&f);
}

int main(int argc, char **argv) {
    allocations_verbose = argc > 1;
    if (!mkdtemp(root)) return 1;
    snprintf(target, sizeof target, "%s/model", root);
    sweep("llama", true);
    sweep("gemma3", false);
    sweep("llama-00001-of-00002.gguf", true);
    sweep_export("llama");
    rmdir(root);
    return test_done();
}
