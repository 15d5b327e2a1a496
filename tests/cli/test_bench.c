/* `apus bench`: arguments that cannot be are refused with a line that says why, before anything is measured; a few
 * lines of --operations come out as JSON that holds together, and so do streams of a tiny model. */
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/json.h"
#include "base/slice.h"
#include "cli/commands.h"
#include "family/fixture.h"
#include "test.h"

enum { OUTPUT_MAX = 1 << 16, ARGUMENTS_MAX = 16 };

/* The command's exit code; what it wrote on that descriptor (1 or 2). */
static int run(const char *const *arguments, int descriptor, char *text) {
    char *argv[ARGUMENTS_MAX];
    int argc = 0;
    for (; arguments[argc]; argc++) argv[argc] = strdup(arguments[argc]);
    FILE *file = tmpfile();
    fflush(NULL);
    const int kept = dup(descriptor);
    if (!file || kept < 0 || dup2(fileno(file), descriptor) < 0) abort();
    const int code = command_bench(argc, argv);
    fflush(NULL);
    dup2(kept, descriptor);
    close(kept);
    rewind(file);
    text[fread(text, 1, OUTPUT_MAX - 1, file)] = 0;
    fclose(file);
    for (int i = 0; i < argc; i++) free(argv[i]);
    return code;
}

static const struct {
    const char *arguments[ARGUMENTS_MAX];
    int code;
    const char *says;
} wrong[] = {
    {{NULL}, EXIT_USAGE, "name a model"},
    {{"--trace"}, EXIT_USAGE, "name a model"},
    {{"a", "b"}, EXIT_USAGE, "unexpected argument 'b'"},
    {{"a", "--operations"}, EXIT_USAGE, "without a model: a"},
    {{"--operations", "--trace"}, EXIT_USAGE, "--operations goes with neither"},
    {{"--operations", "--against", "b"}, EXIT_USAGE, "--operations goes with neither"},
    {{"--operations", "--only", "no such line"}, EXIT_USAGE, "--only no such line"},
    {{"--operations", "--cpu", "z80"}, EXIT_USAGE, "--cpu z80"},
    {{"a", "--only", "b"}, EXIT_USAGE, "--only"},
    {{"a", "--trace", "--against", "b"}, EXIT_USAGE, "--against"},
    {{"a", "-p", "0", "-n", "0"}, EXIT_USAGE, "nothing to measure"},
    {{"a", "--streams", "1,8", "--trace"}, EXIT_USAGE, "--streams goes with none"},
    {{"a", "--streams", "1,8", "-n", "0"}, EXIT_USAGE, "--streams measures"},
    {{"a", "--streams", "1,8", "--kv-cache", "f16,turbo"}, EXIT_USAGE, "one form"},
    {{"a", "--streams", "1,x"}, EXIT_USAGE, "1,x"},
    {{"a", "--streams", "0"}, EXIT_USAGE, "from 1 to 64"},
    {{"a", "-d", "1,x"}, EXIT_USAGE, "1,x"},
    {{"a", "-d", ""}, EXIT_USAGE, "--depth"},
    {{"a", "-d", "-1"}, EXIT_USAGE, "--depth"},
    {{"a", "-d", "9999999"}, EXIT_USAGE, "--depth"},
    {{"a", "-d", "1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17"}, EXIT_USAGE, "at most 16"},
    {{"a", "-r", "0"}, EXIT_USAGE, "option -r"},
    {{"a", "--trace", "-n", "2000"}, EXIT_USAGE, "1024 steps"},
    {{"a", "-d", "0,16", "--against", "true"}, EXIT_USAGE, "{depth}"},
    {{"/nonexistent"}, 1, "/nonexistent"},
};

static void check_wrong(void) {
    char text[OUTPUT_MAX];
    for (size_t i = 0; i < COUNT_OF(wrong); i++) {
        const int code = run(wrong[i].arguments, STDERR_FILENO, text);
        TEST_MSG(code == wrong[i].code, "%zu: exit code %d: %s", i, code, text);
        TEST_MSG(strstr(text, wrong[i].says) != NULL, "%zu: wanted '%s': %s", i, wrong[i].says, text);
    }
}

static void check_operations(void) {
    static const char *const arguments[] = {
        "--operations", "--only", "sample 256k greedy", "--json", "-r", "1", "-t", "1", NULL};
    char text[OUTPUT_MAX];
    Arena arena = {0};
    Error error = {0};
    TEST(run(arguments, STDOUT_FILENO, text) == 0);
    const Json *root = json_parse(&arena, slice_of(text), &error);
    TEST_MSG(root != NULL, "%s: %s", error.text, text);
    const Json *bench_cases = json_get(root, "lines"), *read = json_get(root, "read_gbs");
    TEST(json_is_number(read) && json_number(read) > 0);
    TEST(bench_cases && bench_cases->type == JSON_ARRAY && bench_cases->size == 1);
    if (bench_cases && bench_cases->type == JSON_ARRAY && bench_cases->size) {
        const Json *us = json_get(json_first(bench_cases), "us");
        TEST(json_is_number(us) && json_number(us) > 0);
    }
    arena_free(&arena);
}

/* A line for each number of streams, in the order of the option. */
static void check_streams(void) {
    Fixture f;
    char directory[64], text[OUTPUT_MAX];
    Buffer config = {0};
    Arena arena = {0};
    Error error = {0};
    if (!fixture_open(&f, "llama")) return;
    fixture_config(&f, 0, &config);
    TEST(fixture_write(fixture_tensors(&f, 0), buffer_view(&config), directory));
    const char *arguments[] = {
        directory, "--streams", "3,1", "-n", "2", "-d", "5", "-r", "2", "-t", "1", "--json", NULL};
    TEST(run(arguments, STDOUT_FILENO, text) == 0);
    char *bench_case = text;
    for (int wanted = 3; wanted > 0; wanted -= 2) {
        char *end = strchr(bench_case, '\n');
        TEST_MSG(end != NULL, "no line of %d streams: %s", wanted, text);
        if (!end) break;
        *end = 0;
        const Json *root = json_parse(&arena, slice_of(bench_case), &error);
        const Json *streams = root ? json_get(root, "streams") : NULL, *tg = root ? json_get(root, "tg") : NULL;
        TEST(json_is_number(streams) && (int)json_number(streams) == wanted);
        TEST(json_is_number(tg) && json_number(tg) > 0);
        bench_case = end + 1;
    }
    fixture_remove(directory);
    buffer_free(&config);
    arena_free(&arena);
    fixture_close(&f);
}

int main(void) {
    check_wrong();
    check_operations();
    check_streams();
    return test_done();
}
