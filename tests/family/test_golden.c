/* Every family, every way to store its weights, against mlx-lm: logits at every position, prompt and single steps. */
#include "compare.h"

static int warnings;
static void count_warning(void *context, const char *line) {
    warnings++;
    fprintf(stderr, "%s: %s\n", (const char *)context, line);
}

static void test_variant(Fixture *f, int variant, const char *cpu, const char *directory) {
    const ModelOptions options = {
        .context = f->count, .strict_config = true, .warn = count_warning, .warn_context = f->name};
    const RunnerOptions chunks = {.backend = fixture_backend(cpu, 2, FIXTURE_TOKENS_MAX)};
    FixtureRun run;
    warnings = 0;
    if (!fixture_run_open(&run, directory, &options, &chunks)) return;
    const Json *told = json_get(f->root, "warnings"); /* of a rope beyond its positions, or of parts left out */
    TEST_MSG(warnings == (told ? told->integer : 0), "%d warnings for %s", warnings, f->name);
    float *ours = calloc((size_t)(f->count * f->vocab), sizeof *ours);
    if (run.vocab == f->vocab && fixture_walk(run.runner, f->tokens, f->count, f->count, f->steps, ours)) {
        if (runner_backend(run.runner)->exact) {
            check_exact(f, variant, ours);
        } else {
            check_fast(f, variant, cpu, ours);
        }
    }
    free(ours);
    fixture_run_close(&run);
}

/* test_golden [--backend BACKEND] [NAME…]: this backend and these fixtures only. */
int main(int count, char **arguments) {
    static char names[FIXTURE_NAMES_MAX][64];
    const char *only = NULL;
    if (count > 2 && strcmp(arguments[1], "--backend") == 0) {
        only = arguments[2];
        arguments += 2;
        count -= 2;
    }
    int total = fixture_names(names, FIXTURE_NAMES_MAX);
    for (int i = 1; i < count; i++) snprintf(names[i - 1], sizeof names[0], "%s", arguments[i]);
    total = count > 1 ? count - 1 : total;
    TEST_MSG(total > 0, "no fixtures in " FIXTURE_DATA " (run from the project's root)");
    bool here[COUNT_OF(fixture_cpus)];
    for (size_t c = 0; c < COUNT_OF(fixture_cpus); c++)
        here[c] = (!only || !strcmp(fixture_cpus[c], only)) && fixture_cpu_due(fixture_cpus[c]);
    for (int i = 0; i < total; i++) {
        Fixture f;
        if (!fixture_open(&f, names[i])) continue;
        for (int v = 0; v < (int)f.variants->size; v++) {
            char directory[64];
            const bool written = fixture_write_variant(&f, v, directory);
            TEST(written);
            for (size_t c = 0; written && c < COUNT_OF(fixture_cpus); c++) {
                if (here[c]) test_variant(&f, v, fixture_cpus[c], directory);
            }
            fixture_remove(directory);
        }
        fixture_close(&f);
    }
    return test_done();
}
