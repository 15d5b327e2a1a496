/* `apus debug`: a refused line is answered and the next one read; what the loader warns of reaches standard error. */
#include <stdlib.h>
#include <unistd.h>

#include "cli/commands.h"
#include "family/fixture.h"

enum { OUTPUT_MAX = 1 << 14, ARGUMENTS_MAX = 16 };

/* A descriptor put in the place of another until it is put back. */
typedef struct Redirect {
    int descriptor, kept;
    FILE *file;
} Redirect;

static Redirect redirect(int descriptor, const char *content) {
    Redirect r = {.descriptor = descriptor, .file = tmpfile()};
    fflush(NULL);
    r.kept = dup(descriptor);
    if (!r.file || r.kept < 0) abort();
    fputs(content, r.file);
    rewind(r.file);
    if (dup2(fileno(r.file), descriptor) < 0) abort();
    return r;
}

static void restore(Redirect *r, char *text) {
    fflush(NULL);
    dup2(r->kept, r->descriptor);
    close(r->kept);
    rewind(r->file);
    const size_t size = fread(text, 1, OUTPUT_MAX - 1, r->file);
    text[size] = 0;
    fclose(r->file);
}

/* The exit code; what went to standard output and standard error. */
static int run(const char *const *arguments, const char *input, char *output, char *errors) {
    char *argv[ARGUMENTS_MAX], ignored[OUTPUT_MAX];
    int argc = 0;
    for (; arguments[argc]; argc++) argv[argc] = strdup(arguments[argc]);
    Redirect in = redirect(STDIN_FILENO, input), out = redirect(STDOUT_FILENO, ""), err = redirect(STDERR_FILENO, "");
    clearerr(stdin);
    const int code = command_debug(argc, argv);
    restore(&err, errors);
    restore(&out, output);
    restore(&in, ignored);
    for (int i = 0; i < argc; i++) free(argv[i]);
    return code;
}

static void test_lines(void) {
    static const char tokenizer[] = "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\"ab\":2},"
                                    "\"merges\":[\"a b\"]}}";
    char directory[] = "/tmp/apus-debug-XXXXXX", path[64], output[OUTPUT_MAX], errors[OUTPUT_MAX];
    TEST(mkdtemp(directory) && fixture_write_text(directory, "tokenizer.json", SLICE(tokenizer)) &&
        fixture_write_text(directory, "config.json", SLICE("{}")));
    const char *tokens[] = {"tokens", directory, NULL}, *detokens[] = {"detokens", directory, NULL};

    TEST(run(tokens, "{\"text\":\"ab\"}\n{\"text\":7}\n\nnot JSON \"\\\n{\"text\":\"ba\"}\n", output, errors) == 0);
    Arena arena = {0};
    const char *at = output;
    static const char *const wanted[] = {"ids", "error", "error", "ids"};
    for (size_t i = 0; i < COUNT_OF(wanted); i++) {
        const char *end = strchr(at, '\n');
        TEST_MSG(end, "%zu lines: %s", i, output);
        if (!end) break;
        const Json *bench_case = json_parse(&arena, (Slice){at, (size_t)(end - at)}, NULL);
        const Json *value = json_get(bench_case, wanted[i]);
        TEST_MSG(value, "line %zu: %s", i, output);
        TEST(!value || value->size > 0);
        at = end + 1;
    }
    TEST_MSG(strstr(output, "{\"ids\":[2]}\n{\"error\":\"") == output && strstr(output, "\n{\"ids\":[1,0]}\n"), "%s",
        output);
    TEST_MSG(*at == '\0' && errors[0] == '\0', "%s%s", output, errors);

    TEST(run(detokens, "{\"ids\":[\"a\"]}\n{\"ids\":[2,0]}", output, errors) == 0);
    TEST_MSG(slice_starts(slice_of(output), SLICE("{\"error\":\"")) && strstr(output, "\n{\"text\":\"ab a\"}\n"), "%s",
        output);

    const char *const files[] = {"tokenizer.json", "config.json"};
    for (size_t i = 0; i < COUNT_OF(files); i++) {
        snprintf(path, sizeof path, "%s/%s", directory, files[i]);
        unlink(path);
    }
    rmdir(directory);
    TEST(run(tokens, "{\"text\":\"ab\"}\n", output, errors) == 1 && output[0] == '\0' && strstr(errors, directory));
    arena_free(&arena);
}

static void test_warnings(void) {
    Fixture f;
    char directory[64], out[128], output[OUTPUT_MAX], errors[OUTPUT_MAX];
    Buffer config = {0};
    if (!fixture_open(&f, "llama")) return;
    fixture_config(&f, 0, &config);
    config.size--; /* the closing brace */
    buffer_text(&config, ",\"wobble_factor\":2}");
    TEST(fixture_write(fixture_tensors(&f, 0), buffer_view(&config), directory));
    snprintf(out, sizeof out, "%s/logits.npy", directory);
    const char *arguments[] = {"logits", directory, "--tokens", "1,2,3", "--out", out, "--cpu", "ref", NULL};
    TEST_MSG(run(arguments, "", output, errors) == 0, "%s", errors);
    TEST_MSG(strstr(errors, "wobble_factor"), "no warning of the field: \"%s\"", errors);
    TEST(unlink(out) == 0);
    fixture_remove(directory);
    buffer_free(&config);
    fixture_close(&f);
}

int main(void) {
    test_lines();
    test_warnings();
    return test_done();
}
